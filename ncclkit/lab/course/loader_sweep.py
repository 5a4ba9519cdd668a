"""How many data-loader workers a rank should have: measured, one short training for each choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.core import budgets
from ncclkit.core.budgets import Budget
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan, Run
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions

NAME, PHASE = "loading", "loading"
CHOICES = ((0, 2), (1, 2), (2, 2), (4, 2), (8, 2), (8, 4))
"""Workers per rank, and batches that each prepares ahead."""
FIELDS = ("workers", "prefetch", "step_ms", "first_ms", "data_ms", "others_ms", "queue", "preempted")


@dataclass(frozen=True, slots=True)
class LoaderSweep:
    """What the last sweep measured; times in milliseconds on the slowest rank."""

    cores: int
    """That all ranks of the host shared."""
    ranks: int
    rows: tuple[Mapping[str, float], ...]
    """One for each choice, with all of `FIELDS`, in the order of the sweep."""

    @property
    def knee(self) -> Budget:
        """The fewest workers of a rank that are as good as any, of those that prepare as many batches ahead."""
        usual = max(row["prefetch"] for row in self.rows[:2])
        return budgets.knee({int(r["workers"]): r["step_ms"] for r in self.rows if r["prefetch"] in (0, usual)})

    @property
    def rule(self) -> Budget:
        """What the rule allows: workers x ranks <= cores."""
        return budgets.workers(self.cores, self.ranks, reserve_per_rank=0)


async def sweep(
    case: Case,
    *,
    cores: int = 2,
    choices: Sequence[tuple[int, int]] = CHOICES,
    steps: int = 16,
    python: str | None = None,
    ranks: int | None = None,
    backend: str = "any",
    deadline: float = 120.0,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Run:
    """Train the small speech job once for each choice of (workers per rank, batches ahead), all ranks on few cores.

    cores: that all ranks of this host share; steps: measured for each choice; deadline: of the whole run, seconds.
    `measured` reads what came out.  Raises NcclkitError in one sentence for what cannot be run.
    """
    for pair in choices:
        if len(pair) != 2 or pair[0] < 0 or pair[1] < 1:
            raise NcclkitError(f"A choice is (workers of at least 0, batches ahead of at least 1), but it is {pair!r}.")
    if cores < 1 or steps < 1 or not choices:
        raise NcclkitError("The sweep needs at least one core, one step and one choice of workers.")
    base = await probe.plan(
        case, ProbeOptions(python=python or "", ranks=ranks or 0, backend=backend, timeout=deadline)
    )
    count = max(2, base.ranks) if base.backend == "gloo" else base.ranks
    words = {
        "backend": base.backend,
        "choices": ",".join(f"{workers}:{ahead}" for workers, ahead in choices),
        "cores": cores,
        "steps": steps,
    }
    argv = ("stories.loader_sweep", *(word for name, value in words.items() for word in (f"--{name}", str(value))))
    return await probe.execute(case, Plan(NAME, argv, count, base.backend, base.python, deadline), on_record)


def measured(case: Case) -> LoaderSweep | None:
    """What the last sweep of the case measured; None where none was made, or not one choice came to its end."""
    told = [event.data for event in case.of("worker.phase") if event.data.get("phase") == PHASE]
    rows = [row for row in (told[-1].get("rows") or () if told else ()) if _whole(row)]
    if not rows or not all(isinstance(told[-1].get(name), int) and told[-1][name] > 0 for name in ("cores", "ranks")):
        return None
    return LoaderSweep(told[-1]["cores"], told[-1]["ranks"], tuple(rows))


def _whole(row: object) -> bool:
    values = [row.get(name) for name in FIELDS] if isinstance(row, Mapping) else [None]
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values)
