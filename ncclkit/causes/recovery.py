"""What a job got over.

A finding on whose lines it went on is weaker, or none.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ncclkit.analysis.complaints import is_source
from ncclkit.analysis.picks import FATAL, initialized, pick
from ncclkit.analysis.rank_states import is_own
from ncclkit.analysis.succession import Span, is_later
from ncclkit.analysis.trouble import UNCAUGHT, lines_after
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dTimeout,
    FlightFinding,
    FlightMissing,
    FlightP2p,
    JobDone,
    NcclMessage,
    PythonException,
    RunEnd,
    StepProgress,
    StoreClients,
    SystemFault,
)
from ncclkit.core.model import Event, Finding, clear
from ncclkit.evidence.quotation import is_quotation

MEETING = ("store.", "rendezvous.", "gloo.connect", "gloo.no_interface")
"""Kinds that speak of ranks that could not meet."""
ERRORS = (
    *FATAL,
    *MEETING,
    "system.error",
    "cuda.",
    "gloo.",
    "c10d.",
    "nccl.warn",
    "nccl.trace",
    "nccl.link",
    "ddp.",
)
"""Kinds of lines that a job that goes on has recovered from.

Settings, and what the kernel saw of hardware, come last.
"""
OWN = (
    "IndexError",
    "KeyError",
    "NameError",
    "AttributeError",
    "ModuleNotFoundError",
    "ZeroDivisionError",
)
"""Errors that nothing but the program brings about.

The end of another rank does so least of all.
"""
TEXT = re.compile(
    r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name"
    r" resolution|can(?:'|no)t resolve|could not resolve|does not resolve"
)
"""What exceptions say of the same."""
LASTING = ("dataloader_workers", "memlock", "own_name", "no_verbs")
"""What a `system.error` says of a setting.

A setting stays as it was however long the job goes on.
"""
WAITS = ("c10d.timeout", "gloo.timeout")
DAY = 86400.0
FAR = 50
"""Lines between an error and a step that was done after it.

They are more than the ranks beside a dead one come.
"""


def recovered(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after all its lines."""
    if finding.verdict == "found" and _is_source(finding):
        return clear(finding.cause, "Only source code holds these words.", finding.evidence[:1])
    # a bare error line looks the same in a log and in a fenced block of a guide: a text that is not
    # a log proves nothing
    if _quoted(finding, case):
        if case.of(JobDone) and not any(
            e.kind in FATAL and not is_quotation(e.text) for e in case.events
        ):
            return clear(finding.cause, "Somebody only speaks of it.", finding.evidence[:1])
        finding = replace(finding, strength="possible")
    if finding.strength == "proven" and _proves_nothing(finding, case):
        return replace(finding, strength="likely")
    if _of_any_moment(finding, case):
        return replace(finding, strength="possible")
    lines = [
        piece
        for piece in finding.evidence
        if isinstance(piece, Event) and piece.kind.startswith(ERRORS)
    ]
    # facts and lines of hardware stay as they are however long a job goes on; and a run of ours has
    # its end, which its own verdict reads
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of(RunEnd):
        return finding
    fatal = []
    for event in case.events:
        if event.kind in FATAL:
            fatal.append(event)
    done = lines_after(case, lines, case.of(JobDone))
    went_on = done
    # steps alone show less than the end of a job: they outweigh only what was a mere possibility
    if not done and finding.strength == "possible" and not fatal:
        went_on = lines_after(case, lines, case.of(StepProgress))
    if went_on and not any(is_later(event, went_on[-1]) for event in fatal):
        return clear(
            finding.cause,
            "The job went on after it.",
            (*pick(went_on, limit=1), *finding.evidence[:1]),
        )
    met = []
    # a connection that was refused at first is tried again: what counts is whether the ranks met
    # later
    if all(map(_meeting, lines)):
        met = lines_after(case, lines, _meetings(case))
    if not met:
        return _got_over(finding, case, lines, fatal)
    # one of these lines is itself the end of a rank, and another end followed after the ranks had
    # met: it may be the same trouble again
    given_up = [event for event in lines if event.kind in FATAL] and any(
        is_later(event, met[-1]) for event in fatal
    )
    if given_up:
        return replace(finding, strength="possible")
    return clear(
        finding.cause, "The ranks met after all.", (*pick(met, limit=1), *finding.evidence[:1])
    )


def _quoted(finding: Finding, case: Case) -> bool:
    """True where it rests on texts alone that are no logs.

    Documentation and source code quote errors.
    """
    documents = {row["path"] for row in case.inputs if row.get("kind") == "document"}
    events = []
    for piece in finding.evidence:
        if isinstance(piece, Event):
            events.append(piece)
    quoting = (event.path in documents or is_quotation(event.text) for event in events)
    return finding.verdict == "found" and bool(events) and all(quoting)


def _is_source(finding: Finding) -> bool:
    """Whether it rests on lines of source code alone, or of a compiler or of git."""
    events = []
    for piece in finding.evidence:
        if isinstance(piece, Event):
            events.append(piece)
    kernel = any(event.kind.startswith("kernel.") for event in events)
    return bool(events) and not kernel and all(is_source(event.text) for event in events)


def _any_program(finding: Finding) -> bool:
    """True where it rests on error lines alone that no grammar knows.

    They are some program's words, of whatever it means.
    """
    return all(isinstance(piece, Event) and piece.kind == "log.error" for piece in finding.evidence)


def _seen_live(finding: Finding) -> bool:
    """True where it rests on where ranks stood.

    Without sequence numbers a rank may only be on its way.
    """
    events = []
    for piece in finding.evidence:
        if isinstance(piece, Event):
            events.append(piece)
    return any(isinstance(event.data, FlightFinding) and event.data.live for event in events)


def _proves_nothing(finding: Finding, case: Case) -> bool:
    """Whether it may be true and is no proof.

    It is of another time zone, of a rank on its way, or of a program that logs what it means.
    """
    return _long_before(finding, case) or _seen_live(finding) or _any_program(finding)


STOPPED = (*WAITS, "c10d.monitor", "c10d.error", "run.end", "attach.rank", "stack")
"""Kinds that show that ranks waited, beside files that any moment of a job may have left so."""


def _of_any_moment(finding: Finding, case: Case) -> bool:
    """Whether a healthy job could have left all of its evidence.

    That is ranks that are a call apart, in files that are written while it runs.
    """
    if finding.verdict != "found" or case.of(*STOPPED):
        return False
    for piece in finding.evidence:
        if not isinstance(piece, Event):
            return False
        gap = piece.data
        if not isinstance(gap, (FlightMissing, FlightP2p)):
            return False
        if not gap.growing:
            return False
    return True


def _got_over(finding: Finding, case: Case, lines: list[Event], fatal: list[Event]) -> Finding:
    """The finding, weaker where work was done after its lines.

    Something else must have failed after that, or a rank have failed before.  Which rank did the
    work is mostly not known: near the lines it may be one that had not missed the other yet.
    """
    # a timeout is written long after the call that it speaks of, so its line does not say when the
    # trouble began
    said = [event for event in lines if event.kind not in WAITS] or lines
    errors = []
    for event in said:
        if isinstance(event.data, SystemFault):
            errors.append(event.data)
    if any(error.what in LASTING for error in errors):
        return finding
    last = max(said, key=lambda event: (event.path, event.line))
    # lines of different files have no order but by clocks, which may disagree
    steps = []
    for e in _work_after(case, said):
        if e.path == last.path:
            steps.append(e)
    ends = [event for event in fatal if steps and is_later(event, steps[-1])]
    # near the lines the steps may be those of ranks that had not missed the dead one yet
    far = bool(steps) and (
        steps[-1].line - last.line > FAR or steps[-1].rank == last.rank is not None
    )
    if far:
        return replace(finding, strength="possible")
    # work that was done in between shows that the first trouble was not the end; the last failure
    # may be another one
    second = finding.strength == "proven" and ((steps and ends) or _after_own(finding, case, said))
    if second:
        return replace(finding, strength="likely")
    return finding


def _work_after(case: Case, said: list[Event]) -> list[Event]:
    """Work (steps, and starts of NCCL) that came after the lines `said`.

    After a rank's uncaught error it counts only where that rank itself times out later still.
    """
    work = [*case.of(StepProgress), *initialized(case)]
    # within a file the line number is the order; between files only what is compared below counts
    work.sort(key=lambda event: (event.path, event.line))
    # an uncaught error ends its rank, so only a rank that speaks again later has survived it
    ranks = {event.rank for event in said if UNCAUGHT.match(event.text)}
    # without a rank it is not known whose end it was: any work after the lines counts
    if not ranks or None in ranks:
        return lines_after(case, said, work)
    # a rank that itself times out later was alive after its error, up to that timeout
    waits = [Span(event for event in case.of(*WAITS) if event.rank == rank) for rank in ranks]
    later = []
    for event in work:
        if all(is_later(event, line) for line in said):
            later.append(event)
    return [event for event in later if all(own.ends_after(event) for own in waits)]


def _after_own(finding: Finding, case: Case, said: list[Event]) -> bool:
    """True where a rank ended with an error of the program.

    It ended before these lines, or with lines that no rank wrote.
    """
    errors = [
        e
        for e in case.of(PythonException)
        if is_own(e) and UNCAUGHT.match(e.text) and e.data.type in OWN
    ]
    # the finding may rest on that very error
    errors = [event for event in errors if event not in finding.evidence]
    # lines of a launcher stand anywhere in a log of all ranks
    stray = []
    for line in said:
        if line.rank is None and (not UNCAUGHT.match(line.text)):
            stray.append(line)
    return any(all(line in stray or is_later(line, error) for line in said) for error in errors)


def _long_before(finding: Finding, case: Case) -> bool:
    """True where it rests on the kernel's log alone, long before later work.

    Ranks took steps or began a collective a minute later.  The kernel's clock may be that of
    another zone, so that this clears nothing.
    """
    times = [
        e.time for e in finding.evidence if isinstance(e, Event) and e.kind.startswith("kernel.")
    ]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(finding.evidence):
        return False
    steps = []
    for event in case.of(StepProgress):
        if event.time:
            steps.append(event.time - max(known))
    begun = [
        e.time - (e.data.ran_ms or 0) / 1000 - max(known) for e in case.of(C10dTimeout) if e.time
    ]
    return any(age > 60 for age in steps) or any(
        60 < age < DAY for age in begun
    )  # glog's lines tell no year


def _meeting(event: Event) -> bool:
    """True for what is said of a connection between ranks that was not made."""
    # NCCL warns of each refused try and tries on
    is_refused = isinstance(event.data, NcclMessage) and event.data.family == "socket_connect"
    return bool(event.kind.startswith(MEETING) or is_refused or TEXT.search(event.text))


def _meetings(case: Case) -> list[Event]:
    """Lines that only ranks write that have met.

    They tell communicators made, steps done, or collectives begun.
    """
    done = initialized(case)
    joined = []
    for event in case.of(StoreClients):
        if event.data.joined == event.data.expected is not None:
            joined.append(event)
    begun = [
        e for e in case.of(C10dTimeout) if e.data.seq != 1
    ]  # the first one begins without the others
    kinds = ("nccl.version", "nccl.connected", "nccl.op", "c10d.status", "progress", "job.done")
    return [*done, *joined, *begun, *(event for kind in kinds for event in case.of(kind))]
