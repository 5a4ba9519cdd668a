"""One file: what kind it is, and the events in it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO

from ncclkit.agent import wire
from ncclkit.evidence import dumps, inputs, pickles, ras, records, scan, stacks
from ncclkit.evidence.archives import BINARY, NESTED, Archive
from ncclkit.evidence.merge import Merger
from ncclkit.evidence.streams import DAMAGE, Budget, Hashed, Joined, Readable, Text, is_tar, unpack
from ncclkit.model import Event, NcclkitError

TASKS = re.compile(rb"(?m)^ {0,4}\d{1,5}: ")
SPEAKER = re.compile(rb"\[(?:rank|default)(\d{1,6})\]:|^ {0,4}(\d{1,5}): ", re.MULTILINE)
HEADS = re.compile(r"^Process (\d{1,10}): ?(?:rank (\d{1,7})\s*$)?", re.MULTILINE)
KERNEL = re.compile(rb"(?m)^(?:\[ *\d+\.\d{6}\]|.{0,60}\bkernel: )")


@dataclass(slots=True)
class Part:
    """What one file gave."""

    path: str
    kind: str = "unknown"
    bytes: int = 0
    lines: int = 0
    sha256: str = ""
    rank: int | None = None
    """From the file's name."""
    speakers: list[int] = field(default_factory=list)
    """Ranks that some line of it names as its speaker."""
    events: list[Event] = field(default_factory=list)
    dump: dumps.Dump | None = None
    problems: list[str] = field(default_factory=list)
    """One sentence per thing that went wrong."""

    def row(self, events: int) -> dict[str, Any]:
        """The line of ``inputs.json``."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "lines": self.lines,
            "kind": self.kind,
            "sha256": self.sha256,
            "events": events,
            "ranks": sorted({*self.speakers, *([] if self.rank is None else [self.rank])}),
        }


def read(path: str, stdin: BinaryIO | None = None) -> list[Part]:
    """Read one file, and the members of an archive after it; whatever is wrong stands in `problems`.

    Safe to run in another process.
    """
    part = Part(path, rank=inputs.rank_of(path))
    parts = [part]
    try:
        if path == "-":
            parts += _fill(part, stdin or sys.stdin.buffer, None)
        else:
            with inputs.opened(path) as stream:
                about = os.fstat(stream.fileno())
                part.bytes = about.st_size
                parts += _fill(part, stream, datetime.fromtimestamp(about.st_mtime))
    except NcclkitError as error:
        part.problems.append(str(error))
    except (OSError, pickles.Refused) as error:
        part.problems.append(f"{path}: {error}.")
    return parts


def _fill(part: Part, stream: Readable, changed: datetime | None, inside: Budget | None = None) -> list[Part]:
    """Read one stream into its part; the members, where it is an archive that is not itself `inside` one."""
    hashed, members = Hashed(stream), []
    plain, packing = unpack(hashed)
    text = Text(plain, packed=packing != "")
    text.budget = inside
    head = b"" if packing in ("zip", "zst") else text.read(inputs.HEAD)
    if packing in ("zip", "zst") or is_tar(head):
        part.kind = "archive"
        if packing == "zst":
            part.problems.append(f"{part.path} is a zst archive, which this version does not open; unpack it first.")
        elif inside is None:
            members = _members(part, stream, hashed, Joined(head, text), packing)
    elif not head:
        part.kind = "empty"
    elif head[:1] == b"\x80" or head.lstrip()[:1] in (b"{", b"["):
        _document(part, head, text, changed)
    else:
        _text(part, head, text, changed)
    if text.problem and not part.problems:
        part.problems.append(f"{part.path} {text.problem}")
    # a checkpoint of 100 GB must not be read for its digest
    if part.kind not in ("binary", "archive", "unknown") or members:
        if inside is not None:  # what is left of a member may be a bomb: through its limits
            text.drain()
        if inside is None or not text.problem:
            hashed.drain()
            part.sha256 = hashed.digest.hexdigest()
    part.bytes = max(hashed.bytes, part.bytes)
    return members


def _members(part: Part, stream: Readable, hashed: Hashed, source: Joined, packing: str) -> list[Part]:
    """Every member that can hold evidence, as a part of its own, in the order of a folder."""
    file = stream if isinstance(stream, (io.BufferedReader, io.BytesIO)) and stream.seekable() else None
    budget, passing = (Budget(lambda: max(part.bytes, hashed.bytes)) for _ in range(2))
    archive = Archive(part.path, passing)
    source.rest.budget = passing if packing not in ("", "zip") else None
    found = archive.zip(file, source) if packing == "zip" else archive.tar(source)
    parts = []
    for member in found:
        inner = Part(f"{part.path}/{member.name}", rank=inputs.rank_of(member.name))
        try:
            _fill(inner, member.stream, member.changed, budget)
        except (*DAMAGE, pickles.Refused) as error:
            inner.problems.append(f"{inner.path}: {error}.")
        if inner.kind in ("archive", "binary"):
            inner.problems.clear()
            archive.omit(NESTED if inner.kind == "archive" else BINARY, member.name)
        parts.append(inner)
        if budget.spent:
            break
    if source.rest.problem:
        archive.problem = f"{part.path} {source.rest.problem}"
    part.problems += archive.problems()
    if not parts and not part.problems:
        part.problems.append(f"{part.path} holds no log.")
    if packing == "zip" and file is not None:
        hashed.restart(file)
    return sorted(parts, key=lambda inner: inputs.natural(inner.path))


def _document(part: Part, head: bytes, text: Text, changed: datetime | None) -> None:
    """A pickle or JSON document; JSON lines and text that only looks like one go the way of logs."""
    if head.startswith(wire.MARK):
        part.kind = "wire"
        _wire(part, io.BufferedReader(Joined(head, text)))
        return
    if head[:1] != b"\x80" and not re.match(rb"\s*[\[{]\s*(?:[\[{\"\]}]|$)", head):
        _text(part, head, text, changed)
        return
    data = head + text.read(inputs.SMALL - len(head))
    if data[:1] == b"\x80":
        part.kind = "flight"
        _dump(part, data)
        return
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        _text(part, data, text, changed)
        return
    part.lines = data.count(b"\n")
    if not _value(part, value, data):
        _text(part, data, text, changed)


def _dump(part: Part, data: bytes) -> None:
    try:
        part.dump = dumps.load(data, part.path, part.rank)
    except pickles.Refused as error:
        part.kind = "unknown"
        part.problems.append(f"{part.path} looks like a Flight Recorder dump but {error}.")
        return
    if part.dump is None:
        part.kind = "unknown"
        part.problems.append(f"{part.path} is a pickle without Flight Recorder entries; it was not used.")


def _value(part: Part, value: Any, data: bytes) -> bool:
    """Events of a JSON document of a known kind; False for any other."""
    if dumps.is_dump(value) or (
        isinstance(value, list) and value and isinstance(value[0], dict) and "profiling_name" in value[0]
    ):
        part.kind = "flight"
        _dump(part, data)
    elif isinstance(value, dict) and isinstance(value.get("communicators"), list):
        part.kind, part.events = "ras", ras.from_json(value, part.path)
    elif isinstance(value, dict) and "reason" in value and "exitcode" in value:
        part.kind, part.events = "status", list(records.from_status(value, part.path))
    elif isinstance(value, dict) and isinstance(value.get("ranks"), int):
        part.kind, part.events = "plan", list(records.from_plan(value, part.path))
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "frames" in value[0]:
        part.kind, part.events = "stacks", stacks.from_json(value, part.path, part.rank)
    else:
        return False
    return True


def _wire(part: Part, stream: BinaryIO) -> None:
    merger = Merger()
    for number, raw in enumerate(stream, 1):
        part.lines = number
        event = records.from_wire(raw, part.path, number)
        if event is not None:
            merger.add(event)
            part.speakers += [event.rank] if event.rank is not None and event.rank not in part.speakers else []
    part.events = merger.events()


def _text(part: Part, head: bytes, text: Text, changed: datetime | None) -> None:
    wide = inputs.width(head)
    if not wide and inputs.is_binary(head):
        part.kind = "binary"
        part.problems.append(f"{part.path} is a binary file of no known kind; it was not read.")
        return
    stream = Text(Joined(head, text), packed=False, wide=wide) if wide else Joined(head, text)
    sample = head.decode(wide, "replace").encode() if wide else head
    part.kind = _kind(sample)
    if part.kind == "ras":
        part.events = ras.from_text((raw := stream.read(inputs.SMALL)).decode("utf-8", "replace"), part.path)
        part.lines = raw.count(b"\n")
        return
    lines = sample.splitlines()
    tasks = len(TASKS.findall(sample)) > 0.5 * max(4, len([line for line in lines if line.strip()]))
    labelled = len(SPEAKER.findall(sample)) > 0.3 * len(lines)
    context = scan.Context(part.path, part.rank, tasks, changed)
    part.events = list(_events(part, stream, context, labelled))


def _events(part: Part, stream: Any, context: scan.Context, labelled: bool) -> Iterator[Event]:
    merger, speakers, heads = Merger(), set(part.speakers), []
    for block in scan.blocks(stream, context):
        for event in block.events():
            merger.add(event)
        part.lines = block.number - 1 + block.data.count(b"\n", 0, block.limit)
        if labelled:
            speakers |= {
                int(rank or task) for rank, task in SPEAKER.findall(block.data, 0, block.limit) if rank or context.tasks
            }
        if part.kind == "stacks":
            said = HEADS.finditer(block.data.decode("utf-8", "replace"))
            heads += [
                (m.string.count("\n", 0, m.start()) + block.number, int(m[1]), int(m[2]) if m[2] else None)
                for m in said
            ]
        last = block.data[block.limit - 1 : block.limit]
    part.lines += part.lines >= 0 and last not in (b"\n", b"")
    part.speakers = sorted(speakers)
    found = merger.events()
    yield from (event for event in found if event.kind != "stack")
    yield from stacks.of_processes([event for event in found if event.kind == "stack"], heads)


def _kind(sample: bytes) -> str:
    text = sample.decode("utf-8", "replace")
    if ras.is_report(text):
        return "ras"
    if re.match(r"\s*(?:Process \d+: |Thread (?:0x)?[0-9A-Fa-f]+ \(|Current thread 0x|Fatal Python error: )", text):
        return "stacks"
    lines = len([line for line in sample.splitlines() if line.strip()])
    return "dmesg" if len(KERNEL.findall(sample)) > 0.5 * lines else "log"
