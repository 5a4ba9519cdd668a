"""Pieces of a byte stream that end where a header says so, or where their own data ends."""

from __future__ import annotations

import io
import zlib

from ncclkit.evidence.sources.streams import Joined, Readable


class Cut(io.RawIOBase):
    """The next `size` bytes of a stream; EOFError where it ends before."""

    def __init__(self, source: Readable, size: int) -> None:
        super().__init__()
        self.source, self.left = source, size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        chunk = self.source.read(min(size, self.left)) or b"" if self.left else b""
        if self.left and not chunk:
            raise EOFError("the archive ends here")
        self.left -= len(chunk)
        return chunk


class Inflated(io.RawIOBase):
    """Deflated data in a stream; what follows it goes back."""

    def __init__(self, source: Joined) -> None:
        super().__init__()
        self.source, self.inflater = source, zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        data = b""
        while not data and not self.inflater.eof:
            packed = self.inflater.unconsumed_tail or self.source.read(64 << 10)
            if not packed:
                raise EOFError("the archive ends here")
            data = self.inflater.decompress(packed, size)
            if self.inflater.eof:
                self.source.head = self.inflater.unused_data + self.source.head
        return data


def exactly(source: Joined, size: int) -> bytes:
    """The next `size` bytes; fewer only at the end."""
    data = b""
    while len(data) < size and (chunk := source.read(size - len(data))):
        data += chunk
    return data
