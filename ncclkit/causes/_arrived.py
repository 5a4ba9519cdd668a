"""How far data came between ranks that wait for each other on several hosts, although all of them live."""

from __future__ import annotations

from ncclkit.analysis.picks import in_order
from ncclkit.core.case import Case
from ncclkit.core.model import Event


def how_far(case: Case, lines: list[Event]) -> tuple[str, list[Event]]:
    """``: what n1 sent did not arrive on n2``, and the dumps that show it; nothing where nobody can tell.

    lines: the ranks' own words on their waiting.
    """
    if dumps := _half_done(case):
        return ": a collective that was done on some of them had not arrived on others", dumps
    if one_way := _one_way(lines):
        return f": what {one_way[0]} sent did not arrive on {one_way[1]}", []
    if sizes := _too_large(case):
        return f": messages of {sizes[0]:,} bytes had come through, and those of {sizes[1]:,} did not", []
    return "", []


def _one_way(lines: list[Event]) -> tuple[str, str] | None:
    """The host that could not send and the one that waited to receive, where these are different ones."""
    ends = {what: {e.host for e in lines if e.data.get("what") == what} for what in ("send", "recv")}
    apart = all(ends.values()) and not ends["send"] & ends["recv"]
    return (min(ends["send"]), min(ends["recv"])) if apart else None


def _too_large(case: Case) -> tuple[int, int] | None:
    """In the live test: the largest message that was measured, and the larger one at which all ranks stand."""
    phases = {e.rank: e.data for e in in_order(case.of("worker.phase")) if e.data.get("phase") == "size"}
    sizes = {told.get("bytes") for told in phases.values()}
    last = sizes.pop() if len(sizes) == 1 else None
    passed = max((m.bytes for m in case.measurements), default=0)
    return (passed, last) if isinstance(last, int) and 0 < passed < last else None


def _half_done(case: Case) -> list[Event]:
    """Dumps of ranks that wait in a collective which another rank has already completed."""
    dumps = [event for event in case.of("flight.dump") if isinstance(event.data.get("groups"), dict)]
    done: dict[str, int] = {}
    for event in dumps:
        for group, seen in event.data["groups"].items():
            done[group] = max(done.get(group, 0), seen.get("last_completed") or 0)
    return [
        event
        for event in dumps
        if any(min(seen.get("in_flight") or [1 << 62]) <= done[group] for group, seen in event.data["groups"].items())
    ]
