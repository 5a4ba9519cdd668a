"""Where the ranks stand: equal stacks together, "7 ranks wait in all_reduce at train.py:212; rank 3 is in save"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclkit.analysis.frames import places
from ncclkit.core.model import Event
from ncclkit.core.text import format_bytes, plural, some
from ncclkit.views._base import View
from ncclkit.views._html import code, el, fit, fold, join, pre, table
from ncclkit.views._verdict import beside, of_rows

UTILIZATION = ("Rank", "CPU", "Main thread at work", "State", "Sent by TCP", "Received", "Its GPU")


def stacks_view(events: Iterable[Event], problems: Sequence[str] = (), found: Sequence[Mapping[str, Any]] = ()) -> View:
    """Equal stacks together: how many ranks stand where, the rarest first; and how busy each rank was meanwhile."""
    known = list(events)
    said = [(_ranks(held), _verb(waits, len(held)), where, pre(held[0].text)) for held, waits, where in places(known)]
    summary = "; ".join(f"{ranks} {verb} {where}" for ranks, verb, where, _ in said) or "No stack could be read"
    rows = [(ranks, f"{verb} {where}", fold("Stack of the first", stack)) for ranks, verb, where, stack in said]
    loads = [_load(event.rank, event.data) for event in known if event.kind == "telemetry.utilization"]
    cause = [(code(row["cause"]), row["say"]) for row in found]
    seen = {event.rank for event in known if event.kind == "stack" and event.rank is not None}
    headline = beside(of_rows(found), summary[:1].upper() + summary[1:], seen)
    body = join(
        table(("Cause", "What it says"), cause),
        fit(table(("Ranks", "Where they stand", "The whole stack"), rows)),
        el("h5", "How busy they were meanwhile") if loads else "",
        fit(table(UTILIZATION, loads, "nk-numbers")),
        fold(f"Could not be looked at: {len(problems):,}", pre("\n".join(problems)) if problems else "", is_open=True),
    )
    return View(headline, body)


def _load(rank: int | None, data: Mapping[str, Any]) -> tuple[object, ...]:
    traffic = ["–" if data[way] is None else f"{format_bytes(round(data[way]))}/s" for way in ("sent", "received")]
    shares = ["–" if data[name] is None else f"{data[name]:.0f} %" for name in ("cpu", "main", "gpu_busy")]
    return (rank, *shares[:2], data["states"] or "–", *traffic, shares[2])


def _verb(waits: bool, count: int) -> str:
    return ("waits in" if count == 1 else "wait in") if waits else ("is in" if count == 1 else "are in")


def _ranks(held: Sequence[Event]) -> str:
    ranks = sorted(event.rank for event in held if event.rank is not None)
    if not ranks:
        return plural(len(held), "process")
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks ({some(ranks)})"
