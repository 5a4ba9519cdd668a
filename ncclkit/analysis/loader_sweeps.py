"""What a sweep over data-loader workers measured.

It is read back from the case that keeps it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclkit.core import budgets
from ncclkit.core.budgets import Budget
from ncclkit.core.case import Case
from ncclkit.core.kinds import WorkerPhase

FIELDS = tuple(
    "workers prefetch step_ms low_ms high_ms first_ms data_ms others_ms queue preempted".split()
)
ENDS = {"low_ms": min, "high_ms": max}
"""Fields of which the whole extent is kept; of all others the median."""


def measured_sweep(case: Case) -> LoaderSweep | None:
    """What the last sweep of the case measured.

    It is None where none was made, or not one choice came to its end.
    """
    last = WorkerPhase()
    for event in case.of("worker.phase"):
        if event.data.phase == "loader_sweep":
            last = event.data
    rows = [row for row in last.rows or () if _is_complete(row)]
    if not rows or not _is_count(last.cores) or not _is_count(last.ranks):
        return None
    return LoaderSweep(last.cores, last.ranks, tuple(rows))


@dataclass(frozen=True, slots=True)
class LoaderSweep:
    """What the last sweep measured; times in milliseconds on the slowest rank."""

    cores: int
    """That all ranks of the host shared."""
    ranks: int
    repeats: tuple[Mapping[str, float], ...]
    """One for each repeat of each choice, with all of `FIELDS`, in the order of the sweep."""

    @property
    def rows(self) -> tuple[Mapping[str, float], ...]:
        """One row for each choice.

        It holds medians of its repeats, and the whole extent of half of their steps.
        """
        by_choice: dict[tuple[float, float], list[Mapping[str, float]]] = {}
        for row in self.repeats:
            by_choice.setdefault((row["workers"], row["prefetch"]), []).append(row)
        return tuple(map(_row_of_choice, by_choice.values()))

    @property
    def knee(self) -> Budget:
        """The fewest workers of a rank that are as good as any.

        They are sought among those that prepare as many batches ahead.
        """
        return budgets.knee(self._steps)

    @property
    def alike(self) -> list[int]:
        """The counts of workers whose steps are as fast as the fastest.

        They cannot be told apart, and are compared like `knee`.
        """
        return budgets.alike_steps(self._steps)

    @property
    def _steps(self) -> dict[int, tuple[float, float]]:
        usual = max(row["prefetch"] for row in self.rows[:2])
        steps = {}
        for row in self.rows:
            # without workers nothing is prepared ahead
            if row["prefetch"] in (0, usual):
                steps[int(row["workers"])] = row["low_ms"], row["high_ms"]
        return steps

    @property
    def rule(self) -> Budget:
        """Workers per rank that the rule (workers + 1) x ranks <= cores allows."""
        return budgets.workers(self.cores, self.ranks)


def _row_of_choice(repeats: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """One row for all repeats of a choice."""
    combined = {}
    for name in FIELDS:
        values = [row[name] for row in repeats]
        combined[name] = ENDS.get(name, statistics.median)(values)
    return combined


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_complete(row: object) -> bool:
    if isinstance(row, Mapping):
        values = [row.get(name) for name in FIELDS]
    else:
        values = [None]
    return all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        for value in values
    )
