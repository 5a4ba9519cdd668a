"""Whom the stages of the live test name, for the causes that could explain it."""

from __future__ import annotations

from dataclasses import dataclass

from ncclkit.analysis.bisection import Blamed
from ncclkit.analysis.picks import pick
from ncclkit.analysis.stages import StagedTest, staged_test
from ncclkit.core.case import Case
from ncclkit.core.kinds import StageRank, WorkerPhase
from ncclkit.core.model import Evidence, Strength


@dataclass(frozen=True, slots=True)
class FaultyRanks:
    """Ranks that are not like the others, and what shows it."""

    summary: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """Nodes that have the fault, where it is one between nodes."""
    why: tuple[Evidence, ...]
    strength: Strength
    slow: bool
    """Whether it is slow; otherwise it fails."""
    alone: bool
    """Whether it does so with nobody else taking part."""
    between: bool
    """Whether it needs two nodes."""
    gpus: bool


def faulty_ranks(case: Case) -> FaultyRanks | None:
    """What the last live test's stages say of ranks or pairs.

    They speak of ranks together, or of slow pairs; None where they blame nobody.
    """
    staged = staged_test(case)
    gpus = any(event.data.nccl for event in case.of(WorkerPhase))
    if staged.corrupt:
        return _corrupting_ranks(case, staged, gpus)
    if staged.tried:
        return _from_bisection(staged, gpus)
    return _slow_ranks(case, staged, gpus)


def _corrupting_ranks(case: Case, staged: StagedTest, gpus: bool) -> FaultyRanks:
    """Ranks whose own memory gave other bytes than were copied in.

    What they exchange cannot be right either.
    """
    wrong, right = (
        [e for e in case.of(StageRank) if bool(e.data.wrong) == bad] for bad in (True, False)
    )
    ranks = tuple(sorted(staged.corrupt))
    return FaultyRanks(
        f"{staged.summary}.", ranks, (), pick(wrong, right[:2]), "likely", False, True, False, gpus
    )


def _from_bisection(staged: StagedTest, gpus: bool) -> FaultyRanks | None:
    state, tried = staged.bisected, staged.tried
    one = next(iter(state.found), Blamed("", state.among, state.among) if state.ask else None)
    if one is None or not staged.failing or one.what == "together":
        return None
    if not one.what and len(one.within) == staged.ranks:  # nothing is known but that it fails
        return None
    bad = [group.event for group in sorted(tried, key=lambda group: len(group.ranks)) if group.bad]
    events = []
    for group in tried:
        if not group.bad:
            events.append(group.event)
    why = pick(bad[:4], events, limit=7)
    nodes = []
    for host, ranks in staged.nodes.items():
        if set(ranks) & set(one.within):
            nodes.append(host)
    between = len(nodes) > 1
    # what fails by itself needs no path to fail
    alone = one.what in ("rank", "node")
    if len(staged.nodes) > 1:
        hosts = tuple(host for host in nodes if set(staged.nodes[host]) & set(one.ranks))
    else:
        hosts = ()
    # several faults at once may hide each other's culprits
    sure = one.what in ("rank", "node", "interaction", "path") and len(state.found) == 1
    strength: Strength = "possible"
    if sure:
        strength = "likely"
    slow = staged.symptom[0] == "is slow"
    return FaultyRanks(
        f"{staged.summary}.", one.ranks, hosts, why, strength, slow, alone, between, gpus
    )


def _slow_ranks(case: Case, staged: StagedTest, gpus: bool) -> FaultyRanks | None:
    slow = []
    for pair in staged.pairs:
        if pair.slow and not pair.wrong:
            slow.append(pair)
    if not slow and not staged.slow_ranks:
        return None
    ranks = sorted({*staged.suspects, *staged.slow_ranks}) or sorted(
        {rank for pair in slow for rank in (pair.a, pair.b)}
    )
    alone = []
    for event in case.of(StageRank):
        if event.rank in staged.slow_ranks:
            alone.append(event)
    others = []
    for pair in staged.pairs:
        if not pair.slow and pair.event:
            others.append(pair.event)
    events = []
    for pair in slow:
        if pair.event:
            events.append(pair.event)
    why = pick(events, alone, others[:2], limit=6)
    # a rank that is slow alone slows its pairs on any path
    between = not staged.slow_ranks and all(pair.path == "network" for pair in slow)
    if between:
        hosts = tuple(host for host, mine in staged.nodes.items() if set(mine) & set(ranks))
    else:
        hosts = ()
    return FaultyRanks(
        f"{staged.summary}.", tuple(ranks), hosts, why, "likely", True, not slow, between, gpus
    )
