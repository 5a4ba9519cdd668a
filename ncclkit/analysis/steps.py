"""Where the time of a training step goes on each rank, who waits for whom, and what holds the step
back most.

Ranks are compared collective by collective: it ends on all of them at once, so who comes to it last
lets all others wait.  What a rank waits is not communication: it is put down to what the late rank
does meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from msgspec import structs

from ncclkit.analysis.picks import failed
from ncclkit.core.case import Case
from ncclkit.core.kinds import StepRank, StepSetting
from ncclkit.core.model import Event, NcclkitError, fields_of
from ncclkit.core.text import format_bytes, format_time, numbered, percent, plural
from ncclkit.core.tuning import Comparison

PARTS = ("computation", "data", "communication", "waiting", "checkpoint", "script")
NAMES = {
    "computation": "computation",
    "data": "waiting for data",
    "communication": "exposed communication",
    "waiting": "waiting for other ranks",
    "checkpoint": "checkpoint",
    "script": "other code of the script",
}
"""Part of a step → its name in pictures and tables."""
LEAST = 0.05
"""Share of a step from which on a part is worth a sentence."""
LATE = 0.6
"""Share of the collectives that one rank comes to last, from which on it is called late."""
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
    "waiting": "Look at the host of the rank that comes last; give all ranks equal work.",
    "checkpoint": "Save less often, or with torch.distributed.checkpoint.async_save.",
    "script": "Log every tenth step, write from a thread, and average over ranks once an epoch.",
}
"""Part → what to do about it, where no setting helps."""


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

        None where it is not worth a sentence.
        """
        return next((one for one in self.brakes if one.part == part), None)

    @property
    def summary(self) -> str:
        """What holds a step back most, in one sentence."""
        if self.brakes:
            return self.brakes[0].summary
        share = fmean(one.parts["computation"] / (one.seconds or 1.0) for one in self.ranks)
        step = _time(self.seconds)
        return (
            f"Computation takes {percent(min(share, 1.0))} of a step of {step}; nothing else takes"
            f" {percent(LEAST)}."
        )

    def text(self) -> str:
        """The summary, each rank in a row, every brake, and what may be tried."""
        lines = [self.summary, ""]
        for one in self.ranks:
            lines.append(f"rank {one.rank}: {_time(one.seconds)} a step = {_parts(one)}")
        lines += (
            ["", *(f"{place}. {brake}" for place, brake in enumerate(self.brakes, 1))]
            if self.brakes[1:]
            else []
        )
        brake_settings: list[str] = []
        for brake in self.brakes:
            brake_settings.extend(brake.settings)
        settings = [*dict.fromkeys(brake_settings)]
        causes: list[str] = []
        if self.brakes:
            causes = [*dict.fromkeys(self.brakes[0].causes)]
        lines += [self.brakes[0].advice] if self.brakes else []
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
    brakes = _brakes(ranks, rows)
    return StepTimes(
        ranks,
        brakes,
        max(len(event.data.steps) for event in rows),
        str(first.backend),
        bool(first.gpus),
        max(costs, default=None),
        problems,
    )


def _of_both(hook: Event[StepRank] | None = None, trace: Event[StepRank] | None = None) -> Event:
    """One event of a rank.

    Of GPUs a trace has the times, as only it sees them; the hook has what the script did.

    A GPU also idles while Python launches its kernels: where a data loader shows when the script
    does something else, only that counts as the script's.
    """
    if hook is None or trace is None or not trace.data.gpus:
        chosen = hook or trace
        assert chosen is not None
        return chosen
    saved, between = (
        fmean(row["parts"][part] for row in hook.data.steps) for part in ("checkpoint", "script")
    )

    def merged(parts: Mapping[str, float]) -> dict[str, float]:
        if hook.data.loaders:
            script = min(parts["script"], between)
        else:
            script = parts["script"]
        launching = max(0.0, parts["script"] - script - saved)
        more = {
            "checkpoint": saved,
            "script": script,
            "computation": parts["computation"] + launching,
        }
        return {**parts, **more}

    steps = [row | {"parts": merged(row["parts"])} for row in trace.data.steps]
    return replace(hook, data=structs.replace(hook.data, gpus=True, steps=steps))


def _waits(rows: Sequence[Event[StepRank]]) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Rank → seconds that it waits in each step, and share of all collectives to which it comes
    last.

    Only steps in which all ranks make as many collectives are compared.
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
    """Rank → seconds that its clock is ahead of the first rank's, as a collective ends on all at
    once.
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


def _brakes(ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]]) -> tuple[Brake, ...]:
    """What takes at least `LEAST` of a step besides computation, the longest first."""
    whole = fmean(sum(one.parts.values()) for one in ranks) or 1.0
    sites = _sites(rows)
    own, sent = _own(rows)
    # small collectives that a script calls itself are logging
    found = [_data(ranks, rows, sites), _buckets(ranks, rows, own if sent < SMALL_BUCKET else 0.0)]
    found += [
        _checkpoint(ranks),
        _script(ranks, sites, own if sent < SMALL_BUCKET else 0.0),
        _waiting(ranks),
    ]
    relevant = []
    for part, seconds, words, more in found:
        if seconds >= LEAST * whole:
            relevant.append((part, seconds, words, more))
    named = {part for part, *_ in relevant if part != "waiting"}
    excess = _excess(ranks)
    if excess in named:  # the others wait for what is named already
        relevant = [row for row in relevant if row[0] != "waiting"]
    relevant.sort(key=lambda row: -row[1])

    def brake(part: str, seconds: float, words: str, more: tuple[str, ...]) -> Brake:
        share = seconds / whole
        summary = f"{words}: {_time(seconds)} of a step of {_time(whole)} ({percent(share)})."
        possible_causes = []
        for one in CAUSES.get(part, ()):
            if rows[0].data.gpus or one not in OF_GPUS:
                possible_causes.append(one)
        causes = tuple(possible_causes)
        return Brake(part, seconds, share, summary, ADVICE[part], more, causes)

    return tuple(brake(*row) for row in relevant)


BrakeLine = tuple[str, float, str, tuple[str, ...]]


def _own(rows: Sequence[Event[StepRank]]) -> tuple[float, int]:
    """Seconds of a step in collectives that the script itself calls, and their bytes."""
    steps = []
    for event in rows:
        steps.extend(event.data.steps)
    return fmean(row["own"] for row in steps), int(median(row["bytes"] for row in steps))


def _sites(rows: Sequence[Event[StepRank]]) -> dict[str, list[Sequence[Any]]]:
    """Part → lines of the script, the one that takes longest first."""
    found: dict[str, list[Sequence[Any]]] = defaultdict(list)
    sites = []
    for event in rows:
        sites += event.data.sites
    for site in sorted(sites, key=lambda site: -site[2]):
        found[site[0]].append(site)
    return found


def _at(sites: Sequence[Sequence[Any]]) -> str:
    if sites:
        return f", most at {sites[0][1]}"
    return ""


def _data(
    ranks: Sequence[RankSteps],
    rows: Sequence[Event[StepRank]],
    sites: Mapping[str, list[Sequence[Any]]],
) -> BrakeLine:
    worst = max(ranks, key=lambda one: one.parts["data"])
    others = []
    for one in ranks:
        if one is not worst:
            others.append(one.parts["data"])
    # twice as long as any other, or a rank would be named by chance
    alone = bool(others) and worst.parts["data"] > 2 * max(others)
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
    words = f"{who} for the data loader{having}{for_whom}{_at(sites['data'])}"
    more = (f"workers={max(2, 2 * (workers or 0))}", "prefetch=4") if workers else ("workers=2",)
    return "data", worst.parts["data"], words, more if workers is not None else ()


def _buckets(
    ranks: Sequence[RankSteps], rows: Sequence[Event[StepRank]], logging: float
) -> BrakeLine:
    seconds = max(0.0, fmean(one.parts["communication"] for one in ranks) - logging)
    sizes = rows[0].data.buckets
    # one more, as DDP's first bucket is small
    enough = -(-sum(sizes) // DEFAULT_CAP) + 1
    if len(sizes) > 2 * enough and median(sizes) < SMALL_BUCKET:
        words = (
            f"Gradients travel in {len(sizes)} buckets of about {format_bytes(median(sizes))},"
            f" where {enough} would do"
        )
        return "communication", seconds, words, ("bucket_cap_mb=25",)
    more = ("bucket_cap_mb=50", "gradient_as_bucket_view=1") if sizes else ()
    return "communication", seconds, "Communication is not hidden behind computation", more


def _checkpoint(ranks: Sequence[RankSteps]) -> BrakeLine:
    seconds = max(one.parts["checkpoint"] for one in ranks)
    return "checkpoint", seconds, "Saving checkpoints stops training, on average", ()


def _script(
    ranks: Sequence[RankSteps], sites: Mapping[str, list[Sequence[Any]]], logging: float
) -> BrakeLine:
    """Logging and the like.

    Code between two steps, with the small collectives that the script calls by itself.
    """
    seconds = max(one.parts["script"] for one in ranks) + logging
    calls = [site for site in sites["collective"] if site[3]]
    sends = ""
    if logging and calls:
        sends = f", with {calls[0][3]:.0f} × {calls[0][4]} a step at {calls[0][1]}"
    return (
        "script",
        seconds,
        f"Code of the script between the steps takes time{_at(sites['script'])}{sends}",
        (),
    )


def _waiting(ranks: Sequence[RankSteps]) -> BrakeLine:
    seconds = max(one.parts["waiting"] for one in ranks)
    late = [one for one in ranks if one.late >= LATE]
    if not late:
        return (
            "waiting",
            seconds,
            "The ranks come to collectives at different times, now this one last and now that",
            (),
        )
    excess = _excess(ranks)
    does = ""
    if excess:
        does = f", which spends more on {NAMES[excess]}"
    others = []
    for one in ranks:
        if one not in late:
            others.append(one.rank)
    verb = "wait"
    if len(others) == 1:
        verb = "waits"
    return (
        "waiting",
        seconds,
        f"{numbered('rank', others).capitalize()} {verb} for rank {late[0].rank}{does}",
        (),
    )


def _excess(ranks: Sequence[RankSteps]) -> str:
    """The part in which a late rank spends most beyond what the others do.

    Empty where none is late.
    """
    late = next((one for one in ranks if one.late >= LATE), None)
    others = [one for one in ranks if one is not late]
    if late is None or not others:
        return ""
    more = {}
    for p in PARTS:
        if p != "waiting":
            more[p] = late.parts[p] - fmean(one.parts[p] for one in others)
    return max(more, key=lambda part: more[part])


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
    """One setting of a script against what it has.

    Seconds of a batch, and the gain with its interval.
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

    (None, ()) where there is none.
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

    Of a script in this case.
    """
    events = [event for event in case.of(StepRank) if event.data.steps]
    return [event for event in events if Path(event.path).parent == Path(events[-1].path).parent]


def measured_steps(case: Case) -> tuple[StepTimes, list[Event]] | None:
    """Where the time of a job's steps goes, and what says so.

    None of a job that failed: its steps explain no end.
    """
    if failed(case):
        events = []
    else:
        events = last_step_events(case)
    if events:
        return step_times(events), events
    return None
