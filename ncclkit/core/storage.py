"""How records are kept in files.

They are JSON Lines and JSON; each file is replaced whole and atomically, one writer at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ncclkit.core.kinds import known_fields
from ncclkit.core.model import (
    Advice,
    Event,
    Experiment,
    Finding,
    NcclkitError,
    cite,
    from_dict,
    to_json,
)

T = TypeVar("T")

OUTCOME_VARIABLE = "NCCLKIT_OUTCOME"
"""Variable by which a batch job tells its verb the file that keeps what came of it."""
LARGEST = 256 << 20
"""Bytes of one file of a case; 15,000 events take about 15 MB."""
CONTAINERS = 4 << 20
"""Lists and objects of one file of a case; each takes up to 230 bytes of memory, whatever it takes
in the file."""
NESTED = 64
"""Lists in lists, and objects in objects, of one record; ours have at most ten."""


class Nested(ValueError):
    """A document that is JSON, and nested deeper than `NESTED`."""


DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading a record raises that is none; the errors of msgspec are ValueErrors."""


def write(path: Path, text: str | bytes) -> None:
    """Replace `path` atomically: a reader sees the old file or the new one, never half.

    A byte of a file name that is no UTF-8 (a lone surrogate) is written as its code, which JSON
    reads back.
    """
    # in the same folder, as a rename is atomic only within a file system; a name that nobody
    # guesses
    name = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    # less what the user's umask takes away
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text)
            out.flush()
            # before the rename: after a crash some file systems keep the new name with no content
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        # also at Ctrl-C, or each interrupted save leaves a hidden file
        name.unlink(missing_ok=True)
        raise


def content(path: Path) -> bytes:
    """The bytes of a file of a case.

    Raises NcclkitError for a pipe, a device, or what would take gigabytes of memory.
    """
    # without O_NONBLOCK opening a pipe waits for a writer that never comes
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        # asked of what is open, not of the path, under which another file may stand by now
        about = os.fstat(file.fileno())
        wrong = "is not a regular file"
        if stat.S_ISREG(about.st_mode):
            wrong = ""
        data = b""
        if not wrong:
            # one byte more than allowed, by which a file that is too large is told
            data = file.read(LARGEST + 1)
    if len(data) > LARGEST or data.count(b"{") + data.count(b"[") > CONTAINERS:
        wrong = (
            f"holds more than {LARGEST >> 20} MiB, or {CONTAINERS >> 20} million lists and objects"
        )
    if wrong:
        raise NcclkitError(f"{path} {wrong}; move it away and the case opens without it.")
    return data


def parse_json(data: bytes) -> Any:
    """The value of a JSON document.

    Raises ValueError for what is no JSON, `Nested` for what is nested too deep.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise Nested("is nested without an end") from None
    # a document without that many brackets cannot be nested deeper: the walk is saved
    if data.count(b"{") + data.count(b"[") <= NESTED:
        return value
    # level by level and not by recursion, which a deep document would end with an error
    level = [value]
    for _ in range(NESTED):
        inner: list[Any] = []
        for outer in level:
            if isinstance(outer, (dict, list)):
                inner.extend(_inner_values(outer))
        level = inner
    if level:
        raise Nested(f"is nested more than {NESTED} deep")
    return value


def _inner_values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def write_records(path: Path, records: Iterable[Any]) -> None:
    """One record a line, as JSON."""
    write(path, "".join(to_json(record) + "\n" for record in records))


def read_records(cls: type[T], path: Path) -> Iterator[T]:
    """The records of a JSON Lines file, none where it does not exist.

    Raises NcclkitError, which names the line that is no record.
    """
    return _decoded_lines(path, msgspec.json.Decoder(cls).decode, cls.__name__)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a JSON Lines file, as `read_records`.

    Fields that their kind does not have, as another version wrote them, are dropped.
    """
    return _decoded_lines(path, _saved_event, Event.__name__)


def _saved_event(line: bytes) -> Event:
    row = msgspec.json.decode(line)
    data = row.get("data", {})
    if not isinstance(data, dict):
        raise TypeError("the fields of an event are an object")
    return msgspec.convert(row | {"data": known_fields(row["kind"], data)}, Event)


def _decoded_lines(path: Path, decode: Callable[[bytes], T], name: str) -> Iterator[T]:
    if not path.exists():
        return
    for number, line in enumerate(content(path).splitlines(), 1):
        try:
            # msgspec recurses, too, so a line that may be nested is looked at by our own count
            # first
            if line.count(b"{") + line.count(b"[") > NESTED:
                parse_json(line)
            yield decode(line)
        except DAMAGE as error:
            raise NcclkitError(
                f"{path}:{number} is no {name} record; move the file away and the case"
                " opens without it."
            ) from error


def read_json(path: Path, default: Any, form: Any = None) -> Any:
    """The value in a JSON file, `default` where it does not exist.

    `form` is the type that it must have, that of `default` where none is given.  Raises
    NcclkitError, which says what is wrong.
    """
    if not path.exists():
        return default
    try:
        value = parse_json(content(path))
        msgspec.convert(value, form or type(default))
    except ValueError as error:
        why = "is not JSON"
        if isinstance(error, msgspec.ValidationError):
            why = "is not what is kept there"
        raise NcclkitError(
            f"{path} {why} ({error}); move the file away and the case opens without it."
        ) from error
    return value


def write_findings(path: Path, findings: Iterable[Finding]) -> None:
    """Findings as JSON, their evidence as ``{path, line, text}``."""
    rows = []
    for finding in findings:
        rows.append(
            msgspec.to_builtins(finding, enc_hook=str)
            | {"evidence": [*map(cite, finding.evidence)]}
        )
    write(path, json.dumps(rows, indent=1, default=str))


def read_findings(path: Path) -> list[Finding]:
    """The reverse of `write_findings`; evidence comes back as events of kind ``cited``."""
    try:
        return [_finding_of_row(row) for row in read_json(path, [])]
    except DAMAGE as error:
        raise NcclkitError(
            f"{path} holds something else than findings; move the file away and the case opens"
            " without it."
        ) from error


def _finding_of_row(row: dict[str, Any]) -> Finding:
    pieces = []
    for piece in row.get("evidence", ()):
        pieces.append(msgspec.convert(piece | {"kind": "cited"}, Event))
    nested = {
        "evidence": tuple(pieces),
        "missing": tuple(row.get("missing", ())),
        "culprits": {key: tuple(value) for key, value in row.get("culprits", {}).items()},
        "advice": msgspec.convert(row.get("advice", ()), tuple[Advice, ...]),
        "next": msgspec.convert(row.get("next"), Experiment | None),
    }
    return from_dict(Finding, row | nested)


LOCK = ".lock"
"""File of a case folder that whoever writes the folder holds."""
WAIT = 60.0
"""Seconds that a writer waits for the others."""
STALE = 60.0
"""Seconds after which the lock file of a writer that was killed counts no more, where there is no
`flock`."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of a case folder, as long as the block runs.

    Raises NcclkitError after `WAIT` seconds.

    The lock is the kernel's `flock`, which ends with its process.  A file system without one
    (Lustre without ``-o flock``, some FUSE) gets a second file instead, which only one process can
    make, and which counts for `STALE` seconds.
    """
    # monotonic: a clock that is set while we wait would end the wait or make it endless
    end = time.monotonic() + WAIT
    with open(_open_lock_file(folder / LOCK), "rb") as file:
        held = folder / f"{LOCK}.held"
        while (made := _taken_lock(file.fileno(), held)) is None:
            if time.monotonic() > end:
                raise NcclkitError(
                    f"Another ncclkit has been writing {folder} for {WAIT:.0f} s, so nothing was"
                    " written; end it, or name another case folder."
                )
            time.sleep(0.01)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                # else we took longer than `STALE`, and it is another writer's
                if made and held.stat().st_ino == made:
                    held.unlink()


def _open_lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        # of another user of a shared case, which local file systems lock all the same
        return os.open(path, os.O_RDONLY)


def _taken_lock(file: int, held: Path) -> int | None:
    """The inode of the file `held` that was made to take the lock.

    It is 0 where none was made, and None where another process has the lock.
    """
    with suppress(OSError):  # no flock on this file system
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return 0
    with (
        suppress(FileExistsError),
        open(os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as mine,
    ):
        return os.fstat(mine.fileno()).st_ino
    with suppress(FileNotFoundError):  # it was given back
        made = held.stat()
        os.utime(file)  # the clock of the file server, not of this host
        if os.fstat(file).st_mtime - made.st_mtime > STALE:
            aside = held.with_name(f"{held.name}.{secrets.token_hex(6)}")
            held.rename(aside)
            if aside.stat().st_ino != made.st_ino:  # another process has just made it
                with suppress(FileExistsError):
                    os.link(aside, held)
            aside.unlink(missing_ok=True)
    return None
