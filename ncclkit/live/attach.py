"""What a job that hangs right now waits for; the job goes on.

It is told from the job's processes.  A child process reads the ranks with a deadline (``agent.pyz
attach``), on every node of a Slurm job one, so that neither a stuck target nor Cancel can hang
whoever awaits it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import wire
from ncclkit.agent.monitor import attach as agent
from ncclkit.agent.monitor import flight_dump, kernels, snapshots, workers
from ncclkit.agent.monitor.crowding import crowding_here
from ncclkit.agent.run import processes
from ncclkit.analysis.motion import motion
from ncclkit.analysis.waits import blockages, rank_positions, step_range
from ncclkit.core.case import Case
from ncclkit.core.kinds import AttachRank
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.text import format_age
from ncclkit.core.text import ranks as rank_words
from ncclkit.live.children import last_of, lines_of
from ncclkit.live import scheduler
from ncclkit.live.launch import launchers, slurm_beside
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.pack import packed

SLACK, CLUSTER = 3.0, 15.0
"""Seconds in which a child that has reached its own deadline has to end; those that a cluster
adds."""
LEAST = 7.0
"""Seconds that a look takes at least beside the time between its snapshots."""
LONGEST_RECORD = 1 << 20
"""Bytes of one record of the child; a longer line is none."""
MOST = 64
"""Ranks that a node of a cluster has at most."""


class NoRank(NcclkitError):
    """No process that is meant has a rank."""


PROCESS = re.compile(r"(\d{1,7}=)?\d{1,10}")
"""A process id, or a rank and its process id."""
OUTPUTS = 4
"""Files that ranks print to which are named at most."""
SUDO = "its environment may be read by that user and by root alone: repeat it with sudo"


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """How a running job is read.

    Raises NcclkitError for numbers that make no sense.
    """

    seconds: float = agent.SECONDS
    """Seconds between the first snapshot and the last, at least.

    A job in which a rank stalls is watched for ten.
    """
    snapshots: int = 2
    kernels: bool = False
    """Whether cuda-gdb asks each GPU for its kernel, for which the processes are paused."""
    dump: bool = False
    """Whether each rank is asked for its Flight Recorder.

    A debugger asks where there is no milder method.
    """
    follow: float = 0.0
    """Seconds for which a rank has to stall until the job is looked at.

    With 0 it is looked at at once.
    """
    timeout: float | None = None
    """Seconds in which it ends, with eight ranks on a host.

    None stands for 27, 87 with debuggers, or more for `seconds` and on a host that is full.
    """
    slower: float = field(init=False, default_factory=crowding_here)
    """How many times longer readers take here, as others use the cores."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 86400:
            raise NcclkitError(f"A job cannot be watched for {self.seconds:g} s; give up to a day.")
        if not 0 <= self.follow <= 86400:
            raise NcclkitError(
                f"A job cannot be followed until a rank stalls for {self.follow:g} s; give up to a"
                " day."
            )
        if not 1 <= self.snapshots <= 100:
            raise NcclkitError(f"{self.snapshots} snapshots cannot be taken; give 1 to 100.")
        if self.timeout is not None and not self.seconds + LEAST <= self.timeout <= 86400:
            raise NcclkitError(
                f"A timeout of {self.timeout:g} s is too short; it takes"
                f" {self.seconds + LEAST:g} s."
            )

    @property
    def limit(self) -> float:
        """Seconds in which it ends, from the moment on at which it looks.

        That is with eight ranks on a host.
        """
        most = agent.TIMEOUT + agent.DEBUGGER_EXTRA * (self.kernels or self.dump)
        # a longer watch makes all of it as much longer
        return self.timeout or max(most, self.seconds + most - agent.SECONDS) * self.slower

    def deadline(self, ranks: int, slack: float) -> float | None:
        """Seconds after which a child that looks at so many ranks is ended.

        It is None where the child waits for a hang.
        """
        # a debugger in the middle of a call must not be ended with its child: the rank would die
        unwinds = (flight_dump.UNWIND_GRACE + SLACK) * (self.dump or self.kernels)
        if self.follow:
            return None
        return self.limit + max(0, ranks - 8) * agent.PER_FURTHER_RANK + slack + unwinds

    @property
    def costs(self) -> tuple[str, ...]:
        """One sentence on each thing that is done to the processes on request."""
        costs = "; else ".join(flight_dump.COSTS.values())
        return (*[f"--kernels: {kernels.COST}."] * self.kernels, *[f"--dump: {costs}."] * self.dump)

    def words(self) -> str:
        """The options as the agent takes them."""
        names = ("seconds", "snapshots", "kernels", "dump", "follow")
        return json.dumps({name: getattr(self, name) for name in names} | {"timeout": self.limit})


@dataclass(frozen=True, slots=True)
class Attached:
    """What was collected from running ranks."""

    folder: Path
    reading: evidence.Reading
    events: tuple[Event, ...]
    """Those of the reading, and what follows from where the ranks stand (`blockages`)."""
    problems: tuple[str, ...]
    """One sentence for each thing that could not be had."""
    jobs: tuple[str, ...] = ()
    """One line for each command of ranks.

    It is such as ``ranks 0-3 on node-1: python train.py (started by torchrun, process 4700)``.
    """
    progress: tuple[str, ...] = ()
    """``rank 2 at step 119``, and the last line of progress that ranks printed.

    It is told where it is known.
    """


async def attach(
    case: Case,
    pids: Sequence[str] = (),
    job: str | None = None,
    options: AttachOptions | None = None,
    on_record: OnRecord = lambda record: None,
) -> Attached:
    """Collect what running ranks do into a run folder, and read it.

    `pids` and `job` say whom, as `ranks_of_target` takes them; a Slurm job is looked at on all of
    its nodes.  The child process is dead when this returns, is cancelled or raises.  Raises
    NcclkitError where nobody is meant and where nothing could be had.
    """
    options = options or AttachOptions()
    if case.path is None:
        raise NcclkitError("Looking at processes needs a case folder; give case_dir a name.")
    launcher = None
    no_answer = None
    if job is not None:
        try:
            launcher = await launchers.launcher_of_job(job)
        except NcclkitError as error:
            no_answer = error
    meant = {}
    notes: list[str] = []
    if launcher is None:
        meant = _ranks_here(pids, job, notes.append, no_answer)
    folder = case.new_run("attach")
    problems: list[str] = []

    def keep(record: dict[str, Any]) -> None:
        if record.get("kind") == "problem":
            problems.append(str(record.get("say")))
        on_record(record)

    for say in filter(None, (*options.costs, *notes)):
        on_record({"kind": "note", "say": say})
    with packed() as program:
        if launcher is not None and job is not None:
            words = ("attach", str(folder), options.words(), agent.OF_THIS_JOB)
            command = launcher.beside_job(job, program, folder, *words)
            await _child(
                command,
                folder,
                options.deadline(MOST, CLUSTER),
                keep,
                launcher.own_environ(),
            )
            # each node writes a file of its own: lines of several in one pipe may mix
            for line in sorted(folder.glob("attach-node*.jsonl")):
                for record in filter(None, map(wire.parse_record, line.read_bytes().splitlines())):
                    keep(record)
        else:
            command = [sys.executable, str(program), "attach", str(folder), options.words()]
            asked = (f"{rank}={pid}" for rank, pid in meant.items())
            await _child([*command, *asked], folder, options.deadline(len(meant), SLACK), keep)
    return read_look(case, folder, problems)


def _ranks_here(
    pids: Sequence[str],
    job: str | None,
    note: Callable[[str], object],
    no_answer: NcclkitError | None,
) -> dict[int, int]:
    """The ranks on this host, as `ranks_of_target` has them.

    Where there is none, and the scheduler did not answer, that is what is said.
    """
    try:
        return ranks_of_target(pids, job, note)
    except NcclkitError:
        # that this host has no rank says nothing about the hosts that nobody could name
        if no_answer is not None:
            raise no_answer from None
        raise


def read_look(case: Case, folder: Path, problems: Sequence[str]) -> Attached:
    """Read what the folder of a look holds into the case, and save it."""
    try:
        reading = evidence.read([folder])
    except NcclkitError as error:
        raise NcclkitError(
            f"No rank could be read: {problems[0] if problems else error}"
        ) from error
    seen = [event for event in reading.events if event.kind == "attach.rank"]
    rows = [event for event in seen if not event.data.gone]
    if not rows:
        raise NcclkitError(_nothing_read(problems, bool(seen)))
    # a wait that one moment shows is none that lasts, where anything moved
    still = motion(reading.events) is None
    events = (*reading.events, *(blockages(reading.events) if still else ()))
    case.add(events).save()
    return Attached(folder, reading, events, tuple(problems), _jobs(rows), tuple(_steps(rows)))


def _nothing_read(problems: Sequence[str], were_ranks: bool) -> str:
    """Why a look saw no rank, in one sentence."""
    if problems:
        return f"No rank could be read: {problems[0]}."
    if were_ranks:
        return "No rank could be read: all of them are gone."
    return (
        "No process of the job has a RANK in its environment: its ranks have not started, it has"
        " none, or they are numbered in another way; look again later, or name the ranks on their"
        " node: `ncclkit attach --pid RANK=PID`."
    )


async def _child(
    command: Sequence[str],
    folder: Path,
    deadline: float | None,
    on_record: OnRecord,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command that sends records.

    It is dead, with what it started, when this returns.
    """
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *command,
        stdout=pipe,
        stderr=pipe,
        stdin=asyncio.subprocess.DEVNULL,
        # a group of its own, by which everything that it starts is ended
        start_new_session=True,
        env=env,
    )
    assert child.stdout is not None and child.stderr is not None

    async def follow(stream: asyncio.StreamReader) -> None:
        async for line in lines_of(stream, LONGEST_RECORD):
            record = wire.parse_record(line)
            if record is not None:
                on_record(record)

    try:
        ended = asyncio.gather(follow(child.stdout), last_of(child.stderr), child.wait())
        _, wrong, code = await asyncio.wait_for(ended, deadline)
    except asyncio.TimeoutError:
        say = (
            f"Attaching was ended after {deadline:.0f} s; what it had collected until then counts."
        )
        on_record({"kind": "problem", "say": say})
        return
    finally:
        await _end(child)
        # such as the driver's report, which still names other jobs
        for unfinished in folder.glob("*.part"):
            unfinished.unlink(missing_ok=True)
    if code:
        last = (wrong.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise NcclkitError(f"Attaching failed: {last[:200]}.")


async def _end(child: asyncio.subprocess.Process) -> None:
    """End a child.

    It is asked first, so that readers let go of their processes, and srun of its nodes.
    """
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, None)):
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(child.wait(), patience)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One job of this user on this host, which can be attached to."""

    ranks: Mapping[int, int]
    """Rank → process id."""
    command: str
    """That of its first rank, redacted and cut; whoever started it chose the words."""

    @property
    def process(self) -> int:
        """The process of the lowest rank, which stands for the job."""
        return self.ranks[min(self.ranks)]


def running_jobs() -> list[RunningJob]:
    """The jobs of this user on this host, the one with most ranks first."""
    own = []
    user = os.geteuid()
    for pid in processes.parents():
        # root sees those of everybody
        if processes.owner(pid) == user:
            own.append(pid)
    found = []
    for ranks in processes.jobs_of_processes(own):
        first = min(ranks)
        details = snapshots.process_details(ranks[first])
        command = str(details["command"])
        found.append(RunningJob(ranks, command))
    found.sort(key=_by_size)
    return found


def _by_size(job: RunningJob) -> tuple[int, int]:
    return -len(job.ranks), job.process


def ranks_of_target(
    pids: Sequence[str] = (), job: str | None = None, on_note: Callable[[str], object] = str
) -> dict[int, int]:
    """The pid of each rank of the one job that the target names.

    `pids` are one process of it, a rank or its launcher; or several, which then are the only ranks
    looked at; ``3=4711`` is a process that carries no RANK, with its number.  `job` is the id of a
    Slurm job.  Without either it is the only job of this user here.  Workers of a server or of Ray,
    which carry no RANK, are found by how they were started; what has to be known of their numbers
    is handed to `on_note`.  Raises NcclkitError, which says what is missing where no process, or no
    single job, is meant.
    """
    strange = next((one for one in pids if not PROCESS.fullmatch(one)), None)
    if strange is not None:
        raise NcclkitError(f"{strange!r} is not a process id, nor RANK=PID such as 3=4711.")
    given = {
        int(rank): int(pid) for rank, equal, pid in (one.partition("=") for one in pids) if equal
    }
    plain = [int(one) for one in pids if "=" not in one]
    # first of all: of what may not be read nobody knows whether it has a rank
    hidden = [pid for pid in (*plain, *given.values()) if not _readable(pid)]
    if hidden:
        raise NcclkitError(_closed(hidden[0]))
    jobs = []
    if plain or not given:
        meant = list(_meant(plain, job))
        jobs = processes.jobs_of_processes(meant)
        groups = []
        if not jobs or _lack_ranks(jobs):
            family = _with_children(plain, meant)
            groups = workers.worker_groups(family)
        # what a worker starts carries the RANK that the worker has given itself
        if not jobs or _are_below(jobs, groups):
            jobs = []
            for group in groups:
                note = workers.note_on(group)
                jobs.append(group.ranks)
                on_note(note)
    if len(jobs) > 1:
        heads = ", ".join(f"{rank_words(found)} with process {found[min(found)]}" for found in jobs)
        raise NcclkitError(
            f"{len(jobs)} jobs run on this host ({heads}); name one of these with --pid, or use"
            " --job."
        )
    if not jobs and not given:
        raise NoRank(_nobody(plain, job))
    return {**(jobs[0] if jobs else {}), **given}


def _lack_ranks(jobs: Sequence[Mapping[int, int]]) -> bool:
    """Whether a job has fewer ranks here than its processes were told."""
    for job in jobs:
        variables = processes.environ(min(job.values()))
        due = processes.number_of(variables, "LOCAL_WORLD_SIZE")
        if due is not None and len(job) < due:
            return True
    return False


def _are_below(
    jobs: Sequence[Mapping[int, int]], groups: Sequence[workers.WorkerGroup]
) -> bool:
    """Whether each rank of these jobs is a process that a worker of a group has started."""
    members: set[int] = set()
    for group in groups:
        members.update(group.ranks.values())
    below: set[int] = set()
    for member in members:
        children = processes.descendants(member)
        below.update(children)
    for job in jobs:
        if not below.issuperset(job.values()):
            return False
    return True


def _with_children(plain: Sequence[int], meant: Iterable[int]) -> list[int]:
    """The processes among which workers without a number are looked for.

    They are those that this user owns: root sees those of everybody.
    """
    user = os.geteuid()
    own = []
    if not plain:
        for pid in meant:
            if processes.owner(pid) == user:
                own.append(pid)
        return own
    family = set(plain)
    for pid in plain:
        children = processes.descendants(pid)
        family.update(children)
    if len(family) == 1:
        # one worker stands for its group, as one rank does for its job
        family.update(workers.siblings_of(plain[0]))
    return sorted(family)


def _jobs(rows: Sequence[Event[AttachRank]]) -> tuple[str, ...]:
    """The ranks of each command, host and launcher in one line.

    Where they have one, it tells their job's id in Slurm.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for event in rows:
        notes = []
        if event.data.launcher:
            notes.append(f"started by {event.data.launcher}")
        if event.data.slurm:
            notes.append(f"Slurm job {event.data.slurm}")
        what = event.data.command or f"process {event.pid}"
        if notes:
            what = f"{what} ({'; '.join(notes)})"
        found.setdefault((event.host, what), []).append(event.rank or 0)
    return tuple(f"{rank_words(held)} on {host}: {what}" for (host, what), held in found.items())


def _steps(rows: Sequence[Event]) -> Iterator[str]:
    """How far the ranks are.

    It is told by variables in their stacks, and by the last line of progress in what they print.
    """
    each: dict[str, list[int]] = {}
    for rank, position in rank_positions(rows).items():
        each.setdefault(step_range([position]), []).append(rank)
    for known, held in each.items():
        if known:
            yield f"{rank_words(held)} at {known}"
    printed = {
        str(event.data.output["file"]): event.data.output for event in rows if event.data.output
    }
    for file, output in list(printed.items())[:OUTPUTS]:
        last = ""
        if output.get("line"):
            last = f": {output['line']}"
        yield f"output {file}, written {format_age(float(output['quiet']))} ago{last}"


def _meant(pids: Sequence[int], job: str | None) -> Sequence[int]:
    """The processes among which ranks are looked for."""
    if len(pids) > 1:
        return pids
    if pids:
        return list(processes.of_job(pids[0]))
    if job is None:
        return list(processes.parents())
    number, _, task = job.partition("_")
    if task:
        return _of_array_task(number, task)
    return list(processes.of_slurm(number.partition("+")[0]))


def _of_array_task(number: str, task: str) -> list[int]:
    """The processes here of an array's task, which has a number of its own in Slurm."""
    found = []
    for pid in processes.parents():
        variables = processes.environ(pid)
        of_array = variables.get("SLURM_ARRAY_JOB_ID") == number
        if of_array and variables.get("SLURM_ARRAY_TASK_ID") == task:
            found.append(pid)
    return found


def _readable(pid: int) -> bool:
    """Whether its environment can be read.

    That of a process that has ended or is ending is empty, and no secret.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            source.read(1)
    except PermissionError:
        return False
    except OSError as error:
        raise NcclkitError(
            f"There is no process {pid} that can be seen from here ({error.strerror})."
        ) from error
    return True


def _closed(pid: int) -> str:
    """Who may look at a process that this user may not."""
    uid = processes.owner(pid)
    if uid == os.geteuid():
        return (
            f"Process {pid} is this user's and may still not be read; it takes CAP_SYS_PTRACE:"
            " repeat it with sudo."
        )
    who = str(uid)
    with suppress(KeyError):  # a container may have no name for it
        who = pwd.getpwuid(uid).pw_name
    return f"Process {pid} belongs to {who}, and {SUDO}."


def _nobody(pids: Sequence[int], job: str | None) -> str:
    """Why there is no rank."""
    if pids:
        if len(pids) == 1:
            none = f"Process {pids[0]}"
            own = f"{none} and what it started carry"
        else:
            none = f"Processes {', '.join(map(str, pids[:5]))}"
            own = f"{none} carry"
        return (
            f"{own} no RANK in the environment; where you know it, write it before: --pid"
            f" 0={pids[0]}."
        )
    others = sum(not os.access(f"/proc/{pid}/environ", os.R_OK) for pid in processes.parents())
    more = (
        f"; {others} processes of other users could not be looked at, as that takes root: try sudo"
        if others
        else ""
    )
    if job is not None:
        none = f"Slurm job {job} has no rank of this user on this host"
        if slurm_beside.can_ask_about_jobs():
            return (
                f"{none}, and Slurm knows no job {job} that runs: it ended some minutes ago or"
                " earlier, or the number is another; `squeue --me` lists yours."
            )
        return f"{none}, and no Slurm is here that knows its nodes; look on one of them{more}."
    if scheduler.is_login_node():
        return (
            "No process of this user on this login node has a RANK in its environment; `squeue"
            " --me` lists your jobs, and `ncclkit attach --job N` looks at one on its nodes."
        )
    return (
        "No process of this user has a RANK in its environment; name the ranks: --pid"
        f" RANK=PID{more}."
    )
