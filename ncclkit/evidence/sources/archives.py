"""Archives as users attach them to tickets.

Their members are streams, and nothing is ever written to disk.  Names, sizes and kinds in an
archive are untrusted: a member is only ever read, and what could lead elsewhere or does not end is
left out and named.
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO

from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.streams import DAMAGE, Joined, Readable, UnpackBudget


class Cut(io.RawIOBase):
    """The next `size` bytes of a stream; EOFError where it ends before."""

    def __init__(self, source: Readable, size: int) -> None:
        super().__init__()
        self.source = source
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        chunk = b""
        if self.left:
            chunk = self.source.read(min(size, self.left)) or b""
        if self.left and not chunk:
            raise EOFError("the archive ends here")
        self.left -= len(chunk)
        return chunk


NAME = 400
"""Characters of a member's name that are shown."""
MEMBERS = 100_000
"""Members that are looked at in one archive."""
DIRECTORY = 24 << 20
"""Bytes of a zip's directory, which takes ten times its size in memory before the first member is
known."""
PIPED = 64 << 20
"""Bytes of a zip that is piped in, or packed once more."""
HEADER, SHORT = 8 << 10, 1 << 10
"""Largest extended header (long names, attributes) of a tar member in bytes, which Python searches
in quadratic time; and how long one may be that costs nothing."""
HEADERS = 64 * HEADER**2
"""Squares of the lengths of all extended headers of an archive that are longer than `SHORT`,
together."""

HOSTILE = (*DAMAGE, ValueError, RuntimeError, ArithmeticError, LookupError, struct.error)
"""What tarfile and zipfile raise on headers that nobody meant."""

OUTSIDE = "the name leads out of the archive"
LINK = "links and devices are not followed"
PROGRAM = "programs and pages hold no log; unpack one and name it to have it read"
TWICE = "another member has the same name"
LOCKED = "a password is needed; unpack it and give the folder"
METHOD = "packed in a way that this Python cannot unpack; unpack it and give the folder"
DAMAGED = "what stands before the data is damaged"
NESTED = "archives inside an archive are not opened; unpack it and give the folder"
BINARY = "binary files of no known kind"


@dataclass(slots=True)
class Member:
    """One file of an archive; its stream ends when the next member is asked for."""

    name: str
    stream: Readable
    changed: datetime | None


@dataclass(slots=True)
class Archive:
    """The members of one archive that can hold evidence, and why others were left out."""

    path: str
    budget: UnpackBudget
    """Of what passes by without being asked for."""
    left: dict[str, list[str]] = field(default_factory=dict)
    """Reason → names of what was left out."""
    problem: str = ""
    """What is wrong with the archive as a whole."""
    seen: set[str] = field(default_factory=set)

    def omit(self, why: str, name: str) -> None:
        """Leave a member out; `problems` will name it."""
        self.left.setdefault(why, []).append(name)

    def problems(self) -> list[str]:
        """One sentence per reason, with the first three names."""
        said = []
        if self.problem:
            said = [self.problem]
        for why, names in self.left.items():
            more = ""
            if len(names) > 3:
                more = f" … ({len(names)} in all)"
            said.append(f"{self.path}: {', '.join(names[:3])}{more} left out: {why}.")
        return said

    def wants(self, raw: str, *, regular: bool) -> str:
        """The name that a member gets in reports, or "" for none.

        Left out is what folder walks leave out.
        """
        parts = [part for part in raw.replace("\\", "/").split("/") if part not in ("", ".")]
        name = "/".join("".join(c if c.isprintable() else "�" for c in part) for part in parts)
        name = name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[-NAME // 2 :]}"
        if ".." in parts or raw[:1] in ("/", "\\") or raw[1:2] == ":":
            self.omit(OUTSIDE, name)
        elif not parts or any(inputs.is_hidden(part) for part in parts):
            return ""
        elif inputs.is_ours(parts[-1], named=len(parts) < 3):
            # a packed case, with its folder or without
            return ""
        elif not regular:
            self.omit(LINK, name)
        elif name.endswith(inputs.PROGRAMS):
            self.omit(PROGRAM, name)
        elif name in self.seen:
            self.omit(TWICE, name)
        else:
            self.seen.add(name)
            return name
        return ""

    def is_full(self, number: int) -> bool:
        """True when enough members were seen; `problems` will say so."""
        if number >= MEMBERS:
            self.problem = (
                f"{self.path} has more than {MEMBERS} members; the first {MEMBERS} were read."
            )
        return number >= MEMBERS

    def tar(self, source: Joined) -> Iterator[Member]:
        """Members of a tar archive in the order of the stream."""
        try:
            with tarfile.open(
                fileobj=_EndGuard(source), mode="r|", tarinfo=type("Info", (_Info,), {})
            ) as archive:
                for number, info in enumerate(archive):
                    if self.is_full(number):
                        return
                    if info.isdir():
                        name = ""
                    else:
                        name = self.wants(info.name, regular=info.isreg())
                    if name:
                        yield Member(
                            name, _content_of_member(archive, info), _known_date(info.mtime)
                        )
        except HOSTILE as error:
            self.problem = (
                f"{self.path} breaks off or is damaged ({error}); what came before was read."
            )

    def zip(self, file: BinaryIO | None, source: Joined) -> Iterator[Member]:
        """Members of a zip archive by the directory at its end.

        An archive that is piped in is kept meanwhile.
        """
        if file is None:
            data = bytearray(source.head)
            while len(data) <= PIPED and (chunk := source.rest.read(1 << 20)):
                data += chunk
            file = io.BytesIO(data)
            if len(data) > PIPED:
                self.problem = (
                    f"{self.path} is a piped zip of more than {PIPED >> 20} MiB; give the file"
                    " instead."
                )
                return
        if _directory_size(file) > DIRECTORY:
            self.problem = (
                f"{self.path} has a directory of more than {DIRECTORY >> 20} MiB; give the logs"
                " that matter."
            )
            return
        try:
            archive = zipfile.ZipFile(file)
        except HOSTILE as error:
            self.problem = (
                f"{self.path} is damaged or cut short ({error}); `7z x` or `zip -FF` unpack what is"
                " left."
            )
            return
        # a zip with this member is a checkpoint of torch, no evidence
        if any(name.endswith("/data.pkl") for name in archive.namelist()):
            self.problem = (
                f"{self.path} is a checkpoint of torch and holds no log; it was not read."
            )
            return
        for number, info in enumerate(archive.infolist()):
            if self.is_full(number):
                return
            yield from self._zipped(archive, info)

    def _zipped(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[Member]:
        mode = stat.S_IFMT(info.external_attr >> 16)
        if info.filename.endswith("/"):
            name = ""
        else:
            name = self.wants(info.filename, regular=mode in (0, stat.S_IFREG))
        if not name:
            return
        if info.flag_bits & 1:
            self.omit(LOCKED, name)
            return
        try:
            stream = archive.open(info)
        except HOSTILE as error:
            self.omit(METHOD if isinstance(error, RuntimeError) else DAMAGED, name)
            return
        with stream:
            yield Member(name, stream, _known_date(info.date_time))


def _directory_size(file: BinaryIO) -> int:
    """Bytes of a zip's directory, as the record at its end says.

    It is 0 where there is none.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 17)))
    tail = file.read(1 << 17)
    file.seek(0)
    try:
        said: int = struct.unpack_from("<L", tail, tail.rindex(b"PK\5\6") + 12)[0]
        if said < 0xFFFFFFFF:
            return said
        return int(struct.unpack_from("<Q", tail, tail.rindex(b"PK\6\6") + 40)[0])
    except (ValueError, struct.error):
        return 0


PLAIN_TYPES = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
)


class _EndGuard(io.RawIOBase):
    """A stream that says when it has ended.

    tarfile would read 2^60 bytes beyond its end, block by block.
    """

    def __init__(self, source: Readable) -> None:
        super().__init__()
        self.source = source
        self.empty = 0

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(size) or b""
        if data:
            self.empty = 0
        else:
            self.empty = self.empty + 1
        if self.empty > 8:
            raise tarfile.ReadError("a member is longer than the archive")
        return data


class _Info(tarfile.TarInfo):
    """A tar header that does not take damage for the end of the archive.

    It takes no gigabytes for a name, either.
    """

    extended = 0
    """Squares of lengths of extended headers so far, in the class made for one archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Info:
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        if info.type not in (*tarfile.REGULAR_TYPES, *PLAIN_TYPES):
            cls.extended += info.size**2 if info.size > SHORT else 0
            if info.size > HEADER or cls.extended > HEADERS:
                raise tarfile.ReadError("extended header too large")
        return info


def _content_of_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Readable:
    """The data of a member.

    tarfile's own reader would drop what precedes a break.
    """
    sparse = None
    if info.issparse():
        sparse = archive.extractfile(info)
    if sparse is not None:
        return sparse
    stream: Any = archive.fileobj
    stream.seek(info.offset_data)
    return Cut(stream, info.size)


def _known_date(when: float | tuple[int, int, int, int, int, int]) -> datetime | None:
    """The last change that an archive tells.

    It is None for what packers write when they do not know.
    """
    try:
        if isinstance(when, tuple):
            date = datetime(*when)
        else:
            date = datetime.fromtimestamp(when)
    except (ValueError, OverflowError, OSError):
        return None
    if date.year > 1980:
        return date
    return None
