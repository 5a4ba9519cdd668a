"""What the kernel tells of the wait of a process, asked of small processes of our own."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.monitor import attach as collect
from ncclkit.agent.monitor import crowding, snapshots
from ncclkit.agent.monitor.family import dead_threads, main_frames, other_threads
from ncclkit.agent.monitor.program import locks_at, source_line
from ncclkit.agent.monitor.waits_on import Waits
from ncclkit.agent.run import processes
from ncclkit.causes import _awaited_advice
from ncclkit.live.attach import AttachOptions

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the kernel's calls have numbers of x86_64 here")


@contextmanager
def program(code: str, *words: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program, ended at last."""
    child = subprocess.Popen([sys.executable, "-S", "-c", code, *words], **more)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def once(read: Callable[[], dict[str, Any]], wanted: str) -> dict[str, Any]:
    """What is told once the process has come to its wait."""
    until = time.monotonic() + 60
    found = read()
    while not found.get(wanted) and time.monotonic() < until:
        time.sleep(0.05)
        found = read()
    return found


def waits_of(child: subprocess.Popen[bytes], *job: int) -> Callable[[], dict[str, Any]]:
    return lambda: Waits([child.pid, *job]).wait_of(child.pid)


def test_a_full_pipe_names_who_does_not_read_it() -> None:
    with (
        subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as reader,
        program("import os\nwhile True: os.write(1, bytes(5000))", stdout=reader.stdin) as child,
    ):
        read = waits_of(child, reader.pid)
        until = time.monotonic() + 60
        while processes.read_text(f"/proc/{child.pid}/syscall").split()[:1] != ["1"] and time.monotonic() < until:
            time.sleep(0.05)
        (end,) = once(read, "ends")["ends"]
        reader.kill()
    assert (end["kind"], end["does"]) == ("pipe", "write")
    assert {"pid": reader.pid, "name": "sleep 60", "own": True} in end["others"]


def test_of_a_stranger_only_the_program_is_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        until = time.monotonic() + 60
        while Waits([]).process_named(stranger.pid)["name"] != "sleep" and time.monotonic() < until:
            time.sleep(0.05)
        assert Waits([]).process_named(stranger.pid) == {"pid": stranger.pid, "name": "sleep", "own": False}
        stranger.kill()


def test_a_fifo_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics")
    with program("import sys; open(sys.argv[1])", str(tmp_path / "metrics")) as child:
        until = time.monotonic() + 60
        while "fifo" not in str(found := waits_of(child)()) and time.monotonic() < until:
            time.sleep(0.05)
    assert found["ends"] == [{"kind": "fifo", "name": str(tmp_path / "metrics"), "does": "open"}]


def test_a_terminal_is_told_from_a_file() -> None:
    own, terminal = pty.openpty()
    with program("import os; os.read(0, 1)", stdin=terminal) as child:
        (end,) = once(waits_of(child), "ends")["ends"]
    os.close(own)
    os.close(terminal)
    assert end["kind"] == "terminal" and end["name"].startswith("/dev/pts/")


HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(60)"


def test_a_lock_of_a_file_names_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "cache.lock")
    with program(HOLD, path, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with program(HOLD, path) as child:
            (lock,) = once(waits_of(child), "locks")["locks"]
    assert (lock["path"], lock["holder"]["pid"], lock["holder"]["own"]) == (path, holder.pid, False)


def test_a_socket_has_an_address_and_who_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
        with program(code, str(port)) as child:
            until = time.monotonic() + 60
            while "remote" not in str(found := waits_of(child)()) and time.monotonic() < until:
                time.sleep(0.05)
            (end,) = found["ends"]
            link, _ = server.accept()
            server.close()
            (later,) = waits_of(child)()["ends"]
    assert (end["remote"], end["listens"], end["others"][0]["pid"]) == (f"127.0.0.1:{port}", True, os.getpid())
    link.close()
    assert later["listens"] is False


def test_who_waits_for_a_child_names_it() -> None:
    with program("import subprocess; subprocess.run(['sleep', '60'])") as child:
        found = once(waits_of(child), "child")
        assert [one["pid"] for one in found["child"]] == processes.descendants(child.pid)
        for one in found["child"]:
            os.kill(one["pid"], signal.SIGKILL)


def test_a_lock_of_threads_is_private_and_one_of_processes_is_not() -> None:
    for code, wanted in (
        ("import threading; a = threading.Lock(); a.acquire(); a.acquire()", "private"),
        ("import multiprocessing as m; a = m.Lock(); a.acquire(); a.acquire()", "shared"),
    ):
        with program(code) as child:
            assert once(waits_of(child), "futex")["futex"] == wanted


SEMAPHORE = """
import multiprocessing as m, sys, time
context = m.get_context("fork")
guard = context.Lock()
guard.acquire()
child = context.Process(target=time.sleep, args=(float(sys.argv[1]),))
child.start()
if sys.argv[1] == "0":
    child.join()
print(child.pid, flush=True)
guard.acquire()
"""


@pytest.mark.parametrize("seconds", ["0", "60"])
def test_who_else_has_a_semaphore_of_processes_is_told(seconds: str) -> None:
    """Beside a child that has it one that has ended: then nobody else can give it back."""
    with program(SEMAPHORE, seconds, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        other = int(child.stdout.readline())
        found = once(waits_of(child), "futex")
        os.killpg(child.pid, signal.SIGKILL)
    assert [one["pid"] for one in found["sharers"]] == [other] * (seconds == "60")


LOCKS = """GUARD = threading.Lock()
def main():
    GUARD.acquire()
    with GUARD:
        step()
def other(self):
    with torch.no_grad(), self._lock, open(path) as file:
        work()
"""


@pytest.mark.parametrize(
    ("line", "takes", "taken_at", "holds"),
    [
        (3, "GUARD", [4], []),
        (4, "GUARD", [3], []),
        (5, "", [], ["GUARD"]),
        (7, "self._lock", [], []),
        (8, "", [], ["self._lock"]),
        (1, "", [], []),
    ],
)
def test_the_locks_of_a_line_are_those_with_a_name(line: int, takes: str, taken_at: list[int], holds: list[str]) -> None:
    """A ``with`` on what is made in place, as on a file, is no lock that another line could take."""
    assert locks_at(LOCKS, line) == {"takes": takes, "taken_at": taken_at, "holds": holds}


def test_what_a_lambda_does_is_told_by_its_body() -> None:
    source = {"a.py": "late(rank, lambda: open(path, 'w'))\nlate(lambda: 1, lambda: 2)\n"}
    assert source_line(source, "a.py", 1, "main.<locals>.<lambda>")["text"] == "open(path, 'w')"
    assert source_line(source, "a.py", 1, "main")["text"].startswith("late(")
    assert source_line(source, "a.py", 2, "<lambda>")["text"].startswith("late(")


POLLS = """Thread 7 (idle): "MainThread"
    BaseFileLock._poll_until_acquired (/usr/lib/python3.11/site-packages/filelock/_api.py:1177)
        Arguments:
            self: <SoftFileLock at 0x7f72>
        Locals:
            lock_filename: "{}"
    download (/app/train.py:6)
        Locals:
            lock_filename: "/home/me/other"
"""


@pytest.mark.parametrize(
    ("shown", "path"),
    [
        ("/mnt/model.lock", "/mnt/model.lock"),
        ("/mnt/a-long-name...", ""),
        ('/mnt/it\\"s', ""),
        ("model.lock", ""),
    ],
)
def test_a_polled_lock_is_named_where_its_whole_path_is_known(shown: str, path: str) -> None:
    """A text that was cut, or that py-spy spells otherwise, is none; nor is a variable of the user's own."""
    assert snapshots.lock_polled(POLLS.format(shown)) == path


def test_the_lock_of_an_extension_lies_in_its_folder() -> None:
    said = (
        "    FileBaton.wait (/env/torch/utils/file_baton.py:40)\n"
        "    _jit_compile (/env/torch/utils/cpp_extension.py:2200)\n        Arguments:\n"
        '            build_directory: "/root/.cache/torch_extensions/ext"\n'
    )
    assert snapshots.lock_polled(said) == "/root/.cache/torch_extensions/ext/lock"
    assert snapshots.lock_polled(said.replace("_jit_compile", "load")) == ""


PY_SPY = '''Process 7: python train.py
Thread 7 (idle): "MainThread"
    join (threading.py:1112)
    fit (train.py:50)
Thread 9 (idle): "pin"
    loop (/usr/lib/python3.11/site-packages/torch/utils/data/pin_memory.py:3)
Thread 8 (idle): "uploader"
    recv (train.py:44)
'''


def test_threads_are_told_the_users_own_first() -> None:
    assert [thread["name"] for thread in other_threads(PY_SPY)] == ["uploader", "pin"]
    assert [frame["func"] for frame in main_frames(PY_SPY)] == ["join", "fit"]


def test_of_a_process_that_a_thread_forked_that_thread_is_the_main_one() -> None:
    forked = PY_SPY.replace('Thread 7 (idle): "MainThread"', 'Thread 7 (idle): "Thread-1"')
    assert [frame["func"] for frame in main_frames(forked, 7)] == ["join", "fit"]
    assert [thread["name"] for thread in other_threads(forked, 7)] == ["uploader", "pin"]
    assert main_frames(forked) == []


def test_a_thread_that_died_is_told_with_its_place() -> None:
    text = ("step 3\nException in thread producer:\nTraceback (most recent call last):\n"
            '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
            '  File "/app/train.py", line 5, in produce\n    rows[3]\nKeyError: 3\n')  # fmt: skip
    assert dead_threads(text) == [
        {"name": "producer", "func": "produce", "file": "/app/train.py", "line": 5, "error": "KeyError: 3"}
    ]
    assert dead_threads("step 3\nTraceback (most recent call last):\nKeyError: 3\n") == []


SOURCE = """while not os.path.exists(path):
    time.sleep(1)
while True:
    try:
        connect(address)
    except OSError:
        time.sleep(1)
for batch in data:
    step(batch)
while not done():
    pass
while row := next(rows):
    work(row)
"""


@pytest.mark.parametrize(
    ("line", "retries"), [(2, "while not os.path.exists(path)"), (7, "connect(address)"), (9, ""), (10, "while not done()"), (12, "")]
)
def test_a_loop_that_tries_again_is_told_by_its_source(line: int, retries: str) -> None:
    assert source_line({"a.py": SOURCE}, "a.py", line)["retries"] == retries


@pytest.mark.parametrize(("load", "times"), [(0.2, 1.0), (6.0, 3.0), (90.0, 4.0)])
def test_on_a_full_host_readers_have_longer(monkeypatch: pytest.MonkeyPatch, load: float, times: float) -> None:
    """Unless a timeout is given; the deadline of the child is of one look at the load, as its own limit is."""
    monkeypatch.setattr(crowding.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(crowding.os, "cpu_count", lambda: 2)
    options = AttachOptions()
    assert options.limit == collect.TIMEOUT * times and AttachOptions(timeout=20.0).limit == 20.0
    monkeypatch.setattr(crowding.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert json.loads(options.words())["timeout"] == options.limit < options.deadline(1, 3.0)


def reader(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_where_pystack_fails_py_spy_reads_native_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots.sys, "executable", "/nowhere/python")
    monkeypatch.setenv("NCCLKIT_PYSTACK", reader(tmp_path / "pystack", "echo lost >&2; exit 1"))
    monkeypatch.setenv("NCCLKIT_PY_SPY", reader(tmp_path / "py-spy", 'echo "Thread 1 $2"'))
    assert snapshots.native_stack(0, os.getpid(), 30.0) == ("Thread 1 --native\n", "")
    monkeypatch.setenv("NCCLKIT_PY_SPY", reader(tmp_path / "py-spy", "exit 1"))
    assert snapshots.native_stack(0, os.getpid(), 30.0) == ("", "pystack on rank 0: lost")


LOST = """Thread 4711 (idle): "MainThread"
    0x7fc323698e51 (libc.so.6)
Thread 4720 (idle): "loader"
    run (threading.py:1012)"""
WHOLE_STACK = """Thread 4711 (active): "MainThread"
    socketTryAccept (socket.cc:444)
    recv (/env/torch/distributed/distributed_c10d.py:2799)
    <module> (<frozen runpy>:88)"""


def test_native_frames_that_lost_the_lines_of_python_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen over NCCL, where pystack was not installed: every rank seemed to be at work in an address."""
    monkeypatch.setattr(snapshots.sys, "executable", "/nowhere/python")
    monkeypatch.setenv("NCCLKIT_PYSTACK", str(tmp_path / "none"))
    for said, taken in ((LOST, False), (WHOLE_STACK, True)):
        (tmp_path / "said").write_text(said)
        monkeypatch.setenv("NCCLKIT_PY_SPY", reader(tmp_path / "py-spy", f"cat {tmp_path}/said"))
        text, problem = snapshots.native_stack(0, os.getpid(), 30.0)
        assert (text == said, "no line of Python" in problem) == (taken, not taken)


def test_a_stack_without_its_native_frames_is_said_to_be_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with program("import time; time.sleep(60)") as child:
        taken = snapshots.Snapshots({0: child.pid})
        until = time.monotonic() + 60
        while len(taken.stationary()) == 0 and time.monotonic() < until:
            taken.take(until)
        for text, half in (("", True), ("whole", False)):
            monkeypatch.setattr(snapshots, "native_stack", lambda *_, text=text: (text, ""))
            taken.details.clear()
            taken.finish(str(tmp_path), until)
            assert taken.row(0, until)[0]["half"] is half


@pytest.mark.skipif(not shutil.which("fuser"), reason="fuser is not installed")
def test_the_command_that_names_who_has_a_file_open_works(tmp_path: Path) -> None:
    """It takes no ``--``, so the path has to be a whole one."""
    path = tmp_path / "model.lock"
    path.touch()
    assert _awaited_advice._holders_of("-k") == ""
    with open(path):
        command = _awaited_advice._holders_of(str(path))
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0 and str(os.getpid()) in answer.stdout + answer.stderr
