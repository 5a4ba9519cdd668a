"""Decompressors that are no part of Python: zstandard for zst, isal for gz (where it is not there, Python's own)."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from typing import Any

ENDED = "Compressed file ended before the end-of-stream marker was reached"
"""As Python's own decompressors say it."""
PIECE = 8 << 10
"""Bytes that are decompressed at once; what a damaged piece holds is lost."""
SMALL = 2 << 10
"""The same for zst, which has no limit on what comes out: 64 MiB at most of this much."""


class Members(io.RawIOBase):
    """The members of a compressed file one after the other; of one that breaks off, all that precedes the break.

    Raises EOFError at a break and OSError where the data is damaged, as Python's own decompressors do.
    """

    def __init__(
        self, source: io.BufferedIOBase, engine: Callable[[], Any], broken: type[Exception], piece: int
    ) -> None:
        super().__init__()
        self.source, self.make, self.broken, self.piece = source, engine, broken, piece
        self.engine: Any = None
        self.packed, self.out = b"", memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end."""
        while not self.out and self._more():
            self._step(size)
        data = bytes(self.out[:size] if size >= 0 else self.out)
        self.out = self.out[len(data) :]
        return data

    def _more(self) -> bool:
        """True while there is something to decompress; zero bytes between members are padding."""
        while not self.packed:
            chunk = self.source.read(self.piece)
            if not chunk and self.engine is not None:
                raise EOFError(ENDED)
            if not chunk:
                return False
            self.packed = chunk if self.engine is not None else chunk.lstrip(b"\0")
        return True

    def _step(self, size: int) -> None:
        self.engine = self.engine or self.make()
        try:
            self.out = memoryview(self.engine.decompress(self.packed, max(size, PIECE)))
        except self.broken as error:
            raise OSError(str(error)) from error
        self.packed = self.engine.unconsumed_tail
        if self.engine.eof:
            self.packed, self.engine = self.engine.unused_data.lstrip(b"\0"), None


class _Frame:
    """One frame of zst behind the interface of `zlib.decompressobj`."""

    unconsumed_tail = b""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def decompress(self, data: bytes, size: int) -> bytes:
        return bytes(self.engine.decompress(data))

    @property
    def eof(self) -> bool:
        return bool(self.engine.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self.engine.unused_data)


def zst(source: io.BufferedIOBase) -> Members | None:
    """The text of a zst file; None where no module can unpack it."""
    try:
        import zstandard
    except ImportError:
        return None
    return Members(source, lambda: _Frame(zstandard.ZstdDecompressor().decompressobj()), zstandard.ZstdError, SMALL)


def gz(source: io.BufferedIOBase) -> Members | gzip.GzipFile:
    """The text of a gz file, with isal at about twice the speed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return gzip.GzipFile(fileobj=source)
    broken: Any = isal_zlib.error  # its stubs call this class an instance
    return Members(source, lambda: isal_zlib.decompressobj(wbits=31), broken, PIECE)
