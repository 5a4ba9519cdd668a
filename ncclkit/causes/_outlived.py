"""What a job outlived: a refusal or an error after which it went on did not stop it.

A rank that is refused at the start tries again, a loader reads a shard once more, a batch that did not fit is halved:
such lines look like failures in the log of a job that is well.  No cause needs to know that; the lines after them do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ncclkit.case import Case
from ncclkit.causes._words import FATAL, pick
from ncclkit.model import Event, Finding, clear

MEETING = ("store.", "rendezvous.", "gloo.connect", "gloo.no_interface")
"""Kinds that speak of ranks that could not meet."""
ERRORS = (*FATAL, *MEETING, "system.error", "cuda.", "gloo.", "c10d.", "nccl.warn", "nccl.trace", "ddp.")
"""Kinds of lines that a job that goes on has outlived; settings, and what the kernel saw of hardware, last."""
UNCAUGHT = re.compile(r"(?:\[[\w.-]+\] ?){0,2}\[rank\d+\]:? *(?:Traceback|[\w.]+(?:Error|Exception)\b)")
"""How torch marks the last words of a rank; what a program prints of an error that it got over has no such mark."""
STEP, GROUP = "COMPLETED", "successfully finished"
"""Words of Slurm, which speak for all ranks, and of torchrun, which speak for those of one host."""
TEXT = re.compile(r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name resolution")
"""What exceptions say of the same."""


def outlived(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after every line on which it rests."""
    lines = [piece for piece in finding.evidence if isinstance(piece, Event) and piece.kind.startswith(ERRORS)]
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of("run.end"):
        return finding
    fatal = [event for event in case.events if event.kind in FATAL]
    done = _after(case, lines, case.of("job.done"))
    went_on = done or (_after(case, lines, case.of("progress")) if finding.strength == "possible" and not fatal else [])
    if went_on and not any(_later(event, went_on[-1]) for event in fatal):
        return clear(finding.cause, "The job went on after it.", pick(went_on, limit=1))
    met = _after(case, lines, _meetings(case)) if all(map(_meeting, lines)) else []
    if not met:
        return finding
    given_up = [event for event in lines if event.kind in FATAL] and any(_later(event, met[-1]) for event in fatal)
    if given_up:
        return replace(finding, strength="possible")
    return clear(finding.cause, "The ranks met after all.", pick(met, limit=1))


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
