"""What our own runs leave beside the logs: ``wire.jsonl``, ``status.json``, ``plan.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ncclkit.agent import wire
from ncclkit.evidence.grammars.grammar import clip
from ncclkit.model import Event

SKIPPED = frozenset({"fact", "measure"})
"""Records that are facts and measurements, not events."""


def from_wire(raw: bytes, path: str, number: int) -> Event | None:
    """The `worker.phase` event of one line of ``wire.jsonl``."""
    record = _parsed(raw)
    if record is None or record.get("kind") in SKIPPED:
        return None
    rest = {key: value for key, value in record.items() if key not in ("ncclkit", "kind", "t", "rank", "host", "pid")}
    data = {"phase": str(record.get("phase") or record.get("kind"))} | rest
    time, rank, pid = record.get("t"), record.get("rank"), record.get("pid")
    return Event(
        "worker.phase",
        clip(raw.decode("utf-8", "replace").strip()),
        path,
        number,
        _moment(time),
        str(record.get("host") or ""),
        pid if isinstance(pid, int) else None,
        rank if isinstance(rank, int) else None,
        data,
    )


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = wire.parse(raw)
        return None if record is None else _finite(record)
    except RecursionError:
        return None


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """The same with None for NaN and infinities, which JSON does not know but Python reads."""
    known: dict[str, Any] = json.loads(json.dumps(record), parse_constant=lambda name: None)
    return known


def _moment(value: Any) -> float | None:
    """Seconds since the epoch; None for what no clock shows."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1 << 40 else None


def from_status(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How a run of ours ended: ``{"reason": …, "exitcode": …, "say": …, "ended": …}``."""
    reason, say, ended = str(value.get("reason")), str(value.get("say") or ""), value.get("ended")
    text = f"the run ended: {reason}{f' ({say})' if say else ''}"
    data = {"reason": reason, "exitcode": value.get("exitcode"), "say": say}
    yield Event("run.end", clip(text), path, 0, _moment(ended), data=_finite(data))


def from_plan(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How many ranks a run was meant to have."""
    ranks = value.get("ranks")
    if isinstance(ranks, int):
        data = {"phase": "plan", "ranks": ranks} | {
            key: value[key] for key in ("backend", "name") if isinstance(value.get(key), str)
        }
        yield Event("worker.phase", f"plan: {ranks} ranks", path, 0, data=data)
