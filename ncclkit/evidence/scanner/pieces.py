"""A text in pieces: each is scanned by itself, in whatever process, and the parts are put together in order.

The pieces of a file have fixed places, so who scans them changes nothing.
"""

from __future__ import annotations

import errno
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from ncclkit.core.model import Event, NcclkitError
from ncclkit.evidence.grammars import stacks
from ncclkit.evidence.merge import TRACE_GAP, Merger
from ncclkit.evidence.scanner import scan
from ncclkit.evidence.scanner.deduplication import Deduplication
from ncclkit.evidence.scanner.scan import Block, Context
from ncclkit.evidence.scanner.speakers import SpeakerProgress, Speakers
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.streams import PACKED, is_tar

PIECE = 64 << 20
"""Bytes of a plain file that are one piece; it ends with the line that holds its last byte."""
REACH = 64 << 10
"""How long the line at the end of a piece may be; in a longer one the piece ends inside it."""
HEADS = re.compile(rb"^Process (\d{1,10}): ?(?:rank (\d{1,7})\s*$)?", re.MULTILINE)

Pass = Callable[[memoryview], None]
Head = tuple[int, int, int | None]
"""Line number, pid and rank of a ``Process …`` header."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One range of bytes of a plain file, and what is known about it."""

    context: Context
    start: int
    end: int
    size: int
    file: int
    """Inode, as another file may get the name while this one is read."""
    labelled: bool
    """Most lines name their speaker."""
    stacks: bool


@dataclass(slots=True)
class Found:
    """What a piece gave; lines are counted from its own beginning."""

    events: list[Event] = field(default_factory=list)
    ends: int = 0
    """Line ends in it."""
    open: bool = False
    """True when its last line has no end."""
    speakers: set[int] = field(default_factory=set)
    heads: list[Head] = field(default_factory=list)
    problem: str = ""


def divisible(path: str) -> bool:
    """True for a file of more than one piece that is not packed."""
    try:
        if os.path.getsize(path) <= PIECE:
            return False
        with inputs.opened(path) as file:
            head = file.read(tarfile.BLOCKSIZE)
    except (OSError, NcclkitError):  # who reads it says what is wrong with it
        return False
    return not head.startswith(tuple(PACKED)) and not is_tar(head)


def plan(file: BinaryIO, size: int, context: Context, *, labelled: bool, stacks: bool) -> list[Piece]:
    """The pieces of an open file of `size` bytes, without those that lie in a hole of it."""
    number, made, end = file.fileno(), list[Piece](), -1
    inode = os.fstat(number).st_ino
    for place in _places(number, size):
        start = end if end >= place else place
        end = min(size, _line(number, place + PIECE)) if place + PIECE < size else size
        if start < end:
            made.append(Piece(context, start, end, size, inode, labelled, stacks))
    return made


def _places(file: int, size: int) -> Iterator[int]:
    """Where pieces that hold data begin."""
    place = 0
    while (found := data(file, place, size)) < size:
        yield (start := found // PIECE * PIECE)
        place = start + PIECE


def data(file: int, place: int, size: int) -> int:
    """Where the first data of a file lies at or after a place; `size` where only a hole follows.

    A log that was emptied while its job wrote on begins with a hole, and a hole of 8 EiB takes no room on a disk.
    """
    try:
        return os.lseek(file, place, os.SEEK_DATA) if place < size else size
    except AttributeError:  # no such call here
        return place
    except OSError as error:
        return size if error.errno == errno.ENXIO else place


def _line(file: int, place: int) -> int:
    """Where the first line begins at or after a place."""
    text = os.pread(file, REACH, place - 1)
    return place + (text.find(b"\n") if b"\n" in text else 0)


def read(piece: Piece, passed: Pass | None = None) -> Found:
    """Scan one piece; safe to run in another process or thread.  `passed` is shown its bytes."""
    with inputs.opened(piece.context.path) as file:
        number = file.fileno()
        if os.fstat(number).st_ino != piece.file:
            return Found(problem="was replaced by another file while it was read; read it again.")
        merger = Merger()
        for event in _before(number, piece):
            merger.continues(event)
        found = gather(_blocks(number, piece, passed), merger, labelled=piece.labelled, stacks=piece.stacks)
        if os.fstat(number).st_size < piece.end:
            found.problem = "became shorter while it was read; read it again."
        return found


def _blocks(file: int, piece: Piece, passed: Pass | None) -> Iterator[Block]:
    """The blocks of a piece; of a line longer than a block, those inside it are left out, as `scan.blocks` does."""
    at, number, inside = piece.start, 1, False
    while at < piece.end:
        own = min(scan.BLOCK, piece.end - at)
        data = os.pread(file, min(own + scan.AHEAD, piece.size - at), at)
        limit = own = min(own, len(data))
        if not data:
            return
        cut = False
        if at + own < piece.end:
            limit = data.rfind(b"\n", 0, own) + 1
            cut = limit == 0
            limit = limit or max(1, own - scan.AHEAD)
        if passed:
            passed(memoryview(data)[:limit])
        if not (cut and inside):
            block = Block(data, limit, number, piece.context, last=at + limit >= piece.size)
            yield block
            number += block.ends
            del block
        at, inside = at + limit, cut
        del data  # before the next is made


def _before(file: int, piece: Piece) -> Iterator[Event]:
    """The back-trace in the lines before a piece, which its first lines may continue."""
    start = max(0, piece.start - TRACE_GAP * scan.WIDE)
    data = os.pread(file, piece.start - start, start) if piece.start else b""
    lines = data.split(b"\n")[-TRACE_GAP:]
    data = b"\n".join(lines)
    events = Block(data, len(data), 2 - len(lines), piece.context).events()
    return (event for event in events if event.kind == "nccl.trace")


def gather(blocks: Iterable[Block], merger: Merger, *, labelled: bool, stacks: bool) -> Found:
    """What all blocks say together."""
    lines, found, speakers, progress = Deduplication(merger), Found(), Speakers(), SpeakerProgress()
    for block in blocks:
        lines.read(block)
        progress.take(block)
        if labelled:
            speakers.listen(block)
        if stacks:
            found.heads += _heads(block)
        found.ends += block.ends
        found.open = block.data[block.limit - 1 : block.limit] not in (b"\n", b"")
        del block
    for event in progress.events():
        merger.take(event)
    found.events, found.speakers = merger.floods(), speakers.heard
    return found


def _heads(block: Block) -> Iterator[Head]:
    number, counted = block.number, 0
    for match in HEADS.finditer(block.data, 0, block.limit):
        number += block.data.count(b"\n", counted, match.start())
        counted = match.start()
        yield number, int(match[1]), int(match[2]) if match[2] else None


def joined(pieces: Iterable[Found]) -> Found:
    """All pieces of a file as one, its events as they stand in a file."""
    merger, whole = Merger(), Found()
    for piece in pieces:
        for event in piece.events:
            merger.take(_moved(event, whole.ends))
        whole.heads += [(line + whole.ends, pid, rank) for line, pid, rank in piece.heads]
        whole.ends += piece.ends
        whole.open = piece.open
        whole.speakers |= piece.speakers
        whole.problem = whole.problem or piece.problem
    events = merger.events()
    whole.events = [event for event in events if event.kind != "stack"]
    whole.events += stacks.of_processes([event for event in events if event.kind == "stack"], whole.heads)
    return whole


def _moved(event: Event, lines: int) -> Event:
    """An event whose lines are counted from farther back."""
    if not lines:
        return event
    until = {"until": event.data["until"] + lines} if "until" in event.data else {}
    return replace(event, line=event.line + lines, data={**event.data, **until})
