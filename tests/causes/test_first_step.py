"""The first thing to do is a line that works when it is pasted, whatever the verdict is about."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkit.causes._first_step import _advised_line
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import Summary, summarize
from ncclkit.cli.parser import command_parser
from ncclkit.core.case import Case
from ncclkit.core.model import Advice
from ncclkit.evidence import logs
from ncclkit.evidence.samples import HERE
from tests.cases import read_files, read_text
from tests.recordings import RECORDINGS

TESTS = Path(__file__).parents[1]
POSTED = sorted(TESTS.glob("exam/*/*.json"))
SHARED = TESTS.parents[1] / "shared" / "cases"
TEXTS = 60
PLACEHOLDER = re.compile(r"<[a-z][^<>]*>|<IP|…|\.\.\.|'MASTER_|/MASTER_|\$SLURM_|\$HEAD| # ")


def summary_of(case: Case, paths: str = "") -> Summary:
    return summarize(case, diagnose(case), paths and f"ncclkit diagnose {paths}")


def first_steps() -> Iterator[tuple[str, Summary]]:
    """Of each recording, of posted texts, and of cases that lie beside a clone."""
    for folder in RECORDINGS:
        yield str(folder), summary_of(read_files(folder), shlex.quote(str(folder)))
    for path in POSTED[:: len(POSTED) // TEXTS]:
        text = json.loads(path.read_text(encoding="utf-8"))["log"]
        yield str(path), summary_of(read_text(text), "-")
    for path in sorted(SHARED.glob("*.json"))[::8]:
        yield str(path), summary_of(read_files(path), shlex.quote(str(path)))


def problem_of(summary: Summary) -> str:
    """Why the first step cannot be pasted; empty where it can, or where nothing is to be done."""
    if summary.verdict in ("healthy", "running"):
        return ""
    command = summary.command
    if not command:
        return f"no command for {summary.first_step!r}"
    if PLACEHOLDER.search(command) or "\n" in command:
        return f"{command!r} must be completed first"
    if subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode:
        return f"bash does not understand {command!r}"
    if not command.startswith("ncclkit "):
        return ""
    options = command_parser().parse_args(shlex.split(command)[1:])
    gone = [
        path for path in getattr(options, "paths", ()) if path != "-" and not os.path.exists(path)
    ]
    return f"there is no {gone[0]}" if gone else ""


@pytest.mark.slow
def test_every_first_step_is_a_line_to_paste() -> None:
    walked = list(first_steps())
    problems = [
        f"{name}: {problem}" for name, summary in walked if (problem := problem_of(summary))
    ]
    assert len(walked) >= len(RECORDINGS) + TEXTS and problems == []


def test_an_experiment_is_made_where_a_run_of_ours_can_be_repeated() -> None:
    folder = HERE / "long_first_step"
    summary = summary_of(read_files(folder), str(folder))
    assert summary.first_step.startswith("Make this experiment: Does the step of a small job end")
    assert summary.command == f"ncclkit diagnose --check {folder}"


BARE = "NCCL WARN Cuda failure 1 'invalid argument' in cuMemImportFromShareableHandle; pods of one GPU each\n"
"""A symptom that several causes share."""


def test_of_anybody_elses_job_one_question_is_asked(tmp_path: Path) -> None:
    """Its experiment cannot be made here."""
    log = tmp_path / "a job.log"
    log.write_text(BARE)
    case = read_files(log)
    summary = summary_of(case, shlex.quote(str(log)))
    asked = diagnose(case).differential
    assert asked and asked.question
    assert summary.first_step == f"Answer this question: {asked.question.question}"
    assert summary.command == f"ncclkit ask '{log}'"


def test_the_folder_of_a_page_is_not_its_next_step(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(BARE)
    case = logs.read_logs(str(tmp_path / "job.log"), tmp_path / "case")
    case.about.pop("logs")
    summary = summarize(case, diagnose(case))
    assert summary.reproduce == f"ncclkit diagnose {tmp_path / 'case'}"
    assert summary.command == f"ncclkit causes {summary.cause}"


def test_what_is_collected_by_a_setting_has_the_setting(tmp_path: Path) -> None:
    summary = summary_of(read_text("RuntimeError: NCCL error: unhandled cuda error\n"), "-")
    assert summary.verdict == "unexplained" and summary.command == "export NCCL_DEBUG=WARN"
    nobody = summary_of(read_text("good morning\n"), "-")
    assert nobody.verdict == "no_job" and nobody.command == "ncclkit attach"


@pytest.mark.parametrize(
    ("command", "pasted"),
    [
        ("ulimit -n 65536   # in the job script; docker run --ulimit …", "ulimit -n 65536"),
        (
            "torchrun x.py   # or: export A=$((2 + SLURM_JOB_ID % 4))",
            "export A=$((2 + SLURM_JOB_ID % 4))",
        ),
        ("df -h; export TMPDIR=<a folder>", "df -h"),
        (
            "python -c 'import torch; print(torch)'; srun --cpus-per-task=3 …",
            "python -c 'import torch; print(torch)'",
        ),
        ("(dmesg; journalctl) | grep <name>", ""),
        ("getent hosts 'MASTER_ADDR'", ""),
        (
            "timeout 5 bash -c '</dev/tcp/10.0.0.1/1234'",
            "timeout 5 bash -c '</dev/tcp/10.0.0.1/1234'",
        ),
    ],
)
def test_of_a_command_that_is_kept_which_needs_no_word_of_the_reader(
    command: str, pasted: str
) -> None:
    assert _advised_line(Advice("do", command=command)) == pasted


def test_a_setting_that_must_be_completed_is_none() -> None:
    assert _advised_line(Advice("do", env={"A": "<interface>"})) == ""
    assert (
        _advised_line(Advice("do", env={"A": "1", "B": "eth 0"})) == "export A=1; export B='eth 0'"
    )
