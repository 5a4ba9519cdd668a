"""Files that torch's debug server writes of all ranks (``start_debug_server(dump_dir=…)``).

In: ``stacks_20261127_183043.txt`` and its like, of torch 2.11 and later, a new file each minute.
Out: the newest look at the job as events: a stack a rank, calls that ranks did not make, ranks that
do not answer.  Older files show what stayed the same since.

Begin with `read_dump`; `events_of_dumps` compares those of one folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any

import msgspec

from ncclkit.core.kinds import Frame
from ncclkit.core.model import Event
from ncclkit.evidence.debug_tables import OddCall, calls_of_tables
from ncclkit.evidence.grammars import stacks
from ncclkit.evidence.grammars.grammar import clip, frame
from ncclkit.evidence.records import Snapshot

# === Rank 2: http://node-1:34001/handler/dump_traceback? ===
HEADING = re.compile(
    r"=== Rank (?P<rank>\d{1,7}): https?://(?P<host>\[[\da-fA-F:]{2,45}\]|[\w.-]{1,255}):\d{1,5}"
    r"/handler/(?P<handler>\w{1,60})\S{0,300} ===$"
)
PARTIAL = re.compile(r"PARTIAL DATA: \d{1,7}/\d{1,7} workers responded$")
#   Rank 2: TimeoutError:
ABSENT = re.compile(r"  Rank (?P<rank>\d{1,7}): (?P<why>.*)$")
TABLES = re.compile(r"=== (?:TorchComms )?FR Trace(?: NCCL)? ===$")
STORE = re.compile(r"debug_server/rank\d{1,7}: b'")
# stacks_20261127_183043.txt
NAME = re.compile(r"(?P<name>\w{1,60}?)_(?P<day>\d{8})_(?P<hour>\d{6})\.\w{1,5}$")
REFUSED = re.compile(r"ClientConnectorError|[Cc]onnection refused|Connect call failed|\b503\b")
LATE = re.compile(r"^Timeout|Read timed out|^Error: 408|\b408\b")
NOT_THERE = re.compile(r"not found|\b404\b")
"""A handler that this torch, or this job, does not have: it says nothing of the rank."""
ERROR = re.compile(r"Error: \d{1,3}$")
LOOKS = 8
"""Newest files of stacks that are compared with each other."""
MOST = 1 << 16
"""Ranks that are read of one file."""


@dataclass(slots=True)
class RankAnswer:
    """What one rank said to one question."""

    rank: int
    host: str
    line: int
    body: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DebugDump:
    """One file of the debug server."""

    path: str
    name: str
    """``stacks``, ``fr_trace`` …"""
    time: float | None
    answers: dict[int, RankAnswer] = field(default_factory=dict)
    absent: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Rank → line, and why it did not answer."""
    calls: list[OddCall] = field(default_factory=list)
    """Calls that some ranks did not make, or made otherwise."""

    @property
    def folder(self) -> str:
        """Where it lies: the dumps of one job have one folder."""
        return str(PurePath(self.path).parent)


def is_debug_dump(text: str) -> bool:
    """Whether a text begins as the files of torch's debug server do."""
    first = text.lstrip("\n").partition("\n")[0].rstrip("\r")
    return any(form.match(first) for form in (HEADING, PARTIAL, TABLES, STORE))


def read_dump(text: str, path: str) -> DebugDump:
    """What one file holds, whole or cut short."""
    said = NAME.search(PurePath(path).name)
    name = ""
    if said:
        name = said["name"]
    dump = DebugDump(path, name, _time_of_name(said))
    answer: RankAnswer | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        heading = HEADING.match(line)
        if heading:
            rank = int(heading["rank"])
            answer = RankAnswer(rank, heading["host"].partition(".")[0], number)
            dump.name = dump.name or heading["handler"]
            if len(dump.answers) < MOST:
                dump.answers[rank] = answer
        elif answer is not None:
            answer.body.append(line)
        elif absent := ABSENT.match(line):
            dump.absent[int(absent["rank"])] = (number, absent["why"])
    dump.calls = list(calls_of_tables(lines))
    return dump


def _time_of_name(said: re.Match[str] | None) -> float | None:
    """The moment in a file's name, in the time of the host of rank 0."""
    if said is None:
        return None
    try:
        return datetime.strptime(said["day"] + said["hour"], "%Y%m%d%H%M%S").timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def events_of_dumps(dumps: Iterable[DebugDump]) -> list[Event]:
    """What the newest file of each name shows, in each folder."""
    folders: dict[str, dict[str, list[DebugDump]]] = {}
    for dump in sorted(dumps, key=lambda dump: (dump.time or 0.0, dump.path)):
        folders.setdefault(dump.folder, {}).setdefault(dump.name, []).append(dump)
    found: list[Event] = []
    for named in folders.values():
        for looks in named.values():
            found += _stack_events(looks[-LOOKS:])
            found += _call_events(looks)
        found += _absent_events([looks[-1] for looks in named.values()])
    return found


def _stack_events(looks: Sequence[DebugDump]) -> Iterator[Event]:
    """The stack of each rank, and where it stood at each look."""
    seen: dict[int, list[tuple[DebugDump, list[Frame]]]] = {}
    for dump in looks:
        for rank, answer in dump.answers.items():
            frames = _main_frames(answer.body)
            if frames:
                seen.setdefault(rank, []).append((dump, frames))
    newest = looks[-1]
    for rank, shots in seen.items():
        last, frames = shots[-1]
        if last is not newest:
            continue
        answer = newest.answers[rank]
        text = "\n".join([_heading(answer), *map(_frame_line, frames)])
        data = {"thread": "MainThread", "frames": frames, "tool": "faulthandler"}
        yield _event("stack", text, newest, answer, data)
        if len(shots) > 1:
            yield _event("attach.rank", _moves(rank, shots), newest, answer, _snapshots(shots))


def _snapshots(shots: Sequence[tuple[DebugDump, list[Frame]]]) -> dict[str, Any]:
    moments = []
    for dump, frames in shots:
        stack = "\n".join(map(_frame_line, frames))
        moment = dump.time or 0.0
        shot = Snapshot(moment, stack=stack)
        moments.append(msgspec.to_builtins(shot))
    return {"snapshots": moments}


def _moves(rank: int, shots: Sequence[tuple[DebugDump, list[Frame]]]) -> str:
    places = []
    for _, frames in shots:
        innermost = _frame_line(frames[0])
        places.append(innermost.strip())
    begin = f"rank {rank} at {len(shots)} looks of the debug server"
    return f"{begin}: {'; '.join(places)}"


def _main_frames(body: Sequence[str]) -> list[Frame]:
    """The frames of the main thread, innermost first.

    faulthandler prints it last, and the server's own thread, without a frame, first; py-spy names
    it.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in body:
        head = stacks.FAULT.match(line) or stacks.PYSPY.match(line)
        if head:
            threads.append((head["name"] or "", []))
            continue
        found = stacks.FAULT_FRAME.match(line) or stacks.PYSPY_FRAME.match(line)
        if not found or not threads:
            continue
        _, frames = threads[-1]
        one = frame(found["file"], found["line"], found["func"])
        frames.append(one)
    chosen: list[Frame] = []
    is_named = False
    for name, frames in threads:
        is_main = name == "MainThread"
        if frames and (is_main or not is_named):
            chosen = frames
            is_named = is_main
    return chosen[: stacks.LIMIT]


def _frame_line(one: Frame) -> str:
    return f"    {one['func']} ({one['file']}:{one['line']})"


def _heading(answer: RankAnswer) -> str:
    return f"Rank {answer.rank} on {answer.host}:"


def _call_events(looks: Sequence[DebugDump]) -> Iterator[Event]:
    """Calls that ranks did not make, or made otherwise, as the newest table shows them.

    The answers of a job at work are some milliseconds apart: only what an earlier table shows as
    well has lasted.
    """
    newest = looks[-1]
    before = set()
    if len(looks) > 1:
        for call in looks[-2].calls:
            before.add(call.key)
    for call in newest.calls:
        data = dict(call.fields)
        data["growing"] = call.key not in before
        rank = None
        if len(call.ranks) == 1:
            rank = call.ranks[0]
        yield Event(
            call.kind,
            clip(call.text),
            newest.path,
            call.line,
            newest.time,
            rank=rank,
            data=data,
        )


def _absent_events(newest: Sequence[DebugDump]) -> Iterator[Event]:
    """Ranks that gave no answer to any question of the last round."""
    answered: set[int] = set()
    silent: dict[int, tuple[DebugDump, int, str, str]] = {}
    for dump in newest:
        for rank, answer in dump.answers.items():
            if rank not in dump.absent and not _is_error(answer):
                answered.add(rank)
        for rank, (line, why) in dump.absent.items():
            how = _how(why)
            if how == "no_handler":
                answered.add(rank)
            elif how:
                silent[rank] = (dump, line, why, how)
    for rank, (dump, line, why, how) in sorted(silent.items()):
        if rank in answered:
            continue
        host = ""
        if rank in dump.answers:
            host = dump.answers[rank].host
        text = f"Rank {rank}: {why}"
        yield Event(
            "debug.absent",
            clip(text),
            dump.path,
            line,
            dump.time,
            host,
            rank=rank,
            data={"how": how, "answered": sorted(answered)},
        )


def _is_error(answer: RankAnswer) -> bool:
    said = " ".join(answer.body).strip()
    return ERROR.match(said) is not None


def _how(why: str) -> str:
    if NOT_THERE.search(why):
        return "no_handler"
    if REFUSED.search(why):
        return "refused"
    if LATE.search(why):
        return "late"
    return ""


def _event(
    kind: str, text: str, dump: DebugDump, answer: RankAnswer, data: Mapping[str, Any]
) -> Event:
    place = (dump.path, answer.line, dump.time, answer.host)
    return Event(kind, clip(text), *place, rank=answer.rank, data=data)
