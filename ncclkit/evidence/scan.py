"""Many lines, few of them interesting: a streaming scan of bounded memory.

Each block of text is searched for a couple of dozen literals (`bytes.find`); only a
line that holds one of them is decoded and shown to the grammars.  A block knows
some of the text after it, so that tracebacks and wrapped messages are read whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO

from ncclkit.evidence import c10d, gloo, nccl, p2p, progress, python, stacks, store, system, torchrun
from ncclkit.evidence.grammar import Line, Rule
from ncclkit.evidence.prefix import parse
from ncclkit.model import Event

BLOCK = 4 << 20
AHEAD = 256 << 10
"""How far a multi-line message may reach beyond its block, in bytes."""
WIDE = 2048
"""Longest line that is read whole; of a longer one this much on both sides of what was found in it."""

GRAMMARS = (c10d, gloo, store, torchrun, system, p2p)
"""Everything that is no line of NCCL's own log, Python's or a stack."""
GATE = tuple(dict.fromkeys(needle for grammar in (nccl, *GRAMMARS, python, stacks) for needle in grammar.GATE))
RULES: tuple[Rule, ...] = (*nccl.OTHER, *(rule for grammar in GRAMMARS for rule in grammar.RULES))


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about a file before its lines are read."""

    path: str
    rank: int | None = None
    """From the file's name."""
    tasks: bool = False
    """Lines begin with ``3: `` (srun -l)."""
    changed: datetime | None = None
    """Last change of the file: the year of time stamps that have none."""


@dataclass(slots=True)
class Block:
    """A piece of a file: lines that begin before `limit` are its own, the rest is there to look ahead."""

    data: bytes
    limit: int
    number: int
    """Line number of the first line, 1-based."""
    context: Context
    lines: dict[int, Line] = field(default_factory=dict)
    """Lines taken apart so far, by where they begin: many tracebacks look ahead over the same lines."""

    def events(self) -> Iterator[Event]:
        """Events of the block's own lines, in order; progress last."""
        number, counted = self.number, 0
        for start, end in self.hits():
            number += self.data.count(b"\n", counted, start)
            counted = start
            yield from self.read(start, end, number)
        for start, end in self.latest():
            line = self.line(start, end, self.number + self.data.count(b"\n", 0, start))
            yield from progress.read(line)

    def hits(self) -> list[tuple[int, int]]:
        """(start, end) of each line, or part of a line, that holds one of the gate's literals."""
        found: dict[int, int] = {}
        find = self.data.find
        for needle in GATE:
            at = find(needle, 0, self.limit)
            while at >= 0:
                start, end = self.bounds(at)
                found[start] = max(end, found.get(start, 0))
                at = find(needle, max(end, at + 1), self.limit)
        return sorted(found.items())

    def latest(self) -> list[tuple[int, int]]:
        """The last lines that may tell progress, found from the end and in the order of the file."""
        found: dict[int, int] = {}
        for needle in progress.ANCHORS:
            at = self.limit
            for _ in range(progress.LOOKS):
                at = self.data.rfind(needle, max(0, self.limit - progress.REACH), at)
                if at < 0:
                    break
                start, end = self.bounds(at)
                found[start] = max(end, found.get(start, 0))
        return sorted(found.items())

    def bounds(self, at: int) -> tuple[int, int]:
        """The line around a position, at most `WIDE` wide on a side; carriage returns split it (progress bars)."""
        at += self.data[at] == 10  # a literal may begin with the end of the line before
        low, high = max(0, at - WIDE), min(len(self.data), at + WIDE)
        start = self.data.rfind(b"\n", low, at) + 1 or low
        end = self.data.find(b"\n", at, high)
        end = high if end < 0 else end
        if self.data.find(b"\r", start, end) >= 0:
            start = self.data.rfind(b"\r", start, at) + 1 or start
            cut = self.data.find(b"\r", at, end)
            end = end if cut < 0 else cut
        return start, end

    def line(self, start: int, end: int, number: int) -> Line:
        """The line at these bytes, with its prefix taken apart."""
        known = self.lines.get(start)
        if known is not None and known.end == end:
            return known
        context = self.context
        raw = self.data[start:end].decode("utf-8", "replace").replace("\0", "")
        line = parse(raw, context.path, number, tasks=context.tasks, changed=context.changed)
        if context.rank is not None and (line.rank is None or line.local):
            line.rank, line.local = context.rank, False
        line.end = end
        line.following = lambda: self.following(end, number)
        self.lines[start] = line
        return line

    def following(self, end: int, number: int) -> Iterator[Line]:
        """The lines after a position, prefix taken apart, as far as this block reaches."""
        at, last = self.data.find(b"\n", end) + 1, min(len(self.data), end + AHEAD)
        while 0 < at < last:
            number += 1
            stop = self.data.find(b"\n", at)
            stop = len(self.data) if stop < 0 else stop
            yield self.line(at, min(stop, at + WIDE), number)
            at = stop + 1

    def read(self, start: int, end: int, number: int) -> Iterator[Event]:
        """What the grammars say about one line; of one kind at most one event."""
        raw = self.data[start:end]
        rules, code = _candidates(raw)
        code = code or raw.startswith(b"#0 ")
        if not rules and not code:
            return
        line = self.line(start, end, number)
        if b"NCCL" in raw:
            nccl.place(line)
        seen: set[str] = set()
        for rule in rules:
            event = rule.read(line) if rule.kind not in seen else None
            if event is not None:
                seen.add(event.kind)
                yield event
        if code:
            yield from python.read(line)
            yield from stacks.read(line)


CODE = (*python.GATE, b"Thread ")
_KNOWN: dict[bytes, tuple[tuple[Rule, ...], bool]] = {}


def _candidates(raw: bytes) -> tuple[tuple[Rule, ...], bool]:
    """The rules whose anchor stands in a line, and whether it may be code's own word.

    Floods are one line with other numbers, so the answer is remembered by what is left without digits.
    """
    shape = raw.translate(None, b"0123456789")
    known = _KNOWN.get(shape)
    if known is None:
        rules = nccl.INFO if b"NCCL INFO" in raw else RULES
        known = tuple(rule for rule in rules if rule.anchor in raw), any(mark in raw for mark in CODE)
        if len(_KNOWN) > 2000:
            _KNOWN.clear()
        _KNOWN[shape] = known
    return known


def blocks(stream: BinaryIO, context: Context) -> Iterator[Block]:
    """Cut a stream into blocks at line ends; a line longer than a block is cut where the block ends."""
    rest, number = b"", 1
    while chunk := stream.read(BLOCK):
        data = rest + chunk
        limit = data.rfind(b"\n", 0, max(0, len(data) - AHEAD)) + 1
        if limit == 0:
            limit = max(0, len(data) - AHEAD)
        yield Block(data, limit, number, context)
        number += data.count(b"\n", 0, limit)
        rest = data[limit:]
    if rest:
        yield Block(rest, len(rest), number, context)
