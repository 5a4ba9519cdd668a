"""Threads that stay for more work and have none, so that they free nobody by themselves.

Those of an executor, and those that loop over a queue: only another thread of the process gives
them work.  Nor does one that joins another thread, as long as that does not end, or that waits for
the result of what another thread runs, or for its own backward pass, which threads of torch make.
Those have no work where they are not in Python.  To say of one that it works costs nothing; to say
that it is idle may blame a healthy script, so it must have slept all the time between two looks.
"""

from __future__ import annotations

import concurrent.futures.thread
from concurrent.futures import _base as futures
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

BETWEEN = 0.05
"""Seconds between two looks; who waits for the interpreter's lock wakes ten times meanwhile."""


class Slumber(NamedTuple):
    """A thread that waits for work."""

    awaited: int
    """The identity of its queue, or of the thread for which it waits."""
    switches: str
    """How often it has gone to sleep and been preempted, as the kernel counts."""


Frames = Mapping[int, Any]
AwaitedBy = Callable[[threading.Thread, "list[threading.Thread]", Frames], Any]
"""What a thread waits for; None where it is not known to wait."""
AUTOGRAD = "pt_autograd"
"""How the names of threads begin in which torch goes backward on a GPU."""


def without_work(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Those of them that sleep in front of an empty queue; takes a moment."""
    before = _slumbers(threads, _awaited_by_any)
    if not before:
        return []
    time.sleep(BETWEEN)
    after = _slumbers(threads, _awaited_by_any)
    idle = []
    for thread, slumber in before.items():
        if after.get(thread) == slumber:
            idle.append(thread)
    return idle


def at_rest(threads: list[threading.Thread]) -> bool:
    """Whether all of them wait for other threads of this process alone; takes a moment."""
    before = _slumbers(threads, _awaited_within)
    if len(before) < len(threads):
        return False
    time.sleep(BETWEEN)
    return _slumbers(threads, _awaited_within) == before


def _slumbers(
    threads: list[threading.Thread],
    awaited_by: AwaitedBy,
) -> dict[threading.Thread, Slumber]:
    frames = sys._current_frames()
    found = {}
    for thread in threads:
        waited_for = awaited_by(thread, threads, frames)
        switches = _switches_of(thread)
        if waited_for is not None and switches:
            found[thread] = Slumber(id(waited_for), switches)
    return found


def _awaited_by_any(
    thread: threading.Thread,
    threads: list[threading.Thread],
    frames: Frames,
) -> Any:
    """What gives a thread work, or the thread for which it waits; None where neither is known."""
    frame = frames.get(thread.ident or 0)
    if frame is None:
        # whoever goes backward gives it work
        return _autograd_thread([thread])
    if runs_backward(frame):
        return _autograd_thread(threads)
    return (
        _awaited_queue(frame)
        or _joined_thread(frame, threads)
        or _thread_of_result(frame, threads, frames)
    )


def _autograd_thread(threads: list[threading.Thread]) -> threading.Thread | None:
    """The first of these that torch has made to go backward in it."""
    for thread in threads:
        if _is_of_autograd(thread):
            return thread
    return None


def _is_of_autograd(thread: threading.Thread) -> bool:
    path = "/proc/self/task/%d/comm" % native_number(thread)
    try:
        with open(path) as comm:
            return comm.read().startswith(AUTOGRAD)
    except OSError:
        return False


def runs_backward(frame: Any) -> bool:
    """Whether a thread has handed its backward pass over to torch."""
    code = frame.f_code
    is_engine: bool = code.co_name == "_engine_run_backward"
    return is_engine and code.co_filename.endswith("/torch/autograd/graph.py")


def _awaited_within(thread: threading.Thread, _: object, frames: Frames) -> Any:
    """What only another thread of this process can give, and for which a thread waits for ever.

    None where it may go on by itself: at a deadline, or by what comes from outside.
    """
    frame = frames.get(thread.ident or 0)
    if frame is None:
        return None
    if _runs(frame, concurrent.futures.thread, "_worker"):
        return _awaited_by_worker(frame)
    # the end of an interpreter, which waits for its threads
    if _runs(frame, threading, "_shutdown"):
        return threading
    is_waiting = _runs(frame, threading, "wait") or _is_joining(frame)
    if is_waiting and frame.f_locals.get("timeout") in (None, -1):
        return frame.f_locals["self"]
    return None


def _awaited_queue(frame: Any) -> Any:
    """The empty queue from which a thread takes without a deadline; None where it does not."""
    if frame is None:
        return None
    if _runs(frame, concurrent.futures.thread, "_worker"):
        return _awaited_by_worker(frame)
    if _runs(frame, threading, "wait") and _runs(frame.f_back, queue, "get"):
        return _awaited_by_get(frame)
    return None


def _joined_thread(frame: Any, threads: list[threading.Thread]) -> Any:
    """The thread of these for whose end a thread waits without a deadline; None without one.

    Of a thread that has not communicated yet nobody knows that it will not.
    """
    if frame is None or not _is_joining(frame):
        return None
    joined = frame.f_locals["self"]
    if frame.f_locals.get("timeout") in (None, -1) and joined in threads:
        return joined
    return None


def _is_joining(frame: Any) -> bool:
    # up to Python 3.12 the one calls the other
    return _runs(frame, threading, "_wait_for_tstate_lock") or _runs(frame, threading, "join")


def _thread_of_result(
    frame: Any,
    threads: list[threading.Thread],
    frames: Frames,
) -> Any:
    """The thread of these that runs what a thread waits for without a deadline.

    None where none does: what is still queued may be run by a thread that has not communicated.
    """
    if frame is None or not _runs(frame, threading, "wait"):
        return None
    asked = frame.f_back
    if not _runs(asked, futures, "result") or asked.f_locals.get("timeout") is not None:
        return None
    for thread in threads:
        task = _running_task(frames.get(thread.ident or 0))
        if task is not None and task.future is asked.f_locals["self"]:
            return thread
    return None


def _running_task(frame: Any) -> Any:
    """What an executor's thread runs; None of any other thread."""
    while frame is not None:
        if _runs(frame, concurrent.futures.thread, "run"):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _awaited_by_worker(frame: Any) -> Any:
    awaited = frame.f_locals["work_queue"]
    if awaited.empty():
        return awaited
    return None


def _awaited_by_get(frame: Any) -> Any:
    caller = frame.f_back.f_locals
    timed = frame.f_locals.get("timeout")
    if timed is not None or caller.get("timeout") is not None:
        return None
    awaited = caller["self"]
    # who asks for its size would wait for the lock that the thread may hold
    if awaited.queue:
        return None
    return awaited


def _runs(frame: Any, module: Any, function: str) -> bool:
    code = frame.f_code
    is_of_module: bool = code.co_filename == module.__file__
    return is_of_module and code.co_name == function


def native_number(thread: threading.Thread) -> int:
    """The kernel's number of a thread; 0 of one that has none yet."""
    # after a fork the main thread keeps the number of its parent's
    if thread is threading.main_thread():
        return os.getpid()
    return thread.native_id or 0


def _switches_of(thread: threading.Thread) -> str:
    """How often a sleeping thread was switched; empty of one that runs or has ended."""
    path = "/proc/self/task/%d/status" % native_number(thread)
    try:
        with open(path) as status:
            lines = status.read().splitlines()
    except OSError:
        return ""
    sleeps = False
    counts = []
    for line in lines:
        if line.startswith("State:\tS"):
            sleeps = True
        if "_ctxt_switches" in line:
            counts.append(line)
    if not sleeps:
        return ""
    return " ".join(counts)
