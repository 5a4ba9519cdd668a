"""What the kernel counts of a rank's processes, and that a forked child of a rank is no rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


from ncclkit.agent.monitor.utilization import Scheduling
from ncclkit.agent.run import processes

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
from ncclkit.agent.run import crash_handler
crash_handler.arm(sys.argv[1], 0)
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
        crowd, until, row = Scheduling(), time.monotonic() + 20, [0, 0, 0.0, 0.0, 0]
        while row[3] < 1.0 and time.monotonic() < until:
            (row,) = crowd.take(processes.families({7: head.pid})).values()
    finally:
        head.communicate(timeout=10)
    most, cores, ran, waited, preempted = row
    assert (most, cores) == (4, 1) and waited >= 1.0 and waited > ran and preempted > 0


def test_what_is_gone_keeps_its_total_and_a_rank_that_never_was_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    crowd = Scheduling()
    before = crowd.take({0: [child.pid]})
    child.communicate(timeout=10)
    assert crowd.take({0: [child.pid], 1: [child.pid]}) == before and before[0][0] == 1


def test_jobs_are_told_apart_and_a_scheduler_alone_numbers_its_tasks() -> None:
    code = [sys.executable, "-c", "print(1, flush=True); input()"]
    port = os.getpid()
    told = [{"RANK": "0", "MASTER_PORT": f"{port}1"}, {"RANK": "1", "MASTER_PORT": f"{port}1"},
            {"RANK": "0", "MASTER_PORT": f"{port}2"}, {"SLURM_PROCID": "5", "SLURM_JOB_ID": f"{port}3"}]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    bare = {name: value for name, value in os.environ.items() if name not in processes.NUMBERS}
    started = [subprocess.Popen(code, env=bare | variables, **pipes) for variables in told]  # type: ignore[call-overload]
    try:
        assert all(child.stdout.readline() for child in started)
        pids = [child.pid for child in started]
        assert processes.jobs_of_processes(pids) == [{0: pids[0], 1: pids[1]}, {0: pids[2]}, {5: pids[3]}]
    finally:
        for child in started:
            child.communicate(b"\n", timeout=10)


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


HOLDS = """
import mmap, os, sys
fd = os.open("/dev/shm/" + sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 4096)
kept = mmap.mmap(fd, 4096)
os.close(fd)
print(1, flush=True)
sys.stdin.read()
"""


def test_shared_memory_of_the_dead_is_removed_and_of_the_living_is_not() -> None:
    name = f"ncclkit-test-{os.getpid()}"
    command = [sys.executable, "-c", HOLDS, name]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None and owner.stdout.readline()
        assert name in processes.mapped_or_open([owner.pid]) and name not in processes.mapped_or_open([os.getpid()])
        assert processes.remove_shm_files({name, "never-there"}) == [] and name in processes.shm_files()
    finally:
        owner.kill()
        owner.communicate(timeout=10)
    assert processes.remove_shm_files({name}) == [name] and name not in processes.shm_files()
