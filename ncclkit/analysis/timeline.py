"""A timeline for each rank: how far it came, and how it ended.

It tells how far the rank came in each group, and what went wrong first.  c10d and the Flight
Recorder number the collectives of a group.  NCCL's own lines are counted per communicator, as its
opCount stalls on communicators that need no proxy (since 2.27) and grouped calls share it.

Timelines state what the evidence says of each rank; who is culprit and who is victim is for the
causes to judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from signal import SIGTERM, Signals
from typing import Any

from ncclkit.analysis import frames
from ncclkit.analysis.calls import POINT_TO_POINT, UNSIGNED, counted, grouped, op_of
from ncclkit.analysis.communicators import Index
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.rank_states import Exit, RankStates, exits, rank_states
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    ElasticExit,
    FlightMissing,
    KernelLink,
    NcclDestroy,
    RunEnd,
    WorkerPhase,
)
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a rank came in one process group or communicator."""

    group: str
    """Name of the process group, or `id` of the communicator."""
    desc: str
    op: str
    """The collective that it waits for, as the source names it; empty where nothing shows it."""
    enqueued: int | None
    """Number of the last collective that it enqueued, started, completed; 0: none, None:
    unknown."""
    started: int | None
    completed: int | None
    history: tuple[tuple[float, int], ...] = field(default=(), compare=False, repr=False)
    """When it is known to have come to which collective, in order of time; the numbers never
    fall."""

    @property
    def waits(self) -> int | None:
        """Number of the collective that it waits for.

        It is None where it waits for none, or nothing shows it.
        """
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
        """Raise marks.

        A number that says less than what is known changes nothing.
        """
        for name, value in numbers.items():
            if isinstance(value, int) and value < UNSIGNED:
                known = getattr(self, name)
                # -1 means none yet
                setattr(self, name, max(value, 0) if known is None else max(value, known))

    def wait(self, seq: int, op: str) -> None:
        """Note that it waits for this one.

        Of several it waits for the first.
        """
        if self.waits is None or seq <= self.waits:
            self.waits, self.op = seq, op or self.op


Marks = dict[int, dict[str, _Mark]]


def progress_of(events: Sequence[Event]) -> dict[int, tuple[RankProgress, ...]]:
    """Global rank → how far it came in each group.

    Groups come in the order in which the evidence names them.
    """
    marks: Marks = defaultdict(lambda: defaultdict(_Mark))
    for event in events:
        if event.kind == "flight.dump" and event.rank is not None:
            _dump(marks[event.rank], event.data.groups)
    for event, name, desc in grouped(events):
        if event.rank is not None and op_of(event).upper() not in POINT_TO_POINT:
            held = marks[event.rank]
            # a line without a group is of the only one that its rank is known in
            mark = held[name or (next(iter(held)) if len(held) == 1 else "")]
            mark.desc = mark.desc or desc
            _work(mark, event)
    gave_up = set()
    for event in events:
        if event.kind == "gloo.timeout":
            gave_up.add(event.rank)
    for event in events:
        if event.kind in ("flight.missing", "flight.stuck"):
            _named(marks, event, gave_up)
    _calls(marks, events)
    progress_of_rank = {}
    for rank, held in marks.items():
        progress_of_rank[rank] = tuple(_progress(name, mark) for name, mark in held.items())
    return progress_of_rank


def _dump(held: dict[str, _Mark], groups: Mapping[str, Mapping[str, Any]]) -> None:
    for name, group in groups.items():
        mark = held[name]
        mark.desc = str(group["desc"]) or mark.desc
        mark.up(
            enqueued=group["last_seq"],
            started=group.get("last_started"),
            completed=group["last_completed"],
        )
        if group["in_flight"]:
            mark.wait(min(group["in_flight"]), "")
        for seq, time in group.get("times") or ():
            mark.at(time, seq)


def _work(mark: _Mark, event: Event) -> None:
    data = event.data
    if event.kind == "c10d.status":
        # torch completes sends and receives in the same place, whose numbers run ahead of the
        # collectives'
        done = None
        if counted(data.completed) <= counted(data.enqueued):
            done = data.completed
        mark.up(enqueued=data.enqueued, completed=done)
        mark.at(event.time, data.enqueued)
    else:
        # the watchdog looks through a group's works in order, so what stands before this one is
        # done
        mark.up(enqueued=data.seq, completed=data.seq - 1)
        mark.wait(data.seq, str(data.op))
        mark.at(event.time, data.seq)


def _named(marks: Marks, event: Event, gave_up: set[int | None]) -> None:
    """Note the collective that ranks wait for, by the analysis over all dumps.

    Gloo closes one that timed out.
    """
    data = event.data
    if isinstance(data, FlightMissing):
        inside = data.waiting
    else:
        inside = data.ranks
    for rank in inside or ():
        mark = marks[rank].get(data.group)
        if mark is None:
            continue
        if rank in gave_up and mark.waits is None and mark.enqueued == mark.completed == data.seq:
            mark.completed = data.seq - 1
            mark.waits = data.seq
        if mark.waits == data.seq:
            mark.op = mark.op or str(data.op)


def _calls(marks: Marks, events: Sequence[Event]) -> None:
    """Count the collectives of NCCL's COLL lines per communicator.

    The last one has a name only if there is one kind.
    """
    lines = [event for event in events if event.kind == "nccl.op"]
    # the index takes a walk over all events
    index = Index(events if lines else ())
    ops = defaultdict(set)
    for event in lines:
        if op_of(event).upper() not in POINT_TO_POINT and (place := index.of(event)):
            made, rank = place
            known = made.ranks.get(rank, event.rank)
            if known is not None:
                mark = marks[known][made.id]
                mark.desc = f"{made.size} ranks"
                mark.enqueued = (mark.enqueued or 0) + event.count
                mark.at(event.time, mark.enqueued)
                ops[known, made.id].add(str(event.data.op))
    for (rank, name), names in ops.items():
        if len(names) == 1:
            marks[rank][name].op = names.pop()
        else:
            marks[rank][name].op = ""


def _progress(name: str, mark: _Mark) -> RankProgress:
    seen = sorted(mark.seen)
    numbers = accumulate((number for _, number in seen), max)
    history = tuple(zip((time for time, _ in seen), numbers, strict=True))
    return RankProgress(
        name, mark.desc, mark.op, mark.enqueued, mark.started, mark.completed, history
    )


def furthest(held: Iterable[RankProgress]) -> RankProgress | None:
    """The group in which a rank waits.

    Of several it is the one that came furthest.
    """
    waiting = [one for one in held if one.waits is not None]
    return max(waiting, key=lambda one: one.waits or 0, default=None)


KEPT = 200
"""Events that a timeline holds at most."""
TROUBLE = tuple(
    "cpp. cuda. ddp. gloo. horovod. kernel. python. rendezvous. slurm. store. system.".split()
)
WRONG = frozenset(
    {
        "c10d.desync",
        "c10d.error",
        "c10d.mismatch",
        "c10d.monitor",
        "c10d.timeout",
        "c10d.unique_id",
        "elastic.exit",
        "elastic.signal",
        "flight.mismatch",
        "flight.missing",
        "flight.p2p",
        "flight.stuck",
        "nccl.trace",
        "nccl.warn",
    }
)
"""Kinds, beside those that begin with one of `TROUBLE`, that a healthy job does not print."""
BY_OTHERS = ("elastic.", "flight.", "kernel.", "ras.", "run.", "slurm.", "stack", "telemetry.")
"""Kinds (or how they begin) that the launcher, the kernel or a tool says about a rank; the rank
need not speak."""


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
    """Its events in order of time and place; of more than `KEPT` the abnormal, the first and the
    last ones."""


def abnormal(event: Event) -> bool:
    """Whether a healthy job would not have said this."""
    data = event.data
    if isinstance(data, WorkerPhase):
        return data.phase == "error"
    if isinstance(data, NcclDestroy):
        return data.how in ("abort", "revoke")
    if isinstance(data, ElasticExit):
        return data.exitcode != 0
    if isinstance(data, RunEnd):
        return data.reason != "done"
    if isinstance(data, KernelLink):
        return data.state == "down"
    return event.kind in WRONG or event.kind.startswith(TROUBLE)


def reported_by_others(event: Event) -> bool:
    """Whether somebody else says this about a rank, or asked it to.

    Then it does not show that the rank still spoke.
    """
    echo = event.kind == "c10d.monitor" and event.data.what == "dump"
    return echo or event.kind.startswith(BY_OTHERS)


@once
def timelines(case: Case) -> list[RankTimeline]:
    """The timeline of each rank of a case, by rank.

    It is also made for those that left nothing.
    """
    spoken: dict[int, list[Event]] = defaultdict(list)
    for event in in_order(case.events):
        if event.rank is not None and event.rank >= 0:
            spoken[event.rank].append(event)
    left: set[int] = set()
    for row in case.inputs:
        left.update(row.get("ranks") or ())
    progress = progress_of(case.events)
    # from the back, so that the first end of each rank stands
    last = {end.rank: end for end in reversed(exits(case))}
    states = rank_states(case)
    runs = [str(event.data.reason) for event in case.of(RunEnd)]
    found = []
    for rank in sorted({*ranks(case.events, case.inputs), *progress}):
        events = spoken.get(rank, [])
        came = progress.get(rank, ())
        if events or came or rank in last:
            end = (
                exit_status(rank, events, came, last.get(rank), states, runs)
                or "still running where its log ends"
            )
        else:
            end = "silent"
            if rank in left:
                end = "left a log in which nothing stands out"
        wrong = None
        for event in events:
            if abnormal(event) and not reported_by_others(event):
                wrong = event
                break
        found.append(RankTimeline(rank, tuple(came), wrong, end, _kept(events)))
    return found


def _kept(events: list[Event]) -> tuple[Event, ...]:
    if len(events) <= KEPT:
        return tuple(events)
    places = [place for place, event in enumerate(events) if abnormal(event)][:KEPT]
    # a quarter from the start, the others from the end: what a rank did last says most
    rest = iter([*range(KEPT // 4), *range(len(events) - 1, KEPT // 4, -1)])
    chosen = set(places)
    while len(chosen) < KEPT:
        chosen.add(next(rest))
    return tuple(events[place] for place in sorted(chosen))


def exit_status(
    rank: int,
    events: Sequence[Event],
    reached: Sequence[RankProgress],
    end: Exit | None,
    states: RankStates,
    runs: Sequence[str],
) -> str:
    """One rank's end in words.

    It is such as ``waits in all_reduce 17 of default_pg``, or ``raised ValueError, then exited with
    1``.  `events` are those of this rank, in order; `runs` tells why runs of our own ended.  It is
    empty where no event shows anything.
    """
    if rank in states.ended and (end is None or end.by_launcher or not end.code):
        return "finished"
    waits = _waits(events, reached, states.waiting.get(rank))
    raised = _raised(events)
    ended = _ended(events, end, runs)
    if not (raised or ended):
        if waits:
            return f"waits in {waits}"
        if place := _place(events):
            return f"is in {place}"
        return ""
    # an init that raised is waited in no more
    if raised and waits.startswith("the init"):
        waits, raised = "", f"{raised} in {waits}"
    if waits:
        doing = f"waited in {waits}"
    elif raised:
        doing = ""
    else:
        doing = _last(events)
    return ", then ".join(part for part in (doing, raised, ended) if part)


def _waits(events: Sequence[Event], reached: Sequence[RankProgress], wait: Event | None) -> str:
    """What it waits for the other ranks in.

    It is a collective, a send or receive, or an init.
    """
    at = furthest(reached)
    if at:
        return text.collective(at.op, at.waits, at.group, at.desc)
    if wait is not None and wait.kind == "c10d.timeout" and wait.data.op:
        return text.collective(str(wait.data.op), wait.data.seq, "", "")
    begun = _unfinished(events)
    if begun:
        return f"the init of a communicator of {begun.data.nranks} ranks"
    return ""


def _last(events: Sequence[Event]) -> str:
    """The last thing known of a rank that neither waited nor raised.

    It is where its stack stood, else its last step.
    """
    place = _place(events)
    if place:
        return f"was in {place}"
    steps = []
    for event in events:
        if event.kind == "worker.phase" and event.data.phase == "step":
            steps.append(event.data.step)
    steps = steps or [event.data.step for event in events if event.kind == "progress"]
    if steps:
        return f"came to step {steps[-1]}"
    return ""


def _place(events: Sequence[Event]) -> str:
    """The innermost frame of the program's own in its last stack, ``train.py:88 (load)``."""
    stack = next((event for event in reversed(events) if event.kind == "stack"), None)
    own = None
    if stack is not None:
        own = frames.own_frame(stack.data.frames, innermost_first=True)
    if own is not None and frames.is_own(own):
        return frames.place(own)
    return ""


def _unfinished(events: Sequence[Event]) -> Event | None:
    inits = [event for event in events if event.kind == "nccl.init"]
    done = set()
    for event in inits:
        if event.data.phase == "done":
            done.add(event.data.comm)
    return next((event for event in reversed(inits) if event.data.comm not in done), None)


def _raised(events: Sequence[Event]) -> str:
    for event in events:
        if event.kind == "python.exception":
            return f"raised {str(event.data.type).rpartition('.')[2]}"
    errors = []
    for e in events:
        if e.kind == "worker.phase" and e.data.phase == "error":
            errors.append(e)
    if errors:
        return f"raised {str(errors[0].data.error).partition(':')[0]}"
    return ""


def _ended(events: Sequence[Event], end: Exit | None, runs: Sequence[str]) -> str:
    """What ended its process: the launcher, a signal, itself, or the end of the run."""
    stops = []
    for event in events:
        if event.kind == "elastic.stop":
            stops.append(event.data.signal or SIGTERM)
    if end is not None and end.signal:
        starved = any(event.kind == "kernel.oom" for event in events)
        name = _signal(end.signal)
        by_launcher = f"ended by the launcher ({name})"
        if end.by_launcher:
            return by_launcher
        return f"killed by {name}{' (out of memory)' if starved else ''}"
    if end is not None and end.code is not None:
        return f"exited with {end.code}"
    if stops:
        return f"ended by the launcher ({_signal(stops[-1])})"
    if not runs or runs[-1] == "done":
        if runs:
            return "finished"
        return ""
    if runs[-1] == "deadline":
        return "ended with the run, at its deadline"
    return f"ended with the run ({runs[-1]})"


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
