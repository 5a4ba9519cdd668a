"""The runs of a case that one view can show, named as a person would: run 5, all_reduce, 14:02."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclkit.agent.digits import is_whole
from ncclkit.core.case import RUN, TEST, Case

UNPRINTABLE = re.compile(r"[^ -~]")
LONGEST_NAME = 40
"""Letters of a run's name that are shown; a case folder may come from anywhere."""
ListRuns = Callable[[Case], list[Path]]
"""The folders of the runs that a view can show, the oldest first."""


@dataclass(frozen=True, slots=True)
class RunChoice:
    """One run that a view can show."""

    folder: Path

    @property
    def number(self) -> int:
        """The number of the run in its case."""
        return int(self.folder.name.partition("-")[0])

    @property
    def words(self) -> str:
        """``run 5, all_reduce, 14:02``; with its day where that is another one."""
        letters = self.folder.name.partition("-")[2][:LONGEST_NAME]
        # a name may hold what a terminal obeys
        name = UNPRINTABLE.sub("?", letters)
        return f"run {self.number}, {name}, {_moment(self.folder)}"


def _moment(folder: Path) -> str:
    """When the run began: what was asked is written first, and never again."""
    for name in ("plan.json", "."):
        try:
            began = time.localtime((folder / name).stat().st_mtime)
        except OSError:
            continue
        if began[:3] == time.localtime()[:3]:
            return time.strftime("%H:%M", began)
        return time.strftime("%Y-%m-%d %H:%M", began)
    return "folder gone"


def is_numbered(folder: Path) -> bool:
    """Whether this is the folder of a run of a case, such as ``5-all_reduce``."""
    number = folder.name.partition("-")[0]
    return folder.is_dir() and is_whole(number)


def runs_with_events(case: Case, *kinds: str) -> list[Path]:
    """Runs of this case that left events of these kinds, as `Case.of` takes them."""
    paths = set()
    for event in case.of(*kinds):
        paths.add(event.path)
    names = set()
    own = f"{case.path}/runs/"
    for path in paths:
        place = RUN.search(path)
        if place is not None and path.startswith(own):
            names.add(f"{place['n']}-{place['name']}")
    return _runs_called(case, names)


def job_runs(case: Case) -> list[Path]:
    """Runs of jobs, and looks at running ones; tests of connections are none."""
    found = []
    for folder in runs_with_events(case, "run.end", "worker.phase", "attach.rank"):
        if folder.name.partition("-")[2] != TEST:
            found.append(folder)
    return found


def test_runs(case: Case) -> list[Path]:
    """Runs that tested connections."""
    return runs_with_events(case, "connect.host")


def step_runs(case: Case) -> list[Path]:
    """Runs that measured the steps of a script."""
    return runs_with_events(case, "step.rank")


def measured_runs(case: Case) -> list[Path]:
    """Runs that left a measurement."""
    names = set()
    for row in case.measurements:
        names.add(row.run)
    return _runs_called(case, names)


def _runs_called(case: Case, names: set[str]) -> list[Path]:
    found = []
    for folder in case.runs():
        if folder.name in names:
            found.append(folder)
    return found


def choices_of(folders: Iterable[Path]) -> list[RunChoice]:
    """The choices that these folders are, the newest first."""
    return list(map(RunChoice, reversed(list(folders))))
