"""Pickles of strangers: plain values come out, nothing in them runs, memory stays in proportion to the file.

Flight Recorder dumps are pickles of dicts, lists, tuples, strings and numbers.  Where `opcodes` is sure that a file
holds nothing else, Python's C unpickler reads it, with its two doors to code locked besides; every other file goes
through a reader of our own, which knows no globals and says in words why it refuses one.
"""

from __future__ import annotations

import gc
import io
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ncclkit.evidence.flight import opcodes

SIZE = 256 << 20
"""Largest pickle in bytes."""
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
    if opcodes.is_plain(data):
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
    """Python's unpickler without a way to code; what `opcodes` lets pass never asks for one."""

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
    raise Refused("a dictionary key that is no text or common number")
