"""What the ladder of the live test says: which rank is slow alone, which pair is slow, wrong or never answered.

A pair is measured against the other pairs that are joined the same way (NV18, PIX, SYS, another host …), so that no
table of speeds is needed to say that one of them is not like the rest.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclkit.agent.ladder import rounds
from ncclkit.bandwidth import chosen_gpus
from ncclkit.case import Case
from ncclkit.model import Event
from ncclkit.words import ranks as named
from ncclkit.words import start, verb

SLOW, SLOW_HOST = 0.6, 0.25
"""Share of what others of its kind reach, below which a pair (or a rank alone) is slow; ranks without a GPU share the
cores with each other and with whatever else runs, so only a factor counts there."""
HOST = "loopback"
FEW = 3
"""With fewer pairs of a kind than this nothing is usual."""


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
    usual: float | None = None
    """Median bandwidth of the pairs joined the same way; None where there are too few."""
    event: Event | None = None

    @property
    def slow(self) -> bool:
        """Clearly slower than others of its kind."""
        return self.usual is not None and self.bandwidth < (SLOW_HOST if self.way == HOST else SLOW) * self.usual


@dataclass(frozen=True, slots=True, repr=False)
class Ladder:
    """The rungs of the last live test that climbed them."""

    ranks: int
    alone: Mapping[int, float] = field(default_factory=dict)
    """rank → GB/s of copies inside its own memory."""
    pairs: tuple[Pair, ...] = ()
    silent: tuple[tuple[int, int], ...] = ()
    """Pairs whose round began, and that never told a result."""

    def __repr__(self) -> str:
        return self.say

    @property
    def lame(self) -> tuple[int, ...]:
        """Ranks that are slow alone, compared with the others."""
        usual = statistics.median(self.alone.values()) if len(self.alone) >= FEW else 0.0
        share = SLOW_HOST if all(pair.way == HOST for pair in self.pairs) else SLOW
        return tuple(sorted(rank for rank, speed in self.alone.items() if speed < share * usual))

    @property
    def bad(self) -> tuple[tuple[int, int], ...]:
        """Pairs that were slow, gave wrong values or none."""
        return (*((pair.a, pair.b) for pair in self.pairs if pair.slow or pair.wrong), *self.silent)

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that bad pairs have in common: one at fault makes most of its pairs bad, a link only one."""
        left, found = list(self.bad), []
        while left:
            rank, count = Counter(rank for pair in left for rank in pair).most_common(1)[0]
            if count < max(2, (self.ranks - 1) / 2):
                break
            found.append(rank)
            left = [pair for pair in left if rank not in pair]
        return tuple(sorted(found))

    @property
    def say(self) -> str:
        """The conclusion in one sentence."""
        if not self.pairs and not self.silent:
            return "No live test has climbed the ladder yet"
        links = [pair for pair in self.bad if not set(pair) & set(self.suspects)]
        alone = verb(self.lame, "copies slowly in its", "copy slowly in their")
        parts = [f"{named(self.lame)} {alone} own memory"] if self.lame else []
        parts += [f"{named(self.suspects)} {self._ails()} with most others"] if self.suspects else []
        parts += [f"the pair of ranks {a} and {b} {self._ail(a, b)}" for a, b in links[:3]]
        if len(links) > 3:
            parts.append(f"{len(links) - 3} more pairs are bad")
        return start("; ".join(parts)) if parts else self._well()

    def _ail(self, a: int, b: int) -> str:
        pair = next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)
        if pair is None:
            return "never answered"
        if pair.wrong:
            return f"gave {pair.wrong:,} wrong bytes"
        return f"reaches {pair.bandwidth:.2f} GB/s where {pair.way} pairs reach {pair.usual or 0:.2f}"

    def _ails(self) -> str:
        """What is bad about the pairs of the suspects, in a word."""
        mine = {pair for pair in self.bad if set(pair) & set(self.suspects)}
        if mine & set(self.silent):
            return "never answered"
        if any(pair.wrong for pair in self.pairs if (pair.a, pair.b) in mine):
            return verb(self.suspects, "gives", "give") + " wrong values"
        return verb(self.suspects, "is", "are") + " slow"

    def _well(self) -> str:
        ways = {way: [p.bandwidth for p in self.pairs if p.way == way] for way in {p.way for p in self.pairs}}
        each = (f"{statistics.median(speeds):.2f} GB/s over {way}" for way, speeds in sorted(ways.items()))
        like = "all are alike" if all(len(speeds) >= FEW for speeds in ways.values()) else "too few to compare"
        return f"Every pair of the {self.ranks} ranks works: {', '.join(each)}, and {like}"


def ladder(case: Case) -> Ladder:
    """The rungs of the last run of a case; without any where it climbed none."""
    case = case.latest()
    told, phases = case.of("ladder.pair"), case.of("worker.phase")
    hosts = {e.rank: e.host for e in phases if e.data.get("phase") == "hello" and e.rank is not None}
    alone = {e.rank: float(e.data["copy"]) for e in case.of("ladder.rank") if e.rank is not None}
    ranks = len(alone) or len(hosts)
    nccl = any(e.data.get("nccl") for e in phases)
    if nccl:  # which alone believes in pretended hosts
        hosts |= {e.rank: str(e.data["hostid"]) for e in phases if e.data.get("hostid") and e.rank is not None}
    pairs = [_pair(event, _way(case, hosts, nccl, ranks, event.rank or 0, event.data["peer"])) for event in told]
    last = max((int(e.data["round"]) for e in phases if e.data.get("phase") == "pairs"), default=-1)
    known = {(pair.a, pair.b) for pair in pairs}
    due = [pair for pairs_at_once in rounds(ranks)[: last + 1] for pair in pairs_at_once]
    return Ladder(ranks, alone, _compared(pairs), tuple(pair for pair in due if pair not in known))


def _pair(event: Event, way: str) -> Pair:
    data = event.data
    return Pair(event.rank or 0, data["peer"], way, data["bandwidth"], data["latency_us"], data["wrong"], event=event)


def _compared(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The same, each with what is usual for its kind."""
    kinds: dict[str, list[float]] = {}
    for pair in pairs:
        kinds.setdefault(pair.way, []).append(pair.bandwidth)
    usual = {way: statistics.median(speeds) for way, speeds in kinds.items() if len(speeds) >= FEW}
    return tuple(
        Pair(p.a, p.b, p.way, p.bandwidth, p.latency_us, p.wrong, usual.get(p.way), p.event)
        for p in sorted(pairs, key=lambda pair: (pair.a, pair.b))
    )


def _way(case: Case, hosts: Mapping[Any, str], nccl: bool, ranks: int, a: int, b: int) -> str:
    if hosts.get(a) != hosts.get(b):
        return "network"
    if not nccl:
        return HOST
    gpus = chosen_gpus({fact.name: fact.value for fact in case.facts}, ranks)
    matrix = case.fact("gpu.topology") or {}
    cell = str(matrix.get(f"GPU{gpus[a]}", {}).get(f"GPU{gpus[b]}", "")) if max(a, b) < len(gpus) else ""
    return cell if re.fullmatch(r"[A-Z]{3,4}|NV\d+", cell) else "an unknown way"
