"""How far each speaker of a text came, block by block."""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.core.model import Event
from ncclkit.evidence.grammars import progress
from ncclkit.evidence.scanner import engine
from ncclkit.evidence.scanner.scan import Block

PATIENCE = 4
"""Blocks that are searched in vain, as they hold words like those of progress, before only their ends are."""

Who = tuple[bytes, ...]


class Pace:
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
