"""What the stages of the live test show.

They show which rank is slow alone, which pair is slow, wrong or never answered, and who is to blame
where all of them together fail.  A pair is measured against the other pairs that are joined the
same way (NV18, PIX, SYS, another host …), so that no table of speeds is needed to say that one of
them is not like the rest.  Of ranks that fail together smaller groups have been tried
(`bisect_ranks`).
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ncclkit.agent.run.stages import ranks_of
from ncclkit.analysis import bisection
from ncclkit.analysis.once import once
from ncclkit.core.bandwidth import chosen_gpus
from ncclkit.core.case import Case
from ncclkit.core.kinds import RunEnd, StageGroup, StagePair, StagePeer, StageRank, WorkerPhase
from ncclkit.core.model import Event
from ncclkit.core.summary import MOST
from ncclkit.core.text import host_list, plural, rate, start, verb
from ncclkit.core.text import ranks as rank_words

SLOW, SLOW_HOST, SLOW_HERE = 0.6, 0.25, 0.1
"""Shares of what others of its kind reach, below which a pair is slow.

They hold also for a rank alone.  The three are for pairs between GPUs, without GPUs between hosts,
and on one host, where ranks share the cores with each other and with whatever else runs.
"""


SLOW_ALL = 0.25
"""Share of the slower pairs' speed below which GPUs together are slow.

Their busbw is compared with what the slower kind of pairs reaches each way.
"""
LARGE = 1 << 20
"""Bytes of a message from which on bandwidth, not latency, is what was measured."""
HOST = "loopback"
MIN_PAIRS = 3
"""With fewer pairs of a kind than this nothing is usual."""
NOWHERE = "a host that did not answer"
"""Where ranks are that never said hello."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that exchanged messages while nobody disturbed them."""

    a: int
    b: int
    path: str
    """How they are joined: ``NV18``, ``PIX``, ``SYS`` …, ``network`` between hosts, ``loopback``
    without GPUs."""
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
    """Ranks that did an all_reduce together.

    They did so at the same time as other groups, or asked for by the search.
    """

    stage: str
    """``node``, ``nodes`` (a few of them), ``all``, or ``bisect`` (a job of its own, to find who is
    at fault)."""
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


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """What one rank did to the memory of another one of its node."""

    rank: int
    peer: int
    way: str
    """``write`` or ``read``; ``share`` where neither was tried."""
    path: str
    gpus: tuple[int, int] | None
    """Their GPUs as nvidia-smi counts them; None without."""
    wrong: bool
    problem: str
    event: Event

    @property
    def summary(self) -> str:
        """``GPU 3 (rank 3) wrote into the memory of GPU 5 (rank 5) over PHB: …``."""
        one, two = f"rank {self.rank}", f"rank {self.peer}"
        if self.gpus:
            one, two = f"GPU {self.gpus[0]} ({one})", f"GPU {self.gpus[1]} ({two})"
        does = {"write": "wrote into", "read": "read"}.get(self.way, "could not reach")
        why = self.problem
        if self.wrong:
            why = "other bytes arrived"
        return f"{one} {does} the memory of {two} over {self.path}: {why}"


def hosts_of(phases: Sequence[Event[WorkerPhase]]) -> dict[int, str]:
    """rank → host, by its own name or by the scheduler's."""
    hellos = []
    for event in phases:
        if event.data.phase == "hello" and event.rank is not None:
            hellos.append(event)
    own = {}
    for event in hellos:
        if event.rank is not None:
            own[event.rank] = event.host
    given = {}
    for event in hellos:
        if event.rank is not None and event.data.node:
            given[event.rank] = str(event.data.node)
    # several nodes of Slurm may lie on one machine, and have one name
    if len({*given.values()}) > len({*own.values()}):
        return given
    return own


def sharing(phases: Iterable[Event], hosts: Mapping[Any, str]) -> bool:
    """Whether ranks share GPUs, as they can on simulated hosts.

    They take turns there, and no two runs are alike.
    """
    most = max(Counter(hosts.values()).values(), default=0)
    said = []
    for event in phases:
        if event.data.phase == "simulate":
            said.append(event.data)
    # hosts of namespaces have names of their own, so that their ranks say how many use the GPUs
    counts = [(row.gpus, most if row.on_them is None else row.on_them) for row in said]
    for gpus, ranks in counts:
        if isinstance(gpus, int) and isinstance(ranks, int) and 0 < gpus < ranks:
            return True
    return False


def nodes_of(hosts: Mapping[Any, str], ranks: int) -> dict[str, tuple[int, ...]]:
    """host → ranks, those that never said where they are among them."""
    ranks_of: dict[str, list[int]] = {}
    for rank in range(ranks):
        host = hosts.get(rank) or NOWHERE
        ranks_of.setdefault(host, []).append(rank)
    nodes = {}
    for host, own in ranks_of.items():
        nodes[host] = tuple(own)
    return nodes


def started(phases: Iterable[Event[WorkerPhase]]) -> set[tuple[int, ...]]:
    """Groups whose stage began."""
    texts = set()
    for event in phases:
        if event.data.phase == "groups" and event.data.ranks:
            texts.add(str(event.data.ranks))
    found = set[tuple[int, ...]]()
    for text in texts:
        with suppress(ValueError):  # a torn record
            found.add(tuple(ranks_of(text)))
    return found


def groups_of(case: Case, pairs: Sequence[Pair], steady: bool) -> tuple[GroupResult, ...]:
    """One result for each group.

    Where several of its ranks speak, a bad one stands.  `steady`: every rank has a GPU of its own,
    as in `pair_of`.
    """
    by_path: dict[str, list[float]] = {}
    for pair in pairs:
        by_path.setdefault(pair.path, []).append(pair.bandwidth)
    if steady:
        part = SLOW_ALL
    else:
        part = SLOW_HERE
    # pairs and groups are not the same traffic, so only a factor means something
    least = part * min((statistics.median(speeds) for speeds in by_path.values()), default=0.0)
    made: dict[tuple[str, tuple[int, ...]], GroupResult] = {}
    for event in case.of(StageGroup):
        data, speed = event.data, event.data.busbw
        slow = speed is not None and data.bytes >= LARGE and speed < least
        key = data.stage, tuple(data.ranks)
        group = GroupResult(*key, speed, data.latency_us, data.wrong, data.problem, slow, event)
        if key not in made or (group.bad and not made[key].problem):
            made[key] = group
    return tuple(made.values())


def pair_of(event: Event, path: str, steady: bool) -> Pair:
    """What two ranks told of their exchange.

    `steady`: GPUs of their own measure alike each time.
    """
    data = event.data
    share = SLOW if steady else SLOW_HERE if path == HOST else SLOW_HOST
    speeds = data.bandwidth, data.latency_us, data.wrong
    return Pair(event.rank or 0, data.peer, path, *speeds, share, event=event)


def compared(pairs: Sequence[Pair], turns: bool) -> tuple[Pair, ...]:
    """The pairs in order, each with the usual speed of its kind.

    That speed is left out where ranks take turns on a GPU.
    """
    kinds: dict[str, list[float]] = {}
    for pair in pairs:
        kinds.setdefault(pair.path, []).append(pair.bandwidth)
    usual = {}
    for path, speeds in kinds.items():
        # ranks in turns on shared GPUs fall out of step: sound pairs reached a fortieth of the
        # others
        if len(speeds) >= MIN_PAIRS and not turns:
            usual[path] = statistics.median(speeds)
    ordered = sorted(pairs, key=lambda pair: (pair.a, pair.b))
    return tuple(replace(pair, usual=usual.get(pair.path)) for pair in ordered)


ENDS = {"failed", "deadline"}


@dataclass(frozen=True, slots=True, repr=False)
class StagedTest:
    """The stages of the last staged live test."""

    ranks: int
    alone: Mapping[int, float] = field(default_factory=dict)
    """rank → GB/s of copies inside its own memory."""
    corrupt: Mapping[int, int] = field(default_factory=dict)
    """rank → bytes that came out wrong when it copied them inside its own memory."""
    pairs: tuple[Pair, ...] = ()
    silent: tuple[tuple[int, int], ...] = ()
    """Pairs whose round began, and that never told a result."""
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """host, real or simulated → its ranks."""
    groups: tuple[GroupResult, ...] = ()
    unheard: tuple[tuple[int, ...], ...] = ()
    """Groups that began, and never told a result."""
    ended: str = ""
    """How the run ended: ``done``, ``failed``, ``deadline``, ``cancelled``; empty where that is not
    known."""
    absent: tuple[str, ...] = ()
    """Nodes of the allocation on which nothing was ever started."""
    accesses: tuple[PeerAccess, ...] = ()
    """What ranks wrote into the memory of others of their node, and read there."""
    turns: bool = False
    """Whether ranks take turns on GPUs that they share.

    How fast a pair is then says nothing of its path.
    """

    def __repr__(self) -> str:
        return self.summary

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """Ranks that are slow alone, compared with the others."""
        usual = 0.0
        if len(self.alone) >= MIN_PAIRS:
            usual = statistics.median(self.alone.values())
        if all(pair.share != SLOW for pair in self.pairs):
            share = SLOW_HERE
        else:
            share = SLOW
        return tuple(sorted(rank for rank, speed in self.alone.items() if speed < share * usual))

    @property
    def bad(self) -> tuple[tuple[int, int], ...]:
        """Pairs that were slow, gave wrong values or none."""
        return (*((pair.a, pair.b) for pair in self.pairs if pair.slow or pair.wrong), *self.silent)

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that bad pairs have in common.

        One at fault makes most of its pairs bad, a link only one.
        """
        left = list(self.bad)
        found = []
        while left:
            counts: Counter[int] = Counter()
            for pair in left:
                counts.update(pair)
            rank, count = counts.most_common(1)[0]
            met = sum(rank in (pair.a, pair.b) for pair in self.pairs) + sum(
                rank in pair for pair in self.silent
            )
            # a bad link makes one pair bad, a bad rank most of its pairs
            if count < max(2, met / 2):
                break
            found.append(rank)
            left = [pair for pair in left if rank not in pair]
        return tuple(sorted(found))

    @property
    def failing(self) -> bool:
        """Whether ranks together failed, were slow or wrong, and no pair says why.

        Wrong means that they gave wrong values.  Ranks that did not even start are no matter of
        groups: they would not start then either.
        """
        if NOWHERE in self.nodes:
            return False
        together = any(group.bad for group in self.groups if group.stage != "bisect")
        blamed = self.bad or self.slow_ranks or self.corrupt
        return self.ended in ENDS or (self.ended == "done" and together and not blamed)

    @property
    def bisected(self) -> bisection.Bisected:
        """How far the search for the ranks that fail together has come (only where `failing`)."""
        every = frozenset(range(self.ranks))
        works: set[bisection.Group] = {frozenset((rank,)) for rank in self.alone}
        for pair in self.pairs:
            # a slow pair got through all the same
            if not pair.wrong:
                works.add(frozenset((pair.a, pair.b)))
        odd = []
        for group in self.groups:
            if group.stage != "bisect" and self._counts(group):
                odd.append(group.ranks)
        tested_groups = set()
        for group in self.groups:
            if group.stage != "bisect":
                tested_groups.add(frozenset(group.ranks))
        works |= tested_groups - {*map(frozenset, odd)}
        # what failed may be passing: it is tried anew
        known = dict.fromkeys(works - {every}, False)
        known |= {frozenset(group.ranks): self._counts(group) for group in self.tried}
        hints = [
            *self.silent,
            *((pair.a, pair.b) for pair in self.pairs if pair.wrong),
            *self.unheard,
            *odd,
        ]
        nodes = [*self.nodes.values()] or [tuple(every)]
        return bisection.bisect_ranks(
            nodes, known, [hint for hint in hints if len(hint) < self.ranks]
        )

    def _counts(self, group: GroupResult) -> bool:
        """Whether a group is bad in the manner that is looked for.

        Where ranks fail, one that is merely slow is not.
        """
        return bool(group.problem or group.wrong) or (group.slow and self.ended not in ENDS)

    @property
    def tried(self) -> tuple[GroupResult, ...]:
        """Groups that were started anew to find who is at fault."""
        return tuple(group for group in self.groups if group.stage == "bisect")

    def near(self, a: int, b: int) -> bool:
        """Whether two ranks are on one node."""
        return any({a, b} <= set(node) for node in self.nodes.values()) or not self.nodes

    def who(self, ranks: Iterable[int]) -> str:
        """Ranks as a reader knows them.

        They are such as ``rank 3``, ``rank 3 on node-2``, or ``node-2 (ranks 4-7)``.
        """
        parts = []
        left = set(ranks)
        if len(self.nodes) < 2:
            return rank_words(left)
        for host, mine in self.nodes.items():
            here = left & set(mine)
            if here:
                parts.append(
                    f"{host} ({rank_words(here)})"
                    if here == set(mine)
                    else f"{rank_words(here)} on {host}"
                )
        if len(parts) > 1:
            return f"{', '.join(parts[:-1])} and {parts[-1]}"
        return (parts or ["no rank"])[0]

    @property
    def wrong_accesses(self) -> tuple[PeerAccess, ...]:
        """Memory of a peer in which, or of which, other bytes arrived."""
        return tuple(access for access in self.accesses if access.wrong)

    @property
    def verified(self) -> int:
        """How many times what was written into, or read of, a peer's memory was right."""
        done = [access for access in self.accesses if access.way in ("write", "read")]
        return len(done) - len(self.wrong_accesses)

    @property
    def symptom(self) -> tuple[str, str]:
        """What is wrong with the groups, of one and of several."""
        bad = [group for group in self.groups if group.bad]
        if self.ended in ENDS or any(group.problem for group in bad):
            return "fails", "fail"
        if any(g.wrong for g in bad):
            return "gives wrong values", "give wrong values"
        return "is slow", "are slow"

    @property
    def summary(self) -> str:
        """The conclusion in one sentence."""
        if self.failing and self.tried:
            return self._start(
                bisection.describe(self.bisected, self.who, self.symptom, self.ranks)
            )
        if self.absent and self.ended in ENDS:
            return (
                f"{host_list(self.absent)} never began, and the ranks of the other nodes timed out"
                " waiting"
            )
        if not (self.pairs or self.silent or self.corrupt or self.wrong_accesses):
            if self.ranks == 1 and self.alone:
                return self._one()
            return "No staged live test has run yet"
        links = [pair for pair in self.bad if not set(pair) & set(self.suspects)]
        alone = verb(self.slow_ranks, "copies slowly in its", "copy slowly in their")
        wrong = f"{verb(self.corrupt, 'copies its', 'copy their')} own memory wrongly"
        parts = []
        if self.corrupt:
            parts = [f"{self.who(self.corrupt)} {wrong} ({sum(self.corrupt.values()):,} bytes)"]
        parts += [f"{self.who(self.slow_ranks)} {alone} own memory"] if self.slow_ranks else []
        parts += (
            [f"{self.who(self.suspects)} {self._symptoms()} with most others"]
            if self.suspects
            else []
        )
        parts += [f"the pair of {self.who((a, b))} {self._symptom(a, b)}" for a, b in links[:3]]
        if len(links) > 3:
            parts.append(f"{len(links) - 3} more pairs are bad")
        parts += [access.summary for access in self.wrong_accesses[:3]]
        parts += [] if parts else [self._grouped(group) for group in self.groups if group.bad][:3]
        if parts:
            return self._start("; ".join(parts))
        return self._well()

    def _start(self, sentence: str) -> str:
        """The sentence with a capital letter, unless it begins with a host's name."""
        if sentence.partition(" ")[0] in self.nodes:
            return sentence
        return start(sentence)

    def _grouped(self, group: GroupResult) -> str:
        if group.problem or group.wrong:
            return (
                f"{self.who(group.ranks)} together:"
                f" {group.problem or f'{group.wrong} values were wrong'}"
            )
        return f"{self.who(group.ranks)} together reach only {rate(group.busbw or 0)} busbw"

    def _symptom(self, a: int, b: int) -> str:
        pair = next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)
        if pair is None:
            return "never answered"
        if pair.wrong:
            return f"gave {pair.wrong:,} wrong bytes"
        return (
            f"reaches {rate(pair.bandwidth)} where pairs over {pair.path} reach"
            f" {rate(pair.usual or 0)}"
        )

    def _symptoms(self) -> str:
        """What is bad about the pairs of the suspects, in a word."""
        mine = {pair for pair in self.bad if set(pair) & set(self.suspects)}
        if mine & set(self.silent):
            return "never answered"
        if any(pair.wrong for pair in self.pairs if (pair.a, pair.b) in mine):
            return verb(self.suspects, "gives", "give") + " wrong values"
        return verb(self.suspects, "is", "are") + " slow"

    def _one(self) -> str:
        ((rank, speed),) = self.alone.items()
        return (
            f"Rank {rank} copies {rate(speed)} in its own memory, every byte was right; one rank"
            " alone has no pairs"
        )

    def _well(self) -> str:
        by_path = {}
        for path in {p.path for p in self.pairs}:
            by_path[path] = [p.bandwidth for p in self.pairs if p.path == path]
        each = (
            f"{rate(statistics.median(speeds))} over {path}"
            for path, speeds in sorted(by_path.items())
        )
        few = any(len(speeds) < MIN_PAIRS for speeds in by_path.values())
        like = "and all are alike"
        if few:
            like = "too few pairs to compare"
        if self.turns:
            like = "by turns on GPUs that they share"
        memory = ""
        if self.verified:
            times = plural(self.verified, "time")
            memory = f"; memory of peers was written, read and verified {times}"
        who = f"Every pair of the {self.ranks} ranks works"
        if self.ranks == 2:
            who = "The only pair of ranks works"
        return f"{who}: {', '.join(each)}, {like}{memory}"


@once
def staged_test(case: Case) -> StagedTest:
    """The stages of the last run of a case; without any where it had none."""
    case = case.latest()
    results = case.of(StagePair)
    phases = case.of(WorkerPhase)
    hosts = hosts_of(phases)
    # gloo heeds no NCCL_HOSTID
    with_hostid = (e for e in phases if e.data.hostid and e.data.nccl != "")
    nodes = dict(hosts)
    for phase in with_hostid:
        if phase.rank is not None:
            nodes[phase.rank] = str(phase.data.hostid)
    alone = {}
    corrupt = {}
    for result in case.of(StageRank):
        if result.rank is None:
            continue
        alone[result.rank] = float(result.data.copy)
        if result.data.wrong:
            corrupt[result.rank] = result.data.wrong
    planned = max((int(e.data.ranks) for e in phases if e.data.phase == "plan"), default=0)
    ranks = max(len(alone), min(planned, MOST) or len(hosts))
    nccl = any(e.data.nccl for e in phases)
    turns = nccl and sharing(phases, hosts)
    steady = nccl and not turns
    if nccl:  # which alone believes in simulated hosts
        hosts = nodes
    gpus = {}
    if nccl:
        gpus = _gpus(case, phases, ranks)
    paths = (_link(case, hosts, gpus, event.rank or 0, event.data.peer) for event in results)
    pairs = [pair_of(event, path, steady) for event, path in zip(results, paths, strict=True)]
    known = {(pair.a, pair.b) for pair in pairs}
    due = _due_pairs(phases)
    groups = groups_of(case, pairs, steady)
    begun = started(phases)
    reported = {group.ranks for group in groups}
    names = []
    for e in phases:
        if e.data.phase == "absent":
            names.append(str(e.data.name))
    return StagedTest(
        ranks,
        alone,
        corrupt,
        compared(pairs, turns),
        tuple(sorted(due - known)),
        nodes_of(nodes, ranks),
        groups,
        tuple(sorted(begun - reported)),
        next((str(e.data.reason) for e in reversed(case.of(RunEnd))), ""),
        tuple(names),
        _accesses(
            case,
            hosts,
            gpus,
        ),
        turns,
    )


def _accesses(
    case: Case, hosts: Mapping[Any, str], gpus: Mapping[int, int]
) -> tuple[PeerAccess, ...]:
    """What was done to the memory of peers, as far as the driver lets GPUs do it."""
    made = []
    for event in case.of(StagePeer):
        if event.rank is None or event.data.apart:
            continue
        one, two = event.rank, event.data.peer
        own = None
        if one in gpus and two in gpus:
            own = (gpus[one], gpus[two])
        path = _link(
            case,
            hosts,
            gpus,
            one,
            two,
        )
        wrong = bool(event.data.wrong)
        made.append(
            PeerAccess(
                one,
                two,
                event.data.way,
                path,
                own,
                wrong,
                event.data.problem,
                event,
            )
        )
    return tuple(made)


def _due_pairs(phases: Iterable[Event[WorkerPhase]]) -> set[tuple[int, int]]:
    """The pairs that began a test together, the lower rank first."""
    peers = {}
    for event in phases:
        if event.data.phase == "pairs":
            peers[event.rank] = event.data.peer
    due = set()
    for a, b in peers.items():
        if isinstance(a, int) and isinstance(b, int):
            due.add((min(a, b), max(a, b)))
    return due


def _gpus(case: Case, phases: Iterable[Event], ranks: int) -> dict[int, int]:
    """rank → its GPU as nvidia-smi counts them.

    It is the one that it names itself on simulated hosts, else its own number.
    """
    simulated = {}
    for event in phases:
        if event.data.phase == "simulate":
            simulated[event.rank] = event.data.gpu
    own = {}
    for rank, gpu in simulated.items():
        if isinstance(gpu, int) and 0 <= gpu < MOST:
            own[rank] = gpu
    places = {rank: own.get(rank, rank) for rank in range(ranks)}
    known = chosen_gpus(
        {fact.name: fact.value for fact in case.facts}, max(places.values(), default=0) + 1
    )
    return {rank: known[place] for rank, place in places.items()}


def _link(case: Case, hosts: Mapping[Any, str], gpus: Mapping[int, int], a: int, b: int) -> str:
    if hosts.get(a) != hosts.get(b):
        return "network"
    if not gpus:
        return HOST
    matrix = case.fact("gpu.topology") or {}
    cell = str(matrix.get(f"GPU{gpus.get(a)}", {}).get(f"GPU{gpus.get(b)}", ""))
    # facts may come from a file that anybody has written
    if re.fullmatch(r"[A-Z]{3,4}|NV\d+", cell):
        return cell
    return "an unknown way"
