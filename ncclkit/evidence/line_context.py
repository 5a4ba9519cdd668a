"""The lines around the line of an event, read from its file when asked.

They are read in blocks, never the whole file at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ncclkit.core import secrets
from ncclkit.core.model import Event
from ncclkit.evidence.sources.streams import DAMAGE, Readable, unpack

AROUND = 5
MAX_SKIPPED_BYTES = 4 << 30
"""Bytes of a file's text that are passed over at most to reach a line."""
BLOCK = 1 << 20
MAX_LINE_BYTES = 2000
"""Bytes shown of one line."""

Shown = list[tuple[int, str, bool]]
"""(line number, text, is it the event's own line)."""


def read_context(event: Event, base: Path | None = None, around: int = AROUND) -> Shown | str:
    """Lines around an event, or a sentence why they cannot be shown.

    The file must still say at that place what the event says: one that changed
    is not shown, and neither is a device or pipe.
    """
    path = _file_of(event, base or Path())
    if path is None:
        return _why_missing(event)
    if event.line < 1:
        return f"{event.path} has no lines to show; what it says stands above"
    first = max(1, event.line - around)
    size = max(1, event.text.count("\n") + 1)
    try:
        raw = "\n".join(_lines(path, first, event.line + size - 1 + around))
    except DAMAGE as error:
        return f"{path} cannot be read: {error}"
    lines = []
    if raw:
        lines = secrets.text(raw).split("\n")
    shown = []
    for number, line in enumerate(lines, first):
        shown.append((number, line, event.line <= number < event.line + size))
    if not _holds(shown, event):
        return (
            f"{path} does not hold it at line {event.line} (changed, or too large); the raw line"
            " stands above"
        )
    return shown


def _holds(shown: Shown, event: Event) -> bool:
    """Whether the lines of an event still say what it says."""
    said = ""
    if event.text:
        said = event.text.splitlines()[0].strip()[:MAX_LINE_BYTES]
    for _, line, is_own in shown:
        if is_own and _matches(line, said):
            return True
    return False


def _file_of(event: Event, base: Path) -> Path | None:
    if not event.path:
        return None
    # logs that lie in a case have paths from its folder on
    for path in (Path(event.path), base / event.path):
        if path.is_file():
            return path
    return None


def _why_missing(event: Event) -> str:
    if event.path:
        for parent in Path(event.path).parents:
            if parent.is_file():
                return f"it lies inside {parent}; unpack that to see the lines around it"
    return f"{event.path or 'its source'} is not here (any more); the raw line stands above"


def _matches(line: str, said: str) -> bool:
    """True when the line still says it.

    Colours and prefixes of launchers are no part of an event's text.
    """
    return said in line or (len(said) > 20 and said[-20:] in line)


def _lines(path: Path, first: int, last: int) -> Iterator[str]:
    """Lines `first` to `last` (1-based) of a plain or packed file.

    Each is cut to `MAX_LINE_BYTES` bytes.
    """
    with path.open("rb") as packed:
        source, packing = unpack(packed)
        if packing == "zst?":
            raise OSError("it is packed with zstd; unpack it to see the lines around it")
        rest = _skip(source, first - 1)
        if rest is None:
            return
        for raw, _ in zip(_split(source, rest), range(last - first + 1), strict=False):
            yield raw.decode("utf-8", "replace").rstrip("\r\n")


def _skip(source: Readable, count: int) -> bytes | None:
    """What was read behind the first `count` lines.

    It is None where the file ends before, or reaches too far.
    """
    passed = 0
    while passed < MAX_SKIPPED_BYTES:
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
    """Lines from `rest` on, cut to `MAX_LINE_BYTES` bytes.

    A line of a gigabyte passes through in blocks.
    """
    line = b""
    for block in chain([rest], iter(lambda: source.read(BLOCK) or b"", b"")):
        *whole, tail = block.split(b"\n")
        for piece in whole:
            yield (line + piece)[:MAX_LINE_BYTES]
            line = b""
        line = (line + tail)[:MAX_LINE_BYTES]
    if line:
        yield line
