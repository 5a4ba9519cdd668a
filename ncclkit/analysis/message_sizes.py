"""The messages that a job sends.

It counts the calls for each collective and size, by whatever recorded them.  Sizes are those of
nccl-tests: the larger of what a rank sends and receives.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from ncclkit.analysis.alignment import DTYPES
from ncclkit.core.case import Case
from ncclkit.core.kinds import FlightDump, NcclCalls, NcclOp
from ncclkit.core.model import Event, NcclkitError

Calls = Mapping[tuple[str, int], int]
"""(collective, bytes of the message) → how many calls of a job."""
OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
}
"""Letters of a collective's name → its name here.

What torch adds to names (`_base`, `_coalesced`) is left out.
"""
ITEMS = {"8": 1, "16": 2, "32": 4, "64": 8}
LARGEST_HEADER = 64 << 20
DDP_FIRST, DDP_CAP = 1 << 20, 25 << 20
"""Bytes of the first bucket of gradients under DDP, and of the others."""
CALL_US, BYTES_PER_US = 15.0, 100e3
"""What a call is taken to cost where nothing was measured.

Only which sizes matter most follows from it.
"""


def message_sizes(case: Case) -> dict[tuple[str, int], int]:
    """(collective, bytes) → calls of the rank that made most of them.

    They are from NCCL's own lines where there are any; otherwise from Inspector files, or from
    dumps of the Flight Recorder, which hold the last calls only.
    """
    for kind, read in (
        ("nccl.calls", _inspected),
        ("nccl.op", _logged),
        ("flight.dump", _recorded),
    ):
        ranks: defaultdict[object, Counter[tuple[str, int]]] = defaultdict(Counter)
        for event in case.of(kind):
            for op, size, count in read(event):
                name = _name(op)
                if name:
                    ranks[event.rank if event.rank is not None else event.pid][name, size] += count
        found = [counts for counts in ranks.values() if counts]
        if found:
            largest_counts = {}
            for key in sorted(set().union(*found)):
                largest_counts[key] = max(counts[key] for counts in found)
            return largest_counts
    return {}


def _name(op: str) -> str:
    letters = "".join(filter(str.isalpha, op.lower().rpartition(":")[2]))
    for extra in ("base", "coalesced", "single", "tensor", "into"):
        letters = letters.removesuffix(extra)
    return OPS.get(letters, "")


def _inspected(event: Event[NcclCalls]) -> Iterable[tuple[str, int, int]]:
    data = event.data
    if data.bytes is None:
        return []
    return [(str(data.op), data.bytes, event.count)]


def _logged(event: Event[NcclOp]) -> Iterable[tuple[str, int, int]]:
    """A COLL line: its count is that of one rank's part for two collectives."""
    data = event.data
    if data.dtype is None or data.count is None:
        return []  # a torn line, with a number that cannot be meant
    number = int(data.dtype)
    digits = None
    if 0 <= number < len(DTYPES):
        digits = re.search("[0-9]+", DTYPES[number])
    item = 1
    if digits:
        item = ITEMS.get(digits[0], 1)
    parts = 1
    if _name(str(data.op)) in ("all_gather", "reduce_scatter", "all_to_all"):
        parts = int(data.nranks or 1)
    return [(str(data.op), int(data.count) * item * parts, event.count)]


def _recorded(event: Event[FlightDump]) -> Iterable[tuple[str, int, int]]:
    groups = event.data.groups
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for row in group.get("sizes") or ():
            if isinstance(row, list) and len(row) == 3:
                yield str(row[0]), int(row[1]), int(row[2])


def heaviest(calls: Calls, most: int) -> dict[str, list[int]]:
    """Collective → the message sizes in which the job spends most time.

    There are at most so many in all.  Sizes within a factor of two are one, the most frequent of
    them.
    """
    bins: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    cost: defaultdict[tuple[str, int], float] = defaultdict(float)
    for (op, size), count in calls.items():
        # an empty call is a call, too, and 0 has no logarithm
        power = int(math.log2(max(size, 1)))
        place = op, power
        bins[place][size] += count
        cost[place] += count * (CALL_US + size / BYTES_PER_US)
    costliest = sorted(cost, key=lambda place: cost[place], reverse=True)
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place in costliest[:most]:
        op, _ = place
        most_frequent, _ = bins[place].most_common(1)[0]
        found[op].append(most_frequent)
    return {op: sorted(sizes) for op, sizes in found.items()}


def tensor_spans(path: Path) -> tuple[list[tuple[int, int]], int]:
    """Where each tensor of a safetensors file begins and ends, and its header ends.

    Tensors are placed in bytes behind the header.  The file says so at its start.  Raises OSError,
    or ValueError for a file that is none.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # a file of another kind may claim any length
        header = json.loads(file.read(min(length, LARGEST_HEADER)))
    try:
        spans = []
        # `__metadata__` is no tensor
        for a, b in (row["data_offsets"] for name, row in header.items() if name[:2] != "__"):
            spans.append((int(a), int(b)))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its header has another form: {type(error).__name__}: {error}") from None
    # 8 bytes hold the length of the header
    return spans, 8 + length


def buckets_of(model: Path) -> dict[tuple[str, int], int]:
    """The all_reduce calls of one step of DDP, with its default buckets.

    They are on the parameters of a safetensors file.  Raises NcclkitError for a file that is none.
    """
    try:
        spans, _ = tensor_spans(model)
        sizes = [end - start for start, end in spans]
    except (OSError, ValueError) as error:
        raise NcclkitError(
            f"{model} is not a safetensors file ({type(error).__name__}: {error})."
        ) from None
    calls: Counter[tuple[str, int]] = Counter()
    held, cap = 0, DDP_FIRST
    for size in reversed(sizes):  # gradients become ready in the reverse order of the layers
        held += size
        if held >= cap:
            calls["all_reduce", held] += 1
            held, cap = 0, DDP_CAP
    if held:
        calls["all_reduce", held] += 1
    return dict(calls)
