"""Processes that help to read, where there is enough to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread
from types import ModuleType
from typing import Any

ENOUGH = 256 << 20
"""Bytes in files below which starting processes costs more than it gains."""
MOST = 8
"""With more processes the one that puts things together has no more to give."""


class _Quiet(SpawnProcess):
    """A process that does not import the caller's main module, which may be a script without ``if __name__ …``."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # the hook of multiprocessing
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _Context(SpawnContext):
    Process = _Quiet


@contextmanager
def started(paths: Iterable[str]) -> Iterator[Executor | None]:
    """An executor that reads these files, as long as the block runs; None where one process does as well.

    Processes are spawned, as a notebook's has threads, and end with this one, however it ends.
    """
    count = min(MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    if count < 2 or size < ENOUGH or parent_process() is not None:
        yield None
        return
    with ProcessPoolExecutor(count, mp_context=_Context(), initializer=_follow) as executor:
        yield executor


def _follow() -> None:
    """End this process when the one that started it ends, even if that was killed."""
    if parent := parent_process():
        Thread(target=_outlived, args=(parent.sentinel,), daemon=True).start()


def _outlived(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
