"""Is this number normal?  What was measured, beside the bound that follows from the facts and what others measured.

A reference is named only where the topology is the same: that model of GPU, as many of them, joined in the same way,
on one host.  Systems of many hosts are left out: their networks, which decide, are not told with the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclkit.core.bandwidth import Expectation
from ncclkit.core.model import Measurement
from ncclkit.core.text import format_bytes, percent

LOW = 0.85
"""A ratio below this part of the usual share, or of every reference, asks for a reason."""
LARGE = {"loopback": 1 << 20}
"""What sets the bound → least bytes of a message whose speed can be judged; elsewhere 64 MiB."""
SUSPECTS: Mapping[str, tuple[str, ...]] = {
    "nvlink": ("slow_transport", "p2p_broken", "nvswitch_fabric", "gpu_hardware_error"),
    "pcie": ("slow_transport", "p2p_broken", "cpu_contention"),
    "network": ("ib_not_used", "ib_config", "ib_link_error", "wrong_interface", "network_loss"),
    "loopback": ("cpu_contention",),
}
"""What sets the bound → the causes that could explain a low ratio."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A busbw of large all_reduce calls on one host that somebody measured, in GB/s."""

    gpu: str
    ranks: int
    busbw: float
    link: str
    """nvlink or pcie, as `Expectation.limit`."""
    how: str
    source: str

    def __str__(self) -> str:
        return f"{self.ranks} x {self.gpu}: {self.busbw:g} GB/s {self.how} ({self.source})"


REFERENCES = (
    Reference("H200", 8, 480.0, "nvlink", "with NVLS", "ml-engineering"),
    Reference("H200", 8, 431.0, "nvlink", "as pass limit with NVLS", "Azure NHC"),
    Reference("H200", 4, 354.0, "nvlink", "at 1 GiB", "ncclkit, 2026-11"),
    Reference("H100", 8, 480.0, "nvlink", "with NVLS", "ml-engineering"),
    Reference("H100", 8, 460.0, "nvlink", "as pass limit with NVLS", "Azure NHC"),
    Reference("B200", 8, 845.7, "nvlink", "with NVLS", "ml-engineering"),
    Reference("A100", 8, 235.0, "nvlink", "through NVSwitch", "ml-engineering"),
    Reference("A100", 8, 228.0, "nvlink", "as pass limit", "Azure NHC"),
    Reference("A100 PCIe", 2, 193.0, "nvlink", "as pass limit with an NVLink bridge", "Azure NHC"),
    Reference("A100 PCIe", 4, 25.0, "pcie", "as pass limit", "Azure NHC"),
    Reference("H100 NVL", 2, 208.0, "nvlink", "as pass limit", "Azure NHC"),
    Reference("V100", 8, 110.0, "nvlink", "as pass limit", "Azure NHC"),
)
"""Measured elsewhere; REFERENCE of the project, section 12."""


def references(model: str, ranks: int, link: str, nvls: bool = True) -> list[Reference]:
    """What others measured with that many GPUs of that model (as ``gpu.0.model`` spells it) joined in this way.

    nvls: the switch may add up; where it may not, systems that used it are no comparison.
    """
    words = set(re.split(r"[\s-]+", model.upper().replace("PCIE", "PCIe")))
    variants = words & {"PCIe", "NVL"}
    return [
        ref
        for ref in REFERENCES
        if (ref.ranks, ref.link) == (ranks, link)
        and set(ref.gpu.split()) <= words
        and variants <= set(ref.gpu.split())
        and (nvls or "with NVLS" not in ref.how or "off" in ref.how)
    ]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best figure of a size curve, and what it is compared with."""

    best: Measurement
    bound: Expectation
    references: tuple[Reference, ...]

    @property
    def ratio(self) -> float:
        """Measured / bound."""
        return (self.best.busbw or 0.0) / (self.bound.value or 1.0)

    @property
    def normal(self) -> bool:
        """Whether it reaches what is usual, and what others reached."""
        floor = min((ref.busbw for ref in self.references), default=0.0)
        return self.ratio >= LOW * self.bound.usual and (self.best.busbw or 0.0) >= LOW * floor

    @property
    def low(self) -> bool:
        """Whether the figure needs an explanation: that of a large message which is not normal."""
        return not self.normal and self.best.bytes >= LARGE.get(self.bound.limit, 64 << 20)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The causes that could explain it; none where nothing needs to be explained."""
        return SUSPECTS.get(self.bound.limit, ()) if self.low else ()

    @property
    def ratios(self) -> tuple[tuple[Reference, float], ...]:
        """Each reference with the ratio measured / reference."""
        return tuple((ref, (self.best.busbw or 0.0) / ref.busbw) for ref in self.references)

    @property
    def summary(self) -> str:
        """Measured / expected = ratio, and the same for each reference, in words."""
        numbers = f"{self.best.busbw:.2f} of at most {self.bound.value:.2f} GB/s busbw = {percent(self.ratio)}"
        others = "; ".join(f"{ref}, this is {percent(ratio)} of it" for ref, ratio in self.ratios)
        measured = f" Measured elsewhere on {others}." if others else ""
        why = f" That is low: it could be {', '.join(self.suspects)}." if self.suspects else ""
        return f"{numbers} at {format_bytes(self.best.bytes)}.{measured}{why}"


def judge(measurements: Iterable[Measurement], bound: Expectation | None) -> Judgement | None:
    """Compare the best of one size curve; None where nothing was measured, or no bound is known."""
    rows: Sequence[Measurement] = [m for m in measurements if m.busbw]
    if not rows or bound is None or not bound.value:
        return None
    best = max(rows, key=lambda m: m.busbw or 0.0)
    alike = best.op == "all_reduce" and best.hosts == 1 and bound.gpu
    known = references(bound.gpu, best.ranks, bound.limit, bound.nvls) if alike else []
    return Judgement(best, bound, tuple(known))


def marginal(rows: Sequence[Measurement]) -> float | None:
    """busbw in GB/s of the bytes by which the largest message exceeds the next: without what every call costs.

    rows: one collective, by size.  None where there are no two of them, or the larger one was not slower.
    """
    if len(rows) < 2 or not rows[-1].busbw or rows[-1].time_us <= rows[-2].time_us:
        return None
    algbw = (rows[-1].bytes - rows[-2].bytes) / (rows[-1].time_us - rows[-2].time_us) / 1e3
    return algbw * rows[-1].busbw / rows[-1].algbw


def judgements(measurements: Sequence[Measurement], bounds: Mapping[str, Expectation]) -> list[Judgement]:
    """What `judge` says of each collective, in the order in which they were measured; `bounds` are by collective."""
    ops = dict.fromkeys(m.op for m in measurements)
    judged = (judge((m for m in measurements if m.op == op), bounds.get(op)) for op in ops)
    return [one for one in judged if one is not None]
