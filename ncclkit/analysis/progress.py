"""How far each rank came in each process group and communicator, from whatever shows it.

c10d and the Flight Recorder number the collectives of a group.  NCCL's own lines are counted per communicator, as its
opCount stalls on communicators that need no proxy (since 2.27) and grouped calls share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ncclkit.analysis.calls import POINT_TO_POINT, UNSIGNED, counted, grouped, op_of
from ncclkit.analysis.members import Index
from ncclkit.core.model import Event


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a rank came in one process group or communicator."""

    group: str
    """Name of the process group, or `id` of the communicator."""
    desc: str
    op: str
    """The collective that it waits for, as the source names it; empty where nothing shows it."""
    enqueued: int | None
    """Number of the last collective that it enqueued, started, completed; 0: none, None: unknown."""
    started: int | None
    completed: int | None
    history: tuple[tuple[float, int], ...] = field(default=(), compare=False, repr=False)
    """When it is known to have come to which collective, in order of time; the numbers never fall."""

    @property
    def waits(self) -> int | None:
        """Number of the collective that it waits for; None: it waits for none, or nothing shows it."""
        if self.enqueued is None or self.completed is None or self.enqueued <= self.completed:
            return None
        return self.completed + 1


@dataclass(slots=True)
class _Mark:
    """A `RankProgress` while it is put together."""

    desc: str = ""
    op: str = ""
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    waits: int | None = None
    seen: list[tuple[float, int]] = field(default_factory=list)

    def at(self, time: float | None, number: Any) -> None:
        """Note when it is seen at a collective."""
        if time is not None and isinstance(number, int) and 0 <= number < UNSIGNED:
            self.seen.append((time, number))

    def up(self, **numbers: Any) -> None:
        """Raise marks; a number that says less than what is known changes nothing."""
        for name, value in numbers.items():
            if isinstance(value, int) and value < UNSIGNED:
                known = getattr(self, name)
                setattr(self, name, max(value, 0) if known is None else max(value, known))

    def wait(self, seq: int, op: str) -> None:
        """It waits for this one; of several for the first."""
        if self.waits is None or seq <= self.waits:
            self.waits, self.op = seq, op or self.op


Marks = dict[int, dict[str, _Mark]]


def progress_of(events: Sequence[Event]) -> dict[int, tuple[RankProgress, ...]]:
    """Global rank → how far it came in each group, groups in the order in which the evidence names them."""
    marks: Marks = defaultdict(lambda: defaultdict(_Mark))
    for event in events:
        if event.kind == "flight.dump" and event.rank is not None:
            _dump(marks[event.rank], event.data["groups"])
    for event, name, desc in grouped(events):
        if event.rank is not None and op_of(event).upper() not in POINT_TO_POINT:
            held = marks[event.rank]
            mark = held[name or (next(iter(held)) if len(held) == 1 else "")]
            mark.desc = mark.desc or desc
            _work(mark, event)
    gave_up = {event.rank for event in events if event.kind == "gloo.timeout"}
    for event in events:
        if event.kind in ("flight.missing", "flight.stuck"):
            _named(marks, event, gave_up)
    _calls(marks, events)
    return {rank: tuple(_made(name, mark) for name, mark in held.items()) for rank, held in marks.items()}


def _dump(held: dict[str, _Mark], groups: Mapping[str, Mapping[str, Any]]) -> None:
    for name, group in groups.items():
        mark = held[name]
        mark.desc = str(group["desc"]) or mark.desc
        mark.up(enqueued=group["last_seq"], started=group.get("last_started"), completed=group["last_completed"])
        if group["in_flight"]:
            mark.wait(min(group["in_flight"]), "")
        for seq, time in group.get("times") or ():
            mark.at(time, seq)


def _work(mark: _Mark, event: Event) -> None:
    data = event.data
    if event.kind == "c10d.status":
        # torch completes sends and receives in the same place, whose numbers run ahead of the collectives'
        done = data["completed"] if counted(data["completed"]) <= counted(data["enqueued"]) else None
        mark.up(enqueued=data["enqueued"], completed=done)
        mark.at(event.time, data["enqueued"])
    else:
        # the watchdog looks through a group's works in order, so what stands before this one is done
        mark.up(enqueued=data["seq"], completed=data["seq"] - 1)
        mark.wait(data["seq"], str(data["op"]))
        mark.at(event.time, data["seq"])


def _named(marks: Marks, event: Event, gave_up: set[int | None]) -> None:
    """The analysis over all dumps names the collective that ranks wait for; gloo closes one that timed out."""
    data = event.data
    for rank in data.get("waiting") or data.get("ranks") or ():
        mark = marks[rank].get(data["group"])
        if mark is None:
            continue
        if rank in gave_up and mark.waits is None and mark.enqueued == mark.completed == data["seq"]:
            mark.completed, mark.waits = data["seq"] - 1, data["seq"]
        if mark.waits == data["seq"]:
            mark.op = mark.op or str(data["op"])


def _calls(marks: Marks, events: Sequence[Event]) -> None:
    """Collectives of NCCL's COLL lines, counted per communicator; the last one has a name only if there is one kind."""
    lines = [event for event in events if event.kind == "nccl.op"]
    index, ops = Index(events if lines else ()), defaultdict(set)
    for event in lines:
        if op_of(event).upper() not in POINT_TO_POINT and (place := index.of(event)):
            made, rank = place
            if (known := made.ranks.get(rank, event.rank)) is not None:
                mark = marks[known][made.id]
                mark.desc = f"{made.size} ranks"
                mark.enqueued = (mark.enqueued or 0) + event.count
                mark.at(event.time, mark.enqueued)
                ops[known, made.id].add(str(event.data["op"]))
    for (rank, name), names in ops.items():
        marks[rank][name].op = names.pop() if len(names) == 1 else ""


def _made(name: str, mark: _Mark) -> RankProgress:
    seen = sorted(mark.seen)
    numbers = accumulate((number for _, number in seen), max)
    history = tuple(zip((time for time, _ in seen), numbers, strict=True))
    return RankProgress(name, mark.desc, mark.op, mark.enqueued, mark.started, mark.completed, history)


def furthest(held: Iterable[RankProgress]) -> RankProgress | None:
    """The group in which a rank waits; of several the one that came furthest."""
    waiting = [one for one in held if one.waits is not None]
    return max(waiting, key=lambda one: one.waits or 0, default=None)
