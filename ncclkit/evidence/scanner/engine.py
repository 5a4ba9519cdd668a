"""Which lines are shown to which rules: those that hold an anchor of a rule.

Logs say the same with other numbers again and again, so the answer is kept by the *shape* of a line, in which all
digits (and the letters of hexadecimal numbers) are one.  A line of a known shape costs one translation and one look
into a dictionary.  Where `hyperscan` is installed it finds the lines with an anchor at once, and no other line is
looked at: the answer is the same, as it only skips lines that hold no anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import local
from typing import Any

from ncclkit.evidence.grammars import (
    c10d,
    gloo,
    kernel,
    nccl,
    network,
    printed,
    progress,
    python,
    refusals,
    store,
    system,
    torchrun,
    unknown_errors,
)  # fmt: skip
from ncclkit.evidence.grammars.grammar import Rule

LONG = 4096
"""Longest line in bytes that is read whole."""
SHAPES, SHORT = 1 << 16, 600
"""How many shapes are kept, and how long they may be in bytes."""
MANY_PLACES = 2000
"""With more places than this in one block it is cheaper to look at every line."""
FEW = 256 << 10
"""Bytes below which loading hyperscan does not pay."""

GRAMMARS = (c10d, python, gloo, store, torchrun, system, refusals, kernel, network, progress, printed)
"""The grammars of all lines but those of NCCL's own log, of Python and of stacks."""
RULES: tuple[Rule, ...] = (*nccl.OTHER, *(rule for grammar in GRAMMARS for rule in grammar.RULES))
CODE = (*python.GATE, b"Thread ", *unknown_errors.GATE)
"""What a line of Python's, of a stack's or of an unknown error holds, besides gdb's ``#0`` at its start."""
ANCHORS = tuple(sorted({rule.anchor for rule in (*nccl.INFO, *RULES)} | set(CODE)))
GDB = b"#0 "
LITERALS = (*ANCHORS, GDB, *refusals.PLAIN, *refusals.ACCENTED)

FOLD = bytes.maketrans(b"123456789abcdef", b"0" * 15)


@dataclass(frozen=True, slots=True)
class Choice:
    """The rules that may find something in a line."""

    rules: tuple[Rule, ...]
    code: bool
    """True when the line may begin a traceback or stack, name an exception, or call itself an error."""
    literal: bool = False
    """True when one of the rules asks for certain digits."""
    flood: str = ""
    """The kind, where such lines come in floods and no other rule can have a say (see `deduplication`)."""
    foreign: bool = False
    """True when the line may be one to be read in English; only then its rules are known."""

    def within(self, raw: bytes) -> Choice:
        """Without those whose anchor is not really there, as shapes of different lines may be one."""
        rules = tuple([rule for rule in self.rules if rule.anchor in raw])
        return Choice(rules, self.code and (any(mark in raw for mark in CODE) or raw.startswith(GDB)))

    def middle(self, raw: bytes, low: int, high: int) -> Choice:
        """Those whose anchor begins in raw[low:high]."""

        def begins(anchor: bytes) -> bool:
            return raw.find(anchor, low, high + len(anchor) - 1) >= 0

        code = any(map(begins, CODE)) or (low == 0 and raw.startswith(GDB))
        return Choice(tuple(rule for rule in self.rules if begins(rule.anchor)), self.code and code)


class Shapes(dict[bytes, "Choice | None"]):
    """Shape of a line → what may be found in such lines; None: nothing."""

    def __missing__(self, shape: bytes) -> Choice | None:
        found = choose(shape)
        if len(shape) <= SHORT:
            if len(self) >= SHAPES:
                self.clear()
            self[shape] = found
        return found


def choose(shape: bytes) -> Choice | None:
    """The rules whose anchor stands in a shape."""
    pairs = _INFO if b"NCCL INFO" in shape else _RULES
    rules = tuple(rule for anchor, rule in pairs if anchor in shape)
    gdb = shape.startswith(GDB)
    code = gdb or any(mark in shape for mark in _CODE)
    literal = gdb or any(rule.literal for rule in rules)
    kinds = [rule.kind for rule in rules] if not code and not literal else []
    flood = "nccl.channel" if "nccl.channel" in kinds else "nccl.op" if kinds == ["nccl.op"] else ""
    foreign = any(said in shape for said in _PLAIN) or not shape.isascii() and any(said in shape for said in _ACCENTED)
    return Choice(rules, code, literal or foreign, flood, foreign) if rules or code or foreign else None


_INFO, _RULES = ([(rule.anchor.translate(FOLD), rule) for rule in rules] for rules in (nccl.INFO, RULES))
_CODE, _PLAIN, _ACCENTED = (
    tuple(mark.translate(FOLD) for mark in marks) for marks in (CODE, refusals.PLAIN, refusals.ACCENTED)
)
KNOWN = Shapes()

Scan = Callable[[memoryview, Callable[..., bool]], None]


class _Own(local):
    """What a thread compiled; hyperscan's memory for a search must not be shared."""

    def __init__(self) -> None:
        self.scans: dict[tuple[bytes, ...], Scan | None] = {}


_OWN = _Own()


def places(data: bytes, limit: int) -> Sequence[int] | None:
    """Positions in the first `limit` bytes, at least one in each line that holds an anchor.

    None: too many, or no hyperscan; every line is to be looked at.
    """
    if limit < FEW or (scan := _scanner(LITERALS)) is None:
        return None
    found: list[int] = []

    def take(number: int, start: int, end: int, flags: int, context: Any) -> bool:
        found.append(end - 1)
        return len(found) > MANY_PLACES

    scan(memoryview(data)[:limit], take)
    return found if len(found) <= MANY_PLACES else None


def holds(data: bytes, limit: int, needles: tuple[bytes, ...]) -> bool:
    """True when one of a few literals stands in the first `limit` bytes."""
    if limit < FEW or (scan := _scanner(needles)) is None:
        return any(data.find(needle, 0, limit) >= 0 for needle in needles)
    found: list[int] = []

    def take(number: int, start: int, end: int, flags: int, context: Any) -> bool:
        found.append(end)
        return True

    scan(memoryview(data)[:limit], take)
    return bool(found)


def _scanner(literals: tuple[bytes, ...]) -> Scan | None:
    """hyperscan's search for literals, one per thread; None where it is not installed or cannot run."""
    scans = _OWN.scans
    if literals not in scans:
        scans[literals] = _compiled(literals)
    return scans[literals]


def _compiled(literals: tuple[bytes, ...]) -> Scan | None:
    try:
        import hyperscan
    except ImportError:
        return None
    database = hyperscan.Database()
    try:
        database.compile(expressions=list(literals), ids=list(range(len(literals))), literal=True)
    except hyperscan.error:
        return None

    def scan(data: memoryview, take: Callable[..., bool]) -> None:
        try:
            database.scan(data, take)  # type: ignore[type-var, unused-ignore]
        except hyperscan.ScanTerminated:
            return

    return scan
