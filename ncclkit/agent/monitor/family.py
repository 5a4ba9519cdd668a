"""What the threads and the child processes of a rank do, whose main thread waits for them.

Only ranks that stand still and wait for no peer are looked at, as a child may be read by py-spy.
"""

import re
import time
from itertools import chain

from .. import redact
from ..digits import whole_number
from ..run import processes
from .crowding import crowding_here
from .engines import ended_children, engines_above, is_orphan, takes_connections
from .program import with_program
from .waits_on import Waits

THREAD = re.compile(r'^Thread (?P<number>\S+) \((?P<state>[a-z+]+)\)(?:: "(?P<name>[^"]*)")?\s*$')
FRAME = re.compile(r"^\s+(?P<func>\S.*?) \((?P<file>[^()]+):(?P<line>\d+)\)\s*$")
MOST_THREADS, MOST_FRAMES, MOST_CHILDREN = 8, 12, 4
CHILD_SECONDS = 3.0
"""Seconds that the stack of one child may take."""
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<")
DIED = re.compile(r"^Exception in thread (?P<name>.{1,80}?)(?: \(.{1,80}\))?:\s*$")
TRACEBACK_FRAME = re.compile(
    r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>.+?)\s*$'
)
TRACEBACK_LINES = 200
"""Lines of the traceback of a thread that are read."""


def _is_main(head, pid):
    """Whether a line of py-spy begins the main thread.

    Of a process that a thread forked that is the thread with the number of the process.
    """
    return head["name"] in (None, "MainThread") or head["number"] == str(pid)


def other_threads(text, pid=0):
    """[{name, frames}] of all threads but the main one in what py-spy prints.

    Threads in the user's own code come first.
    """
    found = []  # type: list[dict[str, object]]
    frames = []  # type: list[dict[str, object]]
    for line in text.splitlines():
        head = THREAD.match(line)
        if head:
            frames = []
            if not _is_main(head, pid):
                found.append({"name": redact.text(head["name"])[:80], "frames": frames})
        else:
            frame = FRAME.match(line)
            if frame and len(frames) < MOST_FRAMES:
                frames.append(_frame_row(frame))
    shown = [thread for thread in found if thread["frames"]]
    shown.sort(key=_is_library)
    return shown[:MOST_THREADS]


def _frame_row(match):
    return {
        "func": redact.text(match["func"]),
        "file": redact.text(match["file"]),
        "line": whole_number(match["line"]) or 0,
    }


def _is_library(thread):
    """Whether all of a thread is code of libraries."""
    return all(LIBRARY.search(frame["file"]) for frame in thread["frames"])


def dead_threads(text):
    """[{name, error, file, line, func}] of the threads that ended with an exception.

    `text` is the end of what a process printed.
    """
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        head = DIED.match(line)
        if head:
            found.append({"name": redact.text(head["name"]), **_end_of_thread(lines[number + 1 :])})
    return found[-MOST_THREADS:]


def _end_of_thread(lines):
    """Where a thread died, and of what, by the lines after its head."""
    place = {"file": "", "line": 0, "func": ""}  # type: dict[str, object]
    for line in lines[:TRACEBACK_LINES]:
        frame = TRACEBACK_FRAME.match(line)
        if frame:
            place = _frame_row(frame)
        elif line and not line.startswith((" ", "Traceback ")):
            return {**place, "error": redact.text(line)[:160]}
    return {**place, "error": ""}


class Family:
    """The processes of one job; `look` is asked for each of its ranks."""

    def __init__(self, ranks, read_stack):
        """`ranks` is {rank: pid}; `read_stack` of (pid, until) gives what py-spy prints."""
        self.read_stack = read_stack
        self._engines = {}  # type: dict[int, dict[str, object]]
        pids = list(ranks.values())
        below = processes.families(ranks).values()
        self.waits = Waits(chain(pids, *below))

    def look_at(self, pid, text, with_children, until):
        """{wait, threads, children} of a rank; `text` is what py-spy printed of it."""
        found = {"wait": self.waits.wait_of(pid), "threads": other_threads(text), "children": []}
        if with_children:
            for child in _awaited_children(pid)[:MOST_CHILDREN]:
                found["children"].append(self._row_of_child(child, until))
        return found

    def engines_of(self, pid, until):
        """{engines, orphan}: the processes above a worker, and whether there is none any more."""
        rows = []
        for one in engines_above(pid):
            # workers of one engine have it in common, and it is read once
            if one not in self._engines:
                self._engines[one] = self._row_of_engine(one, until)
            rows.append(self._engines[one])
        return {"engines": rows, "orphan": is_orphan(pid)}

    def _row_of_engine(self, pid, until):
        """As of a child, and whether clients can reach it, and what of it has ended."""
        return {
            **self._row_of_child(pid, until),
            "orphan": is_orphan(pid),
            "listens": takes_connections(pid),
            "ended": ended_children(pid),
        }

    def _row_of_child(self, pid, until):
        """What one child does: its command, where it stands and what it waits for."""
        text = ""
        left = min(until, time.monotonic() + CHILD_SECONDS * crowding_here())
        if processes.runs_python(pid) and left > time.monotonic() + 0.5:
            text = self.read_stack(pid, left)
        frames = main_frames(text, pid)
        return {
            **self.waits.process_named(pid),
            "state": processes.process_state(pid),
            "waits_in": processes.read_text("/proc/%d/wchan" % pid).strip(),
            "frames": frames,
            "threads": other_threads(text, pid),
            "wait": self.waits.wait_of(pid),
        }


def main_frames(text, pid=0):
    """The frames of the main thread in what py-spy prints, innermost first."""
    frames = []  # type: list[dict[str, object]]
    is_main = False
    for line in text.splitlines():
        head = THREAD.match(line)
        if head:
            if is_main and frames:
                break
            is_main = _is_main(head, pid)
        frame = FRAME.match(line)
        if frame and is_main and len(frames) < MOST_FRAMES:
            frames.append(_frame_row(frame))
    return frames


def all_frames(row):
    """The frames of the other threads of a rank, of its children and of their threads."""
    for thread in row.get("threads", ()):
        yield thread["frames"]
    for child in row.get("children", ()):
        yield child["frames"]
        for thread in child["threads"]:
            yield thread["frames"]


def with_programs(row, texts):
    """{threads, children} of a rank, with what its program says of the locks in their lines."""
    children = []
    for child in row.get("children", ()):
        frames = with_program(texts, child["frames"])
        threads = _threads_with_program(texts, child["threads"])
        told = {**child, "frames": frames, "threads": threads}
        children.append(told)
    own = _threads_with_program(texts, row.get("threads", ()))
    return {"threads": own, "children": children}


def _threads_with_program(texts, threads):
    found = []
    for thread in threads:
        frames = with_program(texts, thread["frames"])
        row = {**thread, "frames": frames}
        found.append(row)
    return found


def _awaited_children(pid):
    """The children of a process, each by the last of a chain such as a shell and its command."""
    table = {}  # type: dict[int, list[int]]
    for one, parent in processes.parents().items():
        table.setdefault(parent, []).append(one)
    found = []
    for child in table.get(pid, []):
        if not processes.is_alive(child):
            continue
        while len(table.get(child, [])) == 1 and not processes.runs_python(child):
            child = table[child][0]
        found.append(child)
    return found
