"""How far each rank came in each process group, and the first thing that ranks disagree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import plotly.graph_objects as go

from ncclkit.analysis import alignment, timeline
from ncclkit.analysis.alignment import Clock, Disagreement
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.picks import name_hosts
from ncclkit.analysis.timeline import RankProgress, RankTimeline
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.text import numbered, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, code, el, fit, fold, join, left_out, table
from ncclkit.views.findings import Culprits, Headline, culprits, evidence_part, headline_beside
from ncclkit.views.ranks import Scale

PROGRESS = ("Ranks", "Behind by", "Last operation", "Enqueued", "Started", "Completed")
"""Columns of the table of a group; a column without any value is left out."""
STATES = 12
"""Different states of one group that are shown; a job that runs has many."""
GROUPS = 8
PANELS, EACH = 3, 12
"""Groups that are drawn over time, and ranks of each."""
AGREE = 0.5
"""Seconds within which clocks are said to agree: no log line is better than that."""

Ranks = Mapping[int, RankProgress]
Groups = Sequence[tuple[tuple[str, str], Ranks]]
"""(name, description) of each process group, and its ranks."""


class State(NamedTuple):
    """How far ranks of a group came; those of one state share a row."""

    place: int
    op: str
    enqueued: int | None
    started: int | None
    completed: int | None


def progress_view(case: Case) -> View:
    """Per process group, over time and in numbers: how far each rank came; who is behind first."""
    scope = last_run_of(case)
    known = timeline.timelines(scope)
    groups: dict[tuple[str, str], dict[int, RankProgress]] = {}
    for one in known:
        for at in one.progress:
            groups.setdefault((at.group, at.desc), {})[one.rank] = at
    if not groups:
        why = (
            "no watchdog line, Flight Recorder dump or NCCL COLL line holds the number of a"
            " collective"
        )
        return View(f"Nothing says how far the ranks came: {why}", Markup(""))
    ordered = sorted(groups.items(), key=lambda item: (not _behind(item[1]), -len(item[1])))
    uneven = [_group(key, ranks) for key, ranks in ordered if _behind(ranks)]
    even = [(key, ranks) for key, ranks in ordered if not _behind(ranks)]
    silent = [one.rank for one in known if not one.progress]
    mute = ""
    if silent:
        mute = el("p", f"{numbered('Rank', silent)}: nothing says how far.", cls="nk-dim")
    rest = fold(f"{len(uneven) - GROUPS:,} more groups", *uneven[GROUPS:])
    verdict = culprits(case.findings)
    headline = headline_beside(verdict, *_progress_headline(ordered, silent, scope, verdict))
    return Drawn(headline, _figure(ordered, known), join(*uneven[:GROUPS], rest, _even(even), mute))


def _figure(groups: Groups, known: Sequence[RankTimeline]) -> go.Figure | None:
    """Collective against time in the groups with ranks behind, else in the largest.

    None where nothing has a time.
    """
    lasts = {
        one.rank: max((e.time for e in one.at if e.time is not None), default=0.0) for one in known
    }
    dated = [(key, ranks) for key, ranks in groups if any(at.history for at in ranks.values())]
    shown = [(key, ranks) for key, ranks in dated if _behind(ranks)][:PANELS] or dated[:1]
    times = [time for _, ranks in shown for at in ranks.values() for time, _ in at.history]
    if not times:
        return None
    waiting = [lasts[rank] for _, ranks in shown for rank, at in ranks.items() if _waits(at)]
    scale = Scale(min(times), max([*times, *waiting]), True)
    return _draw.progress(
        {_name(key): _lines(ranks, lasts, scale) for key, ranks in shown}, scale.axis
    )


def _lines(ranks: Ranks, lasts: Mapping[int, float], scale: Scale) -> list[_draw.RankLine]:
    """A line for each rank, of many the odd ones first.

    A rank that waits goes on to its last sign of life.
    """
    furthest = max(_place(at) for at in ranks.values())
    drawn = {rank: at for rank, at in ranks.items() if at.history or (_place(at) == 0 < furthest)}
    behind = {rank for rank, at in drawn.items() if _place(at) < furthest}
    if 2 * len(behind) <= len(drawn):
        odd = behind
    else:
        odd = set(drawn) - behind
    chosen = sorted(drawn, key=lambda rank: (rank not in odd, rank))[:EACH]
    ends = {rank: _points(drawn[rank], lasts[rank], scale) for rank in chosen}
    longest = {
        _place(drawn[rank]): rank for rank in sorted(chosen, key=lambda rank: ends[rank][-1][0])
    }
    labels = {rank: _label(place, ranks, furthest) for place, rank in longest.items()}
    return [
        _draw.RankLine(rank, ends[rank], labels.get(rank, ""), rank in behind) for rank in chosen
    ]


def _points(at: RankProgress, last: float, scale: Scale) -> list[tuple[float, int]]:
    """Its history on the axis of time; a rank that entered no collective stands at the start."""
    points = [(scale.after(time), number) for time, number in at.history] or [(0.0, 0)]
    if at.history and _waits(at) and last > at.history[-1][0]:
        points.append((scale.after(min(last, scale.end)), points[-1][1]))
    return points


def _waits(at: RankProgress) -> bool:
    """Whether it is in a collective that it is not known to have completed."""
    return (at.enqueued or 0) > (at.completed or 0)


def _label(place: int, ranks: Ranks, furthest: int) -> str:
    """``rank 2 stopped at 11``, ``3 ranks wait in all_reduce 12``."""
    alike = [rank for rank, at in ranks.items() if _place(at) == place]
    if len(alike) <= 3:
        named = numbered("rank", alike)
    else:
        named = plural(len(alike), "rank")
    if not place:
        return f"{named} entered none"
    if place < furthest:
        return f"{named} stopped at {place:,}"
    waits = next(
        (at for at in ranks.values() if _waits(at) and at.op and place in (at.waits, at.enqueued)),
        None,
    )
    verb = "wait"
    if len(alike) == 1:
        verb = "waits"
    if waits:
        return f"{named} {verb} in {text.op(waits.op)} {place:,}"
    return f"{named} came to {place:,}"


def disagreement_view(case: Case) -> View:
    """The first collective of each group on which ranks disagree, and how far the clocks of the
    hosts are apart.
    """
    scope = last_run_of(case)
    found = alignment.disagreements(scope)
    known = alignment.clocks_of(scope)
    first, pointed = (found[0].summary.rstrip("."), found[0].culprits) if found else _agreed(scope)
    more = ""
    if len(found) > 1:
        more = f" (and {plural(len(found) - 1, 'further disagreement')})"
    headline = headline_beside(culprits(case.findings), first + more, pointed)
    cards = [_card(one, titled=one.summary.rstrip(".") != headline) for one in found]
    rest = fold(f"{len(found) - GROUPS:,} more disagreements", *cards[GROUPS:])
    several = len(name_hosts(scope.events)) > 1  # of one host there is one clock
    clocks = ""
    if several:
        clocks = el("section", el("h4", _clocks_summary(known)), _clocks(known), cls="nk-card")
    return View(headline, join(*cards[:GROUPS], rest, clocks))


def _agreed(case: Case) -> Headline:
    """That no disagreement is seen, and of whom that is said.

    Of a single rank there is nothing to compare.
    """
    logged = _logged(case)
    if len(logged) == 1:
        return (
            f"Only rank {logged[0]}'s log was given: there is no other to compare it with",
            logged,
        )
    return "The ranks agree on every collective that the evidence shows", ()


def _place(at: RankProgress) -> int:
    """The furthest that a rank came, whatever shows it; 0 where it has entered none."""
    known = (at.enqueued, at.started, at.completed)
    return max((number for number in known if number is not None), default=0)


def _behind(ranks: Ranks) -> list[int]:
    """Ranks that came less far than the furthest."""
    furthest = max(_place(at) for at in ranks.values())
    return [rank for rank, at in ranks.items() if _place(at) < furthest]


def _progress_headline(
    groups: Groups, silent: Sequence[int], case: Case, verdict: Culprits | None
) -> Headline:
    """Who is behind, one sentence, and the ranks that it points at."""
    (key, ranks), *_ = groups
    behind = _behind(ranks)
    furthest = max(_place(at) for at in ranks.values())
    if not behind:
        return _even_headline(groups, silent, case, verdict)
    least = min(_place(ranks[rank]) for rank in behind)
    if len(behind) * 2 > len(ranks):
        first = [rank for rank in ranks if rank not in set(behind)]
        between = f"The ranks of {_name(key)} are between collective {least:,} and {furthest:,}"
        return f"{between}; {numbered('rank', first)} came furthest", first
    others = [at for at in ranks.values() if _place(at) == furthest]
    hangs = all(map(_waits, others))
    verb = "came to"
    if hangs:
        verb = "stopped at"
    if least:
        came = f"{verb} collective {least:,} of {_name(key)}"
    else:
        came = f"entered no collective of {_name(key)}"
    where = "came to"
    if hangs:
        where = "wait in"
        if len(others) == 1:
            where = "waits in"
    there = f"{plural(len(others), 'rank')} {where} collective {furthest:,}"
    also = sum(bool(_behind(held)) for _, held in groups[1:])
    more = ""
    if also:
        more = f" (and {plural(also, 'further group')} with ranks behind)"
    return f"{numbered('Rank', behind)} {came}; {there}{more}", behind


def _even_headline(
    groups: Groups, silent: Sequence[int], case: Case, verdict: Culprits | None
) -> Headline:
    """That nobody is seen behind, and of whom that is known; with the ranks that it points at."""
    known = sorted({rank for _, ranks in groups for rank in ranks})
    single = len(groups) == 1
    (key, ranks), *_ = groups
    place = max(_place(at) for at in ranks.values())
    if place:
        came = f"came to collective {place:,} of {_name(key)}"
    else:
        came = f"entered no collective of {_name(key)}"
    if len(known) == 1 and known == _logged(case):
        return f"Only rank {known[0]}'s log was given: it {came}", known
    if not silent:
        if single:
            every = f"every rank {came}"
        else:
            every = f"in each of {len(groups):,} groups every rank came equally far"
        return text.start(every) if verdict else f"No rank is behind: {every}", ()
    where = "came equally far in each of their groups"
    if single:
        where = came
    return (
        f"{numbered('Rank', known)} {where}; nothing says how far {numbered('rank', silent)} came",
        silent,
    )


def _logged(case: Case) -> list[int]:
    """The ranks that any line or dump is of."""
    return [one.rank for one in timeline.timelines(case) if one.at]


def _name(key: tuple[str, str]) -> str:
    return text.group(*key)


def _group(key: tuple[str, str], ranks: Ranks) -> Markup:
    """One group: ranks in the same state share a row, those behind come first."""
    furthest = max(_place(reached) for reached in ranks.values())
    states: dict[State, list[int]] = {}
    for rank, at in ranks.items():
        states.setdefault(
            State(_place(at), at.op, at.enqueued, at.started, at.completed), []
        ).append(rank)
    ordered = sorted(states.items(), key=lambda item: (item[0].place, len(item[1])))
    rows = [_row(state, held, furthest) for state, held in ordered[:STATES]]
    known = [any(row[column] != "–" for row in rows) for column in range(len(PROGRESS))]
    shown = table([*compress(PROGRESS, known)], [[*compress(row, known)] for row in rows])
    title = el("h4", code(_name(key)), f" {plural(len(ranks), 'rank')}")
    return el(
        "section", title, fit(shown), left_out(len(ordered) - STATES, "states"), cls="nk-card"
    )


def _even(groups: Groups) -> Markup:
    """Groups in which nobody is behind: those of one name, size and place share a row."""
    alike: dict[tuple[str, int, int], list[list[int]]] = {}
    for key, ranks in groups:
        place = _place(next(iter(ranks.values())))
        alike.setdefault((_name(key), len(ranks), place), []).append(sorted(ranks))
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
    return el("section", el("h4", "No rank is behind in"), fit(table(head, rows)), cls="nk-card")


def _row(state: State, ranks: Sequence[int], furthest: int) -> tuple[object, ...]:
    gap = furthest - state.place
    late = "0"
    if gap:
        late = el("b", f"▲ {gap:,}")
    if len(ranks) > 1:
        count = f"{some(ranks)} ({len(ranks):,})"
    else:
        count = some(ranks)
    numbers = (state.enqueued, state.started, state.completed)
    return (
        count,
        late,
        state.op or "–",
        *("–" if number is None else f"{number:,}" for number in numbers),
    )


WHAT = {
    "missing": "some ranks never entered it",
    "op": "another operation",
    "size": "another size",
    "dtype": "another dtype",
    "stuck": "all entered it, none completed it",
}


def _card(one: Disagreement, titled: bool = True) -> Markup:
    group = text.group(one.group, one.desc)
    chips = [
        ("collective", f"{one.seq:,}" if one.seq >= 0 else "unknown"),
        ("of", group),
        ("what differs", WHAT.get(one.what, one.what)),
    ]
    odd, others = _labels(one)
    sides = [(odd, _side(one.minority)), (others, _side(one.majority))]
    return el(
        "section",
        el("h4", one.summary) if titled else "",
        el("p", *(el("span", el("b", name), " ", words, cls="nk-chip") for name, words in chips)),
        table(("Side", "Ranks"), sides),
        evidence_part(one.evidence),
        cls="nk-card nk-edge-likely",
    )


def _labels(one: Disagreement) -> tuple[str, str]:
    """How the two sides are called: a majority is one only where it is larger than the rest."""
    known = {"missing": ("Missing", "Waiting"), "stuck": ("Finished it", "Waiting")}
    tie = len(one.minority) >= len(one.majority)
    return known.get(
        one.what, ("One side", "The other side") if tie else ("The odd ones", "The majority")
    )


def _side(ranks: Sequence[int]) -> str:
    if ranks:
        return f"{some(ranks)} ({plural(len(ranks), 'rank')})"
    return "nobody"


def _clocks_summary(known: Sequence[Clock]) -> str:
    if len(known) < 2:
        return (
            "The clocks cannot be compared: no two hosts tell the time of an event that both took"
            " part in"
        )
    odd = [clock for clock in known if _off(clock)]
    if not odd:
        return f"The clocks of {plural(len(known), 'host')} agree within {AGREE} s"
    worst = max(odd, key=lambda clock: abs(clock.offset))
    named = f"{worst.host} is {abs(worst.offset):.1f} s {'ahead' if worst.offset > 0 else 'behind'}"
    rest = f"{len(known) - len(odd):,} others agree within {AGREE} s"
    if len(odd) == 1:
        return f"The clock of {named}; {rest}"
    return f"{len(odd):,} clocks are off, most of all {named}; {rest}"


def _off(clock: Clock) -> bool:
    return abs(clock.offset) > max(AGREE, clock.spread)


def _clocks(known: Sequence[Clock]) -> Markup:
    """The clocks that are off; all of them where they are few."""
    if len(known) < 2:
        return Markup("")
    if len(known) <= STATES:
        shown = known
    else:
        shown = [clock for clock in known if _off(clock)]
    ranked = sorted(shown, key=lambda clock: -abs(clock.offset))[:STATES]
    rows = [
        (c.host or "–", f"{c.offset:+.2f} s", f"{c.spread:.2f} s", f"{c.shared:,}") for c in ranked
    ]
    head = ("Host", "Ahead by", "Spread", "Shared events")
    return join(table(head, rows, "nk-numbers"), left_out(len(shown) - STATES))
