"""What must hold while anything is read: an audit of what the interpreter does, and a limit of CPU time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from ncclkit.core import secrets
from ncclkit.evidence.processes import Limited

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "subprocess.", "pty.")
FORBIDDEN += ("socket.", "pickle.", "ctypes.dlopen", "urllib.", "http.", "webbrowser.", "ftplib.")
FORBIDDEN += ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
FORBIDDEN += ("shutil.", "tempfile.", "sqlite3.", "os.putenv")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Broken(BaseException):
    """A property does not hold.  No `Exception`, so that no handler of a reader takes it for damaged input."""


@dataclass
class _Watch:
    on: bool = False
    seen: str = ""
    hooked: bool = False


_watch = _Watch()


@contextmanager
def watched(seconds: float) -> Iterator[list[float]]:
    """Inside: nothing runs, nothing is written, no connection is made, and no more CPU time than this is used.

    Gives a list that holds the CPU time in seconds afterwards.  Raises Broken.
    """
    before = install()
    try:
        with mock.patch.multiple(Limited, call=_called, stop_if_forked=lambda limited: None), guarded(seconds) as used:
            yield used
    finally:
        signal.signal(signal.SIGVTALRM, before)


def install() -> Any:
    """Prepare this process for `guarded`; returns the handler of the timer that was there before."""
    if not _watch.hooked:
        sys.addaudithook(_audit)
        _watch.hooked = True
        secrets.text("AC" + "0" * 32)  # urllib3 below detect-secrets looks for IPv6 when it is imported
    return signal.signal(signal.SIGVTALRM, _expired)


@contextmanager
def guarded(seconds: float) -> Iterator[list[float]]:
    """The same as `watched` in a process where `install` was called, at a cost of microseconds."""
    used: list[float] = []
    _watch.on, _watch.seen = True, ""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    start = time.process_time()
    try:
        yield used
    finally:
        used.append(time.process_time() - start)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _watch.on = False
    if _watch.seen:
        raise Broken(_watch.seen)


_call = Limited.call


def _called(limited: Limited, function: Callable[..., Any], *given: Any, **document: Any) -> Any:
    """Have the process with limits watched instead of the one that starts it and talks to it."""
    _watch.on = False
    try:
        return _call(limited, _there, function, *given, **document)
    except RuntimeError as error:
        raise Broken(str(error)) from error
    finally:
        _watch.on = True


def _there(function: Callable[..., Any], *given: Any) -> Any:
    _watch.on = True
    try:
        return function(*given)
    except Broken as broken:
        raise RuntimeError(str(broken)) from None  # such can travel
    finally:
        _watch.on = False


def _expired(*_: Any) -> None:
    raise Broken("the input takes too long")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watch.on:
        return
    writes = event == "open" and _writes(args)
    if writes or event.startswith(FORBIDDEN):
        _watch.seen = f"{event} {args!r:.200}"
        raise Broken(_watch.seen)


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = args
    if "__pycache__" in str(path):  # a module that is imported for the first time
        return False
    return bool(isinstance(mode, str) and set(mode) & set("wax+")) or bool(isinstance(flags, int) and flags & WRITES)
