"""Starts the ranks of a rehearsal under the agent's guard, and reads their verdict."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact
from ncclkit.core.case import Case
from ncclkit.core.storage import write
from ncclkit.live.launch import local
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.pack import packed
from ncclkit.live.probe import writing
from ncclkit.rehearsal.commands import parse_command
from ncclkit.rehearsal.rehearsal_options import RehearsalOptions
from ncclkit.rehearsal.verdict import Rehearsal, read_verdict

LOADING = 120.0
"""Seconds beyond the deadline of the ranks in which torch is loaded and the verdict written."""


async def rehearse_script(
    case: Case,
    words: Sequence[str],
    options: RehearsalOptions | None = None,
    on_record: OnRecord = lambda record: None,
) -> Rehearsal:
    """Run all ranks of a script on this machine, until they end, disagree, or made their steps.

    words: ``python …``, ``torchrun …`` or ``accelerate launch …``.  Raises NcclkitError for what
    cannot be started.
    """
    asked = options or RehearsalOptions()
    command = parse_command(words, asked.ranks, asked.hosts)
    shown = redact.words(tuple(words))
    again = ["ncclkit", "rehearse", "--ranks", str(command.ranks)]
    if asked.hosts:
        again += ["--hosts", str(asked.hosts)]
    shown_gpus = command.shown_gpus
    if asked.own_gpu:
        again += ["--own-gpu"]
        shown_gpus = "own"
    if asked.fake:
        again += ["--fake"]
    if asked.gpu:
        again += ["--gpu"]
    again += _changed_limits(asked)
    again += ["--", *shown]
    ranks = RankOptions(
        ranks=command.ranks,
        host_ranks=command.host_ranks,
        steps=asked.steps,
        timeout=asked.timeout,
        env=command.env,
        job_timeout=asked.job_timeout,
        shown_gpus=shown_gpus,
        fake=asked.fake,
        gpu=asked.gpu,
    )
    folder = case.new_run("rehearse")
    await run_ranks(folder, command.python, command.words, ranks, on_record)
    rehearsed = read_verdict(folder / ANSWER, command.ranks, shlex.join(again))
    if asked.lacking_time:
        notes = (*rehearsed.notes, asked.lacking_time)
        rehearsed = replace(rehearsed, notes=notes)
    case.add(evidence.read([str(folder)]).events).save()
    return rehearsed


def _changed_limits(asked: RehearsalOptions) -> list[str]:
    """The options that say how far a rehearsal goes, where they are not the usual ones."""
    usual = RehearsalOptions()
    words = []
    if asked.steps != usual.steps:
        steps = str(asked.steps)
        words += [
            "--steps",
            steps,
        ]
    if asked.timeout != usual.timeout:
        seconds = f"{asked.timeout:g}"
        words += [
            "--timeout",
            seconds,
        ]
    if asked.job_timeout != usual.job_timeout:
        seconds = f"{asked.job_timeout:g}"
        words += [
            "--timeout-of-job",
            seconds,
        ]
    return words


ANSWER = "rehearsal.json"
"""The file of a run folder that holds the verdict."""


@dataclass(frozen=True, slots=True)
class RankOptions:
    """What the process that forks the ranks is told."""

    ranks: int
    host_ranks: int
    steps: int
    timeout: float
    function: Mapping[str, Any] | None = None
    """See `ncclkit.agent.rehearsal.rank_process.Program`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the launcher would tell its ranks besides."""
    job_timeout: float = 0.0
    shown_gpus: str = "any"
    """Which GPUs a rank sees: a key of `ncclkit.agent.rehearsal.coordinator.SHOWN_GPUS`."""
    fake: bool = False
    gpu: bool = False
    """Whether all ranks share one GPU."""


async def run_ranks(
    folder: Path,
    python: str,
    words: Sequence[str],
    options: RankOptions,
    on_record: OnRecord = lambda record: None,
) -> None:
    """Run the ranks to their verdict, which is then in the run folder."""
    given = asdict(options)
    env = given.pop("env")
    given["answer"] = str(folder / ANSWER)
    plan = {"name": "rehearse", "command": list(words), **given}
    with writing(folder), packed(compiled=True) as agent:
        write(folder / "plan.json", json.dumps(redact.clean(plan), indent=1))
        line = [python, str(agent), "rehearse", json.dumps(given), *words]
        deadline = options.timeout + LOADING
        try:
            await local.run_under_guard(agent, line, env, deadline, folder, python, on_record)
        except asyncio.CancelledError:
            _tell_interrupted(folder / ANSWER, options.ranks)
            raise


def _tell_interrupted(answer: Path, ranks: int) -> None:
    """Write that nothing is known, where no verdict has been written yet."""
    if answer.exists():
        return
    verdict = {
        "ncclkit_rehearsal": 1,
        "kind": "unknown",
        "world": ranks,
        "why": "interrupted",
    }
    write(answer, json.dumps(verdict))
