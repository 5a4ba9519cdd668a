"""Where facts are read from, and how a fact looks on the wire.

Readers never open files or start commands themselves; they ask a `Machine`.  So one that was
recorded (tests/record/machine.py) gives the same facts as the machine that it was recorded on.  A
fact is name, value, unit, source, and why where the value is None.
"""

from __future__ import annotations

import errno
import json
import os
import pkgutil
import re
import sys
import time
from typing import Any, Callable, NamedTuple

from ..commands import CANNOT_END, LARGEST, LATE, TOO_LONG, run_bounded
from ..threads import side_by_side

KERNEL = ("/proc/", "/sys/", "/dev/", "/etc/")
"""Where files answer at once; others may lie on a network file system whose server is gone, or be a
pipe."""


class Unread(Exception):
    """A source could not be read; the text says why, in words for the user."""


class Absent(Unread):
    """There is no such file or folder."""


class Missing(Unread):
    """The command is not installed."""


class Hung(Unread):
    """The command was killed at its deadline."""


class Hurried(Unread):
    """The command was killed before its time: whether it hangs cannot be told."""


class TooLong(Unread):
    """The command was ended as it wrote without end."""


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str = ""


class Machine:
    """This machine: its files below `root`, its commands, its system calls and its environment."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.environ: dict[str, str] = dict(os.environ)
        self.patience = 3.0
        self.until = float("inf")
        """Moment of `time.monotonic` at which every command ends."""

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str, limit: int = 65536) -> str:
        """The first `limit` bytes of a file as text; raises Unread."""
        return str(
            self._ask(path, lambda: _start_of_file(self._at(path), limit)), "utf-8", "replace"
        )

    def field(self, path: str, pattern: str, what: str, limit: int = 65536) -> str:
        """The first group of `pattern` in a file; ``^`` matches at each line.

        Raises Unread where the file has no `what`.
        """
        match = re.search(pattern, self.read(path, limit), re.M)
        if not match:
            raise Unread("%s has no %s" % (path, what))
        return match.group(1)

    def names(self, path: str, pattern: str = "") -> list[str]:
        """The sorted names in a folder that match the whole `pattern`, or all; raises Unread."""
        found = self._ask(path, lambda: sorted(os.listdir(self._at(path))))
        return [name for name in found if not pattern or re.fullmatch(pattern, name)]

    def link(self, path: str) -> str:
        """Where a symbolic link points; raises Unread."""
        return str(self._ask(path, lambda: os.readlink(self._at(path))))

    def _ask(self, path: str, ask: Callable[[], Any]) -> Any:
        """What the file system says of `path`.

        Raises Unread, and Hung where it says nothing in time. Every wait in vain halves the
        patience for the next one, so a dead file server costs seconds, not the facts.
        """
        try:
            if path.startswith(KERNEL):
                return ask()
            return _within_seconds(self.patience, ask)
        except OSError as error:
            kind = Absent if error.errno in (errno.ENOENT, errno.ENOTDIR) else Unread
            raise kind("%s: %s" % (path, error.strerror or error)) from None
        except Hung:
            waited, self.patience = self.patience, self.patience / 2
            raise Hung("%s did not answer within %g s" % (path, waited)) from None

    def absolute(self, path: str) -> str:
        """The path from the root, where the working folder is known.

        The file system of `path` itself is not asked.
        """
        try:
            if path.startswith("/"):
                return path
            return os.path.normpath("%s/%s" % (self.call("cwd", os.getcwd), path))
        except Unread:
            return path  # somebody has removed the working folder

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """What a system call says, as a plain JSON value.

        `name` is its key in a recording.
        """
        try:
            return function()
        except OSError as error:
            raise Unread("%s: %s" % (name, error.strerror or error)) from None

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """What a command answers within `deadline` seconds.

        Raises Unread or a class of it.  At the deadline, and where the command writes too much, its
        whole process group is ended.  Where less than half of its time was left until `until`, it
        is not called hung, as it may only be slow.
        """
        name = name or " ".join(argv)
        seconds = round(min(deadline, self.until - time.monotonic()), 1)
        if seconds <= 0:
            raise Unread("%s was not asked, as no time was left" % name)
        try:
            reply = run_bounded(argv, seconds, dict(self.environ, LC_ALL="C"))
        except FileNotFoundError:
            raise Missing("%s is not installed" % argv[0]) from None
        except OSError as error:
            raise Unread("%s: %s" % (name, error.strerror or error)) from None
        out, err = (text.decode("utf-8", "replace") for text in (reply.out, reply.err))
        left = ""
        if reply.left:
            left = "; process %d %s" % (reply.left[0], CANNOT_END)
        if reply.ended == LATE:
            said = err.strip().splitlines()
            # such as: it tries again and again
            why = ""
            if said:
                why = ": %s" % said[-1][:300]
            if seconds < deadline / 2:
                say = "%s did not answer within the %g s that were left for it%s%s"
                raise Hurried(say % (name, seconds, why, left))
            raise Hung("%s did not answer within %g s%s%s" % (name, seconds, why, left))
        if reply.ended == TOO_LONG:
            raise TooLong("%s wrote more than %d MiB and was ended%s" % (name, LARGEST >> 20, left))
        return Answer(reply.code or 0, out, err)

    def child(
        self, asked: str, *args: str, deadline: float, form: type = dict, isolated: bool = True
    ) -> Any:
        """The JSON value of type `form` that a function of children.py prints.

        It runs in a process of its own, since it may hang in the kernel
        (network file systems, name servers) or while importing torch.
        `isolated` keeps the user's site-packages and PYTHON* variables out.
        """
        source = (pkgutil.get_data(__package__, "children.py") or b"").decode()
        flags = []
        if isolated:
            flags = ["-I", "-S"]
        name = " ".join(("child", asked) + args)
        answer = self.run(
            [sys.executable or "python3"] + flags + ["-c", source, asked] + list(args),
            deadline,
            name,
        )
        lines = answer.out.splitlines()
        if answer.code or not lines:
            last = (answer.err.strip().splitlines() or ["no output"])[-1]
            raise Unread("%s ended with status %d: %s" % (name, answer.code, last[:300]))
        try:
            said = json.loads(lines[-1])
        except ValueError:
            said = None
        if not isinstance(said, form):
            raise Unread("%s printed something else than expected: %s" % (name, lines[-1][:300]))
        return said


def _start_of_file(path: str, limit: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(limit)


def _within_seconds(seconds: float, ask: Callable[[], Any]) -> Any:
    """What `ask()` gives or raises, within so many seconds.

    Where it takes longer, its thread is left behind and Hung is raised.
    """

    def answer(_: None) -> tuple[Any, Exception | None]:
        try:
            return ask(), None
        except Exception as error:  # raised again by who waits
            return None, error

    value, error = side_by_side(answer, [None], seconds, (None, Hung("no answer")))[0]
    if error:
        raise error
    return value


Fact = dict[str, Any]

BROKEN = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""What a reader raises when a source has another form than documented."""


def known(name: str, value: Any, unit: str = "", source: str = "") -> Fact:
    """A fact that was read."""
    return {"name": name, "value": value, "unit": unit, "source": source, "why": ""}


def unread(name: str, why: object, unit: str = "", source: str = "") -> Fact:
    """A fact that was looked for and could not be read."""
    return {"name": name, "value": None, "unit": unit, "source": source, "why": str(why)}


def value_of(fact: Fact) -> Any:
    """The value of a fact; raises Unread where it could not be read."""
    if fact["value"] is None:
        raise Unread(fact["why"])
    return fact["value"]


def attempt(name: str, get: Callable[[], Any], unit: str = "", source: str = "") -> Fact:
    """The fact that `get()` returns, or the reason why it could not be read.

    Never raises for a bad source.
    """
    try:
        return known(name, get(), unit, source)
    except Unread as why:
        return unread(name, why, unit, source)
    except BROKEN as error:
        form = "%s has an unexpected form (%s: %s)" % (source or name, type(error).__name__, error)
        return unread(name, form, unit, source)
