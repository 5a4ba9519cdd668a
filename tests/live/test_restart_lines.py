"""The lines of docs/restart.md, as they stand there: on a real Slurm, and in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm_cluster import available, cluster
from tests.packaging.project import ROOT

real = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")
KILLED = "failed (exitcode: -9) local_rank: 1 (pid: 1528) of binary: python3"
PROGRAM = f"""import os, pathlib, sys
tries = pathlib.Path("tries")
with open(tries, "a") as kept:
    kept.write(os.environ.get("SLURMD_NODENAME", "here") + "\\n")
count = len(tries.read_text().split())
if count == 1:
    print("{KILLED}")
    sys.exit(1)
if count == 2:
    raise ValueError("sample 7 is empty")
"""
"""It is killed at its first try, and fails by itself at its second."""


def block(number: int) -> str:
    """A block of code of the page."""
    return re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "restart.md").read_text(), re.DOTALL)[number]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program, and ``ncclkit`` and ``python`` on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ncclkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m ncclkit "$@"\n')
    (programs / "ncclkit").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_loop_restarts_what_was_killed_and_stops_at_a_fault_of_the_program(place: Path) -> None:
    launcher = place / "bin" / "torchrun"
    launcher.write_text('#!/bin/sh\nfor last; do :; done\nexec python "$last"\n')
    launcher.chmod(0o755)
    done = subprocess.run(["bash", "-c", block(2)], capture_output=True, text=True, timeout=110)
    assert done.stderr.count("Traceback") == 0
    assert (place / "tries").read_text().split() == ["here", "here"], done
    assert "stop, and fix the program" in done.stdout


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with cluster(tmp_path_factory.mktemp("slurm") / "slurm", 3) as env:
        monkeypatch.setenv("SLURM_CONF", env["SLURM_CONF"])
        yield
        subprocess.run(["scancel", "-u", "root"], check=False, timeout=20)


def queue_is_empty_within(seconds: float) -> None:
    until = time.monotonic() + seconds
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, timeout=20).stdout:
        assert time.monotonic() < until, subprocess.run(["squeue"], capture_output=True, text=True, timeout=20)
        time.sleep(0.3)


@real
@pytest.mark.usefixtures("slurm")
def test_the_end_of_a_batch_script(place: Path) -> None:
    (place / "train.sbatch").write_text(block(0).replace("srun python", "srun --ntasks=1 --nodes=1 python"))
    subprocess.run(["sbatch", "train.sbatch"], check=True, timeout=30)
    queue_is_empty_within(100)
    logs = sorted(place.glob("slurm-*.out"))
    said = [log.read_text() for log in logs]
    assert len(said) == 2, said
    assert "Restart or stop: restart: the program is not to blame" in said[0]
    assert "Restart or stop: stop, and fix the program" in said[1]
    assert len((place / "attempts.jsonl").read_text().splitlines()) == 2


@real
@pytest.mark.usefixtures("slurm")
def test_a_job_behind_one_that_lost_its_node(place: Path) -> None:
    """The next attempt runs, and not on that node."""
    lines = "#!/bin/bash\n#SBATCH --no-requeue --output=slurm-%j.out\n"
    lines += "echo $SLURMD_NODENAME >> nodes; [ $(wc -l < nodes) -eq 1 ] || exit 0\necho '[rank0]: step 3/10'\nsleep 300\n"
    (place / "train.sbatch").write_text(lines)
    subprocess.run(["bash", "-c", block(1)], check=True, timeout=60)
    until = time.monotonic() + 60
    while not (place / "nodes").exists():
        assert time.monotonic() < until
        time.sleep(0.2)
    lost = (place / "nodes").read_text().strip()
    down = ["scontrol", "update", f"nodename={lost}", "state=down", "reason=test"]
    subprocess.run(down, check=True, timeout=20)
    queue_is_empty_within(100)
    decided = next(place.glob("decide-*.out")).read_text()
    assert f"restart without {lost}: the scheduler lost a node" in decided
    first, second = (place / "nodes").read_text().split()
    assert first == lost != second
