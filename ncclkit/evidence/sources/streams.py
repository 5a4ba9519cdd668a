"""Byte streams that can be packed, cut short or wide.

They still give what is in them.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

ENDS = 1 << 20
"""Bytes that are kept of each, about."""


class Ends:
    """Keeps the chunks at both ends of a stream; nothing is copied."""

    def __init__(self) -> None:
        self.first: list[bytes] = []
        self.last: deque[bytes] = deque()
        self.left = ENDS
        self.size = 0
        self.gap = False

    @classmethod
    def of(cls, file: BinaryIO, size: int, start: int = 0) -> Ends:
        """Those of a plain file of `size` bytes; its data begins at `start`."""
        ends = cls()
        first = min(size, start + ENDS)
        ends.add(os.pread(file.fileno(), first - start, start))
        ends.add(os.pread(file.fileno(), ENDS, max(first, size - ENDS)))
        ends.gap = size > start + 2 * ENDS
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

    def head_and_tail(self) -> tuple[bytes, bytes]:
        """(beginning, end); (everything, b"") where nothing was left out between them."""
        last = b"".join(self.last)
        if self.gap:
            return b"".join(self.first), last
        return (b"".join((*self.first, last)), b"")


ENDED = "Compressed file ended before the end-of-stream marker was reached"
"""As Python's own decompressors say it."""
PIECE = 8 << 10
"""Bytes that are decompressed at once; what a damaged piece holds is lost."""
SMALL = 2 << 10
"""The same for zst, which has no limit on what comes out: 64 MiB at most of this much."""
SILENT = 64 << 20
"""Bytes without anything that comes out of them, after which no more is read: behind the data of a
sparse file stand terabytes of zero bytes, which take no room on a disk."""


class Members(io.RawIOBase):
    """The members of a compressed file one after the other.

    Of a file that breaks off, it gives all that precedes the break.  Raises EOFError at a break and
    OSError where the data is damaged, as Python's own decompressors do; OSError, too, where nothing
    comes out any more.
    """

    def __init__(
        self,
        source: io.BufferedIOBase,
        engine: Callable[[], Any],
        broken: type[Exception],
        piece: int = PIECE,
    ) -> None:
        super().__init__()
        self.source = source
        self.make = engine
        self.broken = broken
        self.piece = piece
        self.engine: Any = None
        self.packed, self.out = b"", memoryview(b"")
        self.silent = 0
        """Bytes that were read since something came out."""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end."""
        while not self.out and self._more():
            self._step(size)
        data = bytes(self.out[:size] if size >= 0 else self.out)
        self.out = self.out[len(data) :]
        return data

    def _more(self) -> bool:
        """True while there is something to decompress; zero bytes between members are padding."""
        if self.engine is not None and not getattr(self.engine, "needs_input", True):
            return (
                True  # those of xz and bz2 keep to themselves what they have not decompressed yet
            )
        while not self.packed:
            chunk = self.source.read(self.piece)
            self.silent += len(chunk)
            if self.silent > SILENT:
                raise OSError(f"nothing but padding in the next {SILENT >> 20} MiB")
            if not chunk and self.engine is not None:
                raise EOFError(ENDED)
            if not chunk:
                return False
            if self.engine is not None:
                self.packed = chunk
            else:
                self.packed = chunk.lstrip(b"\0")
        return True

    def _step(self, size: int) -> None:
        self.engine = self.engine or self.make()
        try:
            self.out = memoryview(self.engine.decompress(self.packed, max(size, PIECE)))
        except self.broken as error:
            raise OSError(str(error)) from error
        if self.out:
            self.silent = 0
        self.packed = getattr(self.engine, "unconsumed_tail", b"")
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
    return Members(
        source,
        lambda: _Frame(zstandard.ZstdDecompressor().decompressobj()),
        zstandard.ZstdError,
        SMALL,
    )


def gz(source: io.BufferedIOBase) -> Members:
    """The text of a gz file, with isal at about twice the speed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return Members(source, lambda: zlib.decompressobj(wbits=31), zlib.error)
    broken: Any = isal_zlib.error  # its stubs call this class an instance
    return Members(source, lambda: isal_zlib.decompressobj(wbits=31), broken)


def xz(source: io.BufferedIOBase) -> Members:
    """The text of an xz file.

    It is of no other format of lzma, as an empty one looks like padding.
    """
    return Members(source, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), lzma.LZMAError)


PEEK = 64 << 10
"""Bytes that are read at once of a file whose kind is not known yet."""
ZEROS = 1 << 30
"""Zero bytes of a text that are read over; a hole at an end of a file is none (see
`pieces.data`)."""
LARGEST = 32 << 30
"""Bytes of text that one compressed file may become."""
RATIO = 400
"""How many times the size of an archive its members may have, beyond `FREE`; floods of equal lines
reach about 200."""
FREE = 256 << 20
UNPACKED = 8 << 30
"""Bytes that all members of one archive together may have."""
PACKED = {
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zst",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
}

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
"""What the decompressors of the standard library raise on damaged input."""


class Readable(Protocol):
    """What bytes can be read from.

    It is a file, a pipe, a decompressor, or a member of an archive.
    """

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes; b"" at the end."""


class Counted(io.RawIOBase):
    """A binary stream that counts the bytes that were read of it.

    After `most` bytes it ends, so that a file that grows as fast as it is read has an end; 0 is no
    limit.
    """

    def __init__(self, stream: Readable, most: int = 0) -> None:
        super().__init__()
        self.stream = stream
        self.most = most
        self.bytes = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, at most up to the limit."""
        view = memoryview(buffer)
        if self.most:
            view = view[: max(0, self.most - self.bytes)]
        chunk = self.stream.read(len(view)) or b""
        view[: len(chunk)] = chunk
        self.bytes += len(chunk)
        return len(chunk)


class UnpackBudget:
    """How much an archive may unpack to, against bombs.

    `packed` returns how many bytes of it were read.
    """

    def __init__(self, packed: Callable[[], int]) -> None:
        self.packed = packed
        self.total = 0
        self.spent = ""
        """Why nothing more is read, once that is so."""

    def spend(self, size: int) -> str:
        """Count bytes that came out; returns why nothing more is read, if so."""
        self.total += size
        if self.total > UNPACKED:
            self.spent = f"more than {UNPACKED >> 30} GiB"
        elif self.total > FREE + RATIO * self.packed():
            self.spent = f"more than {RATIO} times its size"
        return self.spent


class TolerantReader(io.RawIOBase):
    """Reads a stream until its end, damage or a limit.

    `problem` then says which, and what came before counts.
    """

    def __init__(self, stream: Readable, *, packed: bool, wide: str = "") -> None:
        super().__init__()
        self.budget: UnpackBudget | None = None
        self.take: Callable[[int], bytes | None] = getattr(stream, "read1", stream.read)
        """read1, where there is one: a decompressor's read would drop what precedes the damage."""
        self.packed = packed
        self.decoder = codecs.getincrementaldecoder(wide)("replace") if wide else None
        self.total = 0
        self.zeros = 0
        """Zero bytes since the last other one."""
        self.problem = ""
        self.ends = Ends()
        """Of what was read, in UTF-8."""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes of UTF-8 (about: UTF-16 changes its length).

        It is b"" at the end or at the damage.
        """
        parts: list[bytes] = []
        left = size
        while left > 0 and not self.problem and (chunk := self._chunk(min(left, 1 << 20))):
            left -= len(chunk)
            parts.append(
                self.decoder.decode(chunk).encode("utf-8", "replace") if self.decoder else chunk
            )
            self.ends.add(parts[-1])
        return b"".join(parts)

    def begin(self, size: int) -> bytes:
        """The first `size` bytes or fewer, without the zero bytes before them.

        A log that was emptied begins with such bytes.
        """
        head = self.read(size)
        zeros = 0
        while head and zeros < ZEROS and not head.strip(b"\0") and (more := self.read(size)):
            head = more
            zeros = zeros + len(more)
        return head

    def _chunk(self, size: int) -> bytes:
        try:
            chunk = self.take(size) or b""
        except DAMAGE as error:
            why = str(error) or type(error).__name__
            self.problem = (
                f"breaks off after {self.total} bytes ({why}); what came before was read."
            )
            return b""
        self.total += len(chunk)
        if not self.packed:
            if chunk.count(0) == len(chunk):
                self.zeros = self.zeros + len(chunk)
            else:
                self.zeros = 0
        if self.zeros > ZEROS:
            self.problem = (
                f"holds {ZEROS >> 20} MiB of zero bytes at a stretch; only what stands before was"
                " read."
            )
            return b""
        if self.packed and self.total > LARGEST:
            self.problem = f"unpacks to more than {LARGEST >> 30} GiB; only that much was read."
            return b""
        if self.budget is not None and (why := self.budget.spend(len(chunk))):
            self.problem = (
                f"was read only in part: the archive unpacks to {why}; give the logs that matter."
            )
            return b""
        return chunk


def unpack(stream: io.BufferedReader) -> tuple[Readable, str]:
    """The plain stream behind a compressed one, and the packing ("" for none).

    Two stay packed: "zip", and "zst?", which no module here can unpack.
    """
    head = stream.peek(512)
    packing = next((name for magic, name in PACKED.items() if head.startswith(magic)), "")
    if packing == "gz":
        return gz(stream), packing
    if packing == "zst":
        plain = zst(stream)
        if plain is not None:
            return plain, packing
        return stream, "zst?"
    if packing == "xz":
        return xz(stream), packing
    if packing == "bz2":
        return Members(stream, bz2.BZ2Decompressor, OSError), packing
    return stream, packing


def is_tar(head: bytes) -> bool:
    """True when a stream begins with the header of a tar archive, of whatever dialect."""
    try:
        return bool(tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "replace").name)
    except tarfile.TarError:
        return False


class Joined(io.RawIOBase):
    """A stream whose beginning was already read."""

    def __init__(self, head: bytes, rest: TolerantReader) -> None:
        super().__init__()
        self.head = head
        self.rest = rest

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """First what was read before, then the rest."""
        if size < 0:
            head, self.head = self.head, b""
        else:
            head, self.head = self.head[:size], self.head[size:]
        return head or self.rest.read(size)

    def readinto(self, buffer: Any) -> int:
        """The same into a buffer; iteration by lines uses it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
