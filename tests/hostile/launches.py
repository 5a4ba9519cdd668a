"""The ways in which ranks are started, for attacks on each of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclkit.core.runs import Plan
from ncclkit.live.launch import local, simulated
from tests.live.slurm_cluster import available, cluster
from tests.live.test_slurm import ROOT, SCRIPT
from tests.namespaces import cannot_simulate

Launch = Callable[[Path, tuple[str, ...], int], None]
"""Runs a verb of the agent on two ranks in a folder, with a deadline in seconds; its end is whatever it comes to."""


def here(folder: Path, argv: tuple[str, ...], deadline: int) -> None:
    asyncio.run(local.run_locally(Plan("job", argv, 2, "gloo", sys.executable, deadline, {}), folder))


def on_hosts(folder: Path, argv: tuple[str, ...], deadline: int) -> None:
    plan = Plan("job", argv, 2, "gloo", sys.executable, deadline, {}, network={"hosts": 2})
    asyncio.run(simulated.run_on_simulated_hosts(plan, folder))


def on_nodes(folder: Path, argv: tuple[str, ...], deadline: int) -> None:
    with cluster(folder.parent / "slurm", 2) as env:
        words = ["salloc", "-N2", "-n2", sys.executable, "-c", SCRIPT, str(folder), str(deadline), *argv]
        lo = env | {"GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(words, env=lo, capture_output=True, text=True, timeout=150, cwd=ROOT)


WHY_NOT = cannot_simulate()
NO_SLURM = "" if available() else "Slurm and munge are not installed, or we are not root"
NOT_ROOT = "" if os.geteuid() == 0 else "only root may enter the network of a simulated host"
LAUNCHES = [
    pytest.param(here, id="local"),
    pytest.param(
        on_hosts,
        id="namespaces",
        marks=pytest.mark.skipif(bool(WHY_NOT or NOT_ROOT), reason=WHY_NOT or NOT_ROOT or "they work"),
    ),
    pytest.param(on_nodes, id="slurm", marks=pytest.mark.skipif(bool(NO_SLURM), reason=NO_SLURM or "it is there")),
]
