"""What one stage of the live test shows: a pair of ranks, or a group of them; read from the events of a run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ncclkit.agent.run.subgroup import ranks_of
from ncclkit.core.case import Case
from ncclkit.core.model import Event

SLOW, SLOW_HOST, SLOW_HERE = 0.6, 0.25, 0.1
"""Share of what others of its kind reach, below which a pair (or a rank alone) is slow: between GPUs, without them
between hosts, and on one host, where ranks share the cores with each other and with whatever else runs."""


SLOW_ALL = 0.25
"""Share of what the slower kind of pairs reaches each way, below which the busbw of GPUs together is not normal."""
LARGE = 1 << 20
"""Bytes of a message from which on bandwidth, not latency, is what was measured."""
HOST = "loopback"
FEW = 3
"""With fewer pairs of a kind than this nothing is usual."""
NOWHERE = "a host that did not answer"
"""Where ranks are that never said hello."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that exchanged messages while nobody disturbed them."""

    a: int
    b: int
    path: str
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
class GroupResult:
    """Ranks that did an all_reduce together, at the same time as other groups, or asked for by the search."""

    stage: str
    """``node``, ``nodes`` (a few of them), ``all``, or ``bisect`` (a job of its own, to find who is at fault)."""
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


def sharing(phases: Iterable[Event], hosts: Mapping[Any, str]) -> bool:
    """Whether ranks share GPUs, as they can on simulated hosts: they take turns there, and no two runs are alike."""
    most = max(Counter(hosts.values()).values(), default=0)
    said = (e.data for e in phases if e.data.get("phase") == "simulate")
    # hosts of namespaces have names of their own, so that their ranks say how many use the GPUs
    counts = ((row.get("gpus"), row.get("on_them", most)) for row in said)
    return any(isinstance(gpus, int) and isinstance(ranks, int) and 0 < gpus < ranks for gpus, ranks in counts)


def nodes_of(hosts: Mapping[Any, str], ranks: int) -> dict[str, tuple[int, ...]]:
    """host → ranks, those that never said where they are among them."""
    made: dict[str, list[int]] = {}
    for rank in range(ranks):
        made.setdefault(hosts.get(rank) or NOWHERE, []).append(rank)
    return {host: tuple(mine) for host, mine in made.items()}


def started(phases: Iterable[Event]) -> set[tuple[int, ...]]:
    """Groups whose stage began."""
    texts = {str(e.data["ranks"]) for e in phases if e.data.get("phase") == "groups" and e.data.get("ranks")}
    found = set[tuple[int, ...]]()
    for text in texts:
        with suppress(ValueError):  # a torn record
            found.add(tuple(ranks_of(text)))
    return found


def groups_of(case: Case, pairs: Sequence[Pair], steady: bool) -> tuple[GroupResult, ...]:
    """What is known of every group, worst first where several of its ranks speak."""
    ways: dict[str, list[float]] = {}
    for pair in pairs:
        ways.setdefault(pair.path, []).append(pair.bandwidth)
    part = SLOW_ALL if steady else SLOW_HERE
    least = part * min((statistics.median(speeds) for speeds in ways.values()), default=0.0)
    made: dict[tuple[str, tuple[int, ...]], GroupResult] = {}
    for event in case.of("stage.group"):
        data, speed = event.data, event.data["busbw"]
        slow = speed is not None and data["bytes"] >= LARGE and speed < least
        key = data["stage"], tuple(data["ranks"])
        group = GroupResult(*key, speed, data["latency_us"], data["wrong"], data["problem"], slow, event)
        if key not in made or (group.bad and not made[key].problem):
            made[key] = group
    return tuple(made.values())


def pair_of(event: Event, path: str, steady: bool) -> Pair:
    """What two ranks told of their exchange; `steady`: GPUs of their own measure alike each time."""
    data, share = event.data, SLOW if steady else SLOW_HERE if path == HOST else SLOW_HOST
    speeds = data["bandwidth"], data["latency_us"], data["wrong"]
    return Pair(event.rank or 0, data["peer"], path, *speeds, share, event=event)


def compared(pairs: Sequence[Pair], turns: bool) -> tuple[Pair, ...]:
    """The same in order, each with what is usual for its kind; nothing is where ranks take turns on a GPU."""
    kinds: dict[str, list[float]] = {}
    for pair in pairs:
        kinds.setdefault(pair.path, []).append(pair.bandwidth)
    usual = {way: statistics.median(speeds) for way, speeds in kinds.items() if len(speeds) >= FEW and not turns}
    ordered = sorted(pairs, key=lambda pair: (pair.a, pair.b))
    return tuple(replace(pair, usual=usual.get(pair.path)) for pair in ordered)
