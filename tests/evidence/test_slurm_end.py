"""After a failed run the scheduler is asked: a node that died is no network that loses packets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.cli import main
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.slurm_end import end_of_job, fields, note_on_running
from ncclkit.live import scheduler, submit
from ncclkit.live.launch.slurm import keep_end
from tests.cases import judged_files

LOST = """n1:100:100 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x1 - Init COMPLETE
[rank0]: step 40/100
n1:100:120 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2<4242>
n1:100:120 [0] misc/socket.cc:50 NCCL WARN Call to recv from 10.0.0.2<4242> failed : Connection timed out
"""
TIMES = "StartTime=2026-11-21T01:00:00 EndTime=2026-11-21T02:00:00"
JOBS = {
    "20.02": (
        "JobId=4711 JobName=train UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=1 Nice=0 Account=(null) "
        f"QOS=(null) JobState={{state}} Reason={{reason}} Dependency=(null) Requeue=0 Restarts=0 ExitCode=0:1 {TIMES} "
        "Deadline=N/A Partition=gpu AllocNode:Sid=login:1 NodeList=n[1-2] BatchHost=n1 NumNodes=2 StdOut={log} Power="
    ),
    "21.08": (
        f"JobId=4711 JobName=train UserId=ann(1000) JobState={{state}} Reason={{reason}} FailedNode=n2 Dependency=(null) "
        f"ExitCode=0:1 {TIMES} SuspendTime=None NodeList=n[1-2] BatchHost=n1 NumNodes=2 StdErr={{log}} StdOut={{log}}"
    ),
    "25.05": (
        f"JobId=4711 JobName=train UserId=ann(1000) JobState={{state}} Reason={{reason}} Dependency=(null) Requeue=0 "
        f"ExitCode=0:1 RunTime=01:00:00 {TIMES} AllocNode:Sid=login:1 ReqNodeList=(null) NodeList=n[1-2] NumNodes=2-2 "
        "ReqTRES=cpu=4,mem=8000M,node=2 AllocTRES=cpu=4 StdErr= StdIn=/dev/null StdOut={log} TresPerTask=cpu=1"
    ),
}
"""``scontrol -o show job`` of Slurm, by the version in which a field came or changed."""
NODES = {
    "20.02": "NodeName=n2 Arch=x86_64 CoresPerSocket=8 CPUAlloc=0 Gres=gpu:8 OS=Linux 4.18 #1 SMP State={state} "
    "ThreadsPerCore=1 TmpDisk=0 Partitions=gpu BootTime=None Reason={reason}",
    "25.05": "NodeName=n2 CoresPerSocket=8 CPUAlloc=0 Gres=gpu:h100:8(S:0-1) NodeAddr=n2 Version=25.05.1 State={state} "
    "Partitions=gpu BootTime=2026-11-01T00:00:00 LastBusyTime=2026-11-21T02:00:01 ResumeAfterTime=None "
    "Comment=rack 7 Reason={reason} ReasonTime=x",
}
AFTER = "Not responding [slurm@2026-11-21T02:04:30]"
IDLE = "NodeName=n1 State=IDLE ThreadsPerCore=1 Reason=none\n"


class Cluster:
    """Commands that stand in for Slurm's, each a line of shell."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "train.log"
        self.log.write_text(LOST)
        self.job = folder / "job.txt"
        self.node = folder / "node.txt"
        shows = f'case "$*" in *"show job"*) cat {self.job};; *"show node"*) cat {self.node};; esac'
        self.says(scontrol=shows, sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")

    def says(self, **scripts: str) -> None:
        for name, line in scripts.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{line}\n")
            (self.bin / name).chmod(0o755)

    def ended(self, state: str, node: str = "IDLE", reason: str = "none", version: str = "25.05") -> None:
        """The job is in this state, and its second node, too."""
        why = {"NODE_FAIL": "NodeDown"}.get(state, "None")
        self.job.write_text(JOBS[version].format(state=state, reason=why, log=self.log) + "\n")
        of_node = NODES["20.02" if version < "23" else "25.05"]
        self.node.write_text(IDLE + of_node.format(state=node, reason=reason) + "\n")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(inputs, "DEADLINE", 5.0)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    return made


def first(found: Diagnosis) -> tuple[str, str | None]:
    return found.findings[0].cause, found.findings[0].strength


def test_without_the_scheduler_it_looks_like_the_network(slurm: Cluster) -> None:
    assert first(judged_files(slurm.log)) == ("network_loss", "likely")


@pytest.mark.parametrize(
    ("version", "node"), [("20.02", "DOWN*"), ("21.08", "DOWN*+DRAIN"), ("25.05", "DOWN+NOT_RESPONDING")]
)
def test_a_node_that_died_is_no_loss_of_the_network(slurm: Cluster, version: str, node: str) -> None:
    slurm.ended("NODE_FAIL", node, AFTER, version)
    found = judged_files("4711")
    assert first(found) == ("rank_killed", "proven")
    assert found.findings[0].say == "The scheduler counts n2 as failed (down, or without an answer) and ended the job; what became of the ranks there is not known."
    assert "network_loss" not in [one.cause for one in found.findings]
    assert (found.decision.action, found.decision.exclude) == ("restart", ("n2",))


def test_ranks_that_gave_up_before_the_controller_noticed(slurm: Cluster) -> None:
    """The job ended by itself, FAILED; its node is marked down some minutes later."""
    slurm.ended("FAILED", "DOWN*", AFTER)
    assert first(judged_files("4711")) == ("rank_killed", "likely")


@pytest.mark.parametrize(
    ("state", "node", "reason"),
    [
        ("COMPLETED", "DOWN*", AFTER),
        ("FAILED", "IDLE", "none"),
        ("FAILED", "DOWN*", "Not responding [slurm@2026-11-21T07:00:00]"),
        ("FAILED", "DOWN*", "Not responding [slurm@2026-11-20T23:00:00]"),
        ("FAILED", "DOWN", "somebody wrote no date"),
        ("FAILED", "IDLE+CLOUD+POWERED_DOWN", "none"),
        ("FAILED", "IDLE~", AFTER),
        ("FAILED", "IDLE+DRAIN", "new kernel [root@2026-11-21T01:30:00]"),
        ("FAILED", "MIXED+PLANNED", "none"),
        ("FAILED", "no state", AFTER),
    ],
)
def test_a_node_that_went_at_another_time_is_not_accused(
    slurm: Cluster, state: str, node: str, reason: str
) -> None:
    slurm.ended(state, node, reason)
    assert "rank_killed" not in [one.cause for one in judged_files("4711").findings]


def test_a_node_that_was_drained_is_left_out_and_not_accused(slurm: Cluster) -> None:
    slurm.ended("FAILED", "IDLE+DRAIN", "NHC: GPU 3 gone [root@2026-11-21T01:59:00]")
    found = judged_files("4711")
    assert first(found)[0] == "network_loss" and found.decision.exclude == ("n2",)


def test_an_error_of_the_program_stands_before_a_node_that_went_down_later(slurm: Cluster) -> None:
    trace = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 3, in <module>\n'
    slurm.log.write_text(LOST.partition("n1:100:120")[0] + trace + "[rank0]: ValueError: sample 7 is empty\n")
    slurm.ended("FAILED", "DOWN*", AFTER)
    found = judged_files("4711")
    assert first(found)[0] == "rank_exception" and found.decision.action != "restart"


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("TIMEOUT", "rank_killed"),
        ("PREEMPTED", "rank_killed"),
        ("OUT_OF_MEMORY", "host_oom"),
        ("CANCELLED", "rank_killed"),
        ("COMPLETED", ""),
    ],
)
def test_what_slurm_says_of_the_end_counts(slurm: Cluster, state: str, cause: str) -> None:
    slurm.log.write_text(LOST.partition("n1:100:120")[0])
    slurm.ended(state)
    found = judged_files("4711")
    assert [one.cause for one in found.findings][:1] == [cause] * bool(cause)
    restarts = {"TIMEOUT": "restart", "PREEMPTED": "restart", "OUT_OF_MEMORY": "fix_setup"}
    assert found.decision.action == restarts.get(state, "wait_and_see")


def test_a_hang_that_reached_the_time_limit_is_no_fault_of_the_limit(slurm: Cluster) -> None:
    """The healthy twin: what failed before stands first, also where Slurm says the end afterwards."""
    timeout = (
        "[rank0]:[E1121 01:02:03.000000 100 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 "
        "milliseconds before timing out.\n"
    )
    slurm.log.write_text(LOST.partition("n1:100:120")[0] + timeout)
    slurm.ended("TIMEOUT")
    assert "rank_killed" not in [one.cause for one in judged_files("4711").findings]


def test_a_job_that_the_controller_has_forgotten(slurm: Cluster) -> None:
    slurm.ended("NODE_FAIL", "DOWN*", AFTER)
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    shows = f'case "$*" in *"show node"*) cat {slurm.node};; *) {unknown};; esac'
    rows = f'case "$*" in *StdOut*) echo "{slurm.log}|";; *) echo "NODE_FAIL|0:1|2026-11-21T01:00:00|2026-11-21T02:00:00|n[1-2]";; esac'
    slurm.says(scontrol=shows, sacct=rows)
    assert first(judged_files("4711")) == ("rank_killed", "proven")


# ---------------------------------------------------------------- a job that goes on


def test_diagnose_of_a_running_job_says_so_and_offers_attach(
    slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.log.write_text(LOST.partition("n1:100:120")[0])
    slurm.ended("RUNNING", "MIXED+DRAIN", "maintenance [root@2026-11-21T01:30:00]")
    assert main(["diagnose", "4711"]) == 0
    printed = capsys.readouterr()
    assert "Slurm job 4711 still runs on n[1-2], so its logs end before the job does" in printed.err
    assert "`ncclkit attach --job 4711` looks at its ranks now" in printed.err
    assert "Restart or stop" not in printed.out


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("PENDING", "Slurm job 4711 waits in the queue (PENDING): nothing of it runs now."),
        ("RUNNING", "`ncclkit attach --job 4711` looks at its ranks now."),
        ("FAILED", "which is not there; name the file where it is now."),
    ],
)
def test_a_job_without_output_says_where_it_is(
    slurm: Cluster, capsys: pytest.CaptureFixture[str], state: str, said: str
) -> None:
    slurm.log.unlink()
    slurm.ended(state)
    assert main(["diagnose", "4711"]) == 2
    assert said in capsys.readouterr().err


# ---------------------------------------------------------------- odd answers


@pytest.mark.parametrize(
    ("odd", "note"),
    [
        ("sleep 60", "did not say how the nodes of job 4711 are (scontrol"),
        ("yes NodeName=n2 State=DOWN", "did not say how the nodes of job 4711 are (scontrol"),
        ("echo no route >&2; exit 1", "did not say how the nodes of job 4711 are (scontrol: no route)"),
        ("echo hello", ""),
        ("printf ''", ""),
        ("printf 'NodeName=-x State=DOWN* Reason=x\\nNodeName=$(id) State=DOWN*\\n'", ""),
        ("printf '\\377\\376NodeName=\\033[2J State=DOWN*\\n'", ""),
    ],
)
def test_an_odd_answer_about_nodes_accuses_nobody(
    slurm: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], odd: str, note: str
) -> None:
    monkeypatch.setattr(inputs, "DEADLINE", 1.0)
    slurm.ended("FAILED")
    slurm.says(scontrol=f'case "$*" in *"show node"*) {odd};; *) cat {slurm.job};; esac')
    assert main(["diagnose", "--json", "4711"]) == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert "rank_killed" not in [row["cause"] for row in told["findings"]]
    assert (note in printed.err) and ("did not say" in printed.err) == bool(note)


def test_a_list_of_nodes_is_no_option() -> None:
    asked: list[tuple[str, ...]] = []

    def ask(*words: str) -> str:
        asked.append(words)
        return "JobId=7 JobState=FAILED NodeList=--all StdOut=/x" if "job" in words else ""

    assert end_of_job("7", ask).state == "FAILED"
    assert [words[0] for words in asked] == ["scontrol"], "what is no list of nodes is no word of a command"


@pytest.mark.parametrize(
    ("nodes", "host"), [("n7", " FailedNode=n7"), ("n[7-8]", ""), ("n7,n8", ""), ("(null)", ""), ("$(id)", "")]
)
def test_of_a_job_on_one_node_that_is_back_already_it_is_that_node(nodes: str, host: str) -> None:
    def ask(*words: str) -> str:
        shown = f"JobId=7 JobState=NODE_FAIL Reason=NodeDown NodeList={nodes}"
        return shown if "job" in words else "NodeName=n7 State=IDLE Reason=none"

    (line,) = end_of_job("7", ask).lines
    assert line == f"JobId=7 JobState=NODE_FAIL{host} Reason=NodeDown NodeList={nodes}"


@pytest.mark.parametrize(("restarts", "again"), [("1", True), ("0", False), ("x", False)])
def test_a_job_that_slurm_has_requeued_is_not_submitted_twice(restarts: str, again: bool) -> None:
    end = end_of_job("4711", lambda *words: f"JobId=4711 JobState=PENDING Reason=BeginTime Restarts={restarts} NodeList=")
    note = note_on_running("4711", end)
    assert ("into the queue again by itself" in note) is again
    assert ("waits in the queue" in note) is not again


def test_after_the_first_silence_nothing_more_is_asked() -> None:
    asked: list[str] = []

    def ask(*words: str) -> str:
        asked.append(words[0])
        raise NcclkitError("scontrol did not answer within 5 s.")

    assert end_of_job("7", ask).problem == (
        "Slurm did not say how job 7 ended (scontrol did not answer within 5 s)."
    )
    assert asked == ["scontrol"]


@pytest.mark.parametrize("line", ["", "=", "JobId", "A=1 A=2 B=x y=z", "\0=", "É=1"])
def test_fields_of_any_line(line: str) -> None:
    assert isinstance(fields(line), dict)


# ---------------------------------------------------------------- runs of ours


def test_a_run_keeps_what_slurm_said_beside_its_logs(slurm: Cluster, tmp_path: Path) -> None:
    """In an allocation the job itself still runs; a folder that holds the answer is judged without Slurm."""
    folder = tmp_path / "case" / "runs" / "1-all_reduce"
    folder.mkdir(parents=True)
    (folder / "rank0.log").write_text(LOST)
    slurm.ended("RUNNING", "ALLOCATED*", AFTER)
    keep_end(folder, "4711", run_failed=True)
    assert (folder / "scheduler.log").read_text() == f"NodeName=n2 State=ALLOCATED* Reason={AFTER}\n"
    slurm.says(scontrol="exit 1")
    assert first(judged_files(folder)) == ("rank_killed", "likely")
    keep_end(folder, "-x", run_failed=True)
    keep_end(folder, "", run_failed=True)


def test_a_batch_job_that_lost_its_node_leaves_that_in_its_runs(slurm: Cluster, tmp_path: Path) -> None:
    """Whoever follows it asks, as the job itself was ended with its node."""
    case = Case.open(tmp_path / "case")
    own, other = case.new_run("all_reduce"), case.new_run("all_reduce")
    for folder, number in ((own, "4711"), (other, "4712")):
        (folder / "plan.json").write_text(json.dumps({"job": number}))
    slurm.ended("NODE_FAIL", "DOWN*", AFTER)
    job = submit.BatchJob(tmp_path / "jobs", "4711", ("probe",), 0.0)
    submit._keep_end_in_runs(case, job)
    assert "JobState=NODE_FAIL" in (own / "scheduler.log").read_text()
    assert not (other / "scheduler.log").exists()


def test_the_launcher_and_the_reader_mean_the_same_words() -> None:
    assert scheduler.fields is fields


HET = (
    "JobId=4711 HetJobId=4711 HetJobOffset=0 HetJobIdSet=4711-4712 JobName=train JobState={0} Reason=None "
    f"ExitCode=0:1 {TIMES} NodeList=n1 NumNodes=1\n"
    "JobId=4712 HetJobId=4711 HetJobOffset=1 HetJobIdSet=4711-4712 JobName=train JobState={1} Reason=None "
    f"ExitCode=0:1 {TIMES} NodeList=n2 NumNodes=1\n"
)
ROWS = "{0}|0:15|2026-11-21T01:00:00|2026-11-21T02:00:00|n1|4711+0\n{1}|0:1|2026-11-21T01:00:00|2026-11-21T02:00:00|n2|4711+1\n"


@pytest.mark.parametrize("source", ["scontrol", "sacct"])
@pytest.mark.parametrize(
    ("states", "part", "state"),
    [
        (("CANCELLED by 0", "NODE_FAIL"), "4711+1", "NODE_FAIL"),
        (("FAILED", "OUT_OF_MEMORY"), "4711+1", "OUT_OF_MEMORY"),
        (("FAILED", "CANCELLED"), "4711+0", "FAILED"),
        (("COMPLETED", "FAILED"), "4711+1", "FAILED"),
        (("TIMEOUT", "TIMEOUT"), "4711+0", "TIMEOUT"),
    ],
)
def test_of_a_heterogeneous_job_the_part_that_failed_is_named(
    source: str, states: tuple[str, str], part: str, state: str
) -> None:
    asked = []

    def ask(*words: str) -> str:
        asked.append(words)
        if "node" in words:
            return IDLE
        if words[0] == "sacct":
            return ROWS.format(*states)
        if source == "sacct":
            raise NcclkitError("slurm_load_jobs error: Invalid job id specified")
        return HET.format(*(one.partition(" ")[0] for one in states))

    end = end_of_job("4711", ask)
    assert (end.state, end.nodes) == (state, "n1,n2")
    assert end.lines[0].startswith(f"JobId={part} JobState={state} ")
    assert ("FailedNode=n2" in end.lines[0]) == (state == "NODE_FAIL")
    assert asked[-1][-1] == "n1,n2", "any of its nodes may be down"


def test_a_heterogeneous_job_that_went_well_or_is_at_work_has_no_failed_part() -> None:
    well = end_of_job("4711", lambda *words: HET.format("COMPLETED", "COMPLETED"))
    assert (well.state, well.lines) == ("COMPLETED", ())

    def at_work(*words: str) -> str:
        return IDLE if "node" in words else HET.format("COMPLETED", "RUNNING")

    runs = end_of_job("4711", at_work)
    assert (runs.state, runs.lines) == ("RUNNING", ())
    assert "still runs on n1,n2" in note_on_running("4711", runs)


def test_the_first_task_of_an_array_stands_for_all() -> None:
    rows = "FAILED|1:0|x|x|n1|4711_0\nNODE_FAIL|0:1|x|x|n2|4711_1\n"

    def ask(*words: str) -> str:
        if words[0] == "sacct":
            return rows
        if "node" in words:
            return IDLE
        raise NcclkitError("Invalid job id specified")

    end = end_of_job("4711", ask)
    assert end.lines[0].startswith("JobId=4711 JobState=FAILED") and end.nodes == "n1"
