"""How Slurm says that a job ended, and what it says of its nodes.

A rank that loses its peer cannot tell a dead node from a broken network; the scheduler can.  The
answers are kept as lines that a grammar reads, ``JobId=… JobState=…`` and ``NodeName=… State=…``,
so that a case which holds them is judged without Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ncclkit.core.model import NcclkitError

Ask = Callable[..., str]
"""Asks a command of Slurm; raises NcclkitError, in one sentence, where it does not answer."""

FILE = "scheduler.log"
"""File of a run folder that keeps the answers."""
FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:&]*)=")
"""How one field of ``scontrol -o`` begins; it ends where the next one begins."""
NODES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]{0,4000}")
"""A list of nodes as Slurm writes it: it becomes a word of a command."""
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
"""One node."""
STATE = re.compile(r"[A-Z][A-Z_]{1,30}")
COUNT = re.compile(r"[0-9]{1,6}")
NODE_STATE = re.compile(r"[A-Z][A-Z_]{1,30}(?:\+[A-Z_]{1,30}){0,12}[*~#!%$@^-]{0,3}")
NUMBER = re.compile(r"[1-9][0-9]{0,9}")
PART = re.compile(r"[1-9][0-9]{0,9}\+[0-9]{1,6}")
"""A part of a heterogeneous job."""
WENT_WELL = "COMPLETED"
FOLLOWS = (WENT_WELL, "CANCELLED", "FAILED")
"""Ends of a part that tell less of the whole job than any other; the last one tells most."""
LOST = ("NODE_FAIL", "BOOT_FAIL")
"""States of a job that ended with a node of it."""
AT_WORK = (
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
)
WAITING = (
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
BAD = (
    "DOWN",
    "FAIL",
    "NOT_RESPONDING",
)
"""Words in the state of a node that is gone."""
KEPT_FIELDS = (
    "FailedNode",
    "Reason",
    "ExitCode",
    "StartTime",
    "EndTime",
    "NodeList",
)
"""What of a job is kept, in this order."""
DRAINED = "DRAIN"
"""How the word begins that says that a node gets no further job."""
NOTICED = timedelta(minutes=10)
"""How long after the end of a job its controller may notice that a node is gone.

It waits for SlurmdTimeout, 5 minutes by default, which the ranks of a job do not.
"""
SINCE = re.compile(r"\[[^\[\]@]{0,200}@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]")
"""When somebody, or Slurm itself, wrote down why a node is not used."""
UNKNOWN_ID = "invalid job id"
SILENCE = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Communication connection failure",
    "Communication shutdown failure",
    "Message send failure",
    "Message receive failure",
    "Connection timed out establishing",
    "Connection timed out reading",
    "Connection timed out writing",
    "Unexpected missing socket error",
    "Slurm backup controller in standby mode",
    "Controller is in standby mode",
    "Connection refused",
)
"""What Slurm's commands say where the controller, or the accounting, did not answer."""


def is_silence(said: str) -> bool:
    """Whether a command of Slurm says that nobody answered it, and so nothing about a job."""
    lowered = said.lower()
    return any(text.lower() in lowered for text in SILENCE)

"""What Slurm says of a job that it does not know."""
LONGEST = 300
"""Characters of a line that is kept."""
MOST_NODES = 64
"""Nodes in trouble of which a line is kept."""


@dataclass(frozen=True, slots=True)
class SlurmEnd:
    """What Slurm says of a job."""

    state: str = ""
    """Its own word; empty where it does not know the job."""
    nodes: str = ""
    lines: tuple[str, ...] = ()
    """What a reader of the job's logs should know; none of a job that went well."""
    problem: str = ""
    """Why it is not known how the job ended, in one sentence."""
    restarts: int = 0
    """How often Slurm has put it into the queue again."""

    @property
    def is_requeued(self) -> bool:
        """Whether it waits for its next attempt, which nobody has to submit."""
        return self.state in WAITING and self.restarts > 0


def fields(line: str) -> dict[str, str]:
    """The fields of one line of ``scontrol -o``, of each name the first one.

    Paths come last, and may hold what looks like a field.
    """
    found: dict[str, str] = {}
    names = list(FIELD.finditer(line))
    ends = [following.start() for following in names[1:]] + [len(line)]
    for name, end in zip(names, ends, strict=False):
        found.setdefault(name[1], line[name.end() : end].strip())
    return found


def end_of_job(job: str, ask: Ask, run_failed: bool = False) -> SlurmEnd:
    """How Slurm says that a job ended.

    It is asked up to three times, and no more after a silence.  `job` is an id that was checked.
    `run_failed`: something in it has failed, though the job itself is still at work.
    """
    try:
        parts = _shown_job(job, ask) or _accounted_job(job, ask)
    except NcclkitError as error:
        why = str(error).rstrip(".")
        return SlurmEnd(problem=f"Slurm did not say how job {job} ended ({why}).")
    known = _telling_part(parts)
    state = known.get("JobState", "")
    if not STATE.fullmatch(state):
        return SlurmEnd()
    own_nodes = known.get("NodeList", "")
    nodes = ",".join(part["NodeList"] for part in parts if part.get("NodeList"))
    if state in (*WAITING, WENT_WELL):
        restarts = 0
        if COUNT.fullmatch(known.get("Restarts", "")):
            restarts = int(known["Restarts"])
        return SlurmEnd(state, nodes, restarts=restarts)
    lines = []
    if state not in AT_WORK:
        kept = [f"JobId={known.get('Part', job)}", f"JobState={state}"]
        # of a single node nobody has to say which one failed, and it may be back by now
        if state in LOST and NODE.fullmatch(own_nodes):
            known = {"FailedNode": own_nodes, **known}
        for name in KEPT_FIELDS:
            value = known.get(name)
            if value:
                kept.append(f"{name}={value}")
        lines.append(_clean(" ".join(kept)))
    try:
        # jobs go on where a node is being drained, so it says nothing about one at work
        drained = run_failed or state not in AT_WORK
        lines += _nodes_in_trouble({**known, "NodeList": nodes}, ask, drained)
    except NcclkitError as error:
        why = str(error).rstrip(".")
        problem = f"Slurm did not say how the nodes of job {job} are ({why})."
        return SlurmEnd(state, nodes, tuple(lines), problem)
    return SlurmEnd(state, nodes, tuple(lines))


def note_on_running(job: str, end: SlurmEnd) -> str:
    """That a job has not ended, in one sentence; empty where it has."""
    where = ""
    if NODES.fullmatch(end.nodes):
        where = f" on {end.nodes[:80]}"
    if end.is_requeued:
        return (
            f"Slurm has put job {job} into the queue again by itself ({end.state}), so its logs are"
            " of an earlier attempt; who submits it, too, has it twice."
        )
    if end.state in WAITING:
        return f"Slurm job {job} waits in the queue ({end.state}): nothing of it runs now."
    if end.state in AT_WORK and end.state != "RUNNING":
        return (
            f"Slurm job {job} has not ended ({end.state}{where}), so its logs end before the job"
            " does."
        )
    if end.state in AT_WORK:
        return (
            f"Slurm job {job} still runs{where}, so its logs end before the job does; `ncclkit"
            f" attach --job {job}` looks at its ranks now."
        )
    return ""


def _telling_part(parts: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The part of a job whose state is that of the whole, or says why the whole ended."""
    found: Mapping[str, str] = {}
    for part in parts:
        if not found or _telling(part) < _telling(found):
            found = part
    return found


def _telling(part: Mapping[str, str]) -> int:
    """The place of a part among those that tell how the job is; the first one tells most."""
    state = part.get("JobState", "")
    for place, states in enumerate((AT_WORK, WAITING, LOST)):
        if state in states:
            return place
    if state not in FOLLOWS:
        return 3
    # Slurm cancels the other parts of a job that lost one
    return 3 + len(FOLLOWS) - FOLLOWS.index(state)


def _shown_job(job: str, ask: Ask) -> list[Mapping[str, str]]:
    """The job as the controller knows it, which forgets it some minutes after its end.

    A heterogeneous job has several parts.
    """
    try:
        said = ask("scontrol", "-o", "--", "show", "job", job)
    except NcclkitError as error:
        if UNKNOWN_ID in str(error).lower():
            return []
        raise
    rows = [fields(line) for line in said.splitlines()]
    parts: list[Mapping[str, str]] = []
    for row in rows:
        whole = row.get("HetJobId", "")
        offset = row.get("HetJobOffset", "")
        if COUNT.fullmatch(offset) and NUMBER.fullmatch(whole):
            parts.append({**row, "Part": f"{whole}+{offset}"})
    # of an array the first task stands for all
    return parts or list(rows[:1])


ACCOUNTED = (
    "JobState",
    "ExitCode",
    "StartTime",
    "EndTime",
    "NodeList",
    "Part",
)
"""Names of ``scontrol`` for the columns in which sacct is asked."""


def _accounted_job(job: str, ask: Ask) -> list[Mapping[str, str]]:
    """The job as the accounting keeps it; each part of a heterogeneous job has a row."""
    columns = "--format=State,ExitCode,Start,End,NodeList,JobID"
    said = ask("sacct", f"--jobs={job}", "-X", "-n", "-P", columns)
    rows = []
    for line in said.splitlines():
        cells = line.split("|")
        # such as CANCELLED by 1000
        cells[0] = cells[0].partition(" ")[0]
        rows.append(dict(zip(ACCOUNTED, cells, strict=False)))
    parts: list[Mapping[str, str]] = []
    for row in rows:
        if PART.fullmatch(row.get("Part", "")):
            parts.append(row)
    if parts:
        return parts
    # of an array the first task stands for all
    for row in rows[:1]:
        row.pop("Part", None)
    return list(rows[:1])


def _nodes_in_trouble(job: Mapping[str, str], ask: Ask, drained: bool) -> Iterator[str]:
    """A line for each node of the job that went out of use while the job ran, or soon after."""
    nodes = job.get("NodeList", "")
    if not NODES.fullmatch(nodes):
        return
    said = ask("scontrol", "-o", "--", "show", "node", nodes)
    for line in said.splitlines()[:MOST_NODES]:
        node = fields(line)
        name, state = node.get("NodeName", ""), node.get("State", "")
        if not NODES.fullmatch(name) or not NODE_STATE.fullmatch(state):
            continue
        reason = node.get("Reason", "none")
        if _is_in_trouble(state, drained) and _is_of_job(reason, job):
            yield _clean(f"NodeName={name} State={state} Reason={reason}")


def _is_in_trouble(state: str, drained: bool) -> bool:
    """Whether a node is down or does not answer (``*``); with `drained`, or is taken out of use."""
    # a node of a cloud that nobody needs is switched off, which ~ and these words mean
    if "POWERED_DOWN" in state or "POWERING_DOWN" in state or "~" in state:
        return False
    if "*" in state or any(word in state for word in BAD):
        return True
    return drained and DRAINED in state


def _is_of_job(reason: str, job: Mapping[str, str]) -> bool:
    """Whether a node got its reason while the job ran, or soon after its end."""
    begun = _time(job.get("StartTime", ""))
    ended = _time(job.get("EndTime", ""))
    is_over = job.get("JobState") not in AT_WORK
    noted = SINCE.search(reason)
    since = _time(noted[1]) if noted else None
    if since is None:
        # a node without a date may have gone at any time since
        return not is_over or job.get("JobState") == "NODE_FAIL"
    if begun is not None and since < begun:
        return False
    # of a job at work the end is that of its time limit
    return not is_over or ended is None or since <= ended + NOTICED


def _time(said: str) -> datetime | None:
    try:
        # of the controller's own clock, as are all of these
        return datetime.strptime(said, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None


def _clean(line: str) -> str:
    """The line without what would steer a terminal, or begin another line."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)[:LONGEST]
