"""Where the time of a training step goes, and who waits for whom.

It is told for each rank, with what holds the step back most.  Ranks are compared collective by
collective: it ends on all of them at once, so who comes to it last lets all others wait.  What a
rank waits is not communication: it is put down to what the late rank does meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from statistics import fmean, median

from msgspec import structs

from ncclkit.analysis.picks import failed
from ncclkit.analysis.step_lines import (
    ADVICE as LINE_ADVICE,
)
from ncclkit.analysis.step_lines import (
    WORDS,
    Site,
    Work,
    excess_sites,
    shown_line,
    work_of_part,
)
from ncclkit.core.case import Case
from ncclkit.core.kinds import StepRank, StepSetting
from ncclkit.core.model import Event, NcclkitError, fields_of
from ncclkit.core.text import format_bytes, format_time, numbered, percent, plural
from ncclkit.core.tuning import Comparison

PARTS = (
    *("computation", "data", "communication", "waiting"),
    *("checkpoint", "evaluation", "script"),
)
NAMES = {
    "computation": "computation",
    "data": "waiting for data",
    "communication": "exposed communication",
    "waiting": "waiting for other ranks",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "script": "other code of the script",
}
"""Part of a step → its name in pictures and tables."""
LEAST = 0.05
"""Share of a step from which on a part is worth a sentence."""
LATE = 0.6
"""Share of the collectives that one rank comes to last, from which on it is called late."""
MANY_CALLS = 16
"""Collectives in each step from which on their number is what costs.

A script calls them; the ranks then come to each at slightly different times.
"""
EXPLAINED = 0.5
"""Share of extra time or of a wait from which on both are one.

Extra is what one rank spends more, the wait that of others.
"""
BY_QUEUE, LATE_BY_QUEUE = 0.5, 0.75
"""Shares of a wait from which on it is put down to the queue.

The first is the share that ranks spend in the queue for a CPU, from which on a wait is the host's;
the second is that of the wait for one rank.
"""
SHARDING = frozenset({"_allgather_base", "_reduce_scatter_base"})
"""Collectives that FSDP calls in the forward and the backward pass."""
SMALL_BUCKET, DEFAULT_CAP = 1 << 20, 25 << 20
"""Bytes of a bucket that are mostly overhead, and DDP's own limit of one."""
CAUSES: Mapping[str, tuple[str, ...]] = {
    "data": ("disk_or_io", "cpu_contention"),
    "communication": ("slow_transport", "cpu_contention"),
    "waiting": ("slow_rank", "cpu_contention", "gpu_clock_limit"),
    "checkpoint": ("disk_or_io",),
}
"""Part → causes of the catalogue that may lie behind it."""
OF_GPUS = frozenset({"slow_transport", "gpu_clock_limit"})
ADVICE: Mapping[str, str] = {
    "data": "Read with more workers, or prepare the data before training.",
    "communication": (
        "Send fewer, larger messages that overlap with the backward pass, or step less often."
    ),
    "waiting": (
        "Give the ranks equal work, such as batches of equal length in tokens; then look at the"
        " hosts."
    ),
    "checkpoint": "Save less often, or with torch.distributed.checkpoint.async_save.",
    "evaluation": "Evaluate less often, on fewer batches, or in a job of its own.",
}
"""Part → what to do about it, where no setting helps and the line does not say more."""
LATE_ADVICE: Mapping[str, str] = {
    "computation": (
        "Give all ranks batches of equal size and length; where they have them, look at the clocks"
        " and neighbours of its host."
    ),
    "data": "Look at the disk and the workers of its host.",
    "checkpoint": "Let each rank save its shard, or save asynchronously.",
    "evaluation": "Let all ranks evaluate a share each.",
    "script": "Let it work on in a thread, or all ranks do a share each.",
}
"""What the rank that comes last spends more on → what to do about it."""
SMALL_CALLS_ADVICE = (
    "Put the values into one tensor and reduce it once, every tenth step or once an epoch."
)
SHARDING_ADVICE = "Shard in larger units: fewer calls of fully_shard, or larger wrapped modules."


@dataclass(frozen=True, slots=True)
class RankSteps:
    """One rank: mean seconds of its steps, and of each part."""

    rank: int
    host: str
    seconds: float
    parts: Mapping[str, float]
    late: float = 0.0
    """Share of the collectives to which it comes last, clearly after the others."""


@dataclass(frozen=True, slots=True)
class Brake:
    """One thing that holds a step back, and what may be changed about it."""

    part: str
    seconds: float
    """Of a step, on the rank where it takes longest."""
    share: float
    summary: str
    advice: str = ""
    settings: tuple[str, ...] = ()
    """What `ncclkit step --try` compares."""
    causes: tuple[str, ...] = ()
    """Causes of the catalogue that may lie behind it."""
    lines: tuple[str, ...] = ()
    """Of the script: the one that takes most of it, and the one of the training loop."""
    kind: str = ""
    """What the line does: a key of `step_lines.WORDS`; empty where the part says it."""

    def __str__(self) -> str:
        return self.summary


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time goes."""

    ranks: tuple[RankSteps, ...]
    brakes: tuple[Brake, ...]
    """The worst first."""
    steps: int
    backend: str
    gpus: bool
    cost: float | None = None
    """Share of a step that measuring took, on the rank where it took most; None of traces."""
    problems: tuple[str, ...] = field(default=())
    queue: str = ""
    """A sentence on what the ranks wait for CPUs that others use; empty where it is little."""

    @property
    def seconds(self) -> float:
        """Seconds of a step on the slowest rank."""
        return max(one.seconds for one in self.ranks)

    @property
    def late(self) -> tuple[RankSteps, str] | None:
        """The rank that the others wait for, and its part; else None.

        They wait `LEAST` of a step or more; the part is what it spends more on.
        """
        waited = max(one.parts["waiting"] for one in self.ranks)
        late = next((one for one in self.ranks if one.late >= LATE), None)
        if late and waited >= LEAST * self.seconds:
            return late, _excess(self.ranks)
        return None

    def brake(self, part: str) -> Brake | None:
        """What holds a step back in this part.

        It is None where it is not worth a sentence.
        """
        return next((one for one in self.brakes if one.part == part), None)

    @property
    def summary(self) -> str:
        """What holds a step back most, in one sentence."""
        if self.brakes:
            return self.brakes[0].summary
        share = fmean(one.parts["computation"] / (one.seconds or 1.0) for one in self.ranks)
        step = _time(self.seconds)
        if self.queue:
            return (
                f"Nothing in the script stands out: computation takes {percent(min(share, 1.0))}"
                f" of a step of {step}. {self.queue}"
            )
        return (
            f"Computation takes {percent(min(share, 1.0))} of a step of {step}; nothing else takes"
            f" {percent(LEAST)}."
        )

    def text(self) -> str:
        """The summary, each rank in a row, every brake, and what may be tried."""
        lines = [self.summary, ""]
        for one in self.ranks:
            lines.append(f"rank {one.rank}: {_time(one.seconds)} a step = {_parts(one)}")
        if len(self.brakes) > 1:
            lines.append("")
            for place, brake in enumerate(self.brakes, 1):
                lines += [f"{place}. {brake}", f"   {brake.advice}"]
        elif self.brakes:
            lines.append(self.brakes[0].advice)
        brake_settings: list[str] = []
        for brake in self.brakes:
            brake_settings.extend(brake.settings)
        settings = [*dict.fromkeys(brake_settings)]
        causes: list[str] = []
        if self.brakes:
            causes = [*dict.fromkeys(self.brakes[0].causes)]
        lines += (
            [f"Compare: ncclkit step --try {' --try '.join(settings)} -- …"] if settings else []
        )
        lines += [f"May lie behind it: {', '.join(causes)} (ncclkit causes ID)."] if causes else []
        if self.cost is None:
            cost = ""
        else:
            cost = f" Measuring took {percent(self.cost, 1)} of a step."
        lines += [
            f"{plural(self.steps, 'step')} measured on {plural(len(self.ranks), 'rank')}.{cost}",
            *([self.queue] if self.queue and self.brakes else []),
            *self.problems,
        ]
        return "\n".join(lines)


def step_times(events: Iterable[Event]) -> StepTimes:
    """What `step.rank` events of all ranks say together.

    Raises NcclkitError where there are none.
    """
    by_rank: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event.kind == "step.rank" and event.rank is not None and event.data.steps:
            by_rank[event.rank][event.data.source] = event
    if not by_rank:
        raise NcclkitError(
            "No step was measured; the script must call an optimizer's step() some ten times."
        )
    rows = [_of_both(**by_rank[rank]) for rank in sorted(by_rank)]
    waits, last = _waits(rows)
    ranks = tuple(_rank(event, waits[event.rank or 0], last) for event in rows)
    first = rows[0].data
    costs = []
    for event, one in zip(rows, ranks, strict=True):
        if event.data.cost:
            costs.append(event.data.cost / one.seconds)
    told: list[str] = []
    for event in rows:
        told += map(str, event.data.problems)
    problems = tuple(dict.fromkeys(told))
    brakes, queue = _brakes(ranks, rows)
    return StepTimes(
        ranks,
        brakes,
        max(len(event.data.steps) for event in rows),
        str(first.backend),
        bool(first.gpus),
        max(costs, default=None),
        problems,
        queue,
    )


def _of_both(hook: Event[StepRank] | None = None, trace: Event[StepRank] | None = None) -> Event:
    """One event of a rank, by hook and trace.

    Of GPUs a trace has the times, as only it sees them; the hook has what the script did.  A GPU
    also idles while Python launches its kernels: where a data loader shows when the script does
    something else, only that counts as the script's.
    """
    if hook is None or trace is None or not trace.data.gpus:
        chosen = hook or trace
        assert chosen is not None
        return chosen
    saved, between = (
        fmean(row["parts"][part] for row in hook.data.steps) for part in ("checkpoint", "script")
    )
    evaluated = fmean(row["parts"].get("evaluation", 0.0) for row in hook.data.steps)
    # looks that tell what a line calls see all that the script does
    seen = bool(hook.data.loaders) or any(len(site) > 5 for site in hook.data.sites)

    def merged(parts: Mapping[str, float]) -> dict[str, float]:
        if seen:
            script = min(parts["script"], between)
        else:
            script = parts["script"]
        launching = max(0.0, parts["script"] - script - saved - evaluated)
        more = {
            "checkpoint": saved,
            "evaluation": evaluated,
            "script": script,
            "computation": parts["computation"] + launching,
        }
        return {**parts, **more}

    steps = [row | {"parts": merged(row["parts"])} for row in trace.data.steps]
    return replace(hook, data=structs.replace(hook.data, gpus=True, steps=steps))


def _waits(rows: Sequence[Event[StepRank]]) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Rank → seconds that it waits in each step, and share of last places.

    The share is that of all collectives to which it comes last.  Only steps in which all ranks make
    as many collectives are compared.
    """
    waits: dict[int, list[float]] = {event.rank or 0: [] for event in rows}
    counts: dict[int, int] = defaultdict(int)
    ranks = [event.rank or 0 for event in rows]
    shift = _offsets(rows)
    steps = list(zip(*(event.data.steps for event in rows), strict=False))
    if len(rows) < 2:
        return waits, dict.fromkeys(waits, 0.0)
    for step in steps:
        spent = _spent_waiting(ranks, step, shift)
        for rank, one in spent.items():
            waits[rank].append(one)
        # who waits least is who the others wait for
        usual = median([row["seconds"] for row in step])
        if max(spent.values()) - min(spent.values()) > LEAST * usual:
            counts[min(spent, key=lambda rank: spent[rank])] += 1
    return waits, {rank: counts[rank] / max(1, len(steps)) for rank in waits}


def _spent_waiting(
    ranks: Sequence[int], step: Sequence[Mapping[str, Any]], shift: Mapping[int, float]
) -> dict[int, float]:
    """Rank → seconds that it waits in the collectives of one step of all ranks."""
    spent = dict.fromkeys(ranks, 0.0)
    calls_of_ranks = [row["points"] for row in step]
    if len(set(map(len, calls_of_ranks))) != 1:
        return spent  # which of its calls is which of another rank's is not known
    for points in zip(*calls_of_ranks, strict=True):
        begun = [point[0] - shift[rank] for rank, point in zip(ranks, points, strict=True)]
        # a collective ends on all ranks at once, so whoever comes last lets the others wait
        last = max(begun)
        for rank, since, point in zip(ranks, begun, points, strict=True):
            # no longer than its own call took, as clocks are aligned by a median only
            spent[rank] += min(last - since, point[2])
    return spent


def _offsets(rows: Sequence[Event[StepRank]]) -> dict[int, float]:
    """Rank → seconds that its clock is ahead of the first rank's.

    It is known as a collective ends on all at once.
    """
    first = rows[0]
    found = {}
    for event in rows:
        pairs = zip(first.data.steps, event.data.steps, strict=False)
        ends = []
        for one, other in pairs:
            for a, b in zip(one["points"], other["points"], strict=False):
                ends.append(b[1] - a[1])
        # ranks of one host share a clock
        if ends and event.host != first.host:
            found[event.rank or 0] = median(ends)
        else:
            found[event.rank or 0] = 0.0
    return found


def _rank(event: Event[StepRank], waits: Sequence[float], last: Mapping[int, float]) -> RankSteps:
    steps = event.data.steps
    parts = {}
    for part in PARTS:
        if part != "waiting":
            parts[part] = fmean(row["parts"].get(part, 0.0) for row in steps)
    # what a rank waits in a collective was measured as communication
    waiting = min(fmean(waits) if waits else 0.0, parts["communication"])
    parts |= {"waiting": waiting, "communication": parts["communication"] - waiting}
    rank = event.rank or 0
    return RankSteps(
        rank,
        event.host,
        sum(parts.values()),
        {part: parts[part] for part in PARTS},
        last.get(rank, 0.0),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What may be a brake, before it is weighed."""

    part: str
    seconds: float
    words: str
    settings: tuple[str, ...] = ()
    work: Work | None = None
    advice: str = ""


def _brakes(
    ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]
) -> tuple[tuple[Brake, ...], str]:
    """What takes at least `LEAST` of a step besides computation, the longest first.

    It tells also what the ranks wait for a CPU, where that is why they wait for each other.
    """
    whole = fmean(sum(one.parts.values()) for one in ranks) or 1.0
    calls = _Calls.of(ranks, rows)
    found = [_data(ranks, rows), *_exposed_communication(ranks, rows, calls)]
    found += [_checkpoint(ranks, rows), _evaluation(ranks, rows), *_script(ranks, rows)]
    relevant = [one for one in found if one.seconds >= LEAST * whole]
    named = {one.part for one in relevant}
    waiting = _waiting(ranks, rows)
    queue = ""
    # the others wait for what is named already
    apart = _awaited_part(ranks) not in named and not calls.folded
    if apart and waiting.seconds >= LEAST * whole:
        queued = _queue(ranks, rows)
        enough = BY_QUEUE
        if waiting.advice:
            # a rank that works longer is in the queue longer, too
            enough = LATE_BY_QUEUE
        if queued >= enough * waiting.seconds:
            queue = (
                f"The ranks wait up to {_time(queued)} of a step of {_time(whole)} for a CPU that"
                " others use, and so for each other; measure again on a quiet host."
            )
        else:
            relevant.append(waiting)
    relevant.sort(key=lambda one: -one.seconds)
    return tuple(_brake_of(one, whole, bool(rows[0].data.gpus)) for one in relevant), queue


def _brake_of(found: _Found, whole: float, gpus: bool) -> Brake:
    share = found.seconds / whole
    at = found.work.at if found.work else ""
    words = f"{found.words}{at}"
    summary = f"{words}: {_time(found.seconds)} of a step of {_time(whole)} ({percent(share)})."
    causes = []
    for one in CAUSES.get(found.part, ()):
        if gpus or one not in OF_GPUS:
            causes.append(one)
    advice = found.advice or ADVICE[found.part]
    lines: tuple[str, ...] = ()
    kind = ""
    if found.work:
        lines = found.work.lines
        kind = found.work.kind
        advice = f"{shown_line(lines[-1])}: {advice[:1].lower()}{advice[1:]}"
    return Brake(
        found.part,
        found.seconds,
        share,
        summary,
        advice.rstrip(".") + ".",
        found.settings,
        tuple(causes),
        lines,
        kind if found.part == "script" else "",
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    """The small collectives that a script calls by itself in a step."""

    seconds: float
    count: float
    size: float
    """Bytes of one."""
    folded: bool
    """Whether they are so many that waiting for each other belongs to them."""

    @classmethod
    def of(cls, ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> _Calls:
        """The small calls of these ranks, or nothing where collectives are large.

        Those of sharded models are large.
        """
        steps = []
        for event in rows:
            steps.extend(event.data.steps)
        count = fmean(row.get("calls", 0) for row in steps)
        size = median(row["bytes"] for row in steps) / max(1.0, count)
        if size >= SMALL_BUCKET:
            return cls(0.0, 0.0, size, False)
        seconds = fmean(row["own"] for row in steps)
        late = any(one.late >= LATE for one in ranks) and bool(_excess(ranks))
        folded = count >= MANY_CALLS and not late
        if not folded:
            # what the ranks wait for each other in them stands by itself
            waited = fmean(one.parts["waiting"] for one in ranks)
            sent = fmean(one.parts["communication"] for one in ranks)
            seconds *= sent / (sent + waited) if sent + waited else 0.0
        return cls(seconds, count, size, folded)


def _sites_of(event: Event, part: str) -> list[Site]:
    return [Site.of(row) for row in event.data.sites if row[0] == part]


def _longest_work(event: Event, part: str) -> Work | None:
    """The line that takes most of a part on one rank."""
    works = work_of_part(_sites_of(event, part), bool(event.data.gpus))
    return works[0] if works else None


def _row_of_rank(rows: Sequence[Event[StepRank]], rank: RankSteps) -> Event[StepRank]:
    return next(event for event in rows if (event.rank or 0) == rank.rank)


def _alone(ranks: Sequence[RankSteps], part: str) -> tuple[RankSteps, bool]:
    """The rank that spends most on a part, and whether the others wait for it meanwhile."""
    worst = max(ranks, key=lambda one: one.parts[part])
    others = [one for one in ranks if one is not worst]
    if not others:
        return worst, False
    usual = max(one.parts[part] for one in others)
    waited = min(one.parts["waiting"] for one in others)
    more = worst.parts[part] - usual
    return worst, worst.parts[part] > 2 * usual and waited >= EXPLAINED * more


def _awaited_part(ranks: Sequence[RankSteps]) -> str:
    """The part on which the awaited rank spends most beyond the waiting one.

    The awaited one waits least, the waiting one most.  It is empty where that explains less than
    half of the wait.
    """
    quick = max(ranks, key=lambda one: one.parts["waiting"])
    slow = min(ranks, key=lambda one: one.parts["waiting"])
    part = max(LATE_ADVICE, key=lambda part: slow.parts[part] - quick.parts[part])
    more = slow.parts[part] - quick.parts[part]
    return part if more >= EXPLAINED * quick.parts["waiting"] else ""


def _data(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> _Found:
    worst, alone = _alone(ranks, "data")
    who = "The ranks wait"
    for_whom = ""
    if alone:
        who = f"Rank {worst.rank} waits"
        for_whom = ", and the others for it"
    loaders = []
    for event in rows:
        for loader in event.data.loaders:
            loaders.append(loader[0])
    workers = max(loaders, default=None)
    if workers is None:
        having = ""
    elif workers:
        having = f" ({plural(workers, 'worker')})"
    else:
        having = " (no workers)"
    words = f"{who} for the data loader{having}{for_whom}"
    more: tuple[str, ...] = ()
    if workers:
        more = (f"workers={max(2, 2 * workers)}", "prefetch=4")
    elif workers is not None:
        more = ("workers=2",)
    work = _longest_work(_row_of_rank(rows, worst), "data")
    return _Found("data", worst.parts["data"], words, more, work)


def _exposed_communication(
    ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]], calls: _Calls
) -> list[_Found]:
    """The small collectives that the script calls, and all other communication.

    Only exposed communication counts.
    """
    sent = fmean(one.parts["communication"] for one in ranks)
    found = []
    if calls.seconds:
        found.append(_small_calls(rows, calls))
    # the calls may hold waiting, too, which is no part of what was sent
    found.append(_other_communication(max(0.0, sent - calls.seconds), rows))
    return found


def _small_calls(rows: Sequence[Event[StepRank]], calls: _Calls) -> _Found:
    sites = [site for site in rows[0].data.sites if site[0] == "collective"]
    seconds: dict[str, float] = defaultdict(float)
    for site in sites:
        # a call and the wait for it stand in the same line
        seconds[str(site[1])] += site[2]
    words = "Small collectives are not hidden"
    if not seconds:
        return _Found("communication", calls.seconds, words)
    line = max(seconds, key=lambda line: seconds[line])
    # of calls that are seen only by their waits it is not known who makes them
    advice = SMALL_CALLS_ADVICE if any(site[3] for site in sites) else ""
    if SHARDING.intersection(site[4] for site in sites):
        words = "Small collectives of a sharded model are not hidden"
        advice = SHARDING_ADVICE
    counted = [site for site in sites if site[3] and site[1] == line]
    if counted:
        top = max(counted, key=lambda site: site[3])
        words += f", {top[3]:.3g} × {top[4]} of about {format_bytes(calls.size)} a step"
    work = Work(calls.seconds, "", (line,), "")
    return _Found("communication", calls.seconds, words, (), work, advice)


def _other_communication(seconds: float, rows: Sequence[Event[StepRank]]) -> _Found:
    """All that is not the script's small calls; of gradients where their buckets are too small."""
    sizes = rows[0].data.buckets
    # one more, as DDP's first bucket is small
    enough = -(-sum(sizes) // DEFAULT_CAP) + 1
    if len(sizes) > 2 * enough and median(sizes) < SMALL_BUCKET:
        words = (
            f"Gradients travel in {len(sizes)} buckets of about {format_bytes(median(sizes))},"
            f" where {enough} would do"
        )
        return _Found("communication", seconds, words, ("bucket_cap_mb=25",))
    more = ("bucket_cap_mb=50", "gradient_as_bucket_view=1") if sizes else ()
    return _Found("communication", seconds, "Communication is not hidden behind computation", more)


def _checkpoint(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> _Found:
    of_all = "Saving checkpoints stops training"
    return _pause_in_training(ranks, rows, "checkpoint", of_all, "saves checkpoints")


def _evaluation(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> _Found:
    of_all = "Evaluation within the training loop takes time"
    return _pause_in_training(ranks, rows, "evaluation", of_all, "evaluates")


def _pause_in_training(
    ranks: Sequence[RankSteps],
    rows: Sequence[Event[StepRank]],
    part: str,
    of_all: str,
    of_one: str,
) -> _Found:
    """What stops training now and then.

    It stops all ranks, or one for which the others wait.
    """
    worst, alone = _alone(ranks, part)
    words = of_all
    if alone:
        words = f"Rank {worst.rank} {of_one}, and the others wait for it"
    work = _longest_work(_row_of_rank(rows, worst), part)
    return _Found(part, worst.parts[part], f"{words}, on average", (), work)


def _script(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> list[_Found]:
    """Each line of the training loop that does something else than compute."""
    worst, alone = _alone(ranks, "script")
    event = _row_of_rank(rows, worst)
    works = work_of_part(_sites_of(event, "script"), bool(event.data.gpus))
    seconds = worst.parts["script"]
    known = sum(work.seconds for work in works)
    if known <= LEAST * seconds:
        # of short steps no look may have met a line
        words = "Code of the script between the steps takes time"
        return [_Found("script", seconds, words, advice=LINE_ADVICE["python"])]
    found = []
    for work in works:
        words = WORDS[work.kind]
        if alone:
            words += f" on rank {worst.rank}, and the others wait for it"
        # what no look could put down to a line is shared by all
        spent = work.seconds / known * seconds
        found.append(_Found("script", spent, words, (), work, LINE_ADVICE[work.kind]))
    return found


def _waiting(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> _Found:
    seconds = max(one.parts["waiting"] for one in ranks)
    late = next((one for one in ranks if one.late >= LATE), None)
    if late is None:
        words = "The ranks come to collectives at different times, now this one last and now that"
        return _Found("waiting", seconds, words)
    excess = _excess(ranks)
    others = [one.rank for one in ranks if one.late < LATE]
    verb = "waits" if len(others) == 1 else "wait"
    words = f"{numbered('rank', others).capitalize()} {verb} for rank {late.rank}"
    if not excess:
        return _Found("waiting", seconds, words)
    words += f", which spends more on {NAMES[excess]}"
    mine = _row_of_rank(rows, late)
    rest = [_sites_of(event, excess) for event in rows if event is not mine]
    works = work_of_part(excess_sites(_sites_of(mine, excess), rest), bool(mine.data.gpus))
    work = works[0] if works else None
    return _Found("waiting", seconds, words, (), work, LATE_ADVICE[excess])


def _queue(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> float:
    """Seconds of a step in which ranks queue and let others wait.

    They queue for a CPU.  Of a rank that comes last only those beyond the others' count.
    """
    queued = {}
    for event in rows:
        queued[event.rank or 0] = fmean(row.get("queued", 0.0) for row in event.data.steps)
    late = next((one for one in ranks if one.late >= LATE), None)
    if late is None:
        return max(queued.values())
    others = [seconds for rank, seconds in queued.items() if rank != late.rank]
    return queued[late.rank] - fmean(others)


def _excess(ranks: Sequence[RankSteps]) -> str:
    """The part in which a late rank spends most beyond what the others do.

    It is empty where no rank is late, or where what it spends more explains less than a third of
    the wait.
    """
    late = next((one for one in ranks if one.late >= LATE), None)
    others = [one for one in ranks if one is not late]
    if late is None or not others:
        return ""
    more = {}
    for part in LATE_ADVICE:
        more[part] = late.parts[part] - fmean(one.parts[part] for one in others)
    most = max(more, key=lambda part: more[part])
    waited = max(one.parts["waiting"] for one in others)
    return most if more[most] >= waited / 3 else ""


def _parts(one: RankSteps) -> str:
    lines = []
    for part, seconds in one.parts.items():
        # less would read as 0.0 ms
        if seconds >= 5e-5:
            lines.append(f"{NAMES[part]} {_time(seconds)}")
    return ", ".join(lines)


def _time(seconds: float) -> str:
    return format_time(1e6 * seconds)


@dataclass(frozen=True, slots=True)
class SettingEffect:
    """A setting of a script against what it has.

    It holds seconds of a batch, and the gain with its interval.
    """

    setting: str
    default: float
    changed: float
    gain: float
    """Share of the time that the setting saves; negative where it takes longer."""
    interval: tuple[float, float]
    better: bool
    worse: bool

    @classmethod
    def of(cls, one: Comparison) -> SettingEffect:
        """What a paired comparison shows."""
        usual = median(one.default_us) / 1e6
        changed = median(one.with_us) / 1e6
        return cls(str(one.setting), usual, changed, one.gain, one.interval, one.better, one.worse)

    def __str__(self) -> str:
        low, high = self.interval
        span = f"{percent(self.gain, 1)} ({percent(low, 1)} to {percent(high, 1)})"
        if self.better:
            said = "shortens a step"
        elif self.worse:
            said = "lengthens a step"
        else:
            said = "cannot be told from chance"
        return (
            f"{self.setting} {said}: gain {span}, {_time(self.default)} → {_time(self.changed)} a"
            " batch."
        )


def last_steps(case: Case) -> tuple[StepTimes | None, tuple[SettingEffect, ...]]:
    """What the last run of a script in this case showed.

    It is (None, ()) where there is none.
    """
    mine = last_step_events(case)
    if not mine:
        return None, ()
    folder = Path(mine[-1].path).parent
    effects = []
    for event in case.of(StepSetting):
        if Path(event.path).parent == folder:
            effects.append(SettingEffect(**fields_of(event)))
    return step_times(mine), tuple(effects)


def last_step_events(case: Case) -> list[Event]:
    """The `step.rank` events of the last run that made steps.

    The run is one of a script in this case.
    """
    events = [event for event in case.of(StepRank) if event.data.steps]
    return [event for event in events if Path(event.path).parent == Path(events[-1].path).parent]


def measured_steps(case: Case) -> tuple[StepTimes, list[Event]] | None:
    """Where the time of a job's steps goes, and what says so.

    It is None of a job that failed: its steps explain no end.
    """
    if failed(case):
        events = []
    else:
        events = last_step_events(case)
    if events:
        return step_times(events), events
    return None
