"""Steps beside a job of Slurm that runs: which number it has, its parts, and the command of srun.

A task of an array has a number of its own.  The parts of a heterogeneous job are reached through
the number of its first part alone.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import plural, some
from ncclkit.live import scheduler
from ncclkit.live.launch.pack import PIPED

JOB = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,7})?")
"""``4711``, the array task ``4711_3``, the part ``4711+1`` of a heterogeneous job."""
DEADLINE = 20.0
"""Seconds for the question where a job runs."""
OWNER = re.compile(r"(?P<name>[^()]{1,64})\((?P<number>[0-9]{1,10})\)")
"""Slurm's ``UserId``."""


@dataclass(frozen=True, slots=True)
class RunningParts:
    """A job that runs, as srun has to be told."""

    number: str
    """The number by which a step is started beside it."""
    nodes: tuple[int, ...]
    """The nodes of each part; one part where the job is not heterogeneous."""


def checked_job(job: str) -> str:
    """A job as a user names it; raises NcclkitError for any other text."""
    if not JOB.fullmatch(job):
        raise NcclkitError(
            f"The option --job holds {job[:60]!r} in place of a Slurm job id; nothing was asked or"
            " done with it."
        )
    return job


def can_ask_about_jobs() -> bool:
    """Whether this host has the commands that find a job's nodes and start a step beside it."""
    return shutil.which("srun") is not None and shutil.which("scontrol") is not None


async def running_parts(job: str) -> RunningParts | None:
    """Where a job runs; None where Slurm is not here, or does not know it.

    Raises NcclkitError, which says why, where Slurm does not answer, where the job does not run,
    and where it is another user's.
    """
    checked_job(job)
    if not can_ask_about_jobs():
        return None
    # scontrol takes no + where the controller is old
    asked = job.partition("+")[0]
    shown = await _shown(asked, job)
    if not shown:
        return None
    own = shown[0].get("HetJobId", "")
    if own not in ("", asked) and scheduler.JOB_ID.fullmatch(own):
        # the number of a later part: a step starts by that of the first one
        shown = await _shown(own, job)
    rows = _rows_of_job(shown, job)
    for row in rows:
        _refuse_stranger(row, job)
    number = rows[0].get("HetJobId") or rows[0].get("JobId", "")
    nodes = tuple(_node_count(row) for row in rows)
    if not scheduler.JOB_ID.fullmatch(number) or 0 in nodes:
        answer = repr(str(rows[0])[:100])
        raise NcclkitError(
            f"Slurm did not say where job {job} runs (scontrol answered {answer}); ask again when"
            " `squeue --me` answers."
        )
    return RunningParts(number, nodes)


async def _shown(number: str, job: str) -> list[dict[str, str]]:
    """The lines that scontrol has of a job; none where it does not know it."""
    ask = ("scontrol", "-o", "--", "show", "job", number)
    try:
        output = await asyncio.to_thread(scheduler.ask_slurm, *ask, deadline=DEADLINE)
    except NcclkitError as error:
        if scheduler.UNKNOWN_ID in str(error).lower():
            return []
        why = str(error).rstrip(".")
        raise NcclkitError(
            f"Slurm did not say where job {job} runs ({why}); ask again when `squeue --me` answers."
        ) from error
    shown = []
    for line in output.splitlines():
        row = scheduler.fields(line)
        if row.get("JobState"):
            shown.append(row)
    if not shown:
        answer = repr(output.strip()[:100])
        raise NcclkitError(
            f"Slurm did not say where job {job} runs (scontrol answered {answer}); ask again when"
            " `squeue --me` answers."
        )
    return shown


def _rows_of_job(shown: Sequence[Mapping[str, str]], job: str) -> list[Mapping[str, str]]:
    """The line of the job that runs, or those of all parts of a heterogeneous one.

    Raises NcclkitError where nothing runs, and where several tasks of an array do.
    """
    running = []
    for row in shown:
        if row["JobState"] == "RUNNING":
            running.append(row)
    if not running:
        state = shown[0]["JobState"][:40]
        raise NcclkitError(f"Slurm says of job {job} {state}, so none of its ranks is at work.")
    if running[0].get("HetJobId"):
        return running
    tasks = []
    for row in running:
        tasks.append(f"{row.get('ArrayJobId', '')}_{row.get('ArrayTaskId', '')}")
    if len(running) > 1:
        count = plural(len(tasks), "task")
        called = ""
        if running[0].get("JobName"):
            # by the number alone nobody knows their job again
            called = f" ({running[0]['JobName'][:60]})"
        raise NcclkitError(
            f"Slurm job {job}{called} is an array, of which {count} run ({some(tasks)}); name one"
            f" of them: --job {tasks[0]}."
        )
    return running


def _refuse_stranger(row: Mapping[str, str], job: str) -> None:
    """Raise NcclkitError for a job of another user, beside which Slurm starts nothing of ours."""
    owner = OWNER.fullmatch(row.get("UserId", ""))
    if owner is None or int(owner["number"]) == os.geteuid():
        return
    own = str(os.geteuid())
    with suppress(KeyError):  # a container may have no name for us
        own = pwd.getpwuid(os.geteuid()).pw_name
    raise NcclkitError(
        f"Slurm job {job} belongs to user {owner['name']}, and Slurm starts nothing of {own} beside"
        f" it: let that user run `ncclkit attach --job {job}`, or as root on one of its nodes"
        " `ncclkit attach --pid PID`."
    )


def _node_count(row: Mapping[str, str]) -> int:
    """The nodes of a job: some versions write ``2-2``."""
    return scheduler.number_in(row.get("NumNodes", "").partition("-")[0])


def command_beside(
    parts: RunningParts, agent: Path, folder: Path, *words: str
) -> list[str]:
    """The command that runs an agent's verb on each node of a job.

    The job is of this user, and its steps go on beside it.  Its records come in
    ``attach-node….jsonl``; `folder` must lie on storage that all nodes share.
    """
    number = scheduler.checked_id(parts.number, "The option --job")
    # of parts each counts its nodes anew
    output = f"--output={scheduler.file_pattern(folder)}/attach-node%n-%N.jsonl"
    given = f"--input={scheduler.file_pattern(agent)}"
    # rather fail after 10 s than wait until the job has ended
    beside = ["--overlap", "--immediate=10", "--cpu-bind=none", "--mem=0", given, output]
    command = ["srun", f"--jobid={number}"]
    for group, count in enumerate(parts.nodes):
        if group:
            command.append(":")
        if len(parts.nodes) > 1:
            command.append(f"--het-group={group}")
        command += ["--nodes", str(count), "--ntasks", str(count), "--ntasks-per-node", "1"]
        command += [*beside, sys.executable, *PIPED, *words]
    return command
