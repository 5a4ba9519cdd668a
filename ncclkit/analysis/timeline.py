"""A timeline for each rank: how far it came in each group, what went wrong first, how it ended.

Timelines state what the evidence says of each rank; who is culprit and who is victim is for the causes to judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from re import fullmatch
from signal import SIGSEGV, SIGTERM, Signals
from typing import Any

from ncclkit.analysis.once import once
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.progress import RankProgress, furthest, progress_of
from ncclkit.core import text
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


LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python", "<frozen", "<string>")
"""Parts of paths that are not the program's own."""


@dataclass(frozen=True, slots=True)
class Fates:
    """What is said of ranks, or of all of them, without a rank of its own."""

    tasks: tuple[tuple[int, int, Event], ...]
    """First and last of a run of Slurm tasks, and their exit, where tasks are ranks."""
    run: Event | None
    """How a run of our own ended."""


def fates(events: Iterable[Event]) -> Fates:
    """Exits that name tasks; a task is a rank only where no launcher stands between Slurm and the ranks."""
    tasks: list[tuple[int, int, Event]] = []
    run, launched = None, False
    for event in events:
        if event.kind == "slurm.event" and event.data["task"] and event.rank is None:
            tasks += [(first, last, event) for first, last in _runs(str(event.data["task"]))]
        elif event.kind == "run.end":
            run = event
        launched = launched or event.kind.startswith("elastic.")
    return Fates(() if launched else tuple(tasks), run)


def _runs(spec: str) -> Iterable[tuple[int, int]]:
    """``0-3,7`` → (0, 3), (7, 7)."""
    found = [fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip()) for part in spec.split(",")]
    return [(int(match[1]), int(match[2] or match[1])) for match in found if match]


def exit_status(rank: int, events: Sequence[Event], reached: Sequence[RankProgress], whole: Fates) -> str:
    """One rank's end: ``waits in all_reduce 17 of default_pg``, ``raised ValueError, then exited with 1``, …

    events: of this rank, in order.  Empty where no event shows anything.
    """
    waits, raised, ended = _waits(events, reached), _raised(events), _ended(rank, events, whole)
    if ended == "finished":
        return ended
    if not (raised or ended):
        return f"waits in {waits}" if waits else f"is in {place}" if (place := _place(events)) else ""
    if raised and waits.startswith("the init"):
        waits, raised = "", f"{raised} in {waits}"
    doing = f"waited in {waits}" if waits else "" if raised else _last(events)
    return ", then ".join(part for part in (doing, raised, ended) if part)


def _waits(events: Sequence[Event], reached: Sequence[RankProgress]) -> str:
    """What it waits for the other ranks in: a collective, or an init."""
    if at := furthest(reached):
        return text.collective(at.op, at.waits, at.group, at.desc)
    begun = _unfinished(events)
    return f"the init of a communicator of {begun.data['nranks']} ranks" if begun else ""


def _last(events: Sequence[Event]) -> str:
    """The last thing known of a rank that neither waited nor raised: where its stack stood, else its last step."""
    if place := _place(events):
        return f"was in {place}"
    steps = [event.data["step"] for event in events if event.kind == "worker.phase" and event.data["phase"] == "step"]
    steps = steps or [event.data["step"] for event in events if event.kind == "progress"]
    return f"came to step {steps[-1]}" if steps else ""


def _place(events: Sequence[Event]) -> str:
    """The innermost frame of the program's own in its last stack, ``load (train.py:88)``."""
    stack = next((event for event in reversed(events) if event.kind == "stack"), None)
    frames = stack.data["frames"] if stack is not None else ()
    own = next((frame for frame in frames if not any(part in str(frame["file"]) for part in LIBRARIES)), None)
    return f"{own['func']} ({str(own['file']).rpartition('/')[2]}:{own['line']})" if own else ""


def _unfinished(events: Sequence[Event]) -> Event | None:
    inits = [event for event in events if event.kind == "nccl.init"]
    done = {event.data["comm"] for event in inits if event.data["phase"] == "done"}
    return next((event for event in reversed(inits) if event.data["comm"] not in done), None)


def _raised(events: Sequence[Event]) -> str:
    for event in events:
        if event.kind == "python.exception":
            return f"raised {str(event.data['type']).rpartition('.')[2]}"
    errors = [e for e in events if e.kind == "worker.phase" and e.data["phase"] == "error"]
    return f"raised {str(errors[0].data.get('error')).partition(':')[0]}" if errors else ""


def _ended(rank: int, events: Sequence[Event], whole: Fates) -> str:
    """The launcher's, the kernel's or its own word on its end."""
    exits = [
        e for e in events if e.kind == "elastic.exit" or (e.kind == "slurm.event" and e.data["what"] == "task_exit")
    ]
    last = exits[-1] if exits else next((exit for low, high, exit in whole.tasks if low <= rank <= high), None)
    stopped = [event for event in events if event.kind == "elastic.stop"]
    starved = any(event.kind == "kernel.oom" for event in events)
    if last is not None and last.data["signal"]:
        if last.data["signal"] == SIGTERM and stopped:
            return "ended by the launcher (SIGTERM)"
        return f"killed by {_signal(last.data['signal'])}{' (out of memory)' if starved else ''}"
    if last is not None and last.data["exitcode"] is not None:
        return f"exited with {last.data['exitcode']}" if last.data["exitcode"] else "finished"
    if starved or any(event.kind == "kernel.segfault" for event in events):
        return "killed by SIGKILL (out of memory)" if starved else f"killed by {_signal(SIGSEGV)}"
    if any(event.kind == "worker.phase" and event.data["phase"] == "done" for event in events):
        return "finished"
    if stopped:
        return f"ended by the launcher ({_signal(stopped[-1].data['signal'] or SIGTERM)})"
    return _with_run(whole.run)


def _with_run(run: Event | None) -> str:
    reason = str(run.data["reason"]) if run is not None else ""
    return {"done": "finished", "deadline": "ended with the run, at its deadline"}.get(
        reason, f"ended with the run ({reason})" if reason else ""
    )


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
