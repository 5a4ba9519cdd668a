"""Whether the nodes of a job work with each other: who is named, and who is not."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import gang, gang_verdict
from ncclkit.agent.gang_verdict import PairResult
from tests.live.slurm_cluster import free_ports
from tests.processes import leftovers

ROOT = Path(__file__).parents[2]
FAST = PairResult(True, 10e9)
FAILS = PairResult(False, why="no answer within 6 s")


def pairs(count: int, *changed: tuple[Any, PairResult]) -> dict[gang_verdict.Pair, PairResult]:
    """All pairs of a gang that work, but those for which a test holds."""
    found = {}
    for pair in itertools.combinations(range(count), 2):
        found[pair] = next((result for test, result in changed if test(pair)), FAST)
    return found


def with_node(number: int) -> Any:
    return lambda pair: number in pair


def only(*pair: int) -> Any:
    return lambda other: other == pair


def judged(results: dict[gang_verdict.Pair, PairResult], **more: Any) -> dict[str, Any]:
    count = 1 + max(node for pair in results for node in pair)
    given = {"absent": {}, "together": FAST, "untried": 0} | more
    return gang_verdict.verdict({node: f"n{node}" for node in range(count)}, results=results, **given)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 16, 17])
def test_every_pair_comes_once_and_no_node_twice_in_a_round(count: int) -> None:
    rounds = gang_verdict.rounds_of(range(count))
    tried = [pair for pairs in rounds for pair in pairs]
    assert sorted(tried) == [*itertools.combinations(range(count), 2)]
    for each in rounds:
        nodes = [node for pair in each for node in pair]
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize(
    ("results", "status", "bad"),
    [
        (pairs(4), 0, []),
        (pairs(4, (with_node(2), FAILS)), 1, ["n2"]),
        (pairs(8, (with_node(2), FAILS), (with_node(5), FAILS)), 1, ["n2", "n5"]),
        (pairs(3, (with_node(0), FAILS)), 1, ["n0"]),
        # one path is bad: nobody knows at which end
        (pairs(4, (only(1, 3), FAILS)), 2, []),
        (pairs(2, (only(0, 1), FAILS)), 2, []),
        # everything is bad: that is no matter of a node
        (pairs(4, (lambda pair: True, FAILS)), 2, []),
        # on a busy host several healthy pairs are late
        (pairs(6, (only(0, 1), FAILS), (only(0, 2), FAILS), (only(0, 3), FAILS)), 2, []),
        (pairs(6, (lambda pair: 0 in pair and 5 not in pair, FAILS)), 1, ["n0"]),
        (pairs(5, (only(0, 1), FAILS), (only(0, 2), FAILS)), 2, []),
        (pairs(5, (with_node(4), PairResult(True, 1e9))), 1, ["n4"]),
        (pairs(5, (only(3, 4), PairResult(True, 1e9))), 0, []),
        (pairs(5, (lambda pair: pair[0] % 2 == 0, PairResult(True, 4e9))), 0, []),
    ],
)
def test_a_node_is_named_only_where_its_partners_work_with_others(
    results: dict[gang_verdict.Pair, PairResult], status: int, bad: list[str]
) -> None:
    said = judged(results)
    assert (said["status"], said["bad"], said["exclude"]) == (status, bad, ",".join(bad)), said["say"]
    assert set(said["good"]) == {f"n{node}" for node in range(1 + max(max(p) for p in results))} - set(bad)


def test_what_was_not_tried_is_said_and_a_failure_of_all_names_nobody() -> None:
    said = judged(pairs(4), together=None)
    assert said["status"] == 2 and "were not tried together" in said["say"]
    said = judged(pairs(4), together=PairResult(False, why="timed out"))
    assert said["status"] == 2 and said["bad"] == [] and "all others together fail (timed out)" in said["say"]
    said = judged(pairs(4), untried=3)
    assert said["status"] == 0 and "3 pairs were not tried" in said["say"]


@pytest.mark.parametrize(
    "words",
    [
        ["--nodes", "1", "--number", "0"],
        ["--nodes", "4", "--number", "4"],
        ["--nodes", "4"],
        ["--nodes", "4", "--number", "0", "--master", "-oProxyCommand=id"],
        ["--nodes", "4", "--number", "0", "--port", "22"],
        ["--seconds", "nan", "--nodes", "4", "--number", "0"],
        ["--help"],
    ],
)
def test_words_that_nobody_meant_could_not_tell(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "n1")
    monkeypatch.setenv("PATH", "/none")
    assert gang.main(words) == 2


def test_what_launchers_and_kubernetes_say_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    parsed = gang._parse_options(["--nodes", "4", "--master", "job-0.job"])
    assert (parsed.number, parsed.nodes, parsed.master) == (3, 4, "job-0.job")
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    parsed = gang._parse_options(["--master", "n1"])
    assert (parsed.number, parsed.nodes) == (1, 2)


def nodes_here(count: int, fault: str, seconds: int = 40) -> tuple[dict[str, Any], list[int]]:
    """A gang of so many nodes on this host: the verdict, and the exit status of each node."""
    port = free_ports(1)[0] & ~1
    command = [sys.executable, "-m", "tests.live.gang_nodes", str(count), str(port), str(seconds), fault]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GLOO_", "SLURM_"))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    said, statuses = done.stdout.splitlines()
    return json.loads(said), json.loads(statuses)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("none", "all 5 nodes work in pairs and together"),
        ("hung", "n3 fails with 3 of 3 other nodes, which work with others (no answer within"),
        ("stopped", "n3 fails with 3 of 3 other nodes"),
        ("wrong", "n3 fails with"),
        ("died", "n3 was lost"),
        ("no torch", "n3 cannot take part: "),
        ("absent", "node 3 did not come within the time"),
    ],
)
def test_the_bad_node_is_named_and_all_others_hear_of_it(fault: str, why: str) -> None:
    """Over gloo, with no variable that names an interface."""
    said, statuses = nodes_here(5, fault)
    assert why in said["say"], said
    expected = 0 if fault == "none" else 1
    assert said["status"] == expected and said["ready"] is (not expected)
    assert [status for number, status in enumerate(statuses) if number != 3] == [expected] * 4
    assert said["good"] == [f"n{number}" for number in range(5) if number != 3 or fault == "none"]
    assert leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["none", "hung"])
def test_a_gang_of_sixteen_has_a_verdict_within_its_minute(fault: str) -> None:
    said, statuses = nodes_here(16, fault, seconds=60)
    expected = 0 if fault == "none" else 1
    assert said["status"] == expected and said["ready"] is (not expected), said
    # of node 3, which hangs, nobody knows
    assert [status for number, status in enumerate(statuses) if number != 3] == [expected] * 15
    assert said["seconds"] <= 62 and said["bad"] == ([] if fault == "none" else ["n3"]), said


def test_strangers_at_the_port_are_sent_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = gang._Gang(2, server)
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"[]", b'{"number": 9, "job": "0"}', b'{"number": "0", "job": "0"}', b""):
            with socket.create_connection(server.getsockname()) as stranger:
                taken = server.accept()[0]
                taken.setblocking(False)
                stranger.sendall(text)
                stranger.shutdown(socket.SHUT_WR)
                made._welcome(taken)
        assert made.members == {}
        made.meet(0.0)
        assert made.absent == dict.fromkeys(range(2), "did not come within the time")
