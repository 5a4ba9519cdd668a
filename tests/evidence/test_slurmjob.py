"""A Slurm job id stands for what the job wrote, as Slurm's own commands tell; these here are scripts in their place."""

from __future__ import annotations

import os

import pytest

from ncclkit import evidence
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import read_logs
from ncclkit.evidence.sources import inputs

GOOD = "RuntimeError: CUDA error: boom\n"
SHOWN = (
    "JobId=12345 JobName=train UserId=me(1000) JobState=RUNNING Command=/home/me/a job.sh WorkDir={0} "
    "StdErr={0}/my errors.txt StdIn=/dev/null StdOut={0}/out.txt Power= TresPerNode=gres:gpu:8\n"
)
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
OLD = """case "$*" in *StdOut*) echo 'sacct: error: Invalid field requested: "StdOut"' >&2; exit 1;; esac; """


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """``slurm(scontrol=…, sacct=…)`` puts scripts with these names first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(**scripts):
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if scripts else str(folder))
        for name, body in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)

    monkeypatch.chdir(tmp_path)
    return install


RUNS = (
    "Slurm job 12345 still runs, so its logs end before the job does; `ncclkit attach --job 12345` looks at its ranks now."
)


def logs(folder, *names):
    for name in names:
        (folder / name).write_text(GOOD)


def read(job):
    reading = evidence.read([job])
    return [os.path.basename(row["path"]) for row in reading.inputs], reading.problems


@pytest.mark.parametrize("job", ["12345", "slurm:12345"])
def test_a_running_job_gives_its_output_and_its_errors(tmp_path, slurm, job):
    logs(tmp_path, "out.txt", "my errors.txt")
    slurm(scontrol=f'test "$*" = "-o -- show job 12345" && cat <<X\n{SHOWN.format(tmp_path)}X')
    assert read(job) == (["my errors.txt", "out.txt"], [RUNS])


def test_one_file_for_both_is_read_once_and_a_missing_one_is_named(tmp_path, slurm):
    logs(tmp_path, "out.txt")
    slurm(scontrol=f"cat <<X\n{SHOWN.format(tmp_path)}X")
    names, problems = read("12345")
    missing, runs = problems
    assert names == ["out.txt"] and "my errors.txt, which is not there" in missing and runs == RUNS
    slurm(scontrol=f"echo 'JobId=1 StdErr={tmp_path}/out.txt StdOut={tmp_path}/out.txt'")
    assert read("1") == (["out.txt"], [])


def test_the_tasks_of_an_array_are_read_together(tmp_path, slurm):
    logs(tmp_path, "a_1.out", "a_2.out")
    rows = "\n".join(f"JobId=7 ArrayTaskId={n} StdErr={tmp_path}/a_{n}.out StdOut={tmp_path}/a_{n}.out" for n in (1, 2))
    slurm(scontrol=f"cat <<X\n{rows}\nX")
    assert read("7") == (["a_1.out", "a_2.out"], [])


def test_names_with_nodes_and_tasks_stand_for_all_their_files(tmp_path, slurm):
    """As scontrol of Slurm 22.05 says them: it fills in %j and %x, and leaves %N, %n and %t."""
    logs(tmp_path, "log[x]-7-n1-0.out", "log[x]-7-n2-1.out", "log[x]-8-n1-0.out", "arr-9_1-0.out", "arr-9_2-0.out")
    said = "JobId=7 StdErr={0}/log[x]-7-%N-%t.out StdOut={0}/log[x]-7-%N-%t.out"
    slurm(scontrol=f"echo '{said.format(tmp_path)}'")
    assert read("7") == (["log[x]-7-n1-0.out", "log[x]-7-n2-1.out"], [])
    slurm(scontrol=f"echo 'JobId=9 ArrayTaskId=1-2 StdOut={tmp_path}/arr-9_4294967294-%2n.out'")
    assert read("9") == (["arr-9_1-0.out", "arr-9_2-0.out"], [])
    slurm(scontrol=f"echo 'JobId=6 StdOut={tmp_path}/gone-%N.out'", sacct="exit 1")
    with pytest.raises(NcclkitError, match="gone-%N.out, which is not there"):
        evidence.read(["6"])


def test_a_job_that_the_controller_forgot_is_in_the_accounting(tmp_path, slurm):
    logs(tmp_path, "out.txt")
    slurm(scontrol=FORGOTTEN, sacct=f"echo '{tmp_path}/out.txt|{tmp_path}/out.txt'")
    assert read("12345") == (["out.txt"], [])


@pytest.mark.parametrize(("job", "name"), [("12345", "slurm-12345.out"), ("12345_7", "slurm-12345_7.out")])
def test_an_old_accounting_knows_the_folder_only(tmp_path, slurm, job, name):
    logs(tmp_path, name, "slurm-99999.out")
    slurm(scontrol=FORGOTTEN, sacct=f"{OLD} echo '{tmp_path}'")
    assert read(job) == ([name], [])


@pytest.mark.parametrize(
    ("scripts", "says"),
    [
        ({}, "scontrol is not installed; sacct is not installed"),
        ({"scontrol": FORGOTTEN, "sacct": "exit 0"}, "Invalid job id specified; sacct: no such job"),
        ({"scontrol": "echo StdOut=/gone/out.txt", "sacct": "exit 0"}, "writes to /gone/out.txt, which is not there"),
        ({"scontrol": "head -c 3000 /dev/urandom", "sacct": "yes | head -9"}, "knows no output of such a job"),
    ],
    ids=["no slurm", "unknown", "gone", "nonsense"],
)
def test_what_slurm_cannot_tell_is_one_sentence(slurm, scripts, says):
    slurm(**scripts)
    with pytest.raises(NcclkitError) as error:
        evidence.read(["12345"])
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scontrol", "why"),
    [
        ("sleep 60", "scontrol did not answer within 0.2 s"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "Unable to contact"),
    ],
)
def test_a_controller_that_does_not_answer_is_no_unknown_job(tmp_path, slurm, monkeypatch, scontrol, why):
    """And one that hangs is asked nothing else."""
    monkeypatch.setattr(inputs, "DEADLINE", 0.2 if "sleep" in scontrol else 20.0)
    slurm(scontrol=scontrol, sacct=f"touch {tmp_path}/asked; exit 1")
    with pytest.raises(NcclkitError, match=f"Slurm did not say what job 4711 writes to .*{why}"):
        evidence.read(["4711"])
    assert (tmp_path / "asked").exists() == ("sleep" not in scontrol)


def test_a_file_of_that_name_wins(tmp_path, slurm):
    slurm(scontrol="exit 1")
    logs(tmp_path, "12345")
    assert read("12345") == (["12345"], [])


@pytest.mark.parametrize("name", ["12345; touch x", "1234567890123", "12345_", "slurm:", "-12345"])
def test_only_a_job_id_reaches_slurm(tmp_path, slurm, name):
    slurm(scontrol=f"touch {tmp_path}/asked")
    with pytest.raises(NcclkitError, match="does not exist"):
        evidence.read([name])
    assert not (tmp_path / "asked").exists()


def test_two_job_ids_are_two_jobs_wherever_their_output_lies(tmp_path, slurm):
    logs(tmp_path, "out.1", "out.2", "err.2")
    answer = f'echo "JobId=$5 StdErr={tmp_path}/err.$5 StdOut={tmp_path}/out.$5"'
    slurm(scontrol=f'set -- 1 2 3 4 "${{5#471}}"; {answer}')
    case = read_logs("4711 4712")
    assert {os.path.basename(event.path) for event in case.events} == {"out.1"}
    assert (case.about["logs"], case.about["other_jobs"]) == ("slurm:4711", [["slurm:4712"]])
