"""Pickles of strangers: plain values come out, nothing in them runs, memory stays in proportion to the file.

Flight Recorder dumps are pickles of dicts, lists, tuples, strings and numbers.  Where `is_plain` is sure that a file
holds nothing else, Python's C unpickler reads it, with its two doors to code locked besides; every other file goes
through a reader of our own, which knows no globals and says in words why it refuses one.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

SAMPLE = 500
"""Opcodes among which a whole entry must be; it has about 80, and 24 more frames at most."""
SCALAR = rb"(?:h.|K.|M..|N|[\x88\x89]|J....|\x8a\x08.{8}|j....|G.{8})"
ATOMS = b"hjKMJNG\x88\x89\x8aX\x8c"
END = b"u"


def entry_pattern(data: bytes, opcodes: Iterator[int], pair: bytes, put: bytes) -> bytes:
    """A pattern of dictionaries like the first flat one, found among the places where these begin; b"" without one.

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
        entry = entry_pattern(
            data, _starts(data, at, len(data), _run(slots >> 16, most=1)), *_pairs(slots >> 16, first)
        )
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


SIZE = 256 << 20
"""Largest pickle in bytes."""
CONTAINERS = 4 << 20
"""Most lists and dictionaries of a document; each takes 56 bytes or more, so all together stay below 512 MB."""
LONG = 16
"""Longest integer in bytes."""
WORD = 1 << 63
"""Integers that are keys lie below this."""


class Refused(ValueError):
    """The pickle holds something else than plain values, or is damaged."""


DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    IndexError,
    struct.error,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    ValueError,
)
"""What readers raise on a damaged pickle."""
_MARK = object()
_PLAIN = {0x4E: None, 0x88: True, 0x89: False}
_EMPTY = {0x7D: dict, 0x5D: list, 0x29: tuple}
_FIXED = {0x4B: ("<B", 1), 0x4D: ("<H", 2), 0x4A: ("<i", 4), 0x47: (">d", 8)}
_STRINGS = {
    0x58: ("<I", 4, True),
    0x8C: ("<B", 1, True),
    0x8D: ("<Q", 8, True),
    0x42: ("<I", 4, False),
    0x43: ("<B", 1, False),
    0x8E: ("<Q", 8, False),
    0x54: ("<I", 4, False),
    0x55: ("<B", 1, False),
}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


def loads(data: bytes) -> Any:
    """The plain value in a pickle of protocol 2 to 5; raises Refused, never runs anything."""
    if len(data) > SIZE:
        raise Refused(f"larger than {SIZE >> 20} MiB")
    if data.count(b"}") + data.count(b"]") > CONTAINERS:  # an opcode of one byte makes one of 64 bytes
        raise Refused(f"holds more than {CONTAINERS >> 20} million lists and dictionaries")
    if is_plain(data):
        try:
            return _Locked(io.BufferedReader(io.BytesIO(data), 1 << 18)).load()
        except DAMAGE:
            return _slowly(data)  # it says what is wrong
    return _slowly(data)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look at a million new values over and over."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _slowly(data: bytes) -> Any:
    try:
        return _Reader(data).run()
    except Refused:
        raise
    except DAMAGE as error:
        raise Refused(f"damaged ({type(error).__name__})") from error


class _Locked(pickle.Unpickler):
    """Python's unpickler without a way to code; what `is_plain` lets pass never asks for one."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise Refused("names code, which plain values do not need; nothing in it was executed")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("refers to an object outside the file; nothing in it was executed")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.nests: set[int] = set()
        """Identities of the tuples that hold tuples."""

    def run(self) -> Any:
        data, stack, memo = self.data, self.stack, self.memo
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x71:  # BINPUT
                memo[data[self.at]] = stack[-1]
                self.at += 1
            elif code == 0x68:  # BINGET
                stack.append(memo[data[self.at]])
                self.at += 1
            elif code in _FIXED:
                form, size = _FIXED[code]
                stack.append(struct.unpack_from(form, data, self.at)[0])
                self.at += size
            elif code in _STRINGS:
                stack.append(self.string(*_STRINGS[code]))
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[self.number()])
            elif code == 0x72:  # LONG_BINPUT
                memo[self.number()] = stack[-1]
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x28:  # MARK
                stack.append(_MARK)
            elif code in _PLAIN:
                stack.append(_PLAIN[code])
            elif code in _EMPTY:
                stack.append(_EMPTY[code]())
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                self.rare(code)

    def number(self) -> int:
        value: int = struct.unpack_from("<I", self.data, self.at)[0]
        self.at += 4
        return value

    def string(self, form: str, size: int, text: bool) -> str | bytes:
        length = struct.unpack_from(form, self.data, self.at)[0]
        start = self.at + size
        self.at = start + length
        if self.at > len(self.data):
            raise Refused("damaged (breaks off)")
        part = self.data[start : self.at]
        return part.decode("utf-8", "replace") if text else part

    def items(self) -> list[Any]:
        """What lies above the last mark, taken off the stack together with the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise Refused("damaged (no mark)")
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found

    def flat(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """The tuple, at most two deep: to hash or to free a chain of them takes the interpreter's own stack."""
        inner = [id(item) for item in value if type(item) is tuple]
        if not self.nests.isdisjoint(inner):
            raise Refused("tuples in tuples in tuples, which no dump holds")
        if inner:
            self.nests.add(id(value))
        return value

    def rare(self, code: int) -> None:
        stack = self.stack
        if code in _TUPLES:
            count = _TUPLES[code]
            part = self.flat(tuple(stack[-count:]))
            if len(part) < count:
                raise Refused("damaged")
            stack[-count:] = [part]
        elif code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _plain(stack[-1], dict)[_key(key)] = value
        elif code == 0x75:  # SETITEMS
            flat = self.items()
            _plain(stack[-1], dict).update(zip(map(_key, flat[::2]), flat[1::2], strict=True))
        elif code == 0x61:  # APPEND
            value = stack.pop()
            _plain(stack[-1], list).append(value)
        elif code == 0x65:  # APPENDS
            found = self.items()
            _plain(stack[-1], list).extend(found)
        elif code == 0x74:  # TUPLE
            stack.append(self.flat(tuple(self.items())))
        elif code == 0x8A:  # LONG1
            size = self.data[self.at]
            if size > LONG:
                raise Refused("an integer of more than 128 bits")
            stack.append(int.from_bytes(self.data[self.at + 1 : self.at + 1 + size], "little", signed=True))
            self.at += 1 + size
        elif code == 0x80:  # PROTO
            self.at += 1
        elif code == 0x95:  # FRAME
            self.at += 8
        else:
            raise Refused(f"holds opcode {chr(code)!r}, which plain values do not need; nothing in it was executed")


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Refused("damaged (wrong container)")
    return value


def _key(value: Any) -> Any:
    """Keys are scalars; integers beyond 64 bits can be made to share one hash."""
    if isinstance(value, (str, float, bytes, type(None))) or (isinstance(value, int) and -WORD <= value < WORD):
        return value
    raise Refused("a dictionary key that is not a text or a common number")
