"""Small before large: the exchange of story 5 on 2, 4 and 8 ranks, before anybody starts it on 32.

Each count is a run of its own, in which an all-to-all written by hand is checked and timed beside the library's, and
every rank reports how many files it keeps open.  The first count that fails is the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.core.runs import Plan, Run
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions

LIBRARY, BY_HAND = "all_to_all", "all_to_all_by_hand"


@dataclass(frozen=True, slots=True)
class Step:
    """One number of ranks: how the run ended, and what it measured."""

    run: Run
    one: int | None
    """Open files of a rank with one communicator; None where the run did not come so far."""
    pairs: int | None
    """The same with one more communicator for each of its peers."""
    limit: int | None
    """How many files a rank may open (the soft limit inside the job)."""

    @property
    def ranks(self) -> int:
        """How many ranks took part."""
        return self.run.plan.ranks

    def speed(self, op: str) -> Measurement | None:
        """What was measured of one of the two ways."""
        return next((m for m in self.run.measurements if m.op == op), None)


async def scaling_run(
    case: Case,
    ranks: str = "2 4 8",
    *,
    python: str | None = None,
    backend: str = "auto",
    deadline: float = 90.0,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[Step, ...]:
    """Run the exchange on each of these counts of ranks, the smallest first; stops after one that fails.

    ranks: space-separated whole numbers; counts above the number of GPUs are left out, and where all are, gloo runs
    them; deadline: seconds for each run.
    """
    asked = _counts(ranks)
    options = ProbeOptions(python=python or "", backend=backend, timeout=deadline)
    base = await probe.plan(case, options)
    if backend == "auto" and base.backend == "nccl" and base.ranks < asked[0]:
        base = await probe.plan(case, replace(options, backend="gloo"))
    counts = [count for count in asked if base.backend == "gloo" or count <= base.ranks]
    if not counts:
        raise NcclkitError(f"None of the counts {ranks!r} fits on {base.ranks} GPUs; name a smaller one, or use gloo.")
    size = 256 * probe.MIB if base.backend == "nccl" else 4 * probe.MIB
    argv = ("stories.exchange", "--compare", "--size", str(size), "--backend", base.backend, "--timeout", "30")
    done: list[Step] = []
    for count in counts:
        plan = Plan(f"exchange-{count}", argv, count, base.backend, base.python, deadline)
        done.append(_step(case, await probe.execute(case, plan, on_record)))
        if done[-1].run.reason != "done":
            break
    return tuple(done)


def _counts(ranks: str) -> list[int]:
    """The counts that were typed, each once, the smallest first."""
    words = str(ranks).split()
    if not words or not all(word.isdecimal() and 2 <= int(word) <= 64 for word in words):
        raise NcclkitError(f"The counts of ranks must be whole numbers from 2 to 64, space-separated, not {ranks!r}.")
    return sorted({int(word) for word in words})


def _step(case: Case, run: Run) -> Step:
    told = [
        event.data
        for event in case.of("worker.phase")
        if event.data.get("phase") == "files" and run.name in event.path.split("/")
    ]
    most = {name: max((data[name] for data in told), default=None) for name in ("one", "pairs")}
    return Step(run, most["one"], most["pairs"], min((data["limit"] for data in told), default=None))
