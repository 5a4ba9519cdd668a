"""Stacks of live processes by py-spy, pystack, faulthandler and gdb.

There is one event per process, of its main thread.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from ncclkit.agent.native_files import NATIVE_FILE
from ncclkit.core.kinds import Frame
from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, Line, clip, frame

LIMIT = 200
WIDEST = 20_000
"""Characters of one frame, its wrapped lines included."""

# Thread 1302975 (active): "MainThread"        Thread 4711 (idle+gil): "MainThread"
PYSPY = re.compile(
    r'^Thread (?P<tid>0x[0-9A-F]+|\d+) \((?P<state>[a-z+]+)\)(?:: "(?P<name>[^"]*)")?\s*$'
)
PYSPY_FRAME = re.compile(r"^ {2,8}(?P<func>\S.*?) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)\s*$")
# Current thread 0x00007f2a (most recent call first):
# Thread 0x00007f2a [pt_nccl_watchdg] (most recent call first):
FAULT = re.compile(
    r"^(?:Current thread|Thread) (?P<tid>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call"
    r" first\):"
)
FAULT_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<func>.+?)\s{0,80}$'
)
# #1  0x00007f in ncclCommInitRank (comm=…) at init.cc:1387
# #2  0x00007f in c10d::Work::wait(std::chrono::duration<long>) () from /opt/libtorch.so
GDB_FRAME = re.compile(
    r"^#\d+ +(?:0x[0-9a-f]+ in )?(?P<func>[^\s(][^(]{0,400}?) ?\(.*\)(?: at"
    r" (?P<file>[^\s:]+):(?P<line>\d+)| from "
    r"(?P<library>\S+))?\s*$"
)
# #5 … (f=Frame 0x7f12, for file /app/train.py, line 70, in forward (x=…)) at ceval.c:4181
GDB_PYTHON = re.compile(
    r"Frame 0x[0-9a-f]+, for file (?P<file>[^,]{1,400}), line (?P<line>\d+), in (?P<func>\S+)"
)
BEGINS = re.compile(r"Thread (?:0x|\d)|Current thread 0x|Traceback for thread \d|#0 ")
LEAD = 80
"""Characters before a stack on each of its lines: an indent, or what a logger writes."""
DIGITS = re.compile(r"\d")

# Traceback for thread 4711 (python) [Has the GIL,Garbage collecting] (most recent call last):
PYSTACK = re.compile(
    r"^Traceback for thread (?P<tid>\d+)(?: \((?P<name>[^)]*)\))? \[(?P<state>[^\]]*)\] \(most"
    r" recent call last\):$"
)
#     (Python) File "/app/train.py", line 9, in step
#     (C) File "???", line 0, in c10d::Work::wait() (/lib/x.so)
PYSTACK_FRAME = re.compile(
    r'^ {4}\((?P<kind>Python|C)\) File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<func>\S+(?:'
    r" \S+)*?)"
    r"(?: \(inlined\))?(?: \((?P<library>/[^()]*)\))?\s*$"
)
#     (C) File "???", line -1, in  ([vdso])
#     what of a frame is in no form that is known; it must not end the stack
PYSTACK_LOOSE = re.compile(
    r'^ {4}\((?P<kind>Python|C)\) File "(?P<file>[^"]*)", line (?P<line>-?\d+|\?+|None)'
    r"(?:, in (?P<func>.*?))?\s*$"
)
# cuStreamSynchronize (/usr/lib/libcuda.so.580.65)
# socketTryAccept (socket.cc:444)
LIBRARY = re.compile(rf"{NATIVE_FILE.pattern}|^\[vdso\]$|^\?*$")
#       src: 1
PYSTACK_PEER = re.compile(r"^\s{4,}(?:group_)?(?P<name>src|dst): (?P<rank>\d{1,7})$")
# 0x7fc323698e51 (libc.so.6)
ADDRESS = re.compile(r"0x[0-9a-f]{1,16} \(")
THREADS = 64
"""Threads of a process that are told of."""
PROGRAM = ("_start ", "Py_BytesMain ", "__libc_start_main")
"""Native functions in which only the main thread of a program begins."""
INNERMOST = 16
"""Native frames of a thread that are told of."""


def read_stack(line: Line) -> Iterator[Event]:
    """The stack that begins on this line, if it is one, in whatever column."""
    begins = BEGINS.search(line.body, 0, LEAD)
    if begins and begins.start():
        line = _without_lead(line, begins.start())
    match = PYSPY.match(line.body)
    if match:
        if (match["name"] or "MainThread") == "MainThread":
            yield from _collect_frames(line, PYSPY_FRAME, match["name"] or match["tid"], "py-spy")
    elif match := FAULT.match(line.body):
        yield from _collect_frames(line, FAULT_FRAME, match["name"] or match["tid"], "faulthandler")
    elif match := PYSTACK.match(line.body):
        yield from _pystack_event(line)
    elif line.body.startswith("#0 "):
        yield from _collect_frames(line, GDB_FRAME, "", "gdb")


def _without_lead(line: Line, lead: int) -> Line:
    """The line without what stands before its stack.

    Of the lines after it, those with the same before them are of that stack.
    """
    shape = DIGITS.sub("0", line.body[:lead])

    def following(label: bytes, speaker: str) -> Iterator[Line]:
        for later in line.following(label, speaker):
            same = DIGITS.sub("0", later.body[:lead]) == shape
            yield replace(later, body=later.body[lead:] if same else "")

    return replace(line, body=line.body[lead:], following=following)


def _collect_frames(
    line: Line, pattern: re.Pattern[str], thread: str, tool: str
) -> Iterator[Event]:
    frames: list[Frame] = []
    raw = [line.text]
    bodies = (later.body for later in line.own(LIMIT))
    for body in _unwrapped_frames(line.body, bodies) if tool == "gdb" else bodies:
        match = pattern.match(body)
        if not match:
            break
        said = match.groupdict()
        if tool == "gdb" and (own := GDB_PYTHON.search(body)):
            said = own.groupdict()
        frames.append(
            frame(said.get("file") or said.get("library") or "", said.get("line"), said["func"])
        )
        raw += [body] if body != line.body else []
    if frames:
        data: Data = {"pid": line.pid, "thread": thread, "frames": frames, "tool": tool}
        if tool == "py-spy":
            data |= _native_apart(frames)
        if not data["frames"] and not data.get("native"):
            return
        yield line.event("stack", data, text="\n".join(raw))


def _native_apart(frames: list[Frame]) -> Data:
    """{native, frames} of py-spy, which prints the frames of libraries above those of Python.

    Without them a rank that waits for its GPU looks like one that computes.
    """
    native: list[str] = []
    for one in frames:
        if not LIBRARY.search(one["file"]):
            break
        native.append(f"{one['func'][:LIMIT]} ({one['file']})")
    own = frames[len(native) :]
    # a reader of native frames that lost its way gives addresses, which tell nothing
    if not own and all(map(ADDRESS.match, native)):
        native = []
    return {
        "native": native[:INNERMOST],
        "frames": own,
    }


def _pystack_event(line: Line) -> Iterator[Event]:
    """The main thread of a process, with its native frames.

    It tells also what the other threads of the process are in.
    """
    threads: list[Data] = []
    raw, peer = [], {}
    for body in (line.body, *(later.body for later in line.own(4 * LIMIT))):
        head = PYSTACK.match(body)
        if head:
            if len(threads) == THREADS:
                break
            threads.append(
                {
                    "name": head["name"] or head["tid"],
                    "state": head["state"],
                    "frames": [],
                    "native": [],
                }
            )
        elif found := PYSTACK_FRAME.match(body) or PYSTACK_LOOSE.match(body):
            _add_frame(threads[-1], found.groupdict())
        elif found := PYSTACK_PEER.match(body):
            peer[found["name"]] = int(found["rank"])
        elif body.strip() and not body.startswith(("      ", "    (")):
            break  # neither a frame nor a line of its source
        raw += [body] if len(threads) == 1 else []
    main, others = threads[0], threads[1:]
    outermost = ""
    if main["frames"]:
        outermost = main["frames"][-1]["func"]
    if outermost not in ("", "_bootstrap") or any(
        name.startswith(PROGRAM) for name in main["native"]
    ):
        # the main thread has the process's number
        pid = int(str(PYSTACK.match(line.body)["tid"]))  # type: ignore[index]
        data = {
            "pid": line.pid or pid,
            "thread": "MainThread",
            "frames": main["frames"],
            "tool": "pystack",
        }
        data |= {"native": main["native"], "state": main["state"], "threads": others, "peer": peer}
        yield line.event("stack", data, text="\n".join(raw).strip(), pid=line.pid or pid)


def _add_frame(thread: Data, found: dict[str, Any]) -> None:
    func = (found["func"] or "?")[:LIMIT]
    if found["kind"] == "Python":
        thread["frames"].insert(0, frame(found["file"], found["line"], func))
        thread["native"] = []  # what follows was called by this one
    else:
        thread["native"] = [
            f"{func} ({found.get('library') or ''})",
            *thread["native"],
        ][:INNERMOST]


def _unwrapped_frames(joined: str, lines: Iterator[str]) -> Iterator[str]:
    """Frames of gdb, which wraps long argument lists.

    The rest of a frame is indented.  It ends where the next stack begins.
    """
    for text in lines:
        if text[:1] in (" ", "\t"):
            joined = f"{joined.rstrip()} {text.strip()}"[:WIDEST]
        else:
            yield joined
            joined = text
            if text.startswith("#0 "):
                return
    yield joined


def of_processes(events: list[Event], heads: list[tuple[int, int, int | None]]) -> list[Event]:
    """Keep one stack per process: the main thread.

    faulthandler prints it last and py-spy names it.  `heads` are (line number, pid, rank) of each
    ``Process …`` header of the file; a stack belongs to the header above it.
    """
    chosen: list[Event] = []
    place: tuple[int, int | None, str] | None = None
    starts = [number for number, _, _ in heads]
    for event in events:
        above = bisect_right(starts, event.line)
        pid = event.pid
        rank = event.rank
        if above:
            _, pid, named_rank = heads[above - 1]
            if named_rank is not None:
                rank = named_rank
        data = structs.replace(event.data, pid=pid)
        stack = replace(event, pid=pid, rank=rank, data=data)
        follows = place is not None and stack.line <= place[0] and place[1:] == (pid, data.tool)
        place = (stack.line + stack.text.count("\n") + 3, pid, data.tool)
        if follows:
            # the one before was of another thread of the same process
            chosen[-1] = stack
        else:
            chosen.append(stack)
    return chosen


def from_json(value: Any, path: str, rank: int | None) -> list[Event]:
    """Stacks of ``py-spy dump --json``: a list of threads."""
    events: dict[int, Event] = {}
    for thread in value:
        if (
            not isinstance(thread, dict)
            or not isinstance(thread.get("frames"), list)
            or not isinstance(thread.get("pid"), int)
        ):
            continue
        if thread.get("thread_name") not in ("MainThread", None) and thread["pid"] in events:
            continue
        frames = [
            frame(
                str(f.get("filename", "")), _number_or_none(f.get("line")), str(f.get("name", ""))
            )
            for f in thread["frames"][:LIMIT]
            if isinstance(f, dict)
        ]
        data = {
            "pid": thread["pid"],
            "thread": str(thread.get("thread_name") or ""),
            "frames": frames,
            "tool": "py-spy",
        }
        text = clip(
            "\n".join(f"{f['func']} ({f['file']}:{f['line']})" for f in frames)
            or json.dumps(data)[:200]
        )
        if frames:
            events[thread["pid"]] = Event(
                "stack", text, path, 0, pid=thread["pid"], rank=rank, data=data
            )
    return list(events.values())


def _number_or_none(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    return None
