"""What one file gave.

Its kind is told from its content: log, dump, report, document or archive.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, BinaryIO

from ncclkit.agent import wire
from ncclkit.core import storage
from ncclkit.core.model import Event, Fact, Measurement, NcclkitError
from ncclkit.core.text import natural
from ncclkit.evidence import abnormal, debug_server, processes, ras, ras_text, records, tools
from ncclkit.evidence.flight import clog, dumps
from ncclkit.evidence.flight.rehearsal import events_of_rehearsal, is_rehearsal
from ncclkit.evidence.grammars import stacks
from ncclkit.evidence.merge import Merger
from ncclkit.evidence.quotation import is_document
from ncclkit.evidence.ras import Report
from ncclkit.evidence.scanner import pieces, plain, scan
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.archives import BINARY, NESTED, Archive
from ncclkit.evidence.sources.streams import (
    DAMAGE,
    PEEK,
    Counted,
    Ends,
    Joined,
    Readable,
    TolerantReader,
    UnpackBudget,
    is_tar,
    unpack,
)
from ncclkit.evidence.tools import Document, nccltests, profiles

Spread = Callable[
    [Callable[[pieces.ByteRange], pieces.ScanResult], Sequence[pieces.ByteRange]],
    Iterator[pieces.ScanResult],
]
"""`map`, or that of an executor."""


@dataclass(slots=True)
class Part:
    """What one file gave."""

    path: str
    kind: str = "unknown"
    bytes: int = 0
    lines: int = 0
    rank: int | None = None
    """From the file's name."""
    speakers: list[int] = field(default_factory=list)
    """Ranks that some line of it names as its speaker."""
    events: list[Event] = field(default_factory=list)
    abnormal: list[dict[str, Any]] = field(default_factory=list)
    """Lines that speak of trouble and that no grammar knows."""
    short: str = ""
    """The whole of a short log."""
    facts: list[Fact] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    dump: dumps.Dump | None = None
    report: Report | None = None
    debug: debug_server.DebugDump | None = None
    problems: list[str] = field(default_factory=list)
    """One sentence per thing that went wrong."""
    spread: Spread | None = None
    """How the pieces of a plain file are scanned; None for anything else, such as an archive."""

    def take(self, found: Sequence[Document]) -> None:
        """Add what other tools printed here.

        A file with nothing else in it is of their kind.
        """
        if found and all(
            event.kind in ("progress", "printed.version", "job.member") for event in self.events
        ):
            self.kind = found[0].tool
        hosts = {event.host for event in self.events if event.host}
        host = ""
        if len(hosts) == 1:
            host = hosts.pop()
        self.facts = [replace(fact, host=host) for fact in tools.facts_of_documents(found)]
        self.measurements = []
        for document in found:
            self.measurements += document.measurements
            self.events += document.events
            if document.problem:
                self.problems.append(f"{self.path} {document.problem}")

    def become(self, found: Part) -> None:
        """Take what was read of this file as a document."""
        for name in (
            "kind",
            "lines",
            "events",
            "facts",
            "measurements",
            "dump",
            "report",
            "debug",
            "speakers",
        ):
            setattr(self, name, getattr(found, name))
        self.problems += found.problems

    def row(self, events: int, errors: int) -> dict[str, Any]:
        """The line of ``inputs.json``.

        `errors` counts the lines that call themselves so, and that no grammar knows.
        """
        return {
            "path": self.path,
            "bytes": self.bytes,
            "lines": self.lines,
            "kind": self.kind,
            "events": events,
            "errors": errors,
            "ranks": sorted({*self.speakers, *([] if self.rank is None else [self.rank])}),
            "abnormal": self.abnormal,
        }


UNREAD = frozenset(("binary", "unknown", "empty"))
"""Kinds of files in which nothing is looked for."""
TRACE = re.compile(rb'\s*\{\s*"(?:schemaVersion|traceEvents|deviceProperties|distributedInfo)"')
"""How the traces of PyTorch's profiler begin."""
TELEMETRY_HEAD = b'{"telemetry": 1, '
"""How the samples of `ncclkit.agent.monitor.telemetry` begin."""


SAFE = 1 << 20
"""Bytes of JSON that are read in this process: they take 35 MB as objects at most."""


def read_document(part: Part, head: bytes, text: TolerantReader) -> bytes | None:
    """Read a pickle or a JSON document into `part`.

    `head` is its first bytes, `text` gives the rest.  Returns None when it was read, and what was
    taken from `text` so far when it only looks like one: JSON lines and brackets go the way of
    logs.
    """
    if head.startswith(wire.MARK):
        part.kind = "wire"
        _fill_from_records(part, io.BufferedReader(Joined(head, text)))
        return None
    if head.startswith(TELEMETRY_HEAD):
        part.kind = "telemetry"
        part.events, part.lines = records.telemetry_of(
            io.BufferedReader(Joined(head, text)), part.path
        )
        return None
    if TRACE.match(head):
        part.kind = "trace"
        return None
    pickled = head[:1] == b"\x80"
    if not pickled and not re.match(rb"\s*[\[{]\s*(?:[\[{\"\]}]|$)", head):
        return head
    data = _read_all(Joined(head, text))
    if profiles.HEAD.match(head) and profiles.MARK in data:
        part.kind = "inspector"
        part.events = profiles.events(bytes(data), part.path)
        part.lines = data.count(b"\n")
        return None
    if not pickled and _are_lines(data):
        return bytes(data)
    try:
        if pickled:
            found = _read_limited(document, part, data)
        else:
            found = _read_document(document, part, data)
    except (processes.Refused, storage.Nested) as error:
        part.problems.append(
            f"{part.path} {'looks like a Flight Recorder dump but ' * pickled}{error}."
        )
        return None
    if found is None:
        return bytes(data)
    part.become(found)
    return None


def _read_all(stream: Readable) -> bytearray:
    """All of a document, or its first `inputs.SMALL` bytes.

    It is read in one piece, once, as it may be large.
    """
    data = bytearray()
    while len(data) < inputs.SMALL and (chunk := stream.read(1 << 20)):
        data += chunk
    return data


Reader = Callable[[str, int | None, bytes], "Part | None"]


def _read_document(function: Reader, part: Part, data: bytearray) -> Part | None:
    """What a reader makes of a document, here where that is sure to be cheap."""
    if len(data) > SAFE:
        return _read_limited(function, part, data)
    return function(part.path, part.rank, bytes(data))


def _read_limited(function: Reader, part: Part, data: bytearray) -> Part | None:
    found: Part | None = processes.limited.call(function, part.path, part.rank, data=data)
    return found


def document(path: str, rank: int | None, data: bytes) -> Part | None:
    """What a pickle or a JSON document holds.

    It is None where it is neither, Refused where it is a damaged pickle.
    """
    part = Part(path, rank=rank)
    if data[:1] == b"\x80":
        part.dump = dumps.of_value(dumps.loads(data), path, rank)
        if part.dump is None:
            part.problems.append(
                f"{path} is a pickle without Flight Recorder entries; it was not used."
            )
            return part
        part.kind = "flight"
        if part.dump.left_out:
            part.problems.append(
                f"{path}: {part.dump.left_out} of {part.dump.total} entries could not be"
                " understood."
            )
        return part
    part.lines = data.count(b"\n")
    try:
        value = storage.parse_json(data)
    except storage.Nested:
        raise
    except ValueError:
        value = ras.parse_json(data) or _values_of_lines(data)
    if value is not None and _fill_from_value(part, value):
        return part
    return None


def report(path: str, rank: int | None, data: bytes) -> Part:
    """What a RAS report in text says."""
    made = ras_text.from_text(data.decode("utf-8", "replace"), path)
    return Part(path, "ras", lines=data.count(b"\n"), rank=rank, report=made, events=made.events())


def debug_dump(path: str, rank: int | None, data: bytes) -> Part:
    """What a file of torch's debug server says."""
    made = debug_server.read_dump(data.decode("utf-8", "replace"), path)
    lines = data.count(b"\n")
    return Part(path, "debug", lines=lines, speakers=sorted(made.answers), debug=made)


REPORTS = {"ras": report, "debug": debug_dump}
"""Kind of a text that is read in one piece → its reader."""


def _are_lines(data: bytearray) -> bool:
    """Whether a JSON document is a log of one value a line.

    None of them may be a record of ours.
    """
    end = data.find(b"\n", 1, SAFE)
    try:
        row = None
        if end > 0:
            row = storage.parse_json(bytes(data[:end]))
    except ValueError:
        return False
    return (
        row is not None
        and data[end:].strip() != b""
        and not (records.is_fact(row) or records.measurements_of(row))
    )


def _values_of_lines(data: bytes) -> list[Any] | None:
    """The values of a file in which every line is one; None for any other file."""
    try:
        return [storage.parse_json(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return None


def _fill_from_value(part: Part, value: Any) -> bool:
    """Events of a JSON document of a known kind; False for any other."""
    dump = dumps.of_value(value, part.path, part.rank)
    if dump:
        part.kind = "flight"
        part.dump = dump
    elif isinstance(value, dict) and isinstance(value.get("communicators"), list):
        part.report = ras.from_json(value, part.path)
        part.kind, part.events = "ras", part.report.events()
    elif (
        isinstance(value, dict)
        and "ncclkit_steps" in value
        and (event := profiles.from_hook(value, part.path))
    ):
        part.kind = "steps"
        part.events = [event]
    elif is_rehearsal(value):
        part.kind = "rehearsal"
        part.events = events_of_rehearsal(value, part.path)
    elif isinstance(value, dict) and "reason" in value and "exitcode" in value:
        part.kind, part.events = "status", list(records.from_status(value, part.path))
    elif isinstance(value, dict) and "attached" in value and "expected" in value:
        part.kind, part.events = "attached", list(records.from_attached(value, part.path))
    elif isinstance(value, dict) and "experiment" in value and "verdicts" in value:
        part.kind, part.events = "experiment", list(records.from_experiment(value, part.path))
    elif rows := records.measurements_of(value):
        part.kind = "measurements"
        part.measurements = rows
    elif isinstance(value, dict) and isinstance(value.get("ranks"), int):
        part.kind, part.events = "plan", list(records.from_plan(value, part.path))
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "frames" in value[0]:
        part.kind, part.events = "stacks", stacks.from_json(value, part.path, part.rank)
    elif nccltests.is_results(value):
        part.take([nccltests.read_measurements(value, part.path)])
    elif found := records.facts_of(value):
        part.kind = "facts"
        part.facts = found
    else:
        return False
    return True


def _fill_from_records(part: Part, stream: BinaryIO) -> None:
    merger = Merger()
    bad = 0
    for number, raw in enumerate(iter(lambda: stream.readline(records.LONGEST), b""), 1):
        part.lines = number
        try:
            event = records.from_wire(raw, part.path, number)
        except records.Malformed:
            event = None
            bad = bad + 1
        if event is not None:
            merger.add_line(event)
            part.speakers += (
                [event.rank] if event.rank is not None and event.rank not in part.speakers else []
            )
    part.events = merger.events()
    if bad:
        part.problems.append(
            f"{part.path}: {bad} of {part.lines} records could not be understood; the others were"
            " read."
        )


KERNEL = re.compile(
    rb"(?m)^(?:(?:<\d{1,3}>|\w+ *:\w+ *: )?\[(?: *\d+\.\d{6}|\w{3} \w{3} [ \d]\d [\d:]{8}"
    rb" \d{4})\]|.{0,60}\bkernel: )"
)
"""The kernel's lines as dmesg (also -T, -x, -r), syslog and journalctl write them."""


def read_file(path: str, stdin: BinaryIO | None = None, spread: Spread = map) -> list[Part]:
    """Read one file, and the members of an archive after it.

    Whatever is wrong stands in `problems`.  It is safe to run in another process; `spread` has the
    pieces of a large plain file scanned in others.
    """
    part = Part(path, rank=inputs.rank_of(path))
    parts = [part]
    try:
        if path == "-":
            parts += _fill_part(part, stdin or sys.stdin.buffer, None)
        else:
            with inputs.opened(path) as stream:
                about = os.fstat(stream.fileno())
                part.bytes = about.st_size
                # /proc
                if about.st_size:
                    part.spread = spread
                else:
                    part.spread = None
                parts += _fill_part(part, stream, datetime.fromtimestamp(about.st_mtime))
    except NcclkitError as error:
        part.problems.append(str(error))
    except OSError as error:
        part.problems.append(f"{path}: {error}.")
    part.spread = None  # its work is done, and it cannot travel
    return parts


def read_answer(path: str, text: str) -> list[Part]:
    """Read what a program answered; `path` is how its lines are cited."""
    part = Part(path)
    _fill_part(part, io.BytesIO(text.encode("utf-8", "replace")), None)
    return [part]


def _fill_part(
    part: Part, stream: Readable, changed: datetime | None, inside: UnpackBudget | None = None
) -> list[Part]:
    """Read one stream into its part.

    Of an archive it reads the members, where the archive is not itself `inside` one.
    """
    start, end, members = 0, part.bytes, []
    # a hole before its data, or behind it, takes no time
    if part.spread and isinstance(stream, io.BufferedReader):
        start = pieces.data(stream.fileno(), 0, part.bytes)
        end = pieces.end_of_data(stream.fileno(), start, part.bytes)
        stream.seek(start)
    counted = Counted(stream, end - start)
    plain, packing = unpack(io.BufferedReader(counted, PEEK))
    text = TolerantReader(plain, packed=packing != "")
    text.budget = inside
    if packing:
        part.spread = None
    if packing in ("zip", "zst?"):
        head = b""
    else:
        head = text.begin(inputs.HEAD)
    if packing == "zst?":
        part.problems.append(
            f"{part.path} is packed with zstd: `pip install zstandard`, or unpack it with `zstd"
            " -d`."
        )
    elif packing == "zip" or is_tar(head):
        part.kind = "archive"
        if inside is None:
            members = _member_parts(part, stream, counted, Joined(head, text), packing)
    elif not head:
        part.kind = "empty"
    elif clog.is_clog(head):
        _fill_from_clog(part, io.BufferedReader(Joined(head, text)))
    elif head[:1] == b"\x80" or head.lstrip()[:1] in (b"{", b"["):
        rest = read_document(part, head, text)
        if rest is not None:
            _fill_from_text(part, rest, text, changed)
    else:
        _fill_from_text(part, head, text, changed)
    if part.kind in ("log", "dmesg", "document"):
        part.take(tools.at_ends(text.ends, part.path, part.rank, part.lines))
        part.abnormal = abnormal.lines(text.ends, part.path, part.lines, part.events)
        first, last = text.ends.head_and_tail()
        if not last and len(first) <= abnormal.SHORT:
            part.short = first.decode("utf-8", "replace")
        else:
            part.short = ""
    if text.problem and not part.problems:
        part.problems.append(f"{part.path} {text.problem}")
    part.bytes = max(counted.bytes, part.bytes)
    return members


def _member_parts(
    part: Part, stream: Readable, counted: Counted, source: Joined, packing: str
) -> list[Part]:
    """Every member that can hold evidence, as a part of its own.

    They come in the order of a folder.
    """
    file = None
    if isinstance(stream, (io.BufferedReader, io.BytesIO)) and stream.seekable():
        file = stream
    budget, passing = (UnpackBudget(lambda: max(part.bytes, counted.bytes)) for _ in range(2))
    archive = Archive(part.path, passing)
    if packing not in ("", "zip"):
        source.rest.budget = passing
    else:
        source.rest.budget = None
    if packing == "zip":
        found = archive.zip(file, source)
    else:
        found = archive.tar(source)
    parts = []
    for member in found:
        inner = Part(f"{part.path}/{member.name}", rank=inputs.rank_of(member.name))
        try:
            _fill_part(inner, member.stream, member.changed, budget)
        except DAMAGE as error:
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
        part.bytes = file.seek(0, io.SEEK_END)
    return sorted(parts, key=lambda inner: natural(inner.path))


def _fill_from_clog(part: Part, stream: BinaryIO) -> None:
    part.kind = "clog"
    lines = iter(lambda: stream.readline(clog.LONGEST), b"")
    part.dump, part.lines = clog.read_clog(lines, part.path, part.rank)


def _fill_from_text(
    part: Part, head: bytes, text: TolerantReader, changed: datetime | None
) -> None:
    wide = inputs.width(head)
    if not wide and inputs.is_binary(head):
        part.kind = "binary"
        part.problems.append(f"{part.path} is a binary file of no known kind; it was not read.")
        return
    decoded = TolerantReader(Joined(head, text), packed=False, wide=wide)
    if wide:
        stream: TolerantReader | Joined | io.BytesIO = decoded
        sample = head.decode(wide, "replace").encode()
    else:
        stream = Joined(head, text)
        sample = head
    part.kind = _kind_of_text(sample, part.path)
    if part.kind in REPORTS:
        try:
            reader = REPORTS[part.kind]
            part.become(_read_document(reader, part, _read_all(stream)) or part)
        except processes.Refused as error:
            part.kind = "unknown"
            part.problems.append(f"{part.path} {error}.")
        return
    if part.kind == "log" and not wide and (read := plain.plain_text(sample)) is not sample:
        stream = _plain_stream(part, stream, text)
        if isinstance(stream, io.BytesIO):
            sample = read
    lines = sample.splitlines()
    tasks = len(tools.TASK.findall(sample)) > 0.5 * max(
        4, len([line for line in lines if line.strip()])
    )
    labelled = len(pieces.SPEAKER.findall(sample)) > 0.3 * len(lines)
    context = scan.Context(part.path, part.rank, tasks, changed)
    options = {"labelled": labelled, "stacks": part.kind == "stacks"}
    if part.spread and not wide:
        with inputs.opened(part.path) as file:
            plan = pieces.cut_into_pieces(file, part.bytes, context, **options)
            text.ends = Ends.of(file, part.bytes, pieces.data(file.fileno(), 0, part.bytes))
        found = pieces.joined(part.spread(pieces.scan_piece, plan))
    else:
        found = pieces.joined([pieces.gather(scan.blocks(stream, context), Merger(), **options)])
    if wide:
        text.ends = decoded.ends
    part.events = found.events
    part.lines = found.ends + found.open
    part.speakers = sorted({*part.speakers, *found.speakers})
    part.problems += [f"{part.path} {found.problem}"] if found.problem else []


def _plain_stream(
    part: Part, stream: TolerantReader | Joined | io.BytesIO, text: TolerantReader
) -> TolerantReader | Joined | io.BytesIO:
    """The whole text as its programs wrote it.

    What is too large for that stays as it is.
    """
    raw = bytearray()
    while len(raw) <= plain.MOST and (chunk := stream.read(inputs.HEAD)):
        raw += chunk
    if len(raw) > plain.MOST:
        return Joined(bytes(raw), text)
    given = plain.plain_text(bytes(raw))
    part.spread, text.ends = None, Ends()
    text.ends.add(given)
    return io.BytesIO(given)


def _kind_of_text(sample: bytes, path: str) -> str:
    text = sample.decode("utf-8", "replace")
    if ras_text.is_report(text):
        return "ras"
    if debug_server.is_debug_dump(text):
        return "debug"
    if re.match(
        r"\s*(?:Process \d+: |Thread (?:0x)?[0-9A-Fa-f]+ \(|Current thread 0x|Fatal Python"
        r" error: )",
        text,
    ):
        return "stacks"
    lines = len([line for line in sample.splitlines() if line.strip()])
    if len(KERNEL.findall(sample)) > 0.5 * lines:
        return "dmesg"
    if is_document(path, text):
        return "document"
    return "log"
