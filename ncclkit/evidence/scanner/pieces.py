"""A text in pieces.

Each is scanned by itself, in whatever process, and the parts are put together in order.  The pieces
of a file have fixed places, so who scans them changes nothing.  Of a piece is known: its events;
who logs in it, and how far each of them came; its floods, lines that say what one before them said,
but for numbers that do not matter.

Logs in which every line counts (a million warnings, every collective, every channel) are long, and
say little.  The first line of its kind is read by the grammars.  The lines after it need no
grammar, as all that their event would be merged by (see `merge`) stands in the key that is made
here.
"""

from __future__ import annotations

import errno
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from msgspec import structs

from ncclkit.core.kinds import PythonException, PythonIgnored
from ncclkit.core.model import Event, NcclkitError
from ncclkit.evidence.grammars import progress, stacks
from ncclkit.evidence.grammars.families import classify
from ncclkit.evidence.merge import TRACE_GAP, Merger, RepeatedEvent, merges
from ncclkit.evidence.scanner import scan
from ncclkit.evidence.scanner.scan import SHORT, Block, Choice, Context, Lines
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.streams import PACKED, is_tar

KEPT = 1 << 15
"""How many keys, beginnings and texts are remembered."""

# [rank3]:[2026-11-21 00:28:00] node-1:7186:7190 [3] misc/socket.cc:49 (func) NCCL
HEAD = re.compile(
    rb"((?:\x1b\[[\d;]*m|\[[A-Za-z_]+\d{1,7}\]: ?|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:|\d{1,5}: "
    rb"|\(\w+ pid=\d{1,10}(?:, ip=[\d.]+)?\) )*)"
    rb"(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? )?"
    rb"([^\s:\[\]()<>]{1,255}:\d{1,10}):-?\d{1,20} "
    rb"((?:\[-?\d{1,4}\])?(?: ?[\w./-]{1,200}\.\w{1,4}:\d{0,7}(?: \([^()]{1,200}\))?)?)"
)
CHANNEL = re.compile(rb"INFO (?:Channel|Ring) (\d{1,9})(?:/\d{1,9})?")
HEX = b"0123456789abcdef"

STAMP = b"[0000-00-00 00:00:00] "
"""The clock of a warning; a new one each second."""
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
NAMED = re.compile(rb"[A-Za-z_]\d|\d\.\d")
"""A digit that may be part of a name: ``mlx5_0``, ``FP8``, an address."""
VOID = re.compile(rb"0x[0-9a-f]+|<\d+>")
"""Pointers and ports."""

Key = tuple[Any, ...]


class Deduplication:
    """Puts what the lines of one file say into a `Merger`.

    Repeated lines are not read for that.
    """

    def __init__(self, merger: Merger) -> None:
        self.merger = merger
        self.floods: dict[Key | None, list[RepeatedEvent]] = {}
        """What such a line says; nothing, for most that only hold an anchor."""
        self.heads: dict[bytes, Key] = {}
        self.channels: dict[bytes, bytes] = {}
        self.plain: dict[bytes, bool] = {}

    def read(self, block: Block) -> None:
        """Take what the block's own lines say, in their order.

        Floods of lines are only counted.
        """
        for start, raw, number, choice in block.shown():
            self.take(block, start, raw, number, choice)
        block.lines.clear()  # they know this block
        block.speakers = Lines()

    def take(self, block: Block, start: int, raw: bytes, number: int, choice: Choice) -> None:
        """Take a line of a block that begins at `start`."""
        if len(raw) <= SHORT:
            key, value = self._key(raw, choice)
        else:
            key, value = None, b""
        floods = self.floods.get(key)
        if floods is not None:
            for flood in floods:
                flood.again(value)
            return
        events, ahead = block.line_events(start, start + len(raw), number, choice)
        floods = [new for event in events if (new := self.merger.add_line(event))]
        if key is not None and not ahead and (key[0] or not events) and all(map(merges, events)):
            _keep_value(self.floods, key, floods)

    def _key(self, raw: bytes, choice: Choice) -> tuple[Key | None, bytes]:
        """What a line's event is merged by, and the number that differs.

        Without a known beginning it tells only lines apart that say nothing from those that may.
        """
        start, _, said = raw.partition(b" NCCL ")
        if start[20:22] == b"] " and start[:22].translate(DIGITS) == STAMP:
            start = start[22:]
        head = ()
        if said:
            head = self.heads.get(start) or _keep_value(self.heads, start, _key_of_head(start))
        if not head:
            return (None if choice.digits_matter else (None, raw.translate(DIGITS))), b""
        if said.startswith(b"WARN "):
            return (head, self._text(said, choice)), b""
        if choice.flood == "nccl.op":
            name, _, rest = said.partition(b": opCount ")
            value, _, rest = rest.partition(b" sendbuff ")
            if 0 < len(value) <= 16 and not value.strip(HEX):
                return (head, name, rest.partition(b" count ")[2]), value
        if choice.flood == "nccl.channel":
            name, _, rest = said.partition(b" : ")
            value = self.channels.get(name) or self._channel(name)
            if value:
                return ("nccl.channel", head[1], rest), value
        return (head, said), b""

    def _channel(self, name: bytes) -> bytes:
        match = CHANNEL.fullmatch(name)
        number: bytes = _keep_value(self.channels, name, match[1] if match else b"")
        return number

    def _text(self, said: bytes, choice: Choice) -> bytes:
        """A warning without its numbers, or only without pointers and ports where numbers may
        matter.
        """
        shape = said.translate(DIGITS)
        plain = self.plain.get(shape)
        if plain is None:
            plain = _keep_value(self.plain, shape, _is_plain(said, choice))
        if plain:
            return shape
        return VOID.sub(b"<0>", said)


def _keep_value(known: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(known) >= KEPT:
        known.clear()
    known[key] = value
    return value


def _key_of_head(start: bytes) -> Key:
    """Launcher's label, host and process, and place, without clock and thread.

    It is nothing for any other beginning.
    """
    match = HEAD.fullmatch(start)
    if match:
        return match.groups()
    return ()


def _is_plain(said: bytes, choice: Choice) -> bool:
    """True for a warning whose numbers are no part of its event, and of no rule."""
    if choice.digits_matter or NAMED.search(said):
        return False
    return len(classify(said.decode("utf-8", "replace"))) == 1


SPEAKER = re.compile(rb"\[(?:rank|default)(\d{1,6})\]:|^ {0,4}(\d{1,5}): ", re.MULTILINE)
SAMPLE = 64 << 10
GAPS = 8
"""How many ranks between those that were heard are listened for one by one."""


class Speakers:
    """The ranks that lines name as their speakers.

    The first block is listened to as a whole, of the others both ends, then whatever rank is
    missing between those heard: who speaks rarely is found, as a rank without a voice would be
    called silent.
    """

    def __init__(self) -> None:
        self.heard: set[int] = set()
        self.started = False

    def listen(self, block: Block) -> None:
        """Add the ranks of one block."""
        data, limit, tasks = block.data, block.limit, block.context.tasks
        if not self.started or limit <= 2 * SAMPLE:
            self.heard |= _ranks_of_speakers(data, 0, limit, tasks)
        else:
            new = _ranks_of_speakers(data, 0, SAMPLE, tasks) | _ranks_of_speakers(
                data, limit - SAMPLE, limit, tasks
            )
            if new - self.heard:  # who else is new here?
                new |= _ranks_of_speakers(data, 0, limit, tasks)
            self.heard |= new
        self.started = True
        low = min(self.heard, default=0)
        high = max(self.heard, default=-1)
        if 0 < high - low + 1 - len(self.heard) <= GAPS:
            self.heard |= {
                rank
                for rank in range(low, high)
                if rank not in self.heard and _rank_logs(data, limit, rank, tasks)
            }


def _ranks_of_speakers(data: bytes, low: int, high: int, tasks: bool) -> set[int]:
    return {int(rank or task) for rank, task in SPEAKER.findall(data, low, high) if rank or tasks}


def _rank_logs(data: bytes, limit: int, rank: int, tasks: bool) -> bool:
    labels = [b"[rank%d]:" % rank, b"[default%d]:" % rank, *([b"\n%d: " % rank] if tasks else [])]
    return any(data.find(label, 0, limit) >= 0 for label in labels)


PATIENCE = 4
"""Blocks without progress after which only ends of blocks are searched.

Such a block holds words like those of progress and no progress.
"""

Who = tuple[bytes, ...]


class SpeakerProgress:
    """Keeps the last line of each speaker; only these are taken apart."""

    def __init__(self) -> None:
        self.words: dict[Who, tuple[int, Block]] = {}
        self.patience = PATIENCE

    def take(self, block: Block) -> None:
        """Look at the end of a block that was read."""
        data = block.data
        limit = block.limit
        shared = block.context.rank is None
        spoken = progress.latest(
            data, limit, many_speakers=shared, at_end_of_file=block.last, search_further_back=False
        )
        if (
            not spoken
            and (self.patience or block.last)
            and scan.holds(data, limit, progress.ANCHORS)
        ):
            spoken = progress.latest(
                data,
                limit,
                many_speakers=shared,
                at_end_of_file=block.last,
                search_further_back=True,
            )
            if spoken:
                self.patience = PATIENCE
            else:
                self.patience = self.patience - 1
        for who, word in spoken.items():
            if who or not shared or who not in self.words or word.step >= self.words[who][0]:
                line = Block(
                    word.raw, len(word.raw), block.number + block.ends - word.back, block.context
                )
                self.words[who] = word.step, line

    def events(self) -> Iterator[Event]:
        """One of each speaker, in the order of their lines."""
        for _, block in sorted(self.words.values(), key=lambda word: word[1].number):
            yield from progress.read_progress(block.line(0, block.limit, block.number))


PIECE = 64 << 20
"""Bytes of a plain file that are one piece; it ends with the line that holds its last byte."""
REACH = 64 << 10
"""How long the line at the end of a piece may be; in a longer one the piece ends inside it."""
HEADS = re.compile(rb"^Process (\d{1,10}): ?(?:rank (\d{1,7})\s*$)?", re.MULTILINE)

Head = tuple[int, int, int | None]
"""Line number, pid and rank of a ``Process …`` header."""


@dataclass(frozen=True, slots=True)
class ByteRange:
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
class ScanResult:
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


def cut_into_pieces(
    file: BinaryIO, size: int, context: Context, *, labelled: bool, stacks: bool
) -> list[ByteRange]:
    """The pieces of an open file of `size` bytes.

    Those that lie in a hole of it are left out.
    """
    number = file.fileno()
    made = list[ByteRange]()
    end = -1
    inode = os.fstat(number).st_ino
    for place in _starts_of_pieces(number, size):
        if end >= place:
            start = end
        else:
            start = place
        if place + PIECE < size:
            end = min(size, _start_of_line(number, place + PIECE))
        else:
            end = size
        if start < end:
            made.append(ByteRange(context, start, end, size, inode, labelled, stacks))
    return made


def _starts_of_pieces(file: int, size: int) -> Iterator[int]:
    """Where pieces that hold data begin."""
    place = 0
    while (found := data(file, place, size)) < size:
        yield (start := found // PIECE * PIECE)
        place = start + PIECE


def data(file: int, place: int, size: int) -> int:
    """Where the first data of a file lies at or after a place.

    It is `size` where only a hole follows.  A log that was emptied while its job wrote on begins
    with a hole, and a hole of 8 EiB takes no room on a disk.
    """
    try:
        if place < size:
            return os.lseek(file, place, os.SEEK_DATA)
        return size
    except AttributeError:  # no such call here
        return place
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return place


EXTENTS = 10_000
"""Holes of a file that are passed in search of the last one."""
MARGIN = 64 << 10
"""Zero bytes that are left behind the data.

A program that copies files makes a hole of the zeros at their end, too.
"""


def end_of_data(file: int, place: int, size: int) -> int:
    """Where the last data of a file ends, about; `size` where no hole follows it."""
    for _ in range(EXTENTS):
        try:
            hole = os.lseek(file, place, os.SEEK_HOLE)
        except (AttributeError, OSError):  # no such call here, or no more data
            return size
        place = data(file, hole, size)
        if place >= size:
            return min(size, hole + MARGIN)
    return size


def _start_of_line(file: int, place: int) -> int:
    """Where the first line begins at or after a place."""
    text = os.pread(file, REACH, place - 1)
    return place + (text.find(b"\n") if b"\n" in text else 0)


def scan_piece(piece: ByteRange) -> ScanResult:
    """Scan one piece; safe to run in another process or thread."""
    with inputs.opened(piece.context.path) as file:
        number = file.fileno()
        if os.fstat(number).st_ino != piece.file:
            return ScanResult(
                problem="was replaced by another file while it was read; read it again."
            )
        merger = Merger()
        for event in _trace_before(number, piece):
            merger.continues(event)
        found = gather(
            _blocks_of_piece(number, piece), merger, labelled=piece.labelled, stacks=piece.stacks
        )
        if os.fstat(number).st_size < piece.end:
            found.problem = "became shorter while it was read; read it again."
        return found


def _blocks_of_piece(file: int, piece: ByteRange) -> Iterator[Block]:
    """The blocks of a piece.

    Of a line longer than a block, those inside it are left out, as `scan.blocks` does.
    """
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
        if not (cut and inside):
            block = Block(data, limit, number, piece.context, last=at + limit >= piece.size)
            yield block
            number += block.ends
            del block
        at = at + limit
        inside = cut
        del data  # before the next is made


def _trace_before(file: int, piece: ByteRange) -> Iterator[Event]:
    """The back-trace in the lines before a piece, which its first lines may continue."""
    start = max(0, piece.start - TRACE_GAP * scan.WIDE)
    data = b""
    if piece.start:
        data = os.pread(file, piece.start - start, start)
    lines = data.split(b"\n")[-TRACE_GAP:]
    data = b"\n".join(lines)
    events = Block(data, len(data), 2 - len(lines), piece.context).events()
    return (event for event in events if event.kind == "nccl.trace")


def gather(blocks: Iterable[Block], merger: Merger, *, labelled: bool, stacks: bool) -> ScanResult:
    """What all blocks say together."""
    lines = Deduplication(merger)
    found = ScanResult()
    speakers = Speakers()
    progress = SpeakerProgress()
    for block in blocks:
        lines.read(block)
        progress.take(block)
        if labelled:
            speakers.listen(block)
        if stacks:
            found.heads += _heads_of_block(block)
        found.ends += block.ends
        found.open = block.data[block.limit - 1 : block.limit] not in (b"\n", b"")
        del block
    for event in progress.events():
        merger.add_event(event)
    found.events = merger.collected()
    found.speakers = speakers.heard
    return found


def _heads_of_block(block: Block) -> Iterator[Head]:
    number, counted = block.number, 0
    for match in HEADS.finditer(block.data, 0, block.limit):
        number += block.data.count(b"\n", counted, match.start())
        counted = match.start()
        yield number, int(match[1]), int(match[2]) if match[2] else None


def joined(pieces: Iterable[ScanResult]) -> ScanResult:
    """All pieces of a file as one, its events as they stand in a file."""
    merger = Merger()
    whole = ScanResult()
    for piece in pieces:
        for event in piece.events:
            merger.add_event(_moved_event(event, whole.ends))
        whole.heads += [(line + whole.ends, pid, rank) for line, pid, rank in piece.heads]
        whole.ends += piece.ends
        whole.open = piece.open
        whole.speakers |= piece.speakers
        whole.problem = whole.problem or piece.problem
    events = merger.events()
    whole.events = [event for event in events if event.kind != "stack"]
    whole.events += stacks.of_processes(
        [event for event in events if event.kind == "stack"], whole.heads
    )
    return whole


def _moved_event(event: Event, lines: int) -> Event:
    """An event whose lines are counted from farther back."""
    if not lines:
        return event
    data = event.data
    if isinstance(data, (PythonException, PythonIgnored)) and data.until is not None:
        data = structs.replace(data, until=data.until + lines)
    return replace(event, line=event.line + lines, data=data)
