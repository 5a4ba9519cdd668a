"""On which host a line was written that does not say so: our own ranks and launchers say where they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclkit.core.model import Event

Place = tuple[str, object]
"""Folder, and a rank or the name of a launcher's log."""


def placed(events: Iterable[Event]) -> list[Event]:
    """Events with the host of their rank or launcher, in runs of ours on several hosts."""
    given = list(events)
    hosts: dict[str, dict[Place, str]] = {}
    for event in given:
        if event.kind == "worker.phase" and event.host:
            folder, _ = _split(event.path)
            who = event.data.get("log") if event.data.get("phase") == "launch" else event.rank
            hosts.setdefault(folder, {})[folder, who] = event.host
    where = {place: host for known in hosts.values() if len({*known.values()}) > 1 for place, host in known.items()}
    return [_at(event, where) for event in given] if where else given


def _at(event: Event, where: dict[Place, str]) -> Event:
    if event.host:
        return event
    folder, name = _split(event.path)
    host = where.get((folder, event.rank)) if event.rank is not None else where.get((folder, name))
    return replace(event, host=host) if host else event


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name.removesuffix(".gz")
