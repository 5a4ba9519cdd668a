"""What came of the batch jobs of a case: one question to Slurm for all of them.

What lies in the case is read first.  Slurm is asked about the rest, once; after its first silence
it is asked nothing more, and no job is called ended because of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from ncclkit.agent.digits import is_whole
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import scheduler
from ncclkit.live.submit import (
    ABSENT,
    ACCOUNTED,
    FORGOTTEN,
    OVER,
    SILENT,
    STATE,
    BatchJob,
    JobState,
    parse_accounted,
    parse_state,
    unaccounted,
    why_unavailable,
    with_hints,
)

QUEUED = "%i|%T|%S|%N|%P|%M|%r"
"""Columns in which squeue is asked; the reason comes last, as anybody may have written it."""
AT_ONCE = 1000
"""Jobs of one question."""
EXPLAINED = 8
"""Jobs that ended without an exit status of ours, of which each is asked alone."""
SHOWN = 300
"""Characters of a sentence about a job."""


class _Outcome(TypedDict, total=False):
    """What of ``outcome.json`` is; anybody may have written the case."""

    verdict: str
    cause: str | None
    strength: str | None
    say: str | None
    report: str | None
    action: dict[str, Any] | None


class _End(TypedDict):
    """What of ``end.json`` is: the end of a job, as Slurm told it once."""

    state: str
    elapsed: str
    nodes: str
    status: int | None


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """A batch job, its state, and what came of its verb."""

    job: BatchJob
    state: JobState
    verdict: str = ""
    cause: str = ""
    strength: str = ""
    sentence: str = ""
    """The verdict on what the job was about, in one sentence."""
    report: str = ""
    """The page that it wrote."""
    action: Mapping[str, Any] | None = None
    """As ``action`` of `diagnose --json`."""

    def lines(self) -> list[str]:
        """What is said of it below its state."""
        lines = []
        sure = ", ".join(filter(None, (self.strength, self.cause)))
        head = self.verdict
        if sure:
            head = f"{self.verdict} ({sure})"
        said = ": ".join(filter(None, (head, self.sentence[:SHOWN])))
        if said:
            lines.append(said)
        if self.action and self.verdict in ("found", "unexplained"):
            without = ", ".join(map(str, self.action.get("exclude_hosts") or ()))
            name = str(self.action.get("name", ""))
            if without:
                name = f"{name} without {without}"
            reason = str(self.action.get("reason", ""))
            lines.append(f"Restart or stop: {name}: {reason}"[:SHOWN])
        if self.report:
            lines.append(f"Report: {self.report}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The object of ``ncclkit status --json`` of one job."""
        return {
            "id": self.job.id,
            "words": list(self.job.words),
            "folder": str(self.job.folder),
            "submitted": self.job.submitted,
            "state": self.state.state,
            "sentence": self.state.sentence,
            "over": self.state.over,
            "answered": self.state.state != SILENT,
            "exit_status": self.state.status,
            "verdict": self.verdict or None,
            "cause": self.cause or None,
            "strength": self.strength or None,
            "say": self.sentence or None,
            "action": self.action,
            "report": self.report or None,
        }


def job_outcomes(jobs: Sequence[BatchJob], case: Case | None = None) -> list[JobOutcome]:
    """What came of these jobs, in their order; it takes some seconds at most, and never raises.

    `case` knows the cluster, of which hints then name what it has.
    """
    states: dict[str, JobState] = {}
    open_jobs = []
    for job in jobs:
        kept = _kept_end(job)
        if kept is None:
            open_jobs.append(job)
        else:
            states[job.id] = kept
    if open_jobs:
        states |= _states_by_slurm(open_jobs)
    if case is not None:
        states = {number: with_hints(case, state) for number, state in states.items()}
    return [_outcome(job, states[job.id]) for job in jobs]


def _outcome(job: BatchJob, state: JobState) -> JobOutcome:
    """The job with what its verb kept, where it has ended."""
    if not state.over:
        return JobOutcome(job, state)
    try:
        kept = storage.read_json(job.folder / "outcome.json", {}, _Outcome)
    except NcclkitError as error:
        return JobOutcome(job, state, sentence=str(error))
    return JobOutcome(
        job,
        state,
        kept.get("verdict") or "",
        kept.get("cause") or "",
        kept.get("strength") or "",
        kept.get("say") or "",
        kept.get("report") or "",
        kept.get("action"),
    )


def _kept_end(job: BatchJob) -> JobState | None:
    """The end of a job, as its folder keeps it since Slurm told it."""
    with suppress(NcclkitError):  # a damaged file is asked for again
        end = storage.read_json(job.folder / "end.json", {}, _End)
        if end and end["state"] in OVER:
            return JobState(
                job.id,
                end["state"],
                nodes=end["nodes"],
                elapsed=end["elapsed"],
                status=end["status"],
            )
    return None


def _keep_end(job: BatchJob, state: JobState) -> None:
    end = _End(state=state.state, elapsed=state.elapsed, nodes=state.nodes, status=state.status)
    with suppress(OSError):  # somebody else's case is asked about again
        storage.write(job.folder / "end.json", json.dumps(end))


def _states_by_slurm(jobs: Sequence[BatchJob]) -> dict[str, JobState]:
    """The state of each job, by as few questions as there can be."""
    silence = ""
    queued: dict[str, JobState] = {}
    for start in range(0, len(jobs), AT_ONCE):
        try:
            queued |= _queued(jobs[start : start + AT_ONCE])
        except NcclkitError as error:
            silence = str(error).rstrip(".")
            break
    if silence:
        return {job.id: _unasked(job, silence) for job in jobs}
    gone = []
    for job in jobs:
        if job.id not in queued and job.status is None:
            gone.append(job)
    ended = _accounted(gone)
    found = {}
    for job in jobs:
        state = queued.get(job.id) or ended.get(job.id) or JobState(job.id, FORGOTTEN)
        if state.over and job.status is not None:
            state = replace(state, status=job.status)
        found[job.id] = state
    found = _with_exit_status(jobs, found)
    for job in jobs:
        state = found[job.id]
        # what nobody could be asked about may be known tomorrow
        if state.over and not state.why:
            _keep_end(job, state)
    return _with_places(found)


def _unasked(job: BatchJob, silence: str) -> JobState:
    """What a job's own folder says, where Slurm does not answer."""
    if job.status is not None:
        return JobState(job.id, FORGOTTEN, status=job.status)
    return JobState(job.id, SILENT, why=silence)


def _queued(jobs: Sequence[BatchJob]) -> dict[str, JobState]:
    """The jobs that Slurm's controller still knows.

    Raises NcclkitError where it does not answer.
    """
    numbers = ",".join(job.id for job in jobs)
    try:
        said = _ask_about_all("squeue", "-h", "--states=all", f"--jobs={numbers}", "-o", QUEUED)
    except NcclkitError as error:
        # of a single job that is forgotten, squeue says it so
        if scheduler.UNKNOWN_ID in str(error).lower():
            return {}
        raise
    wanted = {job.id for job in jobs}
    found: dict[str, JobState] = {}
    for line in said.splitlines():
        if not line.strip():
            continue
        state = _parse_queued(line)
        # of an array or a heterogeneous job the first line stands for all
        if state.id in wanted and state.id not in found:
            found[state.id] = state
    return found


def _ask_about_all(*words: str) -> str:
    """What a command answers; an error names it without the numbers of all jobs."""
    try:
        return scheduler.ask_slurm(*words)
    except NcclkitError as error:
        raise NcclkitError(str(error).replace(" ".join(words), words[0])) from error


def _parse_queued(line: str) -> JobState:
    cells = line.strip().split("|", 6)
    if len(cells) < 7 or not STATE.fullmatch(cells[1]):
        answer = repr(line.strip()[:100])
        raise NcclkitError(f"squeue answered {answer}, which has no state of a job.")
    number, state, start, nodes, partition, elapsed, reason = cells
    if not is_whole(start[:1]):
        start = ""
    if state in OVER:
        reason = ""
    base = re.split(r"[_+]", number, maxsplit=1)[0]
    return JobState(base, state, reason, start, nodes, partition, elapsed)


def _accounted(jobs: Sequence[BatchJob]) -> dict[str, JobState]:
    """The ends of jobs that the controller has forgotten, and that left no exit status."""
    if not jobs:
        return {}
    numbers = ",".join(job.id for job in jobs)
    try:
        said = _ask_about_all("sacct", "-nXP", f"--jobs={numbers}", "-o", f"JobID,{ACCOUNTED}")
    except NcclkitError as error:
        why = unaccounted(error)
        return {job.id: JobState(job.id, FORGOTTEN, why=why) for job in jobs}
    found: dict[str, JobState] = {}
    for line in said.splitlines():
        number, _, rest = line.partition("|")
        state = parse_accounted(re.split(r"[_+]", number, maxsplit=1)[0], rest)
        if state is not None:
            found.setdefault(state.id, state)
    return found


def _with_exit_status(jobs: Iterable[BatchJob], found: dict[str, JobState]) -> dict[str, JobState]:
    """The same, with the exit status of the latest jobs that wrote none.

    Slurm alone knows that a node did not see the case folder.
    """
    mute = []
    for job in jobs:
        state = found[job.id]
        if state.state == "FAILED" and state.status is None:
            mute.append(job)
    for job in mute[-EXPLAINED:]:
        try:
            said = scheduler.ask_slurm("scontrol", "-o", "--", "show", "job", job.id)
            told = parse_state(said.partition("\n")[0])
        except NcclkitError:
            break
        found[job.id] = replace(found[job.id], status=told.status)
    return found


def _with_places(found: dict[str, JobState]) -> dict[str, JobState]:
    """The same, with the place of each job that waits, and why its nodes are not to be had."""
    waiting = []
    for state in found.values():
        if state.state == "PENDING":
            waiting.append(state)
    if not waiting:
        return found
    with suppress(NcclkitError):  # the place is a courtesy
        # in the order in which Slurm starts them
        said = scheduler.ask_slurm("squeue", "-h", "-t", "PD", "-S", "-p,i", "-o", "%i|%P")
        places = [line.partition("|")[::2] for line in said.splitlines()]
        for state in waiting:
            same = [number for number, partition in places if partition == state.partition]
            if state.id in same:
                place = (same.index(state.id) + 1, len(same))
                found[state.id] = replace(state, place=place)
        for partition in {one.partition for one in waiting if one.reason.startswith(ABSENT)}:
            why = why_unavailable(partition)
            for state in [*found.values()]:
                if state.partition == partition and state.reason.startswith(ABSENT):
                    found[state.id] = replace(state, why=why)
    return found
