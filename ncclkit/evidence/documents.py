"""Files that are one document: dumps, traces, reports, and what our own runs leave beside the logs."""

from __future__ import annotations

import io
import json
import re
from typing import Any, BinaryIO

from ncclkit.agent import wire
from ncclkit.evidence import hostfacts, measured, records, telemetry
from ncclkit.evidence.flight import dumps, pickles
from ncclkit.evidence.grammars import stacks
from ncclkit.evidence.merge import Merger
from ncclkit.evidence.part import Part
from ncclkit.evidence.ras import fromjson
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.streams import Joined, Text
from ncclkit.evidence.tools import kineto, results

STRIP = b'{"telemetry": 1, '
"""How the samples of `ncclkit.agent.monitor.telemetry` begin."""


def read(part: Part, head: bytes, text: Text) -> bytes | None:
    """Read a pickle or a JSON document into `part`.

    head: its first bytes, `text` gives the rest.  Returns None when it was read; what was taken from `text` so far when
    it only looks like one: JSON lines and brackets go the way of logs.
    """
    if head.startswith(wire.MARK):
        part.kind = "wire"
        _wire(part, io.BufferedReader(Joined(head, text)))
        return None
    if head.startswith(STRIP):
        part.kind = "telemetry"
        part.events, part.lines = telemetry.read(io.BufferedReader(Joined(head, text)), part.path)
        return None
    if kineto.is_trace(head):
        part.kind, part.events = "kineto", kineto.read(head, text.read, part.path)
        part.speakers = [event.rank for event in part.events if event.rank is not None]
        return None
    if head[:1] != b"\x80" and not re.match(rb"\s*[\[{]\s*(?:[\[{\"\]}]|$)", head):
        return head
    data = head + text.read(inputs.SMALL - len(head))
    if data[:1] == b"\x80":
        part.kind = "flight"
        _dump(part, data)
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = fromjson.mended(data) or _lines(data)
        if value is None:
            return data
    part.lines = data.count(b"\n")
    return None if _value(part, value) else data


def _lines(data: bytes) -> list[Any] | None:
    """The values of a file in which every line is a fact, or a measurement; None for any other file."""
    first, _, rest = data.lstrip().partition(b"\n")
    try:
        row = json.loads(first)
        if not (hostfacts.is_fact(row) or measured.is_row(row)):  # a log of JSON lines can be large
            return None
        return [row, *(json.loads(line) for line in rest.splitlines() if line.strip())]
    except (ValueError, RecursionError):
        return None


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
    elif part.dump.left_out:
        part.problems.append(f"{part.path}: {part.dump.left_out} of {part.dump.total} entries could not be understood.")


def _value(part: Part, value: Any) -> bool:
    """Events of a JSON document of a known kind; False for any other."""
    if dump := dumps.of_value(value, part.path, part.rank):
        part.kind, part.dump = "flight", dump
    elif isinstance(value, dict) and isinstance(value.get("communicators"), list):
        part.report = fromjson.from_json(value, part.path)
        part.kind, part.events = "ras", part.report.events()
    elif isinstance(value, dict) and "reason" in value and "exitcode" in value:
        part.kind, part.events = "status", list(records.from_status(value, part.path))
    elif isinstance(value, dict) and "experiment" in value and "verdicts" in value:
        part.kind, part.events = "experiment", list(records.from_trial(value, part.path))
    elif rows := measured.from_value(value):
        part.kind, part.measurements = "measurements", rows
    elif isinstance(value, dict) and isinstance(value.get("ranks"), int):
        part.kind, part.events = "plan", list(records.from_plan(value, part.path))
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "frames" in value[0]:
        part.kind, part.events = "stacks", stacks.from_json(value, part.path, part.rank)
    elif results.is_results(value):
        part.take([results.read(value, part.path)])
    elif found := hostfacts.from_value(value):
        part.kind, part.facts = "facts", found
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
