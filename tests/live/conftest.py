"""What a machine cannot do is asked once in a test session, and skipped with that very sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from ncclkit.agent.monitor import flight_dump, remote_thread


@pytest.fixture(scope="session")
def tracing() -> None:
    """Threads may be begun in a process here; asked of a process of our own."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=pipe, stdout=pipe) as own:
        assert own.stdout is not None and own.stdout.readline()
        try:
            remote_thread.begin(own.pid, "pass")
        except remote_thread.ThreadRefused as why:
            pytest.skip(f"no thread can be begun in a process here: {why}")
        finally:
            own.communicate(b"\n", timeout=60)


@pytest.fixture(scope="session")
def debugger() -> None:
    """gdb can call functions here; asked of a program of its own."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    if flight_dump.refusal(gdb):
        pytest.skip(flight_dump.refusal(gdb))
