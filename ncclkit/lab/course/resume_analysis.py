"""How a job came back from its checkpoint: what each rank read once more, and when its first step was done.

A job reports it by wire records of the kind ``phase``, one of each per rank: ``start`` with its ``limit`` and
``lightning``, ``replay`` (``done`` of ``of`` batches in ``seconds``), ``first`` (``seconds`` until the first step was
done), and ``pace`` (``read_s`` of a batch and ``step_s`` of a step, medians).  Times are in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER
from ncclkit.core.model import Event

NUMBERS = {
    "start": ("limit",),
    "replay": ("done", "of", "seconds"),
    "first": ("seconds",),
    "pace": ("read_s", "step_s"),
}
"""What a record of each phase must hold, all of it numbers."""


@dataclass(frozen=True, slots=True)
class Start:
    """One rank; times in seconds."""

    rank: int
    read: int = 0
    """Batches that it read once more, only to throw them away."""
    of: int = 0
    took: float = 0.0
    """What that took, as far as it came."""
    first: float | None = None
    """From the start to the end of its first step; None where it did none."""
    batch: float | None = None
    """Median of what reading one batch takes in training."""
    step: float | None = None
    """Median of a step, with its reading and its waiting."""

    @property
    def whole(self) -> float:
        """What the whole replay takes at this pace."""
        return self.took * self.of / self.read if self.read else 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """One run, resumed from its checkpoint."""

    limit: float
    """Seconds that a collective may take."""
    starts: tuple[Start, ...]
    lightning: str
    """Version of Lightning that trained; "" for plain torch."""

    @property
    def last(self) -> Start:
        """The rank that the others wait for."""
        return max(self.starts, key=lambda start: (start.whole, start.batch or 0.0))

    @property
    def first(self) -> float | None:
        """Seconds until every rank had done its first step; None where one did none."""
        times = [start.first for start in self.starts if start.first is not None]
        return max(times) if len(times) == len(self.starts) else None


def resumes(case: Case) -> tuple[Resume, ...]:
    """Every run of the case and of its trials that was resumed, those of the case first, each oldest first."""
    hidden = sorted((case.path / FOLDER).glob("*/.case")) if case.path else []
    known = [case, *(Case.open(folder, read_only=True) for folder in hidden)]
    return tuple(run for one in known for run in _runs(one))


def _runs(case: Case) -> Iterator[Resume]:
    told: defaultdict[PurePath, list[Event]] = defaultdict(list)
    for event in case.of("worker.phase"):
        if _whole(event.data) and event.rank is not None:
            told[PurePath(event.path).parent].append(event)
    for folder in sorted(told, key=_number):
        ranks = {e.rank: {o.data["phase"]: o.data for o in told[folder] if o.rank == e.rank} for e in told[folder]}
        about = next((said["start"] for said in ranks.values() if "start" in said), None)
        if about is not None:
            starts = tuple(_start(rank, ranks[rank]) for rank in sorted(rank for rank in ranks if rank is not None))
            yield Resume(about["limit"], starts, str(about.get("lightning") or ""))


def _start(rank: int, said: Mapping[str, Mapping[str, Any]]) -> Start:
    replay, first, pace = (said.get(phase, {}) for phase in ("replay", "first", "pace"))
    return Start(
        rank,
        replay.get("done", 0),
        replay.get("of", 0),
        replay.get("seconds", 0.0),
        first.get("seconds"),
        pace.get("read_s"),
        pace.get("step_s"),
    )


def _whole(said: Mapping[str, Any]) -> bool:
    """A record of ours that holds what it must: case folders come from other people, too."""
    needed = NUMBERS.get(str(said.get("phase")))
    return needed is not None and all(isinstance(said.get(name), (int, float)) for name in needed)


def _number(folder: PurePath) -> tuple[int, str]:
    """Run folders are numbered; a tenth run stands behind the second."""
    number = folder.name.partition("-")[0]
    return int(number) if number.isdigit() else 0, str(folder)
