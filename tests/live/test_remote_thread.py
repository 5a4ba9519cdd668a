"""A thread that is begun in another process by ptrace: it runs, and the process goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ncclkit.agent.monitor import remote_symbols, remote_thread
from ncclkit.agent.run import processes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tracing")]

WAITS = "import sys; print(flush=True); sys.stdin.read()"
COMPUTES = """
import math, os, sys, time
values = [math.sin(one) for one in range(20000)]
known = math.fsum(values), sum(values), sorted(values)[77]
print(flush=True)
while not os.path.exists(sys.argv[1]):
    assert (math.fsum(values), sum(values), sorted(values)[77]) == known
    assert bytes(100_000).count(0) == 100_000
    begun = time.monotonic()
    time.sleep(0.002)
    assert time.monotonic() - begun >= 0.002
"""
"""A program whose results, and whose sleep, must stay what they are: in C, in Python and in the kernel."""
INTERPRETERS = [sys.executable, *filter(os.path.exists, ["/usr/bin/python3"])]
"""Of which one may have Python in a library, and another in itself."""


@contextmanager
def running(program: str = WAITS, *words: str, python: str = sys.executable) -> Iterator[subprocess.Popen[bytes]]:
    """A program in Python that has printed a line; it must end well."""
    pipe = subprocess.PIPE
    with subprocess.Popen([python, "-c", program, *words], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.communicate(timeout=60)
        assert process.returncode == 0


def appends(path: Path) -> str:
    """A line of Python that adds a byte to a file."""
    return f"open({str(path)!r}, 'ab').write(b'.')"


def wait_for(path: Path, size: int) -> None:
    """Until a file has so many bytes."""
    until = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size == size):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_line_of_python_is_run_and_its_thread_ends(tmp_path: Path, python: str) -> None:
    with running(python=python) as process:
        remote_thread.begin(process.pid, appends(tmp_path / "out"))
        wait_for(tmp_path / "out", 1)
        until = time.monotonic() + 60
        while len(os.listdir(f"/proc/{process.pid}/task")) > 1:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_program_that_computes_has_the_results_that_it_would_have_had(tmp_path: Path) -> None:
    with running(COMPUTES, str(tmp_path / "end")) as process:
        for _ in range(40):
            remote_thread.begin(process.pid, appends(tmp_path / "out"))
        wait_for(tmp_path / "out", 40)
        (tmp_path / "end").touch()


def test_a_program_that_is_stopped_and_continued_meanwhile_is_as_well(tmp_path: Path) -> None:
    """What comes in the middle of a call ends it; the registers are those of before, and the signal arrives."""
    enough, begun = threading.Event(), 0

    def stop_often(pid: int) -> None:
        while not enough.wait(0.001):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.001)
            os.kill(pid, signal.SIGCONT)

    with running(COMPUTES, str(tmp_path / "end")) as process:
        stopper = threading.Thread(target=stop_often, args=(process.pid,))
        stopper.start()
        for _ in range(40):
            with suppress(remote_thread.ThreadRefused):
                remote_thread.begin(process.pid, appends(tmp_path / "out"))
                begun += 1
        enough.set()
        stopper.join()
        (tmp_path / "end").touch()
    assert not begun or (tmp_path / "out").stat().st_size >= 1


def test_registers_that_the_kernel_does_not_take_back_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of gdb before 14 on a processor with AMX: the block of its registers was too small."""
    monkeypatch.setattr(remote_thread, "BLOCK", 576)
    with running() as process, pytest.raises(remote_thread.ThreadRefused, match=r"registers back \(Bad address\)"):
        remote_thread.begin(process.pid, appends(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("function", "why"),
    [("pause", "holds a lock"), ("nowhere", "did not come back"), ("getpid", "can begin no thread")],
)
def test_a_call_that_fails_or_does_not_come_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch, function: str, why: str
) -> None:
    """Whatever stands in its place, for ever in the kernel, at an address of nothing, or with an error."""
    found = remote_symbols.thread_functions

    def other(memory: object, mapped: object, names: tuple[str, ...]) -> dict[str, int]:
        if function == "nowhere":
            return found(memory, mapped, names) | {"pthread_create": 64}
        return found(memory, mapped, names) | {"pthread_create": found(memory, mapped, (function,))[function]}

    monkeypatch.setattr(remote_thread, "thread_functions", other)
    monkeypatch.setattr(remote_thread, "CALL_LIMIT", 0.2)
    monkeypatch.setattr(remote_thread, "CALL_PATIENCE", 0.1)
    with running() as process:
        monkeypatch.setattr(remote_thread, "_library_of", lambda mapped, _: _libc(mapped))
        with pytest.raises(remote_thread.ThreadRefused, match=why):
            remote_thread.begin(process.pid, "pass")
        assert processes.process_state(process.pid) == "S"


def _libc(mapped: list[remote_symbols.Mapping]) -> remote_symbols.Mapping:
    return next(one for one in mapped if one.executable and remote_symbols.THREADS.search(one.path))


def test_a_thread_that_gets_no_gil_leaves_nobody_waiting(tmp_path: Path) -> None:
    """It runs its line when the GIL is free, and until then neither who asked nor the program waits for it."""
    holds = "import ctypes, sys; print(flush=True); ctypes.PyDLL(None).getchar(); sys.stdin.read()"
    with running(holds) as process:
        remote_thread.begin(process.pid, appends(tmp_path / "out"))
        assert not (tmp_path / "out").exists()
        process.stdin.write(b"now")
        process.stdin.flush()
        wait_for(tmp_path / "out", 1)


def test_what_cannot_be_is_refused_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as strange:
        with pytest.raises(remote_thread.ThreadRefused, match="it exports no Py_IsInitialized"):
            remote_thread.begin(strange.pid, "pass")
        strange.communicate(timeout=60)
    with running() as process:
        monkeypatch.setattr(remote_thread, "_uninterruptible", lambda pid: {"7"})
        with pytest.raises(remote_thread.ThreadRefused, match="no signal reaches it"):
            remote_thread.begin(process.pid, "pass")
        monkeypatch.setattr(remote_thread.platform, "machine", lambda: "aarch64")
        with pytest.raises(remote_thread.ThreadRefused, match="only Linux on x86_64"):
            remote_thread.begin(process.pid, "pass")
