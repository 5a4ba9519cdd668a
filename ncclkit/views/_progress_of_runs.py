"""What can be compared between two runs of the same small job: how fast, how far, how soon.  Plain numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ncclkit.core.runs import Run


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How one run of a training job went, by its wire records; None where nothing says."""

    steps: int | None = None
    """Steps of the rank that came least far, those before a restart included."""
    first: float | None = None
    """Seconds until the slowest rank began its first step; after a restart, of the last start."""
    step: float | None = None
    """Median seconds from one step to the next."""


def run_progress(folder: Path) -> RunProgress:
    """The pace of the run in `folder`; an empty one where no rank has begun a step."""
    begun: defaultdict[int, list[float]] = defaultdict(list)
    hello: dict[int, float] = {}
    reached: dict[int, int] = {}
    for record in _phases(folder / "wire.jsonl"):
        rank, time = record["rank"], float(record["t"])
        if record["phase"] == "hello":
            hello[rank] = time
            begun[rank].clear()  # torchrun may have started all ranks again
        elif record["phase"] == "step":
            begun[rank].append(time)
            step = record.get("step")
            reached[rank] = max(reached.get(rank, 0), step + 1 if isinstance(step, int) else 0)
    if not any(begun.values()):
        return RunProgress()
    gaps = [b - a for times in begun.values() for a, b in pairwise(times)]
    waits = [times[0] - hello[rank] for rank, times in begun.items() if times and rank in hello]
    fewest = min(reached.get(rank, 0) for rank in begun)
    return RunProgress(fewest, max(waits, default=None), median(gaps) if gaps else None)


def speeds(before: Run, after: Run) -> list[tuple[str, str, float | None, float | None]]:
    """For each collective: its name, ``busbw`` or ``algbw``, and the best of it in GB/s, before and after."""
    both = (before.measurements, after.measurements)
    found = []
    for op in dict.fromkeys(m.op for rows in both for m in rows):
        known = [[m for m in rows if m.op == op] for rows in both]
        kind = "busbw" if all(m.busbw is not None for rows in known for m in rows) else "algbw"
        a, b = (max((getattr(m, kind) for m in rows), default=None) for rows in known)
        found.append((op, kind, a, b))
    return found


def _phases(path: Path) -> Iterator[dict[str, Any]]:
    """The phases that ranks told; a torn line is left out, and a run without wire records has none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("kind") == "phase":
            if isinstance(record.get("rank"), int) and isinstance(record.get("t"), (int, float)):
                yield record
