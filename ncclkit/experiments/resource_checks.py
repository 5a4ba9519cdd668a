"""Experiments that start no rank of the job: they only look, at the connections between its hosts or at limits."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ncclkit import evidence
from ncclkit.analysis.picks import failed
from ncclkit.causes.engine import Diagnosis, diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Experiment, Finding
from ncclkit.core.resources import grant
from ncclkit.experiments import baseline, comparison
from ncclkit.live import probe, simulated_hosts
from ncclkit.live.launch import local, slurm
from ncclkit.live.launch.pack import packed, shared
from ncclkit.live.probe import OnRecord

TRYING = 200.0
"""Seconds for all that is tried of a machine's limits; each thing has a deadline of its own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look showed."""

    shown: str
    """Of the cause that was asked about: ``found``, ``clear`` or ``nothing``."""
    moves: dict[str, str]
    """cause → one of `MOVES`."""
    told: str = ""
    """What there was to see, in words."""
    usable: bool = True
    """Whether it tells anything of the job."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a look needs to know."""

    case: Case
    room: Case
    """The trial's own case, which gets what is seen."""
    verdict: Diagnosis
    finding: Finding
    experiment: Experiment
    python: str | None = None
    """The training interpreter."""
    on_record: OnRecord = lambda record: None


async def connect(asked: Asked) -> Seen:
    """Test the connections between the hosts of the last run, and ask what that says alone."""
    await simulated_hosts.again(asked.case, asked.room)
    verdict, cause = diagnose(asked.room), asked.finding.cause
    seen = {row.cause: str(row.verdict) for row in (*verdict.findings, *verdict.clear)}
    moves = comparison.alone(comparison.read(asked.experiment, seen))
    told = next((row.say for row in verdict.findings if row.cause == cause), "")
    return Seen(seen.get(cause, "nothing"), moves, told)


async def limits(asked: Asked) -> Seen:
    """Take from this machine, or from every node of the allocation, what the job needs, and give it back at once."""
    case, cause, run = asked.case, asked.finding.cause, baseline.last(asked.case, asked.python)
    needs = baseline.needs(case, run, asked.verdict.job, asked.experiment.expects)
    folder = asked.room.new_run("resources")
    python = run.plan.python if run else probe.interpreter(asked.python)
    env, unset = (run.plan.env, run.plan.unset) if run else ({}, ())
    with packed() as agent:
        start = [*slurm.each(), python, *shared(folder)] if slurm.nodes() > 1 else [python, str(agent)]
        command = [*start, "resources", json.dumps(needs)]
        await local.guarded(agent, command, env, TRYING, folder, python, asked.on_record, unset)
    events = [e for e in evidence.read([folder / "wire.jsonl"]).events if e.kind == "resources.tried"]
    asked.room.add(events).save()
    seen = comparison.granted(events, max(1, slurm.nodes()))
    here, broken = baseline.here(case, run, asked.finding), failed(case.latest())
    moves = comparison.limited(comparison.read(asked.experiment, seen), asked.verdict, here, broken)
    told = [f"{event.host}: {event.text}" for event in events if grant(event.data).cause == cause]
    if seen.get(cause) == "clear" and moves[cause] == "open":
        told += ["what is granted now takes nothing back of what the job has met"]
    return Seen(seen.get(cause, "nothing"), moves, f"{'; '.join(told)}." if told else "", here is not False)


LOOKS: dict[str, Callable[[Asked], Awaitable[Seen]]] = {"connections": connect, "resources": limits}
"""The words of ``{"check": …}``."""
