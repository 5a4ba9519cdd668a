"""What awaited children print: counted, and cut into lines.

They are ended with their process group.  The agent's `run_bounded` does the same for commands that
nobody has to cancel.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from ncclkit.agent.run import processes

LARGEST = 4 << 20
"""Bytes of one answer, of each of its two streams."""
PIECE = 1 << 16
"""Bytes that are read at once."""
GRACE = 2.0
"""Seconds in which a child that was killed ends."""


class WroteTooMuch(Exception):
    """A child wrote more than it may; it was ended."""


async def answer_of(child: Process, seconds: float, most: int = LARGEST) -> tuple[bytes, bytes]:
    """What a child writes on its two streams until it ends.

    `child` is the leader of a process group of its own, which has ended when this raises.  Raises
    TimeoutError after `seconds`, and WroteTooMuch.
    """
    assert child.stdout is not None and child.stderr is not None
    is_full = asyncio.Event()
    streams = (_whole(child.stdout, most, is_full), _whole(child.stderr, most, is_full))
    reading = asyncio.gather(*streams, child.wait())
    filling = asyncio.ensure_future(is_full.wait())
    either: set[asyncio.Future[Any]] = {reading, filling}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        filling.cancel()
        has_ended = reading.done()
        if not has_ended:
            await _end(child, reading)
    if is_full.is_set():
        raise WroteTooMuch(f"wrote more than {most >> 20} MiB")
    if not has_ended:
        raise asyncio.TimeoutError
    out, err, _ = reading.result()
    return out, err


async def _whole(stream: asyncio.StreamReader, most: int, is_full: asyncio.Event) -> bytes:
    """What a stream carries; after `most` bytes it is only emptied."""
    kept = bytearray()
    # read on, as a full pipe would keep the child from ending
    while piece := await stream.read(PIECE):
        if len(kept) <= most:
            kept += piece
        if len(kept) > most:
            is_full.set()
    return bytes(kept)


async def _end(child: Process, reading: asyncio.Future[Any]) -> None:
    """Kill a child with its process group, which it leads.

    What it started in other groups is killed, too.
    """
    # before the kill: afterwards its children have another parent, and nobody finds them
    started = []
    if child.returncode is None:
        started = processes.descendants(child.pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pid in started:
        processes.signal_one(pid, signal.SIGKILL)
    # what is still in the pipes is read, so that both are closed in the end
    await asyncio.wait({reading}, timeout=GRACE)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    await _wait_until_gone([child.pid, *started])


async def _wait_until_gone(pids: list[int]) -> None:
    """Wait for the end of killed processes, `GRACE` at most.

    A pipe closes before its process ends.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + GRACE
    while any(processes.is_alive(pid) for pid in pids) and clock.time() < deadline:
        await asyncio.sleep(0.01)


async def lines_of(stream: asyncio.StreamReader, longest: int) -> AsyncIterator[bytes]:
    """The lines of a stream, without their ends.

    A line of more than `longest` bytes is left out.
    """
    rest, is_cut = b"", False
    while piece := await stream.read(PIECE):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if not is_cut:
                yield line
            is_cut = False
        # a line without an end would fill the memory
        if len(rest) > longest:
            rest, is_cut = b"", True
    if rest and not is_cut:
        yield rest


async def last_of(stream: asyncio.StreamReader, most: int = PIECE) -> bytes:
    """The last `most` bytes that a child writes, which say why it failed."""
    kept = b""
    while piece := await stream.read(PIECE):
        kept = (kept + piece)[-most:]
    return kept
