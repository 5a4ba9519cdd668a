"""A staged run: the same job with little data first, then with more data and more ranks, and what each stage took.

Whatever is wrong with a job shows at the smallest stage that has it, after seconds instead of hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclkit.agent import wire
from ncclkit.core.case import Case
from ncclkit.core.runs import Plan, Run
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions

FOLDER = "stages"
"""Folder in the case that keeps the runs of its stages, so that none of them speaks into the verdict on the case."""


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """One stage: what it was asked, how it ended, what it took."""

    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the job, by name, without the ranks."""
    losses: tuple[float, ...] = ()
    """Loss after each step, mean over the ranks; empty where the job did not come to its end."""
    ready: float | None = None
    """Seconds from the start of the slowest rank's process to the end of its first step."""
    peak: int | None = None
    """Bytes that training took at most, on the rank that took most."""

    def __repr__(self) -> str:
        return self.run.summary


async def staged_run(
    case: Case,
    job: str,
    *stages: Mapping[str, Any],
    python: str | None = None,
    backend: str = "any",
    timeout: float = 30.0,
    deadline: float = 120.0,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[Stage, ...]:
    """Run a story's job once for each of `stages`, and stop after the first one that fails.

    job: the agent's verb, such as ``stories.interactions``; a stage: ``ranks`` and options of that job by name;
    timeout: of the process group, seconds; deadline: seconds for each stage.  Raises NcclkitError for ranks that
    cannot be had.
    """
    room = case if case.path is None else Case.open(case.path / FOLDER)
    done: list[Stage] = []
    for stage in stages:
        options = {name: value for name, value in stage.items() if name != "ranks"}
        ranks = stage.get("ranks") or 0
        asked = ProbeOptions(python=python or "", ranks=ranks, backend=backend, timeout=deadline)
        base = await probe.plan(case, asked)
        words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
        argv = (job, "--backend", base.backend, "--timeout", str(timeout), *words)
        plan = Plan(job.rpartition(".")[2], argv, base.ranks, base.backend, base.python, deadline)
        done.append(_seen(await probe.execute(room, plan, on_record), options))
        if done[-1].run.reason != "done":
            break
    return tuple(done)


def _seen(run: Run, options: Mapping[str, Any]) -> Stage:
    """A stage with what its ranks said of themselves at their end."""
    path = run.folder / "wire.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    told = [record for line in lines if (record := wire.parse(line)) and record.get("kind") == "trained"]
    if not told:
        return Stage(run, options)
    ready, peak = (max(record[name] for record in told) for name in ("ready", "peak"))
    return Stage(run, options, tuple(told[0]["losses"]), ready, peak)
