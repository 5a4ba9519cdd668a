"""The job that all evidence together shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclkit.core.event_list import known_ranks
from ncclkit.core.kinds import NcclVersion, WorkerPhase
from ncclkit.core.model import Event

MOST = 1 << 16
"""Ranks that a line can claim without being doubted; a torn number must not fill the memory."""


def job(events: Sequence[Event], inputs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What ran, as the events and inputs tell it.

    Its keys are ``ranks`` (int or None), ``hosts``, ``nccl``, ``torch``, ``cuda``, ``transports``,
    ``network``, ``silent``.  ``transports`` counts (src, dst) pairs by P2P, SHM, NET; ``silent``
    names the ranks that have no line in any file.  Versions are None where no line has them, and
    joined by `` / `` where ranks differ.
    """
    # the largest that is named anywhere: communicators of a part of the ranks are smaller
    size = _size_of_job(events)
    named_ranks = set()
    for row in inputs:
        named_ranks.update(row.get("ranks", ()))
    logged = known_ranks(events) | named_ranks
    silent = []
    if size and logged:
        silent = sorted(set(range(size)) - logged)
    pairs = set()
    for event in events:
        if event.kind == "nccl.channel":
            pairs.add((event.data.src, event.data.dst, event.data.via))
    versions = []
    for event in events:
        if isinstance(event.data, NcclVersion):
            versions.append(event.data)
    phases = []
    for event in events:
        if isinstance(event.data, WorkerPhase):
            phases.append(event.data)
    nccl_versions = []
    for event in events:
        if event.kind == "c10d.error":
            nccl_versions.append(event.data.nccl_version)
    return {
        "ranks": size,
        "hosts": _hosts_of_events(events),
        "nccl": _joined_values(
            [one.version for one in versions],
            nccl_versions,
            [phase.nccl for phase in phases],
        ),
        "torch": _joined_values([phase.torch for phase in phases]),
        "cuda": _joined_values([one.cuda for one in versions]),
        "transports": dict(sorted(Counter(via for _, _, via in pairs).items())),
        "network": _joined_values(_network_names(events)),
        "silent": silent,
    }


def _network_names(events: Sequence[Event]) -> list[Any]:
    names = []
    for event in events:
        if event.kind == "nccl.network":
            names.append(event.data.name)
    return names


def _size_of_job(events: Sequence[Event]) -> int | None:
    """Ranks of the job: the largest communicator, group, plan or rendezvous that is named."""
    sizes = []
    for event in events:
        if event.kind == "nccl.init":
            # it all
            sizes.append(event.data.nranks)
    for event in events:
        if event.kind == "worker.phase":
            sizes += [(event.data.ranks if event.data.phase == "plan" else event.data.world)]
        if event.kind == "flight.dump":
            sizes += [len(group["ranks"]) for group in event.data.groups.values()]
        if event.kind == "store.clients":
            sizes += [event.data.expected]
        if event.kind == "ras.communicator":
            sizes += [event.data.size]
    known = []
    for size in sizes:
        # a torn line may hold any number, and lists of that many ranks fill the memory
        if isinstance(size, int) and 0 < size < 1 << 20:
            known.append(size)
    return max(known, default=None)


def ranks(events: Sequence[Event], inputs: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """Every rank that must exist.

    There are as many as the evidence says, and all below the highest that it names.  Numbers that
    no job can have (a torn line) fill nothing: only ranks that are named stand beyond `MOST`.
    """
    named = set()
    for event in events:
        if event.rank is not None and event.rank >= 0:
            named.add(event.rank)
    for row in inputs:
        named.update(row.get("ranks") or ())
    # above `MOST` only what is named: a rank number from a torn line must not stand for all below
    # it
    size = max([min(_size_of_job(events) or 0, MOST), *(rank + 1 for rank in named if rank < MOST)])
    return sorted(named | set(range(size)))


def _hosts_of_events(events: Sequence[Event]) -> list[str]:
    """Every host once: NCCL cuts names at the first dot, others may not.

    Telemetry names the machine that was watched; ranks on simulated hosts, which share it, have
    other names.
    """
    said = []
    for event in events:
        # a test of connections asks for hosts that need not exist, and no rank ran there
        if event.host and not event.kind.startswith("connect."):
            said.append((event.host, event.kind.startswith("telemetry.")))
    # where nobody but telemetry names a host, its word is better than none
    names = sorted({host for host, watched in said if not watched} or {host for host, _ in said})
    whole = set()
    for name in names:
        # cut and whole names would count one machine twice
        if "." in name:
            whole.add(name.partition(".")[0])
    return [name for name in names if name not in whole]


def short_host(name: str) -> str:
    """A host's name as NCCL cuts it: up to the first dot, in small letters."""
    return name.partition(".")[0].lower()


def short_hosts(events: Iterable[Event]) -> set[str]:
    """The short name of every host that events name."""
    return {short_host(event.host) for event in events if event.host}


def _joined_values(*sources: Sequence[str | None]) -> str | None:
    """The first source that knows something; different values side by side."""
    # sources come in the order in which they are trusted
    for values in sources:
        known = [str(value) for value in values if value]
        if known:
            return " / ".join(dict.fromkeys(known))
    return None
