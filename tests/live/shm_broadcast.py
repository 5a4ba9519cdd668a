"""The queue in shared memory by which an engine of vLLM reaches its workers, which spin for it."""

from __future__ import annotations

import os
import time
from typing import Any


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
