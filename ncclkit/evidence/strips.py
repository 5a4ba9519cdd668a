"""The strip of a run of ours: how each rank's processes got on with the cores that they may use.

Samples hold totals since the run began (`ncclkit.agent.crowd`), so the last of each host tells all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from ncclkit.evidence.grammars.grammar import clip
from ncclkit.model import Event

FIELDS = ("processes", "cores", "ran", "waited", "preempted")
LONGEST = 1 << 20
"""Bytes of a sample at most: a host has some hundred ranks at most."""


def read(stream: BinaryIO, path: str) -> tuple[list[Event], int]:
    """One ``watch.cpu`` event for each rank of which a sample tells, and the number of lines."""
    last: dict[tuple[str, int | None], Event] = {}
    number = 0
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
        last |= {(event.host, event.rank): event for event in _sample(line, path, number)}
    return list(last.values()), number


def _sample(line: bytes, path: str, number: int) -> Iterator[Event]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return
    cores = sample.get("cores") if isinstance(sample, dict) else None
    for rank, row in cores.items() if isinstance(cores, dict) else ():
        if (
            rank.isdecimal()
            and len(rank) < 8
            and isinstance(row, list)
            and len(row) == len(FIELDS)
            and all(map(_counts, row))
        ):
            data = dict(zip(FIELDS, row, strict=True))
            time = sample["t"] if _counts(sample.get("t")) else None
            yield Event("watch.cpu", clip(_say(int(rank), data)), path, number, time, str(sample.get("host") or ""),
                        rank=int(rank), data=data)  # fmt: skip


def _say(rank: int, data: dict[str, Any]) -> str:
    who = f"rank {rank}: at most {data['processes']} processes at once, usable cores {data['cores']}"
    return (
        f"{who}, ran {data['ran']:.1f} s, waited {data['waited']:.1f} s for a core, preempted {data['preempted']} times"
    )


def _counts(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
