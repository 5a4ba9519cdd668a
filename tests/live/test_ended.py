"""How ranks ended whose process is gone, by what this host still shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ncclkit.agent.monitor import ended
from ncclkit.agent.run import processes

LIVES = "import time; time.sleep(60)"


@contextmanager
def parent_of(*codes: str) -> Iterator[list[int]]:
    """The processes that one parent starts and never collects."""
    code = (
        "import subprocess, sys, time\n"
        "started = [subprocess.Popen([sys.executable, '-S', '-c', code]) for code in sys.argv[1:]]\n"
        "print(*[one.pid for one in started], flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *codes], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        yield list(map(int, parent.stdout.readline().split()))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def until_dead(*pids: int) -> None:
    until = time.monotonic() + 60
    while any(map(processes.is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "how"), [("import sys; sys.exit(3)", {"status": 3}), ("import os; os.kill(os.getpid(), 9)", {"signal": 9})]
)
def test_a_process_that_nobody_has_collected_tells_its_status(code: str, how: dict[str, int]) -> None:
    with parent_of(LIVES, code) as (lives, dead):
        until_dead(dead)
        found = ended.how_ended([1], {0: lives}, {})
    assert found == {"1": {"pid": dead, **how}}


def test_of_two_that_have_ended_neither_is_named() -> None:
    with parent_of(LIVES, "import sys; sys.exit(3)", "import sys; sys.exit(4)") as (lives, *dead):
        until_dead(*dead)
        assert ended.how_ended([1], {0: lives}, {}) == {"1": {}}
        assert ended.how_ended([1, 2], {0: lives}, {}) == {"1": {}, "2": {}}


def test_the_error_of_a_rank_is_the_last_line_of_its_traceback() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"train.py\", line 3, in load\n"
        "[rank1]: KeyError: 'shard'\n[rank0]: step 4\nValueError: of nobody\n"
    )
    assert ended.last_errors(text) == {"1": "KeyError: 'shard'"}
    assert ended.how_ended([1, 2], {}, ended.last_errors(text)) == {"1": {"error": "KeyError: 'shard'"}, "2": {}}


def test_kills_for_memory_are_those_of_the_jobs_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"/proc/{os.getpid()}/cgroup": "0::/job\n",
        "/sys/fs/cgroup/job/memory.events": "low 0\noom 2\noom_kill 1\n",
    }
    real = processes.read_text
    monkeypatch.setattr(processes, "read_text", lambda path, *more: files.get(path, "") or real(path, *more))
    assert ended.how_ended([1], {0: os.getpid()}, {})["1"]["oom_kills"] == 1
    files["/sys/fs/cgroup/job/memory.events"] = "oom_kill 0\n"
    assert "oom_kills" not in ended.how_ended([1], {0: os.getpid()}, {})["1"]
