"""Tuning advice drawn from what was measured, and paired comparison of settings.

In a size curve of a collective every call costs a fixed time, and a time per byte once the links are full.  From the
curve follows the message size above which bandwidth is used well, and so the bucket size that a job should send.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ncclkit.agent import redact
from ncclkit.core.bandwidth import Expectation
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Measurement, NcclkitError
from ncclkit.core.reference import Judgement, judge
from ncclkit.core.text import format_bytes
from ncclkit.live import probe
from ncclkit.live.options import DEFAULTS, ProbeOptions

MIB = 1 << 20
TINY = 4096
"""Bytes up to which a message is all overhead."""
MOSTLY_DATA = 4
"""Times the cost of an empty call from which on a call's own time is that of its data, not of whoever launched it."""


def size_for(measurements: Sequence[Measurement], share: float) -> float | None:
    """The message size in bytes from which on the bandwidth is at least this share (0..1) of the largest message's.

    Between two sizes the time is taken to grow evenly.  Needs a message of at most 4 KiB and one of at least 1 MiB;
    None otherwise.
    """
    rows = sorted({m.bytes: _cost(m) for m in measurements}.items())
    if not rows or rows[0][0] > TINY or rows[-1][0] < MIB:
        return None
    wanted = share * rows[-1][0] / rows[-1][1]
    for (small, quick), (large, slow) in reversed([*pairwise(rows)]):
        if small / quick < wanted:  # and the larger one reaches it
            each = (slow - quick) / (large - small)
            return wanted * (quick - small * each) / (1 - wanted * each)
    return rows[0][0]


def _cost(m: Measurement) -> float:
    """Microseconds of a call without what Python takes to launch it, where a graph shows that.

    A training job launches ahead of its GPU.
    """
    return m.time_us if m.graph_us is None else m.graph_us


def advise(measurements: Sequence[Measurement], expectation: Expectation | None = None) -> list[Advice]:
    """Advice from a sweep: what to set and what to look into, with this machine's own numbers.

    measurements: one all_reduce size curve; expectation: the busbw that this topology should give.
    """
    if all(m.ranks == 1 for m in measurements):
        return []  # nothing travels, so nothing can be advised
    advice = _bucket(measurements)
    if judgement := judge(measurements, expectation):
        advice.append(_ratio(judgement))
    advice += [_jitter(m) for m in _jittery(measurements)[:1]]
    return advice


def _bucket(measurements: Sequence[Measurement]) -> list[Advice]:
    size = size_for(measurements, 0.8)
    if size is None:
        return []
    cap = max(1, min(512, round(size / MIB)))
    empty = [m for m in measurements if m.bytes <= TINY]
    cost, launched = statistics.median(map(_cost, empty)), _launch(measurements)
    largest = max(measurements, key=lambda m: m.bytes)
    speed, slow = largest.bytes / _cost(largest) / 1e3, launched > 1.5 * cost
    advice = Advice(
        do=f"Send gradients in buckets of at least {cap} MiB; DDP's default is 25 MiB"
        + (", which is enough here." if cap <= 25 else "."),
        code="" if cap <= 25 else f"DistributedDataParallel(model, bucket_cap_mb={cap})",
        why=f"One all_reduce costs {cost:.0f} us before the first byte moves"
        + (f" (and Python {launched:.0f} us to launch it, which a job does ahead of its GPU)" if slow else "")
        + f"; {format_bytes(size)} reach 80 % of the {speed:.2f} GB/s of {format_bytes(largest.bytes)}.",
        check="Step time with the new bucket size, measured in pairs against the old one.",
        risk="Larger buckets overlap less with the backward pass and hold more memory.",
    )
    return [advice]


def _ratio(judgement: Judgement) -> Advice:
    if not judgement.low:
        return Advice(
            do="Leave NCCL's variables alone: the path is used well.",
            why=f"{judgement.summary} {judgement.bound}",
            check="Repeat the live test after every change of driver, container or NCCL.",
        )
    return Advice(
        do="Look for the reason before tuning: this path gives clearly less than it should.",
        why=f"{judgement.summary} {judgement.bound}",
        command="ncclkit diagnose <case folder>",
        check="The ratio of a repeated live test.",
        risk="Variables copied from elsewhere may hide the reason.",
    )


def _launch(measurements: Sequence[Measurement]) -> float:
    """Microseconds of a call that carries next to nothing, launched one by one; 0 where none was measured."""
    return statistics.median([m.time_us for m in measurements if m.bytes <= TINY] or [0.0])


def _jittery(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Messages of 1 MiB and more whose p99 is over twice the median, worst first.

    Where launching takes much of the time a single call is no measure of the way: it waits for Python.
    """
    least = MOSTLY_DATA * _launch(measurements)
    long = [m for m in measurements if m.bytes >= MIB and m.time_us >= least]
    bad = [m for m in long if (m.p99_us or 0.0) > 2 * m.time_us]
    return sorted(bad, key=lambda m: -(m.p99_us or 0.0) / m.time_us)


def _jitter(m: Measurement) -> Advice:
    tail = m.p99_us or 0.0
    return Advice(
        do="Find what else runs on these cores or links before comparing settings.",
        why=f"At {format_bytes(m.bytes)} the slowest {'calls' if m.singles else 'repeats'} take "
        f"{tail / m.time_us:.1f} times the median ({tail:.0f} against {m.time_us:.0f} us).",
        command="ncclkit inspect",
        check="p99 below twice the median in a repeated live test.",
    )


LEAST_PAIRS = 6
"""With fewer pairs even a setting that wins every time could have done so by chance (1 in 32 for both directions)."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """One setting against the default, measured in pairs of runs on the same ranks."""

    env: Mapping[str, str]
    bytes: int
    """Message size that was compared."""
    base_us: tuple[float, ...]
    """Time with the default, microseconds, one per pair."""
    with_us: tuple[float, ...]
    """Time with the setting, microseconds, one per pair."""

    @property
    def interval(self) -> tuple[float, float]:
        """Interval that holds the median ratio setting / default with at least 95 %; below 1 is faster."""
        return interval([new / old for new, old in zip(self.with_us, self.base_us, strict=True)])

    @property
    def summary(self) -> str:
        """The result in one sentence; a difference is only claimed when the interval excludes 1."""
        name = " ".join(f"{key}={value}" for key, value in self.env.items())
        low, high = self.interval
        pairs = f"{len(self.base_us)} pairs of runs"
        if low == 0:
            return f"{name}: {pairs} cannot tell a difference from chance; {LEAST_PAIRS} are the least."
        seen = f"{low:.2f} to {high:.2f} of the default's time at {format_bytes(self.bytes)}, {pairs}"
        if low <= 1 <= high:
            return f"{name} makes no difference that can be told from chance ({seen})."
        return f"{name} is {'faster' if high < 1 else 'slower'}: {seen}."


OnRun = Callable[[str, int, int], object]
"""Called before each run: what is run, how many are done, how many there are."""


async def sweep(
    case: Case,
    settings: Sequence[Mapping[str, str]],
    pairs: int = LEAST_PAIRS,
    options: ProbeOptions = DEFAULTS,
    on_run: OnRun = lambda what, done, total: None,
) -> list[PairedComparison]:
    """Compare each setting with the default in pairs of runs whose order alternates, so that drift cancels.

    settings: variables per variant; pairs: at least `LEAST_PAIRS`; options: of every run.
    """
    if pairs < LEAST_PAIRS:
        raise NcclkitError(f"{pairs} pairs cannot show a difference beyond chance; ask for at least {LEAST_PAIRS}.")
    total = 2 * pairs * len(settings)
    done = itertools.count()
    return [await _compare(case, env, pairs, options, lambda what: on_run(what, next(done), total)) for env in settings]


async def _compare(
    case: Case, env: Mapping[str, str], pairs: int, options: ProbeOptions, before: Callable[[str], object]
) -> PairedComparison:
    times: dict[bool, list[float]] = {False: [], True: []}
    size = 0
    for pair in range(pairs):
        for changed in (False, True) if pair % 2 else (True, False):
            before(" ".join(f"{key}={value}" for key, value in env.items()) if changed else "the default")
            run = await probe.probe(case, replace(options, env=env if changed else {}))
            if run.reason != "done" or not run.measurements:
                raise NcclkitError(f"The comparison stopped: {run.summary} See {run.folder}.")
            largest = max(run.measurements, key=lambda m: m.bytes)
            times[changed].append(largest.time_us)
            size = largest.bytes
    return PairedComparison(redact.clean(dict(env)), size, tuple(times[False]), tuple(times[True]))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Distribution-free 95 % interval of the median, by order statistics; (0, inf) where there are too few values."""
    ordered, count, tail, rank = sorted(ratios), len(ratios), 0.0, 0
    while rank < count:
        tail += math.comb(count, rank) / 2**count
        if tail > 0.025:
            break
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else (0.0, math.inf)
