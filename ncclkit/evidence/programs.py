"""What the program of a dead job says of the lines in its tracebacks and dumps.

In: the events of a reading.  Out: a `program.line` for each line of the user's own code that still
holds the call which the job made there, with the conditions on the rank around it.  A log may name
any path, so little is opened: Python files, at the very path or below a folder that the user named,
regular ones and no others, through no symbolic link, and within limits of size and time.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from ncclkit.agent import redact
from ncclkit.agent.monitor import program
from ncclkit.core.kinds import Frame, FlightMismatch, PythonException, Stack
from ncclkit.core.model import Event
from ncclkit.evidence import Reading
from ncclkit.evidence.processes import Refused, limited

LARGEST_FILE = 1 << 20
"""Bytes of a source file that is read."""
MOST_FILES = 16
MOST_LINES = 64
"""Lines of one file that are looked at."""
QUOTED = re.compile(
    r'^(?P<prefix>.{0,200}?)\s{0,20}'
    r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})\b'
)
"""A frame in the text of a traceback; the next line repeats that of the program."""
UNNAMED = re.compile(r"^__\w+__$")
"""A function that a line calls without its name, as ``for batch in loader`` calls ``__next__``."""
CALLED_THROUGH = frozenset({"_wrapped_call_impl", "_call_impl"})
"""Functions that stand for a call of an object, by whatever name it has."""


@dataclass(slots=True)
class LineOfJob:
    """A line of the program as the job went through it."""

    line: int
    func: str
    called: list[str] = field(default_factory=list)
    """The functions that were called from it."""
    text: str = ""
    """The line as a traceback repeats it, or its beginning; empty where none does."""


Wanted = dict[str, dict[tuple[int, str], LineOfJob]]
"""File → its lines."""


def add_program_lines(reading: Reading, folder: str = "") -> Reading:
    """A reading with the lines of the program that its tracebacks and dumps go through.

    folder: where the program lies, if it does not lie at the paths that the job named.
    """
    # the process that reads may have been started in another folder
    if folder:
        folder = os.path.abspath(folder)
    events: list[Event] = []
    problems: list[str] = []
    for path, lines in list(_lines_of_job(reading.events).items())[:MOST_FILES]:
        asked = list(lines.values())[:MOST_LINES]
        try:
            rows, changed = limited.call(read_lines, path, folder, asked)
        except Refused as why:
            problems.append(f"{path} {why}; its branches are not used.")
            continue
        for row in rows:
            events.append(_line_event(path, row))
        if changed:
            problems.append(_changed_words(path, changed))
    limited.stop_if_forked()
    if not events and not problems:
        return reading
    return replace(
        reading, events=[*reading.events, *events], problems=[*reading.problems, *problems]
    )


def _changed_words(path: str, lines: Sequence[int]) -> str:
    name = PurePosixPath(path).name
    where = ", ".join(map(str, lines[:4]))
    return (
        f"{name} does not hold the call that the job made at line {where}: it may have changed"
        " since, and its branches there are not used."
    )


def _line_event(path: str, row: Mapping[str, Any]) -> Event:
    data = {
        "func": row["func"],
        "conditions": row["conditions"],
        "loops": row["loops"],
    }
    return Event("program.line", row["text"], path, row["line"], data=data)


def _lines_of_job(events: Iterable[Event]) -> Wanted:
    """The lines of the user's own code in stacks of ranks."""
    wanted: Wanted = {}
    for event in events:
        for frames in _stacks_of_event(event):
            _take_stack(wanted, frames)
        if isinstance(event.data, PythonException):
            _take_quoted_lines(wanted, event.text)
    return wanted


def _stacks_of_event(event: Event) -> Iterator[Sequence[Frame]]:
    """The stacks that an event shows, each innermost first."""
    if isinstance(event.data, PythonException) and event.rank is not None:
        yield event.data.frames[::-1]
    elif isinstance(event.data, Stack) and event.rank is not None:
        yield event.data.frames
    elif isinstance(event.data, FlightMismatch):
        yield from event.data.stacks


def _take_stack(wanted: Wanted, frames: Sequence[Frame]) -> None:
    called: list[str] = []
    for frame in frames:
        path = frame["file"]
        # a frame of native code has no line
        if not program.LIBRARY.search(path) and frame["line"]:
            key = (frame["line"], frame["func"])
            lines = wanted.setdefault(path, {})
            line = lines.setdefault(key, LineOfJob(*key))
            for name in called:
                if name not in line.called:
                    line.called.append(name)
            called = []
        called.append(frame["func"].rpartition(".")[2])


def _take_quoted_lines(wanted: Wanted, text: str) -> None:
    """What a traceback repeats of the program, line by line."""
    rows = text.split("\n")
    for row, following in pairwise(rows):
        match = QUOTED.match(row)
        if not match or not following.startswith(match["prefix"]):
            continue
        quoted = following[len(match["prefix"]) :].strip()
        if not quoted or quoted.startswith('File "'):
            continue
        for (line, _), known in wanted.get(match["file"], {}).items():
            if line == int(match["line"]):
                known.text = quoted


def read_lines(
    path: str, folder: str, lines: Sequence[LineOfJob], data: bytes = b""
) -> tuple[list[dict[str, Any]], list[int]]:
    """What a source file says of lines, and the lines at which it holds another call.

    It is called in a process with limits, which gives it the bytes that it needs: none.
    """
    source = read_source(path, folder)
    if source is None:
        return [], []
    texts = {path: source}
    rows = []
    changed = []
    for line in lines:
        if is_same_line(source, line):
            rows.append(program.source_line(texts, path, line.line, line.func, line.called))
        else:
            changed.append(line.line)
    return rows, changed


def is_same_line(source: str, line: LineOfJob) -> bool:
    """Whether a program still holds, at a line, the call that the job made there."""
    written = source.splitlines()
    if not 0 < line.line <= len(written):
        return False
    # the text of a long traceback is cut, and without its secrets
    if not redact.text(written[line.line - 1].strip()).startswith(line.text):
        return False
    names = program.calls_in_function(source, line.line, line.func.rpartition(".")[2])
    if names is None:
        return False
    if not line.called:
        return True
    for name in line.called:
        if name in names or UNNAMED.match(name):
            return True
        # an object, a lambda or the handler of a signal: by which name nobody knows
        if names and (name in CALLED_THROUGH or name.startswith("<")):
            return True
    # the result of an expression was called
    return "()" in names


def read_source(path: str, folder: str) -> str | None:
    """The text of a program at its path, or below a folder.

    It is None where it does not lie there.
    """
    parts = PurePosixPath(path).parts
    if not path.endswith(".py") or ".." in parts or "\0" in path:
        return None
    if folder:
        below = list(parts)
        if below[:1] == ["/"]:
            below.pop(0)
        # the longest end of the path that lies there is the surest
        while below:
            text = _read_below(folder, below)
            if text is not None:
                return text
            below.pop(0)
        return None
    if parts[:1] != ("/",):
        return None
    return _read_below("/", parts[1:])


def _read_below(folder: str, parts: Sequence[str]) -> str | None:
    """The text of a regular file below a folder, on a way without symbolic links."""
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        for name in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            opened.append(os.open(name, flags, dir_fd=opened[-1]))
        # a pipe must not keep whoever opens it waiting
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        opened.append(os.open(parts[-1], flags, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            return None
        with open(opened[-1], "rb", closefd=False) as file:
            content = file.read(LARGEST_FILE)
        return content.decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)
