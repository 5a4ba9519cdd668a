"""How far the clocks of the hosts are apart, from things that happened on all of them at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ncclkit.analysis.calls import grouped
from ncclkit.analysis.members import Index
from ncclkit.core.model import Event

LEAST = 3
"""Shared events that an offset must rest on."""

Key = tuple[object, ...]
Times = Mapping[Key, Mapping[str, list[float]]]
"""What happened → host → when its ranks say so."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's clock against the reference host's."""

    host: str
    offset: float
    """Seconds that this host's clock is ahead; 0 for the reference."""
    spread: float
    """Seconds between the lower and the upper quartile of what the shared events say."""
    shared: int
    """Events that it shares with the reference."""


def clocks(events: Sequence[Event]) -> list[Clock]:
    """Offset of every host that shares enough with the reference, the host that shares most; [] where none does.

    The end of an init, a destroy, and steps of our own jobs happen on all ranks at once.  Only where these are too few
    watchdog timeouts help: they come a fixed time after each rank's own call, so lateness shows in them as well.
    """
    hosts = _hosts(events)
    exact = _times(_exact(events), hosts)
    return _offsets(exact) or _offsets({**exact, **_times(_timeouts(events), hosts)})


def _hosts(events: Iterable[Event]) -> dict[int, str]:
    """Global rank → host, from the lines that tell both."""
    return {e.rank: _short(e.host) for e in events if e.rank is not None and e.host}


def _short(host: str) -> str:
    return host.partition(".")[0]


def _exact(events: Sequence[Event]) -> Iterator[tuple[Key, Event]]:
    index = Index(events)
    for event in events:
        if event.time is None:
            continue
        data = event.data
        if (
            event.kind == "nccl.init"
            and data["phase"] == "done"
            or event.kind == "nccl.destroy"
            and data["how"] == "destroy"
        ):
            if place := index.of(event):
                yield (event.kind, place[0].id), event
        elif event.kind == "worker.phase" and data["phase"] in ("init", "step", "size"):
            yield (event.kind, data["phase"], str(data.get("step")), str(data.get("bytes"))), event


def _timeouts(events: Sequence[Event]) -> Iterator[tuple[Key, Event]]:
    for event, group, _ in grouped(events):
        if event.kind == "c10d.timeout" and event.time is not None:
            yield (event.kind, group, event.data["seq"]), event


def _times(shared: Iterable[tuple[Key, Event]], hosts: Mapping[int, str]) -> dict[Key, dict[str, list[float]]]:
    times: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, event in shared:
        host = _short(event.host) or hosts.get(-1 if event.rank is None else event.rank, "")
        if host and event.time is not None:
            times[key][host].append(event.time)
    return times


def _offsets(times: Times) -> list[Clock]:
    common = {key: {host: median(said) for host, said in by.items()} for key, by in times.items() if len(by) > 1}
    seen = Counter(host for by in common.values() for host in by)
    if not seen:
        return []
    reference = min(seen, key=lambda host: (-seen[host], host))
    apart: dict[str, list[float]] = defaultdict(list)
    for by in common.values():
        for host, time in by.items():
            if host != reference and reference in by:
                apart[host].append(time - by[reference])
    known = [
        Clock(host, median(gaps), _spread(gaps), len(gaps))
        for host, gaps in sorted(apart.items())
        if len(gaps) >= LEAST
    ]
    return [Clock(reference, 0.0, 0.0, seen[reference]), *known] if known else []


def _spread(gaps: list[float]) -> float:
    low, _, high = quantiles(gaps, n=4, method="inclusive")
    return high - low
