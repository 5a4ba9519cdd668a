"""Findings that rest on a rehearsal say so: nothing has hung yet."""

from __future__ import annotations

from dataclasses import replace

from ncclkit.core.case import Case
from ncclkit.core.kinds import RehearsalVerdict
from ncclkit.core.model import Event, Finding


def undecided_rehearsal(case: Case) -> Event[RehearsalVerdict] | None:
    """The verdict of a rehearsal that could not tell; its sentence says why."""
    for verdict in case.of(RehearsalVerdict, verdict="unknown"):
        return verdict
    return None


def named_as_rehearsed(finding: Finding, case: Case) -> Finding:
    """The finding, whose sentence says so where its evidence is of a rehearsal."""
    for verdict in case.of(RehearsalVerdict):
        for piece in finding.evidence:
            if isinstance(piece, Event) and piece.path == verdict.path:
                how = f"Rehearsal of {verdict.data.ranks} ranks"
                if verdict.data.fake:
                    how += " with tensors that had no values"
                say = f"{how}: {finding.say}"
                return replace(finding, say=say)
    return finding
