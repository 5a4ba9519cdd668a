"""Which pickles Python's own C unpickler may read: those whose every opcode makes a plain value within the file's size.

Three things make the C unpickler unsafe on a stranger's file.

1. Opcodes that call something.  None of them is known here, so none passes.
2. Numbers in the file that become memory, such as a memo index of four billion.  Indices stay below what a file of
   this size can need; lengths end inside the file.
3. Tuples of tuples of tuples as keys: their hash overflows the stack, or takes for ever.  Only pairs pass, of two
   things that were remembered before the first pair of the file; no later opcode may replace one of those.

A regular expression walks over the opcodes, so the check costs less than the reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ncclkit.evidence.flight import layout

RUN = 400
"""Opcodes that one match covers; a match costs memory for each."""
LONG_STRING = {0x58: 4, 0x42: 4, 0x8D: 8, 0x8E: 8}
"""BINUNICODE, BINBYTES and their 8-byte forms: bytes of their length."""
PAIR = b"\x86"


def is_plain(data: bytes) -> bool:
    """True when the C unpickler can make nothing but plain values of `data`; False where that is not sure."""
    slots = len(data) >> 1  # an entry of the memo takes two bytes or more
    at = _walk(data, 0, _run(slots >> 16))
    if data[at : at + 1] == PAIR:
        first = _remembered(data, at, slots >> 16)
        if first is None:
            return False
        after = re.compile(_puts(slots >> 16, first), re.DOTALL).match(data, at + 1)
        at = after.end() if after else at + 1
        some = _run(slots >> 16, first).match(data, at)
        at = some.end() if some else at
        entry = layout.entry(data, _starts(data, at, len(data), _run(slots >> 16, most=1)), *_pairs(slots >> 16, first))
        at = _walk(data, at, _run(slots >> 16, first, entry=entry))
    return data[at : at + 1] == b"."


def _walk(data: bytes, at: int, run: re.Pattern[bytes]) -> int:
    """Where the first opcode stands that `run` does not know."""
    match = run.match
    while found := match(data, at):
        at = found.end()
        if (after := _after_string(data, at)) is not None:
            at = after
    return at


def _after_string(data: bytes, at: int) -> int | None:
    """The end of the long string that begins at `at`; None where none does, or it breaks off."""
    width = LONG_STRING.get(data[at], 0) if at < len(data) else 0
    end = at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    return end if width and end <= len(data) else None


def _remembered(data: bytes, end: int, high: int) -> int | None:
    """How many things are remembered before `end`; None unless they are numbered one after the other."""
    count = 0
    for at in _starts(data, 0, end, _run(high, most=1)):
        code = data[at]
        if code in (0x71, 0x72):
            number = data[at + 1] if code == 0x71 else int.from_bytes(data[at + 1 : at + 5], "little")
            if number != count:
                return None
        count += code in (0x71, 0x72, 0x94)
    return count if count < 1 << 16 else None


def _starts(data: bytes, at: int, end: int, token: re.Pattern[bytes]) -> Iterator[int]:
    """Where the opcodes begin; pairs are left to the reader."""
    while at < end:
        yield at
        found = token.match(data, at)
        at = found.end() if found else at + 1 if data[at : at + 1] == PAIR else _after_string(data, at) or end


@lru_cache(maxsize=64)
def _pairs(high: int, first: int) -> tuple[bytes, bytes]:
    """Patterns of what may be half of a pair, a string or remembered before `first`; and of how to remember."""
    put = _puts(high, first) + rb"|\x94"
    ways = [rb"h" + _class(0, min(first, 256) - 1)] if first else []
    ways += [rb"j." + _class(0, (first >> 8) - 1) + rb"\0\0"] if first >> 8 else []
    ways += [rb"(?:X(?:%s)|\x8c(?:%s))(?:%s)?" % (_sizes(256, rb"\0\0\0"), _sizes(256), put)]
    return b"|".join(ways), put


@lru_cache(maxsize=64)
def _run(high: int, first: int | None = None, most: int = RUN, entry: bytes = b"") -> re.Pattern[bytes]:
    """Up to `most` opcodes, or entries of one layout, where pairs pass with a `first`: see `_puts`, as for `high`."""
    tokens = rb"h.|j...."
    if first is not None:
        half, put = _pairs(high, first)
        tokens = rb"(?:%s)(?:(?:%s)+(?:\x86(?:%s)?)?)?|%s" % (half, half, put, tokens)
    tokens += rb"|[])(}eusaN\x88\x89\x94]|K.|%s|M..|J....|%s" % (_puts(high, first or 0), _sized())
    return re.compile(rb"(?s:(?:%s%s){1,%d})" % (entry + b"|" if entry else b"", tokens, most))


def _puts(high: int, first: int) -> bytes:
    """BINPUT and LONG_BINPUT of an index from `first` (below 65,536) to where the third byte is `high`."""
    low, middle = first & 255, first >> 8
    ways = [rb"q" + _class(low, 255)] if not middle else []
    ways += [rb"r%s%s\0\0" % (_class(low, 255), _class(middle, middle))]
    ways += [rb"r.%s\0\0" % _class(middle + 1, 255)] if middle < 255 else []
    ways += [rb"r..%s\0" % _class(1, min(high, 255))] if high else []
    return b"|".join(ways)


@lru_cache(maxsize=1)
def _sized() -> bytes:
    """Strings of up to 255 bytes, integers of up to 8 (larger ones can share a hash), floats, protocol and frames."""
    text = rb"X(?:%s)|\x8c(?:%s)|C(?:%s)" % (_sizes(256, rb"\0\0\0"), _sizes(256), _sizes(256))
    return rb"%s|\x8a(?:%s)|G.{8}|\x80.|\x95.{5}\0\0\0" % (text, _sizes(9))


@lru_cache(maxsize=8)
def _sizes(high: int, rest: bytes = b"") -> bytes:
    """A length byte below `high`, `rest`, and as many bytes; literals, since branches are tried one by one."""
    return b"|".join(re.escape(bytes([n])) + rest + rb".{%d}" % n for n in range(high))


def _class(low: int, high: int) -> bytes:
    """A set of bytes from `low` to `high`."""
    return rb"[\x%02x-\x%02x]" % (low, high)
