"""How many data-loader workers a rank needs.

It follows from the times of a batch and the cores of the rank's host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclkit.analysis.steps import last_step_events, last_steps
from ncclkit.core import budgets
from ncclkit.core.case import Case

COUNTED = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Counts of workers that are planned."""
AS_GOOD = 1.05
"""Steps of up to so many times the shortest one count as equally good."""
LEAST_CORES = 0.25
"""Cores that the workers of a rank are planned with at least, also on a full host."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The planned time of a step for each count of workers, and the fewest that are enough."""

    steps: Mapping[int, float]
    """Workers of a rank → milliseconds of a step."""
    fewest: int
    spare_cores: float
    """Cores that are left for the workers of one rank."""
    words: str
    """How the time comes about, in sentences."""


def plan_workers(cores: int, ranks: int, cpu: float, wait: float, step: float) -> WorkerPlan:
    """The workers that a rank of a host needs.

    `cpu` and `wait` are the milliseconds that a batch takes of a core, and waits for storage;
    `step` those that a step computes.
    """
    rule = budgets.workers(max(cores, 1), max(ranks, 1))
    spare_cores = max(max(cores, 1) / max(ranks, 1) - 1, LEAST_CORES)
    steps = {}
    for count in COUNTED:
        steps[count] = _step_time(count, spare_cores, cpu, wait, step)
    enough = AS_GOOD * min(steps.values())
    fewest = min(count for count, time in steps.items() if time <= enough)
    words = (
        f"A batch takes {cpu:g} ms of CPU and {wait:g} ms of storage. {rule.words} Workers that"
        " wait for storage fill less of a core than that. The step cannot fall below its"
        f" computation, nor below the CPU of a batch on the {spare_cores:.3g} cores that are left"
        " for the workers of a rank."
    )
    return WorkerPlan(steps, fewest, spare_cores, words)


def _step_time(count: int, spare_cores: float, cpu: float, wait: float, step: float) -> float:
    # without a worker the rank loads each batch itself, and computes after that
    if not count:
        return step + cpu + wait
    loading = (cpu + wait) / count
    on_cores = cpu / min(count, spare_cores)
    return max(step, loading, on_cores)


def computation_of_step(case: Case) -> float | None:
    """Milliseconds of a step in which the slowest rank of the script computes.

    It is None where no script of the user's was measured.
    """
    times, _ = last_steps(case)
    if not times:
        return None
    return max((1e3 * one.parts["computation"] for one in times.ranks), default=None)


def largest_loader(case: Case) -> tuple[int, ...] | None:
    """The data loader of the user's script with most workers.

    It is told as its workers, and the batches ahead of each; None where none is known.
    """
    loaders: list[tuple[int, ...]] = []
    for event in last_step_events(case):
        loaders += event.data.loaders
    return max(loaders, key=lambda loader: loader[0], default=None)
