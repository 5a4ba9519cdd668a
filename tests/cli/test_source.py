"""`ncclkit diagnose` and the program of a job: where it looks, and for whom it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import dead_jobs
from tests.cli.command import Typed


@pytest.mark.parametrize(
    ("at", "words", "ranks"),
    [
        ("", (), [0]),
        ("", ("--mark-log-text",), [0, 1]),
        ("", ("--source", "elsewhere"), [0, 1]),
        ("elsewhere", (), [0, 1]),
        ("elsewhere", ("--source", "elsewhere"), [0]),
        ("elsewhere", ("--source", "elsewhere", "--mark-log-text"), [0]),
    ],
)
def test_where_the_program_is_read(tmp_path: Path, typed: Typed, at: str, words: tuple[str, ...], ranks: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    dead_jobs.program(tmp_path / at)
    path = str(tmp_path / "train.py")
    log = dead_jobs.traceback(0, dead_jobs.in_evaluation(path)) + dead_jobs.traceback(1, dead_jobs.in_barrier(path))
    (tmp_path / "job.log").write_text(log)
    said = typed("diagnose", "--json", "job.log", *words, cwd=tmp_path)
    assert json.loads(said.stdout)["findings"][0]["culprits"]["ranks"] == ranks


def test_a_source_that_is_no_folder_is_one_sentence(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "job.log").write_text("step 1\n")
    said = typed("diagnose", "job.log", "--source", "nowhere", cwd=tmp_path)
    assert said.returncode == 2 and "--source names a folder" in said.stderr
