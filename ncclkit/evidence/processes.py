"""Processes that read for this one.

They read side by side where there is much, and with limits where it is risky.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

ENOUGH = 256 << 20
"""Bytes in files below which starting processes costs more than it gains."""
MOST = 8
"""With more processes the one that puts things together has no more to give."""


class _Quiet(SpawnProcess):
    """A process that does not import the caller's main module.

    That may be a script without ``if __name__ …``.
    """

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
def process_pool(paths: Iterable[str]) -> Iterator[Executor | None]:
    """A pool of processes that reads these files, as long as the block runs.

    It is None where one process does as well.  Processes are spawned, as a notebook's has threads,
    and end with this one, however it ends.
    """
    count = min(
        MOST,
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    if count < 2 or size < ENOUGH or parent_process() is not None:
        yield None
        return
    with ProcessPoolExecutor(
        count, mp_context=_Context(), initializer=_end_with_parent
    ) as executor:
        yield executor


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even if that was killed."""
    parent = parent_process()
    if parent:
        Thread(target=_die_with_parent, args=(parent.sentinel,), daemon=True).start()


def _die_with_parent(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


MEMORY = 352 << 20
"""Bytes that reading one risky document may take beyond those of the process.

This process holds the bytes of the document besides.
"""
SECONDS = 20
"""Processor seconds that it may take, where it is large."""


IDLE = 60.0
"""Seconds after which it ends where nothing is to be read."""


class Refused(ValueError):
    """A document is not read; `str(error)` completes the sentence "<path> …"."""


class Limited:
    """A process that calls functions on what strangers wrote.

    Each call has limits of memory and time.  The process is started by the first call, answers one
    after the other, and is replaced where a limit ended it.  It is forked in milliseconds where no
    other thread is; a new interpreter takes 0.3 s, and so stays for the next reading.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # two threads must not take each other's answers
        self._child: Any = None
        self._pipe: Any = None
        self._forked = False

    def call(self, function: Callable[..., Any], *given: Any, data: bytes | bytearray = b"") -> Any:
        """What `function(data)` returns; what it raises is raised here.

        Raises Refused where it takes too much or breaks its process.  `data` is the document; a
        small one has fewer seconds.
        """
        with self._lock:
            return self._call(function, given, data, min(SECONDS, 3 + (len(data) >> 20)))

    def _call(
        self, function: Callable[..., Any], given: Any, data: bytes | bytearray, seconds: int
    ) -> Any:
        idle = self._pipe is not None and not self._forked
        pipe = self._pipe or self._start()
        try:
            pipe.send((function, given, seconds))
            pipe.send_bytes(data)
            if not pipe.poll(3 * seconds + 10):  # others may use the core
                raise EOFError
            failed, value = pipe.recv()
        except (EOFError, OSError):
            end = self.close()
            if idle and end == 0:  # it had waited for `IDLE` seconds
                return self._call(function, given, data, seconds)
            limit = ""
            if end in (-signal.SIGXCPU, -signal.SIGKILL):
                limit = f"takes more than {seconds} s to read"
            raise Refused(limit or "broke the process that read it") from None
        except BaseException:  # its answer would be taken for the next one's
            self.close()
            raise
        if not failed:
            return value
        try:
            raise value
        finally:
            del value  # its traceback knows this frame, and so the document

    def _start(self) -> Any:
        self._forked = _is_alone()
        if self._forked:
            context: Any = get_context("fork")
        else:
            context = _Context()
        ours, theirs = context.Pipe()
        self._child = context.Process(target=_serve_calls, args=(theirs, ours, IDLE), daemon=True)
        self._child.start()
        theirs.close()
        self._pipe = ours
        return ours

    def stop_if_forked(self) -> None:
        """Stop the forked reader; the next call forks another in milliseconds."""
        if self._forked:
            self.close()

    def close(self) -> int | None:
        """End the process, whatever it does.

        Returns its exit status, None where there was none.
        """
        with self._lock:
            if self._child is None:
                return None
            self._pipe.close()
            self._child.join(1)
            self._child.kill()
            self._child.join()
            end: int | None = self._child.exitcode
            self._child = self._pipe = None
            return end


limited = Limited()
"""The one of this process."""
os.register_at_fork(after_in_child=limited.__init__)  # type: ignore[misc]


def _is_alone() -> bool:
    """Whether this process has one thread, of Python or of a library.

    No fork is safe beside others.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _serve_calls(pipe: Connection, other: Connection, idle: float) -> None:
    other.close()  # or this process would not hear of the other's end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that waits
    gc.disable()  # it would look at a million new values over and over
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # a crash is told by the exit status, what raises by its answer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(OSError):  # no /proc: macOS, which holds no such limit either
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _lower_limit(resource.RLIMIT_AS, used + MEMORY)
    while pipe.poll(idle):
        try:
            function, given, seconds = pipe.recv()
        except EOFError:
            return
        _lower_limit(resource.RLIMIT_CPU, int(time.process_time()) + seconds + 1)
        answer: tuple[bool, Any]
        try:
            answer = (False, function(*given, pipe.recv_bytes()))
        except MemoryError:
            answer = (True, Refused(f"takes more than {MEMORY >> 20} MB to read"))
        except Exception as error:
            answer = (True, error)
        pipe.send(answer)
        del function, given, answer


def _lower_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
