"""Which collective each rank was in, and where the ranks disagree."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

from ncclkit.analysis.once import once
from ncclkit.analysis.outcome import unread_lines
from ncclkit.analysis.rank_states import rank_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import Collective, FlightMismatch, NcclOp
from ncclkit.core.model import Event

SAME_SIZE = frozenset(
    {
        "ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "ALLGATHER", "_REDUCE_SCATTER_BASE",
        "ALLREDUCE_COALESCED",
    }
)  # fmt: skip
"""Collectives to which every rank must bring the same number of elements.

They are named as torch's watchdog names them.
"""
POINT_TO_POINT = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED"})
"""Calls whose two sides differ by nature; they have no place in the order of the collectives."""
PAIRED = POINT_TO_POINT - {"COALESCED"}
UNSIGNED = 1 << 62
"""Numbers from here on are torch's -1, printed without a sign: it does not know them."""

def counted(number: int | None) -> int:
    """A count as torch prints it; -1, with or without its sign, means none yet."""
    if number is not None and 0 <= number < UNSIGNED:
        return number
    return 0


def grouped(events: Iterable[Event]) -> list[tuple[Event, str, str]]:
    """The watchdog's numbered lines, each with the name and the description of its group.

    Up to torch 2.13 the timeout itself names no group: it belongs to the one where the same rank,
    or else the whole job, has that number, or to the only one that is named at all.  Both are empty
    where nothing shows it.
    """
    lines = []
    for event in events:
        if event.kind == "c10d.status":
            lines.append(event)
        elif event.kind == "c10d.timeout" and event.data.seq is not None:
            lines.append(event)
    own: dict[tuple[int | None, int | None], set[str]] = defaultdict(set)
    descs: dict[str, str] = {}
    for event in lines:
        if event.data.pg or event.data.desc:
            name = str(event.data.pg)
            descs[name] = descs.get(name) or str(event.data.desc or "")
            if event.kind == "c10d.timeout":
                waits = None
            else:
                waits = counted(event.data.completed) + 1
            for rank, seq in product((event.rank, None), {event.data.seq, waits} - {None}):
                own[rank, seq].add(name)
    pairs = set()
    for event in lines:
        if op_of(event).upper() in PAIRED:
            pairs.add((event.rank, event.data.seq))
    apart = set()
    for event in lines:
        if event.kind == "c10d.status" and (event.rank, event.data.seq) in pairs:
            apart.add((event.rank, event.data.pg))
    every = set(descs)
    found = []
    for event in lines:
        seq = event.data.seq
        if event.kind == "c10d.status" and (event.rank, event.data.pg) in apart:
            continue  # it counts sends and receives, which have numbers of their own
        names = own.get((event.rank, seq)) or own.get((None, seq)) or every
        name = ""
        if event.data.pg or event.data.desc:
            name = str(event.data.pg)
        if not name and len(names) == 1:
            name = next(iter(names))
        found.append((event, name, descs.get(name, "")))
    return found


def by_call(events: Iterable[Event]) -> dict[tuple[str, int], list[Event]]:
    """(group, sequence number) → the watchdog's timeouts of that collective, one per rank."""
    calls: dict[tuple[str, int], dict[int, Event]] = defaultdict(dict)
    for event, name, _ in grouped(events):
        if event.kind == "c10d.timeout":
            calls[name, event.data.seq].setdefault(rank_of(event), event)
    return {call: list(ranks.values()) for call, ranks in calls.items()}


class DifferingTimeouts(NamedTuple):
    """A collective for whose timeout the watchdogs name different calls.

    They name different operations, or else different sizes.
    """

    group: str
    seq: int
    what: str
    """``op`` or ``size``, as in `alignment.Disagreement`."""
    sides: dict[Any, list[Event]]
    """Operation, or number of elements → the timeouts that name it."""

    @property
    def op(self) -> str:
        """The operation that all of them name; one of several where they differ in it."""
        return op_of(next(iter(self.sides.values()))[0])

    @property
    def values(self) -> dict[int, Any]:
        """Rank → what its timeout names; without timeouts that name no rank."""
        named = {}
        for value, lines in self.sides.items():
            for line in lines:
                named[rank_of(line)] = value
        value_of_rank = {}
        for rank, value in named.items():
            if rank >= 0:
                value_of_rank[rank] = value
        return value_of_rank

    @property
    def of_different_calls(self) -> bool:
        """Whether the sizes are of different calls of a program, as `unlike_calls` says."""
        return self.what == "size" and unlike_calls(self.op, self.sides)


def differing_timeouts(events: Iterable[Event]) -> list[DifferingTimeouts]:
    """The collectives whose timeouts name different operations or sizes."""
    found = []
    for (group, seq), lines in by_call(events).items():
        ops = disagreeing(lines, op_of)
        if ops:
            sizes = {}
        else:
            sizes = disagreeing([line for line in lines if op_of(line) in SAME_SIZE], size_of)
        if sizes or not set(ops) <= POINT_TO_POINT:
            found.append(DifferingTimeouts(group, seq, "size" if sizes else "op", sizes or ops))
    return found


@once
def differing_timeouts_of(case: Case) -> list[DifferingTimeouts]:
    """`differing_timeouts` of the events of a case."""
    return differing_timeouts(case.events)


MAX_SEQ_GAP = 64
"""Numbers between two calls that cannot be of one group.

Nobody gets through a call that others have not begun.
"""


def of_several_groups(events: Iterable[Event]) -> bool:
    """Whether lines that name no group must be of several groups.

    They must, where their sequence numbers are that far apart.
    """
    numbers = []
    for event in events:
        if isinstance(event.data.seq, int):
            numbers.append(event.data.seq)
    seqs = sorted(numbers)
    return any(after - before > MAX_SEQ_GAP for before, after in pairwise(seqs))


def op_of(event: Event) -> str:
    """The collective's name; empty where the line has none."""
    if isinstance(event.data, (Collective, NcclOp)):
        return str(event.data.op or "")
    return ""


def size_of(event: Event) -> int | None:
    """The number of elements that this rank brought, where it is known."""
    size = event.data.numel_in
    if isinstance(size, int) and size < UNSIGNED:
        return size
    return None


def disagreeing(events: Iterable[Event], what: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    """value → events, where the events disagree about `what`; empty where they agree."""
    values: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        value = what(event)
        if value not in (None, ""):
            values[value].append(event)
    if len(values) > 1:
        return dict(values)
    return {}


def only_point_to_point(waits: Iterable[Event]) -> bool:
    """True where everybody who waits does so in a send or a receive.

    Then no collective is short of a rank.
    """
    ops = {op_of(event) for event in waits}
    return bool(ops) and ops <= POINT_TO_POINT


def sides(
    mismatch: Event[FlightMismatch],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(those that differ, those that are right) of dumps that disagree.

    Each is {value, ranks}.  Without a majority nobody is right: dumps of the others may be missing.
    A side that came there under a condition on the rank has left the common path.
    """
    most = mismatch.data.majority or {}
    odd: list[Mapping[str, Any]] = list(mismatch.data.odd or ())
    tie = (
        bool(odd)
        and not mismatch.data.branch
        and len(odd[0].get("ranks", ())) >= len(most.get("ranks", ()))
    )
    if tie:
        return ([*odd, most], [])
    return odd, [most]


def unlike_calls(op: str, sizes: Iterable[int]) -> bool:
    """True where sizes of one place are those of different calls.

    Then they are not those of one call with another tensor.  A flag beside a bucket of gradients is
    not an odd batch; gradients and parameters, which all ranks hold in the same sizes, differ only
    where ranks are at another bucket or another layer.  A broadcast carries rank-local state.
    """
    low = min(sizes)
    high = max(sizes)
    if op.endswith("_BASE"):
        far = FAR_SHARDS
    else:
        far = FAR
    return op != "BROADCAST" and (high >= far * max(low, 1) or low >= PARAMETERS)


FAR, FAR_SHARDS, PARAMETERS = 64, 16, 1 << 20
"""Bounds from which on `unlike_calls` takes sizes for those of different calls.

They are times as large, the same of calls that mostly carry shards of parameters, and elements.
"""


def elements(value: Any) -> int | None:
    """Elements of a call by its shapes; None where none are known.

    They are a list or a text: 16 for ``[[4, 2], [8]]``.
    """
    if isinstance(value, str):
        value = [re.findall(r"\d{1,19}", shape) for shape in re.findall(r"\[([\d, ]*)\]", value)]
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(shape, list) for shape in value)
    ):
        return None
    sizes = []
    for shape in value:
        sizes.append(math.prod(int(size) for size in shape))
    return sum(sizes)


def other_calls(mismatch: Event) -> bool:
    """Whether the sizes at one place of the sequence are of different calls.

    They are such as a scalar and a bucket of gradients, and never those that one line of the
    program made.
    """
    data = mismatch.data
    if mismatch.kind == "c10d.mismatch":
        op = str(data.a_op)
        values = re.findall(r"TensorShape=(\[[\d, ]*\])", mismatch.text)
    else:
        op = str(data.op)
        values = [side["value"] for side in (data.majority, *data.odd)]
    sizes = [size for value in values if (size := elements(value)) is not None]
    sites = ([] if mismatch.kind == "c10d.mismatch" else data.sites) or [""]
    # a line of a library is not one of the program
    one_line = len(set(sites)) == 1 and sites[0] and "-packages/" not in sites[0]
    if one_line or one_dimension_apart(values):
        return False
    return len(sizes) > 1 and unlike_calls(op.upper(), sizes)


def one_dimension_apart(values: Iterable[Any]) -> bool:
    """Whether these shapes differ in one dimension, and there by less than a factor of two.

    That is a batch or a length of another size, however large the tensors are.  A layer's weights
    may differ in one dimension from another layer's, too, but by more.
    """
    shapes = [_only_shape(value) for value in values]
    first = shapes[0] if shapes else ()
    lengths = {len(shape) for shape in shapes}
    if lengths != {len(first)} or len(first) < 2:
        return False
    apart = []
    for sizes in zip(*shapes, strict=True):
        if len(set(sizes)) > 1:
            apart.append(sizes)
    return len(apart) == 1 and max(apart[0]) < 2 * min(apart[0])


def _only_shape(value: Any) -> tuple[int, ...]:
    """The shape of a call with one tensor; empty for other calls."""
    found = re.findall(r"\[([\d, ]*)\]", str(value))
    if len(found) != 1:
        return ()
    return tuple(int(size) for size in re.findall(r"\d{1,18}", found[0]))


@dataclass(frozen=True, slots=True)
class OwnCall:
    """The call that a rank says it makes, where torch's check found that calls differ."""

    rank: int
    op: str
    shapes: str
    line: Event


FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running inconsistent collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=\d{1,19},? ?)?OpType=(\w{1,40}),? ?(?:TensorShape=(\[[\d, ]*\]))?"
)
"""How torch 1.10 to 1.13 say it: each rank names its own call alone."""


def own_calls(case: Case) -> list[OwnCall]:
    """The calls that ranks name as theirs where torch's check found that they differ."""
    calls: dict[int, OwnCall] = {}
    for event in [*case.of("python.exception", "log.error"), *unread_lines(case)]:
        said = FINGERPRINT.search(event.text)
        if said:
            rank = int(said[1])
            calls.setdefault(rank, OwnCall(rank, said[2], said[3] or "", event))
    return sorted(calls.values(), key=lambda call: call.rank)


def are_unlike(calls: list[OwnCall]) -> bool:
    """Whether ranks name different operations, or sizes of different calls."""
    if len({call.op for call in calls}) > 1:
        return True
    shapes = [call.shapes for call in calls]
    sizes = [size for shape in shapes if (size := elements(shape)) is not None]
    if one_dimension_apart(shapes):
        return False
    return len(sizes) > 1 and unlike_calls(calls[0].op, sizes)


def ranks_of(groups: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """All ranks of such groups."""
    ranks = []
    for group in groups:
        ranks.extend(group.get("ranks", ()))
    return tuple(sorted(ranks))


def minority(values: dict[Any, list[Event]]) -> tuple[int, ...]:
    """The ranks in the minority; all of them where there is none."""
    groups = sorted(values.values(), key=len)
    if len(groups[0]) < len(groups[-1]):
        few = groups[:-1]
    else:
        few = groups
    return tuple(sorted(rank for group in few for e in group if (rank := rank_of(e)) >= 0))


def said_undecided(mismatch: Event[FlightMismatch]) -> str:
    """That no side is known to be wrong."""
    known = "these dumps do"
    if mismatch.data.rehearsed:
        known = "the rehearsal does"
    return f"Without a majority {known} not tell which of them is wrong."


def said_if_completed(mismatch: Event[FlightMismatch]) -> str:
    """A sentence on calls that differ and did not hang; empty where ranks wait in them."""
    if mismatch.data.completed:
        return " The ranks have completed these calls, so the job goes on with wrong values."
    return ""
