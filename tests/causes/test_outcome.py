"""Healthy, broken, or "cannot tell": what is not wrong is judged as strictly as what is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclkit.analysis.complaints import says_complaint, says_failure
from ncclkit.causes.diagnosis import Diagnosis
from tests.cases import judged_log, judged_text

WELL = Path(__file__).parents[1] / "healthy"
SHARED = Path(__file__).parents[2].parent / "shared" / "healthy"
LOGS = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(WELL.glob("*.json"))]
RUNS = Path(__file__).parents[1] / "healthy_runs"
"""Recorded by tests/record/healthy_runs.py: on two H200, with NCCL 2.32 over sockets on one, and
servers over gloo here; most logs end before the job says that it ends."""
RECORDED = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RUNS.glob("*.json"))]
NOT_BROKEN = [log for log in LOGS if log["state"] != "broken"]


def named(log: dict[str, Any]) -> str:
    return str(log["id"])


def verdict_on(log: dict[str, Any], folder: Path) -> Diagnosis:
    return judged_log(folder, log["log"])


@pytest.mark.parametrize("log", NOT_BROKEN, ids=named)
def test_nothing_is_found_where_nothing_broke(log: dict[str, Any], tmp_path: Path) -> None:
    result = verdict_on(log, tmp_path)
    assert [(finding.cause, finding.say) for finding in result.findings] == []


@pytest.mark.parametrize("log", RECORDED, ids=named)
@pytest.mark.parametrize("lines", [0, 50], ids=["whole", "its end"])
def test_recorded_jobs_that_succeeded_are_left_alone(
    log: dict[str, Any], lines: int, tmp_path: Path
) -> None:
    text = "".join(log["log"].splitlines(keepends=True)[-lines:])
    result = judged_log(tmp_path, text)
    assert (result.findings, result.verdict in ("healthy", "running")) == ((), True)


@pytest.mark.parametrize("log", [log for log in LOGS if log["state"] == "broken"], ids=named)
def test_no_broken_job_is_called_healthy(log: dict[str, Any], tmp_path: Path) -> None:
    assert verdict_on(log, tmp_path).verdict != "healthy"


def test_jobs_that_ended_well_are_called_healthy(tmp_path: Path) -> None:
    """Nine of ten; of the others nothing worse is said than that nothing is known."""
    ended = [log for log in LOGS if log["state"] == "ended well"]
    folders = [tmp_path / str(number) for number in range(len(ended))]
    for folder in folders:
        folder.mkdir()
    verdicts = [verdict_on(log, folder).verdict for log, folder in zip(ended, folders, strict=True)]
    assert verdicts.count("healthy") >= 0.9 * len(ended)
    assert set(verdicts) <= {"healthy", "running", "no_job"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the posted logs are not beside this checkout")
def test_posted_logs_of_good_runs_have_no_finding(tmp_path: Path) -> None:
    found = {}
    for file in sorted(SHARED.glob("*.json")):
        folder = tmp_path / file.stem
        folder.mkdir()
        result = verdict_on(json.loads(file.read_text(encoding="utf-8")), folder)
        found[file.stem] = [finding.cause for finding in result.findings]
    assert {name: causes for name, causes in found.items() if causes} == {}


STEPS = "".join(f"[rank{rank}]: step {n} loss 2.{n}\n" for n in range(1, 6) for rank in range(2))


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ("[rank0]: Training completed\n", "running"),
        ("[rank0]: Training completed\n[rank1]: Training completed\n", "healthy"),
        ("Training completed\n", "running"),
        ("[default] worker group successfully finished.\n", "healthy"),
        ("Job 'raysubmit_9x' submitted successfully\n", "running"),
        ("[launch.py:351:main] Process 11 exits successfully.\n", "running"),
        ("Process 11 exits successfully.\nProcess 12 exits successfully.\n", "healthy"),
        ("worker-1: return code: 137\n", "unexplained"),
        ("dashboard agent exited with exit code 0\n", "running"),
        ("4711.0 train COMPLETED 0:0\n4711 train FAILED 1:0\n", "unexplained"),
        ("", "running"),
    ],
)
def test_health_needs_the_end_of_every_rank_that_logged(
    end: str, verdict: str, tmp_path: Path
) -> None:
    assert judged_log(tmp_path, STEPS + end).verdict == verdict


def test_an_end_of_all_refutes_a_hang_but_not_slowness(tmp_path: Path) -> None:
    end = "[default] worker group successfully finished.\n"
    hang, slow = tmp_path / "hang", tmp_path / "slow"
    hang.mkdir()
    slow.mkdir()
    text = "I thought that it hangs in the first epoch\n" + STEPS + end
    assert judged_log(hang, text).verdict == "healthy"
    text = "It is much slower than it was last week\n" + STEPS + end
    assert judged_log(slow, text).verdict != "healthy"


def test_the_end_of_one_rank_refutes_no_hang(tmp_path: Path) -> None:
    text = (
        "Training hangs in the end, while calling dist.barrier()\nTraining completed for rank 6.\n"
    )
    assert judged_log(tmp_path, text).verdict == "unexplained"


def test_steps_of_others_do_not_bring_back_a_rank_that_was_ended(tmp_path: Path) -> None:
    text = "srun: error: n13: task 1: Terminated\n" + STEPS
    assert judged_log(tmp_path, text).verdict != "running"


def test_an_error_behind_a_clock_of_the_program_is_an_error(tmp_path: Path) -> None:
    """The kernel's stamp has six digits behind the point, and nobody's else has."""
    error = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    result = judged_log(tmp_path, f"[ 12.345] {error}")
    assert [finding.cause for finding in result.findings][:1] == ["cuda_error"]


def test_the_success_of_one_host_says_nothing_of_another_that_was_ended(tmp_path: Path) -> None:
    (tmp_path / "node0.log").write_text("[default] worker group successfully finished.\n")
    text = STEPS + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T10:00:00 ***\n"
    assert judged_log(tmp_path, text, "node1.log").verdict != "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "--max_restarts=0 --monitor_interval 5",
        "rdzv_configs     : {'rank': 1, 'timeout': 900}",
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "# Out of bounds values : 0 OK",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
        "test_timeout_kwarg (test_c10d.Test) ... ok",
        "[WARNING] [runner.py:232:fetch_hostfile] Unable to find hostfile, will proceed",
        "42 tests, 0 errors, 0 failed",
        "src/socket.cpp:131:5: error: 'timeout' was not declared in this scope",
        "    raise RuntimeError('loss is nan')",
    ],
)
def test_words_of_failure_that_report_none(line: str) -> None:
    assert not says_failure(line) and not says_complaint(line)


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "Segmentation fault (core dumped)",
        "RuntimeError: shape mismatch",
        "ERROR: could not open /data/shard-7",
        "2024-01-01 10:00:00 INFO worker 3 exited with code 137",
        "Command failed with exit code 1",
        "return code: 137",
        "1700000000 ERROR loader: could not open shard 7",
        "import error: libcudnn.so.9: cannot open shared object file",
        "{'train_loss': nan, 'epoch': 1.0}",
        "NET/IB : Got completion with status=IBV_WC_RETRY_EXC_ERR(12)",
    ],
)
def test_lines_that_report_a_failure(line: str) -> None:
    assert says_failure(line)


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        ("Training hangs in the end while calling dist.barrier()", True),
        ("I only get 1.1 GB/s between the nodes", True),
        ("busbw 42 GB/s, expected ~190", True),
        ("I ran the test on two nodes with this command", False),
        ("Using native 16bit precision.", False),
        ("8卡训练正常 单卡也正常", False),
        ("8卡训练到一半卡住了", True),
        ("INFO: waiting for the slow worker to join", False),
    ],
)
def test_what_people_complain_of(line: str, complains: bool) -> None:
    assert says_complaint(line) is complains


PREEMPTED = (
    "0: rank 0 of 16 up\n0: step 100 loss 2.3\n0: step 200 loss 2.2\n"
    "slurmstepd: error: *** JOB 4411 ON node01 CANCELLED AT 2025-04-01T10:00:00 DUE TO PREEMPTION ***\n"
)
WENT_ON = "0: resumed at step 200\n0: step 300 loss 2.1\n0: Training completed.\n"


@pytest.mark.parametrize(("more", "causes"), [("", ["rank_killed"]), (WENT_ON, [])])
def test_a_job_that_was_started_again_and_succeeded_was_not_killed(
    more: str, causes: list[str], tmp_path: Path
) -> None:
    result = judged_log(tmp_path, PREEMPTED + more)
    assert [finding.cause for finding in result.findings][:1] == causes


@pytest.mark.parametrize(
    "text",
    [
        "the text encoder is frozen, 123M trainable parameters\nstep 1/9 loss 2.1\nTraining done.\n",
        "step 10/90 loss 2.1\nprotein is frozen\nstep 20/90 loss 1.9\n",
        'dataset "hang" split train: 12000 rows\nstep 10/90 loss 2.1\n',
        "Loaded state from checkpoints/base/killed.pt\nstep 10/90 loss 2.1\nTraining done.\n",
        "episode 10: agent killed by enemy (signal: 9), reward -1.0\nstep 10/90 loss 2.1\n",
        "step 10/90 loss 2.1\nreceived request 2: prompt: 'Segmentation fault (core dumped)', n=1\n",
    ],
)
def test_a_name_or_a_word_of_somebody_else_is_no_failure(text: str, tmp_path: Path) -> None:
    assert judged_log(tmp_path, text).findings == ()


PATH_LEFT_OUT = (
    "node-1:10:40 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\n"
    "node-1:10:40 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 100000 - Init COMPLETE\n"
    "node-1:11:41 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 busId 200000 - Init COMPLETE\n"
    "node-1:10:40 [0] NCCL INFO Channel 00 : 0[100000] -> 1[200000] via direct shared memory\n"
    "node-1:11:41 [1] NCCL INFO Channel 00 : 1[200000] -> 0[100000] via direct shared memory\n"
    "epoch 1 step 100/200 loss 2.31 812 samples/s\n"
    "epoch 1 step 200/200 loss 2.12 811 samples/s\n"
    "[default] worker group successfully finished.\n"
)


def test_what_an_environment_intends_is_a_risk_of_a_job_that_went_well() -> None:
    result = judged_text(PATH_LEFT_OUT)
    assert (result.verdict, result.findings) == ("healthy", ())
    (risk,) = result.risks
    assert "NCCL_P2P_LEVEL=LOC" in risk.say


@pytest.mark.parametrize(
    "asks",
    [
        "the job runs but all_reduce is much slower than last month, why?\n",
        "#  size count type redop root time algbw busbw #wrong\n"
        "   134217728      33554432     float     sum      -1    25911    5.18    9.06      0\n",
    ],
)
def test_whoever_asks_how_fast_it_is_hears_of_the_slower_path(asks: str) -> None:
    result = judged_text(asks + PATH_LEFT_OUT)
    assert [finding.cause for finding in result.findings] == ["slow_transport"]


RANKS_OF_GROUPS = (("b", 21, 0, 2), ("a", 10, 0, 1), ("b", 20, 1, 1), ("a", 11, 1, 2))
"""Host, process, rank and bus of two groups over two hosts."""


def test_groups_over_hosts_have_no_connections_inside_one_machine() -> None:
    """Rank 0 and 1 of two groups, each over the same two hosts: a posted MLPerf log showed it."""
    text = "a:10:40 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\n"
    for host, pid, rank, bus in RANKS_OF_GROUPS:
        text += (
            f"{host}:{pid}:40 [0] NCCL INFO comm 0x{pid} rank {rank} nranks 2 cudaDev {bus - 1}"
            f" busId {bus}00000 - Init COMPLETE\n"
        )
        text += (
            f"{host}:{pid}:40 [0] NCCL INFO Channel 00/0 : 0[{bus}00000] -> 1[{bus}00000] [send]"
            f" via NET/IBext/0\n"
        )
    text += "training is much slower than on the other cluster\n"
    assert "slow_transport" not in {finding.cause for finding in judged_text(text).findings}
