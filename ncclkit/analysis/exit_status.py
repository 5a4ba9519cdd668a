"""How a rank ended, in words: what it was doing, what it raised, what ended it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from re import fullmatch
from signal import SIGSEGV, SIGTERM, Signals

from ncclkit.analysis.progress import RankProgress, furthest
from ncclkit.core import text
from ncclkit.core.model import Event

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

    events: of this rank, in order.  Empty where no event tells anything.
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
