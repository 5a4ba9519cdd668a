"""What was read, counted: so that nothing that was not understood is dropped in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ncclkit.core.model import Measurement

NOT_READ = {"binary", "unknown", "empty"}
"""Kinds of rows of ``inputs.json`` in which nothing is looked for."""


def tally(inputs: Sequence[Mapping[str, Any]], facts: int, measured: Sequence[Measurement]) -> str:
    """One sentence: files by kind, what came out, and what was not understood."""
    kinds = Counter(str(row["kind"]) for row in inputs)
    read = [f"{count} × {kind}" for kind, count in kinds.most_common() if kind not in NOT_READ]
    events = sum(row["events"] for row in inputs)
    out = [f"{facts:,} facts"] * bool(facts) + _measured(measured)
    left = [f"{kinds[kind]} × {kind}" for kind in sorted(NOT_READ & kinds.keys())]
    mute = sum(row["kind"] == "log" and not row["events"] for row in inputs)
    left += [f"{mute} × log in which no line is known"] if mute and not facts and not measured else []
    errors = sum(row["errors"] for row in inputs)
    left += [f"{errors:,} × line that calls itself an error"] if errors else []
    said = f"Read {', '.join(read)}: {', '.join([f'{events:,} events', *out])}"
    return f"{said}; not understood: {', '.join(left)}." if left else f"{said}."


def _measured(rows: Sequence[Measurement]) -> list[str]:
    """How many, the highest bandwidth, and the values that were wrong."""
    if not rows:
        return []
    best = max(rows, key=lambda m: m.busbw or m.algbw)
    kind = "busbw" if best.busbw is not None else "algbw"
    speed = f"{len(rows):,} measurements ({best.op} up to {best.busbw or best.algbw:.2f} GB/s {kind})"
    wrong = sum(m.wrong or 0 for m in rows)
    return [speed, f"{wrong:,} WRONG values"] if wrong else [speed]
