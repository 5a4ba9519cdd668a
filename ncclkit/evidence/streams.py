"""Byte streams that can be packed, cut short or wide, and still give what is in them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

PEEK = 64 << 10
LARGEST = 32 << 30
"""Bytes of text that one compressed file may become."""
PACKED = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zst", b"PK\x03\x04": "zip"}

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What the decompressors of the standard library raise on damaged input."""


Readable = BinaryIO | io.RawIOBase | io.BufferedIOBase


class Hashed(io.RawIOBase):
    """A binary stream that keeps the digest and the length of what passed through it."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.digest = hashlib.sha256()
        self.bytes = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read and digest."""
        view = memoryview(buffer)
        chunk = self.stream.read(len(view))
        view[: len(chunk)] = chunk
        self.digest.update(chunk)
        self.bytes += len(chunk)
        return len(chunk)

    def drain(self) -> None:
        """Read what is left, so that digest and length are those of the whole file."""
        while self.read(1 << 20):
            pass


class Text(io.RawIOBase):
    """A stream that may break off: what came before the damage counts, and `problem` says what happened."""

    def __init__(self, stream: Readable, *, packed: bool, wide: str = "") -> None:
        super().__init__()
        self.take: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        """read1, where there is one: a decompressor's read would drop what precedes the damage."""
        self.packed = packed
        self.decoder = codecs.getincrementaldecoder(wide)("replace") if wide else None
        self.total = 0
        self.problem = ""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes of UTF-8 (about: UTF-16 changes its length); b"" at the end or at the damage."""
        parts: list[bytes] = []
        left = size
        while left > 0 and not self.problem and (chunk := self._chunk(min(left, 1 << 20))):
            left -= len(chunk)
            parts.append(self.decoder.decode(chunk).encode("utf-8", "replace") if self.decoder else chunk)
        return b"".join(parts)

    def _chunk(self, size: int) -> bytes:
        try:
            chunk = self.take(size)
        except DAMAGE as error:
            why = str(error) or type(error).__name__
            self.problem = f"breaks off after {self.total} bytes ({why}); what came before was read."
            return b""
        self.total += len(chunk)
        if self.packed and self.total > LARGEST:
            self.problem = f"unpacks to more than {LARGEST >> 30} GiB; only that much was read."
            return b""
        return chunk


def unpack(stream: Hashed) -> tuple[Readable, str]:
    """The plain stream behind a compressed one, and the packing ("" for none; "zip", "tar" and "zst" stay packed)."""
    buffered = io.BufferedReader(stream, PEEK)
    head = buffered.peek(512)
    packing = next((name for magic, name in PACKED.items() if head.startswith(magic)), "")
    if head[257:262] == b"ustar":
        packing = "tar"
    if packing == "gz":
        return gzip.GzipFile(fileobj=buffered), packing
    if packing == "xz":
        return lzma.LZMAFile(buffered), packing
    if packing == "bz2":
        return bz2.BZ2File(buffered), packing
    return buffered, packing


class Joined(io.RawIOBase):
    """A stream whose beginning was already read."""

    def __init__(self, head: bytes, rest: Text) -> None:
        super().__init__()
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """First what was read before, then the rest."""
        head, self.head = (self.head, b"") if size < 0 else (self.head[:size], self.head[size:])
        return head or self.rest.read(size)

    def readinto(self, buffer: Any) -> int:
        """The same into a buffer; iteration by lines uses it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
