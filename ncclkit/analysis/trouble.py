"""What speaks against a job.

That is errors it did not survive, lines of failure, and complaints of people.  Nothing may be said
against a job without one of these; a table, a command line or a harmless warning is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ncclkit.analysis.complaints import (
    DESKTOP,
    is_mere_warning,
    is_source,
    is_stack,
    says_complaint,
    says_death,
    says_failure,
    says_slow,
    says_solved,
)
from ncclkit.analysis.once import once
from ncclkit.analysis.outcome import (
    outcome,
    speaks_for_all,
    success_lines,
    unread_lines,
    work_lines,
)
from ncclkit.analysis.picks import FATAL, OWN_TESTS
from ncclkit.analysis.succession import Span, is_later
from ncclkit.analysis.timeline import abnormal
from ncclkit.core.case import Case
from ncclkit.core.model import Event

MANY = 100
"""Errors that are looked for: each may be compared with every step of every rank."""
UNCAUGHT = re.compile(
    r"(?:\[[\w.-]+\] ?){0,2}\[rank\d+\]:? *(?:Traceback|[\w.]+(?:Error|Exception)\b)"
)
"""How torch marks the last log lines of a rank; what a program prints of an error that it got over
has no such mark."""
STEP, GROUP = "COMPLETED", "successfully finished"
"""Words of Slurm, which speak for all ranks, and of torchrun, which speak for those of one host."""
EARLIER_TRY = re.compile(r"(?P<job>\d{1,12}(?:_\d{1,9})?)\s.*\b(?:PREEMPTED|REQUEUED|NODE_FAIL)\b")
"""A row of sacct of a try that the scheduler ended and began again."""
NO_JOB = (
    *OWN_TESTS,
    "kernel.",
    "net.",
    "system.",
    "printed.env",
    "printed.splits",
    "p2p.matrix",
    "log.error",
)
"""How kinds begin that are of a machine, of a test or of any program: they show no training job."""
FOREIGN = re.compile(
    r"(?:java|javax|kotlin|scala|org|com|io|net|akka)\."
    r"|(?:NullPointer|IllegalState|IllegalArgument)Exception"
)
"""Types of exceptions of other languages than Python."""
RANK_FRAME = re.compile(r"\.py\b|python|torch|nccl|cuda|mpi|gloo|ucx|ucp|pmix", re.IGNORECASE)
"""Words of a stack of a rank; one of any other program names none of them."""
HARMLESS_KINDS = (
    "store.clients",
    "store.retry",
    "system.denied",
    "kernel.iommu",
    "kernel.pcie",
    "python.ignored",
    "nccl.attn",
)
"""Kinds that stand in logs of jobs that go well, too."""
DEATHS = ("slurm.event", "elastic.exit", "elastic.root", "kernel.oom", "kernel.segfault")
"""Kinds that say that a process ended: the steps of others do not refute them."""
PASSED_ON = re.compile(
    r"unhandled (?:cuda|system) error|ncclUnhandledCudaError|ncclSystemError|\bNCCL error\s*$"
    r"|NCCL communicator was aborted",
    re.IGNORECASE,
)
"""What a library says of an error whose reason another one printed above, or would have."""
AFTER_THE_END = ("store.lost", "c10d.hint")
"""Kinds that ranks leave behind which end after the one that holds the store."""
HARMLESS_WARNING = re.compile(
    r"Failed to open libibverbs|No plugin found|Could not find: lib|libnccl-net\.so: cannot open"
    r"|NUMA|gdrcopy"
    r"|Topology detection|OFI Unable to find a protocol that worked"
    r"|Failed to initialize (?:NET/OFI|NET plugin)"
    r"|Cannot initialize CollNet|SHARP coll init error|Cannot create SHArP job"
    # for one-sided transfers, which most programs never make
    r"|requires GDRCopy|GDRCopy >= |mlx5dv symbols|Unable to use GIN|No GIN-capable devices"
    r"|GIN (?:is disabled|not supported|backend type \S{1,40} not supported on all ranks)"
)
"""What NCCL warns of while it looks for what not every machine has, after which it goes on."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What speaks against a job."""

    errors: tuple[Event, ...]
    """Errors that grammars know, after which nothing shows that the job went on."""
    failures: tuple[Event, ...]
    """Other lines that say that something failed, after the job was last seen at work."""
    complaints: tuple[Event, ...]
    """Sentences of people: something is not as it should be."""
    stacks: tuple[Event, ...]
    """Stacks that somebody took: of a job that goes well nobody takes them."""

    def __bool__(self) -> bool:
        return bool(self.errors or self.failures or self.complaints or self.stacks)

    @property
    def says_no_reason(self) -> str:
        """The error of a library that passes on what it did not say.

        It counts where nothing else is known.
        """
        if self.failures:
            return ""
        texts = [error.text.strip().rpartition("\n")[2] for error in self.errors]
        passed_on = []
        for match in map(PASSED_ON.search, texts):
            if match:
                passed_on.append(match[0])
        if texts and len(passed_on) == len(texts):
            return passed_on[0]
        return ""

    @property
    def lines(self) -> tuple[Event, ...]:
        """All of it, the firmest first."""
        return self.errors + self.failures + self.complaints + self.stacks


@once
def trouble(case: Case) -> Trouble:
    """What speaks against the job that a case is of."""
    success = outcome(case).success
    errors = list(islice(_open_errors(case), MANY))
    failures = _failures(case)
    complaints = [line for line in _spoken_lines(case) if says_complaint(line.text)]
    if success and not any(event.kind in FATAL for event in errors):
        errors = [error for error in errors if _outlasts(error, success)]
        failures = [line for line in failures if _outlasts(line, success)]
        complaints = [line for line in complaints if not _is_refuted(line, success)]
    if success:
        stacks = []
    else:
        stacks = _stacks_taken(case)
    return Trouble(tuple(errors), tuple(failures), tuple(complaints), tuple(stacks))


def is_of_job(event: Event) -> bool:
    """Whether only a training job leaves this.

    A plan, or a test of connections, is none.
    """
    if event.kind == "worker.phase" and event.data.phase in ("plan", "end"):
        return False
    if event.kind == "stack" and not RANK_FRAME.search(event.text):
        return False
    if event.kind == "python.exception" and FOREIGN.match(event.data.type or ""):
        return False
    return not event.kind.startswith(NO_JOB)


def is_death(event: Event) -> bool:
    """Whether a line says that a process ended badly.

    The work of others does not refute it.
    """
    return event.kind.startswith(DEATHS) or says_death(event.text)


def lines_after(case: Case, lines: list[Event], proofs: Iterable[Event]) -> list[Event]:
    """Those of the proofs that come after all of the lines.

    They prove that the lines did no harm.
    """
    again = case.of("elastic.restart")

    def clears(proof: Event) -> bool:
        return all(is_later(proof, line) and _proves(proof, line, again) for line in lines)

    return [proof for proof in proofs if clears(proof)]


def _failures(case: Case) -> list[Event]:
    """Lines of failure that no grammar knows.

    Those after which the job was seen at work are left out.
    """
    work = Span(work_lines(case))
    quiet = [line for line in unread_lines(case, "quiet") if says_death(line.text)]
    lines = [*unread_lines(case), *quiet, *case.of("progress")]  # a loss may be no number
    said = [line for line in lines if says_failure(line.text)]
    told = [*_plain_lines(case), *case.of("job.done")]
    said = [line for line in said if not _is_superseded(line, told)]
    failures = []
    for line in said:
        if not work.ends_after(line) or says_death(line.text):
            failures.append(line)
    return failures


def _is_superseded(line: Event, lines: Iterable[Event]) -> bool:
    """Whether a row of sacct is of an earlier try of a job.

    Then a later row says that the job ended.
    """
    row = EARLIER_TRY.match(line.text)
    if row is None:
        return False
    later = []
    for other in lines:
        if other.path == line.path and other.line > line.line:
            later.append(other)
    same_job = []
    # rows of a job's steps begin with its number, too
    for other in later:
        if other.text.startswith(row["job"]):
            same_job.append(other.text)
    return any(STEP in text for text in same_job)


def _plain_lines(case: Case) -> list[Event]:
    return [*unread_lines(case), *unread_lines(case, "quiet")]


def _spoken_lines(case: Case) -> list[Event]:
    """Lines in which a person may speak.

    A sentence that names a rank is an event, too.
    """
    pasted = _pasted_files(case)
    spoken = _plain_lines(case)
    for event in case.events:
        # several lines are no sentence of a person's
        if event.path in pasted and "\n" not in event.text and not abnormal(event):
            spoken.append(event)
    return spoken


def _pasted_files(case: Case) -> set[str]:
    """Paths of the texts of which lines without an error are kept, too."""
    paths = set()
    for file in case.inputs:
        if "quiet" in file:
            paths.add(file["path"])
    return paths


def _outlasts(line: Event, success: Event) -> bool:
    """Whether a line still speaks against a job of which an end was seen.

    The end of a process does, wherever it stands; ranks that end one after the other only warn.
    """
    if is_death(line):
        return True
    if line.path != success.path or not is_later(line, success):
        return False
    return not (is_mere_warning(line.text) or line.kind.startswith(AFTER_THE_END))


def _is_refuted(complaint: Event, success: Event) -> bool:
    """Whether a good end shows that a complaint was not so.

    No hang succeeds, but a slow job does.
    """
    if says_solved(complaint.text):
        return True
    return speaks_for_all(success) and not says_slow(complaint.text)


def _stacks_taken(case: Case) -> list[Event]:
    """Stacks of a pasted text.

    Those that `ncclkit attach` took are judged by how they change.
    """
    pasted = _pasted_files(case)
    parsed = [event for event in case.of("stack") if event.path in pasted]
    return [*parsed, *(line for line in _plain_lines(case) if is_stack(line.text))][:1]


def _open_errors(case: Case) -> Iterator[Event]:
    """Errors after which nothing shows that the job went on.

    A step proves that of a warning; of the end of a process only an end of all does.
    """
    ends = success_lines(case)
    steps = Span([*work_lines(case), *ends])
    survived = _Survived(ends, case.of("elastic.restart"))
    for event in case.events:
        if not _is_error(event):
            continue
        gone = event.kind in FATAL or is_death(event)
        if not (survived.proves(event) if gone else steps.ends_after(event)):
            yield event


class _Survived:
    """Which fatal lines did no harm.

    It is as `_proves` says of one end, but of all of them at once.
    """

    def __init__(self, ends: Sequence[Event], again: Sequence[Event]) -> None:
        by_rank: dict[int | None, list[Event]] = {}
        for end in ends:
            by_rank.setdefault(end.rank, []).append(end)
        of_all = [end for end in ends if speaks_for_all(end)]
        self.all = Span(ends)
        self.by_rank = {rank: Span(own) for rank, own in by_rank.items()}
        self.steps = Span(end for end in of_all if STEP in end.text)
        self.groups = Span(end for end in of_all if GROUP in end.text)
        self.restarts = Span(restart for restart in again if self.groups.ends_after(restart))
        """After which a group succeeded."""

    def proves(self, line: Event) -> bool:
        """Whether what comes later can only be if this line did no harm."""
        if line.rank is not None and self._ends_of(line.rank, line):
            return True
        if UNCAUGHT.match(line.text):
            started = self.groups.ends_after(line) and self.restarts.ends_after(line)
            return started or self.steps.ends_after(line)
        if line.rank is None:
            return self.all.ends_after(line)
        return self._ends_of(None, line)

    def _ends_of(self, rank: int | None, line: Event) -> bool:
        return rank in self.by_rank and self.by_rank[rank].ends_after(line)


def _is_error(event: Event) -> bool:
    if event.kind.startswith(HARMLESS_KINDS):
        return False
    if event.kind in ("nccl.warn", "nccl.info") and HARMLESS_WARNING.search(event.text):
        return False
    if is_source(event.text) and not event.kind.startswith("kernel."):
        return False
    # the memory of a browser is no matter of the job
    if event.kind == "kernel.oom" and DESKTOP.search(event.data.name or ""):
        return False
    if event.kind == "log.error":
        return says_failure(event.text)
    return abnormal(event)


def _proves(proof: Event, line: Event, again: list[Event]) -> bool:
    """True where what comes later can only be if the line did no harm.

    The end of one rank, or the steps that it does until it misses another, tell nothing of the
    other one.  A rank that torch let write its last log lines is gone: only a launcher that started
    all of them again can have succeeded.
    """
    if line.kind not in FATAL:
        return True
    if line.rank is not None and proof.rank == line.rank:
        return True
    if not UNCAUGHT.match(line.text):
        return None in (proof.rank, line.rank)
    if not speaks_for_all(proof):
        return False
    if STEP in proof.text:
        return True
    started = any(is_later(proof, restart) and is_later(restart, line) for restart in again)
    return GROUP in proof.text and started
