"""What ranks decide by themselves, groups that block each other, servers without work, timeouts that miss a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from tests.cases import case_of, judged_log
from tests.views.records import event_of


def hung(rank: int, seq: int, op: str, *, ms: int = 600_000, group: str = "", desc: str = "default_pg") -> str:
    who = f"[PG ID {group} PG GUID {group}({desc}) Rank {rank}]" if group else f"[Rank {rank}]"
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1024, NumelOut=1024, Timeout(ms)={ms})"
    return (
        f"[rank{rank}]:[E1121 00:28:00.1 ProcessGroupNCCL.cpp:632] {who} Watchdog caught collective operation timeout: "
        f"{work} ran for {ms + 12} milliseconds before timing out.\n"
    )


def entry(rank: int, group: str, desc: str, seq: int, op: str) -> str:
    return (
        f"[rank{rank}] {{'record_id': 41, 'process_group': ('{group}', '{desc}'), 'collective_seq_id': {seq}, "
        f"'profiling_name': 'nccl:{op}', 'input_sizes': [[1024]], 'state': 'started'}}\n"
    )


OTHERS = "".join(hung(rank, 91, "ALLREDUCE") for rank in (0, 1, 3))


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: batch is empty, skipping step",
        "time limit of this rank reached, saving checkpoint and stopping",
        "cache hit for shard 7, skipping preprocessing barrier",
        "text-only batch, vision tower not called",
        "no images in this batch",
        "wall-clock budget used up, leaving the loop",
        "returning early: no valid tokens",
        "StopIteration caught, breaking out of loop at step 811",
        "nothing to do on this rank, exit(0)",
        "INFO training finished, exiting with code 0",
        'Traceback (most recent call last):\n[rank2]:   File "/app/train.py", line 7, in main\n[rank2]:     exit(0)\n'
        "[rank2]: SystemExit: 0",
    ],
)
def test_a_rank_that_decided_alone_is_named(line: str, tmp_path: Path) -> None:
    first = judged_log(tmp_path, f"[rank2]: {line}\n{OTHERS}").findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "likely", (2,))


def test_a_process_that_its_launcher_saw_end_well_has_left(tmp_path: Path) -> None:
    text = "[2026-11-21 00:28:00] local_rank: 1 process exited with code 0\n" + hung(0, 40, "ALLREDUCE")
    first = judged_log(tmp_path, text).findings[0]
    assert (first.cause, first.strength) == ("rank_divergence", "likely")


def test_two_groups_at_one_number_are_a_decision_of_one_rank(tmp_path: Path) -> None:
    text = hung(0, 88, "ALLREDUCE", group="0") + hung(1, 88, "_ALLGATHER_BASE", group="1", desc="tp")
    first = judged_log(tmp_path, text).findings[0]
    assert (first.cause, first.strength) == ("rank_divergence", "likely") and "tp" in first.say


BOTH = [(rank, *call) for rank in range(4) for call in (("0", "default_pg", 40), ("1", "ep", 12))]


@pytest.mark.parametrize("printed", [False, True])
def test_collectives_of_two_groups_that_started_everywhere(printed: bool, tmp_path: Path) -> None:
    if printed:
        text = "".join(entry(rank, group, desc, seq, "all_reduce") for rank, group, desc, seq in BOTH)
    else:
        text = "".join(hung(rank, seq, "ALLREDUCE", group=group, desc=desc) for rank, group, desc, seq in BOTH)
    first = judged_log(tmp_path, text).findings[0]
    assert (first.cause, first.strength) == ("concurrent_comms", "likely")


def test_a_gpu_that_still_computes_before_the_collective(tmp_path: Path) -> None:
    rows = [entry(rank, "0", "default_pg", 40, "all_reduce") for rank in range(4)]
    rows[2] = rows[2].replace("started", "scheduled")
    first = judged_log(tmp_path, "".join(rows)).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "likely", (2,))
    assert "had launched, but its GPU had not begun," in first.say
    states = {"0": "started", "1": "started", "2": "scheduled", "3": "started"}
    stuck = event_of(
        "flight.stuck", "40", group="0", desc="", seq=40, op="all_reduce", ranks=[0, 1, 2, 3], root="", holds=[],
        states=states,
    )  # fmt: skip
    first = diagnose(case_of([stuck])).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("slow_rank", (2,))


def test_a_rank_that_is_missing_from_one_group_is_no_conflict_of_groups(tmp_path: Path) -> None:
    text = "".join(hung(r, seq, "ALLREDUCE", group=g, desc=desc) for r, g, desc, seq in BOTH if (r, g) != (3, "1"))
    assert judged_log(tmp_path, text).findings[0].cause != "concurrent_comms"


@pytest.mark.parametrize("state", ["started", "completed"])
def test_dumps_of_two_groups(state: str) -> None:
    rows = [("0", "default_pg", 40), ("1", "ep", 12)]
    events = [
        event_of("flight.stuck", f"{desc} {seq}", group=group, desc=desc, seq=seq, op="all_reduce", ranks=[0, 1],
             root="", holds=[], states={"0": "started", "1": state})
        for group, desc, seq in rows
    ]  # fmt: skip
    found = {f.cause: f for f in diagnose(case_of(events)).findings}
    assert ("concurrent_comms" in found) == (state == "started")


IDLE = "INFO 11-21 00:28:10 metrics.py:460] Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs\n"


@pytest.mark.parametrize(
    "line", [IDLE, "[2026-11-21 00:00:10 TP0] The server is fired up and ready to roll!\n", "waiting for requests\n"]
)
def test_an_idle_server_is_not_stuck(line: str, tmp_path: Path) -> None:
    workers = "".join(hung(rank, 712, "BROADCAST") for rank in (1, 2, 3))
    assert judged_log(tmp_path, line + workers).findings[0].cause == "timeout_too_short"
    busy = "".join(hung(rank, 712, "ALLREDUCE") for rank in (1, 2, 3))
    assert judged_log(tmp_path, line + busy).findings[0].cause == "slow_rank"


@pytest.mark.parametrize(
    "line",
    [
        hung(0, 3, "ALLREDUCE", ms=7_200_000, group="0"),
        "ddp_timeout=18000\n",
        "init_process_group('nccl', timeout=datetime.timedelta(seconds=7200))\n",
        "[rank0]: ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 7200000, X: 0\n",
    ],
)
def test_a_raised_timeout_that_does_not_reach_a_group(line: str, tmp_path: Path) -> None:
    first = judged_log(tmp_path, line + hung(1, 3, "BROADCAST", group="1", desc="tp")).findings[0]
    assert (first.cause, first.strength) == ("timeout_too_short", "likely") and "group tp" in first.say


@pytest.mark.parametrize(
    "text",
    [
        "W1121 00:28:00.1 4700 api.py:704] Received 1 death signal, shutting down workers\n",
        "W1121 00:28:00.1 4700 api.py:900] Sending process 4711 closing signal SIGHUP\n",
        "run.sh: line 3: 4711 Hangup                  python train.py\n",
        "epoch 1\nHangup\n",
    ],
)
def test_a_closed_terminal(text: str, tmp_path: Path) -> None:
    first = judged_log(tmp_path, text).findings[0]
    assert (first.cause, first.strength) == ("rank_killed", "likely") and "SIGHUP" in first.say


def test_a_file_that_one_node_does_not_see(tmp_path: Path) -> None:
    text = "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/scratch/ckpt/step_100.pt'\n"
    first = judged_log(tmp_path, text + hung(0, 3, "BROADCAST")).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("rank_exception", (1,))
