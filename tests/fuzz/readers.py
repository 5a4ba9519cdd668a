"""What the long run calls with each input, in one process: the functions that take bytes of strangers apart.

No file and no child process stands between an input and its reader, so that an input takes 0.1 ms.  What a process with
limits does in the product is called here directly, under the same limit of memory; `targets` has the bounded part,
with files and that process.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest import mock

from ncclkit.agent.facts import gpu
from ncclkit.agent.facts.machine import Answer, Unread
from ncclkit.core.model import Event, to_json
from ncclkit.core.storage import Nested
from ncclkit.evidence import files, records, tools
from ncclkit.evidence.flight import clog, compare
from ncclkit.evidence.grammars import nccl, python, stacks, unknown_errors
from ncclkit.evidence.grammars.grammar import Rule
from ncclkit.core.kinds import KINDS
from ncclkit.evidence.merge import Merger, assign_ranks
from ncclkit.evidence.processes import Limited, Refused
from ncclkit.evidence.scanner import pieces, scan
from tests.evidence.test_ras import text as ras_text
from tests.fuzz.guards import Broken, install
from tests.fuzz.targets import CORPUS
from tests.hostile.test_records import RECORDS

CONTEXT = scan.Context("rank1.log", 1)
RULES: tuple[tuple[Rule, ...], ...] = (nccl.INFO, nccl.OTHER, *(grammar.RULES for grammar in scan.GRAMMARS))
CLOG = """V|1|base_timestamp=1790000000.000
new_comm|comm=world|rank=1|world_size=2
split|parent=world|child=tp|ranks=0,1
C1|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=world
C2|sig|send|in_count=8|out_count=0|dtype=bf16|peer=0|async_op=t|comm=tp
C1|Q|work_id=1|+0.001
C1|S|+0.002
C1|E|+0.005
C2|Q|work_id=2|+0.010
G7|C1|Q|work_id=3|+0.011
WARN|comm=tp|leaked work_id=2|corr_id=2|pending_events=S,E
"""
BLOCK = 512
"""Bytes of a header of tar."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One way in for bytes: the function, the inputs to begin with, and how long an input may be."""

    read: Callable[[bytes], Iterable[Any]]
    seeds: Callable[[], Iterable[bytes]]
    longest: int = 512
    share: float = 1.0
    """Of the time, so that a slow one is not left behind."""


def check(reader: Reader, data: bytes) -> None:
    """Read one input; raises whatever must not be, Broken where a record breaks its contract."""
    for record in reader.read(data):
        if isinstance(record, Event):
            if not isinstance(record.data, KINDS.get(record.kind, ())) or len(record.text) > 2000:
                raise Broken(f"event {record.kind}: {record.data}, {len(record.text)} characters")
        to_json(record)


@contextmanager
def one_process() -> Iterator[None]:
    """Inside: what a process with limits would do is done in this one, and `guarded` can be used."""

    def here(limited: Limited, function: Callable[..., Any], *given: Any, data: bytes = b"") -> Any:
        return function(*given, bytes(data))

    before = install()
    try:
        with mock.patch.object(Limited, "call", here):
            yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def _rules(data: bytes) -> Iterator[Event]:
    """Every rule of one grammar on the first line, whether its anchor stands there or not."""
    block = scan.Block(data[1:], len(data) - 1, 1, CONTEXT, last=True)
    end = data.find(b"\n", 1)
    line = block.line(0, (len(data) if end < 0 else end) - 1, 1)
    for rule in RULES[data[0] % len(RULES)] if data else ():
        event = rule.read(line)
        if event is not None:
            yield event
    yield from (*python.read_exceptions(line), *stacks.read_stack(line), *unknown_errors.read_unknown_error(line))


def _scanner(data: bytes) -> list[Event]:
    """All lines, merged; the first bit says whether the file is one of stacks."""
    marked = {"labelled": True, "stacks": bool(data[:1] and data[0] & 1)}
    context = scan.Context("job.log", tasks=bool(data[:1] and data[0] & 2))
    return assign_ranks(
        pieces.joined([pieces.gather(scan.blocks(io.BytesIO(data[1:]), context), Merger(), **marked)]).events
    )


def _document(data: bytes) -> Iterator[Any]:
    """What stands in one JSON document or pickle; MemoryError is what its process would say."""
    with suppress(Refused, Nested, MemoryError):
        part = files.document("rank1.json", 1, data)
        if part is not None:
            yield from (*part.events, *part.facts, *part.measurements)


def _dump(data: bytes) -> Iterator[Any]:
    return _document(data if data[:1] == b"\x80" else b"\x80\x02" + data)


def _ras(data: bytes) -> list[Event]:
    """The odd ones follow the head of a report."""
    head = b"NCCL version 2.28.9 compiled with CUDA 13.0\nJob summary\n" if data[:1] and data[0] & 1 else b""
    return files.report("ras.txt", 1, head + data[1:]).events


def _clog(data: bytes) -> list[Event]:
    """Lines of torchcomms' clog."""
    dump, _ = clog.read_clog(data.splitlines(keepends=True), "clog_1.txt", 1)
    return [compare.dump_event(dump), *compare.analyse([dump])]


def _records(data: bytes) -> list[Event]:
    """Lines of ``wire.jsonl`` or of ``telemetry.jsonl``."""
    if data.startswith(files.TELEMETRY_HEAD):
        return records.telemetry_of(io.BytesIO(data), "telemetry.jsonl")[0]
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        with suppress(records.Malformed):
            found.append(records.from_wire(line, "wire.jsonl", number))
    return [event for event in found if event is not None]


def _xml(data: bytes) -> Iterator[dict[str, Any]]:
    """The GPUs of ``nvidia-smi -q -x``."""
    with suppress(Unread):
        log, _ = gpu.parse_log(Answer(0, "<nvidia_smi_log>" + data.decode("utf-8", "replace")))
        for index, node in enumerate(log.findall("gpu")):
            yield from gpu.facts_of_gpu(index, node)


def _tools(data: bytes) -> Iterator[Any]:
    found = tools.search(data, "host.txt", 1)
    for document in found:
        yield from (*document.events, *document.measurements)
    yield from tools.facts_of_documents(found)


def _archive(data: bytes) -> Iterator[Any]:
    """The first byte: packed by gzip, its headers of tar summed up, or as it is.  No fuzzer finds a checksum."""
    how, body = data[:1] or b"0", data[1:]
    body = _summed(body) if how == b"t" else gzip.compress(body, 1) if how == b"g" else body
    for part in files.read_file("-", io.BytesIO(body)):
        yield part.row(0, 0)
        yield from (*part.events, *part.facts, *part.measurements)


def _summed(data: bytes) -> bytes:
    """Parts between ``\\xff\\xfe`` as blocks of tar, those that look like headers with their checksum."""
    blocks = []
    for part in data.split(b"\xff\xfe"):
        block = part[:BLOCK].ljust(BLOCK, b"\0")
        if b"ustar" in block[250:270]:
            total = sum(block[:148]) + 8 * 32 + sum(block[156:])
            block = block[:148] + b"%06o\0 " % total + block[156:]
        blocks.append(block)
    return b"".join(blocks) + bytes(2 * BLOCK)


def _kept(*names: str) -> Iterator[bytes]:
    """The committed seeds of these, what once broke a property among them."""
    return (path.read_bytes() for name in names for path in sorted((CORPUS / name).iterdir()))


def _lines() -> list[bytes]:
    from tests.fuzz.corpus import LINES

    return [line.encode() for line in LINES]


def _of_rules() -> Iterator[bytes]:
    for line, (number, rules) in product(_lines(), enumerate(RULES)):
        if any(rule.anchor in line for rule in rules):
            yield bytes([number]) + line


def _of_scanner() -> Iterator[bytes]:
    lines = _lines()
    yield from (b"\0" + b"\n".join(lines[at : at + 2]) for at in range(0, len(lines), 2))
    for text in _kept("stacks", "log"):
        yield from (b"\1" + text[at : at + 300] for at in range(0, min(len(text), 3000), 300))


def _of_documents() -> Iterator[bytes]:
    yield from (json.dumps(record, separators=(",", ":")).encode() for record in RECORDS.values())
    yield from (json.dumps([record]).encode() for record in RECORDS.values())
    yield from _kept("document")


def _of_records() -> Iterator[bytes]:
    for name, record in RECORDS.items():
        if name.endswith(".jsonl"):
            yield json.dumps(record).encode()


def _of_ras() -> Iterator[bytes]:
    for text in (*_kept("ras"), ras_text("2.24.3", "collective").encode()):
        yield from (b"\1" + text[at : at + 500] for at in range(0, len(text), 250))


def _of_clog() -> Iterator[bytes]:
    """The whole text, and what a file that is cut, or begins in the middle, holds of it."""
    lines = CLOG.encode().splitlines(keepends=True)
    yield b"".join(lines)
    for at in range(1, len(lines)):
        yield b"".join(lines[:at])
        yield b"".join([lines[0], *lines[at + 1 :]])


def _of_xml() -> Iterator[bytes]:
    for place in (*gpu.TEXTS.values(), *(place for place, _ in gpu.NUMBERS.values())):
        names = place.split("/")
        inside = "".join(f"<{name}>" for name in names) + "29 C" + "".join(f"</{name}>" for name in reversed(names))
        yield f'<gpu id="00000000:18:00.0">{inside}</gpu></nvidia_smi_log>'.encode()


def _of_archives() -> Iterator[bytes]:
    for seed in _kept("archive"):
        yield seed[:4096]
    header = (
        b"inner/rank0.log".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"00000000005\0" + b"14000000000\0"
    )
    for kind in b"0", b"2", b"5", b"x", b"g", b"L", b"S":
        yield b"t" + (header + b" " * 8 + kind).ljust(257, b"\0") + b"ustar\x0000" + b"\xff\xfe[rank1]: ValueError: x"
    yield b"g[rank1]: ValueError: boom\n"


READERS = {
    "rules": Reader(_rules, _of_rules, 256, 2),
    "scanner": Reader(_scanner, _of_scanner, share=2),
    "dump": Reader(_dump, lambda: _kept("dump"), 1024),
    "ras": Reader(_ras, _of_ras),
    "clog": Reader(_clog, _of_clog, 1024),
    "json": Reader(_document, _of_documents, 768, 2),
    "records": Reader(_records, _of_records, share=3),
    "xml": Reader(_xml, _of_xml, 256),
    "tools": Reader(_tools, lambda: (text[:512] for text in _kept("tools"))),
    "archive": Reader(_archive, _of_archives, 1024),
}
WORD = re.compile(rb"[ -~]{3,}?(?=[\s:=\[({<>/,\"]|$)")


def dictionary(seeds: Iterable[bytes]) -> list[bytes]:
    """Words of the seeds: what regular expressions look for tells the coverage of Python nothing."""
    words = {word for seed in seeds for word in WORD.findall(seed) if len(word) <= 40}
    return sorted(words | {b"1e999", b"NaN", b"-1", b"9" * 30, b"99999999", b"null", b"[]", b"{}", b"\xff\xfe", b"\0"})
