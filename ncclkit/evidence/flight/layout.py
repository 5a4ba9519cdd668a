"""The layout of one dump's entries, learned from one of them: a pattern that checks a whole entry in one step.

It only makes the check of `opcodes` faster.  What the pattern matches is made of opcodes that would pass there one by
one; an entry that it does not match is walked over opcode by opcode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

SAMPLE = 500
"""Opcodes among which a whole entry must be; it has about 80, and 24 more frames at most."""
SCALAR = rb"(?:h.|K.|M..|N|[\x88\x89]|J....|\x8a\x08.{8}|j....|G.{8})"
ATOMS = b"hjKMJNG\x88\x89\x8aX\x8c"
END = b"u"


def entry(data: bytes, opcodes: Iterator[int], pair: bytes, put: bytes) -> bytes:
    """A pattern of dictionaries like the first flat one in `opcodes`, the places where these begin; b"" without one.

    pair, put: patterns of what may be paired, and of how a value may be remembered.
    """
    places = list(islice(opcodes, SAMPLE))
    codes = bytes(data[place] for place in places)
    kept = rb"(?:%s)?" % put
    for number in range(len(codes)):
        if codes[number : number + 1] == b"}":
            parts = _Entry(data, places, codes, kept, rb"(?:%s)(?:%s)\x86%s" % (pair, pair, kept)).parts(number)
            if parts:
                return b"".join(parts)
    return b""


class _Entry:
    """Reads one dictionary: a get as key, a scalar, a pair or a list as value, and so on."""

    def __init__(self, data: bytes, places: list[int], codes: bytes, kept: bytes, pair: bytes) -> None:
        self.data, self.places, self.codes = data, places, codes
        self.kept, self.pair = kept, pair
        inner = rb"(?:\]%s(?:\(%s*e|%sa)?)" % (kept, SCALAR, SCALAR)
        self.list = rb"\]%s(?:\((?:%s|%s)*e|(?:%s|%s)a)?" % (kept, SCALAR, inner, SCALAR, inner)

    def parts(self, number: int) -> list[bytes]:
        """Patterns of the dictionary that begins with opcode `number`; [] where it is not flat, or holds no pair."""
        number = self.after_put(number + 1)
        parts = [rb"\}%s\(" % self.kept]
        if self.codes[number : number + 1] != b"(":
            return []
        number += 1
        while self.codes[number : number + 1] != END:
            if number + 2 >= len(self.codes) or self.codes[number] not in b"hj":
                return []
            parts.append(re.escape(self.data[self.places[number] : self.places[number + 1]]))
            number, value = self.value(number + 1)
            if not value:
                return []
            parts.append(value)
        return [*parts, END] if self.pair in parts else []

    def value(self, number: int) -> tuple[int, bytes]:
        """The opcode after a value, and its pattern."""
        code = self.codes[number]
        if code == 0x5D:
            after = self.after_list(number)
            return after, rb"(?:%s|%s)" % (self.shape(number, after), self.list)
        if code not in ATOMS:
            return number, b""
        after = self.after_put(number + 1)
        if self.codes[after : after + 1] and self.codes[after] in ATOMS:
            second = self.after_put(after + 1)
            if self.codes[second : second + 1] == b"\x86":
                return self.after_put(second + 1), self.pair
        return after, SCALAR

    def shape(self, number: int, end: int) -> bytes:
        """The very opcodes of a list, whatever their numbers; faster than its pattern, where the next one is alike."""
        if end >= len(self.places) or not set(self.codes[number:end]) <= set(b"](hjKMJeaN"):
            return self.list
        pairs = zip(self.places[number:end], self.places[number + 1 : end + 1], strict=True)
        return b"".join(re.escape(self.data[at : at + 1]) + b"." * (after - at - 1) for at, after in pairs)

    def after_put(self, number: int) -> int:
        return number + (self.codes[number : number + 1] in (b"q", b"r", b"\x94"))

    def after_list(self, number: int) -> int:
        """Behind a list of atoms and of lists: up to the next key, or to what is taken for it."""
        depth = 0
        number = self.after_put(number + 1)
        while number < len(self.codes):
            code = self.codes[number]
            if code == 0x28:
                depth += 1
            elif code == 0x65:
                depth -= 1
                if depth == 0 and self.codes[number + 1 : number + 2] != b"a":
                    return number + 1
            elif code == 0x61 and depth == 0 and self.codes[number + 1 : number + 2] != b"a":
                return number + 1
            elif depth == 0 and code in b"hju" and self.codes[number + 1 : number + 2] != b"a":
                return number
            number += 1
        return number
