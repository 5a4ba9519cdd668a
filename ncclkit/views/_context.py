"""The lines around a line, read from its file when somebody asks: in blocks, never the whole file at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ncclkit.core import secrets
from ncclkit.core.model import Event
from ncclkit.evidence.sources.streams import DAMAGE, Hashed, Readable, unpack

AROUND = 5
REACH = 4 << 30
"""Bytes of a file's text that are passed over at most to reach a line."""
BLOCK = 1 << 20
WIDE = 2000
"""Bytes shown of one line."""

Shown = list[tuple[int, str, bool]]
"""(line number, text, is it the event's own line)."""


def context(event: Event, base: Path | None = None, around: int = AROUND) -> Shown | str:
    """Lines around an event, or a sentence why they cannot be shown.

    The file must still say at that place what the event says: one that changed
    is not shown, and neither is a device or pipe.
    """
    path = next((p for p in (Path(event.path), (base or Path()) / event.path) if event.path and p.is_file()), None)
    if path is not None and event.line < 1:
        return f"{event.path} has no lines to show; what it says stands above"
    if path is None:
        return _gone(event)
    first, size = max(1, event.line - around), max(1, event.text.count("\n") + 1)
    try:
        raw = "\n".join(_lines(path, first, event.line + size - 1 + around))
    except DAMAGE as error:
        return f"{path} cannot be read: {error}"
    lines = secrets.text(raw).split("\n") if raw else []
    shown = [(number, line, event.line <= number < event.line + size) for number, line in enumerate(lines, first)]
    said = event.text.splitlines()[0].strip()[:WIDE] if event.text else ""
    if not any(hit and _holds(line, said) for _, line, hit in shown):
        return f"{path} does not hold it at line {event.line} (changed, or too large); the raw line stands above"
    return shown


def _gone(event: Event) -> str:
    archive = next((p for p in Path(event.path).parents if p.is_file()), None) if event.path else None
    if archive is not None:
        return f"it lies inside {archive}; unpack that to see the lines around it"
    return f"{event.path or 'its source'} is not here (any more); the raw line stands above"


def _holds(line: str, said: str) -> bool:
    """True when the line still says it; colours and prefixes of launchers are no part of an event's text."""
    return said in line or (len(said) > 20 and said[-20:] in line)


def _lines(path: Path, first: int, last: int) -> Iterator[str]:
    """Lines `first` to `last` (1-based) of a plain or packed file, each cut to `WIDE` bytes."""
    with path.open("rb") as packed:
        source, packing = unpack(Hashed(packed))
        if packing == "zst?":
            raise OSError("it is packed with zstd; unpack it to see the lines around it")
        rest = _skip(source, first - 1)
        if rest is None:
            return
        for raw, _ in zip(_split(source, rest), range(last - first + 1), strict=False):
            yield raw.decode("utf-8", "replace").rstrip("\r\n")


def _skip(source: Readable, count: int) -> bytes | None:
    """What was read behind the first `count` lines; None where the file ends before, or reaches too far."""
    passed = 0
    while passed < REACH:
        block = source.read(BLOCK) or b""
        passed += len(block)
        lines = block.count(b"\n")
        if count == 0 or lines >= count:
            return _behind(block, count)
        if not block:
            return None
        count -= lines
    return None


def _behind(block: bytes, count: int) -> bytes:
    """The block without its first `count` lines."""
    at = 0
    for _ in range(count):
        at = block.index(b"\n", at) + 1
    return block[at:]


def _split(source: Readable, rest: bytes) -> Iterator[bytes]:
    """Lines from `rest` on, cut to `WIDE` bytes: a line of a gigabyte passes through in blocks."""
    line = b""
    for block in chain([rest], iter(lambda: source.read(BLOCK) or b"", b"")):
        *whole, tail = block.split(b"\n")
        for piece in whole:
            yield (line + piece)[:WIDE]
            line = b""
        line = (line + tail)[:WIDE]
    if line:
        yield line
