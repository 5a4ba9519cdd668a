"""Attach: evidence from a job that hangs right now on this host; the job goes on.

The looking happens in a child process with a deadline (``agent.pyz attach``), so that neither a stuck target nor Cancel
can hang whoever awaits it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact, wire
from ncclkit.agent.run import processes
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import ranks as named
from ncclkit.live.launch.pack import packed
from ncclkit.live.probe import OnRecord

SECONDS = 3.0
"""For which utilization is measured at least: a few samples, from which a rate follows."""
DEADLINE = 120.0
"""Seconds after which the looking itself is ended; its parts have shorter ones."""
PROCESS = re.compile(r"(\d{1,7}=)?\d{1,10}")
"""A process id, or a rank and its process id."""
LAUNCHER = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|horovodrun|mpirun|mpiexec|orted|prted"
    r"|hydra_pmi_proxy|slurmstepd|srun|lightning|ray|agent\.pyz launch)\b"
)
"""Programs that start ranks, in a command line; the last one is our own torchrun."""
COMMAND = 200
"""Characters of a command line that are shown."""
SUDO = "its environment may be read by that user and by root alone: repeat it with sudo"


@dataclass(frozen=True, slots=True)
class Attached:
    """What was collected from running ranks."""

    folder: Path
    reading: evidence.Reading
    problems: tuple[str, ...]
    """One sentence for each thing that could not be had."""
    jobs: tuple[str, ...] = ()
    """``ranks 0-3 on node-1: python train.py (started by torchrun, process 4700)``, for each command of ranks."""


async def attach(
    case: Case,
    pids: Sequence[str] = (),
    job: int | None = None,
    seconds: float = SECONDS,
    on_record: OnRecord = lambda record: None,
) -> Attached:
    """Collect stacks, states, RAS reports and telemetry of running ranks into a run folder of the case, and read them.

    pids, job: whom, as `ranks` takes them; seconds: for which utilization is measured.  The child process is dead when
    this returns, is cancelled or raises.  Raises NcclkitError where nobody is meant and where nothing could be had.
    """
    if not 0 < seconds <= 86400:
        raise NcclkitError(f"A job cannot be watched for {seconds:g} s; give up to a day.")
    if case.path is None:
        raise NcclkitError("Looking at processes needs a case folder; give case_dir a name.")
    meant = ranks(pids, job)
    jobs = _jobs(meant)
    folder = case.new_run("attach")
    problems: list[str] = []

    def keep(record: dict[str, Any]) -> None:
        if record.get("kind") == "problem":
            problems.append(str(record.get("say")))
        on_record(record)

    with packed() as agent:
        command = [sys.executable, str(agent), "attach", str(folder), str(seconds)]
        await _child([*command, *(f"{rank}={pid}" for rank, pid in meant.items())], DEADLINE + seconds, keep)
    reading = evidence.read([folder])
    if not [
        *folder.glob("*_rank*"),
        *folder.glob("ras*"),
        *(e for e in reading.events if e.kind == "telemetry.utilization"),
    ]:
        raise NcclkitError(f"No rank could be looked at: {problems[0] if problems else 'all of them are gone'}.")
    case.add(reading.events).save()
    return Attached(folder, reading, tuple(problems), jobs)


async def _child(command: Sequence[str], deadline: float, on_record: OnRecord) -> None:
    """Run a command that sends records; it is dead, with what it started, when this returns."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    assert child.stdout is not None and child.stderr is not None

    async def follow(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            if (record := wire.parse(line.rstrip(b"\n"))) is not None:
                on_record(record)

    try:
        ended = asyncio.gather(follow(child.stdout), child.stderr.read(), child.wait())
        _, wrong, code = await asyncio.wait_for(ended, deadline)
    except asyncio.TimeoutError:
        raise NcclkitError(f"Attaching took more than {deadline:.0f} s and was ended; name fewer processes.") from None
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    if code:
        last = (wrong.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise NcclkitError(f"Attaching failed: {last[:200]}.")


def ranks(pids: Sequence[str] = (), job: int | None = None) -> dict[int, int]:
    """The pid of each rank of the one job that the target names.

    pids: one process of it, a rank or its launcher; or several, which then are the only ranks looked at; ``3=4711`` is
    a process that carries no RANK, with its number.  job: the id of a Slurm job.  Without either: the only job of this
    user here.  Raises NcclkitError, which says what is missing where no process, or no single job, is meant.
    """
    strange = next((one for one in pids if not PROCESS.fullmatch(one)), None)
    if strange is not None:
        raise NcclkitError(f"{strange!r} is not a process id, nor RANK=PID such as 3=4711.")
    given = {int(rank): int(pid) for rank, equal, pid in (one.partition("=") for one in pids) if equal}
    plain = [int(one) for one in pids if "=" not in one]
    hidden = [pid for pid in (*plain, *given.values()) if not _readable(pid)]
    if hidden:
        raise NcclkitError(_closed(hidden[0]))
    jobs = processes.jobs(_meant(plain, job)) if plain or not given else []
    if len(jobs) > 1:
        heads = ", ".join(f"{named(found)} with process {found[min(found)]}" for found in jobs)
        raise NcclkitError(f"{len(jobs)} jobs run on this host ({heads}); name one of these with --pid, or use --job.")
    if not jobs and not given:
        raise NcclkitError(_nobody(plain, job))
    return {**(jobs[0] if jobs else {}), **given}


def _jobs(meant: Mapping[int, int]) -> tuple[str, ...]:
    """The ranks of each command and launcher in one line; their job's id in Slurm where they have one."""
    above, found = processes.parents(), dict[str, list[int]]()
    for rank, pid in meant.items():
        command = redact.text(shlex.join(_argv(pid))) or f"process {pid}"
        command = command if len(command) <= COMMAND else f"{command[:COMMAND]}…"
        chain = [pid]
        while above.get(chain[-1], 0) > 1:
            chain.append(above[chain[-1]])
        launchers = ((LAUNCHER.search(" ".join(_argv(one)[:4])), one) for one in chain[1:])
        launcher = next((f"{name[0]}, process {one}" for name, one in launchers if name), "")
        slurm = processes.environ(pid).get("SLURM_JOB_ID", "")
        notes = "; ".join([f"started by {launcher}"] * bool(launcher) + [f"Slurm job {slurm}"] * bool(slurm))
        found.setdefault(f"{command} ({notes})" if notes else command, []).append(rank)
    return tuple(f"{named(held)} on {socket.gethostname()}: {what}" for what, held in found.items())


def _argv(pid: int) -> list[str]:
    return str(processes.read(f"/proc/{pid}/cmdline")).rstrip("\0").split("\0")


def _meant(pids: Sequence[int], job: int | None) -> Iterable[int]:
    """The processes among which ranks are looked for."""
    if len(pids) > 1:
        return pids
    if pids:
        return list(processes.of_job(pids[0]))
    found = list(processes.parents())
    return found if job is None else [p for p in found if processes.environ(p).get("SLURM_JOB_ID") == str(job)]


def _readable(pid: int) -> bool:
    """Whether its environment can be read; that of a process that has ended or is ending is empty, and no secret."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            source.read(1)
    except PermissionError:
        return False
    except OSError as error:
        raise NcclkitError(f"There is no process {pid} that can be seen from here ({error.strerror}).") from error
    return True


def _closed(pid: int) -> str:
    """Who may look at a process that this user may not."""
    uid = os.stat(f"/proc/{pid}").st_uid
    who = str(uid)
    with suppress(KeyError):  # a container may have no name for it
        who = pwd.getpwuid(uid).pw_name
    return f"Process {pid} belongs to {who}, and {SUDO}."


def _nobody(pids: Sequence[int], job: int | None) -> str:
    """Why there is no rank."""
    if pids:
        none = f"Process {pids[0]}" if len(pids) == 1 else f"Processes {', '.join(map(str, pids[:5]))}"
        own = f"{none} and what it started carry" if len(pids) == 1 else f"{none} carry"
        return f"{own} no RANK in the environment; where you know it, write it before: --pid 0={pids[0]}."
    others = sum(not os.access(f"/proc/{pid}/environ", os.R_OK) for pid in processes.parents())
    more = f"; {others} processes of other users could not be looked at, as that takes root: try sudo" if others else ""
    if job is not None:
        return f"Slurm job {job} has no rank of this user on this host; go to one of its nodes{more}."
    return f"No process of this user has a RANK in its environment; name the ranks: --pid RANK=PID{more}."
