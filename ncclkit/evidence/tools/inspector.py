"""Files of NCCL's Inspector plugin: one completed collective a line, as JSON; equal calls become one event."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ncclkit.core import secrets, storage
from ncclkit.core.model import Event

HEAD = re.compile(rb'\A\s*\{\s*"header"\s*:\s*\{')
"""How such a file begins."""
MARK = b'"coll_perf"'
LARGEST, MOST_RANKS = 1 << 40, 1 << 20
"""Bytes of a message and ranks that a line can claim."""
LONGEST = 1 << 16
"""Bytes of a line; the plugin writes 500."""


def events(data: bytes, path: str) -> list[Event]:
    """`nccl.calls`: calls of each rank, by collective and message size, with their median time.

    Torn lines are left out.
    """
    times: defaultdict[tuple[int | None, str, int], list[float]] = defaultdict(list)
    first: dict[tuple[int | None, str, int], tuple[int, str]] = {}
    for number, (raw, row) in enumerate(_rows(data), 1):
        if (key := _key(row)) is not None:
            took = row["coll_perf"].get("coll_exec_time_us")
            times[key].append(float(took) if isinstance(took, (int, float)) else 0.0)
            if key not in first:
                first[key] = number, secrets.text(raw[:2000].decode("utf-8", "replace"))
    made = []
    for (rank, op, size), laps in times.items():
        line, text = first[rank, op, size]
        told = {"op": op, "bytes": size, "time_us": statistics.median(laps)}
        made.append(Event("nccl.calls", text, path, line, rank=rank, data=told, count=len(laps)))
    return made


def _rows(data: bytes) -> Iterator[tuple[bytes, Any]]:
    for line in data.splitlines():
        try:
            yield line, storage.parse(line) if 0 < len(line) <= LONGEST else None
        except ValueError:
            yield line, None  # the line that the plugin was writing when the job ended


def _key(row: Any) -> tuple[int | None, str, int] | None:
    """Rank, collective and bytes of a line; None for one that is none."""
    perf, header = (row.get(name) for name in ("coll_perf", "header")) if isinstance(row, dict) else (None, None)
    if not isinstance(perf, dict) or not isinstance(perf.get("coll"), str):
        return None
    size, rank = perf.get("coll_msg_size_bytes"), header.get("rank") if isinstance(header, dict) else None
    if type(size) is not int or not 0 <= size < LARGEST:
        return None
    return (rank if type(rank) is int and 0 <= rank < MOST_RANKS else None), perf["coll"][:60], size
