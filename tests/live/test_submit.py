"""A verb as a batch job: its text, what Slurm says of it, and its whole way through a real Slurm."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import ncclkit as nk
from ncclkit import evidence
from ncclkit.agent import private, wire
from ncclkit.cli import main
from ncclkit.cli.parser import command_parser
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.evidence import samples
from ncclkit.live import job_paths, probe, scheduler, submit, workers
from ncclkit.live.options import JobOptions, ProbeOptions, command_words, declared
from ncclkit.live.submit import JobState
from tests.live.slurm_cluster import available, cluster
from tests.processes import leftovers, warm

ROOT = Path(__file__).parents[2]
NODES = """gpu|idle|14|gpu:h100:8(S:0-1)|192
gpu|mix-|3|gpu:h100:8(S:0-1)|192
gpu|idle*|1|gpu:h100:8(S:0-1)|192
gpu|drain|2|gpu:h100:8(S:0-1)|192
cpu|idle|4|(null)|64+
"""
LIMITS = """PartitionName=gpu AllowGroups=ALL AllowAccounts=ml,bio Default=YES MaxNodes=16 MaxTime=1-00:00:00 State=UP
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN
"""
WAITING = (
    "JobId=7 JobName=ncclkit-probe UserId=ann(1000) Account=ml QOS=normal JobState=PENDING Reason=Priority "
    "Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 ExitCode=0:0 RunTime=00:00:00 TimeLimit=00:10:00 "
    "StartTime=2026-11-23T14:05:00 EndTime=Unknown Partition=gpu NodeList=(null) Command=/a b/job.sbatch "
    "WorkDir=/a b StdOut=/a b/job.out"
)


def test_partitions_with_their_gpus_idle_nodes_and_limits() -> None:
    gpu, cpu = scheduler.partitions(NODES, LIMITS)
    assert (gpu["nodes"], gpu["idle"], gpu["gpus"], gpu["model"], gpu["default"]) == (20, 15, 8, "h100", True)
    assert (gpu["time_limit"], gpu["max_nodes"], gpu["accounts"]) == ("1-00:00:00", "16", "ml,bio")
    assert (cpu["nodes"], cpu["gpus"], cpu["cpus"], cpu["state"], cpu["default"]) == (4, 0, 64, "DOWN", False)
    assert scheduler.partition_words(gpu) == (
        "15 of 20 nodes idle, 8 h100 GPUs a node, Slurm's time limit 1-00:00:00, for ml,bio, the default"
    )
    assert scheduler.partition_words(cpu).endswith("no GPUs, Slurm's time limit UNLIMITED, DOWN")
    assert scheduler.partition([gpu, cpu])["name"] == "gpu" and not scheduler.partition([gpu, cpu], "none")


def commands(folder: Path, **scripts: str) -> None:
    """Programs that stand in for Slurm's, each a line of shell."""
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that stand before all others; no job, no GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    monkeypatch.setattr(scheduler, "DEADLINE", 4.0)  # a shell on a busy host starts in more than one
    monkeypatch.setattr(scheduler.glob, "glob", lambda pattern: [])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    scheduler._submits.cache_clear()
    return folder


@pytest.mark.parametrize(
    ("line", "login"),
    [
        ("echo gpu", True),
        ("sleep 60", True),
        ("echo 'slurm_load_partitions: Unable to contact slurm controller (connect failure)' >&2; exit 1", True),
        ("echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1", False),
        ("exit 1", False),
        ("echo", False),
    ],
)
def test_a_login_node_is_where_the_scheduler_answers_or_hangs(fake: Path, line: str, login: bool) -> None:
    commands(fake, sbatch="exit 1", sinfo=line)
    assert scheduler.is_login_node() is login


def test_no_login_node_inside_a_job_or_with_a_gpu(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    monkeypatch.setattr(scheduler.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    assert not scheduler.is_login_node()
    monkeypatch.setattr(scheduler.glob, "glob", lambda pattern: [])
    scheduler._submits.cache_clear()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not scheduler.is_login_node()


def test_a_command_that_hangs_fails_or_prints_nothing_known_is_a_fact(fake: Path) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo gpu", squeue="sleep 60", sacctmgr="echo no access >&2; exit 1")
    commands(fake, scontrol="echo PartitionName=gpu Default=YES State=UP")
    known = {fact.name: fact for fact in scheduler.read_facts()}
    assert "did not answer within" in known["scheduler.jobs"].why
    assert known["scheduler.accounts"].why == "sacctmgr: no access"
    assert [row["name"] for row in known["scheduler.partitions"].value] == ["gpu"]
    shown = nk.show.cluster(filled(known.values()))
    assert "login node of a Slurm cluster (1 partition" in shown.summary and "no access" in shown.static()


def test_a_terminal_shows_the_partitions_of_a_login_node(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read(case: Case, *_: Any) -> Case:
        facts = [Fact("host.name", "vm", host="vm"), Fact("scheduler.partitions", scheduler.partitions(NODES, LIMITS))]
        return case.replace_facts(facts)

    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    monkeypatch.setattr(probe, "inspect_hosts", read)
    assert main(["inspect", "--case", str(tmp_path / "case")]) == 0
    said = capsys.readouterr().out
    assert "a login node of a Slurm cluster (2 partitions, up to 8 GPUs a node, up to 15 nodes idle in one of them)" in said
    assert "gpu  15 of 20 nodes idle, 8 h100 GPUs a node" in said and "cpu  4 of 4 nodes idle, no GPUs" in said


def test_forms_that_run_nothing_on_a_login_node_show_the_card(fake: Path, tmp_path: Path) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo 'gpu|idle|4|gpu:h100:8|192'", squeue="exit 1", sacctmgr="exit 1")
    commands(fake, scontrol="echo PartitionName=gpu Default=YES State=UP")
    case = Case.open(tmp_path / "case")
    for form, verb in ((nk.form.check(case), "diagnose --check"), (nk.form.tune(case), "tune")):
        card = form.layout()[0].value
        assert f"ncclkit submit -N 2 {verb}" in card and "8 h100" in card and "job=" not in card
    case.facts = [Fact("scheduler.version", "1")]  # the notebook has its own card
    # the form of tune has fields, and one that submits it
    assert len(nk.form.check(case).layout()) == len(nk.form.tune(case).layout()) - 2


def test_what_is_refused_on_a_login_node_names_its_own_verb(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    for verb, words in (("tune", ["tune", "NCCL_ALGO=Ring"]), ("lab", ["lab", "rank_late"])):
        assert main(words) == 2
        assert f"`ncclkit submit {verb}` runs it on nodes, `ncclkit {verb} --here` on" in capsys.readouterr().err


def filled(facts: Any) -> Case:
    case = Case()
    case.facts = list(facts)
    return case


def test_nothing_heavy_runs_on_a_login_node_unasked(fake: Path, tmp_path: Path) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    case = Case.open(tmp_path / "case")
    with pytest.raises(NcclkitError, match="`ncclkit submit probe` .* runs it on nodes, .* on this host"):
        asyncio.run(probe.plan_test(case))
    plan = asyncio.run(probe.plan_test(case, ProbeOptions(here=True, backend="gloo")))
    assert plan.ranks == 2
    with pytest.raises(NcclkitError, match="an experiment does not run here unasked"):
        asyncio.run(probe.plan_here(case, plan))
    run = asyncio.run(nk.form.live_test(case).run())
    assert run.reason == "not started" and "ncclkit submit probe" in run.summary and not case.runs()
    assert type(nk.form.live_test(case, "here")).__name__ == "LiveTest"


def test_the_form_on_a_login_node_shows_what_sbatch_gets(fake: Path, tmp_path: Path) -> None:
    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    case = Case.open(tmp_path / "case")
    accounts = [{"account": "ml", "partition": "", "qos": "normal,high", "default_qos": ""}]
    case.facts = [
        Fact("scheduler.partitions", scheduler.partitions(NODES, LIMITS)),
        Fact("scheduler.accounts", accounts),
    ]
    form: Any = nk.form.live_test(case, "-N 2 -p gpu --container 'apptainer exec --nv a.sif'", ranks=4)
    proposed = [form.job[name].options for name in ("partition", "account", "qos")]
    assert proposed == [("gpu", "cpu"), ("ml",), ("normal", "high")]
    form.job["reservation"].value = "<b>&"
    assert "&lt;b&gt;" not in form.script.value and form.start.disabled and "not a name of Slurm" in form.notice.value
    form.job["reservation"].value = "maintenance"
    for line in ("--nodes=2", "--partition=gpu", "--reservation=maintenance", "probe --ranks 4", "apptainer exec --nv"):
        assert line in form.script.value, line
    assert not form.start.disabled


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"partition": "a b"}, "not a name of Slurm"),
        ({"account": "x\n#SBATCH --wrap=id"}, "not a name of Slurm"),
        ({"time": "soon"}, "limit cannot be"),
        ({"nodes": 0}, "must lie between 1 and"),
        ({"srun_options": "--mpi='none"}, "close its quotes"),
    ],
)
def test_what_slurm_would_not_understand_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(NcclkitError, match=why):
        JobOptions(**given)


def test_submits_at_the_same_time_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else both make the folder of one number, and the second ends with "File exists"."""
    monkeypatch.setattr(scheduler, "ask_slurm", lambda *words, **more: "7")
    submit.submit(Case.open(tmp_path), ["inspect"], JobOptions())
    second = threading.Thread(target=lambda: submit.submit(Case.open(tmp_path), ["probe"], JobOptions()))
    with storage.locked(tmp_path):  # as the first one has it while it makes its folder
        second.start()
        second.join(0.5)
        assert second.is_alive() and not (tmp_path / "jobs" / "2-probe").exists()
    second.join(10)
    assert [job.folder.name for job in submit.submitted_jobs(Case.open(tmp_path))] == ["1-inspect", "2-probe"]


def test_options_as_the_command_takes_them() -> None:
    asked = submit.parse_options("-N 2 -p gpu --gpus-per-node=4 -t 1:00 --no-exclusive --setup 'module load a'")
    assert asked == JobOptions(
        nodes=2, partition="gpu", gpus_per_node=4, time="1:00", exclusive=False, setup="module load a"
    )
    assert submit.parse_options("-N2 -p cpu -p gpu --setup a --setup b") == JobOptions(
        nodes=2, partition="gpu", setup="a\nb"
    )
    for wrong in ("-N two", "-Z 3", "gpu", "-N", "-h"):
        with pytest.raises(NcclkitError):
            submit.parse_options(wrong)
    options = ProbeOptions(ranks=4, max_bytes=4096, env={"A": "b c"}, stages=True, python="/usr/bin/python3")
    parsed = command_parser().parse_args(["probe", *command_words(options)])
    assert ProbeOptions(**{name: getattr(parsed, name) for name in declared(options)}) == options


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("submit", "Which verb shall run on the nodes?"),
        ("submit status", "status cannot be a batch job"),
        ("submit probe -N 2", "`ncclkit submit -N … VERB` takes it, before the verb."),
        ("probe --partition=gpu", "`ncclkit submit --partition … VERB` takes it, before the verb."),
    ],
)
def test_a_command_that_cannot_be_meant_says_how_it_is_written(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):
        assert main(typed.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rehearse nope.py", "nope.py is no program; write the command as your job has it: python nope.py"),
        ("rehearse -- python nope.py", "There is no nope.py in {here}, where the job would look for it"),
        ("step -- torchrun --nproc-per-node 2 nope.py", "There is no nope.py in {here}"),
        ("step -- srun python data/nope.py --lr 1", "There is no data/nope.py in {here}"),
        ("rehearse -- bash run.sh", "A rehearsal starts `python …`"),
        ("rehearse", "Name the script after two dashes"),
        ("inspect --data nope", "There is no nope in {here}"),
        ("inspect --checkpoints {here}/nope", "There is no {here}/nope on this host, nor so on the nodes"),
        ("diagnose nope.log", "There is no nope.log in {here}"),
    ],
)
def test_a_path_that_no_node_can_have_is_refused_before_the_queue(
    typed: str, said: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands(fake, sbatch="echo 7", sinfo="echo gpu")
    monkeypatch.chdir(tmp_path)
    assert main(["submit", "--no-wait", *typed.format(here=tmp_path).split()]) == 2
    assert said.format(here=tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "ncclkit-case").exists()


@pytest.mark.parametrize(
    ("job", "typed", "noted"),
    [
        ("", "inspect --data /nvme/of/a/node", "no /nvme/of/a/node on this host"),
        ("", "diagnose ../elsewhere/nope.log", "no ../elsewhere/nope.log on this host"),
        ("", "diagnose nope-*.log", ""),
        ("", "diagnose 4711", ""),
        ("", "rehearse -- python -m nope", ""),
        ("", "step -- python -c pass nope.py", ""),
        ("", "step -- srun --chdir=/work python nope.py", ""),
        ("", "step -- mine nope.py", ""),
        ("", "rehearse -- python train.py", ""),
        ("--setup cd", "rehearse -- python nope.py", "no nope.py on this host"),
        ("--container run", "step -- python nope.py", "no nope.py on this host"),
    ],
)
def test_a_path_that_a_node_may_have_is_left_to_it(
    job: str, typed: str, noted: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    commands(fake, sbatch="echo 7", sinfo="echo gpu")
    # the root of each host is its own
    monkeypatch.setattr(job_paths, "_nearest_folder", lambda path: Path("/"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["submit", "--no-wait", "--dry-run", *job.split(), *typed.split()]) == 0
    said = capsys.readouterr().err
    assert ("on this host; the job looks for it on its nodes" in said) == bool(noted)
    assert noted in said


def test_what_lies_on_the_file_system_of_the_case_is_seen_by_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(job_paths, "_device", lambda path: int(path != Path("/")))
    with pytest.raises(NcclkitError, match="which share its file system"):
        job_paths.missing_paths([f"{tmp_path}/data"], tmp_path / "case", JobOptions())


def test_the_command_of_a_step_keeps_its_own_words_as_a_batch_job(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind ``--`` is the user's: it gets no case folder of ours, and keeps a ``--case`` of its own."""
    commands(fake, sbatch="exit 1", sinfo="echo gpu")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    case = str(tmp_path / "case")
    script = ["python", "train.py", "--case", "A"]
    assert main(["submit", "--dry-run", "step", "--case", case, "--steps", "12", "--", *script]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " -m ncclkit " in line]
    parsed = command_parser().parse_args(shlex.split(line.partition(" -m ncclkit ")[2]))
    assert (parsed.command, parsed.case, parsed.steps) == (script, case, 12)


def test_the_curve_of_a_running_job_has_the_bandwidth_of_a_finished_one(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    plan = Plan("all_reduce", ("collective",), 4, "nccl", sys.executable, 60.0)
    folder = case.new_run("all_reduce")
    (folder / "plan.json").write_text(json.dumps(asdict(plan) | {"job": "7"}))
    raw = {"ncclkit": wire.VERSION, "kind": "measure", "op": "all_reduce", "bytes": 4096, "ranks": 4, "time_us": 8.0}
    (folder / "wire.jsonl").write_text(json.dumps(raw) + "\n")
    announced, measured = submit._Tail(case, submit.BatchJob(tmp_path, "7", ("probe",), 0.0)).records()
    assert announced["kind"] == "plan" and measured["busbw"] == pytest.approx(1.5 * measured["algbw"])


def test_the_text_for_sbatch_is_safe_and_asks_for_all_gpus_of_the_default_partition(tmp_path: Path) -> None:
    case = filled([Fact("scheduler.partitions", scheduler.partitions(NODES, LIMITS))])
    folder = tmp_path / "50% of; it's"
    text = submit.script(case, folder, ["probe", "--env", "A=$(id)"], JobOptions(setup="module load cuda"))
    assert "#SBATCH --gpus-per-node=8\n" in text and "\nmodule load cuda\n" in text
    assert f'#SBATCH --output="{tmp_path}/50%% of; it\'s/job.out"' in text
    assert "probe --env 'A=$(id)'\n" in text
    assert "gpus-per-node" not in submit.script(case, folder, ["probe"], JobOptions(partition="cpu"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, timeout=20).returncode == 0


def test_a_waiting_job_says_its_place_reason_and_expected_start() -> None:
    state = replace(submit.parse_state(WAITING), place=(3, 5))
    assert not state.over and state.sentence == (
        "Job 7 (requeued 1 time) waits in partition gpu, place 3 of 5, jobs of higher priority go first (Priority), "
        "expected to start 2026-11-23 14:05:00."
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("JobState=TIMEOUT", "reached Slurm's time limit; -t asks for more time"),
        ("JobState=PREEMPTED", "was preempted by a job of higher priority"),
        ("JobState=NODE_FAIL", "lost a node, which failed"),
        ("JobState=CANCELLED", "was cancelled"),
        ("JobState=OUT_OF_MEMORY", "for want of memory"),
        ("JobState=PENDING Reason=InvalidAccount", r"will not start as it is \(InvalidAccount\): .* name another with -A"),
        ("JobState=PENDING Reason=Job's_QOS_not_permitted_to_use_this_partition_(a_allows_b_not_c)", "name another with -q or -p"),
        ("JobState=PENDING Reason=PartitionNodeLimit", "will not start .* ask for fewer with -N"),
        ("JobState=FAILED ExitCode=66:0", "does not see the case folder"),
        ("JobState=FAILED ExitCode=68:0", "does not see the folder that it was submitted from"),
        ("JobState=FAILED ExitCode=0:53 RunTime=00:00:00", "could not open job.out in the case folder"),
        ("JobState=PENDING Reason=AssocGrpGRES", "all jobs of your account together .* one must end .AssocGrpGRES"),
        ("JobState=FAILED ExitCode=67:0", "does not see .*python.* install ncclkit on shared storage"),
        ("JobState=RUNNING NodeList=n[1-2] StartTime=2026-11-23T14:05:00", r"runs on n\[1-2\] since 2026-11-23 14"),
        ("JobState=COMPLETED RunTime=00:00:09", "ended well after 00:00:09 .exit status 0."),
        ("JobState=FAILED RunTime=00:00:09 ExitCode=1:0", "ended after 00:00:09 with exit status 1 .it found trouble, or failed."),
        ("JobState=FAILED RunTime=00:00:09 ExitCode=2:0", "ended after 00:00:09 with exit status 2"),
        ("JobState=FAILED RunTime=00:00:09 ExitCode=", "failed after 00:00:09"),
        ("JobState=COMPLETED RunTime=00:00:09 ExitCode=", "ended well after 00:00:09"),
        ("JobState=REQUEUE_HOLD Reason=launch_failed_requeued_held", "waits: its node could not start it, and Slurm holds it: `scontrol release 7` .*"),
        ("JobState=SPECIAL_EXIT Reason=job_requeued_in_held_state", "waits: .* `scontrol release 7` lets it go .*"),
    ],
)
def test_each_state_is_one_sentence(fields: str, sentence: str) -> None:
    import re

    said = submit.parse_state(f"JobId=7 {fields}").sentence
    assert re.fullmatch(rf"Job 7 .*{sentence}.*\.", said), said


def test_a_full_queue_is_said_although_sbatch_goes_on_trying(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"  # of Slurm 22.05
    commands(fake, sbatch=f"echo '{said}' >&2; sleep 60")
    monkeypatch.setattr(submit, "SUBMITS", 3.0)  # a shell on a busy host starts in more than one
    with pytest.raises(NcclkitError, match="unable to accept job, .*; the queue is full: submit it again when"):
        submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions())
    assert list((tmp_path / "case" / "jobs").iterdir()) == []


def test_a_scheduler_that_does_not_answer_is_no_end(fake: Path, tmp_path: Path) -> None:
    commands(fake, scontrol="sleep 60")
    job = submit.BatchJob(tmp_path, "7", ("probe",), 0.0)
    assert not submit.job_state(job).over and "Slurm does not answer" in submit.job_state(job).sentence
    commands(fake, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    commands(fake, sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert (
        submit.job_state(job).sentence == "Job 7 is not known to Slurm any more, and left no end; its node may have failed."
    )
    commands(fake, sacct="echo 'CANCELLED by 0|0:0|00:00:03|n1'")
    assert submit.job_state(job).sentence == "Job 7 was cancelled."
    commands(fake, sacct="exit 1")
    (tmp_path / "exit").write_text("1\n")
    assert submit.job_state(job) == JobState("7", submit.FORGOTTEN, status=1, why="sacct: no output")
    assert submit.job_state(job).sentence == "Job 7 ended with exit status 1 (it found trouble, or failed)."


# ---------------------------------------------------------------- a real Slurm

real = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process on the login node of a cluster of three nodes, each with a folder ``own`` that no other sees."""
    before, place = dict(os.environ), tmp_path_factory.mktemp("slurm")
    (place / "own").mkdir()
    with cluster(place / "slurm", 3, private=place / "own") as env:
        os.environ.update(env, GLOO_SOCKET_IFNAME="lo", OWN=str(place / "own"))
        scheduler._submits.cache_clear()
        yield
        os.environ.clear()
        os.environ.update(before)


def queue() -> str:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, timeout=20).stdout


def ncclkit(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | more
    command = [sys.executable, "-m", "ncclkit", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=110)


def until(job: submit.BatchJob, *states: str, deadline: float = 60) -> JobState:
    end = time.monotonic() + deadline
    while (now := submit.job_state(job)).state not in states:
        assert time.monotonic() < end, now
        time.sleep(0.1)
    return now


@real
@pytest.mark.usefixtures("slurm")
def test_a_live_test_from_the_login_node_and_back(tmp_path: Path) -> None:
    """Submitted, followed, its report printed where it was asked for; found again later, by its case alone.

    torchrun of each node forks its rank.
    """
    place = tmp_path / '50% "of" it\'s $(id) %j'
    place.mkdir()
    forking = warm(os.environ | {"PYTHONPATH": str(ROOT)})
    done = ncclkit("submit", "-N", "2", "probe", "--max-bytes", "4KiB", cwd=place, **forking)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=2" in done.stderr and "rank 0: size 4096 all_reduce" in done.stderr
    assert "all_reduce on 2 ranks over gloo" in done.stdout and "every value was right" in done.stdout
    again = ncclkit("status", cwd=place)
    assert again.stdout == done.stdout and "ncclkit probe --max-bytes 4KiB: Job" in again.stderr
    case = Case.open(place / "case")
    assert {fact.host for fact in case.facts_of("host.kernel")} == {"n1", "n2"} and len(case.measurements) == 4
    form: Any = nk.form.live_test(case)  # the notebook, opened after the job has ended
    assert asyncio.run(form.run()).reason == "done" and queue() == ""


@pytest.fixture
def slurm(login: None) -> Iterator[None]:
    """The cluster, and nothing in its queue afterwards."""
    yield
    subprocess.run(["scancel", "-u", "root"], check=True, timeout=20)
    end = time.monotonic() + 20
    while queue() and time.monotonic() < end:
        time.sleep(0.2)


def waiting(case: Case, **more: Any) -> submit.BatchJob:
    """A job that does nothing for longer than any test."""
    return submit.submit(case, ["causes"], JobOptions(setup="sleep 300", **more))


def interrupted(job: submit.BatchJob, cwd: Path) -> str:
    """What the command that follows a job says at Ctrl-C."""
    command = [sys.executable, "-m", "ncclkit", "status", job.id, "--follow"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=cwd, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = next((line for line in process.stderr if "runs on" in line), "")
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
        assert process.wait(30) == 130, said
    return said


@real
@pytest.mark.usefixtures("slurm")
def test_a_job_that_is_cancelled_requeued_or_loses_its_node_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    cancelled, requeued = waiting(case), waiting(case)
    lost = waiting(case, sbatch_options="--no-requeue")
    late = waiting(case, nodes=3)
    node = {job.id: until(job, "RUNNING").nodes for job in (cancelled, requeued, lost)}
    assert "place 1 of 1" in until(late, "PENDING").sentence
    subprocess.run(["scontrol", "requeue", requeued.id], check=True, timeout=20)
    assert "(requeued 1 time) waits" in until(requeued, "PENDING").sentence
    down = ["scontrol", "update", f"nodename={node[lost.id]}", "state=down", "reason=test"]
    subprocess.run(down, check=True, timeout=20)
    assert "lost a node" in until(lost, "NODE_FAIL").sentence
    subprocess.run([*down[:3], "state=resume"], check=False, timeout=20)  # it may have come back by itself
    assert f"job {cancelled.id} goes on. `ncclkit status --follow" in interrupted(cancelled, tmp_path)
    assert until(cancelled, "RUNNING")
    said = ncclkit("status", cancelled.id, "--cancel", cwd=tmp_path)
    assert said.returncode == 2 and f"Job {cancelled.id} was cancelled." in said.stderr
    for job in (requeued, late):
        submit.cancel(job)
        assert until(job, "CANCELLED").sentence.endswith("was cancelled.")
    assert (queue(), leftovers()) == ("", [])


@real
@pytest.mark.usefixtures("slurm")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_time_limit_preemption_and_what_a_partition_refuses_are_a_sentence_each(tmp_path: Path) -> None:
    """Slurm's shortest limit is a minute, so an administrator moves its end; Slurm looks every half minute."""
    case = Case.open(tmp_path / "case")
    limited, preempted = waiting(case, partition="urgent", time="1"), waiting(case, nodes=2)
    for job in (limited, preempted):
        until(job, "RUNNING")
    # "now" is refused in the second in which the job began
    over = ["scontrol", "update", f"jobid={limited.id}", "EndTime=now+1"]
    subprocess.run(over, check=True, timeout=20)
    urgent = waiting(case, partition="urgent", nodes=2)
    assert "was preempted by a job of higher priority" in until(preempted, "PREEMPTED").sentence
    until(urgent, "RUNNING")
    for partition, hint in (("closed", "name another with -A or -p"), ("short", "-t asks for less|less with -N or -t")):
        never = waiting(case, partition=partition)
        with pytest.raises(NcclkitError, match=f"will not start .*(?:{hint}); it was cancelled"):
            asyncio.run(submit.follow(case, never, longest=20))
    submit.cancel(urgent)
    assert until(limited, "TIMEOUT", deadline=120).sentence.endswith(
        "reached Slurm's time limit; -t asks for more time."
    )
    assert (queue(), leftovers()) == ("", [])


@real
@pytest.mark.usefixtures("slurm")
def test_a_case_that_the_nodes_do_not_see_gets_their_files_over_srun_also_from_a_container(tmp_path: Path) -> None:
    """Each node changes its root before the interpreter starts; facts, records and logs of both come back."""
    (place := tmp_path / "tmp").mkdir()
    case, container = Path(os.environ["OWN"]) / "case", "env NCCL_NTHREADS=256 unshare --mount chroot /"
    env = {"NCCLKIT_CONTAINER": container, "NCCLKIT_SRUN_OPTIONS": "--mpi=none", "TMPDIR": str(place)}
    env["PYTHONPATH"] = str(ROOT)
    words = ["probe", "--max-bytes", "4KiB", "--case", str(case)]
    command = ["salloc", "-N2", "-n2", sys.executable, "-m", "ncclkit", *words]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and "every value was right" in done.stdout, done.stderr
    assert f"n[1-2] cannot see {case}/runs; its files come over srun." in done.stderr
    run = case / "runs" / "2-all_reduce"
    kept = {path.name for path in run.iterdir()}
    assert {"rank0.log", "rank1.log", "telemetry-node1.jsonl", "status-node1.json", "plan.json"} <= kept
    assert not [name for name in kept if name.startswith(".")]
    seen = Case.open(case).facts_of("env.NCCL_NTHREADS")
    assert {fact.host: str(fact.value) for fact in seen} == {"n1": "256", "n2": "256"}
    assert leftovers() == [] and not list(place.glob(private.PREFIX + "*"))


@real
@pytest.mark.usefixtures("slurm")
def test_what_can_never_start_is_refused_or_cancelled_with_one_sentence(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    with pytest.raises(NcclkitError, match=r"Invalid partition name specified; name another with -p \(`sinfo -s`"):
        submit.submit(case, ["probe"], JobOptions(partition="nowhere"))
    with pytest.raises(NcclkitError, match="no node has so many GPUs, .*--gpus-per-node 0 takes any nodes"):
        submit.submit(case, ["probe"], JobOptions(gpus_per_node=8))
    assert list((tmp_path / "case" / "jobs").iterdir()) == []
    job, less = waiting(case, nodes=9), "(?:less with -N or -t|ask for fewer with -N)"
    with pytest.raises(NcclkitError, match=f"will not start .* {less}; it was cancelled"):
        asyncio.run(submit.follow(case, job, longest=20))
    assert until(job, "CANCELLED") and queue() == ""


@real
def test_a_full_spool_and_a_full_queue_are_a_sentence_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node whose spool is full is drained, and cannot start the one job that the controller may hold."""
    spool, case = tmp_path / "slurm" / "spool", Case.open(tmp_path / "case")
    with cluster(tmp_path / "slurm", 1, private=spool, more="MaxJobCount=2") as env:
        monkeypatch.setenv("SLURM_CONF", env["SLURM_CONF"])
        monkeypatch.setattr(submit, "SUBMITS", 3.0)
        node = (tmp_path / "slurm" / "slurmd.n1.pid").read_text().strip()
        fill = f"head -c 99M /dev/zero > {spool}/full"
        subprocess.run(["nsenter", "-t", node, "-m", "sh", "-c", fill], check=False, stderr=subprocess.PIPE, timeout=30)
        job, end = waiting(case), time.monotonic() + 60
        with pytest.raises(NcclkitError, match="; the queue is full: submit it again when jobs have ended"):
            waiting(case)
        while "n1: SlurmdSpoolDir is full" not in (said := submit.job_state(job).sentence):
            assert time.monotonic() < end, said
            time.sleep(0.2)
        assert "its node could not start it, and Slurm holds it" in said or "nodes that it needs are down" in said


ENDLESS = """
import asyncio, sys
from ncclkit.core.case import Case
from ncclkit.core.runs import Plan
from ncclkit.live import probe
argv = ("collective", "--backend", "gloo", "--sizes", ",".join(["16777216"] * 2000), "--timeout", "60")
plan = Plan("all_reduce", argv, 2, "gloo", sys.executable, 90.0)
told = lambda record: print(record.get("phase", ""), flush=True)
print(asyncio.run(probe.execute(Case.open("case"), plan, told)).summary)
"""


@real
@pytest.mark.usefixtures("slurm")
def test_an_srun_that_is_killed_is_said_and_its_ranks_end(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        ["salloc", "-N2", "-n2", sys.executable, "-c", ENDLESS], cwd=tmp_path, env=env, **pipes
    ) as allocation:
        assert allocation.stdout and any("size" in line for line in allocation.stdout)
        for child in psutil.Process(allocation.pid).children(recursive=True):
            if child.is_running() and child.name() == "srun":
                child.kill()
        said, _ = allocation.communicate(timeout=100)
    assert "failed after" in said and "srun was killed by signal 9" in said, said
    end = time.monotonic() + 30
    while leftovers() and time.monotonic() < end:
        time.sleep(0.2)
    assert leftovers() == []


@pytest.fixture
def dask_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers of Dask find their keys, and this repository."""
    pytest.importorskip("dask_jobqueue")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NCCLKIT_DASK_INTERFACE", "lo")
    return tmp_path


def nothing_of_dask_is_left(home: Path, seconds: float = 10.0) -> bool:
    """Whether in some seconds no job, no worker and no key is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = [queue().strip(), *map(str, home.glob(".dask-jobqueue.*")), *map(str, dask_workers(home))]
        if not any(left):
            return True
        time.sleep(0.2)
    raise AssertionError(left)


def dask_workers(home: Path) -> list[int]:
    """The workers that got their keys in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "distributed.cli.dask_worker" in command and any(str(home) in word for word in command):
                found.append(process.pid)
    return found


@real
@pytest.mark.usefixtures("slurm")
@pytest.mark.slow
def test_workers_of_dask_are_batch_jobs_that_leave_nothing(dask_home: Path) -> None:
    given, said = [samples.HERE / "rank_late"], list[str]()
    with workers.started("dask:1", said.append) as executor:
        assert executor is not None, said
        assert evidence.read(given, executor=executor) == evidence.read(given)
        assert "ncclkit-" in queue() and len(dask_workers(dask_home)) == 1
        assert len([*dask_home.glob(".dask-jobqueue.*")]) == 3
    assert nothing_of_dask_is_left(dask_home)
    assert list(dask_home.iterdir()) == []


READING = """
import sys
from ncclkit.live import workers
with workers.started("dask:1", print) as executor:
    print(executor.submit(abs, -7).result(), flush=True)
    sys.stdin.read()
"""


@real
@pytest.mark.usefixtures("slurm")
@pytest.mark.slow
@pytest.mark.parametrize("slurm_dies", [False, True], ids=["alone", "and what Slurm has on its node"])
def test_batch_jobs_of_dask_end_with_a_reading_that_is_killed(dask_home: Path, slurm_dies: bool) -> None:
    """With its keys; also where nobody of Slurm is left that would kill a worker, which ends by itself."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", READING], stdin=pipe, stdout=pipe, text=True) as verb:
        assert verb.stdout is not None
        assert [verb.stdout.readline() for _ in range(2)][1] == "7\n"
        (worker,) = dask_workers(dask_home)
        if slurm_dies:
            for parent in psutil.Process(worker).parents():
                if parent.name().startswith("slurmstepd"):
                    parent.kill()
        verb.kill()
    assert nothing_of_dask_is_left(dask_home, 20.0)


@real
@pytest.mark.usefixtures("slurm")
def test_a_case_folder_that_its_node_does_not_see_is_said(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    job = submit.submit(case, ["causes"], JobOptions(sbatch_options="--begin=now+2"))
    shutil.move(tmp_path / "case", tmp_path / "elsewhere")
    (tmp_path / "case" / "jobs" / "1-causes").mkdir(parents=True)  # where Slurm writes, and nothing of ours lies
    assert "does not see the case folder" in until(job, "FAILED").sentence


@real
@pytest.mark.usefixtures("slurm")
def test_a_case_and_a_folder_that_no_node_shares_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm ends the one with 0:53 before its script begins, and our script the other."""
    own = Path(os.environ["OWN"])
    job = submit.submit(Case.open(own / "unshared"), ["causes"], JobOptions())
    assert "before its script began (Slurm's 0:53)" in until(job, "FAILED").sentence
    (own / "home").mkdir()
    monkeypatch.chdir(own / "home")
    elsewhere = submit.submit(Case.open(tmp_path / "case"), ["causes"], JobOptions())
    assert "does not see the folder that it was submitted from" in until(elsewhere, "FAILED").sentence
