"""What hits the live test of the matrix from outside: Cancel, a signal, a server that dies, a disk that is full."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions

DEADLINE = 75.0
"""Seconds until a run is ended, and for which it is waited."""
ROOT = Path(__file__).parents[2]
STRUCK: dict[str, tuple[int, int, str]] = {
    "starter killed": (signal.SIGKILL, -signal.SIGKILL, "its starter was killed"),
    "interrupted": (signal.SIGINT, 130, "it was interrupted in its terminal"),
    "terminal closed": (signal.SIGHUP, -signal.SIGHUP, "its terminal was closed"),
    "output closed": (0, 0, "nobody read on what it says"),
}
"""What happens to the command in the middle of a live test: the signal that it gets, its exit status, and in words."""
KERNEL = {"kernel interrupted": "its cell was interrupted", "server killed": "the kernel's server was killed"}
"""The same of a notebook's kernel."""
FULL = {"disk full": "at once", "disk fills up": "measure"}
"""When the disk gets full: before anything is started, or with the first message that is measured."""
CELL = """from ncclkit.live import probe
from ncclkit.core.case import Case
from ncclkit.live.options import ProbeOptions
await probe.probe(Case.open({folder!r}), ProbeOptions(**{asked!r}), lambda record: print(record.get("phase", "")))
"""
SERVER = """import sys, threading
from jupyter_client import KernelManager
manager = KernelManager()
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(60)
threading.Thread(target=lambda: sys.stdin.read() or manager.interrupt_kernel(), daemon=True).start()
tell = lambda message: print(message["content"].get("text", ""), end="", flush=True)
told = client.execute_interactive(sys.argv[1], output_hook=tell)
print(told["content"].get("ename", "ended well"))
manager.shutdown_kernel(now=True)
"""
"""A cell, and a server that runs it in a kernel, which it interrupts when its own standard input is closed."""


async def cancelled(folder: Path, **asked: Any) -> tuple[bool, str]:
    """A live test that is cancelled in its middle."""
    reached = asyncio.Event()
    started = probe.probe(
        Case.open(folder), ProbeOptions(**asked), lambda record: reached.set() if record["kind"] == "measure" else None
    )
    task = asyncio.create_task(started)
    await asyncio.wait_for(reached.wait(), DEADLINE)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True, "cancelled, everything was ended"
    return False, "it went on"


def struck(name: str, folder: Path, **asked: Any) -> tuple[bool, str]:
    """A live test whose command is hit in its middle (see `STRUCK`)."""
    number, status, said = STRUCK[name]
    options = [word for option, value in asked.items() for word in (f"--{option.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "ncclkit", "probe", "--case", str(folder), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as starter:
        assert starter.stderr is not None
        _until_measured(starter.stderr)
        if number:
            starter.send_signal(number)
            starter.stderr.read()
        starter.stderr.close()
        ended = starter.wait(timeout=DEADLINE)
    return ended == status, f"{said}, everything was ended"


def _until_measured(lines: Iterable[str]) -> None:
    """Read what a live test says of itself until the first message is measured."""
    for line in lines:
        if "size" in line:
            return
    raise RuntimeError("the live test has measured nothing")


def kernel(name: str, folder: Path, **asked: Any) -> tuple[bool, str]:
    """A live test in a notebook's kernel that is interrupted, or whose server is killed, in its middle."""
    words = [sys.executable, "-c", SERVER, CELL.format(folder=str(folder), asked=asked)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as server:
        assert server.stdin is not None and server.stdout is not None
        _until_measured(server.stdout)
        if name == "server killed":
            server.kill()
            return server.wait(timeout=DEADLINE) == -signal.SIGKILL, f"{KERNEL[name]}, everything was ended"
        server.stdin.close()  # it then interrupts its kernel
        told = server.stdout.read().splitlines()[-1:]
        server.wait(timeout=DEADLINE)
    return told in (["KeyboardInterrupt"], ["CancelledError"]), f"{KERNEL[name]}, everything was ended"


async def full(moment: str, folder: Path, **asked: Any) -> tuple[bool, str]:
    """A live test whose case folder lies on a disk that gets full at this moment (see `FULL`)."""
    with _small_disk(folder):
        case = Case.open(folder)

        def fill(record: Mapping[str, Any]) -> None:
            if record["kind"] == moment:
                with suppress(OSError):  # which says that it is full now
                    (folder / "fill").write_bytes(bytes(1 << 22))

        fill({"kind": "at once"})
        try:
            run = await probe.probe(case, ProbeOptions(**asked), fill)
        except NcclkitError as error:
            return "No space left" in str(error) and "\n" not in str(error), str(error)
        return False, f"nobody said that the disk is full: {run.summary}"


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)
