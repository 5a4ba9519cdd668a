"""A user's cluster: nobody exports variables for him, he is not root, and its nodes are of two kinds."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm_cluster import available, cluster
from tests.processes import leftovers

ROOT = Path(__file__).parents[2]
USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--ambient-caps=-all"]
"""nobody, who has no more rights than a user."""
PATHS = os.pathsep.join([str(ROOT), *site.getsitepackages()])


def python_of_users() -> str:
    """An interpreter that a user may run, with what the workbook and the ranks import; "" where there is none."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PATHS, "HOME": "/tmp"}
    # the workbook's own may lie below a home that only its owner enters
    for python in ("/usr/bin/python3", sys.executable):
        words = [*USER, python, "-c", "import ncclkit.cli, torch, msgspec"]
        if shutil.which(python) and not subprocess.run(words, env=env, capture_output=True, timeout=120).returncode:
            return python
    return ""


pytestmark = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")


@pytest.fixture(scope="module")
def home() -> Iterator[tuple[Path, dict[str, str], str]]:
    """(a folder of the user's, his environment, his Python) on a cluster of two nodes with GPUs and two without."""
    python = python_of_users()
    if not python:
        pytest.skip("no interpreter that has torch may be run by a user here")
    # pytest's own folders are root's alone
    place = Path(tempfile.mkdtemp(prefix="ncclkit-users-"))
    place.chmod(0o755)
    kinds = ["Gres=gpu:h100:2 Feature=h100,ib"] * 2 + ["Feature=ib"] * 2
    try:
        with cluster(place / "slurm", 4, more="GresTypes=gpu", kinds=kinds) as env:
            home = place / "home"
            home.mkdir()
            os.chown(home, 65534, 65534)
            for path in (place / "slurm", place / "slurm" / "slurm.conf", place / "slurm" / "gres.conf"):
                path.chmod(0o755)
            (place / "slurm" / "munge.socket").chmod(0o777)
            known = {"PATH": env["PATH"], "SLURM_CONF": env["SLURM_CONF"], "PYTHONPATH": PATHS}
            yield home, {**known, "HOME": str(home), "USER": "nobody"}, python
    finally:
        shutil.rmtree(place)


def typed(home: tuple[Path, dict[str, str], str], *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the user's, in his folder."""
    folder, env, python = home
    command = [*USER, python, "-m", "ncclkit", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)


def test_a_user_sees_the_kinds_of_nodes_and_is_told_what_cannot_start(home: tuple[Path, dict[str, str], str]) -> None:
    done = typed(home, "submit", "--dry-run", "-N", "2", "probe")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gpus-per-node=2\n" in done.stdout
    assert "partition debug has 2 × 2 h100 GPUs (2 idle), 2 × no GPUs (2 idle)" in done.stderr
    done = typed(home, "submit", "--dry-run", "-N", "3", "--gpus-per-node", "2", "probe")
    assert done.returncode == 2 and "has no 3 nodes with 2 GPUs" in done.stderr
    done = typed(home, "submit", "-C", "a100", "probe")
    assert done.returncode == 2 and "Invalid feature specification; no node has such a feature: name another with -C" in done.stderr
    assert "constraints h100, ib" in done.stderr
    done = typed(home, "submit", "-A", "nobody's", "probe")
    assert done.returncode == 2 and "is not a name of Slurm's" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_live_test_on_all_nodes_of_a_mixed_partition(home: tuple[Path, dict[str, str], str]) -> None:
    """Asked for the largest number of GPUs, `-N 4` would be refused; without a variable, gloo finds its interface."""
    done = typed(home, "submit", "-N", "4", "-t", "5", "probe", "--max-bytes", "4KiB", "--backend", "gloo")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gpus-per-node" not in done.stderr and "4 ranks over gloo" in done.stdout
    assert "every value was right" in done.stdout and leftovers() == []
