"""Who logs in a file that many ranks share, and how far each of them came."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.core.model import Event
from ncclkit.evidence.grammars import progress
from ncclkit.evidence.scanner import engine
from ncclkit.evidence.scanner.scan import Block

SPEAKER = re.compile(rb"\[(?:rank|default)(\d{1,6})\]:|^ {0,4}(\d{1,5}): ", re.MULTILINE)
SAMPLE = 64 << 10
GAPS = 8
"""How many ranks between those that were heard are listened for one by one."""


class Speakers:
    """The ranks that lines name as their speakers.

    The first block is listened to as a whole, of the others both ends, then whatever rank is missing between those
    heard: who speaks rarely is found, as a rank without a voice would be called silent.
    """

    def __init__(self) -> None:
        self.heard: set[int] = set()
        self.started = False

    def listen(self, block: Block) -> None:
        """Add the ranks of one block."""
        data, limit, tasks = block.data, block.limit, block.context.tasks
        if not self.started or limit <= 2 * SAMPLE:
            self.heard |= _ranks(data, 0, limit, tasks)
        else:
            new = _ranks(data, 0, SAMPLE, tasks) | _ranks(data, limit - SAMPLE, limit, tasks)
            if new - self.heard:  # who else is new here?
                new |= _ranks(data, 0, limit, tasks)
            self.heard |= new
        self.started = True
        low, high = min(self.heard, default=0), max(self.heard, default=-1)
        if 0 < high - low + 1 - len(self.heard) <= GAPS:
            self.heard |= {
                rank for rank in range(low, high) if rank not in self.heard and _speaks(data, limit, rank, tasks)
            }


def _ranks(data: bytes, low: int, high: int, tasks: bool) -> set[int]:
    return {int(rank or task) for rank, task in SPEAKER.findall(data, low, high) if rank or tasks}


def _speaks(data: bytes, limit: int, rank: int, tasks: bool) -> bool:
    labels = [b"[rank%d]:" % rank, b"[default%d]:" % rank, *([b"\n%d: " % rank] if tasks else [])]
    return any(data.find(label, 0, limit) >= 0 for label in labels)


PATIENCE = 4
"""After so many blocks that hold words like those of progress and no progress, only the ends of blocks are searched."""

Who = tuple[bytes, ...]


class SpeakerProgress:
    """Keeps the last line of each speaker; only these are taken apart."""

    def __init__(self) -> None:
        self.words: dict[Who, tuple[int, Block]] = {}
        self.patience = PATIENCE

    def take(self, block: Block) -> None:
        """Look at the end of a block that was read."""
        data, limit, shared = block.data, block.limit, block.context.rank is None
        spoken = progress.latest(data, limit, shared=shared, keen=block.last, back=False)
        if not spoken and (self.patience or block.last) and engine.holds(data, limit, progress.ANCHORS):
            spoken = progress.latest(data, limit, shared=shared, keen=block.last, back=True)
            self.patience = PATIENCE if spoken else self.patience - 1
        for who, word in spoken.items():
            if who or not shared or who not in self.words or word.step >= self.words[who][0]:
                line = Block(word.raw, len(word.raw), block.number + block.ends - word.back, block.context)
                self.words[who] = word.step, line

    def events(self) -> Iterator[Event]:
        """One of each speaker, in the order of their lines."""
        for _, block in sorted(self.words.values(), key=lambda word: word[1].number):
            yield from progress.read(block.line(0, block.limit, block.number))
