"""A story per rank: when it spoke, how far it came in each group, what went wrong first, how it ended.

Stories state what the evidence says of each rank; who is culprit and who is victim is for the causes to judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.evidence.jobs.summary import ranks
from ncclkit.evidence.jobs.endings import Fates, ending, fates
from ncclkit.evidence.jobs.reached import Reached, reached
from ncclkit.model import Event

__all__ = ["Reached", "Story", "abnormal", "hearsay", "in_order", "stories"]

KEPT = 200
"""Events that a story holds at most."""
TROUBLE = (
    "cpp.",
    "cuda.",
    "ddp.",
    "gloo.",
    "horovod.",
    "kernel.",
    "python.",
    "rendezvous.",
    "slurm.",
    "store.",
    "system.",
)
WRONG = frozenset(
    {
        "c10d.desync", "c10d.error", "c10d.mismatch", "c10d.monitor", "c10d.timeout", "c10d.unique_id", "elastic.exit",
        "elastic.signal", "flight.mismatch", "flight.missing", "flight.p2p", "flight.stuck", "nccl.trace", "nccl.warn",
    }
)  # fmt: skip
"""Kinds, beside those that begin with one of `TROUBLE`, that a healthy job does not print."""
HEARSAY = ("elastic.", "flight.", "kernel.", "ras.", "run.", "slurm.", "stack")
"""Kinds (or how they begin) that the launcher, the kernel or a tool says about a rank; the rank need not speak."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the evidence says of one rank."""

    rank: int
    host: str
    pid: int | None
    paths: tuple[str, ...]
    """Files that hold something of it."""
    first: float | None
    """Seconds since the epoch of the first and of the last thing that it said itself."""
    last: float | None
    initialised: bool | None
    """None: nothing tells it."""
    reached: tuple[Reached, ...]
    abnormal: Event | None
    """The first thing it said that a healthy rank would not say."""
    end: str
    """How it ended, or what it was doing at its end, in words."""
    at: tuple[Event, ...]
    """Its events in order of time and place; of more than `KEPT` the abnormal, the first and the last ones."""


def abnormal(event: Event) -> bool:
    """Whether a healthy job would not have said this."""
    data = event.data
    if event.kind == "worker.phase":
        return data.get("phase") == "error"
    if event.kind == "nccl.destroy":
        return data.get("how") in ("abort", "revoke")
    if event.kind == "elastic.exit":
        return data.get("exitcode") != 0
    if event.kind == "run.end":
        return data.get("reason") != "done"
    if event.kind == "kernel.link":
        return data.get("state") == "down"
    return event.kind in WRONG or event.kind.startswith(TROUBLE)


def hearsay(event: Event) -> bool:
    """Whether somebody else says this about a rank, or asked it to; then it does not show that the rank still spoke."""
    echo = event.kind == "c10d.monitor" and event.data.get("what") == "dump"
    return echo or event.kind.startswith(HEARSAY)


def stories(events: Sequence[Event], inputs: Sequence[Mapping[str, Any]] = ()) -> list[Story]:
    """One story per rank of the job, by rank; also for those of which nothing was left.

    inputs: one mapping per file with ``path`` and ``ranks``, as `evidence.Reading.inputs` holds them.
    """
    spoken: dict[int, list[Event]] = defaultdict(list)
    for event in in_order(events):
        if event.rank is not None and event.rank >= 0:
            spoken[event.rank].append(event)
    files: dict[int, list[str]] = defaultdict(list)
    for row in inputs:
        for rank in row.get("ranks") or ():
            files[rank].append(str(row.get("path", "")))
    progress, whole = reached(events), fates(events)
    return [
        _story(rank, spoken.get(rank, []), files.get(rank, []), progress.get(rank, ()), whole)
        for rank in sorted({*ranks(events, inputs), *progress})
    ]


def in_order(events: Sequence[Event]) -> list[Event]:
    """By time; within a file by line, so that an event without a time stands behind the last dated line before it.

    Lines win over their times in a file: torch's stamps can fall back by a second where the second turns.
    """
    keyed: list[tuple[float, str, int, int]] = []
    path, now = "", float("-inf")
    by_place = sorted(range(len(events)), key=lambda place: (events[place].path, events[place].line))
    for place in by_place:
        event = events[place]
        if event.path != path:
            path, now = event.path, float("-inf")
        now = now if event.time is None else max(now, event.time)
        keyed.append((now, event.path, event.line, place))
    return [events[place] for *_, place in sorted(keyed)]


def _story(rank: int, events: list[Event], files: list[str], progress: Sequence[Reached], whole: Fates) -> Story:
    own = [event for event in events if not hearsay(event)]
    times = [event.time for event in own if event.time is not None]
    paths = tuple(dict.fromkeys([*files, *(event.path for event in events)]))
    if not events and not progress:
        end = "left a log in which nothing stands out" if files else "silent"
    else:
        end = ending(rank, events, progress, whole)
    return Story(
        rank,
        next((event.host for event in reversed(own) if event.host), ""),
        next((event.pid for event in reversed(events) if event.pid is not None), None),
        paths,
        min(times, default=None),
        max(times, default=None),
        _initialised(own, progress),
        tuple(progress),
        next((event for event in own if abnormal(event)), None),
        end or "still running where its log ends",
        _kept(events),
    )


def _initialised(own: Iterable[Event], progress: Sequence[Reached]) -> bool | None:
    """Whether its first communicator, or its process group, came to life."""
    phases = {str(e.data["phase"]) for e in own if e.kind == "worker.phase"}
    inits = {str(e.data["phase"]) for e in own if e.kind == "nccl.init"}
    if "done" in inits or phases & {"init", "step", "size", "done"} or any(one.completed for one in progress):
        return True
    return False if inits or phases & {"hello", "import"} else None


def _kept(events: list[Event]) -> tuple[Event, ...]:
    if len(events) <= KEPT:
        return tuple(events)
    places = [place for place, event in enumerate(events) if abnormal(event)][:KEPT]
    rest = iter([*range(KEPT // 4), *range(len(events) - 1, KEPT // 4, -1)])
    chosen = set(places)
    while len(chosen) < KEPT:
        chosen.add(next(rest))
    return tuple(events[place] for place in sorted(chosen))
