"""Many lines, few of them interesting: a streaming scan of bounded memory.

Only lines that hold an anchor of a rule are decoded and shown to the grammars; a line that repeats
one before it is only counted (see `pieces.Deduplication`).  A block knows some of the text after
it, so that tracebacks and wrapped messages are read whole.

Logs say the same with other numbers again and again, so which rules a line is shown to is kept by
its *shape*, in which all digits (and the letters of hexadecimal numbers) are one.  A line of a
known shape costs one translation and one look into a dictionary.  Where `hyperscan` is installed it
finds the lines with an anchor at once, and no other line is looked at: the answer is the same, as
it only skips lines that hold no anchor.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import local
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.grammars import (
    c10d,
    gloo,
    kernel,
    nccl,
    nccl_diagnostics,
    network,
    printed,
    progress,
    python,
    refusals,
    stacks,
    store,
    system,
    torchcomms,
    torchrun,
    unknown_errors,
)
from ncclkit.evidence.grammars.grammar import Line, Rule
from ncclkit.evidence.scanner.prefix import parse_prefix
from ncclkit.evidence.sources.streams import Readable

LONG = 4096
"""Longest line in bytes that is read whole."""
SHAPES, SHORT = 1 << 16, 600
"""How many shapes are kept, and how long they may be in bytes."""
MANY_PLACES = 2000
"""With more places than this in one block it is cheaper to read every line."""
FEW = 256 << 10
"""Bytes below which loading hyperscan does not pay."""

GRAMMARS = (
    c10d,
    torchcomms,
    python,
    gloo,
    store,
    torchrun,
    system,
    refusals,
    kernel,
    network,
    progress,
    printed,
    nccl_diagnostics,
)
"""The grammars of all lines but those of NCCL's own log, of Python and of stacks."""
RULES: tuple[Rule, ...] = (*nccl.OTHER, *(rule for grammar in GRAMMARS for rule in grammar.RULES))
CODE = (*python.GATE, b"Thread ", *unknown_errors.GATE)
"""What a line of Python's, of a stack's or of an unknown error holds, besides gdb's ``#0`` at its
start."""
ANCHORS = tuple(sorted({rule.anchor for rule in (*nccl.INFO, *RULES)} | set(CODE)))
GDB = b"#0 "
FIRST = 80
"""Bytes of a line in which a stack of gdb may begin."""
LITERALS = (*ANCHORS, GDB, *refusals.PLAIN, *refusals.ACCENTED)

FOLD = bytes.maketrans(b"123456789abcdef", b"0" * 15)


@dataclass(frozen=True, slots=True)
class Choice:
    """The rules that may find something in a line."""

    rules: tuple[Rule, ...]
    code: bool
    """True when the line may begin a traceback or stack, name an exception, or call itself an
    error."""
    digits_matter: bool = False
    """True when one of the rules asks for certain digits."""
    flood: str = ""
    """The kind, where such lines come in floods and no other rule can have a say (see
    `deduplication`)."""
    foreign: bool = False
    """True when the line may be one to be read in English; only then its rules are known."""

    def within(self, raw: bytes) -> Choice:
        """The rules whose anchor really is in the line.

        Different lines may have one shape.
        """
        rules = tuple([rule for rule in self.rules if rule.anchor in raw])
        return Choice(
            rules, self.code and (any(mark in raw for mark in CODE) or GDB in raw[:FIRST])
        )

    def middle(self, raw: bytes, low: int, high: int) -> Choice:
        """The rules whose anchor begins in raw[low:high]."""

        def begins(anchor: bytes) -> bool:
            return raw.find(anchor, low, high + len(anchor) - 1) >= 0

        code = any(map(begins, CODE)) or (low == 0 and raw.startswith(GDB))
        return Choice(tuple(rule for rule in self.rules if begins(rule.anchor)), self.code and code)


class Shapes(dict[bytes, "Choice | None"]):
    """Shape of a line → what may be found in such lines; None: nothing."""

    def __missing__(self, shape: bytes) -> Choice | None:
        found = choose(shape)
        if len(shape) <= SHORT:
            if len(self) >= SHAPES:
                self.clear()
            self[shape] = found
        return found


def choose(shape: bytes) -> Choice | None:
    """The rules whose anchor stands in a shape."""
    if b"NCCL INFO" in shape:
        pairs = _INFO
    elif _OLD_INFO.search(shape):
        pairs = [*_RULES, *_INFO]
    else:
        pairs = _RULES
    rules = tuple([rule for anchor, rule in pairs if anchor in shape])  # quicker than a generator
    gdb = GDB in shape[:FIRST]
    code = gdb or any(mark in shape for mark in _CODE)
    digits_matter = gdb or any(rule.digits_matter for rule in rules)
    kinds = []
    if not code and not digits_matter:
        kinds = [rule.kind for rule in rules]
    if "nccl.channel" in kinds:
        flood = "nccl.channel"
    elif kinds == ["nccl.op"]:
        flood = "nccl.op"
    else:
        flood = ""
    foreign = (
        any(said in shape for said in _PLAIN)
        or not shape.isascii()
        and any(said in shape for said in _ACCENTED)
    )
    if rules or code or foreign:
        return Choice(rules, code, digits_matter or foreign, flood, foreign)
    return None


_INFO, _RULES = (
    [(rule.anchor.translate(FOLD), rule) for rule in rules] for rules in (nccl.INFO, RULES)
)
_CODE, _PLAIN, _ACCENTED = (
    tuple(mark.translate(FOLD) for mark in marks)
    for marks in (CODE, refusals.PLAIN, refusals.ACCENTED)
)
_OLD_INFO = re.compile(rb":0{1,10}:0{1,20} \[0{1,4}\] INFO ")
"""The envelope of NCCL 2.0 to 2.3 in a shape."""
KNOWN = Shapes()

Scan = Callable[[memoryview, Callable[..., bool]], None]


class _Own(local):
    """What a thread compiled; hyperscan's memory for a search must not be shared."""

    def __init__(self) -> None:
        self.scans: dict[tuple[bytes, ...], Scan | None] = {}


_OWN = _Own()


def anchored_places(data: bytes, limit: int) -> Sequence[int] | None:
    """Positions within `limit` bytes, at least one for each line with an anchor.

    It is None where there are too many, or no hyperscan; then every line is to be looked at.
    """
    if limit < FEW or (scan := _scanner_of_thread(LITERALS)) is None:
        return None
    found: list[int] = []

    def take(number: int, start: int, end: int, flags: int, context: Any) -> bool:
        found.append(end - 1)
        return len(found) > MANY_PLACES

    scan(memoryview(data)[:limit], take)
    if len(found) <= MANY_PLACES:
        return found
    return None


def holds(data: bytes, limit: int, needles: tuple[bytes, ...]) -> bool:
    """True when one of a few literals stands in the first `limit` bytes."""
    if limit < FEW or (scan := _scanner_of_thread(needles)) is None:
        return any(data.find(needle, 0, limit) >= 0 for needle in needles)
    found: list[int] = []

    def take(number: int, start: int, end: int, flags: int, context: Any) -> bool:
        found.append(end)
        return True

    scan(memoryview(data)[:limit], take)
    return bool(found)


def _scanner_of_thread(literals: tuple[bytes, ...]) -> Scan | None:
    """hyperscan's search for literals, one per thread.

    It is None where it is not installed or cannot run.
    """
    scans = _OWN.scans
    if literals not in scans:
        scans[literals] = _compiled_scanner(literals)
    return scans[literals]


def _compiled_scanner(literals: tuple[bytes, ...]) -> Scan | None:
    try:
        import hyperscan
    except ImportError:
        return None
    database = hyperscan.Database()
    try:
        database.compile(expressions=list(literals), ids=list(range(len(literals))), literal=True)
    except hyperscan.error:
        return None

    def scan(data: memoryview, take: Callable[..., bool]) -> None:
        try:
            database.scan(data, take)  # type: ignore[type-var, unused-ignore]
        except hyperscan.ScanTerminated:
            return

    return scan


BLOCK = 4 << 20
AHEAD = 256 << 10
"""How far a multi-line message may reach beyond its block, in bytes."""
WIDE = 2048
"""A line longer than `LONG` is read in windows of this many bytes, with as much before and after
them."""
BUDGET = 128 << 10
"""Bytes at either end of a line that are looked at: no program writes a longer line that somebody
was to read."""

Shown = tuple[int, bytes, int, Choice]
"""Where a line begins in its block, its bytes, its number, and what may be found in it."""


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


class Lines:
    """The lines of one stretch of a block by their speakers.

    Each line is taken apart once, however many tracebacks of mixed speakers look ahead over it.
    """

    def __init__(self) -> None:
        self.first = self.end = self.number = 0
        """Where the stretch begins, where the next line begins, and its number."""
        self.known: dict[str, tuple[list[int], list[Line]]] = {}

    def following(self, block: Block, end: int, number: int, speaker: str) -> Iterator[Line]:
        """The lines of a speaker after a position.

        They go as far as a block may be looked ahead.
        """
        block.looked = True
        start = block.data.find(b"\n", end) + 1
        last = min(len(block.data), end + AHEAD)
        if start == 0:
            return
        if not self.first <= start <= self.end:
            self.first = self.end = start
            self.number = number + 1
            self.known = {}
        starts, lines = self.known.setdefault(speaker, ([], []))
        at = bisect_left(starts, start)
        while True:
            while at == len(starts) and self.end < last:
                self._next(block)
            if at == len(starts) or starts[at] >= last:
                return
            yield lines[at]
            at += 1

    def _next(self, block: Block) -> None:
        stop = block.data.find(b"\n", self.end)
        if stop < 0:
            stop = len(block.data)
        line = block.line(self.end, min(stop, self.end + WIDE), self.number)
        starts, lines = self.known.setdefault(line.speaker, ([], []))
        starts.append(self.end)
        lines.append(line)
        self.end, self.number = stop + 1, self.number + 1


@dataclass(slots=True)
class Block:
    """A piece of a file.

    Lines that begin before `limit` are its own, the rest is there to look ahead.
    """

    data: bytes
    limit: int
    number: int
    """Line number of the first line, 1-based."""
    context: Context
    last: bool = False
    """True for the end of the file."""
    ends: int = -1
    """Line ends before `limit`; counted on the way."""
    looked: bool = False
    """True once the lines after one were looked at."""
    lines: dict[int, Line] = field(default_factory=dict)
    """Lines taken apart so far, by where they begin: many tracebacks look ahead over the same
    lines."""
    speakers: Lines = field(default_factory=Lines)

    def line_events(
        self, start: int, end: int, number: int, choice: Choice
    ) -> tuple[list[Event], bool]:
        """The events of a line, and whether they depend on the lines after it."""
        self.looked = False
        return list(self.read(start, end, number, choice)), self.looked

    def events(self) -> Iterator[Event]:
        """The events of all own lines; each is read."""
        for start, raw, number, choice in self.shown():
            yield from self.read(start, start + len(raw), number, choice)

    def shown(self) -> Iterator[Shown]:
        """The block's own lines that may say something, in their order."""
        places = anchored_places(self.data, self.limit)
        if places is None:
            return self._every()
        return self._some(places)

    def _every(self) -> Iterator[Shown]:
        """All lines that may say something, every line looked at."""
        at, number, known = 0, self.number, KNOWN
        text = self.data[: self.limit]
        bars = b"\r" in text
        for number, raw in enumerate(text.split(b"\n"), self.number):
            if len(raw) > LONG or (bars and b"\r" in raw):
                yield from _parts_of_line(raw, at, number)
            elif (choice := known[raw.translate(FOLD)]) is not None:
                yield at, raw, number, choice
            at += len(raw) + 1
        self.ends = number - self.number

    def _some(self, places: Sequence[int]) -> Iterator[Shown]:
        """The same, with only the lines at these places looked at."""
        data, end, counted, number, known = self.data, 0, 0, self.number, KNOWN
        for place in places:
            if place < end:
                continue
            start = data.rfind(b"\n", end, place) + 1 or end
            end = data.find(b"\n", place, self.limit)
            if end < 0:
                end = self.limit
            raw = data[start:end]
            whole = len(raw) <= LONG and b"\r" not in raw
            if whole and known[raw.translate(FOLD)] is None:
                continue
            number += data.count(b"\n", counted, start)
            counted = start
            yield from _parts_of_line(raw, start, number)
        self.ends = number - self.number + data.count(b"\n", counted, self.limit)

    def line(self, start: int, end: int, number: int) -> Line:
        """The line at these bytes, with its prefix taken apart."""
        known = self.lines.get(start)
        if known is not None and known.end == end:
            return known
        context = self.context
        raw = self.data[start:end].decode("utf-8", "replace").replace("\0", "")
        line = parse_prefix(raw, context.path, number, tasks=context.tasks, changed=context.changed)
        if refusals.may_be(self.data[start:end]) and (read := refusals.english(raw)) != raw:
            shown = line.text
            line = parse_prefix(
                read, context.path, number, tasks=context.tasks, changed=context.changed
            )
            line.said = shown
        if context.rank is not None and (line.rank is None or line.local):
            line.rank = context.rank
            line.local = False
        line.end = end
        line.following = lambda label, speaker: (
            self.following(end, number, label)
            if label
            else self.speakers.following(self, end, number, speaker)
        )
        self.lines[start] = line
        return line

    def following(self, end: int, number: int, label: bytes) -> Iterator[Line]:
        """The lines after a position that hold a label.

        Their prefix is taken apart; they go as far as this block reaches.
        """
        self.looked = True
        at = self.data.find(b"\n", end) + 1
        last = min(len(self.data), end + AHEAD)
        while 0 < at < last and (place := self.data.find(label, at, last)) >= 0:
            start = self.data.rfind(b"\n", at, place) + 1 or at
            number += 1 + self.data.count(b"\n", at, start)
            stop = self.data.find(b"\n", start)
            if stop < 0:
                stop = len(self.data)
            yield self.line(start, min(stop, start + WIDE), number)
            at = stop + 1

    def read(self, start: int, end: int, number: int, choice: Choice) -> Iterator[Event]:
        """What the grammars say about one line; of one kind at most one event."""
        raw = self.data[start:end]
        if choice.foreign and (line := self.line(start, end, number)).said:
            raw = line.text.encode()
            choice = choose(raw.translate(FOLD)) or choice
        choice = choice.within(raw)
        if not choice.rules and not choice.code:
            return
        line = self.line(start, end, number)
        if b"NCCL" in raw or b"] INFO " in raw:
            nccl.place(line)
        seen: set[str] = set()
        for rule in choice.rules:
            event = None
            if rule.kind not in seen:
                event = rule.read(line)
            if event is not None:
                seen.add(event.kind)
                yield event
        if choice.code:
            others = [*python.read_exceptions(line), *stacks.read_stack(line)]
            yield from others or ([] if seen else unknown_errors.read_unknown_error(line))


def _parts_of_line(line: bytes, at: int, number: int) -> Iterator[Shown]:
    """What may say something of one line.

    Carriage returns split it (progress bars), a long one is cut in windows.
    """
    for raw in line.split(b"\r"):
        if len(raw) > 2 * BUDGET:
            yield from _windows_of_line(raw[:BUDGET], at, number)
            yield from _windows_of_line(raw[-BUDGET:], at + len(raw) - BUDGET, number)
        elif (choice := KNOWN[raw.translate(FOLD)]) is not None and len(raw) <= LONG:
            yield at, raw, number, choice
        elif choice is not None:
            yield from _windows_of_line(raw, at, number)
        at += len(raw) + 1


def _windows_of_line(raw: bytes, at: int, number: int) -> Iterator[Shown]:
    """The parts of a long line that hold an anchor in their middle.

    Each comes with the rules of its anchors.
    """
    if raw.startswith(GDB):
        cells = {0}
    else:
        cells = set()
    for anchor in ANCHORS:
        place = raw.find(anchor)
        while place >= 0:
            cells.add(place // WIDE)
            place = raw.find(anchor, (place // WIDE + 1) * WIDE)
    for cell in sorted(cells):
        low = max(0, (cell - 1) * WIDE)
        high = min(len(raw), (cell + 2) * WIDE)
        window = raw[low:high]
        middle = cell * WIDE - low
        choice = choose(window.translate(FOLD))
        if choice:
            yield at + low, window, number, choice.middle(window, middle, middle + WIDE)


def blocks(stream: Readable, context: Context) -> Iterator[Block]:
    """Cut a stream into blocks at line ends.

    Of a line longer than a block, the blocks inside it are left out.
    """
    rest, number, inside = b"", 1, False
    while chunk := stream.read(BLOCK):
        data = rest + chunk
        limit = data.rfind(b"\n", 0, max(0, len(data) - AHEAD)) + 1
        cut = limit == 0
        limit = limit or max(0, len(data) - AHEAD)
        if not (cut and inside):
            yield (block := Block(data, limit, number, context))
            number += block.ends if block.ends >= 0 else data.count(b"\n", 0, limit)
        rest = data[limit:]
        inside = cut and (inside or limit > 0)
    if rest:
        yield Block(rest, len(rest), number, context, last=True)
