"""Tuning advice drawn from what was measured, and paired comparison of settings.

A size curve of a collective is, to good approximation, a straight line: every
call costs a fixed time (alpha) plus a time per byte (beta).  From the two
follow the message size above which bandwidth is used well, and so the bucket
size that a training job should send.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit import probe
from ncclkit.bandwidth import Expectation
from ncclkit.case import Case
from ncclkit.model import Advice, Measurement, NcclkitError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """time(S) = alpha + S * beta, fitted to a size curve."""

    alpha_us: float
    """Fixed cost of one call in microseconds."""
    beta_us: float
    """Cost of one byte in microseconds."""

    @property
    def algbw(self) -> float:
        """Bandwidth in GB/s that very large messages approach."""
        return 1e-3 / self.beta_us

    def size_for(self, share: float) -> float:
        """Message size in bytes that reaches this share (0..1) of the large-message bandwidth."""
        return share / (1 - share) * self.alpha_us / self.beta_us


def fit(measurements: Sequence[Measurement]) -> Line | None:
    """Fit alpha and beta: alpha is the median of the messages that are all overhead, beta comes from the largest one.

    Needs a message of at most 4 KiB and one of at least 1 MiB; None otherwise.
    """
    small = [m.time_us for m in measurements if m.bytes <= 4096]
    large = max((m for m in measurements if m.bytes >= MIB), key=lambda m: m.bytes, default=None)
    if not small or large is None:
        return None
    alpha = statistics.median(small)
    return Line(alpha, max(large.time_us - alpha, 0.05 * large.time_us) / large.bytes)


def advise(measurements: Sequence[Measurement], expectation: Expectation | None = None) -> list[Advice]:
    """What to set, and what to look into, with this machine's own numbers.

    measurements: one all_reduce size curve; expectation: the busbw that this topology should give.
    """
    if all(m.ranks == 1 for m in measurements):
        return []  # nothing travels, so nothing can be advised
    line = fit(measurements)
    advice = [] if line is None else [_bucket(line)]
    best = max((m for m in measurements if m.busbw), key=lambda m: m.busbw or 0.0, default=None)
    if best is not None and expectation is not None and expectation.value:
        advice.append(_ratio(best, expectation.value, expectation))
    advice += [_jitter(m) for m in _jittery(measurements)[:1]]
    return advice


def _bucket(line: Line) -> Advice:
    size = line.size_for(0.8)
    cap = max(1, min(512, round(size / MIB)))
    return Advice(
        do=f"Send gradients in buckets of at least {cap} MiB; DDP's default is 25 MiB"
        + (", which is enough here." if cap <= 25 else "."),
        code="" if cap <= 25 else f"DistributedDataParallel(model, bucket_cap_mb={cap})",
        why=f"One all_reduce costs {line.alpha_us:.0f} us before the first byte moves; "
        f"{_bytes(size)} reach 80 % of the {line.algbw:.2f} GB/s that large messages get.",
        check="Step time with the new bucket size, measured in pairs against the old one.",
        risk="Larger buckets overlap less with the backward pass and hold more memory.",
    )


LOW = 0.85
"""A ratio below this part of the usual share asks for a reason."""


def _ratio(best: Measurement, bound: float, expectation: Expectation) -> Advice:
    ratio, words = (best.busbw or 0.0) / bound, expectation.words
    numbers = f"{best.busbw:.2f} of at most {bound:.2f} GB/s busbw = {ratio:.0%} at {_bytes(best.bytes)}"
    if ratio >= LOW * expectation.usual:
        return Advice(
            do="Leave NCCL's variables alone: the path is used well.",
            why=f"{numbers}. {words}",
            check="Repeat the live test after every change of driver, container or NCCL.",
        )
    return Advice(
        do="Look for the reason before tuning: this path gives clearly less than it should.",
        why=f"{numbers}. {words}",
        command="ncclkit diagnose <case folder>",
        check="The ratio of a repeated live test.",
        risk="Variables copied from elsewhere may hide the reason.",
    )


def _jittery(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Messages of 1 MiB and more whose p99 is over twice the median, worst first."""
    bad = [m for m in measurements if m.bytes >= MIB and m.p99_us > 2 * m.time_us]
    return sorted(bad, key=lambda m: -m.p99_us / m.time_us)


def _jitter(m: Measurement) -> Advice:
    return Advice(
        do="Find what else runs on these cores or links before comparing settings.",
        why=f"At {_bytes(m.bytes)} the slowest repeats take {m.p99_us / m.time_us:.1f} times the median "
        f"({m.p99_us:.0f} against {m.time_us:.0f} us).",
        command="ncclkit inspect",
        check="p99 below twice the median in a repeated live test.",
    )


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One setting against the default, measured in pairs on the same ranks."""

    env: Mapping[str, str]
    bytes: int
    base_us: float
    """Median time with the default, microseconds."""
    with_us: float
    """Median time with the setting, microseconds."""
    low: float
    high: float
    """95 % bootstrap interval of the ratio with / base; below 1 is faster."""

    @property
    def say(self) -> str:
        """The result in one sentence; "no difference" when the interval holds 1."""
        name = " ".join(f"{k}={v}" for k, v in self.env.items())
        if self.low <= 1 <= self.high:
            interval = f"{self.low:.2f} to {self.high:.2f} of the time"
            return f"{name} makes no difference that {_bytes(self.bytes)} messages show ({interval})."
        word = "faster" if self.high < 1 else "slower"
        return f"{name} is {word} at {_bytes(self.bytes)}: {self.low:.2f} to {self.high:.2f} of the default's time."


async def sweep(case: Case, settings: Sequence[Mapping[str, str]], pairs: int = 3, **choices: Any) -> list[Comparison]:
    """Compare each setting with the default in alternating runs (default, setting, default, …), so that drift cancels.

    settings: variables per variant; pairs: runs of each; choices: as for `probe.plan`.
    """
    if pairs < 2:
        raise NcclkitError(f"A paired comparison needs at least 2 pairs, not {pairs}.")
    results = []
    for env in settings:
        base: list[float] = []
        changed: list[float] = []
        size = 0
        for _ in range(pairs):
            for variant, times in (({}, base), (env, changed)):
                run = await probe.probe(case, env=variant, **choices)
                if run.reason != "done" or not run.measurements:
                    raise NcclkitError(f"The comparison stopped: {run.say} See {run.folder}.")
                largest = max(run.measurements, key=lambda m: m.bytes)
                times.append(largest.time_us)
                size = largest.bytes
        low, high = interval(base, changed)
        results.append(Comparison(env, size, statistics.median(base), statistics.median(changed), low, high))
    return results


def interval(base: Sequence[float], changed: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of median(changed) / median(base); the seed is fixed, so a report can be repeated."""
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(changed, k=len(changed))) / statistics.median(draw.choices(base, k=len(base)))
        for _ in range(draws)
    )
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]
