"""A timeline for each rank: how far it came in each group, what went wrong first, how it ended.

Timelines state what the evidence says of each rank; who is culprit and who is victim is for the causes to judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from signal import SIGTERM, Signals

from ncclkit.analysis.once import once
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.progress import RankProgress, furthest, progress_of
from ncclkit.analysis.rank_states import Exit, RankStates, exits, rank_states
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks

__all__ = ["RankProgress", "RankTimeline", "abnormal", "in_order", "reported_by_others", "timelines"]

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
    """The timeline of each rank of a case, by rank; also of those that left nothing."""
    spoken: dict[int, list[Event]] = defaultdict(list)
    for event in in_order(case.events):
        if event.rank is not None and event.rank >= 0:
            spoken[event.rank].append(event)
    left = {rank for row in case.inputs for rank in row.get("ranks") or ()}
    progress, last = progress_of(case.events), {end.rank: end for end in reversed(exits(case))}
    states, runs = rank_states(case), [str(event.data["reason"]) for event in case.of("run.end")]
    found = []
    for rank in sorted({*ranks(case.events, case.inputs), *progress}):
        events, came = spoken.get(rank, []), progress.get(rank, ())
        if events or came or rank in last:
            end = exit_status(rank, events, came, last.get(rank), states, runs) or "still running where its log ends"
        else:
            end = "left a log in which nothing stands out" if rank in left else "silent"
        wrong = next((event for event in events if abnormal(event) and not reported_by_others(event)), None)
        found.append(RankTimeline(rank, tuple(came), wrong, end, _kept(events)))
    return found


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


def exit_status(
    rank: int,
    events: Sequence[Event],
    reached: Sequence[RankProgress],
    end: Exit | None,
    states: RankStates,
    runs: Sequence[str],
) -> str:
    """One rank's end: ``waits in all_reduce 17 of default_pg``, ``raised ValueError, then exited with 1``, …

    events: of this rank, in order.  runs: why runs of our own ended.  Empty where no event shows anything.
    """
    if rank in states.ended and (end is None or end.by_launcher or not end.code):
        return "finished"
    waits, raised = _waits(events, reached, states.waiting.get(rank)), _raised(events)
    ended = _ended(events, end, runs)
    if not (raised or ended):
        return f"waits in {waits}" if waits else f"is in {place}" if (place := _place(events)) else ""
    if raised and waits.startswith("the init"):
        waits, raised = "", f"{raised} in {waits}"
    doing = f"waited in {waits}" if waits else "" if raised else _last(events)
    return ", then ".join(part for part in (doing, raised, ended) if part)


def _waits(events: Sequence[Event], reached: Sequence[RankProgress], wait: Event | None) -> str:
    """What it waits for the other ranks in: a collective, a send or receive, or an init."""
    if at := furthest(reached):
        return text.collective(at.op, at.waits, at.group, at.desc)
    if wait is not None and wait.kind == "c10d.timeout" and wait.data.get("op"):
        return text.collective(str(wait.data["op"]), wait.data.get("seq"), "", "")
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


def _ended(events: Sequence[Event], end: Exit | None, runs: Sequence[str]) -> str:
    """What ended its process: the launcher, a signal, itself, or the end of the run."""
    stops = [event.data["signal"] or SIGTERM for event in events if event.kind == "elastic.stop"]
    if end is not None and end.signal:
        starved = any(event.kind == "kernel.oom" for event in events)
        name = _signal(end.signal)
        by_launcher = f"ended by the launcher ({name})"
        return by_launcher if end.by_launcher else f"killed by {name}{' (out of memory)' if starved else ''}"
    if end is not None and end.code is not None:
        return f"exited with {end.code}"
    if stops:
        return f"ended by the launcher ({_signal(stops[-1])})"
    if not runs or runs[-1] == "done":
        return "finished" if runs else ""
    return "ended with the run, at its deadline" if runs[-1] == "deadline" else f"ended with the run ({runs[-1]})"


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
