"""Standard streams that are full, closed or broken, and a folder that is gone: a sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkit.cli.parser import command_parser
from ncclkit.cli.verbs.completion import verb_parsers
from ncclkit.evidence.samples import HERE
from tests.cli.command import LATE, ROOT, Answer

FIRST_WORDS = {
    "causes": (),
    "compare": ("case",),
    "decide": (LATE,),
    "completion": ("bash",),
    "diagnose": (LATE,),
    "lab": ("rank_late",),
    "step": ("--", "python", "train.py"),
    "submit": ("probe",),
}
"""What a verb needs at least; all others need nothing."""
EACH_VERB = """
import json, os, sys
from ncclkit.cli import main

def answered(argv, closed):
    "Run the command as in a process whose standard output is closed or full, and pass on what it says."
    said, tells = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(tells, 2)
        sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)
        os.close(1)
        sys.stdout = sys.__stdout__ = None
        if not closed:
            os.open("/dev/full", os.O_WRONLY)
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
        os._exit(main(argv))
    os.close(tells)
    with open(said) as words:
        text = words.read()
    return [argv, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text]

asked = json.load(sys.stdin)
print(json.dumps([answered(argv, closed) for argv, closed in asked]))
"""


def verbs() -> list[str]:
    return [verb.prog.split()[-1] for verb in verb_parsers(command_parser())]


def test_no_verb_takes_an_output_that_it_cannot_write_for_a_finding(tmp_path: Path) -> None:
    """Status 1 means that a cause was found.  Where nobody can hear of it, nothing is begun, either."""
    closed = [([verb, *FIRST_WORDS.get(verb, ())], True) for verb in verbs() if verb != "gate"]
    full = [([verb, "--help"], False) for verb in verbs()]
    real = [(["diagnose", LATE], False), (["diagnose", "--json", LATE], False), (["causes", "slow_rank"], False)]
    real += [(["completion", "bash"], False), (["lab", "--list"], False)]
    done = subprocess.run(
        [sys.executable, "-c", EACH_VERB],
        input=json.dumps([*closed, *full, *real]),
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    answers = json.loads(done.stdout)
    assert len(answers) > 2 * 15
    for argv, status, text in answers:
        said = [line for line in text.splitlines() if not line.startswith("ncclkit: Read ")]
        assert status == 2 and len(said) == 1 and said[0].startswith("ncclkit: "), (argv, status, text)
        assert "tandard output" in said[0], (argv, text)
    assert list(tmp_path.iterdir()) == []


def in_a_shell(line: str, cwd: Path | None = None) -> Answer:
    command = f'ncclkit() {{ {sys.executable} -m ncclkit "$@"; }}; set -o pipefail; {line}'
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=110, env=environ, cwd=cwd)


def test_a_reader_that_has_seen_enough_leaves_the_verdict_alone() -> None:
    done = in_a_shell(f"ncclkit diagnose --json {LATE} | head -c 10")
    assert (done.returncode, done.stdout[:1], done.stderr) == (1, "{", "")


def test_the_first_line_is_the_verdict_and_the_status_stays() -> None:
    """Where the answer is larger than what a pipe holds, `head` leaves before it is written."""
    logs = " ".join(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir() and folder.name[0] != "_")
    done = in_a_shell(f"ncclkit diagnose {LATE} | head -1")
    assert (done.returncode, done.stdout.count("\n")) == (1, 1) and done.stdout.startswith("proven: Rank 2, busy")
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr
    large = in_a_shell(f"ncclkit diagnose {logs} | head -1")
    assert large.returncode == 1 and "Traceback" not in large.stderr and "Broken" not in large.stderr


@pytest.mark.parametrize("notes", ["2>&-", "2>/dev/full"])
def test_notes_that_nobody_reads_leave_the_answer_alone(notes: str) -> None:
    """Where standard error was closed its notes stood among the JSON."""
    done = in_a_shell(f"ncclkit diagnose --json {LATE} /dev/null {notes}")
    assert done.returncode == 1 and json.loads(done.stdout)["verdict"] == "found"


def test_a_closed_standard_input_is_an_empty_one() -> None:
    done = in_a_shell("ncclkit diagnose - <&-")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("ncclkit: "), done


def test_a_gate_that_nobody_hears_drains_no_node() -> None:
    done = in_a_shell("ncclkit gate --seconds 30 >&-")
    assert done.returncode == 2 and "could not be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("inspect", 2),
        ("probe", 2),
        ("exam --recorded", 2),
        ("status", 2),
        ("causes slow_rank", 0),
        (f"diagnose {LATE}", 1),
    ],
)
def test_a_folder_that_has_been_deleted(tmp_path: Path, words: str, status: int) -> None:
    (tmp_path / "gone").mkdir()
    done = in_a_shell(f"rmdir ../gone; ncclkit {words}", cwd=tmp_path / "gone")
    assert done.returncode == status and "Traceback" not in done.stderr, done
    if status == 2:
        assert done.stderr == (
            "ncclkit: The current folder has been deleted; change to one that exists, and repeat the command.\n"
        )
