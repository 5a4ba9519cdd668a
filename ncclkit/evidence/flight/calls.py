"""The calls of one rank, column by column: what thousands of dumps can hold in memory together (26 bytes a call)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclkit.evidence.grammars.grammar import Data

GroupKey = tuple[str, str]
"""(name, description) of a process group."""
Shapes = tuple[tuple[int, ...], ...]


class CallSizes(NamedTuple):
    """The tensors of one call."""

    total: int | None
    """Elements of all of them; None where there is no tensor, or the dump does not record it."""
    shapes: Shapes


class Kind(NamedTuple):
    """What many calls have in common."""

    library: str
    op: str
    """Without the peers of a send or receive."""
    inputs: CallSizes
    outputs: CallSizes
    dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    src: int | None = None
    """Of a send or receive, as rank of the group; None also for a receive from any source."""
    dst: int | None = None

    @property
    def closes(self) -> bool:
        """True for the record that ends a coalesced batch and holds the state of all its members."""
        return self.op.endswith("coalesced")


class Detail(NamedTuple):
    """What is kept of few calls."""

    frames: list[Data]
    """Innermost first."""
    sends: tuple[int, ...]
    """Elements for each peer, where the call lists them one by one."""
    receives: tuple[int, ...]


@dataclass(slots=True)
class Calls:
    """One rank's calls in one process group, in order of their sequence numbers."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("I"))
    """Index of `Dump.kinds`."""
    created: array[int] = field(default_factory=lambda: array("q"))
    """Nanoseconds since the epoch, 0 where the dump does not record it."""
    status: bytearray = field(default_factory=bytearray)
    """Index of `Dump.states`."""
    sites: array[int] = field(default_factory=lambda: array("I"))
    """Index of `Dump.sites`: the line of the program that called."""
    entries: array[int] = field(default_factory=lambda: array("I"))
    """Place in the dump, while it is read."""
    open: bytes = b""
    """1 for a call that the rank still waits for, as far as the dump shows."""
    waiting: int | None = None
    """Index of the first call that the rank still waits for, None where it waits for none."""
    details: dict[int, Detail] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seqs)

    def at(self, seq: int) -> int | None:
        """Index of the first call `seq`."""
        place = bisect_left(self.seqs, seq)
        return place if place < len(self.seqs) and self.seqs[place] == seq else None


def sort(calls: Calls) -> None:
    """Bring the columns in order of sequence numbers, where the dump is not."""
    seqs = calls.seqs
    order = sorted(range(len(seqs)), key=seqs.__getitem__)
    if order != list(range(len(seqs))):
        for name in ("seqs", "kinds", "created", "sites", "entries"):
            column = getattr(calls, name)
            setattr(calls, name, array(column.typecode, [column[place] for place in order]))
        calls.status = bytearray(calls.status[place] for place in order)


def mark_open(calls: Calls, kinds: list[Kind], states: list[tuple[str, bool]], pushes: bool) -> None:
    """Fill `open`; members of a coalesced batch have no state of their own."""
    library = kinds[calls.kinds[0]].library
    table = bytes(_is_open(library, *states[n], pushes) if n < len(states) else 0 for n in range(256))
    marks = bytearray(calls.status.translate(table))
    closing = {number for number, kind in enumerate(kinds) if kind.closes}
    if not closing.isdisjoint(calls.kinds):
        for place, number in enumerate(calls.kinds):
            member = place - 1
            while number in closing and member >= 0 and calls.seqs[member] == calls.seqs[place]:
                marks[member], member = marks[place], member - 1
    calls.open = bytes(marks)
    # a call behind which another one finished has finished too, but for gloo, which works on several at once
    place = marks.find(1) if library == "gloo" else marks.rfind(0) + 1
    calls.waiting = place if 0 <= place < len(marks) else None


def _is_open(library: str, state: str, retired: bool, pushes: bool) -> bool:
    """gloo never leaves ``scheduled``, nccl2 only if it reports completion: there `retired` says so, else the state.

    An aborted NCCL kernel counts as completed, though the watchdog never retired its call: recorded on 4 x H200 with
    torch 2.11, where dumps of a receive without a sender and of two groups in crossed order say so.
    """
    if library == "gloo" or (library not in ("nccl", "") and not pushes):
        return state != "completed" and not retired
    return state != "completed" or not retired
