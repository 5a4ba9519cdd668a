"""Threads that stay for more work and have none, so that they free nobody by themselves.

Those of an executor, and those that loop over a queue: only another thread of the process gives
them work.  To say of one that it works costs nothing; to say that it is idle may blame a healthy
script, so it must have slept all the time between two looks.
"""

from __future__ import annotations

import concurrent.futures.thread
import queue
import sys
import threading
import time
from typing import Any, NamedTuple

BETWEEN = 0.05
"""Seconds between two looks; who waits for the interpreter's lock wakes ten times meanwhile."""


class Slumber(NamedTuple):
    """A thread that waits for work."""

    queue: int
    """The identity of its queue."""
    switches: str
    """How often it has gone to sleep and been preempted, as the kernel counts."""


def without_work(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Those of them that sleep in front of an empty queue; takes a moment."""
    before = _slumbers(threads)
    if not before:
        return []
    time.sleep(BETWEEN)
    after = _slumbers(threads)
    idle = []
    for thread, slumber in before.items():
        if after.get(thread) == slumber:
            idle.append(thread)
    return idle


def _slumbers(threads: list[threading.Thread]) -> dict[threading.Thread, Slumber]:
    frames = sys._current_frames()
    found = {}
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        waited_for = _awaited_queue(frame)
        switches = _switches_of(thread)
        if waited_for is not None and switches:
            found[thread] = Slumber(id(waited_for), switches)
    return found


def _awaited_queue(frame: Any) -> Any:
    """The empty queue from which a thread takes without a deadline; None where it does not."""
    if frame is None:
        return None
    if _runs(frame, concurrent.futures.thread, "_worker"):
        awaited = frame.f_locals["work_queue"]
        return awaited if awaited.empty() else None
    if not _runs(frame, threading, "wait") or frame.f_locals.get("timeout") is not None:
        return None
    caller = frame.f_back
    if not _runs(caller, queue, "get") or caller.f_locals.get("timeout") is not None:
        return None
    awaited = caller.f_locals["self"]
    # who asks for its size would wait for the lock that the thread may hold
    return None if awaited.queue else awaited


def _runs(frame: Any, module: Any, function: str) -> bool:
    code = frame.f_code
    return code.co_name == function and code.co_filename == module.__file__


def _switches_of(thread: threading.Thread) -> str:
    """How often a sleeping thread was switched; empty of one that runs or has ended."""
    path = "/proc/self/task/%d/status" % (thread.native_id or 0)
    try:
        with open(path) as status:
            lines = status.read().splitlines()
    except OSError:
        return ""
    if not any(line.startswith("State:\tS") for line in lines):
        return ""
    return " ".join(line for line in lines if "_ctxt_switches" in line)
