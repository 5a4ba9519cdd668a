"""What a job outlived: a refusal or an error after which it went on did not stop it.

A rank that is refused at the start tries again, a loader reads a shard once more, a batch that did not fit is halved:
such lines look like failures in the log of a job that is well.  No cause needs to know that; the lines after them do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ncclkit.analysis.picks import FATAL, pick
from ncclkit.analysis.rank_states import is_own
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding, clear

MEETING = ("store.", "rendezvous.", "gloo.connect", "gloo.no_interface")
"""Kinds that speak of ranks that could not meet."""
ERRORS = (*FATAL, *MEETING, "system.error", "cuda.", "gloo.", "c10d.", "nccl.warn", "nccl.trace", "ddp.")
"""Kinds of lines that a job that goes on has outlived; settings, and what the kernel saw of hardware, last."""
UNCAUGHT = re.compile(r"(?:\[[\w.-]+\] ?){0,2}\[rank\d+\]:? *(?:Traceback|[\w.]+(?:Error|Exception)\b)")
"""How torch marks the last words of a rank; what a program prints of an error that it got over has no such mark."""
OWN = ("IndexError", "KeyError", "NameError", "AttributeError", "ModuleNotFoundError", "ZeroDivisionError")
"""Errors that nothing but the program brings about, least of all the end of another rank."""
STEP, GROUP = "COMPLETED", "successfully finished"
"""Words of Slurm, which speak for all ranks, and of torchrun, which speak for those of one host."""
TEXT = re.compile(r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name resolution")
"""What exceptions say of the same."""
PROSE = re.compile(
    r"\b(?:I|[Ww]e)(?:'ve|'m|'d)? (?:(?:also|first|only|once|still|just|always|never|do|don't|did|didn't|can|could) )*"
    r"(?:am|are|get|got|had|have|see|saw|seen|use|used|try|tried|checked|ran|run|know|found|killed|set)\b"
    r"|\b(?:not|no|isn't|wasn't) (?:an? |the )?[\"'`“]"
)
"""A person's sentence, which may quote an error that is gone, was never there, or belongs to another attempt."""
LIBRARY = re.compile(r"\.(?:cpp|cc|cu|py)\b|NCCL (?:INFO|WARN)|^\s*\[|data inconsistency")
"""Lines of programs, some of which say ``we`` as well."""
LASTING = ("dataloader_workers", "memlock", "own_name", "no_verbs")
"""What a `system.error` says of a setting, which is as it was however long the job goes on."""
WAITS = ("c10d.timeout", "gloo.timeout")
DAY = 86400.0
FAR = 50
"""Lines between an error and a step that was done after it: further away than the ranks beside a dead one come."""


def recovered(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after every line on which it rests."""
    if finding.strength == "proven" and _long_before(finding, case):
        return replace(finding, strength="likely")
    lines = [piece for piece in finding.evidence if isinstance(piece, Event) and piece.kind.startswith(ERRORS)]
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of("run.end"):
        return finding
    if all(map(_prose, lines)):
        return replace(finding, strength="possible")
    fatal = [event for event in case.events if event.kind in FATAL]
    done = _after(case, lines, case.of("job.done"))
    went_on = done or (_after(case, lines, case.of("progress")) if finding.strength == "possible" and not fatal else [])
    if went_on and not any(_later(event, went_on[-1]) for event in fatal):
        return clear(finding.cause, "The job went on after it.", pick(went_on, limit=1))
    met = _after(case, lines, _meetings(case)) if all(map(_meeting, lines)) else []
    if not met:
        return _got_over(finding, case, lines, fatal)
    given_up = [event for event in lines if event.kind in FATAL] and any(_later(event, met[-1]) for event in fatal)
    if given_up:
        return replace(finding, strength="possible")
    return clear(finding.cause, "The ranks met after all.", pick(met, limit=1))


def _got_over(finding: Finding, case: Case, lines: list[Event], fatal: list[Event]) -> Finding:
    """Weaker where work was done after its lines, and then something else failed; or where a rank had failed before.

    Which rank did the work is mostly not known: near the lines it may be one that had not missed the other yet.
    """
    said = [event for event in lines if event.kind not in WAITS] or lines
    if any(event.data.get("what") in LASTING for event in said):
        return finding
    last = max(said, key=lambda event: (event.path, event.line))
    steps = [e for e in _lived(case, said) if e.path == last.path]
    ends = [event for event in fatal if steps and _later(event, steps[-1])]
    far = bool(steps) and (steps[-1].line - last.line > FAR or steps[-1].rank == last.rank is not None)
    if far:
        return replace(finding, strength="possible")
    second = finding.strength == "proven" and ((steps and ends) or _after_own(finding, case, said))
    return replace(finding, strength="likely") if second else finding


def _lived(case: Case, said: list[Event]) -> list[Event]:
    """Steps, and starts of NCCL, that came after it; after a rank's last words where that rank speaks again later."""
    work = [*case.of("progress"), *(e for e in case.of("nccl.init") if e.data.get("phase") == "done")]
    work.sort(key=lambda event: (event.path, event.line))
    waits = [event for kind in WAITS for event in case.of(kind)]
    ranks = {event.rank for event in said if UNCAUGHT.match(event.text)}
    again = [e for e in work if {w.rank for w in waits if _later(w, e)} >= ranks and all(_later(e, s) for s in said)]
    return again if ranks and None not in ranks else _after(case, said, work)


def _after_own(finding: Finding, case: Case, said: list[Event]) -> bool:
    """True where a rank ended with an error of the program: before these lines, or with lines that no rank wrote."""
    errors = [e for e in case.of("python.exception") if is_own(e) and UNCAUGHT.match(e.text) and e.data["type"] in OWN]
    errors = [event for event in errors if event not in finding.evidence]
    stray = [line for line in said if line.rank is None and not UNCAUGHT.match(line.text)]
    return any(all(line in stray or _later(line, error) for line in said) for error in errors)


def _long_before(finding: Finding, case: Case) -> bool:
    """True where it rests on the kernel's log alone, and ranks took steps or began a collective a minute later.

    The kernel's clock may be that of another zone, so that this clears nothing.
    """
    times = [e.time for e in finding.evidence if isinstance(e, Event) and e.kind.startswith("kernel.")]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(finding.evidence):
        return False
    steps = [event.time - max(known) for event in case.of("progress") if event.time]
    begun = [e.time - (e.data.get("ran_ms") or 0) / 1000 - max(known) for e in case.of("c10d.timeout") if e.time]
    return any(age > 60 for age in steps) or any(60 < age < DAY for age in begun)  # glog's lines tell no year


def _prose(event: Event) -> bool:
    line = event.text.partition("\n")[0]
    return bool(PROSE.search(line) and not LIBRARY.search(line))


def _meeting(event: Event) -> bool:
    """True for what is said of a connection between ranks that was not made."""
    return bool(
        event.kind.startswith(MEETING) or event.data.get("family") == "socket_connect" or TEXT.search(event.text)
    )


def _meetings(case: Case) -> list[Event]:
    """Lines that only ranks write that have met: communicators made, steps done, collectives begun."""
    done = [e for e in case.of("nccl.init") if e.data.get("phase") == "done"]
    joined = [e for e in case.of("store.clients") if e.data.get("joined") == e.data.get("expected") is not None]
    begun = [e for e in case.of("c10d.timeout") if e.data.get("seq") != 1]  # the first one begins without the others
    kinds = ("nccl.version", "nccl.connected", "nccl.op", "c10d.status", "progress", "job.done")
    return [*done, *joined, *begun, *(event for kind in kinds for event in case.of(kind))]


def _after(case: Case, lines: list[Event], proofs: Iterable[Event]) -> list[Event]:
    """Those that come after all of the lines and prove that they did no harm."""
    again = case.of("elastic.restart")
    return [proof for proof in proofs if all(_later(proof, e) and _proves(proof, e, again) for e in lines)]


def _proves(proof: Event, line: Event, again: list[Event]) -> bool:
    """True where what comes later can only be if the line did no harm.

    The end of one rank, or the steps that it does until it misses another, tell nothing of the other one.  A rank that
    torch let say its last words is gone: only a launcher that started all of them again can have ended well.
    """
    if line.kind not in FATAL or (line.rank is not None and proof.rank == line.rank):
        return True
    if UNCAUGHT.match(line.text):
        started = any(_later(proof, restart) and _later(restart, line) for restart in again)
        return proof.kind == "job.done" and (STEP in proof.text or (GROUP in proof.text and started))
    return None in (proof.rank, line.rank)


def _later(one: Event, two: Event) -> bool:
    """By place in a file, else by time; False where neither tells."""
    if one.path == two.path:
        return one.line > two.line
    return one.time is not None and two.time is not None and one.time > two.time
