"""What the kernel counts of a rank that sleeps: its files, not what keeps its job together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from ncclkit.agent.monitor.snapshots import counters
from ncclkit.agent.run.processes import die_with_parent

STORE = """
import sys
from datetime import timedelta
from pathlib import Path
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
for line in sys.stdin:
    Path(line.strip()).write_bytes(bytes(4096))
    print("written", flush=True)
"""
"""A rank 0 with the store of its job, whose main thread writes a file where it is told to."""


@pytest.fixture
def rank_0() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", STORE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    ) as process:
        yield process
        process.kill()


def test_the_store_of_a_job_is_no_work_of_its_rank(
    rank_0: subprocess.Popen[str], tmp_path: object
) -> None:
    """Watchdogs of other ranks ask it each second: of a rank that hangs the bytes would rise."""
    from torch.distributed import TCPStore

    assert rank_0.stdin and rank_0.stdout
    port = int(rank_0.stdout.readline())
    before = counters(rank_0.pid)["io"]
    client = TCPStore("127.0.0.1", port, is_master=False)
    for number in range(50):
        client.set("heartbeat", str(number))
        assert client.get("heartbeat") == str(number).encode()
    assert counters(rank_0.pid)["io"] == before
    rank_0.stdin.write(f"{tmp_path}/checkpoint\n")
    rank_0.stdin.flush()
    assert rank_0.stdout.readline() == "written\n"
    assert counters(rank_0.pid)["io"] >= before + 4096
