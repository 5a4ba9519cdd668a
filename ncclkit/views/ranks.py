"""Which ranks logged and which stopped.

There is a row for each rank over time, alike ranks together, 1,024 on a page.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from signal import SIGTERM

from ncclkit.analysis.event_search import excerpt
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.timeline import RankTimeline, abnormal, reported_by_others, timelines
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.run_choice import job_runs
from ncclkit.core.text import numbered, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._html import Markup, common, el, fit, join, left_out, location, table
from ncclkit.views._missing import NoData
from ncclkit.views.findings import Headline, culprits, headline_beside, silence_beside

SEPARATE = 24
"""Up to here every rank has a row of its own; beyond, ranks with the same timeline share one."""
MOST = 40
"""Different timelines that are shown."""
COLUMNS = 96
SILENCE = 1.0
"""Seconds that a rank must stop before all others to be called the first that stopped logging."""
WORDS = 160

Own = Mapping[int, Sequence[Event]]
"""rank → what it said itself; only ranks that said something."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of the time axis: seconds since the epoch, or line numbers, to columns."""

    start: float
    end: float
    in_time: bool

    def position(self, event: Event) -> float | None:
        """Where an event stands, None where nothing says so."""
        if self.in_time:
            return event.time
        if event.line > 0:
            return float(event.line)
        return None

    def column(self, place: float) -> int:
        """0 to COLUMNS - 1."""
        # the last event lies on the edge, and an interval of no length is divided by 1
        return min(
            COLUMNS - 1,
            max(0, int(COLUMNS * (place - self.start) / ((self.end - self.start) or 1.0))),
        )

    def after(self, place: float) -> float:
        """The place as the axis counts.

        It is in `unit` since the first word, or a line number.
        """
        if self.in_time:
            return (place - self.start) / self.unit[1]
        return place

    @property
    def unit(self) -> tuple[str, float]:
        """Name and seconds of the axis' unit."""
        span = self.end - self.start
        if span > 7200:
            return "hours", 3600.0
        if span > 240:
            return "minutes", 60.0
        return "seconds", 1.0

    @property
    def axis(self) -> str:
        """The title of the axis."""
        if not self.in_time:
            return "line of each log<br>(the lines carry no times)"
        return (
            f"{self.unit[0]} after {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.start))}"
        )

    def middles(self) -> list[float]:
        """The middle of each column, as the axis counts."""
        step = (self.end - self.start) / COLUMNS
        column_times = []
        for column in range(COLUMNS):
            column_times.append(round(self.after(self.start + (column + 0.5) * step), 3))
        return column_times


@shows_runs(job_runs)
def ranks_view(case: Case) -> View:
    """A row per rank from its first line to its last, over time.

    It is over line numbers where lines have no time.
    """
    scope = last_run_of(case)
    known = timelines(scope)
    own = _lines_by_rank(scope.events)
    if not own:
        why = "No event names a rank"
        return NoData("which ranks logged", "no event names a rank", why)
    scale = _scale(own)
    groups = _groups(known, own, scale)
    if len(known) > SEPARATE:
        drawn = groups[:MOST]
    else:
        drawn = [[timeline] for timeline in known]
    drawn_rows = [row for group in drawn if (row := _timeline_row(group, own, scale)) is not None]
    figure = None
    if drawn_rows:
        figure = _draw.log_timeline(drawn_rows, scale.middles(), scale.axis)
    paths = set()
    for said in own.values():
        for event in said:
            paths.add(event.path)
    base = common(paths)
    rows = []
    for group in groups[:MOST]:
        rows.append(
            (
                _label(group),
                _last(group, own, scale),
                group[0].end or "–",
                _words(group[0], own, base),
            )
        )
    head = ("Rank", "Last log line", "How it ended", "First abnormal line, or the last one")
    left = sum(len(group) for group in groups[MOST:])
    more = left_out(left, "ranks, whose timelines are less rare")
    headline = _headline_beside_verdict(known, own, scale, case)
    return Drawn(
        headline,
        figure,
        join(fit(table(head, rows, "nk-ranks")), more, _undrawn(known, own, scale)),
    )


def _undrawn(known: Sequence[RankTimeline], own: Own, scale: Scale) -> Markup:
    """A note on ranks whose abnormal lines carry no time.

    They have no mark in a chart over time.
    """
    wrong = {}
    for timeline in known:
        wrong[timeline.rank] = [e for e in own.get(timeline.rank, ()) if abnormal(e)]
    ranks = []
    for rank, lines in wrong.items():
        if lines and all(scale.position(line) is None for line in lines):
            ranks.append(rank)
    if not ranks:
        return Markup("")
    return el(
        "p",
        f"What {numbered('rank', ranks)} logged abnormal carries no time, so no mark shows it.",
        cls="nk-dim",
    )


def _lines_by_rank(events: Iterable[Event]) -> dict[int, list[Event]]:
    said: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if (
            event.rank is not None
            and event.rank >= 0
            and not reported_by_others(event)
            and not _is_dump_reply(event)
        ):
            said[event.rank].append(event)
    return said


def _is_dump_reply(event: Event) -> bool:
    """Whether a rank was asked to dump.

    Its watchdog's thread answers even where the rank itself is stuck.
    """
    return (
        event.kind == "c10d.recorder" or event.kind == "c10d.status" and "dump signal" in event.text
    )


def _has_time(said: Iterable[Event]) -> bool:
    return any(event.time is not None for event in said)


def _scale(own: Own) -> Scale:
    """The scale in time, when every rank that spoke has a time.

    Else lines stand in the order of their files.
    """
    # lines without times of one rank would have no place on an axis of time
    in_time = all(map(_has_time, own.values()))
    known = Scale(0.0, 1.0, in_time)
    places = []
    for said in own.values():
        for event in said:
            place = known.position(event)
            if place is not None:
                places.append(place)
    return Scale(min(places, default=0.0), max(places, default=1.0), in_time)


def _groups(known: Sequence[RankTimeline], own: Own, scale: Scale) -> list[list[RankTimeline]]:
    """Timelines that are alike.

    The rarest come first, as the odd one out is what one looks for, then who stopped first.
    """
    alike: dict[tuple[str, str, bool], list[RankTimeline]] = {}
    for timeline in known:
        wrong = ""
        if timeline.abnormal:
            wrong = timeline.abnormal.kind
        # numbers differ from rank to rank, and say nothing of how one ended
        ended = re.sub(r"\d+", "#", timeline.end)
        kind = (wrong, ended, timeline.rank in own)
        alike.setdefault(kind, []).append(timeline)
    return sorted(alike.values(), key=lambda group: (len(group), _ends(group, own, scale)[:1]))


def _label(group: Sequence[RankTimeline]) -> str:
    ranks = [timeline.rank for timeline in group]
    if len(ranks) == 1:
        return str(ranks[0])
    return f"{plural(len(ranks), 'rank')}: {some(ranks)}"


def _timeline_row(
    group: Sequence[RankTimeline], own: Own, scale: Scale
) -> _draw.TimelineRow | None:
    """One row; a group shows what any of its ranks did.

    It is None where nothing has a place.
    """
    said: dict[int, int] = {}
    for timeline in group:
        for event in own.get(timeline.rank, ()):
            place = scale.position(event)
            if place is not None:
                column = scale.column(place)
                # a column shows the gravest of its lines
                said[column] = max(said.get(column, 0), 2 if abnormal(event) else 1)
    if not said:
        return None
    if len(group) == 1:
        name = f"rank {group[0].rank}"
    else:
        name = plural(len(group), "rank")
    return _draw.TimelineRow(name, said, (min(said), max(said)))


def _ends(group: Sequence[RankTimeline], own: Own, scale: Scale) -> list[float]:
    """The last place of each rank of a group that has one."""
    places = (
        [p for event in own.get(timeline.rank, ()) if (p := scale.position(event)) is not None]
        for timeline in group
    )
    latest = []
    for held in places:
        if held:
            latest.append(max(held))
    return sorted(latest)


def _last(group: Sequence[RankTimeline], own: Own, scale: Scale) -> str:
    ends = _ends(group, own, scale)
    if not ends:
        if group[0].rank not in own:
            return "logged nothing"
        return "nothing says when"
    if not scale.in_time:
        if ends[0] == ends[-1]:
            return f"line {ends[0]:,.0f}"
        return f"lines {ends[0]:,.0f}–{ends[-1]:,.0f}"
    first, last = (time.strftime("%H:%M:%S", time.localtime(end)) for end in (ends[0], ends[-1]))
    if first == last:
        return first
    return f"{first}–{last}"


def _words(timeline: RankTimeline, own: Own, base: str) -> Markup:
    """The first abnormal line, else the last one, raw."""
    event = timeline.abnormal or next(iter(own.get(timeline.rank, ())[::-1]), None)
    if event is None:
        return el("span", "no line of this rank", cls="nk-dim")
    said = excerpt(event)
    if len(said) <= WORDS:
        raw = said
    else:
        raw = f"{said[:WORDS]} …"
    return join(
        el("b", event.kind),
        " ",
        location(event.path, event.line, base),
        el("div", raw, cls="nk-raw"),
    )


def _headline_beside_verdict(
    known: Sequence[RankTimeline], own: Own, scale: Scale, case: Case
) -> str:
    """The headline, in words that blame no other rank than the verdict."""
    logged = [timeline for timeline in known if timeline.rank in own]
    if len(logged) == len(known) and scale.in_time:
        stopped, gap = _stopped(logged, own, scale)
        if stopped:
            others = [timeline.rank for timeline in logged if timeline.rank not in stopped]
            said = silence_beside(case.findings, stopped, others, gap)
            return f"{said}; {_troubled(logged)}"
    pointed = _headline(known, own, scale, last_run_of(case))
    return headline_beside(culprits(case.findings), *pointed)


def _headline(known: Sequence[RankTimeline], own: Own, scale: Scale, case: Case) -> Headline:
    """Which ranks logged nothing, or nothing abnormal, where none stopped first.

    It is one sentence, and the ranks that it points at.
    """
    logged = [timeline for timeline in known if timeline.rank in own]
    if len(logged) < len(known):
        return _absent(known, own, case)
    calm = []
    for timeline in logged:
        if timeline.abnormal is None:
            calm.append(timeline.rank)
    # where more than half are calm it is the others that are odd
    if calm and len(calm) * 2 <= len(logged):
        left = len(logged) - len(calm)
        others = "the other one does"
        if left > 1:
            others = f"the {left:,} others do"
        return (
            (
                f"{numbered('Rank', calm)} report{'s' if len(calm) == 1 else ''} nothing abnormal"
                f" while {others}"
            ),
            calm,
        )
    together = ""
    if scale.in_time and len(logged) > 1:
        together = ", none stopped clearly before the others"
    return f"{plural(len(logged), 'rank')} logged{together}; {_troubled(logged)}", ()


def _absent(known: Sequence[RankTimeline], own: Own, case: Case) -> Headline:
    """Ranks that logged nothing.

    Those whose logs were not given are not said to be at fault.
    """
    given: set[int] = set()
    for row in case.inputs:
        given.update(row.get("ranks") or ())
    missing = []
    for timeline in known:
        if timeline.rank not in own:
            missing.append(timeline.rank)
    logging = plural(len(own), "rank")
    # given, and empty: that rank was started and said nothing
    empty = [rank for rank in missing if rank in given]
    if empty:
        return f"{numbered('Rank', empty)} logged nothing; {logging} did", empty
    # of few logs that were given nobody can say that the others are at fault
    if len(missing) < len(own):
        return f"No line of {numbered('rank', missing)} was given; {logging} logged", missing
    if len(own) == 1:
        logs = f"rank {min(own)}'s log was"
    else:
        logs = f"the logs of {numbered('rank', sorted(own))} were"
    return f"Only {logs} given, of {plural(len(known), 'rank')}", sorted(own)


def _stopped(logged: Sequence[RankTimeline], own: Own, scale: Scale) -> tuple[list[int], float]:
    """Ranks whose last line lies clearly before that of any other.

    It is the widest gap, and comes with its seconds.  They are a few ranks, else most of them:
    several late ranks can keep one waiting.
    """
    ends = []
    for timeline in logged:
        known = _ends([timeline], own, scale)
        if known:
            ends.append((known[-1], timeline.rank))
    ends.sort()
    gaps = []
    for count, ((end, _), (next_end, _)) in enumerate(pairwise(ends), 1):
        gaps.append((next_end - end, count))
    # a twentieth of the whole, as over hours a second says nothing
    clear = max(SILENCE, 0.05 * (scale.end - scale.start))
    # a few that stopped before most accuse; most that stopped before a few may be waiting for them
    for most in (len(ends) // 2, len(ends)):
        allowed = [row for row in gaps if row[1] <= most]
        gap, count = max(allowed, default=(0.0, 0))
        if gap > clear:
            return [rank for _, rank in ends[:count]], gap
    return [], 0.0


def _troubled(logged: Sequence[RankTimeline]) -> str:
    wrong = sum(timeline.abnormal is not None for timeline in logged)
    if wrong:
        return f"{plural(wrong, 'rank')} logged something abnormal"
    died = []
    for timeline in logged:
        if any(_died(event) for event in timeline.at):
            died.append(timeline.rank)
    if died:
        return f"{numbered('rank', died)} ended badly without a line that says why"
    return "nothing abnormal was logged"


def _died(event: Event) -> bool:
    # torchrun ends the other ranks by SIGTERM once one has failed
    return event.kind == "elastic.exit" and event.data.exitcode not in (0, None, -SIGTERM)
