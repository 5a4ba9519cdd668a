"""A verb of the command as a batch job of Slurm.

It makes the job's text, follows the queue, its progress and its end, and finds it again.  All that
is known of a job lies in ``jobs/<n>-<verb>/`` of the case: ``job.sbatch``, ``job.json``, and what
the verb printed.  So whoever opens the case later, from anywhere, finds the job, its progress and
its report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from ncclkit.agent import redact, wire
from ncclkit.agent.digits import is_whole
from ncclkit.agent.facts.machine import Hung, TooLong
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan, Run, read_plan
from ncclkit.core.text import plural, split_words
from ncclkit.evidence.sources import slurm_end
from ncclkit.live import job_checks, node_kinds, probe, scheduler, slurm_words
from ncclkit.live.launch import slurm
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.options import (
    JOB_OPTIONS,
    JobOptions,
    ProbeOptions,
    add_options,
    command_words,
    job_options,
    joined_values,
)

EXIT = re.compile(r"(?P<code>[0-9]{1,3})(?::(?P<signal>[0-9]{1,3}))?")
"""Slurm's ``ExitCode``."""
UNSEEN, NO_PYTHON, NO_FOLDER = 66, 67, 68
"""Exit statuses of our batch script.

The node does not see the case folder, the workbook's interpreter, or the folder that the job was
submitted from.
"""
UNOPENED = 128 + 53
"""The exit status of Slurm's ``0:53``: a node could not open what the job was to print to.

The script has not begun then.
"""
BLIND = (UNSEEN, NO_PYTHON, NO_FOLDER, UNOPENED)
"""Exit statuses of a node that sees too little to leave anything in the case folder."""
SUBMITS = 30.0
"""Seconds for sbatch, which tries again where the queue is full."""
SEEN = 15.0
"""Seconds that files of a job which has ended get to be seen here.

Caches of network file systems take some.
"""
LONGEST = 14 * 86400.0
"""Seconds for which a job is followed; it goes on without us."""


def script(case: Case, folder: Path, verb: Sequence[str], options: JobOptions) -> str:
    """The text that sbatch gets.

    It runs `verb` with its arguments, on the nodes that the options ask for.
    """
    rows = scheduler.known(case).get("partitions", [])
    gpus = asked_gpus(scheduler.partition(rows, options.partition), options)
    kind = str(gpus or "")
    if gpus and options.gpu_type:
        kind = f"{options.gpu_type}:{gpus}"
    constraint = ""
    if options.constraint:
        constraint = scheduler.quoted(options.constraint, "The constraint")
    asked = {
        "job-name": _job_name(verb),
        "nodes": options.nodes,
        "gpus-per-node": kind,
        "constraint": constraint,
        "time": options.time,
    }
    asked |= {
        name: getattr(options, name) for name in ("partition", "account", "qos", "reservation")
    }
    asked |= {"output": _kept_in(folder / "job.out"), "error": _kept_in(folder / "job.err")}
    # a job that is queued again keeps what its first attempt said
    asked |= {"open-mode": "append"}
    lines = [f"#SBATCH --{name}={value}" for name, value in asked.items() if value != ""]
    # 0 is all memory of a node; by default some clusters give a share
    lines += ["#SBATCH --exclusive", "#SBATCH --mem=0"] if options.exclusive else []
    more = split_words(options.sbatch_options, "sbatch options")
    lines += [f"#SBATCH {scheduler.quoted(word, 'The sbatch option')}" for word in more]
    variables = {slurm.CONTAINER: options.container, slurm.SRUN_OPTIONS: options.srun_options}
    here = shlex.quote(str(folder))
    python = shlex.quote(sys.executable)
    # first wait for our own file: caches of network file systems show it late
    body = [
        f"for i in 1 2 3 4 5 6 7 8 9 10; do [ -e {here}/job.sbatch ] && break; sleep 1; done",
        f"[ -e {here}/job.sbatch ] || exit {UNSEEN}  # this node does not see the case folder",
        f"rm -f {here}/exit {here}/outcome.json",
        f"export {storage.OUTCOME_VARIABLE}={here}/outcome.json",
        f"cd {shlex.quote(os.getcwd())} || {{ echo {NO_FOLDER} > {here}/exit; exit {NO_FOLDER}; }}",
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in variables.items()
            if value.strip()
        ),
        *options.setup.splitlines(),
        f"[ -x {python} ] || {{ echo {NO_PYTHON} > {here}/exit; exit {NO_PYTHON}; }}",
        "trap : TERM  # ncclkit itself ends what it started, and keeps the evidence",
        f"{python} -m ncclkit {shlex.join(verb)}",
        "status=$?",
        f"echo $status > {here}/exit",
        "exit $status",
    ]
    return "\n".join(["#!/bin/bash", *lines, *body, ""])


def asked_gpus(row: Mapping[str, Any], options: JobOptions) -> int:
    """The GPUs of each node that a job on a partition asks for."""
    if options.gpus_per_node >= 0:
        return options.gpus_per_node
    return node_kinds.default_gpus(row, options.nodes, options.gpu_type, options.constraint)


def kind_sentence(case: Case, options: JobOptions) -> str:
    """Which of its kinds of nodes a job may get; empty where its partition has one kind."""
    row = scheduler.partition(scheduler.known(case).get("partitions", []), options.partition)
    if len(node_kinds.kinds_to_ask_for(row)) < 2:
        return ""
    gpus = asked_gpus(row, options)
    having = node_kinds.nodes_with_gpus(row)
    asked = (
        "this asks for no GPUs, so it may run on any of them; --gpus-per-node asks for GPUs, which"
        f" {having} of its {plural(row['nodes'], 'node')} have"
    )
    if having < options.nodes:
        asked += f", so -N {having} is the most with them"
    if gpus:
        asked = (
            f"this asks for {plural(gpus, 'GPU')} of each; --gpus-per-node 0 takes any node, and"
            " --gpu-type or -C another kind"
        )
    return f"partition {row['name']} has {node_kinds.mixed_words(row)}: {asked}."


def _job_name(verb: Sequence[str]) -> str:
    """By what name a job stands in the queue."""
    return f"ncclkit-{verb[0]}"


def _kept_in(path: Path) -> str:
    """How a line ``#SBATCH`` names a file of the case folder."""
    return scheduler.quoted(scheduler.file_pattern(path), "The case folder of")


class _Kept(TypedDict):
    """What of ``job.json`` is."""

    id: str
    words: list[str]
    submitted: float


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job that was submitted from a case."""

    folder: Path
    id: str
    words: tuple[str, ...]
    """The verb and its arguments."""
    submitted: float

    def __post_init__(self) -> None:
        # it becomes a word of scancel and the like, and anybody may have written the case
        scheduler.checked_id(self.id, str(self.folder / "job.json"))

    @property
    def printed(self) -> str:
        """What the verb printed: its report."""
        return _text(self.folder / "job.out")

    @property
    def complaints(self) -> str:
        """What it printed on standard error, and Slurm of it."""
        return _text(self.folder / "job.err")

    @property
    def status(self) -> int | None:
        """The exit status of the verb; None where it has not ended by itself."""
        code = scheduler.number_in(_text(self.folder / "exit").strip(), -1)
        if 0 <= code < 256:
            return code
        return None


def _text(path: Path) -> str:
    if path.exists():
        return storage.content(path).decode("utf-8", "replace")
    return ""


def submit(
    case: Case, verb: Sequence[str], options: JobOptions, on_record: OnRecord = lambda record: None
) -> BatchJob:
    """Submit a verb as a batch job.

    `on_record` is shown the text (kind ``script``) before it goes.  Raises NcclkitError in one
    sentence where Slurm refuses it; nothing is left of it then.
    """
    job_checks.refuse_misfit(case, options)
    words = redact.words(verb)
    # what is refused leaves no folder, nor does a person who says no, or leaves at the question
    expected = case.next_folder("jobs", verb[0])
    script(case, expected, verb, options)
    shown = redact.text(script(case, expected, words, options))
    on_record({"kind": "script", "text": shown})
    folder = case.new_folder("jobs", verb[0])
    try:
        # another submit may have taken the number meanwhile
        text = script(case, folder, verb, options)
        shown = redact.text(script(case, folder, words, options))
        known = scheduler.hint_values(case, options.partition)
        said = _handed_over(folder, text, _job_name(verb), known)
    except BaseException:
        shutil.rmtree(folder)
        raise
    number = _submitted_id(said)
    # Slurm has a copy of its own by now; that the file is there shows the nodes that they see the
    # case
    storage.write(folder / "job.sbatch", shown.encode("utf-8", "surrogateescape"))
    kept: _Kept = {"id": number, "words": words, "submitted": time.time()}
    storage.write(folder / "job.json", json.dumps(kept))
    return BatchJob(folder, number, tuple(words), kept["submitted"])


def unmade_folder(case_folder: Path, verb: str) -> Path:
    """Where a batch job of a case will lie, before its number is known."""
    return case_folder / "jobs" / f"N-{verb}"


def refuse_unwritable(case_folder: Path) -> None:
    """Raise NcclkitError for a case folder that cannot stand in a batch script."""
    _kept_in(case_folder)


def _handed_over(folder: Path, text: str, name: str, known: Mapping[str, str]) -> str:
    """What sbatch answers about a job of this name.

    Raises NcclkitError where it does not take the job, with what to do; `known` is what such a hint
    may name.
    """
    begun = time.strftime("%Y-%m-%dT%H:%M:%S")
    try:
        # names that are not UTF-8 arrive as the bytes that they are
        storage.write(folder / "job.sbatch", text.encode("utf-8", "surrogateescape"))
        words = ("sbatch", "--parsable", "--", str(folder / "job.sbatch"))
        return scheduler.ask_slurm(*words, deadline=SUBMITS)
    except (NcclkitError, OSError) as error:
        why = str(error).rstrip(".")
        printed = why
        if isinstance(error, scheduler.RefusalError):
            # a rule of this cluster says its own words before sbatch ends with a general sentence
            why = "; ".join(error.sentences("sbatch")) or why
            printed = error.printed
        was_stopped = isinstance(error.__cause__, (Hung, TooLong))
        if slurm_words.may_be_taken(printed, was_stopped):
            # what sbatch had sent may lie before a controller that wakes up
            raise NcclkitError(
                f"It is not known whether Slurm took the job: {why}. Its folder was removed, so it"
                " ends at once should it start: when Slurm answers again, look whether `squeue"
                f" --me -o '%i %j %V'` lists a job {name} of {begun} or later, cancel that one, and"
                " submit it again in either case."
            ) from None
        hint = slurm_words.refusal_hint(printed, known)
        if hint:
            why = f"{why}; {hint}"
        raise NcclkitError(f"The job was not submitted: {why}.") from None


def _submitted_id(said: str) -> str:
    """The submitted id, on the last line that ``sbatch --parsable`` printed.

    That line is ``ID`` or ``ID;CLUSTER``.
    """
    lines = said.strip().splitlines() or [""]
    number = lines[-1].partition(";")[0].strip()
    if not scheduler.JOB_ID.fullmatch(number):
        answer = repr(said.strip()[:200])
        raise NcclkitError(f"sbatch answered {answer}, which is not a job id; see `squeue`.")
    return number


def submitted_jobs(case: Case) -> list[BatchJob]:
    """The jobs that were submitted from a case, oldest first."""
    found = []
    for folder in case.folders("jobs"):
        if (folder / "job.json").exists():
            kept = storage.read_json(folder / "job.json", {}, _Kept)
            found.append(BatchJob(folder, kept["id"], tuple(kept["words"]), kept["submitted"]))
    return found


# ---------------------------------------------------------------- what Slurm says of a job

ABSENT = ("ReqNodeNotAvail", "Nodes_required", "Required_nodes", "NodeDown", "launch_failed")
"""Reasons for which the nodes themselves are to blame."""
ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached Slurm's time limit; -t asks for more time",
    "NODE_FAIL": "lost a node, which failed; submit it again, and tell your administrators",
    "BOOT_FAIL": "could not boot a node; submit it again, and tell your administrators",
    "OUT_OF_MEMORY": "was killed for want of memory; ask for whole nodes or more of it",
    "PREEMPTED": "was preempted by a job of higher priority; submit it again, or with another QoS",
    "DEADLINE": "could not end before its deadline",
    "REVOKED": "was taken to another cluster",
}
"""Ends that Slurm decides."""
ENDED_WITH = {
    0: "ended well{spent} (exit status 0)",
    1: "ended{spent} with exit status 1 (it found trouble, or failed)",
}
"""How a verb ended of itself, by its exit status."""
UNKNOWN_STATUS = {
    "COMPLETED": "ended well{spent}",
    "FAILED": "failed{spent}",
    "LAUNCH_FAILED": "could not be launched on its nodes",
}
"""The same where nobody knows its exit status, by the state of its job."""
REASON = 200
"""Characters of the reason for which a node is down that are said."""
FORGOTTEN = "FORGOTTEN"
"""The state of a job that Slurm knows no more."""
OVER = {"COMPLETED", "FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL", FORGOTTEN, *ENDS}
"""States of a job that has ended.

Of any other word of Slurm's nobody knows whether it means that.
"""
STATE = re.compile(r"[A-Z][A-Z_]+")
"""Slurm's word for the state of a job."""
SILENT = "SILENT"
"""The state while Slurm does not answer."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What Slurm, and the job itself, say of it now."""

    id: str
    state: str
    """Slurm's own word, or FORGOTTEN, or SILENT."""
    reason: str = ""
    start: str = ""
    """When it began, or is expected to begin."""
    nodes: str = ""
    partition: str = ""
    elapsed: str = ""
    restarts: int = 0
    place: tuple[int, int] = (0, 0)
    """Its place among the jobs that wait in its partition, and their number.

    Both are zero where it was not asked.
    """
    status: int | None = None
    """Exit status of the verb, else of the batch script."""
    why: str = ""
    """What Slurm said instead of an answer.

    Of a job that waits for nodes, it is why these are not available.
    """
    known: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What a hint may name (`scheduler.hint_values`)."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER

    @property
    def stuck(self) -> str:
        """Why it will never start; empty where it may."""
        waiting = self._waiting()
        if self.state == "PENDING" and waiting and waiting.is_final:
            return waiting.hint
        return ""

    def _waiting(self) -> slurm_words.WaitReason | None:
        return slurm_words.waiting_reason(self.reason, {**self.known, "job": self.id})

    @property
    def sentence(self) -> str:
        """The state of the job, in one sentence."""
        again = ""
        if self.restarts:
            again = f" (requeued {plural(self.restarts, 'time')})"
        head = f"Job {self.id}{again}"
        if self.state == SILENT:
            return f"{head}: Slurm does not answer ({self.why}); the job goes on without it."
        if self.stuck:
            return (
                f"{head} will not start as it is ({self.reason}):"
                f" {self.stuck}{self.why and f'; {self.why}'}."
            )
        if self.state in slurm_end.WAITING:
            return f"{head} waits{self._queue()}."
        if not self.over:
            where = ""
            if self.nodes:
                where = f" on {self.nodes}"
            since = ""
            if self.start:
                since = f" since {self.start.replace('T', ' ')}"
            if self.state == "RUNNING":
                does = "runs"
            else:
                does = f"is {self.state.lower()}"
            return f"{head} {does}{where}{since}."
        return f"{head} {self._end()}."

    def _end(self) -> str:
        """How it ended, as far as that is known."""
        if self.state in ENDS:
            return ENDS[self.state]
        if self.status == UNSEEN:
            return (
                "ended at once: its node does not see the case folder; name one on shared"
                " storage (--case)"
            )
        if self.status == NO_PYTHON:
            return (
                f"ended at once: its node does not see {sys.executable}; install ncclkit on"
                " shared storage"
            )
        if self.status == NO_FOLDER:
            return (
                "ended at once: its node does not see the folder that it was submitted"
                " from; submit it from one on shared storage"
            )
        if self.status == UNOPENED:
            return (
                "ended before its script began (Slurm's 0:53), as a rule because its node could"
                " not open job.out in the case folder: the node does not see that folder, may not"
                " write there, or its disk is full; name one on shared storage (--case)"
            )
        if self.status is None and self.state == FORGOTTEN and self.why:
            return (
                "is in Slurm's queue no more; how it ended is not known, as its accounting"
                f" does not answer ({self.why})"
            )
        if self.status is None and self.state == FORGOTTEN:
            return (
                "is not known to Slurm any more, and left no end; its node may have failed"
            )
        spent = ""
        if self.elapsed:
            spent = f" after {self.elapsed}"
        if self.status is None:
            how = UNKNOWN_STATUS.get(self.state, "ended{spent}; how is not known")
        else:
            how = ENDED_WITH.get(self.status, "ended{spent} with exit status {status}")
        return how.format(spent=spent, status=self.status)

    def _queue(self) -> str:
        """Where it waits, on which place, why, and until when."""
        place, count = self.place
        words = [f"in partition {self.partition}" if self.partition else ""]
        words += [f"place {place} of {count}" if place else ""]
        reason = ""
        if self.reason not in ("", "None"):
            reason = self.reason
        waiting = self._waiting()
        known = "reason"
        if waiting:
            known = waiting.hint
        words += [f"{known} ({self.why or reason})" if reason else ""]
        words += [f"expected to start {self.start.replace('T', ' ')}" if self.start else ""]
        said = ", ".join(filter(None, words))
        if not said:
            return ""
        if words[0] or words[1]:
            return f" {said}"
        return f": {said}"


def parse_state(line: str) -> JobState:
    """The state in one line of ``scontrol -o show job``.

    Raises NcclkitError for a line without one.
    """
    fields = scheduler.fields(line)
    state = fields.get("JobState", "")
    if not STATE.fullmatch(state):
        answer = repr(line.strip()[:100])
        raise NcclkitError(f"scontrol answered {answer}, which has no state of a job.")
    start = fields.get("StartTime", "")
    return JobState(
        fields.get("JobId", ""),
        state,
        fields.get("Reason", ""),
        # Unknown, or N/A, where Slurm does not know it
        start if is_whole(start[:1]) else "",
        fields.get("NodeList", "").replace("(null)", ""),
        fields.get("Partition", ""),
        fields.get("RunTime", ""),
        scheduler.number_in(fields.get("Restarts", "")),
        # Slurm writes 0:0 as long as a job has not ended
        status=exit_status(fields.get("ExitCode", "0:0")) if state in OVER else None,
    )


def exit_status(said: str) -> int | None:
    """The exit status in Slurm's ``CODE:SIGNAL``, as a shell has it; None where there is none."""
    match = EXIT.fullmatch(said)
    if match is None:
        return None
    code = int(match["code"])
    signal = int(match["signal"] or 0)
    if signal and not code:
        return 128 + signal
    return code


def job_state(job: BatchJob, with_place: bool = True) -> JobState:
    """What Slurm says of a job now, and never an exception.

    It asks its queue, its recent memory, and its accounting.
    """
    try:
        # of an array the first line is of one of its tasks, which has an id of its own
        found = replace(parse_state(_shown(job)), id=job.id)
    except NcclkitError as error:
        if scheduler.UNKNOWN_ID not in str(error).lower():
            return JobState(job.id, SILENT, why=str(error).rstrip("."))
        found = _accounted(job)
    if found.state == "PENDING" and with_place:
        with suppress(NcclkitError):  # the place is a courtesy
            pending = ["-t", "PD", f"--partition={found.partition}"]
            # in the order in which Slurm starts them
            waiting = scheduler.ask_slurm(
                "squeue", "-h", *pending, "-S", "-p,i", "-o", "%i"
            ).split()
            found = replace(
                found, place=(waiting.index(job.id) + 1 if job.id in waiting else 0, len(waiting))
            )
            if found.reason.startswith(ABSENT):
                found = replace(found, why=why_unavailable(found.partition))
    if not found.over or job.status is None:
        return found
    return replace(found, status=job.status)


def with_hints(case: Case, state: JobState) -> JobState:
    """The state of a job, whose hints name what this cluster has; of one that waits."""
    if state.state not in slurm_end.WAITING:
        return state
    return replace(state, known=scheduler.hint_values(case, state.partition))


def _shown(job: BatchJob) -> str:
    """The first line that ``scontrol`` has of a job."""
    lines = scheduler.ask_slurm("scontrol", "-o", "--", "show", "job", job.id).splitlines()
    if lines:
        return lines[0]
    return ""


def why_unavailable(partition: str) -> str:
    """Why nodes of a partition take no job.

    Their administrators or Slurm itself wrote it down.
    """
    said = scheduler.ask_slurm("sinfo", "-h", "-R", f"--partition={partition}", "-o", "%N: %E")
    lines = said.splitlines()
    return "; ".join(line.strip()[:REASON] for line in lines[:3])


def _accounted(job: BatchJob) -> JobState:
    """The end of a job that Slurm's controller has forgotten.

    Its accounting or the job itself tells it.
    """
    try:
        said = scheduler.ask_slurm("sacct", "-nXP", f"--jobs={job.id}", "-o", ACCOUNTED)
    except NcclkitError as error:
        return JobState(job.id, FORGOTTEN, status=job.status, why=unaccounted(error))
    for line in said.splitlines():
        found = parse_accounted(job.id, line)
        if found is not None:
            return found
    return JobState(job.id, FORGOTTEN, status=job.status)


ACCOUNTED = "State,ExitCode,Elapsed,NodeList"
"""Columns in which sacct is asked for the end of a job."""
NO_ACCOUNTS = ("accounting storage is disabled", "is not installed")
"""What is said where a cluster keeps no accounts."""


def parse_accounted(number: str, line: str) -> JobState | None:
    """The end of a job in a line of sacct; None where it holds no state."""
    word, code, elapsed, nodes = (*line.split("|"), "", "", "")[:4]
    state = STATE.match(word)  # such as CANCELLED by 1000
    if state is None:
        return None
    return JobState(number, state[0], nodes=nodes, elapsed=elapsed, status=exit_status(code))


def unaccounted(error: NcclkitError) -> str:
    """Why the accounting did not answer; empty where the cluster keeps none."""
    why = str(error).rstrip(".")
    if any(sign in why for sign in NO_ACCOUNTS):
        return ""
    return why


# ---------------------------------------------------------------- following it


async def follow(
    case: Case, job: BatchJob, on_record: OnRecord = lambda record: None, longest: float = LONGEST
) -> JobState:
    """Follow a job until it has ended.

    `on_record` gets its state (kind ``job``) and the records of its runs.  A job that will never
    start is cancelled.  Cancelling this call leaves the job alone: `cancel` ends it.
    """
    begun = time.monotonic()
    last = ""
    tail = _Tail(case, job)
    last_change = begun
    while True:
        now = with_hints(case, await asyncio.to_thread(job_state, job))
        if now.sentence != last:
            last = now.sentence
            on_record({"kind": "job", "say": last, "state": now.state, "id": job.id})
            last_change = time.monotonic()
        for record in await asyncio.to_thread(tail.records):
            on_record(record)
            last_change = time.monotonic()
        if now.stuck:
            await asyncio.to_thread(cancel, job)
            raise NcclkitError(f"{now.sentence.rstrip('.')}; it was cancelled.")
        if now.over:
            break
        if time.monotonic() - begun > longest:
            raise NcclkitError(
                f"{now.sentence.rstrip('.')}; nobody follows it any more: `ncclkit status` does."
            )
        # a job that starts after hours is followed as closely as one that starts now
        quiet = time.monotonic() - last_change
        await asyncio.sleep(0.5 if quiet < 60 else 2.0 if quiet < 600 else 5.0)
    return await _settled(case, job, now)


async def _settled(case: Case, job: BatchJob, now: JobState) -> JobState:
    """The end of a job, once its files are seen here.

    The case then holds what the job has added.
    """
    until = time.monotonic() + SEEN
    # a node that does not see the folder leaves no exit status there
    while now.state in ("COMPLETED", "FAILED") and now.status not in BLIND and job.status is None:
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.2)
    # whom Slurm ended could not ask about it any more
    if now.state in ENDS:
        await asyncio.to_thread(_keep_end_in_runs, case, job)
    case.reload()
    if job.status is None:
        return now
    return replace(now, status=job.status)


def _keep_end_in_runs(case: Case, job: BatchJob) -> None:
    """Keep how Slurm ended a job beside the logs of its runs, which may not say it."""
    for folder in case.runs():
        plan = plan_of(folder)
        is_own = plan is not None and plan.get("job") == job.id
        if is_own and not (folder / slurm_end.FILE).exists():
            slurm.keep_end(folder, job.id)


class _Tail:
    """The records of a job's runs, as they are appended to ``wire.jsonl`` of the run folders."""

    def __init__(self, case: Case, job: BatchJob) -> None:
        self._case = case
        self._job = job
        self._read: dict[Path, int] = {}
        self._plans: dict[Path, Plan] = {}
        self._others: set[Path] = set()

    def records(self) -> list[dict[str, Any]]:
        """What is new since the last call."""
        found: list[dict[str, Any]] = []
        for folder in self._case.runs():
            if folder in self._others:
                continue
            if folder not in self._read:
                plan = plan_of(folder)
                if plan is None:
                    continue  # not yet, or a run that nobody watches
                if plan.get("job") != self._job.id:
                    self._others.add(folder)
                    continue
                self._read[folder], self._plans[folder] = 0, read_plan(plan)
                found.append(probe.announcement(plan))
            found += self._new(folder)
        return found

    def _new(self, folder: Path) -> list[dict[str, Any]]:
        path = folder / "wire.jsonl"
        if not path.is_file():  # nor a pipe, which would let us wait for ever
            return []
        with open(path, "rb") as file:
            file.seek(self._read[folder])
            lines = file.read(16 << 20).splitlines(True)
        # the last line may be half written
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read[folder] += sum(map(len, whole))
        records = [record for record in map(wire.parse_record, whole) if record is not None]
        plan = self._plans[folder]
        return [
            probe.finish(record, plan) if record["kind"] == "measure" else record
            for record in records
        ]


def plan_of(folder: Path) -> dict[str, Any] | None:
    """What ``plan.json`` of a run folder holds; None where there is none."""
    path = folder / "plan.json"
    return storage.read_json(path, {}) if path.exists() else None


def cancel(job: BatchJob, patience: float = 40.0) -> None:
    """End a job, wherever it is, and wait so many seconds for its end.

    A job that has ended stays as it is.
    """
    try:
        _refuse_another(job)
        scheduler.ask_slurm("scancel", "--", job.id, deadline=30.0)
    except NcclkitError as error:
        if scheduler.UNKNOWN_ID not in str(error).lower():
            raise NcclkitError(f"Job {job.id} could not be cancelled: {error}") from error
    until = time.monotonic() + patience
    while not job_state(job, with_place=False).over and time.monotonic() < until:
        time.sleep(0.2)


def _refuse_another(job: BatchJob) -> None:
    """Raise NcclkitError for a job that this case did not submit.

    Anybody may have written it.
    """
    shown = _shown(job)
    # the end of the path: a case folder may have moved, or be named otherwise on another host
    own = f"/{job.folder.parent.name}/{job.folder.name}/job.sbatch"
    if not re.search(rf"\sCommand=.*{re.escape(own)}(?:\s|$)", shown):
        other = scheduler.fields(shown).get("Command", "something else")[:200]
        raise NcclkitError(f"by this id Slurm runs {other}, which this case did not submit.")


# ---------------------------------------------------------------- from a notebook


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NcclkitError(
            f"The job is not understood ({message}); write for example -N 2 -p gpu -t 10."
        )


def parse_options(text: str) -> JobOptions:
    """Job options from the words that ``ncclkit submit`` takes before the verb.

    They are such as ``-N 2 -p gpu -t 10``.
    """
    parser = _Words(add_help=False)
    add_options(parser, *JOB_OPTIONS, defaults=JobOptions())
    words = split_words(text, "The job")
    return job_options(parser.parse_args(joined_values(words, parser)))


async def live_test(
    case: Case, options: ProbeOptions, job: JobOptions, on_record: OnRecord = lambda record: None
) -> Run:
    """As `probe.probe`, as a batch job.

    The run is then read from the case.  Cancelling this cancels the job.
    """
    submitted = submit(
        case, ["probe", *command_words(options), "--case", str(case.path)], job, on_record
    )
    return await watch(case, submitted, on_record)


async def watch(case: Case, job: BatchJob, on_record: OnRecord = lambda record: None) -> Run:
    """The live test of a job that was submitted, once it has ended.

    Raises NcclkitError where the job made none.  Cancelling this cancels the job.
    """
    try:
        ended = await follow(case, job, on_record)
    except asyncio.CancelledError:
        # shielded, as whoever waits here is being cancelled
        await asyncio.shield(asyncio.to_thread(cancel, job))
        raise
    for folder in reversed(case.runs()):
        plan = plan_of(folder)
        if plan is not None and plan.get("job") == job.id:
            return probe.reread(case, folder, read_plan(plan))
    said = (job.complaints.strip() or job.printed.strip()).splitlines()
    raise NcclkitError(
        f"{ended.sentence} It made no test: {said[-1][:300] if said else f'see {job.folder}'}"
    )


async def inspect(
    case: Case, python: str | None = None, paths: Mapping[str, str] | None = None, job: str = ""
) -> Case:
    """Read the facts of this host, or of all nodes, into the case.

    Newer readings replace older ones.  `python` is the training interpreter (default:
    NCCLKIT_TRAIN_PYTHON, else this one); `paths` is label → folder whose storage is looked at;
    those without a folder are left out.  `job` is, on a login node, the options of a batch job that
    reads the facts of its nodes, such as ``-N 2 -p gpu``; empty or ``here`` reads those of this
    host.
    """
    await probe.inspect_hosts(case, python, paths)
    if not scheduler.is_login_node() or job.strip() in ("", "here"):
        return case
    named = {"data": "--data", "checkpoints": "--checkpoints"}
    given = {label: path for label, path in (paths or {}).items() if path and label in named}
    more: list[str] = []
    for label, path in given.items():
        more += [named[label], path]
    if python:
        more += ["--train-python", python]
    submitted = submit(case, ["inspect", *more, "--case", str(case.path)], parse_options(job))
    ended = await follow(case, submitted)
    if ended.status not in (0, 1):
        said = submitted.complaints.strip().splitlines()
        raise NcclkitError(f"{ended.sentence} {said[-1][:300] if said else ''}")
    return case
