"""One rank's story out of its events: when it spoke, what it last did, what went wrong first, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from signal import SIGTERM

from ncclkit.model import Event
from ncclkit.views._words import plural, the

QUIET = frozenset(
    {
        "nccl.version",
        "nccl.init",
        "nccl.env",
        "nccl.bootstrap",
        "nccl.network",
        "nccl.ib_devices",
        "nccl.channel",
        "nccl.info",
        "nccl.peer_closed",
        "c10d.status",
        "progress",
        "flight.dump",
        "stack",
        "ras.communicator",
        "cited",
    }
)
"""Kinds of docs/events.md that a healthy job prints too (or that only say where something was found)."""

HEARSAY = frozenset(
    {
        "elastic.exit",
        "elastic.root",
        "elastic.stop",
        "run.end",
        "slurm.event",
        "stack",
        "flight.dump",
        "flight.missing",
        "flight.mismatch",
        "flight.stuck",
        "ras.communicator",
        "kernel.oom",
        "kernel.segfault",
        "cited",
    }
)
"""Kinds that the launcher, the kernel or a tool says about a rank; none of them shows that the rank still spoke."""

STARTS = ("nccl.init", "nccl.bootstrap")
WORK = ("progress", "c10d.status", "c10d.timeout")
ENDS = ("run.end", "elastic.exit", "elastic.stop", "nccl.destroy", "slurm.event")
SILENCE = 1.0
"""Seconds that a rank must stop before all others to be called the first to fall silent."""
MOST = 1 << 16
"""Ranks that a log line can claim; a torn number must not fill the memory."""

Place = Callable[[Event], float | None]


@dataclass(frozen=True, slots=True)
class Story:
    """What one rank left behind; None where it left nothing of that sort, or nothing with a place on the scale."""

    rank: int
    first: float | None = None
    """Place of the first and of the last line of its own: seconds since the epoch, or line numbers."""
    last: float | None = None
    init: Event | None = None
    work: Event | None = None
    wrong: Event | None = None
    end: Event | None = None
    final: Event | None = None

    @property
    def shape(self) -> tuple[str, ...]:
        """What makes two stories alike, whatever their times."""
        return tuple(event.kind if event else "" for event in (self.init, self.work, self.wrong, self.end, self.final))


def abnormal(event: Event) -> bool:
    """Whether a healthy job would not have said this."""
    if event.kind == "worker.phase":
        return event.data.get("phase") == "error"
    if event.kind == "run.end":
        return event.data.get("reason") != "done"
    if event.kind == "nccl.destroy":
        return event.data.get("how") == "abort"
    return event.kind not in QUIET


def own(event: Event) -> bool:
    """Whether the rank itself said this of its own accord; a dump that another rank asked for is an echo."""
    return event.kind not in HEARSAY and not (event.kind == "c10d.monitor" and event.data.get("what") == "dump")


def stories(events: Iterable[Event]) -> tuple[list[Story], bool]:
    """One story per rank, also for ranks that a communicator had but that never spoke; and whether they stand in time.

    They do when every rank that spoke has a line of its own with a time; else lines stand in the order of their files.
    """
    spoken: dict[int, list[Event]] = {}
    expected: set[int] = set()
    for event in events:
        if event.rank is not None:
            spoken.setdefault(event.rank, []).append(event)
        size = event.data.get("nranks")
        if event.kind == "nccl.init" and isinstance(size, int) and not event.data.get("parent"):
            expected.update(range(min(size, MOST)))
    in_time = all(any(event.time is not None for event in said if own(event)) for said in spoken.values())
    place = place_in(in_time)
    return [_story(rank, spoken.get(rank, []), place) for rank in sorted(expected | set(spoken))], in_time


def place_in(time: bool) -> Place:
    """Where an event stands: its time, or its line; None where it has none."""
    return (lambda event: event.time) if time else (lambda event: float(event.line) if event.line > 0 else None)


def say(known: list[Story], in_time: bool) -> str:
    """Who spoke, who never did, who fell silent first: one sentence."""
    heard, mute = [s for s in known if s.final], [s for s in known if not s.final]
    if not heard:
        return "No event names a rank"
    if mute:
        return f"{the('Rank', (s.rank for s in mute))} never spoke; {plural(len(heard), 'rank')} did"
    silent, gap = _silent(heard) if in_time else ([], 0.0)
    if silent:
        return f"{the('Rank', silent)} fell silent first, {gap:,.1f} s before any other; {_troubled(heard)}"
    calm = [s.rank for s in heard if s.wrong is None]
    if calm and len(calm) * 2 < len(heard):
        others = f"the {len(heard) - len(calm):,} others do"
        return f"{the('Rank', calm)} report{'s' if len(calm) == 1 else ''} nothing abnormal while {others}"
    return f"{plural(len(heard), 'rank')} spoke{' and stopped together' if in_time else ''}; {_troubled(heard)}"


def _story(rank: int, events: list[Event], place: Place) -> Story:
    if not events:
        return Story(rank)
    ordered = sorted(events, key=lambda e: found if (found := place(e)) is not None else float("inf"))
    voice = [event for event in ordered if own(event)]
    placed = [event for event in voice if place(event) is not None]
    return Story(
        rank,
        place(placed[0]) if placed else None,
        place(placed[-1]) if placed else None,
        _of(voice, STARTS, "init"),
        _of(voice[::-1], WORK, "size", "step"),
        next(filter(abnormal, voice), None),
        _of(ordered, ENDS, "done"),
        next(iter([*placed[::-1], *voice, *ordered]), None),
    )


def _of(events: Iterable[Event], kinds: tuple[str, ...], *phases: str) -> Event | None:
    """The first of these events that is of one of the kinds, or a worker's own record of one of the phases."""
    said = ((event, event.kind == "worker.phase" and event.data.get("phase") in phases) for event in events)
    return next((event for event, own in said if own or event.kind in kinds), None)


def _silent(heard: list[Story]) -> tuple[list[int], float]:
    """Ranks whose last line lies clearly before that of any other (the widest gap), and by how many seconds."""
    ends = sorted((story.last, story.rank) for story in heard if story.last is not None)
    gaps = [(b[0] - a[0], place) for place, (a, b) in enumerate(pairwise(ends), 1) if place * 2 <= len(ends)]
    gap, count = max(gaps, default=(0.0, 0))
    clear = gap > max(SILENCE, 0.05 * (ends[-1][0] - min(s.first or 0.0 for s in heard)))
    return ([rank for _, rank in ends[:count]], gap) if clear else ([], 0.0)


def _troubled(heard: list[Story]) -> str:
    if wrong := sum(s.wrong is not None for s in heard):
        return f"{plural(wrong, 'rank')} reported something abnormal"
    died = [s.rank for s in heard if s.end and s.end.data.get("exitcode", 0) not in (0, None, -SIGTERM)]
    return f"{the('rank', died)} ended badly without a word" if died else "nothing abnormal was reported"
