"""Real limits on real processes: found by the facts that such a process reads of itself, and clear without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from ncclkit.agent import facts as agent
from ncclkit.agent.facts.machine import Machine
from ncclkit.causes import catalogue
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Finding

ROOT = Path(__file__).parents[2]
READ = """import json
from ncclkit.agent import facts
for fact in facts.collect(torch=False): print(json.dumps(fact))
"""
"""What the limited process runs: it prints its facts."""
CAP = 300 << 20
"""Bytes; more than reading the facts needs, less than two ranks would."""


def facts(*limit: str) -> list[Fact]:
    """The facts that a process reads which was started by the command `limit`."""
    command = [*limit, sys.executable, "-c", READ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return [Fact(**json.loads(line), host="here") for line in done.stdout.splitlines()]


def judged(cause: str, known: Sequence[Fact]) -> Finding:
    case = Case()
    case.facts = list(known)
    return catalogue()[cause].diagnose(case)


@pytest.mark.parametrize(("files", "verdict"), [(128, "found"), (4096, "clear")])
def test_open_files(files: int, verdict: str) -> None:
    finding = judged("fd_limit", facts("prlimit", f"--nofile={files}:{files}"))
    assert finding.verdict == verdict
    assert verdict == "clear" or "may open 128 files; one of 2 ranks would need up to 288" in finding.say


@cache
def with_little_locked_memory() -> list[Fact]:
    return facts("prlimit", "--memlock=65536:65536")


@pytest.mark.parametrize(("cards", "verdict"), [([], "clear"), ([{"device": "mlx5_0", "state": "ACTIVE"}], "found")])
def test_little_locked_memory_matters_only_with_rdma(cards: list[object], verdict: str) -> None:
    known = [fact for fact in with_little_locked_memory() if fact.name != "net.rdma"]
    finding = judged("memlock_limit", [*known, Fact("net.rdma", cards, host="here")])
    assert finding.verdict == verdict
    assert verdict == "clear" or "may lock 64 KiB" in finding.say


@pytest.mark.parametrize(("size", "verdict"), [("4m", "found"), ("2g", "clear")])
def test_dev_shm(size: str, verdict: str) -> None:
    mount = 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"'
    limit = ("unshare", "--mount", "sh", "-c", mount, size)
    if subprocess.run([*limit, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("mount namespaces are not allowed here")
    finding = judged("shm_too_small", facts(*limit))
    assert finding.verdict == verdict
    assert verdict == "clear" or "/dev/shm has 4 MiB;" in finding.say


@pytest.fixture
def memory_limit() -> Iterator[Path]:
    """A file of a new cgroup below our own that limits its memory; removed when its processes have ended."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version1 = next((path for _, controllers, path in own if controllers == "memory"), None)
    version2 = next((path for number, _, path in own if number == "0"), "/")
    above = Path(f"/sys/fs/cgroup/memory{version1}" if version1 else f"/sys/fs/cgroup{version2}")
    group = above / f"ncclkit-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield group / ("memory.limit_in_bytes" if version1 else "memory.max")
    finally:
        group.rmdir()


def test_a_memory_limit(memory_limit: Path) -> None:
    join = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(memory_limit.with_name("cgroup.procs")))
    try:
        memory_limit.write_text(str(CAP))
    except OSError as error:
        pytest.skip(f"the memory of a cgroup cannot be limited here: {error}")
    finding = judged("host_oom", facts(*join))
    assert finding.strength == "likely" and "the memory limit (cgroup) is 300 MiB" in finding.say
    memory_limit.write_text("-1" if memory_limit.name == "memory.limit_in_bytes" else "max")
    assert judged("host_oom", facts(*join)).verdict == "clear"


SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"
MOUNTS = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:40 / /mnt/home rw - nfs4 server:/home rw\n"
MOUNTS += "23 21 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("swap", "verdict"),
    [
        ("", "clear"),
        ("/swapfile\tfile\t8388604\t0\t-2\n", "clear"),
        ("/mnt/home/swap\tfile\t8388604\t0\t-2\n", "found"),
    ],
)
def test_swap_on_a_network_mount(swap: str, verdict: str, tmp_path: Path) -> None:
    """A /proc as a host with such a mount shows it."""
    files = {
        "swaps": SWAPS + swap,
        "self/mountinfo": MOUNTS,
        "self/cgroup": "0::/\n",
        "meminfo": "MemTotal:       65536000 kB\nMemAvailable:   64000000 kB\n",
    }
    for name, text in files.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = agent.collect(torch=False, machine=Machine(str(tmp_path)))
    finding = judged("host_oom", [Fact(**row, host="here") for row in rows])
    assert finding.verdict == verdict
    assert verdict == "clear" or "the swap area /mnt/home/swap is on network storage (file on nfs4)" in finding.say
