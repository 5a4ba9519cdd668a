"""The program of a dead job: which of its files are opened, and which lines are believed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ncclkit.evidence import programs
from ncclkit.evidence.programs import LARGEST_FILE, LineOfJob, is_same_line, read_source
from tests import dead_jobs


def test_a_file_at_the_very_path_is_read(tmp_path: Path) -> None:
    path = dead_jobs.program(tmp_path)
    assert read_source(path, "") == dead_jobs.PROGRAM


def refused(folder: Path) -> dict[str, Path]:
    """Things at paths that a log could name."""
    real = folder / "real"
    real.mkdir()
    dead_jobs.program(real)
    (folder / "link.py").symlink_to(real / "train.py")
    (folder / "linked").symlink_to(real)
    os.mkfifo(folder / "pipe.py")
    (folder / "folder.py").mkdir()
    (folder / "large.py").write_bytes(b"#" * (LARGEST_FILE + 1))
    (folder / "secrets.txt").write_text("token")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.py"))
    return {
        "a link": folder / "link.py",
        "below a link": folder / "linked" / "train.py",
        "a pipe": folder / "pipe.py",
        "a folder": folder / "folder.py",
        "a socket": folder / "socket.py",
        "too large": folder / "large.py",
        "no Python": folder / "secrets.txt",
        "upwards": real / ".." / "real" / "train.py",
        "absent": folder / "absent.py",
    }


def test_nothing_but_regular_files_of_python_is_opened(tmp_path: Path) -> None:
    for what, path in refused(tmp_path).items():
        assert read_source(str(path), "") is None, what
    for path in ("train.py", "/dev/zero", "/proc/self/cwd/train.py", "/proc/self/environ", "\0.py", "<string>", ""):
        assert read_source(path, "") is None, path


def test_below_a_folder_nothing_outside_of_it_is_opened(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "pkg").mkdir(parents=True)
    dead_jobs.program(tmp_path)
    dead_jobs.program(inside / "pkg", "# of the package\n")
    (inside / "out.py").symlink_to(tmp_path / "train.py")
    (inside / "away").symlink_to(tmp_path)
    assert read_source("/job/pkg/train.py", str(inside)) == "# of the package\n"
    assert read_source("pkg/train.py", str(inside)) == "# of the package\n"
    for path in ("/job/train.py", str(tmp_path / "train.py"), "../train.py", "/a/../train.py", "out.py", "away/train.py"):
        assert read_source(path, str(inside)) is None, path


@pytest.mark.parametrize(
    ("line", "func", "called", "text", "same"),
    [
        (8, "train", ["evaluate"], "evaluate(batches)", True),
        (8, "Trainer.train", ["evaluate"], "", True),
        (8, "train", ["evaluate"], "evaluate(batches, 3)", False),
        (8, "train", ["all_gather"], "", False),
        (8, "evaluate", ["evaluate"], "", False),
        (99, "train", ["evaluate"], "", False),
        (0, "train", ["evaluate"], "", False),
        (4, "train", ["evaluate"], "", False),
        (5, "train", ["__next__"], "", True),
        (13, "evaluate", ["all_gather", "wrapper"], "dist.all_ga", True),
    ],
)
def test_a_line_that_holds_another_call_is_not_believed(
    line: int, func: str, called: list[str], text: str, same: bool
) -> None:
    assert is_same_line(dead_jobs.PROGRAM, LineOfJob(line, func, called, text)) is same


def test_lines_are_events_with_their_conditions(tmp_path: Path) -> None:
    path = dead_jobs.program(tmp_path)
    log = dead_jobs.traceback(0, dead_jobs.in_evaluation(path))
    lines = [event for event in dead_jobs.read_dead(tmp_path, log).events if event.kind == "program.line"]
    assert [(event.path, event.line, event.data.conditions) for event in lines] == [
        (path, 13, []),
        (path, 8, ["rank == 0"]),
    ]


def test_a_program_that_takes_too_long_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> object:
        raise programs.Refused("takes more than 3 s to read")

    monkeypatch.setattr(programs.limited, "call", refuse)
    reading = dead_jobs.read_dead(tmp_path, dead_jobs.traceback(0, dead_jobs.in_loop(dead_jobs.program(tmp_path))))
    assert any("takes more than 3 s" in problem for problem in reading.problems)
    assert not any(event.kind == "program.line" for event in reading.events)
