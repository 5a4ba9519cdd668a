"""Which processes of this host somebody means: of one job, found by its ranks, its launcher or its Slurm id."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ncclkit.agent.run import processes
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import ranks as named

PROCESS = re.compile(r"(\d{1,7}=)?\d{1,10}")
"""A process id, or a rank and its process id."""
SUDO = "its environment may be read by that user and by root alone: repeat it with sudo"


def ranks(pids: Sequence[str] = (), job: int | None = None) -> dict[int, int]:
    """{rank: pid} of the one job that is meant.

    pids: one process of it, a rank or its launcher; or several, which then are the only ranks looked at; ``3=4711`` is
    a process that carries no RANK, with its number.  job: the id of a Slurm job.  Without either: the only job of this
    user here.  Raises NcclkitError, which says what is missing where no process, or no single job, is meant.
    """
    strange = next((one for one in pids if not PROCESS.fullmatch(one)), None)
    if strange is not None:
        raise NcclkitError(f"{strange!r} is no process id, nor RANK=PID such as 3=4711.")
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
