"""Ranks over the nodes of a real Slurm allocation."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkit.case import Case
from ncclkit.consistency import compare
from tests.live.slurm_cluster import available, cluster
from tests.processes import leftovers

pytestmark = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")

SCRIPT = """
import asyncio, sys
from pathlib import Path
from ncclkit.launch import slurm
folder, deadline, verb, *rest = sys.argv[1:]
argv = [verb, "--folder", folder, *rest]
env = {"GLOO_SOCKET_IFNAME": "lo"}
asyncio.run(slurm.run(argv, 2, env, float(deadline), Path(folder), sys.executable))
"""


def salloc(env: dict[str, str], folder: Path, deadline: int, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["salloc", "-N2", "-n2", sys.executable, "-c", SCRIPT, str(folder), str(deadline), *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, cwd=Path(__file__).parents[2])


def test_two_nodes_pass_and_hang(tmp_path: Path) -> None:
    """One cluster, two runs: a good one, and one that ends at its deadline; nothing is left on any node."""
    with cluster(tmp_path / "slurm", 2) as env:
        good, bad = tmp_path / "good", tmp_path / "bad"
        good.mkdir()
        bad.mkdir()
        done = salloc(env, good, 100, "collective", "--backend", "gloo", "--sizes", "8,65536", "--repeats", "2")
        assert json.loads((good / "status.json").read_text())["reason"] == "done", (
            done.stderr + (good / "launcher.log").read_text()
        )
        measured = [json.loads(line) for line in (good / "wire.jsonl").read_text().splitlines() if '"measure"' in line]
        assert [(m["ranks"], m["wrong"]) for m in measured] == [(2, 0), (2, 0)]
        salloc(env, bad, 25, "train", "--backend", "gloo", "--timeout", "100", "--fault", "rank_late")
        assert json.loads((bad / "status.json").read_text())["reason"] == "deadline"
        assert "skip_batches" in (bad / "stacks_rank1.txt").read_text()
        until = time.monotonic() + 20
        while leftovers() and time.monotonic() < until:
            time.sleep(0.2)
        assert leftovers() == []


def test_facts_of_two_nodes(tmp_path: Path) -> None:
    """Inside an allocation every node is read; here both are this machine, so Slurm's names tell them apart."""
    folder = tmp_path / "100%case"
    with cluster(tmp_path / "slurm", 2) as env:
        command = ["salloc", "-N2", "-n2", sys.executable, "-m", "ncclkit.cli", "inspect", "--case", str(folder)]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=110, cwd=Path(__file__).parents[2]
        )
    assert done.stdout.startswith("2 hosts "), done.stdout + done.stderr
    case = Case.open(folder)
    assert {fact.host for fact in case.facts} == {"n1", "n2"}
    assert [fact.host for fact in case.facts_of("software.torch") if fact.value] == ["n1", "n2"], done.stderr
    seen = compare(case.facts)
    assert not seen.broken and seen.agreed > 20, seen.text()
