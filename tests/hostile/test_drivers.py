"""The gate, the facts and the tools beside them, over programs that never answer, never end or write without end."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ncclkit.agent import commands
from ncclkit.agent.monitor import attach, snapshots, telemetry
from ncclkit.live.launch.pack import packed
from tests.hostile.drivers import ANSWERING, ENDLESS, REFUSING, SILENT, drivers
from tests.processes import leftovers

SECONDS = 8.0
"""Of each gate: nvidia-smi has its five seconds, from which on it counts as hung."""


class Asked(NamedTuple):
    """What a gate said, and what it left."""

    code: int
    said: dict[str, Any]
    errors: str
    took: float
    left: list[int]


def ask(agent: Path, place: Path, baseline: Path) -> Asked:
    """Run the gate on a node with this nvidia-smi; half a GiB of memory are enough."""
    command = [sys.executable, "-I", "-S", str(agent), "gate", "--seconds", str(SECONDS), "--baseline", str(baseline)]
    environ = {**os.environ, "PATH": f"{place}:/usr/bin:/bin", "NCCLKIT_RUN": str(place)}
    enough = (1 << 29, 1 << 29)
    begun = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, enough),
    )
    took = time.monotonic() - begun
    return Asked(done.returncode, json.loads(done.stdout), done.stderr, took, leftovers(str(place)))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Asked]:
    """The gate of each kind of driver, side by side, as they mostly wait; its baseline has GPUs."""
    folder = tmp_path_factory.mktemp("drivers")
    (folder / "baseline.json").write_text(json.dumps({"facts": {"gpu.0.model": "NVIDIA"}}))
    kinds = dict(drivers(folder))
    with packed() as agent, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda place: ask(agent, place, folder / "baseline.json"), kinds.values())
        return dict(zip(kinds, answers, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SILENT, *ENDLESS, *REFUSING, *ANSWERING])
def test_the_gate_answers_in_time_and_leaves_no_process(asked: dict[str, Asked], kind: str) -> None:
    code, said, errors, _, left = asked[kind]
    assert said["seconds"] <= SECONDS + 1 and left == [] and said["left"] == [], said
    assert errors == said["say"] + "\n" and code == said["status"]
    of_driver = [one["say"] for one in said["problems"] if one["fact"] == "gpu.nvidia_smi"]
    if kind in ANSWERING:
        assert of_driver == [] and code != 1, said
    else:
        assert len(of_driver) == 1 and code == 1, said
    if kind in SILENT:
        assert "did not answer within" in of_driver[0] and "hung" in of_driver[0]
    if kind in ENDLESS:
        assert "wrote more than 4 MiB" in of_driver[0]
