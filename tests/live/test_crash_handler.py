"""The crash handler of a rank: what it writes when it is asked, however long that takes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkit.agent.monitor import attach

ROOT = Path(__file__).parents[2]
RANK = """import os, sys, time, types
for name in ("torch", "torch.distributed", "torch._C", "torch._C._distributed_c10d"):
    sys.modules[name] = types.ModuleType(name)
torch = sys.modules["torch"]
torch.distributed, torch._C = sys.modules["torch.distributed"], sys.modules["torch._C"]
torch._C._distributed_c10d = inner = sys.modules["torch._C._distributed_c10d"]
torch.distributed.is_available = torch.distributed.is_initialized = lambda: True
torch.distributed.get_backend = lambda: "gloo"
def dump():
    open("asked", "w").close()
    while not os.path.exists("allowed"):
        time.sleep(0.02)
    return b"the dump"
inner._dump_fr_trace = dump
from ncclkit.agent.run import crash_handler
crash_handler.arm(".", 3)
open("armed", "w").close()
time.sleep(60)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A rank whose Flight Recorder answers when the file ``allowed`` appears."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{RANK}"], cwd=tmp_path
    ) as made:
        until = time.monotonic() + 30
        while not (tmp_path / "armed").exists() and time.monotonic() < until:
            time.sleep(0.02)
        yield made
        made.kill()


def collect(folder: Path, pid: int, deadline: float) -> list[str]:
    until = time.monotonic() + deadline
    return attach.collect(str(folder), {3: pid}, attach.ways_to_ask_ranks(str(folder), {3: pid}), until)


def test_a_dump_that_takes_long_is_waited_for(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    allow = "while not __import__('os').path.exists('asked'): pass\n__import__('time').sleep(1)\nopen('allowed', 'w')"
    with subprocess.Popen([sys.executable, "-c", allow], cwd=tmp_path) as friend:
        problems = collect(tmp_path, rank.pid, 20.0)
        friend.kill()
    assert [problem for problem in problems if "Flight" in problem] == []
    assert (tmp_path / "fr_rank_3").read_bytes() == b"the dump"


def test_a_dump_that_never_comes_is_told_and_the_stacks_are_kept(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    problems = collect(tmp_path, rank.pid, 4.0)
    assert "rank 3 did not finish its Flight Recorder dump in time" in problems
    assert "rank 3" in (tmp_path / "stacks_rank3.txt").read_text()
