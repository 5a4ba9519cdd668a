"""What a machine cannot do stands at the end of a test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.packaging.project import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_gpu(number):
    pytest.skip("no GPU\\n here")

@pytest.mark.skipif(True, reason="mpirun is not installed")
def test_mpi():
    pass

@pytest.mark.xfail(reason="not yet")
def test_fails():
    raise AssertionError

def test_works():
    pass
"""


def test_the_end_of_a_run_says_what_was_skipped_and_why(tmp_path: Path) -> None:
    """Under xdist as well, where other processes skip."""
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    quiet = ["-p", "no:cacheprovider", "-p", "tests.skips"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *quiet, f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.partition("skipped, as this machine cannot")[2].splitlines()
    assert said[1:3] == ["   2 × no GPU here (test_one.py)", "   1 × mpirun is not installed (test_one.py)"], (
        done.stdout
    )
    assert "not yet" not in done.stdout
