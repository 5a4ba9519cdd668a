"""What one rung of the ladder shows: a pair of ranks, or a group of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclkit.model import Event

SLOW, SLOW_HOST, SLOW_HERE = 0.6, 0.25, 0.1
"""Share of what others of its kind reach, below which a pair (or a rank alone) is slow: between GPUs, without them
between hosts, and on one host, where ranks share the cores with each other and with whatever else runs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that exchanged messages while nobody disturbed them."""

    a: int
    b: int
    way: str
    """How they are joined: ``NV18``, ``PIX``, ``SYS`` …, ``network`` between hosts, ``loopback`` without GPUs."""
    bandwidth: float
    """GB/s each way, both at once."""
    latency_us: float
    wrong: int
    """Bytes that arrived wrong, at both ends."""
    share: float = SLOW
    """Of what is usual, below which it is slow."""
    usual: float | None = None
    """Median bandwidth of the pairs joined the same way; None where there are too few."""
    event: Event | None = None

    @property
    def slow(self) -> bool:
        """Clearly slower than others of its kind."""
        return self.usual is not None and self.bandwidth < self.share * self.usual


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that did an all_reduce together, at the same time as other groups, or asked for by the search."""

    rung: str
    """``node``, ``nodes`` (a few of them), ``all``, or ``narrow`` (a job of its own, to find who is at fault)."""
    ranks: tuple[int, ...]
    busbw: float | None
    """GB/s; None where it failed, and of one rank."""
    latency_us: float | None
    wrong: int
    problem: str
    """Why it failed, in the words of the rank that said it first; empty where it did not."""
    slow: bool
    event: Event

    @property
    def bad(self) -> bool:
        """Whether it failed, was slow or gave wrong values."""
        return bool(self.problem or self.slow or self.wrong)


def hosts_of(phases: Sequence[Event]) -> dict[int, str]:
    """rank → host by the name that it has itself, or by the scheduler's where only that tells hosts apart."""
    hellos = [e for e in phases if e.data.get("phase") == "hello" and e.rank is not None]
    own = {e.rank: e.host for e in hellos if e.rank is not None}
    given = {e.rank: str(e.data["node"]) for e in hellos if e.rank is not None and e.data.get("node")}
    return given if len({*given.values()}) > len({*own.values()}) else own
