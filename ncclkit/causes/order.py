"""The order of findings.

Roots stand above their consequences; then strength counts, then what is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclkit.causes import catalogue
from ncclkit.core import experiment_records
from ncclkit.core.model import Event, Evidence, Fact, Finding, cite

STRENGTHS = {"proven": 3, "likely": 2, "possible": 1, None: 0}
"""Strength of a finding → how firm it is."""
USUAL = (
    "slow_rank",
    "rank_divergence",
    "p2p_broken",
    "concurrent_comms",
    "timeout_too_short",
    "world_size_mismatch",
    "rank_exception",
    "shm_too_small",
    "ib_link_error",
    "wrong_interface",
    "cuda_error",
    "rank_killed",
    "host_oom",
)
"""Among causes that are merely possible, those that are right most often.

The most frequent come first.
"""


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Best root first: what another one explains stands below it.

    Then they are ordered by strength, then by how much they explain.  A finding explains another of
    its strength or less; one that is merely possible explains nothing.  What is explained by a
    stronger one and rests on the very same line adds nothing and is left out.  What the facts of
    hosts alone tell is a risk: it explains no other risk, and stands below what a job itself has
    said as firmly.
    """
    order = _Order([_modest(finding, findings) for finding in findings])
    kept = []
    for finding in order.findings:
        if not order.repeats_root(finding):
            kept.append(finding)
    return sorted(kept, key=order.place)


class _Order:
    """What some findings explain of each other, and where each stands."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        self.power = {finding.cause: STRENGTHS[finding.strength] for finding in findings}
        self.explains: dict[str, set[str]] = {}
        """Cause → those of the others that it may bring about."""
        for name in self.power:
            brought_about = set(catalogue()[name].explains)
            self.explains[name] = brought_about & self.power.keys() - {name}
        self.risks = {finding.cause for finding in findings if is_risk(finding)}

    def roots(self, finding: Finding) -> list[Finding]:
        """The findings that explain this one."""
        return [other for other in self.findings if self._is_root(other, finding)]

    def _is_root(self, other: Finding, finding: Finding) -> bool:
        name = finding.cause
        above = other.cause
        if name not in self.explains[above]:
            return False
        # one that is merely possible explains nothing
        if self.power[above] < max(self.power[name], 2):
            return False
        # neither was suffered, so neither brought the other about
        if {name, above} <= self.risks:
            return False
        # two that explain each other as firmly stand side by side
        explain_each_other = above in self.explains[name]
        return not (explain_each_other and self.power[above] == self.power[name])

    def repeats_root(self, finding: Finding) -> bool:
        """Whether a stronger finding that explains this one rests on its very line."""
        for root in self.roots(finding):
            if self.power[root.cause] <= self.power[finding.cause]:
                continue
            if any(_same_place(finding.evidence[0], piece) for piece in root.evidence):
                return True
        return False

    def place(self, finding: Finding) -> tuple[bool, bool, int, bool, int, int, str]:
        """By what findings are sorted."""
        name = finding.cause
        power = self.power[name]
        usual = len(USUAL)
        # a cause that is not listed turns out right more seldom than those that are
        if name in USUAL:
            usual = USUAL.index(name)
        # of merely possible causes the usual one comes first, of firm ones who explains most
        weight = usual
        if power > 1:
            weight = -len(self.explains[name])
        is_risk = name in self.risks
        is_mere_risk = is_risk and power == 1
        return (
            is_mere_risk,
            bool(self.roots(finding)),
            -power,
            is_risk,
            weight,
            usual,
            name,
        )


def is_risk(finding: Finding) -> bool:
    """Whether it rests on facts of hosts alone."""
    return all(isinstance(piece, Fact) for piece in finding.evidence)


def _modest(finding: Finding, others: Sequence[Finding]) -> Finding:
    """The finding that ranks were late, no more than likely beside a reason.

    It is no proven reason where another finding gives one for the very same ranks.
    """
    ranks = finding.culprits.get("ranks")
    if finding.cause != "slow_rank" or finding.strength != "proven" or not ranks:
        return finding
    # an experiment showed that this rank alone was late: that is proof whatever else is found
    if any(_is_of_experiment(piece) for piece in finding.evidence):
        return finding
    for other in others:
        # why the rank was late is what a reader can change
        gives_reason = finding.cause in catalogue()[other.cause].explains
        is_firm = STRENGTHS[other.strength] > 1
        if gives_reason and is_firm and other.culprits.get("ranks") == ranks:
            return replace(finding, strength="likely")
    return finding


def _is_of_experiment(piece: Evidence) -> bool:
    return isinstance(piece, Event) and piece.kind in experiment_records.KINDS


def _same_place(one: Evidence, two: Evidence) -> bool:
    """True when two pieces of evidence are the same words of the same source.

    A traceback holds its last line.
    """
    a = cite(one)
    b = cite(two)
    return bool(a["path"] == b["path"] and (a["text"] in b["text"] or b["text"] in a["text"]))
