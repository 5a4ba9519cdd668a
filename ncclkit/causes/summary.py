"""What a reader wants in five seconds, as data.

The banner of a report, the terminal and ``--json`` show the same.  `summarize` says what is wrong
and how sure that is, who is at fault, which line decides, what to do first, which job it is, what
was judged and what was missing, and which command gives the same answer again.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclkit.analysis.diagnostics import open_checks
from ncclkit.analysis.frames import is_own
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.picks import OWN_TESTS
from ncclkit.analysis.shrinks import left_out_in_words
from ncclkit.analysis.strangers import strangers_in_words
from ncclkit.causes import page
from ncclkit.causes._experiments import RECORDED
from ncclkit.causes._first_step import (
    ATTACH,
    FirstStep,
    JudgedLogs,
    WantedEvidence,
    step_about_finding,
    step_about_risk,
    step_to_collect,
)
from ncclkit.causes._rehearsed import undecided_rehearsal
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.core import text
from ncclkit.core.case import RUN, Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import AttachRank, PythonException, RunEnd, SlurmEvent, Stack, WorkerPhase
from ncclkit.core.model import Event, Evidence, Finding, cite
from ncclkit.core.summary import ranks
from ncclkit.evidence.files import UNREAD
from ncclkit.evidence.logs import SLURM_JOB

LINES = 4
"""Lines of one piece of evidence that are quoted.

Of a longer one it is those that name the culprit.
"""
SHOWN = 5
"""Errors that no cause explains, and pieces of missing evidence, that a summary names."""
STILL_AT_WORK = (
    "Nothing, unless it should have ended by now: then take its log up to the end, or `ncclkit"
    " attach`."
)
REHEARSE_AGAIN = "Mend what that names, or leave it out, and rehearse again."
TRACE = "Traceback (most"
OUTSIDE = ("kernel.", *OWN_TESTS)
"""How kinds begin whose times are not those of the job."""


@dataclass(frozen=True, slots=True)
class CitedLine:
    """One line of the evidence, and where it stands."""

    path: str
    """Relative to the case folder, or to the folder that holds all inputs."""
    line: int
    """1-based; 0 where the source has no lines."""
    text: str
    """As it was read: untrusted, and of a traceback several lines."""
    rank: int | None = None

    @property
    def place(self) -> str:
        """``rank3.log:88``."""
        if self.line:
            return f"{self.path}:{self.line}"
        return self.path

    @property
    def short(self) -> str:
        """One line of it: the last one of a traceback, else the first one."""
        lines = self.text.strip().splitlines() or [""]
        return lines[-1 if TRACE in lines[0] else 0]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank, and where it ran as far as the evidence says."""

    rank: int
    host: str = ""
    gpu: str = ""
    """CUDA index, with the PCI bus id where it is known."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who is at fault."""

    ranks: tuple[RankPlace, ...] = ()
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    sentence: str = ""
    """``Rank 2 on node-1 (GPU 2)``, without a full stop."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Which job it is; what is not known is empty or None."""

    id: str = ""
    """Slurm's number, or the name of a run of ours."""
    command: str = ""
    """The command of its ranks, or the script that their tracebacks name."""
    ranks: int | None = None
    hosts: tuple[str, ...] = ()
    left_out: str = ""
    """Ranks without which the program went on, as it shrank a communicator."""
    nccl: str = ""
    torch: str = ""
    cuda: str = ""
    started: float | None = None
    """Seconds since the epoch of the first line that has a date."""
    ended: float | None = None
    """The same of the last one."""

    def __str__(self) -> str:
        size = ""
        if self.ranks:
            size = text.plural(self.ranks, "rank")
        hosts = ""
        if self.hosts:
            hosts = f"{text.plural(len(self.hosts), 'host')} ({text.host_list(self.hosts)})"
        place = " on ".join(filter(None, (size, hosts)))
        said = ", ".join(filter(None, (self.command, place, self.left_out)))
        if self.id and said:
            return f"{self.id}: {said}"
        return self.id or said

    @property
    def versions(self) -> str:
        """``NCCL 2.28.9, torch 2.11.0``, as far as they are known."""
        named = (("NCCL", self.nccl), ("torch", self.torch), ("CUDA", self.cuda))
        named_versions = []
        for name, version in named:
            if version:
                named_versions.append(f"{name} {version}")
        return ", ".join(named_versions)

    @property
    def when(self) -> str:
        """Its first and last line in UTC, and the seconds between them."""
        if self.started is None or self.ended is None:
            return ""
        first, last = (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one))
            for one in (self.started, self.ended)
        )
        if self.ended <= self.started:
            return f"{first} UTC"
        day, clock = last.split()
        # a job within one day needs the date once
        if first.startswith(day):
            until = clock
        else:
            until = last
        return f"{first} to {until} UTC, {self.ended - self.started:.0f} s from first to last line"


@dataclass(frozen=True, slots=True)
class Summary:
    """The answer on one case, before all details."""

    verdict: str
    """``found``, ``unexplained``, ``slow``, ``running``, ``healthy`` or ``no_job``."""
    sentence: str
    """The verdict in one sentence: that of the first finding where there is one."""
    strength: str = ""
    """``proven``, ``likely`` or ``possible``, of the first finding."""
    cause: str = ""
    title: str = ""
    """The title of the cause's page in the catalogue."""
    culprit: Culprit | None = None
    line: CitedLine | None = None
    """The line that decides."""
    first_step: str = ""
    """The first thing to do, or to collect, in one sentence."""
    command: str = ""
    """What to paste for it: works as it is; empty where nothing is to be done."""
    job: JobSummary = JobSummary()
    files: int = 0
    """Files that were judged."""
    facts: int = 0
    """Facts of hosts that were judged."""
    tested: str = ""
    """What a live test that went well has shown, and of what it says nothing."""
    ranks: tuple[int, ...] = ()
    """Ranks that have a line in them; `job.ranks` says of how many."""
    missing: tuple[str, ...] = ()
    """What was not judged, one sentence each."""
    reproduce: str = ""
    """The command that gives the same answer again."""
    errors: tuple[CitedLine, ...] = ()
    """Errors that no known cause explains, the first ones (verdict ``unexplained``)."""
    would_tell: tuple[str, ...] = ()
    """Evidence that would tell more (verdicts ``unexplained`` and ``no_job``)."""
    restart_or_stop: str = ""
    """Whether to start the job again as it is (verdicts ``found`` and ``unexplained``)."""

    def rows(self) -> list[tuple[str, str]]:
        """The job, and what was judged, as the table of a banner.

        It is name and text of each row that is not empty.
        """
        lines = ""
        if self.ranks and self.files:
            lines = f"lines of {text.plural(len(self.ranks), 'rank')}"
        counts = (("file", self.files), ("fact", self.facts))
        files, facts = (text.plural(count, noun) if count else "" for noun, count in counts)
        table = [
            ("Restart or stop", self.restart_or_stop),
            ("Job", str(self.job)),
            ("Versions", self.job.versions),
            ("When", self.job.when),
            ("Tested", self.tested),
            ("Judged", ", ".join(filter(None, (files, lines, facts)))),
            ("Missing", "\n".join(self.missing)),
            ("Reproduce", self.reproduce),
        ]
        rows = []
        for name, value in table:
            if value:
                rows.append((name, value))
        return rows


def summarize(case: Case, diagnosis: Diagnosis, reproduce: str = "") -> Summary:
    """The summary of a case that `diagnosis` judged.

    `reproduce` is the command that led here; without it, it is the one that judges the same inputs.
    """
    scope = last_run_of(case)
    base = _base_folder(case)
    first = None
    # the findings of another verdict are mere risks
    if diagnosis.verdict in ("found", "slow"):
        first = next(iter(diagnosis.findings), None)
    read_ranks = _evidence_read(scope)
    known: dict[str, Any] = {}
    again = reproduce or _command_to_reproduce(case)
    judged = JudgedLogs(scope, _paths_of_command(again, case))
    step = FirstStep()
    if first:
        step = step_about_finding(first, diagnosis, judged)
        known = {
            "strength": "" if diagnosis.verdict == "slow" else first.strength or "",
            "cause": first.cause,
            "title": page(first.cause)[""],
            "culprit": _culprit_of_finding(scope, first),
            "line": _deciding_line(first, base),
        }
    elif diagnosis.verdict == "healthy" and diagnosis.healthy:
        known = {"line": _cited_line(diagnosis.healthy, base)}
        step = step_about_risk(next(iter(diagnosis.risks), None))
    elif diagnosis.verdict == "running" and diagnosis.at_work:
        known = {"line": _cited_line(diagnosis.at_work, base)}
        step = FirstStep(STILL_AT_WORK)
    elif diagnosis.verdict == "unexplained" and undecided_rehearsal(scope):
        step = FirstStep(REHEARSE_AGAIN)
    unsettled = diagnosis.verdict in ("unexplained", "no_job")
    restart_or_stop = ""
    # facts of a machine alone are of no job that could be started again
    if diagnosis.verdict in ("found", "unexplained") and diagnosis.job_seen:
        restart_or_stop = diagnosis.decision.sentence
    wanted = _next_evidence(scope, diagnosis, read_ranks)
    if wanted:
        step = step_to_collect(wanted[0], diagnosis, judged)
    return Summary(
        diagnosis.verdict,
        diagnosis.headline,
        **known,
        first_step=step.sentence,
        command=step.command,
        job=_job_summary(scope, diagnosis),
        files=sum(row.get("kind") not in (*UNREAD, "archive") for row in case.inputs),
        facts=sum(fact.value is not None for fact in case.facts),
        ranks=read_ranks,
        tested=_tested_in_words(scope) if diagnosis.verdict in ("healthy", "slow") else "",
        missing=_missing_evidence(case, scope, diagnosis, read_ranks),
        reproduce=again,
        errors=tuple(_cited_line(error, base) for error in diagnosis.errors[:SHOWN])
        if unsettled
        else (),
        would_tell=tuple(piece.text for piece in wanted),
        restart_or_stop=restart_or_stop,
    )


def _base_folder(case: Case) -> str:
    """The folder to which paths are relative: the case's, or the one that holds all inputs."""
    if case.path is not None and any(str(e.path).startswith(f"{case.path}/") for e in case.events):
        return str(case.path)
    paths = []
    for row in case.inputs:
        if row.get("kind") != "archive":
            paths.append(str(row["path"]))
    if len(paths) == 1:
        return os.path.dirname(paths[0])
    try:
        if paths:
            return os.path.commonpath(paths)
        return ""
    except ValueError:  # absolute and relative ones
        return ""


def _cited_line(piece: Evidence, base: str) -> CitedLine:
    cited = cite(piece)
    path = str(cited["path"])
    if base and path.startswith(f"{base}/"):
        short = path[len(base) + 1 :]
    else:
        short = path
    return CitedLine(
        short,
        int(cited["line"]),
        str(cited["text"]),
        piece.rank if isinstance(piece, Event) else None,
    )


def _deciding_line(finding: Finding, base: str) -> CitedLine:
    """The line that decides, the culprit's own where there is one.

    Of many lines it is the first, and those that name it.
    """
    ranks = finding.culprits.get("ranks", ())
    if not ranks:
        return _cited_line(finding.evidence[0], base)
    named = re.compile(rf"\branks? (?:[\d, -]*[, -])?(?:{'|'.join(map(str, ranks))})\b")
    pieces = [piece for piece in finding.evidence if isinstance(piece, Event)]
    # the culprit's own line says more to a reader than that of a victim
    own = None
    for piece in pieces:
        if piece.rank in ranks or named.search(piece.text):
            own = piece
            break
    first = finding.evidence[0]
    line = _cited_line(
        own if own and isinstance(first, Event) and first.rank is not None else first, base
    )
    head, *rest = line.text.splitlines() or [""]
    hits = [one for one in rest if named.search(one)]
    # a short text, or a traceback, is read as a whole
    if len(rest) < LINES or not hits or TRACE in line.text:
        return line
    return replace(line, text="\n".join([head, *hits]))


def _culprit_of_finding(case: Case, finding: Finding) -> Culprit | None:
    named = {key: tuple(values) for key, values in finding.culprits.items()}
    if not any(named.values()):
        return None
    seats = tuple(_place_of_rank(case, rank) for rank in named.get("ranks", ()))
    hosts, gpus, interfaces = (
        tuple(map(str, named.get(key, ()))) for key in ("hosts", "gpus", "interfaces")
    )
    return Culprit(
        seats, hosts, gpus, interfaces, _culprit_in_words(seats, hosts, gpus, interfaces)
    )


def _culprit_in_words(
    seats: tuple[RankPlace, ...],
    hosts: tuple[str, ...],
    gpus: tuple[str, ...],
    others: tuple[str, ...],
) -> str:
    """``Rank 2 on node-1 (GPU 2)``, ``GPU 0000:3b:00.0 on node-1``, ``Host node-1``."""
    on = sorted({seat.host for seat in seats if seat.host} | set(hosts))
    own = (seats[0].gpu,) if len(seats) == 1 and seats[0].gpu else ()
    names = [
        text.numbered("Rank", [seat.rank for seat in seats]) if seats else "",
        f"GPU {text.some(gpus or own)}" if gpus or own else "",
        text.some(others),
    ]
    first, *rest = [name for name in names if name] or [f"Host {text.host_list(on)}"]
    where = ""
    if on and any(names):
        where = f" on {text.host_list(on)}"
    if rest:
        return f"{first}{where} ({', '.join(rest)})"
    return f"{first}{where}"


def _place_of_rank(case: Case, rank: int) -> RankPlace:
    """Where a rank ran: its host, and its GPU by the start of NCCL."""
    host = first_host(case.on(rank))
    start = None
    for e in case.on(rank):
        if e.kind == "nccl.init" and e.data.cuda_dev is not None:
            start = e
            break
    phases = []
    for e in case.on(rank):
        if isinstance(e.data, WorkerPhase):
            phases.append(e.data)
    worker_gpu = None
    for phase in phases:
        if phase.gpu is not None:
            worker_gpu = phase.gpu
            break
    if start:
        index, bus = start.data.cuda_dev, start.data.bus
    else:
        index, bus = worker_gpu, None
    if index is None:
        gpu = ""
    elif bus:
        gpu = f"{index}, bus {bus}"
    else:
        gpu = str(index)
    return RankPlace(rank, host, gpu)


def _job_summary(case: Case, diagnosis: Diagnosis) -> JobSummary:
    known = diagnosis.job
    times = []
    for event in case.events:
        # the kernel's log and our tests may be of another day
        if event.time is not None and not event.kind.startswith(OUTSIDE):
            times.append(event.time)
    versions = {}
    for name in ("nccl", "torch", "cuda"):
        value = known.get(name) or ""
        versions[name] = str(value)
    return JobSummary(
        id=_job_id(case),
        command=_command_of_job(case),
        ranks=known.get("ranks"),
        hosts=tuple(known.get("hosts") or ()),
        left_out=left_out_in_words(case.events),
        started=min(times, default=None),
        ended=max(times, default=None),
        **versions,
    )


def _job_id(case: Case) -> str:
    texts = []
    # Slurm puts its number into the name of the log
    for row in case.inputs:
        path = row["path"]
        texts.append(str(path))
    for event in case.of(SlurmEvent):
        texts.append(event.text)
    for one in texts:
        found = SLURM_JOB.search(one)
        if found:
            numbers = filter(None, found.groups())
            return str(next(numbers))
    runs = []
    for end in case.of(RunEnd):
        match = RUN.search(end.path)
        if match:
            runs.append(match)
    if not runs:
        return ""
    last = runs[-1]
    return f"{last['n']}-{last['name']}"


def _command_of_job(case: Case) -> str:
    """What attach read of a process, else the script in which a stack or a traceback begins."""
    for looked_at in case.of(AttachRank):
        if looked_at.data.command:
            return str(looked_at.data.command)
    for event in case.of("python.exception", "stack"):
        frames: list[Mapping[str, Any]] = list(event.data.frames or ())
        if event.kind == "stack":
            outermost = frames[-1:]
        else:
            outermost = frames[:1]
        # only the script that was started stands at the very outside
        if outermost and outermost[0].get("func") == "<module>" and is_own(outermost[0]):
            return str(outermost[0]["file"])
    return ""


def _evidence_read(case: Case) -> tuple[int, ...]:
    logged = set()
    for event in case.events:
        if event.rank is not None and event.rank >= 0:
            logged.add(event.rank)
    ranks_read: set[int] = set()
    for row in case.inputs:
        ranks_read.update(row.get("ranks") or ())
    return tuple(sorted(logged | ranks_read))


def _absent_ranks(case: Case, read_ranks: tuple[int, ...]) -> list[int]:
    # one file of a rehearsal speaks of all its ranks
    if case.of("rehearsal.verdict"):
        return []
    if read_ranks:
        return sorted(set(ranks(case.events, case.inputs)) - set(read_ranks))
    return []


def _missing_evidence(
    case: Case, scope: Case, diagnosis: Diagnosis, read_ranks: tuple[int, ...]
) -> tuple[str, ...]:
    missing = [str(problem) for problem in case.about.get("problems", ())]
    missing += _earlier_attempts(case, scope) + ([diagnosis.ended] if diagnosis.ended else [])
    absent = _absent_ranks(scope, read_ranks)
    missing += [f"No line of {text.ranks(absent)} was given."] if absent else []
    unread = []
    for row in case.inputs:
        if row.get("kind") in UNREAD:
            unread.append(str(row["path"]))
    missing += (
        [f"{text.plural(len(unread), 'file')} not understood: {text.some(unread[:3])}."]
        if unread
        else []
    )
    missing += open_checks(scope)
    knocked = strangers_in_words(scope)
    if knocked:
        missing.append(knocked)
    count = len(diagnosis.unknown)
    return (
        *missing,
        *(
            [f"{text.plural(count, 'cause')} not evaluated: {_lacking_evidence(scope, diagnosis)}."]
            if count
            else []
        ),
    )


def _earlier_attempts(case: Case, scope: Case) -> list[str]:
    """Up to which line a log is about an earlier job or attempt.

    That part is not judged.
    """
    # by identity: equal lines of two attempts are two events
    kept = {id(event) for event in scope.events}
    last = dict[str, Event]()
    for event in case.events:
        if id(event) not in kept and event.line and not RUN.search(event.path):
            last[event.path] = max(event, last.get(event.path, event), key=lambda one: one.line)
    lines = (_cited_line(last[path], _base_folder(case)) for path in sorted(last))
    ends = [f"{line.path or 'the log'} up to line {line.line}" for line in lines]
    if ends:
        return [f"An earlier job or attempt is not judged: {text.some(ends)}."]
    return []


def _lacking_evidence(case: Case, diagnosis: Diagnosis) -> str:
    """The evidence that most unjudged causes ask for.

    The case does not hold it.
    """
    missing: list[str] = []
    for finding in diagnosis.unknown:
        missing += finding.missing
    asked = " ".join(missing)
    gpus = [fact.value for fact in case.facts_of("gpu.count")]
    kinds = {event.kind.partition(".")[0] for event in case.events}
    lacks = {
        "no GPU": "gpu" in asked.lower() and gpus and not any(gpus),
        "no NCCL log": "NCCL" in asked and "nccl" not in kinds,
        "no Flight Recorder dump": "Flight Recorder" in asked and "flight" not in kinds,
        "no kernel log": "dmesg" in asked and "kernel" not in kinds,
        "no facts of the hosts": "inspect" in asked and not case.facts,
        "one host": "node" in asked and len(diagnosis.job.get("hosts") or ()) == 1,
    }
    return ", ".join(name for name, lacking in lacks.items() if lacking) or "evidence missing"


def _tested_in_words(case: Case) -> str:
    """Over what the last live test ran, and of what it says nothing; empty without one."""
    if not case.measurements:
        return ""
    last = case.measurements[-1]
    gpus = last.backend == "nccl"
    where = (
        f"the {'GPUs' if gpus else 'CPU'} of"
        f" {'one host' if last.hosts == 1 else f'{last.hosts} hosts'}"
    )
    # a test over gloo, or on one host, must not be taken for a test of what it left out
    silent = " or ".join(["GPUs"] * (not gpus) + ["other hosts"])
    over = f"{text.plural(last.ranks, 'rank')} over {'NCCL' if gpus else last.backend} on {where}"
    return f"{over}: says nothing about {silent}"


def _next_evidence(
    case: Case, diagnosis: Diagnosis, read_ranks: tuple[int, ...]
) -> list[WantedEvidence]:
    """What to collect next, the most telling first; nothing where the verdict is settled."""
    if diagnosis.verdict not in ("unexplained", "no_job") or undecided_rehearsal(case):
        return []
    if diagnosis.verdict == "no_job":
        everything = "The standard output and standard error of all ranks of the job."
        return [WantedEvidence(everything)]
    wanted = []
    # such an error resembles everything: the reason stands above it, or was not logged
    if diagnosis.says_no_reason:
        above = (
            "The lines above this error, of every rank: the first `NCCL WARN` names the call that"
            " failed."
        )
        own_words = (
            "NCCL's own words: run it again with NCCL_DEBUG=WARN (on all ranks, unfiltered)."
        )
        warnings = "export NCCL_DEBUG=WARN"
        wanted += [WantedEvidence(above, warnings), WantedEvidence(own_words, warnings)]
    absent = _absent_ranks(case, read_ranks)
    if absent:
        wanted.append(WantedEvidence(f"The logs of {text.ranks(absent)}."))
    if diagnosis.errors and not any(event.data.frames for event in case.of(PythonException)):
        whole = "The whole standard error of every rank, with the traceback above the error."
        wanted.append(WantedEvidence(whole))
    if not any(event.kind.startswith("nccl.") for event in case.events):
        nccl_log = "NCCL's log: run it again with NCCL_DEBUG=INFO."
        wanted.append(WantedEvidence(nccl_log, "export NCCL_DEBUG=INFO"))
    if not case.of("flight."):
        settings = [f"{name}={value}" for name, value in RECORDED.items()]
        dumps = f"Flight Recorder dumps of all ranks: run it again with {' and '.join(settings)}."
        wanted.append(WantedEvidence(dumps, f"export {' '.join(settings)}"))
    if not diagnosis.errors and not case.of(Stack):
        stacks = "The stacks of all ranks while it hangs: `ncclkit attach` on its host."
        wanted.append(WantedEvidence(stacks, ATTACH))
    return wanted[:SHOWN]


def _paths_of_command(again: str, case: Case) -> str:
    """What a command that judges the case again names, quoted.

    It is nothing where that is the case's own folder: whoever reads the page of it has seen it.
    """
    paths = again.removeprefix("ncclkit diagnose ")
    if case.path is not None and paths == shlex.quote(str(case.path)):
        return ""
    return paths


def _command_to_reproduce(case: Case) -> str:
    """``ncclkit diagnose`` with what was read.

    That is the logs as they were named, the case folder, or the inputs' folder.
    """
    logs = str(case.about.get("logs") or "")
    # what was pasted has no path that could be read again
    if "\n" in logs or logs.startswith("lines that"):
        given = []
    else:
        given = shlex.split(logs)
    if given and all(Path(path).expanduser().exists() for path in given):
        return shlex.join(["ncclkit", "diagnose", *given])
    if case.path is not None and not logs:
        return shlex.join(["ncclkit", "diagnose", str(case.path)])
    if len(case.inputs) == 1:
        only = str(case.inputs[0]["path"])
    else:
        only = _base_folder(case)
    if only and os.path.exists(only):
        return shlex.join(["ncclkit", "diagnose", only])
    return ""
