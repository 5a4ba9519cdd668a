"""Which operation, on how many ranks, a table of nccl-tests is about, where no line says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncclkit.core import bandwidth
from ncclkit.evidence.tools.document import number

MOST = 1024
"""Ranks that are tried."""


def guess(rows: Sequence[Mapping[str, Any]], op: str, ranks: int) -> tuple[str, int]:
    """Operation and ranks; operations that the numbers cannot tell apart stand side by side, unknown ranks are 0."""
    pairs = [
        (float(number(alg) or 0.0), float(number(bus) or 0.0))
        for row in rows
        for alg, bus in zip(row["algbw"], row["busbw"], strict=False)
    ]
    sizes = [ranks] if ranks else list(range(1, MOST + 1))
    fits = {
        name: [n for n in sizes if all(_fits(pair, bandwidth.factor(name, n)) for pair in pairs)]
        for name in ([op] if op in bandwidth.FACTORS else [] if op else _possible(rows[0]))
    }
    names = [name for name, sizes in fits.items() if sizes]
    known = {n for sizes in fits.values() for n in sizes}
    return op or "/".join(names) or "unknown", ranks or (known.pop() if len(known) == 1 else 0)


def _fits(pair: tuple[float, float], factor: float) -> bool:
    """Both numbers are rounded to two places; small ones tell nothing."""
    alg, bus = pair
    return abs(bus - alg * factor) <= 0.0051 * (1 + factor)


def _possible(row: Mapping[str, Any]) -> list[str]:
    """What the columns allow: a reduction has an operator, a root is -1 where there is none."""
    reduces = row.get("redop", ["none"])[0] != "none"
    root = number(row["root"][0]) if "root" in row else None
    checks = row.get("#wrong", [])
    if reduces:
        rooted, free = ["reduce"], ["all_reduce", "reduce_scatter"]
    elif len(checks) > 1 and checks[0] != "N/A" and checks[1] == "N/A":  # these two have no in-place form
        rooted, free = ["broadcast", "gather", "scatter"], ["all_to_all", "send_recv"]
    else:
        rooted, free = ["broadcast", "gather", "scatter"], ["all_gather", "all_to_all", "send_recv"]
    return rooted + free if root is None else free if root < 0 else rooted
