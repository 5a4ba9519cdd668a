"""How far each rank came in each process group, and the first thing that ranks disagree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclkit.analysis import alignment, timeline
from ncclkit.analysis.alignment import Clock, Disagreement
from ncclkit.analysis.timeline import Reached
from ncclkit.core.case import Case
from ncclkit.core.text import plural, some, the
from ncclkit.views._base import View
from ncclkit.views._html import Markup, code, el, fit, fold, join, table
from ncclkit.views.findings import evidence_part

STATES = 12
"""Different states of one group that are shown; a job that runs has many."""
GROUPS = 8
AGREE = 0.5
"""Seconds within which clocks are said to agree: no log line is better than that."""

Ranks = Mapping[int, Reached]


def progress_view(case: Case) -> View:
    """Per process group: the last collective that each rank enqueued, started and completed; who is behind first."""
    known = timeline.stories(case.events, case.inputs)
    groups: dict[tuple[str, str], dict[int, Reached]] = {}
    for one in known:
        for reached in one.reached:
            groups.setdefault((reached.group, reached.desc), {})[one.rank] = reached
    if not groups:
        why = "no watchdog line, Flight Recorder dump or NCCL COLL line tells a sequence number"
        return View(f"Nothing says how far the ranks came: {why}", Markup(""))
    ordered = sorted(groups.items(), key=lambda item: (not _behind(item[1]), -len(item[1])))
    uneven = [_group(key, ranks) for key, ranks in ordered if _behind(ranks)]
    even = [(key, ranks) for key, ranks in ordered if not _behind(ranks)]
    silent = [one.rank for one in known if not one.reached]
    mute = el("p", f"{the('Rank', silent)}: nothing says how far.", cls="nk-dim") if silent else ""
    rest = fold(f"{len(uneven) - GROUPS:,} more groups", *uneven[GROUPS:])
    return View(_progress_say(ordered), join(*uneven[:GROUPS], rest, _even(even), mute))


def disagreement_view(case: Case) -> View:
    """The first collective of each group on which ranks disagree, and how far the clocks of the hosts are apart."""
    found, known = alignment.align(case.events), alignment.clocks(case.events)
    say = found[0].say.rstrip(".") if found else "The ranks agree on every collective that the evidence shows"
    more = f" (and {plural(len(found) - 1, 'further disagreement')})" if len(found) > 1 else ""
    cards = [_card(one) for one in found]
    rest = fold(f"{len(found) - GROUPS:,} more disagreements", *cards[GROUPS:])
    clocks = el("section", el("h4", _clocks_say(known)), _clocks(known), cls="nk-card")
    return View(say + more, join(*cards[:GROUPS], rest, clocks))


def _place(reached: Reached) -> int:
    """The furthest that a rank came, whatever tells it."""
    told = (reached.enqueued, reached.started, reached.completed)
    return max((number for number in told if number is not None), default=-1)


def _behind(ranks: Ranks) -> list[int]:
    """Ranks that came less far than the furthest."""
    furthest = max(_place(reached) for reached in ranks.values())
    return [rank for rank, reached in ranks.items() if _place(reached) < furthest]


def _progress_say(groups: Sequence[tuple[tuple[str, str], Ranks]]) -> str:
    (key, ranks), *_ = groups
    behind = _behind(ranks)
    furthest = max(_place(reached) for reached in ranks.values())
    if not behind:
        even = "every rank" if len(groups) == 1 else f"in each of {len(groups):,} groups every rank"
        return f"Nobody is behind: {even} came to the same collective{f', {furthest:,}' if len(groups) == 1 else ''}"
    least = min(_place(ranks[rank]) for rank in behind)
    came = f"came to collective {least:,} of {_name(key)}, the furthest to {furthest:,}"
    if len(behind) * 2 > len(ranks):
        first = the("rank", [rank for rank in ranks if rank not in set(behind)])
        return f"The ranks of {_name(key)} are between collective {least:,} and {furthest:,}; {first} came furthest"
    others = len(ranks) - len(behind)
    say = f"{the('Rank', behind)} {came}; {plural(others, 'rank')} {'is' if others == 1 else 'are'} there"
    also = sum(bool(_behind(held)) for _, held in groups[1:])
    return f"{say} (and {plural(also, 'further group')} with ranks behind)" if also else say


def _name(key: tuple[str, str]) -> str:
    return key[1] or f"group {key[0]}"


def _group(key: tuple[str, str], ranks: Ranks) -> Markup:
    """One group: ranks in the same state share a row, those behind come first."""
    furthest = max(_place(reached) for reached in ranks.values())
    states: dict[tuple[object, ...], list[int]] = {}
    for rank, at in ranks.items():
        states.setdefault((_place(at), at.op, at.enqueued, at.started, at.completed), []).append(rank)
    ordered = sorted(states.items(), key=lambda item: (item[0][0], len(item[1])))
    rows = [_row(state, held, furthest) for state, held in ordered[:STATES]]
    more = el("p", f"… and {len(ordered) - STATES:,} more states", cls="nk-dim") if len(ordered) > STATES else ""
    head = ("Ranks", "Behind by", "Last operation", "Enqueued", "Started", "Completed")
    title = el("h4", code(_name(key)), f" {plural(len(ranks), 'rank')}")
    return el("section", title, fit(table(head, rows)), more, cls="nk-card")


def _even(groups: Sequence[tuple[tuple[str, str], Ranks]]) -> Markup:
    """Groups in which nobody is behind: those of one name, size and place share a row."""
    alike: dict[tuple[str, int, int], list[list[int]]] = {}
    for key, ranks in groups:
        place = _place(next(iter(ranks.values())))
        alike.setdefault((key[1] or f"group {key[0]}", len(ranks), place), []).append(sorted(ranks))
    rows = [
        (
            code(name),
            f"{len(held):,}",
            f"{size:,}",
            f"{place:,}",
            some(held[0]) if len(held) == 1 else f"{some(held[0])} …",
        )
        for (name, size, place), held in alike.items()
    ]
    if not rows:
        return Markup("")
    head = ("Group", "How many", "Ranks in each", "All came to", "Which ranks")
    return el("section", el("h4", "Nobody is behind in"), fit(table(head, rows)), cls="nk-card")


def _row(state: tuple[object, ...], ranks: Sequence[int], furthest: int) -> tuple[object, ...]:
    place, op, *numbers = state
    gap = furthest - int(str(place))
    late = el("b", f"▲ {gap:,}") if gap else "0"
    count = f"{some(ranks)} ({len(ranks):,})" if len(ranks) > 1 else some(ranks)
    return (count, late, op or "–", *("–" if number is None else f"{number:,}" for number in numbers))


WHAT = {
    "missing": "some ranks never came",
    "op": "another operation",
    "size": "another size",
    "dtype": "another dtype",
    "stuck": "all came, nobody finished",
}


def _card(one: Disagreement) -> Markup:
    group = one.desc or f"group {one.group}"
    chips = [("collective", f"{one.seq:,}"), ("of", group), ("what differs", WHAT.get(one.what, one.what))]
    sides = [("The odd ones", _side(one.odd)), ("The majority", _side(one.majority))]
    return el(
        "section",
        el("h4", one.say),
        el("p", *(el("span", el("b", name), " ", words, cls="nk-chip") for name, words in chips)),
        table(("Side", "Ranks"), sides),
        evidence_part(one.evidence),
        cls="nk-card nk-edge-likely",
    )


def _side(ranks: Sequence[int]) -> str:
    return f"{some(ranks)} ({plural(len(ranks), 'rank')})" if ranks else "nobody"


def _clocks_say(known: Sequence[Clock]) -> str:
    if len(known) < 2:
        return "The clocks cannot be compared: no two hosts tell the time of an event that both took part in"
    odd = [clock for clock in known if _off(clock)]
    if not odd:
        return f"The clocks of {plural(len(known), 'host')} agree within {AGREE} s"
    worst = max(odd, key=lambda clock: abs(clock.offset))
    named = f"{worst.host} is {abs(worst.offset):.1f} s {'ahead' if worst.offset > 0 else 'behind'}"
    rest = f"{len(known) - len(odd):,} others agree within {AGREE} s"
    return (
        f"The clock of {named}; {rest}"
        if len(odd) == 1
        else f"{len(odd):,} clocks are off, most of all {named}; {rest}"
    )


def _off(clock: Clock) -> bool:
    return abs(clock.offset) > max(AGREE, clock.spread)


def _clocks(known: Sequence[Clock]) -> Markup:
    """The clocks that are off; all of them where they are few."""
    if len(known) < 2:
        return Markup("")
    shown = known if len(known) <= STATES else [clock for clock in known if _off(clock)]
    ranked = sorted(shown, key=lambda clock: -abs(clock.offset))[:STATES]
    rows = [(c.host or "–", f"{c.offset:+.2f} s", f"{c.spread:.2f} s", f"{c.shared:,}") for c in ranked]
    more = el("p", f"… and {len(shown) - STATES:,} more", cls="nk-dim") if len(shown) > STATES else ""
    return join(table(("Host", "Ahead by", "Spread", "Shared events"), rows, "nk-numbers"), more)
