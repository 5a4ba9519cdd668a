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
TEXT = re.compile(r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name resolution")
"""What exceptions say of the same."""


def outlived(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after every line on which it rests."""
    lines = [piece for piece in finding.evidence if isinstance(piece, Event) and piece.kind.startswith(ERRORS)]
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of("run.end"):
        return finding
    fatal = [event for event in case.events if event.kind in FATAL]
    done = _after(lines, case.of("job.done"))
    went_on = done or (_after(lines, case.of("progress")) if finding.strength == "possible" and not fatal else [])
    if went_on and not any(_later(event, went_on[-1]) for event in fatal):
        return clear(finding.cause, "The job went on after it.", pick(went_on, limit=1))
    met = _after(lines, _meetings(case)) if all(map(_meeting, lines)) else []
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
    kinds = ("nccl.version", "nccl.connected", "nccl.op", "c10d.timeout", "c10d.status", "progress", "job.done")
    return [*done, *joined, *(event for kind in kinds for event in case.of(kind))]


def _after(lines: Iterable[Event], proofs: list[Event]) -> list[Event]:
    """Those that come after all of the lines."""
    return [proof for proof in proofs if all(_later(proof, line) for line in lines)]


def _later(one: Event, two: Event) -> bool:
    """By place in a file, else by time; False where neither tells."""
    if one.path == two.path:
        return one.line > two.line
    return one.time is not None and two.time is not None and one.time > two.time
