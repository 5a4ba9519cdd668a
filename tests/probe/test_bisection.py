"""Narrowing down: whatever it takes to fail is found, with few questions, and nobody else is named."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.agent.run.stages import (
    groups_by_stage,
    ranks_by_node,
    ranks_of,
    rounds_between_nodes,
    rounds_within_nodes,
    spans,
)
from ncclkit.analysis.bisection import Bisected, Blamed, bisect_ranks, describe
from ncclkit.analysis.stages import staged_test
from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.core.runs import Plan, Run
from ncclkit.live import probe
from ncclkit.live.launch import slurm
from ncclkit.views._form import Progress

Fails = Callable[[set[int]], bool]
Nodes = Sequence[Sequence[int]]
FOUR: Nodes = [range(4)]
HOSTS: Nodes = [[0], [1], [2], [3]]
PAIRS: Nodes = [[0, 1], [2, 3]]
MANY: Nodes = [range(8 * node, 8 * node + 8) for node in range(16)]
FIFTH = set(range(40, 48))


def asked(nodes: Nodes, fails: Fails, hints: Sequence[tuple[int, ...]] = (), well: Any = ()) -> tuple[Bisected, int]:
    """The verdict, and in how many rounds of disjoint groups it was reached."""
    bad, rounds = {frozenset(group): False for group in well}, 0
    while (state := bisect_ranks(nodes, bad, hints)).ask:
        groups = probe.concurrent_groups(state.ask)
        bad |= {frozenset(group): fails(set(group)) for group in groups}
        rounds += 1
    return state, rounds


CASES: dict[str, tuple[Nodes, Fails, Blamed | None, int]] = {
    "a rank": (FOUR, lambda g: 2 in g, Blamed("rank", (2,), (2,)), 4),
    "a rank among three": (FOUR, lambda g: 1 in g and len(g) > 2, Blamed("interaction", (1,), (1, 2, 3)), 8),
    "two ranks": (FOUR, lambda g: {1, 2} <= g, Blamed("path", (1, 2), (1, 2)), 6),
    "all four": (FOUR, lambda g: len(g) > 3, Blamed("together", (0, 1, 2, 3), (0, 1, 2, 3)), 8),
    "one of two": ([[0, 1]], lambda g: 1 in g, Blamed("rank", (1,), (1,)), 3),
    "both of two": ([[0, 1]], lambda g: len(g) > 1, Blamed("pair", (0, 1), (0, 1)), 2),
    "nothing": (FOUR, lambda g: False, None, 1),
    "a host's network": (HOSTS, lambda g: 3 in g and len(g) > 1, Blamed("interaction", (3,), (2, 3)), 5),
    "the path between hosts": (HOSTS, lambda g: {1, 2} <= g, Blamed("path", (1, 2), (1, 2)), 6),
    "between two hosts": (
        PAIRS,
        lambda g: bool(g & {0, 1}) and bool(g & {2, 3}),
        Blamed("pair", (0, 1, 2, 3), (0, 1, 2, 3)),
        5,
    ),
    "a rank among three on two hosts": (
        PAIRS,
        lambda g: 1 in g and len(g) > 2,
        Blamed("interaction", (1,), (1, 2, 3)),
        9,
    ),
    "a NIC of two hosts": (
        [range(8), range(8, 16)],
        lambda g: 11 in g and bool(g & set(range(8))),
        Blamed("interaction", (11,), (3, 11)),
        5,
    ),
    "a rank of a node": (MANY, lambda g: 77 in g, Blamed("rank", (77,), (77,)), 9),
    "a node's network": (
        MANY,
        lambda g: bool(g & FIFTH) and bool(g - FIFTH),
        Blamed("interaction", tuple(sorted(FIFTH)), tuple(range(32, 48))),
        8,
    ),
    "a NIC": (MANY, lambda g: 43 in g and bool(g - FIFTH), Blamed("interaction", (43,), (35, 43)), 8),
}
"""What it takes to fail → whom that names, and in how many rounds at most."""


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_failing_group_is_found(name: str) -> None:
    nodes, fails, wanted, most = CASES[name]
    state, rounds = asked(nodes, fails)
    assert state.found == ((wanted,) if wanted else ()) and state.passing == (wanted is None)
    assert rounds <= most


def test_whoever_is_left_was_seen_to_work() -> None:
    state, _ = asked(MANY, lambda g: 77 in g or 3 in g)
    assert [one.ranks for one in state.found] == [(3,), (77,)]
    assert set(state.rest) == set(range(128)) - {3, 77}
    assert asked(FOUR, lambda g: True)[0].rest == ()


def test_a_pair_that_was_silent_is_asked_first() -> None:
    state, rounds = asked([range(8)], lambda g: {1, 2} <= g, hints=[(1, 2), (0, 3)])
    assert state.found == (Blamed("path", (1, 2), (1, 2)),) and rounds == 4
    blamed, _ = asked([range(8)], lambda g: 2 in g and len(g) > 1, hints=[(1, 2), (0, 3)])
    assert blamed.found == (Blamed("interaction", (2,), (1, 2)),)
    assert asked([range(8)], lambda g: False, hints=[(1, 2)])[0].passing


def test_a_pair_of_two_nodes_leads_to_the_nodes() -> None:
    fails = CASES["between two hosts"][1]
    state, _ = asked(PAIRS, fails, hints=[(0, 2), (1, 3)])
    assert state.found == (Blamed("pair", (0, 1, 2, 3), (0, 1, 2, 3)),) and state.rest == (0, 1)
    node, _ = asked(MANY, CASES["a node's network"][1], hints=[(rank, rank + 8) for rank in range(32, 40)])
    assert node.found[0].ranks == tuple(sorted(FIFTH))


def test_the_two_nodes_stand_where_there_is_no_time_for_the_rank() -> None:
    bad = {frozenset(range(4)): True, frozenset({0, 1}): False, frozenset({2, 3}): False}
    bad |= {frozenset(rail): False for rail in ((0, 2), (1, 3))}
    state = bisect_ranks(PAIRS, bad)
    assert state.found == (Blamed("pair", (0, 1, 2, 3), (0, 1, 2, 3)),) and state.ask
    said = describe(state, lambda ranks: f"ranks {sorted(ranks)}", ("is slow", "are slow"), 4)
    assert said.startswith("ranks [0, 1, 2, 3] are slow with each other") and "narrowed down no further" in said


def test_what_the_stages_have_shown_is_not_asked_again() -> None:
    pairs = [*combinations(range(4), 2), *((rank,) for rank in range(4))]
    _, rounds = asked(FOUR, lambda g: 1 in g and len(g) > 2, well=pairs)
    assert rounds == 5


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("nodes", (FOUR, HOSTS, PAIRS, [range(7)], [range(3), range(3, 6), range(6, 9)]))
def test_what_is_named_is_needed_and_without_it_the_rest_works(nodes: Nodes, size: int) -> None:
    """Any set of ranks that fail as soon as they are all there, the size of the group being of no matter."""
    for faulty in combinations([rank for node in nodes for rank in node], size):
        state, _ = asked(nodes, lambda g, faulty=faulty: set(faulty) <= g)  # type: ignore[misc]
        first = state.found[0]
        assert set(faulty) <= set(first.within) or set(first.ranks) & set(faulty)
        assert not set(faulty) <= set(state.rest) and (state.rest or first.what == "together")


def test_the_stages_of_many_nodes() -> None:
    nodes = ranks_by_node(8, 4, 2)
    assert nodes == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks_by_node(3, 3, 2) == [[0, 1], [2]] and ranks_by_node(2, 2, 1) == [[0, 1]]
    assert rounds_within_nodes(nodes) == [[(0, 1), (2, 3), (4, 5), (6, 7)]]
    assert sorted(pair for pairs in rounds_between_nodes(nodes) for pair in pairs) == [
        *((0, 2), (0, 4), (0, 6), (1, 3), (1, 5), (1, 7)),
        *((2, 4), (2, 6), (3, 5), (3, 7), (4, 6), (5, 7)),
    ]
    assert [(stage, len(groups)) for stage, groups in groups_by_stage(nodes)] == [("node", 4), ("nodes", 2), ("all", 1)]
    assert [stage for stage, _ in groups_by_stage([[0], [1], [2]])] == ["nodes", "all"]
    assert groups_by_stage([[0, 1]]) == [("all", [[0, 1]])] and rounds_between_nodes([[0, 1]]) == []


def test_ranks_travel_in_few_letters() -> None:
    for ranks in ([3], [0, 1, 2, 3], [0, 2, 3, 9], list(range(1024))):
        assert ranks_of(spans(ranks)) == ranks
    assert spans(range(1024)) == "0-1023"
    for torn in ("", "x", "3-", "-", "0-99999999"):
        with pytest.raises(ValueError):
            ranks_of(torn)


def plan(ranks: int, deadline: float) -> Plan:
    argv = ("collective", "--backend", "gloo", "--sizes", "8", "--timeout", "20", "--stages")
    return Plan("all_reduce", argv, ranks, "gloo", "python", deadline)


def broken_off(case: Case, ranks: int, hosts: int, deadline: float = 100.0) -> Run:
    """A run with stages that failed before its first stage."""
    folder = case.new_run("all_reduce")
    lines: list[dict[str, Any]] = [
        {"kind": "phase", "phase": "hello", "rank": rank, "host": f"node-{rank * hosts // ranks + 1}", "pid": 7 + rank}
        for rank in range(ranks)
    ]
    (folder / "wire.jsonl").write_text("".join(json.dumps({"ncclkit": 1, "t": 1.0, **line}) + "\n" for line in lines))
    (folder / "plan.json").write_text(json.dumps({"ranks": ranks, "argv": ["collective"]}))
    (folder / "status.json").write_text(json.dumps({"reason": "failed", "exitcode": 1, "say": "", "started": 1}))
    case.add(evidence.read([folder]).events)
    return Run(plan(ranks, deadline), folder, "failed", 1.0)


class Ranks:
    """A launcher whose ranks fail in the groups that `fails` says; those of `dies` end without a word, and take along
    whoever else was started with them.  Of some jobs no rank begins.
    """

    def __init__(
        self, fails: Fails, dies: Fails = lambda group: False, ends: str = "done", begins: bool = True
    ) -> None:
        self.fails, self.dies, self.ends, self.starts = fails, dies, ends, list[list[list[int]]]()
        self.hellos = [{"kind": "phase", "phase": "hello", "rank": 0}] if begins else []

    async def __call__(self, plan: Plan, folder: Path, keep: probe.OnRecord) -> list[dict[str, Any]]:
        groups = [ranks_of(text) for text in plan.argv[plan.argv.index("--groups") + 1].split("/")]
        self.starts.append(groups)
        assert folder.is_dir() and plan.ranks == 4
        end = {"kind": "end", "reason": self.ends}
        if any(self.dies(set(group)) for group in groups):
            return [*self.hellos, end]
        if self.ends == "deadline":
            keep({"ncclkit": 1, "kind": "ending", "t": 2.0, "reason": "deadline"})
        for group in groups:
            problem = "RuntimeError: timed out" if self.fails(set(group)) else ""
            told = {"stage": "bisect", "ranks": spans(group), "bytes": 8, "wrong": 0, "problem": problem}
            speed = {"busbw": None if problem else 0.5, "latency_us": None if problem else 9.0}
            keep({"ncclkit": 1, "kind": "stage.group", "t": 2.0, "rank": group[0], **told, **speed})
        return [end]


SAYS: dict[str, tuple[Ranks, str]] = {
    "way": (
        Ranks(lambda g: {1, 2} <= g),
        "node-2 (rank 1) and node-3 (rank 2) fail with each other, and each works with others: the path from one to "
        "the other; the other 3 work without node-3 (rank 2)",
    ),
    "killed": (
        Ranks(lambda g: False, lambda g: 3 in g and len(g) > 1),
        "node-4 (rank 3) fails only with others, already with node-3 (rank 2), and works alone; "
        "the other 3 work without it",
    ),
    "passing": (
        Ranks(lambda g: False),
        "All 4 ranks were started anew, and none of them fails now: the trouble comes and goes",
    ),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_run_that_broke_off_is_bisected(tmp_path: Path, name: str) -> None:
    case, (launch, says) = Case.open(tmp_path), SAYS[name]
    told: list[dict[str, Any]] = []
    found = asyncio.run(probe.bisect(case, broken_off(case, 4, 4), launch, told.append))
    assert found.summary == says == staged_test(Case.open(tmp_path)).summary
    assert [record["number"] for record in told] == list(range(1, len(launch.starts) + 1))
    progress = Progress(4)
    progress.take(told[0])
    assert progress.words() == told[0]["say"]


def test_without_time_it_says_how_far_it_came(tmp_path: Path) -> None:
    case, launch = Case.open(tmp_path), Ranks(lambda g: True)
    found = asyncio.run(probe.bisect(case, broken_off(case, 4, 1, deadline=2.0), launch))
    assert launch.starts == [] and found.bisected.ask == ((0, 1, 2, 3),) and not found.tried


@pytest.mark.parametrize(
    "launch",
    [
        Ranks(lambda g: True, lambda g: True, ends="deadline"),
        Ranks(lambda g: True, ends="deadline"),
        Ranks(lambda g: True, lambda g: True, begins=False),
    ],
    ids=["silent", "ended", "never started"],
)
def test_ranks_that_were_ended_before_they_answered_are_not_blamed(tmp_path: Path, launch: Ranks) -> None:
    """Slow to start is not at fault, nor is a host that starts nothing; who waits for one that is ended, fails, too."""
    case = Case.open(tmp_path)
    found = asyncio.run(probe.bisect(case, broken_off(case, 4, 1), launch))
    assert len(launch.starts) == 1 and not found.tried and not found.bisected.found


def test_a_node_that_never_began_is_named(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    run = broken_off(case, 1, 1)
    slurm._absent(run.folder, [{"phase": "node", "number": number} for number in (0, 2, 3)], ["n1", "n2", "n3", "n4"])
    case.add(evidence.read([run.folder / "wire.jsonl"]).events)
    assert staged_test(case).summary == "n2 never began, and the ranks of the other nodes timed out waiting"


TASKS = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({}, []),
        ({"SLURM_GPUS_PER_TASK": "1"}, ["--gpus-per-node=4"]),
        ({"SLURM_GPUS_PER_TASK": "h100:2", "SLURM_NTASKS": "2"}, ["--gpus-per-node=2"]),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_JOB_GPUS": "0,1,2", "SLURM_NTASKS": "1"}, ["--gpus-per-node=3"]),
    ],
)
def test_one_task_of_a_node_gets_what_the_job_has_there(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], gpus: list[str]
) -> None:
    """As seen with Slurm 22.05: else a job of a task for each GPU gives our task one GPU of each node."""
    for name, value in (TASKS | asked).items():
        monkeypatch.setenv(name, value)
    words = slurm.srun_once_per_node()
    assert [word for word in words if "gpus" in word] == gpus
    assert words[words.index("--ntasks") + 1] == "2" and "SLURM_GPUS_PER_TASK" in words[: words.index("srun")]


def test_nodes_that_differ_get_as_many_ranks_each_as_the_one_with_the_fewest_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the nodes of this allocation, as the case may hold others and the login node, too."""

    async def names() -> list[str]:
        return ["n1", "n2"]

    for name, value in TASKS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm, "node_names", names)
    case, gpus = Case(), {"n1.cluster": 8, "n2.cluster": 4, "n3.cluster": 2, "login": 0}
    case.facts = [Fact("software.torch.gpus", count, host=host) for host, count in gpus.items()]
    case.facts += [Fact("software.executable", sys.executable, host=host) for host in gpus]
    plan = asyncio.run(probe.plan_test(case))
    assert (plan.ranks, plan.backend) == (8, "nccl")
