"""What the kernel counts of a rank's processes, and that a forked child of a rank is no rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


from ncclkit.agent import processes
from ncclkit.agent.crowd import Crowd

BUSY = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
children = [pid for _ in range(3) if (pid := os.fork()) or sys.exit(any(iter(int, 1)))]
print(1, flush=True)
sys.stdin.read()
for pid in children:
    os.kill(pid, 9)
"""
FORKED = """
import os, signal, sys
from ncclkit.agent import blackbox
blackbox.arm(sys.argv[1], 0)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
"""


def test_processes_that_share_a_core_wait_for_it_most_of_the_time() -> None:
    head = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert head.stdout is not None and head.stdout.readline()
        crowd, until, row = Crowd(), time.monotonic() + 20, [0, 0, 0.0, 0.0, 0]
        while row[3] < 1.0 and time.monotonic() < until:
            (row,) = crowd.take(processes.families({7: head.pid})).values()
    finally:
        head.communicate(timeout=10)
    most, cores, ran, waited, preempted = row
    assert (most, cores) == (4, 1) and waited >= 1.0 and waited > ran and preempted > 0


def test_what_is_gone_keeps_its_total_and_a_rank_that_never_was_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    crowd = Crowd()
    before = crowd.take({0: [child.pid]})
    child.communicate(timeout=10)
    assert crowd.take({0: [child.pid], 1: [child.pid]}) == before and before[0][0] == 1


def test_families_hold_every_descendant() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    head = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert head.stdout is not None and head.stdout.readline()
        families = processes.families({3: head.pid, 5: 1 << 30})
    finally:
        head.communicate(b"\n", timeout=10)
    assert families[5] == [1 << 30] and families[3][0] == head.pid and len(families[3]) == 2


def test_a_signal_to_a_forked_child_does_not_open_the_black_box_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], env=os.environ | {"PYTHONPATH": os.getcwd()},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, (tmp_path / "rank0.log").read_text()
    assert not list(tmp_path.glob("stacks_*"))
