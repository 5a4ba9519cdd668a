"""The queue in shared memory by which an engine of vLLM reaches its workers, which spin for it."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any


class FileCounter:
    """A number in a file, which processes share that have nothing else in common."""

    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(file, mmap.PAGESIZE)
        self._shared = mmap.mmap(file, mmap.PAGESIZE)
        os.close(file)

    @property
    def value(self) -> int:
        return self._shared[0]

    @value.setter
    def value(self, number: int) -> None:
        self._shared[0] = number


class SharedQueue:
    """Hands on nothing but that there is a request."""

    def __init__(self, counter: Any) -> None:
        self.counter, self.seen = counter, 0

    def get(self) -> None:
        """Wait for the next request."""
        self.dequeue()

    def dequeue(self) -> None:
        """Spin for a while, then sleep between two looks."""
        begun = time.monotonic()
        while self.counter.value == self.seen:
            os.sched_yield()
            if time.monotonic() > begun + 1.0:
                time.sleep(0.001)
        self.seen = self.counter.value
