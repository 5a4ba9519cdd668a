"""Whoever reaches the port that ranks meet at may end a run, but executes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.launches import LAUNCHES, Launch, here
from tests.processes import warm

pytestmark = pytest.mark.usefixtures("warm_ranks")

LOOPBACK = "0100007F"
JOB = tuple("collective --backend gloo --sizes 8 --timeout 20 --fault starts_late --seconds 5".split())
"""One rank waits at the store for the other, which comes late."""
STANDALONE = "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --no-python sleep 15".split()


@contextmanager
def neighbour(folder: Path, marker: Path) -> Iterator[dict[str, Any]]:
    """One at work while the block runs; afterwards what it did: ``stores`` and ``keys``."""
    did: dict[str, Any] = {}
    command = [sys.executable, str(Path(__file__).with_name("neighbour.py")), str(folder), str(marker)]
    pipe, env = subprocess.PIPE, warm(os.environ)
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            yield did
            said, _ = process.communicate(timeout=60)
            did.update(json.loads(said))
        finally:
            process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_nothing_that_lies_in_the_store_is_executed(launch: Launch, tmp_path: Path) -> None:
    """A run that ended before its store was reached says nothing: another one is attacked."""
    marker = tmp_path / "executed"
    for attempt in range(3):
        folder = tmp_path / str(attempt) / "run"
        folder.mkdir(parents=True)
        with neighbour(folder, marker) as did:
            launch(folder, JOB, 45)
        if did["stores"] and did["keys"]:
            break
    assert did["stores"] and did["keys"], "the attack reached no store"
    assert not marker.exists()
    assert launch is not here or did["stores"] == [LOOPBACK]  # where one machine is all, no other can reach it


def test_the_attack_executes_code_where_torch_unpickles_what_lies_in_the_store(tmp_path: Path) -> None:
    """Otherwise the test above would say nothing."""
    marker = tmp_path / "executed"
    with neighbour(tmp_path, marker) as did:
        environ = {**os.environ, "NCCLKIT_RUN": str(tmp_path)}
        subprocess.run([sys.executable, *STANDALONE], env=environ, timeout=100, capture_output=True)
    assert any("rendezvous" in key for key in did["keys"])
    assert marker.exists()
