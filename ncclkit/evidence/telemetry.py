"""The telemetry of a job: how each rank's processes got on with the cores, and how busy each rank was at its end.

Of `scheduling` samples hold totals, so the last of each host tells all; of `utilization` rates, of which the last
`WINDOW` seconds count: in a hang they tell who works and who waits (`ncclkit.agent.monitor.telemetry`).
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, BinaryIO

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import clip

FIELDS = ("processes", "cores", "ran", "waited", "preempted")
LONGEST = 1 << 20
"""Bytes of a sample at most: a host has some hundred ranks at most."""
WINDOW = 10.0
"""Seconds at the end of a strip that tell what a rank did when it was last seen."""
RATES = ("cpu", "main", "sent", "received", "gpu_busy")


def read(stream: BinaryIO, path: str) -> tuple[list[Event], int]:
    """One event of both kinds ``telemetry.`` for each rank of which samples tell, and the number of lines."""
    last: dict[tuple[str, int | None], Event] = {}
    loads: dict[tuple[str, int], deque[_Load]] = defaultdict(lambda: deque(maxlen=64))
    number = 0
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
        sample = _parsed(line)
        last |= {(event.host, event.rank): event for event in _crowds(sample, path, number)}
        for rank, row in _ranks(sample, "utilization"):
            if isinstance(row, dict) and _counts(sample.get("t")):
                loads[str(sample.get("host") or ""), rank].append((number, float(sample["t"]), _known(row, sample)))
    told = [event for (host, rank), rows in loads.items() for event in _load(host, rank, rows, path)]
    return [*last.values(), *told], number


_Load = tuple[int, float, Mapping[str, Any]]
"""Line, seconds since the epoch, what is known of one rank then."""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return sample if isinstance(sample, dict) else {}


def _ranks(sample: Mapping[str, Any], name: str) -> Iterator[tuple[int, Any]]:
    rows = sample.get(name)
    for rank, row in rows.items() if isinstance(rows, dict) else ():
        if rank.isdecimal() and len(rank) < 8:
            yield int(rank), row


def _crowds(sample: Mapping[str, Any], path: str, number: int) -> Iterator[Event]:
    for rank, row in _ranks(sample, "scheduling"):
        if isinstance(row, list) and len(row) == len(FIELDS) and all(map(_counts, row)):
            data = dict(zip(FIELDS, row, strict=True))
            time = sample["t"] if _counts(sample.get("t")) else None
            host = str(sample.get("host") or "")
            yield Event(
                "telemetry.scheduling", clip(_crowd(rank, data)), path, number, time, host, rank=rank, data=data
            )


def _crowd(rank: int, data: dict[str, Any]) -> str:
    who = f"rank {rank}: at most {data['processes']} processes at once, usable cores {data['cores']}"
    return (
        f"{who}, ran {data['ran']:.1f} s, waited {data['waited']:.1f} s for a core, preempted {data['preempted']} times"
    )


def _known(row: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    """What one sample says of a rank, its GPU's load included."""
    known: dict[str, Any] = {name: float(row[name]) for name in RATES if _counts(row.get(name))}
    state, gpu, gpus = row.get("state"), row.get("gpu"), sample.get("gpus")
    if isinstance(state, str) and len(state) == 1 and state.isalpha():
        known["state"] = state
    if isinstance(gpu, int) and isinstance(gpus, list) and 0 <= gpu < len(gpus):
        known["gpu"] = gpu
        if isinstance(gpus[gpu], list) and len(gpus[gpu]) > 1 and _counts(gpus[gpu][1]):
            known["gpu_busy"] = float(gpus[gpu][1])
    return known


def _load(host: str, rank: int, rows: Sequence[_Load], path: str) -> Iterator[Event]:
    """What a rank did in the last seconds of its strip; nothing where no rate is known."""
    number, end, _ = rows[-1]
    late = [row for _, moment, row in rows if end - WINDOW <= moment <= end]
    seen = {name: [row[name] for row in late if name in row] for name in RATES}
    if not seen["cpu"]:
        return
    rates = {name: round(fmean(values), 1) if values else None for name, values in seen.items()}
    if rates["main"] is not None:
        rates["main"] = min(100.0, rates["main"])  # the kernel tells a wait for a core when it is over
    seconds = round(end - min(moment for _, moment, _ in rows if end - WINDOW <= moment <= end), 1)
    states = "".join(row.get("state", "") for row in late)
    gpu = next((row["gpu"] for row in reversed(late) if "gpu" in row), None)
    data = {"seconds": seconds, "states": states, "gpu": gpu, **rates}
    yield Event("telemetry.utilization", clip(_say(rank, data)), path, number, end, host, rank=rank, data=data)


def _say(rank: int, data: Mapping[str, Any]) -> str:
    said = f"rank {rank}: {data['cpu']:.0f} % of a core over {data['seconds']:.0f} s"
    said += f", its main thread at work {data['main'] or 0:.0f} % of that time (state {data['states']})"
    if data["sent"] is not None:
        said += f", sent {data['sent'] / 1e6:.2f} and received {(data['received'] or 0) / 1e6:.2f} MB/s over TCP"
    return said + (f", GPU {data['gpu']} busy {data['gpu_busy']:.0f} %" if data["gpu_busy"] is not None else "")


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
