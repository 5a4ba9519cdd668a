"""How far each rank came in each process group.

It shows also the first thing that ranks disagree on.
"""

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
from ncclkit.core.run_choice import job_runs
from ncclkit.core.text import numbered, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._html import Markup, code, el, fit, fold, join, left_out, table
from ncclkit.views._missing import NoData
from ncclkit.views.findings import Culprits, Headline, culprits, evidence_part, headline_beside
from ncclkit.views.ranks import Scale

PROGRESS = ("Ranks", "Behind by", "Last operation", "Enqueued", "Started", "Completed")
"""Columns of the table of a group; a column without any value is left out."""
STATES = 12
"""Different states of one group that are shown; a job that runs has many."""
GROUPS = 8
PANELS, EACH = 3, 12
"""Groups that are drawn over time, and ranks of each."""
UNTOLD = "Nothing shows the calls of two ranks, so whether they agree cannot be told"
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


@shows_runs(job_runs)
def progress_view(case: Case) -> View:
    """How far each rank came per process group, over time and in numbers.

    Who is behind comes first.
    """
    scope = last_run_of(case)
    known = timeline.timelines(scope)
    groups = _progress_by_group(known)
    if not groups:
        why = (
            "no watchdog line, Flight Recorder dump or NCCL COLL line holds the number of a"
            " collective"
        )
        unknown = f"Nothing says how far the ranks came: {why}"
        return NoData("how far the ranks came", why, unknown)
    # those with ranks behind first, the largest of each kind first
    ordered = sorted(groups.items(), key=lambda item: (not _ranks_behind(item[1]), -len(item[1])))
    uneven = []
    even = []
    for key, ranks in ordered:
        if _ranks_behind(ranks):
            uneven.append(_group_card(key, ranks))
        else:
            even.append((key, ranks))
    silent = []
    for one in known:
        if not one.progress:
            silent.append(one.rank)
    mute = ""
    if silent:
        mute = el("p", f"{numbered('Rank', silent)}: nothing says how far.", cls="nk-dim")
    rest = fold(f"{len(uneven) - GROUPS:,} more groups", *uneven[GROUPS:])
    verdict = culprits(case.findings)
    furthest = _progress_headline(ordered, silent, scope, verdict)
    headline = headline_beside(verdict, *furthest)
    body = join(*uneven[:GROUPS], rest, _even_groups(even), mute)
    return Drawn(headline, _progress_figure(ordered, known), body)


def _progress_by_group(
    known: Sequence[RankTimeline],
) -> dict[tuple[str, str], dict[int, RankProgress]]:
    """(name, description) of each group → rank → how far it came there."""
    groups: dict[tuple[str, str], dict[int, RankProgress]] = {}
    for one in known:
        for at in one.progress:
            ranks = groups.setdefault((at.group, at.desc), {})
            ranks[one.rank] = at
    return groups


def _progress_figure(groups: Groups, known: Sequence[RankTimeline]) -> go.Figure | None:
    """Collective against time in the groups with ranks behind, else in the largest.

    It is None where nothing has a time.
    """
    lasts = {}
    for one in known:
        dates = []
        for event in one.at:
            if event.time is not None:
                dates.append(event.time)
        lasts[one.rank] = max(dates, default=0.0)
    # dumps alone have no times, and such a group cannot be drawn over them
    dated = [(key, ranks) for key, ranks in groups if any(at.history for at in ranks.values())]
    uneven = [(key, ranks) for key, ranks in dated if _ranks_behind(ranks)]
    # where nobody is behind, one group shows it
    shown = uneven[:PANELS] or dated[:1]
    times: list[float] = []
    waiting: list[float] = []
    for _, ranks in shown:
        for rank, at in ranks.items():
            times += [time for time, _ in at.history]
            # the line of a rank that waits goes on to its last sign of life
            if _is_waiting(at):
                waiting.append(lasts[rank])
    if not times:
        return None
    # a rank may have logged after the last call that its group shows
    scale = Scale(min(times), max([*times, *waiting]), True)
    panels = {_group_name(key): _rank_lines(ranks, lasts, scale) for key, ranks in shown}
    return _draw.progress(panels, scale.axis)


def _rank_lines(ranks: Ranks, lasts: Mapping[int, float], scale: Scale) -> list[_draw.RankLine]:
    """A line for each rank, of many the odd ones first.

    The line of a rank that waits goes on to its last sign of life.
    """
    furthest = _furthest_place(ranks)
    drawn = {}
    for rank, at in ranks.items():
        # nothing dates the calls of a rank that made none, and yet it is the one to be seen
        entered_none = _place_of(at) == 0 < furthest
        if at.history or entered_none:
            drawn[rank] = at
    behind = {rank for rank, at in drawn.items() if _place_of(at) < furthest}
    # the fewer are the odd ones, whichever side they are on
    if 2 * len(behind) <= len(drawn):
        odd = behind
    else:
        odd = set(drawn) - behind
    # the odd ones first, so that they are drawn however many ranks there are
    chosen = sorted(drawn, key=lambda rank: (rank not in odd, rank))[:EACH]
    points = {rank: _points_of(drawn[rank], lasts[rank], scale) for rank in chosen}
    # of those that came equally far the longest line has the label
    longest = {}
    for rank in sorted(chosen, key=lambda rank: points[rank][-1][0]):
        longest[_place_of(drawn[rank])] = rank
    labels = {rank: _label_of(place, ranks, furthest) for place, rank in longest.items()}
    lines = []
    for rank in chosen:
        label = labels.get(rank, "")
        lines.append(_draw.RankLine(rank, points[rank], label, rank in behind))
    return lines


def _points_of(at: RankProgress, last: float, scale: Scale) -> list[tuple[float, int]]:
    """Its history on the axis of time.

    A rank that entered no collective stands at the start.
    """
    if not at.history:
        return [(0.0, 0)]
    points = [(scale.after(time), number) for time, number in at.history]
    entered, number = at.history[-1]
    if _is_waiting(at) and last > entered:
        points.append((scale.after(min(last, scale.end)), number))
    return points


def _is_waiting(at: RankProgress) -> bool:
    """Whether it is in a collective that it is not known to have completed."""
    # a dump tells completed calls, a watchdog only enqueued ones: what is not told counts as open
    return (at.enqueued or 0) > (at.completed or 0)


def _label_of(place: int, ranks: Ranks, furthest: int) -> str:
    """``rank 2 stopped at 11``, ``3 ranks wait in all_reduce 12``."""
    alike = [rank for rank, at in ranks.items() if _place_of(at) == place]
    # up to three ranks fit beside the end of a line
    if len(alike) <= 3:
        named = numbered("rank", alike)
    else:
        named = plural(len(alike), "rank")
    if not place:
        return f"{named} entered none"
    if place < furthest:
        return f"{named} stopped at {place:,}"
    verb = "wait"
    if len(alike) == 1:
        verb = "waits"
    for at in ranks.values():
        if _is_waiting(at) and at.op and place in (at.waits, at.enqueued):
            return f"{named} {verb} in {text.op(at.op)} {place:,}"
    return f"{named} came to {place:,}"


@shows_runs(job_runs)
def disagreement_view(case: Case) -> View:
    """The first collective of each group on which ranks disagree.

    It shows also how far the clocks of the hosts are apart.
    """
    scope = last_run_of(case)
    found = alignment.disagreements(scope)
    known = alignment.clocks_of(scope)
    said, pointed = _disagreement_headline(found, scope)
    headline = headline_beside(culprits(case.findings), said, pointed)
    cards = []
    for one in found:
        # the headline has said it already
        is_said = one.summary.rstrip(".") == headline
        cards.append(_disagreement_card(one, titled=not is_said))
    rest = fold(f"{len(found) - GROUPS:,} more disagreements", *cards[GROUPS:])
    clocks = ""
    # of one host there is one clock
    if len(name_hosts(scope.events)) > 1:
        title = el("h4", _clocks_summary(known))
        clocks = el("section", title, _clocks_table(known), cls="nk-card")
    logged = _ranks_with_lines(scope)
    if said == UNTOLD and not clocks:
        return NoData("where the ranks disagree", "nothing shows the calls of two ranks", headline)
    if not found and not clocks and len(logged) == 1:
        why = f"only rank {logged[0]}'s log was given"
        return NoData("where the ranks disagree", why, headline)
    return View(headline, join(*cards[:GROUPS], rest, clocks))


def _disagreement_headline(found: Sequence[Disagreement], scope: Case) -> Headline:
    if not found:
        return _agreed_headline(scope)
    first = found[0].summary.rstrip(".")
    if len(found) > 1:
        first += f" (and {plural(len(found) - 1, 'further disagreement')})"
    return first, found[0].culprits


def _agreed_headline(case: Case) -> Headline:
    """That no disagreement is seen, and of whom that is said.

    Of a single rank there is nothing to compare.
    """
    # of ranks without a line it would be said that they agree
    logged = _ranks_with_lines(case)
    if len(logged) == 1:
        alone = f"Only rank {logged[0]}'s log was given: there is no other to compare it with"
        return alone, logged
    if not _shows_calls_of_several(case):
        return UNTOLD, ()
    return "The ranks agree on every collective that the evidence shows", ()


def _shows_calls_of_several(case: Case) -> bool:
    """Whether at least two ranks of one group have a number or a list of their calls."""
    groups = _progress_by_group(timeline.timelines(case))
    if any(len(ranks) > 1 for ranks in groups.values()):
        return True
    listed = {event.rank for event in case.of("nccl.op", "flight.entry")}
    # a dump without an entry shows that none was called, or that none was kept
    listed |= {dump.rank for dump in case.of("flight.dump") if dump.data.entries}
    return len(listed) > 1


def _place_of(at: RankProgress) -> int:
    """The furthest that a rank came, whatever shows it; 0 where it has entered none."""
    said = (at.enqueued, at.started, at.completed)
    known = [number for number in said if number is not None]
    # numbers of all three kinds are of one sequence, so the largest is the furthest
    return max(known, default=0)


def _furthest_place(ranks: Ranks) -> int:
    return max(_place_of(at) for at in ranks.values())


def _ranks_behind(ranks: Ranks) -> list[int]:
    """Ranks that came less far than the furthest."""
    furthest = _furthest_place(ranks)
    return [rank for rank, at in ranks.items() if _place_of(at) < furthest]


def _progress_headline(
    groups: Groups, silent: Sequence[int], case: Case, verdict: Culprits | None
) -> Headline:
    """Who is behind, one sentence, and the ranks that it points at."""
    (key, ranks), *_ = groups
    behind = _ranks_behind(ranks)
    furthest = _furthest_place(ranks)
    if not behind:
        return _even_headline(groups, silent, case, verdict)
    name = _group_name(key)
    least = min(_place_of(ranks[rank]) for rank in behind)
    # where most are behind, the few in front are the odd ones
    if len(behind) * 2 > len(ranks):
        first = [rank for rank in ranks if rank not in set(behind)]
        between = f"The ranks of {name} are between collective {least:,} and {furthest:,}"
        return f"{between}; {numbered('rank', first)} came furthest", first
    # only those that came furthest: those behind are in another call
    others = [at for at in ranks.values() if _place_of(at) == furthest]
    hangs = all(map(_is_waiting, others))
    verb = "came to"
    if hangs:
        verb = "stopped at"
    if least:
        came = f"{verb} collective {least:,} of {name}"
    else:
        came = f"entered no collective of {name}"
    where = "came to"
    if hangs:
        where = "wait in"
        if len(others) == 1:
            where = "waits in"
    there = f"{plural(len(others), 'rank')} {where} collective {furthest:,}"
    also = sum(bool(_ranks_behind(held)) for _, held in groups[1:])
    more = ""
    if also:
        more = f" (and {plural(also, 'further group')} with ranks behind)"
    return f"{numbered('Rank', behind)} {came}; {there}{more}", behind


def _even_headline(
    groups: Groups, silent: Sequence[int], case: Case, verdict: Culprits | None
) -> Headline:
    """That nobody is seen behind, and of whom that is known.

    With it come the ranks that it points at.
    """
    seen: set[int] = set()
    for _, ranks in groups:
        seen.update(ranks)
    known = sorted(seen)
    single = len(groups) == 1
    (key, ranks), *_ = groups
    name = _group_name(key)
    place = _furthest_place(ranks)
    if place:
        came = f"came to collective {place:,} of {name}"
    else:
        came = f"entered no collective of {name}"
    # a single log shows its rank in front of everybody, which says nothing of the job
    if len(known) == 1 and known == _ranks_with_lines(case):
        return f"Only rank {known[0]}'s log was given: it {came}", known
    if not silent:
        if single:
            every = f"every rank {came}"
        else:
            every = f"in each of {len(groups):,} groups every rank came equally far"
        # where a verdict names culprits, "no rank is behind" would read like a denial
        if verdict:
            return text.start(every), ()
        return f"No rank is behind: {every}", ()
    where = "came equally far in each of their groups"
    if single:
        where = came
    unknown = f"nothing says how far {numbered('rank', silent)} came"
    return f"{numbered('Rank', known)} {where}; {unknown}", silent


def _ranks_with_lines(case: Case) -> list[int]:
    """The ranks that any line or dump is of."""
    ranks = []
    for one in timeline.timelines(case):
        if one.at:
            ranks.append(one.rank)
    return ranks


def _group_name(key: tuple[str, str]) -> str:
    name, description = key
    return text.group(name, description)


def _group_card(key: tuple[str, str], ranks: Ranks) -> Markup:
    """One group: ranks in the same state share a row.

    Those behind come first.
    """
    states = _ranks_by_state(ranks)
    furthest = _furthest_place(ranks)
    # of ranks at one place the fewer come first: they are the odd ones
    ordered = sorted(states.items(), key=lambda item: (item[0].place, len(item[1])))
    rows = [_state_row(state, held, furthest) for state, held in ordered[:STATES]]
    # a column in which nothing is known is left out
    known = []
    for column in zip(*rows, strict=True):
        known.append(any(cell != "–" for cell in column))
    head = list(compress(PROGRESS, known))
    kept = [list(compress(row, known)) for row in rows]
    title = el("h4", code(_group_name(key)), f" {plural(len(ranks), 'rank')}")
    more = left_out(len(ordered) - STATES, "states")
    return el("section", title, fit(table(head, kept)), more, cls="nk-card")


def _ranks_by_state(ranks: Ranks) -> dict[State, list[int]]:
    states: dict[State, list[int]] = {}
    for rank, at in ranks.items():
        state = State(_place_of(at), at.op, at.enqueued, at.started, at.completed)
        states.setdefault(state, []).append(rank)
    return states


def _even_groups(groups: Groups) -> Markup:
    """Groups in which nobody is behind.

    Those of one name, size and place share a row.
    """
    alike: dict[tuple[str, int, int], list[list[int]]] = {}
    for key, ranks in groups:
        place = _furthest_place(ranks)
        shape = (_group_name(key), len(ranks), place)
        alike.setdefault(shape, []).append(sorted(ranks))
    rows = []
    for (name, size, place), held in alike.items():
        which = some(held[0])
        if len(held) > 1:
            which = f"{which} …"
        rows.append((code(name), f"{len(held):,}", f"{size:,}", f"{place:,}", which))
    if not rows:
        return Markup("")
    head = ("Group", "How many", "Ranks in each", "All came to", "Which ranks")
    return el("section", el("h4", "No rank is behind in"), fit(table(head, rows)), cls="nk-card")


def _state_row(state: State, ranks: Sequence[int], furthest: int) -> tuple[object, ...]:
    gap = furthest - state.place
    late = "0"
    if gap:
        late = el("b", f"▲ {gap:,}")
    if len(ranks) > 1:
        count = f"{some(ranks)} ({len(ranks):,})"
    else:
        count = some(ranks)
    numbers = []
    for number in (state.enqueued, state.started, state.completed):
        if number is None:
            numbers.append("–")
        else:
            numbers.append(f"{number:,}")
    return count, late, state.op or "–", *numbers


WHAT = {
    "missing": "some ranks never entered it",
    "op": "another operation",
    "size": "another size",
    "dtype": "another dtype",
    "stuck": "all entered it, none completed it",
}


def _disagreement_card(one: Disagreement, titled: bool = True) -> Markup:
    number = "unknown"
    if one.seq >= 0:
        number = f"{one.seq:,}"
    chips = [
        _chip("collective", number),
        _chip("of", text.group(one.group, one.desc)),
        _chip("what differs", WHAT.get(one.what, one.what)),
    ]
    title = ""
    if titled:
        title = el("h4", one.summary)
    odd, others = _names_of_sides(one)
    sides = [(odd, _ranks_of_side(one.minority)), (others, _ranks_of_side(one.majority))]
    return el(
        "section",
        title,
        el("p", *chips),
        table(("Side", "Ranks"), sides),
        evidence_part(one.evidence),
        cls="nk-card nk-edge-likely",
    )


def _chip(name: str, words: str) -> Markup:
    return el("span", el("b", name), " ", words, cls="nk-chip")


def _names_of_sides(one: Disagreement) -> tuple[str, str]:
    """How the two sides are called.

    A majority is one only where it is larger than the rest.
    """
    if one.what == "missing":
        return "Missing", "Waiting"
    if one.what == "stuck":
        return "Finished it", "Waiting"
    # of equal sides neither is the majority
    if len(one.minority) >= len(one.majority):
        return "One side", "The other side"
    return "The odd ones", "The majority"


def _ranks_of_side(ranks: Sequence[int]) -> str:
    if ranks:
        return f"{some(ranks)} ({plural(len(ranks), 'rank')})"
    return "nobody"


def _clocks_summary(known: Sequence[Clock]) -> str:
    if len(known) < 2:
        return (
            "The clocks cannot be compared: no two hosts tell the time of an event that both took"
            " part in"
        )
    odd = [clock for clock in known if _is_off(clock)]
    if not odd:
        return f"The clocks of {plural(len(known), 'host')} agree within {AGREE} s"
    worst = max(odd, key=lambda clock: abs(clock.offset))
    direction = "behind"
    if worst.offset > 0:
        direction = "ahead"
    named = f"{worst.host} is {abs(worst.offset):.1f} s {direction}"
    rest = f"{len(known) - len(odd):,} others agree within {AGREE} s"
    if len(odd) == 1:
        return f"The clock of {named}; {rest}"
    return f"{len(odd):,} clocks are off, most of all {named}; {rest}"


def _is_off(clock: Clock) -> bool:
    # clocks that differ by less than the uncertainty of their offset may be equal
    return abs(clock.offset) > max(AGREE, clock.spread)


def _clocks_table(known: Sequence[Clock]) -> Markup:
    """The clocks that are off; all of them where they are few."""
    if len(known) < 2:
        return Markup("")
    if len(known) <= STATES:
        shown = known
    else:
        shown = [clock for clock in known if _is_off(clock)]
    ranked = sorted(shown, key=lambda clock: -abs(clock.offset))
    rows = []
    for clock in ranked[:STATES]:
        offset = f"{clock.offset:+.2f} s"
        spread = f"{clock.spread:.2f} s"
        rows.append((clock.host or "–", offset, spread, f"{clock.shared:,}"))
    head = ("Host", "Ahead by", "Spread", "Shared events")
    return join(table(head, rows, "nk-numbers"), left_out(len(shown) - STATES))
