"""The line of a rank to the coordinator: calls go out, and comes in that they may be made."""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import sysconfig
import threading
from typing import Any, Callable

from .idle_threads import runs_backward, without_work
from .quiet_rank import is_quiet
from .virtual_time import RankSleepers, SharedClock

OURS = os.path.dirname(os.path.abspath(__file__))
PATHS = sysconfig.get_paths()
LIBRARIES = (
    os.path.join(PATHS["stdlib"], ""),
    os.path.join(PATHS["purelib"], ""),
    os.path.join(PATHS["platlib"], ""),
)


def user_place() -> str:
    """file:line of the innermost frame that is neither ours nor of a library."""
    place = _place_from(sys._getframe(1))
    if place:
        return place
    # on a GPU torch goes backward in a thread of its own, in which nobody called anything
    for frame in sys._current_frames().values():
        if runs_backward(frame):
            return _place_from(frame)
    return ""


def _place_from(frame: Any) -> str:
    first = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_of_user(file):
            return "%s:%d" % (file, frame.f_lineno)
        # a script may lie among the libraries itself, as one that is started by -m does
        is_other = not is_ours(file) and "/torch/" not in file
        if is_other and not first:
            first = "%s:%d" % (file, frame.f_lineno)
        frame = frame.f_back
    return first


# asked for each frame of each call
@functools.lru_cache(maxsize=4096)
def is_of_user(file: str) -> bool:
    """Whether a file is neither ours nor of a library."""
    if is_ours(file) or "/site-packages/" in file:
        return False
    return not file.startswith(LIBRARIES)


def is_ours(file: str) -> bool:
    """Whether a frame is of the agent, or of no file; packed, its files have relative names."""
    return file.startswith(("<", OURS)) or "/ncclkit/agent/" in file


BRIEF = 0.002
"""Seconds in which a rank waits without saying so."""
LOOK = 0.4
"""Seconds between two looks whether another thread may still free one that waits."""
LOOK_AROUND = b"look"
"""What the coordinator asks, with a number: is anything of this rank at work?"""
CLOCK_MOVED = b"skip"
"""What it says after it has put the clock of ranks forward."""


class ScriptAsked:
    """What the script of this rank asked for that it did not get."""

    for_gpu = False


class PendingCall:
    """A call that was posted and may not be made yet."""

    def __init__(self, number: int, make: Callable[[], None]) -> None:
        self.number = number
        self.make = make
        self.may_go = threading.Event()


class Connection:
    """Posts the calls of a rank, and makes each when the coordinator releases it.

    A thread of its own makes them: the rank may compute while others already need its part.
    """

    def __init__(self, line: socket.socket, clock: SharedClock) -> None:
        self.sleepers = RankSleepers(clock, self.send_message)
        self._line = line
        self._lock = threading.Lock()
        self._pending: dict[int, PendingCall] = {}
        self._posted = 0
        self._threads: dict[int, threading.Thread] = {}
        """Those that have communicated."""
        self._posts_of: dict[int, int] = {}
        """Thread → the number of its last call."""
        self._waiters: dict[int, PendingCall] = {}
        """Thread → the call for which it waits."""

    def start_thread(self) -> None:
        """Start the thread that makes released calls; after the fork only."""
        threading.Thread(target=self._make_released, daemon=True, name="ncclkit").start()

    def post_call(self, fields: dict[str, Any], make: Callable[[], None]) -> PendingCall:
        """Announce a call; `make` is called on the other thread once all members have come."""
        place = user_place()
        with self._lock:
            self._posted += 1
            pending = PendingCall(self._posted, make)
            self._pending[pending.number] = pending
            fields["number"] = pending.number
            fields["place"] = place
            own = threading.get_ident()
            self._threads[own] = threading.current_thread()
            self._posts_of[own] = pending.number
            message = {
                "post": fields,
                "thread": own,
            }
            self._send(message)
        return pending

    def wait_for(self, pending: PendingCall) -> None:
        """Block until a call is released and has been made."""
        # mostly the others are there already, and a message is saved
        if pending.may_go.wait(BRIEF):
            return
        thread = threading.get_ident()
        self._waiters[thread] = pending
        try:
            self._wait_long(pending)
        finally:
            del self._waiters[thread]

    def _wait_long(self, pending: PendingCall) -> None:
        said = self._tell_wait(pending, {})
        # the parent ends us at its deadline, so this wait has one
        while not pending.may_go.wait(LOOK):
            others = self._living_threads()
            if len(others) < 2 and len(said) < 2:
                continue
            idle = self._idle_calls(others)
            if not pending.may_go.is_set():
                said = self._tell_wait(pending, idle)

    def _tell_wait(self, pending: PendingCall, idle: dict[int, int]) -> list[int]:
        """Say that this thread waits; returns the threads that may still free it.

        idle: threads that have no work since the call of this number.
        """
        # a thread that posts a call after this must not be overtaken by it
        with self._lock:
            alive = []
            for ident in self._living_threads():
                if idle.get(ident) != self._posts_of[ident]:
                    alive.append(ident)
            message = {
                "wait": pending.number,
                "thread": threading.get_ident(),
                "alive": alive,
            }
            self._send(message)
        return alive

    def _living_threads(self) -> dict[int, threading.Thread]:
        """Threads that have communicated and have not ended."""
        alive = {}
        for ident, thread in list(self._threads.items()):
            if thread.is_alive():
                alive[ident] = thread
        return alive

    def _idle_calls(self, threads: dict[int, threading.Thread]) -> dict[int, int]:
        """Thread that has no work → the number of its last call."""
        posted = dict(self._posts_of)
        calls = {}
        for thread in without_work(list(threads.values())):
            ident = thread.ident or 0
            calls[ident] = posted[ident]
        return calls

    def send_message(self, message: dict[str, Any]) -> None:
        """Send one message."""
        with self._lock:
            self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        message["for_gpu"] = ScriptAsked.for_gpu
        words = json.dumps(message)
        self._line.sendall(words.encode() + b"\n")

    def _make_released(self) -> None:
        with self._line.makefile("rb") as answers:
            for answer in answers:
                self._take_answer(answer.split())

    def _take_answer(self, words: list[bytes]) -> None:
        if words[0] == LOOK_AROUND:
            quiet = is_quiet(self._waits_here)
            self.send_message({"look": int(words[1]), "quiet": quiet})
        elif words[0] == CLOCK_MOVED:
            self.sleepers.wake_all()
        else:
            pending = self._pending.pop(int(words[0]))
            pending.make()
            pending.may_go.set()

    def _waits_here(self, thread: int) -> bool:
        """Whether a thread sleeps, or waits for a call that may not be made yet."""
        if self.sleepers.is_asleep(thread):
            return True
        pending = self._waiters.get(thread)
        return pending is not None and not pending.may_go.is_set()
