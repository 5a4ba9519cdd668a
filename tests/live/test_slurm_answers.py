"""Odd answers of Slurm's commands, by version: none of them is misread, and none ends a verb."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.live import scheduler, submit
from ncclkit.live.launch import slurm_beside
from tests.live.test_submit import commands, fake

__all__ = ["fake"]

SHOWN = {
    "20.11": "JobId=7 JobName=x UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=1 Nice=0 Account=(null) "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:01:00 TimeLimit=UNLIMITED TimeMin=N/A StartTime=2026-11-23T14:05:00 EndTime=Unknown Partition=gpu "
    "NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=4 Command=/x/job.sbatch WorkDir=/x Power=",
    "22.05 of an array": "JobId=8 ArrayJobId=7 ArrayTaskId=1 ArrayTaskThrottle=2 JobName=a b=c JobState=RUNNING Reason=None "
    "ExitCode=0:0 RunTime=00:01:00 Partition=gpu NodeList=n[1-2] NumNodes=2 Command=/x y/job.sbatch State=odd WorkDir=/x",
    "23.11 of a part": "JobId=7 HetJobId=7 HetJobOffset=0 HetJobIdSet=7-8 JobName=x JobState=RUNNING Reason=None ExitCode=0:0 "
    "RunTime=00:01:00 Partition=gpu NodeList=n[1-2] NumNodes=2 TresPerNode=gres/gpu:h100:4 Comment=a JobState=FAILED",
    "24.11": "JobId=7 JobName=x StateDesc=a b JobState=RUNNING Reason=None ExitCode=0:0 RunTime=00:01:00 Partition=gpu "
    "NodeList=n[1-2] NumNodes=2-2 LicensesAlloc=(null) SubmitLine=sbatch --comment=JobState=X job.sbatch",
}


@pytest.mark.parametrize("version", SHOWN)
def test_a_running_job_of_each_version_runs(fake: Path, tmp_path: Path, version: str) -> None:
    state = submit.parse_state(SHOWN[version])
    assert (state.state, state.nodes, state.partition, state.status) == ("RUNNING", "n[1-2]", "gpu", None)
    own = SHOWN[version].replace("ann(1000)", f"ann({os.geteuid()})")
    (tmp_path / "shown").write_text(own + "\n" + SHOWN["20.11"].replace("RUNNING", "PENDING") + "\n")
    commands(fake, scontrol=f"cat {tmp_path}/shown", srun="exit 0")
    parts = asyncio.run(slurm_beside.running_parts("7"))
    assert parts == slurm_beside.RunningParts("8" if "array" in version else "7", (2,))


RUNS = "JobId={id} {more} UserId={user} JobState={state} NumNodes={nodes}"


def shown(number: int, more: str = "", state: str = "RUNNING", nodes: int = 2, user: str = f"me({os.geteuid()})") -> str:
    return RUNS.format(id=number, more=more, state=state, nodes=nodes, user=user)


HET = [shown(7, "HetJobId=7 HetJobOffset=0"), shown(8, "HetJobId=7 HetJobOffset=1", nodes=3)]
ARRAY = [shown(9, "ArrayJobId=7 ArrayTaskId=0"), shown(7, "ArrayJobId=7 ArrayTaskId=4")]


def asked_about(fake: Path, folder: Path, job: str, lines: list[str]) -> slurm_beside.RunningParts | None:
    (folder / "shown").write_text("\n".join(lines))
    commands(fake, scontrol=f'echo "$@" >> {folder}/asked; cat {folder}/shown', srun="exit 0")
    return asyncio.run(slurm_beside.running_parts(job))


@pytest.mark.parametrize("job", ["7", "7+1", "8"])
def test_the_parts_of_a_heterogeneous_job_are_looked_at_together(fake: Path, tmp_path: Path, job: str) -> None:
    """Slurm starts a step beside it by the number of its first part alone, and each part says its own nodes."""
    parts = asked_about(fake, tmp_path, job, HET)
    assert parts == slurm_beside.RunningParts("7", (2, 3))
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "-o -- show job 7"
    words = slurm_beside.command_beside(parts, tmp_path / "agent", tmp_path, "attach", "x")
    middle = words.index(":")
    assert words[:2] == ["srun", "--jobid=7"]
    assert words[2:5] == ["--het-group=0", "--nodes", "2"] and words[middle + 1 : middle + 4] == ["--het-group=1", "--nodes", "3"]
    assert [part[-2:] for part in (words[:middle], words)] == [["attach", "x"]] * 2


def test_of_an_array_one_task_is_meant(fake: Path, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match=r"is an array, of which 2 tasks run \(7_0, 7_4\); name one of them: --job 7_0"):
        asked_about(fake, tmp_path, "7", ARRAY)
    named = [f"JobName=train {line}" for line in ARRAY]
    with pytest.raises(NcclkitError, match=r"Slurm job 7 \(train\) is an array, of which 2 tasks run"):
        asked_about(fake, tmp_path, "7", named)
    assert asked_about(fake, tmp_path, "7_0", ARRAY[:1]) == slurm_beside.RunningParts("9", (2,))
    waits = shown(7, "ArrayJobId=7 ArrayTaskId=5-9", "PENDING")
    assert asked_about(fake, tmp_path, "7", [waits, ARRAY[0]]) == slurm_beside.RunningParts("9", (2,))


def test_the_job_of_another_user_is_called_his(fake: Path, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="Slurm job 7 belongs to user ann, and Slurm starts nothing of .* beside it: let that user run"):
        asked_about(fake, tmp_path, "7", [shown(7, user="ann(4711)")])
    assert asked_about(fake, tmp_path, "7", [shown(7, user="odd")]) is not None


ENDED = {
    "20.11 cancelled": ("CANCELLED by 1000|0:15|00:00:03|n1", "was cancelled"),
    "21.08 memory": ("OUT_OF_MEMORY|0:125|00:00:03|n1", "for want of memory"),
    "22.05 node": ("NODE_FAIL|1:0|00:10:00|n[1-2]", "lost a node"),
    "23.02 no node": ("BOOT_FAIL|0:0|00:00:00|None assigned", "could not boot"),
    "23.11 time": ("TIMEOUT|0:0|00:10:00|n1", "reached Slurm's time limit"),
    "24.05 files": ("FAILED|0:53|00:00:00|n1", "could not open job.out"),
    "24.11 twice": ("PREEMPTED|0:0|00:00:09|n1\nCOMPLETED|0:0|00:10:00|n2", "was preempted"),
    "25.05 more": ("COMPLETED|0:0|00:00:09|n1|new|columns", "ended well after 00:00:09 (exit status 0)"),
}


@pytest.mark.parametrize("version", ENDED)
def test_the_end_of_a_job_that_only_accounting_knows(fake: Path, tmp_path: Path, version: str) -> None:
    said, sentence = ENDED[version]
    (tmp_path / "said").write_text(said + "\n")
    commands(fake, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    commands(fake, sacct=f"cat {tmp_path}/said")
    state = submit.job_state(submit.BatchJob(tmp_path, "7", ("probe",), 0.0))
    assert state.over and sentence in state.sentence


@pytest.mark.parametrize("said", ["", "\n\n", "||||", "odd|x|y|z", "state unknown", "|0:0", "completed|0:0", "\x1b[2J|1"])
def test_an_accounting_that_says_nothing_known_is_no_end_of_its_own(fake: Path, tmp_path: Path, said: str) -> None:
    (tmp_path / "said").write_text(said)
    commands(fake, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    commands(fake, sacct=f"cat {tmp_path}/said")
    state = submit.job_state(submit.BatchJob(tmp_path, "7", ("probe",), 0.0))
    assert state.state == submit.FORGOTTEN and state.status is None


@pytest.mark.parametrize("said", ["", "No jobs in the system", "JobId=7", "JobId=7 JobState=", "JobState=x y", "\0"])
def test_a_controller_that_says_nothing_known_does_not_end_a_job(fake: Path, tmp_path: Path, said: str) -> None:
    (tmp_path / "said").write_text(said)
    commands(fake, scontrol=f"cat {tmp_path}/said")
    assert not submit.job_state(submit.BatchJob(tmp_path, "7", ("probe",), 0.0)).over
    with pytest.raises(NcclkitError, match="no state of a job"):
        submit.parse_state(said)


PARTITIONS = {
    "20.11": ("gpu|idle|2|gpu:8|96|(null)", "PartitionName=gpu Default=YES MaxTime=2-00:00:00 State=UP MaxNodes=UNLIMITED"),
    "22.05": ("gpu|planned|2|gpu:a100:8(S:0-1)|96+|a100", "PartitionName=gpu Default=YES MaxTime=UNLIMITED State=UP"),
    "23.11": ("gpu|idle~|2|gpu:8(S:0,1),nic:2|96|a,b", "PartitionName=gpu Default=YES MaxTime=NONE State=UP MaxNodes=4"),
    "24.11": ("gpu|inval|2|gpu:1g.10gb:7,gpu:h100:1|96|", "PartitionName=gpu Default=YES State=DRAIN Topology=t1"),
    "short": ("gpu|idle|2", "PartitionName=gpu Default=YES"),
    "garbage": ("gpu|idle|two|x|y|z\n|||||\n\nother|idle|3|gpu:8|1|x", "PartitionName=gpu Default=YES\nodd\nPartitionName="),
}


@pytest.mark.parametrize("version", PARTITIONS)
def test_partitions_of_each_version_are_rows_with_words(version: str) -> None:
    (row,) = scheduler.partitions(*PARTITIONS[version])
    assert row["name"] == "gpu" and row["nodes"] == (0 if version == "garbage" else 2)
    words = scheduler.partition_words(row)
    assert words.startswith(f"{2 if version in ('20.11', '23.11', 'short') else 0} of ")
    assert ("8 a100 GPUs a node" in words) is (version == "22.05")
    assert ("1 h100 GPU (7 MIG slices 1g.10gb) a node" in words) is (version == "24.11")


ASSOCIATIONS = {
    "20.11": ("ml||normal,high|normal\nbio|gpu|normal|\n", ["ml", "bio"], ["normal", "high"]),
    "23.11": ("ml||normal\nml|cpu|low|low|new\n\n", ["ml"], ["normal", "low"]),
    "none": ("", [], []),
}


@pytest.mark.parametrize("version", ASSOCIATIONS)
def test_the_accounts_of_a_user_are_those_of_his_associations(fake: Path, tmp_path: Path, version: str) -> None:
    said, accounts, qos = ASSOCIATIONS[version]
    (tmp_path / "said").write_text(said)
    commands(fake, sbatch="exit 1", sinfo="echo gpu", scontrol="exit 1", squeue="exit 1", sacctmgr=f"cat {tmp_path}/said")
    case = submit.Case()
    case.facts = scheduler.read_facts()
    offered = scheduler.choices(case)
    assert (offered["account"], offered["qos"]) == (accounts, qos)
    hint = scheduler.hint_values(case)["accounts"]
    assert hint == (f"yours: {', '.join(accounts)}" if accounts else "`sacctmgr show assoc user=$USER` lists your accounts")
