"""Where a Slurm job writes: its stdout and stderr, from the controller or, later, from the accounting."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from ncclkit.agent.facts.machine import Answer, Machine, Missing, Unread
from ncclkit.core.model import NcclkitError

JOB = re.compile(r"(?:slurm:)?(\d{1,10}(?:[_+]\d{1,7})?)", re.ASCII)
"""``12345``, an array's ``12345_7``, a heterogeneous job's ``12345+1``, each with or without ``slurm:``."""
DEADLINE = 20.0
"""Seconds for one question to Slurm; a busy controller needs a few."""
RUNNING = re.compile(r"\bStd(?:Out|Err)=(.*?)(?= \w+=|\s*$)")


def outputs(job: str) -> tuple[list[str], list[str]]:
    """(files that exist, one sentence per file that does not) of a job; NcclkitError where Slurm cannot tell."""
    said: list[str] = []
    named = list(dict.fromkeys([*_running(job, said)] or [*_ended(job, said)]))
    if not named:
        why = "; ".join(dict.fromkeys(said))
        raise NcclkitError(
            f"There is no file {job}, and Slurm knows no output of such a job ({why}); name its log file."
        )
    there = [path for path in named if os.path.isfile(path)]
    gone = [path for path in named if path not in there]
    if not there:
        raise NcclkitError(f"Slurm job {job} writes to {gone[0]}, which is not there; name the file where it is now.")
    return there, [f"Slurm job {job} writes to {path}, which is not there; the rest was read." for path in gone]


def _running(job: str, said: list[str]) -> Iterator[str]:
    """From the controller, which forgets a job some minutes after its end; patterns such as %j are filled in."""
    answer = _ask(["scontrol", "show", "job", "-o", job], said)
    for line in answer.splitlines():
        yield from (path for path in RUNNING.findall(line) if path.startswith("/") and path != "/dev/null")


def _ended(job: str, said: list[str]) -> Iterator[str]:
    """From the accounting: since 24.05 the very files, before that the folder, in which Slurm's own name is tried."""
    ask = ["sacct", "-j", job, "-X", "-n", "-P"]
    rows = _ask([*ask, "--expand-patterns", "--format=StdOut,StdErr"], said).splitlines()
    paths = [path for row in rows for path in row.split("|") if path.startswith("/") and path != "/dev/null"]
    if not paths and (folders := _ask([*ask, "--format=WorkDir"], said).split("\n")):
        names = [os.path.join(glob.escape(folder), f"slurm-{job}*.out") for folder in folders if folder.startswith("/")]
        paths = [path for name in names for path in sorted(glob.glob(name))]
    yield from paths


def _ask(argv: list[str], said: list[str]) -> str:
    """What a command of Slurm prints; "" where it fails, with the reason added to `said`."""
    try:
        answer: Answer = Machine().run(argv, DEADLINE, argv[0])
    except (Missing, Unread) as why:
        said += [str(why)]
        return ""
    if answer.code or not answer.out.strip():
        last = (answer.err.strip().splitlines() or ["no such job"])[-1][:200]
        said += [f"{argv[0]}: {last.removeprefix(argv[0]).lstrip(': ')}"]
        return ""
    return answer.out
