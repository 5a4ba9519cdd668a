"""How a job came back from a checkpoint.

A job reports its resume by wire records of the kind ``phase``, one of each per rank: ``start`` with
its ``limit`` and ``lightning``, ``replay`` (``done`` of ``of`` batches in ``seconds``), ``first``
(``seconds`` until the first step was done), and ``pace`` (``read_s`` of a batch and ``step_s`` of a
step, medians).  Times are in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from ncclkit.agent.digits import whole_number
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER
from ncclkit.core.kinds import WorkerPhase
from ncclkit.core.model import Event

STAGES = "stages"
"""Folder in the case that keeps the runs of its stages, so that none of them speaks into the
verdict on the case."""


@dataclass(frozen=True, slots=True)
class Start:
    """How one rank came back from a checkpoint; times in seconds."""

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
        """Seconds that the whole replay takes at the measured pace."""
        if self.read:
            return self.took * self.of / self.read
        return 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """One run that was resumed from a checkpoint."""

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
        if len(times) == len(self.starts):
            return max(times)
        return None


def resumes(case: Case) -> tuple[Resume, ...]:
    """Every resumed run of the case, oldest first.

    Those of its staged runs and of its experiments come after them.
    """
    stages = []
    if case.path and (case.path / STAGES).is_dir():
        stages = [case.path / STAGES]
    hidden = []
    if case.path:
        hidden = [*stages, *sorted((case.path / FOLDER).glob("*/.case"))]
    known = [case, *(Case.open(folder, read_only=True) for folder in hidden)]
    found: list[Resume] = []
    for each in known:
        found += _resumes_of_case(each)
    return tuple(found)


def _resumes_of_case(case: Case) -> Iterator[Resume]:
    by_folder: defaultdict[PurePath, list[Event]] = defaultdict(list)
    for event in case.of("worker.phase"):
        if _is_complete(event.data) and event.rank is not None:
            by_folder[PurePath(event.path).parent].append(event)
    for folder in sorted(by_folder, key=_number_of_folder):
        events = by_folder[folder]
        ranks: defaultdict[int, dict[str, WorkerPhase]] = defaultdict(dict)
        about = None
        for event in events:
            if event.rank is None:
                continue
            ranks[event.rank][event.data.phase] = event.data
            # every rank says the same of the run
            if about is None and event.data.phase == "start":
                about = event.data
        if about is not None:
            starts = [_start_of_rank(rank, ranks[rank]) for rank in sorted(ranks)]
            yield Resume(about.limit, tuple(starts), str(about.lightning or ""))


def _start_of_rank(rank: int, phases: Mapping[str, WorkerPhase]) -> Start:
    nothing = WorkerPhase()
    replay = phases.get("replay", WorkerPhase(done=0, of=0, seconds=0.0))
    first, pace = phases.get("first", nothing), phases.get("pace", nothing)
    return Start(
        rank,
        replay.done,
        replay.of,
        replay.seconds,
        first.seconds,
        pace.read_s,
        pace.step_s,
    )


def _is_complete(said: WorkerPhase) -> bool:
    """Whether a record of ours holds what it must.

    Case folders come from other people, too.
    """
    needed = {
        "start": (said.limit,),
        "replay": (said.done, said.of, said.seconds),
        "first": (said.seconds,),
        "pace": (said.read_s, said.step_s),
    }
    numbers = needed.get(said.phase)
    return numbers is not None and all(isinstance(one, (int, float)) for one in numbers)


def _number_of_folder(folder: PurePath) -> tuple[int, str]:
    """The number of a run folder.

    A tenth run stands behind the second.
    """
    return whole_number(folder.name.partition("-")[0]) or 0, str(folder)
