"""Whether anything of this rank is at work: another thread, a child, or a timer.

To say that something is at work costs nothing but time; who is called quiet wrongly would see
clocks run ahead of its work.  So whatever is not known to rest is at work.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Callable

from .idle_threads import at_rest, native_number
from .virtual_time import real_sleep

AT_WORK = ("R", "D")
"""States of a thread that computes, or that waits for a disk."""
LOOKS = 5
BETWEEN = 0.002
"""Seconds between two of them."""
HARMLESS = ("tqdm",)
"""Packages of which a thread only draws."""


def is_quiet(waits_here: Callable[[int], bool]) -> bool:
    """Whether nothing of this process can happen before a sleeper or a waiting call goes on.

    waits_here: whether the thread of an identity sleeps or waits where the coordinator knows it.
    """
    if _has_children() or _has_timer() or _computes(waits_here):
        return False
    others = _other_threads(waits_here)
    if others is None:
        return False
    return not others or at_rest(others)


def _has_children() -> bool:
    """Whether it has a child, which may download or compute, or has ended unseen."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _has_timer() -> bool:
    """Whether a signal will come by the real clock."""
    remaining, _ = signal.getitimer(signal.ITIMER_REAL)
    return remaining > 0


def _computes(waits_here: Callable[[int], bool]) -> bool:
    """Whether a thread runs, of several looks at all; it may be none of Python's."""
    left_out = _numbers_of_waiting(waits_here)
    for _ in range(LOOKS):
        if not _runs_now(left_out):
            return False
        # those of gloo wake for a moment now and then
        real_sleep(BETWEEN)
    return True


def _numbers_of_waiting(waits_here: Callable[[int], bool]) -> set[int]:
    """The kernel's numbers of threads that are on their way to sleep, and of this one."""
    numbers = {threading.get_native_id()}
    for thread in threading.enumerate():
        if waits_here(thread.ident or 0):
            numbers.add(native_number(thread))
    return numbers


def _runs_now(left_out: set[int]) -> bool:
    for name in os.listdir("/proc/self/task"):
        if int(name) not in left_out and _state_of(name) in AT_WORK:
            return True
    return False


def _state_of(number: str) -> str:
    try:
        with open("/proc/self/task/%s/stat" % number) as status:
            words = status.read()
    except OSError:
        # it has just ended
        return ""
    # the name of a thread may hold blanks and brackets
    _, _, rest = words.rpartition(")")
    return rest.split()[0]


def _other_threads(waits_here: Callable[[int], bool]) -> list[threading.Thread] | None:
    """Threads of which the coordinator does not know that they wait; None where one is unknown."""
    threads = {}
    for thread in threading.enumerate():
        threads[thread.ident] = thread
    own = threading.get_ident()
    others = []
    for ident in sys._current_frames():
        if ident == own or waits_here(ident):
            continue
        if ident not in threads:
            return None
        if not _only_draws(threads[ident]):
            others.append(threads[ident])
    return others


def _only_draws(thread: threading.Thread) -> bool:
    package, _, _ = type(thread).__module__.partition(".")
    return package in HARMLESS
