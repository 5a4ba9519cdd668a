"""What our own runs leave beside the logs: ``wire.jsonl``, ``status.json``, ``plan.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclkit.agent import wire
from ncclkit.evidence.grammar import clip
from ncclkit.model import Event

SKIPPED = frozenset({"fact", "measure"})
"""Records that are facts and measurements, not events."""


def from_wire(raw: bytes, path: str, number: int) -> Event | None:
    """The `worker.phase` event of one line of ``wire.jsonl``."""
    record = wire.parse(raw)
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
        float(time) if isinstance(time, (int, float)) else None,
        str(record.get("host") or ""),
        pid if isinstance(pid, int) else None,
        rank if isinstance(rank, int) else None,
        data,
    )


def from_status(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How a run of ours ended: ``{"reason": …, "exitcode": …, "say": …, "ended": …}``."""
    reason, say, ended = str(value.get("reason")), str(value.get("say") or ""), value.get("ended")
    time = float(ended) if isinstance(ended, (int, float)) else None
    text = f"the run ended: {reason}{f' ({say})' if say else ''}"
    data = {"reason": reason, "exitcode": value.get("exitcode"), "say": say}
    yield Event("run.end", clip(text), path, 0, time, data=data)


def from_plan(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How many ranks a run was meant to have."""
    ranks = value.get("ranks")
    if isinstance(ranks, int):
        data = {"phase": "plan", "ranks": ranks} | {
            key: value[key] for key in ("backend", "name") if isinstance(value.get(key), str)
        }
        yield Event("worker.phase", f"plan: {ranks} ranks", path, 0, data=data)
