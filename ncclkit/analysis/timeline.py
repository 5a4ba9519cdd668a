"""A timeline for each rank: how far it came in each group, what went wrong first, how it ended.

Timelines state what the evidence says of each rank; who is culprit and who is victim is for the causes to judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.analysis.exit_status import Fates, exit_status, fates
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.progress import RankProgress, progress_of
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks

__all__ = ["RankProgress", "RankTimeline", "abnormal", "in_order", "reported_by_others", "timelines", "timelines_of"]

KEPT = 200
"""Events that a timeline holds at most."""
TROUBLE = tuple("cpp. cuda. ddp. gloo. horovod. kernel. python. rendezvous. slurm. store. system.".split())
WRONG = frozenset(
    {
        "c10d.desync", "c10d.error", "c10d.mismatch", "c10d.monitor", "c10d.timeout", "c10d.unique_id", "elastic.exit",
        "elastic.signal", "flight.mismatch", "flight.missing", "flight.p2p", "flight.stuck", "nccl.trace", "nccl.warn",
    }
)  # fmt: skip
"""Kinds, beside those that begin with one of `TROUBLE`, that a healthy job does not print."""
BY_OTHERS = ("elastic.", "flight.", "kernel.", "ras.", "run.", "slurm.", "stack", "telemetry.")
"""Kinds (or how they begin) that the launcher, the kernel or a tool says about a rank; the rank need not speak."""


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """What the evidence says of one rank."""

    rank: int
    progress: tuple[RankProgress, ...]
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


def reported_by_others(event: Event) -> bool:
    """Whether somebody else says this about a rank, or asked it to; then it does not show that the rank still spoke."""
    echo = event.kind == "c10d.monitor" and event.data.get("what") == "dump"
    return echo or event.kind.startswith(BY_OTHERS)


@once
def timelines(case: Case) -> list[RankTimeline]:
    """The timeline of each rank of a case, by rank."""
    return timelines_of(case.events, case.inputs)


def timelines_of(events: Sequence[Event], inputs: Sequence[Mapping[str, Any]] = ()) -> list[RankTimeline]:
    """The timeline of each rank of the job, by rank; also of those that left nothing.

    inputs: one mapping per file with its ``ranks``, as `evidence.Reading.inputs` holds them.
    """
    spoken: dict[int, list[Event]] = defaultdict(list)
    for event in in_order(events):
        if event.rank is not None and event.rank >= 0:
            spoken[event.rank].append(event)
    left = {rank for row in inputs for rank in row.get("ranks") or ()}
    progress, whole = progress_of(events), fates(events)
    return [
        _story(rank, spoken.get(rank, []), rank in left, progress.get(rank, ()), whole)
        for rank in sorted({*ranks(events, inputs), *progress})
    ]


def _story(
    rank: int, events: list[Event], logged: bool, progress: Sequence[RankProgress], whole: Fates
) -> RankTimeline:
    if not events and not progress:
        end = "left a log in which nothing stands out" if logged else "silent"
    else:
        end = exit_status(rank, events, progress, whole) or "still running where its log ends"
    wrong = next((event for event in events if abnormal(event) and not reported_by_others(event)), None)
    return RankTimeline(rank, tuple(progress), wrong, end, _kept(events))


def _kept(events: list[Event]) -> tuple[Event, ...]:
    if len(events) <= KEPT:
        return tuple(events)
    places = [place for place, event in enumerate(events) if abnormal(event)][:KEPT]
    rest = iter([*range(KEPT // 4), *range(len(events) - 1, KEPT // 4, -1)])
    chosen = set(places)
    while len(chosen) < KEPT:
        chosen.add(next(rest))
    return tuple(events[place] for place in sorted(chosen))
