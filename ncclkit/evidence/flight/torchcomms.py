"""The Flight Recorder of torchcomms, whose dumps look like torch's and number calls otherwise.

It numbers all calls of a process, over all communicators; here each has numbers of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LIBRARY = "torchcomms"
"""What stands before the operations of its calls, whatever its backend: only `retired` tells that
one is over."""
PAIRS = ("send", "recv")
BATCH = "batch_op_issue"
"""Sends and receives together, of which nothing is told but how many they are."""
TORCH_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "gather_single": "gather",
    "all_to_all_v_single": "all_to_all_single",
}
"""Names of operations as torch's own dumps have them."""


def is_recorder(entries: Sequence[Any]) -> bool:
    """Whether a dump's entries are of torchcomms' recorder.

    It calls a group what the program called it, and describes it by its backend.
    """
    return bool(entries) and all(_is_of_backend(entry) for entry in entries)


def _is_of_backend(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    group, name = entry.get("process_group"), entry.get("profiling_name")
    if not isinstance(group, (list, tuple)) or len(group) != 2 or not isinstance(name, str):
        return False
    return bool(group[1]) and name.partition(":")[0] == group[1]


def renumbered(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The recorder's entries with a number of their own in each communicator.

    Sends and receives are left out, as it does not say to whom.  Where older entries were
    overwritten nobody knows the numbers, unless all calls are of one communicator.
    """
    groups = set()
    left_out = []
    for entry in entries:
        group = tuple(entry["process_group"])
        groups.add(group)
        if _op(entry) in (*PAIRS, BATCH):
            left_out.append(entry)
    overwritten = bool(entries[0].get("record_id"))
    if overwritten and (len(groups) > 1 or left_out):
        return
    numbers: Counter[Any] = Counter()
    for entry in entries:
        op = _op(entry)
        if op in (*PAIRS, BATCH):
            continue
        group = tuple(entry["process_group"])
        numbers[group] += 1
        seq = numbers[group]
        if overwritten:
            seq = entry["collective_seq_id"]
        renamed = TORCH_NAMES.get(op, op)
        own = {
            "collective_seq_id": seq,
            "profiling_name": f"{LIBRARY}:{renamed}",
        }
        yield {**entry, **own}


def _op(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).partition(":")[2]
