"""The beginning and the end of a text that passes by."""

from __future__ import annotations

import os
from collections import deque
from typing import BinaryIO

ENDS = 1 << 20
"""Bytes that are kept of each, about."""


class Ends:
    """Keeps the chunks at both ends of a stream; nothing is copied."""

    def __init__(self) -> None:
        self.first: list[bytes] = []
        self.last: deque[bytes] = deque()
        self.left, self.size, self.gap = ENDS, 0, False

    @classmethod
    def of(cls, file: BinaryIO, size: int) -> Ends:
        """Those of a plain file of `size` bytes."""
        ends = cls()
        ends.add(os.pread(file.fileno(), min(size, ENDS), 0))
        ends.add(os.pread(file.fileno(), ENDS, max(ENDS, size - ENDS)))
        ends.gap = size > 2 * ENDS
        return ends

    def add(self, chunk: bytes) -> None:
        """The next chunk of the stream."""
        if self.left > 0:
            self.first.append(chunk)
            self.left -= len(chunk)
            return
        self.last.append(chunk)
        self.size += len(chunk)
        while self.size - len(self.last[0]) >= ENDS:
            self.size -= len(self.last.popleft())
            self.gap = True

    def pieces(self) -> tuple[bytes, bytes]:
        """(beginning, end); (everything, b"") where nothing was left out between them."""
        last = b"".join(self.last)
        return (b"".join(self.first), last) if self.gap else (b"".join((*self.first, last)), b"")
