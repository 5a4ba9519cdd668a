"""`ncclkit decide`: its exit status, what scripts read of it, and its history."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkit.cli import main
from ncclkit.cli.verbs.decide import node_names
from ncclkit.evidence.samples import HERE

LIMIT = "slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT 2026-11-21T01:02:03 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(
    ("run", "status", "said"),
    [
        ("rank_killed", 0, "Restart or stop: restart: the program is not to blame"),
        ("rank_raises", 1, "Restart or stop: stop, and fix the program: ValueError at "),
        ("bad_debug", 1, "Restart or stop: stop, and fix the set-up: the setting is the same"),
        ("healthy", 3, "Restart or stop: wait and see: the job went well."),
    ],
)
def test_the_exit_status_is_the_answer(
    run: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decide", str(HERE / run)]) == status
    assert capsys.readouterr().out.startswith(said)


BUG = """step 7
Traceback (most recent call last):
  File "/home/ann/bug.py", line 2, in <module>
    raise ValueError("sample 7 is empty")
ValueError: sample 7 is empty
srun: error: n1: task 0: Exited with exit code 1
"""


def test_an_exception_is_said_with_its_line_and_that_its_rank_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm-7.out").write_text(BUG)
    assert main(["decide", str(tmp_path / "slurm-7.out")]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Restart or stop: stop, and fix the program: ValueError at bug.py:2 (<module>) most likely")
    assert "raised ValueError: sample 7 is empty at bug.py:2" in said and "Which rank that was is not known" in said
    assert f"{tmp_path}/slurm-7.out:5: ValueError: sample 7 is empty" in said
    named = "".join(f"[rank3]: {line}\n" for line in BUG.splitlines()[1:5])
    (tmp_path / "rank.out").write_text(named)
    assert main(["decide", str(tmp_path / "rank.out")]) == 1
    said = capsys.readouterr().out
    assert "Rank 3 raised" in said and "not known" not in said


def test_what_slurm_has_requeued_is_submitted_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm-7.out").write_text("[rank0]: step 3/9\n" + LIMIT.format(job=7).replace("TIME LIMIT", "PREEMPTION"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    for state, restarts, status, say in (
        ("PENDING", 1, 3, "wait and see: Slurm has put job 7 into the queue again by itself, so nobody has to submit"),
        ("PREEMPTED", 0, 0, "Slurm has not requeued it by itself, so submit it again"),
    ):
        line = f"JobId=7 JobState={state} Restarts={restarts} NodeList=n1 StdOut={tmp_path}/slurm-7.out StdErr={tmp_path}/slurm-7.out"
        (tmp_path / "scontrol").write_text(f'#!/bin/sh\ncase "$*" in *job*) echo "{line}";; *) exit 1;; esac\n')
        (tmp_path / "scontrol").chmod(0o755)
        assert main(["decide", "7"]) == status
        assert say in capsys.readouterr().out
    assert main(["decide", str(tmp_path / "slurm-7.out")]) == 0
    assert "; `squeue --me` says whether Slurm has requeued it by itself" in capsys.readouterr().out


def test_what_cannot_be_read_restarts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", str(tmp_path / "gone.out")]) == 2
    (tmp_path / "empty.out").touch()
    assert main(["decide", str(tmp_path / "empty.out")]) == 2
    for job in (4711, 4712):
        (tmp_path / f"slurm-{job}.out").write_text(LIMIT.format(job=job))
    assert main(["decide", *map(str, tmp_path.glob("slurm-*.out"))]) == 2
    assert "of 2 jobs; name those of one attempt" in capsys.readouterr().err


def test_hosts_alone_are_printed_for_sbatch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", "--hosts", str(HERE / "lossy_link")]) == 0
    printed = capsys.readouterr()
    assert printed.out == "node-1,node-2\n" and "Restart or stop: restart without" in printed.err
    assert main(["decide", "--hosts", str(HERE / "rank_raises")]) == 1
    assert capsys.readouterr().out == "", "a job that is stopped leaves out nobody"


def test_a_host_of_a_log_is_no_option_and_no_address() -> None:
    hosts = ("n2.cluster.local", "-x", "10.0.0.1", "fe80::1", "n[1-900]", "n3,n4", "a b", "$(id)", "", "n2")
    assert node_names(hosts) == ["n2"]


def test_asking_twice_about_the_same_logs_is_one_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "attempts.jsonl"
    words = ["decide", "--json", "--history", str(history), str(HERE / "rank_killed")]
    assert [main(words), main(words)] == [0, 0]
    assert len(history.read_text().splitlines()) == 1
    told = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join("{ "))
    assert told["earlier_attempts"] == 0
    assert told["action"] == {
        "name": "restart",
        "reason": "the program is not to blame for a signal from outside",
        "exclude_hosts": [],
    }
    main(["decide", "--history", str(history), str(HERE / "healthy")])
    assert len(history.read_text().splitlines()) == 1, "what went well is no failed attempt"


def test_a_job_that_dies_again_and_again_is_left_to_a_person(tmp_path: Path) -> None:
    """As a launcher would use it: by its exit status, until that is not 0; the program wins no step."""
    tries = tmp_path / "tries"
    log = tmp_path / "train.log"
    text = "elastic/multiprocessing/api.py:986] failed (exitcode: -9) local_rank: 2 (pid: 1528) of binary: python3\n"
    decide = f"{sys.executable} -m ncclkit decide --history {tmp_path}/h.jsonl {log}"
    line = f"until echo x >> {tries}; printf %s '{text}' >> {log}; false; do {decide} || exit; done"
    ended = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 3, ended
    assert len(tries.read_text().split()) == 2
    assert "1 attempt before this one won no step" in ended.stdout
