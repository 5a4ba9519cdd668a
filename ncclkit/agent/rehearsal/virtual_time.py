"""Clocks that pass over sleep in which nothing happens, on all ranks alike.

The process that forks the ranks decides when (`skips`); here is what a rank sees of it.  Mapped are
`sleep`, `time`, `monotonic` and `perf_counter` of the module `time`, with their `_ns`.  Deadlines
of threads, queues, sockets and `datetime` stay with the real clock.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import Any, Callable

SHORT = 0.5
"""Seconds: a shorter sleep is slept, which costs no message."""
LONGEST = 1e9
"""Seconds: what is longer is left to the real sleep, which refuses it."""
CLOCKS = ("time", "monotonic", "perf_counter")
real_monotonic = time.monotonic
real_sleep = time.sleep


class SharedClock:
    """The seconds that were skipped, in memory of which forks see every change at once."""

    def __init__(self) -> None:
        shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._seconds = memoryview(shared).cast("d")

    @property
    def skipped(self) -> float:
        """Seconds by which the clocks of ranks are ahead."""
        return float(self._seconds[0])

    def skip(self, seconds: float) -> None:
        """Put the clocks of all ranks forward; only one process does."""
        self._seconds[0] += seconds

    def now(self) -> float:
        """The seconds of `time.monotonic`, as ranks see them."""
        return real_monotonic() + float(self._seconds[0])


class RankSleepers:
    """The threads of this rank that sleep, each of which may go on before its time."""

    def __init__(
        self,
        clock: SharedClock,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """Begin with nobody asleep; `tell` sends a message to the coordinator."""
        self._clock = clock
        self._tell = tell
        self._own = os.getpid()
        self._until: dict[int, float] = {}
        """Thread → when it goes on, by the clock of ranks."""
        self._wakes: dict[int, threading.Event] = {}

    def sleep(self, seconds: Any) -> None:
        """Stands for `time.sleep`."""
        # a child of the rank has no line to the coordinator
        if not _is_long(seconds) or os.getpid() != self._own:
            real_sleep(seconds)
            return
        thread = threading.get_ident()
        wake = threading.Event()
        until = self._clock.now() + seconds
        self._wakes[thread] = wake
        self._until[thread] = until
        try:
            self._tell({"sleep": thread, "until": until})
            self._sleep_until(until, wake)
        finally:
            del self._until[thread]
            del self._wakes[thread]
            self._tell({"awake": thread})

    def _sleep_until(self, until: float, wake: threading.Event) -> None:
        remaining = until - self._clock.now()
        while remaining > 0:
            wake.wait(remaining)
            wake.clear()
            remaining = until - self._clock.now()

    def is_asleep(self, thread: int) -> bool:
        """Whether a thread sleeps and its time has not come."""
        until = self._until.get(thread)
        return until is not None and self._clock.now() < until

    def wake_all(self) -> None:
        """The clock was put forward: let every sleeper look whether its time has come."""
        for wake in list(self._wakes.values()):
            wake.set()


def _is_long(seconds: Any) -> bool:
    # what is no number is refused by the real sleep, in its own words
    return isinstance(seconds, (int, float)) and SHORT <= seconds <= LONGEST


def map_clocks(clock: SharedClock, sleepers: RankSleepers) -> None:
    """From now on the script of this rank sees the clock of ranks."""
    module = vars(time)
    for name in CLOCKS:
        in_nanoseconds = name + "_ns"
        module[name] = _put_forward(module[name], clock)
        module[in_nanoseconds] = _put_forward_ns(module[in_nanoseconds], clock)

    def sleep(seconds: Any, /) -> None:
        sleepers.sleep(seconds)

    _name_as(time.sleep, sleep)
    module["sleep"] = sleep


def _put_forward(real: Callable[[], float], clock: SharedClock) -> Callable[[], float]:
    def now() -> float:
        return real() + clock.skipped

    _name_as(real, now)
    return now


def _put_forward_ns(real: Callable[[], int], clock: SharedClock) -> Callable[[], int]:
    def now() -> int:
        return real() + int(clock.skipped * 1e9)

    _name_as(real, now)
    return now


def _name_as(real: Any, mapped: Any) -> None:
    """Let a function be pickled as the real one, which is what a new interpreter has."""
    mapped.__module__ = "time"
    mapped.__name__ = real.__name__
    mapped.__qualname__ = real.__name__
