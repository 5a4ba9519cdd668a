"""Findings that rest on a rehearsal say so: nothing has hung yet."""

from __future__ import annotations

from dataclasses import replace

from ncclkit.core.case import Case
from ncclkit.core.kinds import RehearsalVerdict
from ncclkit.core.model import Event, Finding


def named_as_rehearsed(finding: Finding, case: Case) -> Finding:
    """The finding, whose sentence says so where its evidence is of a rehearsal."""
    for verdict in case.of(RehearsalVerdict):
        for piece in finding.evidence:
            if isinstance(piece, Event) and piece.path == verdict.path:
                say = f"Rehearsal of {verdict.data.ranks} ranks: {finding.say}"
                return replace(finding, say=say)
    return finding
