"""Runs every cause over a case and puts the roots above their consequences.

Each cause judges on its own; this module only orders what they found.  A cause
that itself fails is reported as ``unknown`` and never hides the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

from ncclkit.analysis.once import judged
from ncclkit.causes import Cause, catalogue
from ncclkit.causes._recovered import recovered
from ncclkit.core import experiment_records
from ncclkit.core.case import Case
from ncclkit.core.model import SCHEMA, Advice, Event, Evidence, Fact, Finding, cite, unknown

JOB = ("ranks", "hosts", "nccl", "torch", "cuda", "transports")
"""What ``--json`` says of the job; others script against it, so it grows only with the schema number."""
STRENGTHS = {"proven": 3, "likely": 2, "possible": 1, None: 0}
USUAL = (
    "slow_rank", "rank_divergence", "p2p_broken", "concurrent_comms", "timeout_too_short", "world_size_mismatch",
    "rank_exception", "shm_too_small", "ib_link_error", "wrong_interface", "cuda_error", "rank_killed", "host_oom",
)  # fmt: skip
"""Among causes that are merely possible, those that turn out to be right most often, the most frequent first."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What was found, what could not be judged, what was looked at and is fine."""

    findings: tuple[Finding, ...] = ()
    """Verdict ``found``, the best root first."""
    unknown: tuple[Finding, ...] = ()
    clear: tuple[Finding, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    """``ranks``, ``hosts``, ``nccl``, ``torch``, ``cuda``, ``transports`` as far as the evidence says."""

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 something found (2, could not read, is the caller's)."""
        return 1 if self.findings else 0

    @property
    def headline(self) -> str:
        """The best root in one sentence, or that nothing was found."""
        clear = f"Nothing found; {len(self.clear)} causes looked and are clear."
        return self.findings[0].say if self.findings else clear

    def to_dict(self, inputs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The object that ``ncclkit diagnose --json`` prints.

        inputs: one mapping per file with ``path``, ``bytes``, ``lines``.
        """
        return {
            "schema": SCHEMA,
            "inputs": [{key: row.get(key) for key in ("path", "bytes", "lines")} for row in inputs],
            "job": {key: self.job.get(key) for key in JOB},
            "findings": [_row(finding) for finding in self.findings],
            "unknown": [{"cause": finding.cause, "missing": list(finding.missing)} for finding in self.unknown],
        }

    def text(self) -> str:
        """The report for a terminal: culprit, sentence, the very lines, what to do."""
        if not self.findings:
            asked = sorted({missing for finding in self.unknown for missing in finding.missing})[:5]
            more = "".join(f"\n  - {missing}" for missing in asked)
            return (
                f"Nothing found ({len(self.clear)} causes looked at and clear, {len(self.unknown)} could "
                "not be judged)." + (f"\nWhat would let more causes be judged:{more}" if more else "")
            )
        return "\n\n".join(_text(number, finding) for number, finding in enumerate(self.findings, 1))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.headline


def diagnose(case: Case) -> Diagnosis:
    """Judge `case`, as its last run left it, by the whole catalogue; the case and its folder keep the verdicts."""
    scope = judged(case)
    verdicts = [recovered(judge(name, cause, scope), scope) for name, cause in catalogue().items()]
    verdicts = experiment_records.weigh(experiment_records.told(verdicts, scope.events), scope.events)
    findings = rank([verdict for verdict in verdicts if verdict.verdict == "found"])
    result = Diagnosis(
        tuple(findings),
        tuple(verdict for verdict in verdicts if verdict.verdict == "unknown"),
        tuple(verdict for verdict in verdicts if verdict.verdict == "clear"),
        describe(scope),
    )
    case.findings = [*result.findings, *result.unknown, *result.clear]
    case.save()
    return result


def judge(name: str, cause: Cause, case: Case) -> Finding:
    """One cause's verdict; an error inside it becomes ``unknown`` with its sentence."""
    try:
        return cause.diagnose(case)
    except Exception as error:  # a defect in one cause must not take the other verdicts with it
        return unknown(
            name, f"this check itself failed ({type(error).__name__}: {error}); please report it with the case folder"
        )


def rank(findings: Sequence[Finding]) -> list[Finding]:
    """Best root first: what another one explains stands below it; then by strength; then by how much it explains.

    A finding explains another of its strength or less; one that is merely possible explains nothing.  What is
    explained by a stronger one and rests on the very same line adds nothing and is left out.  What the facts of hosts
    alone tell is a risk: it explains no other risk, and stands below what a job itself has said as firmly.
    """
    causes = catalogue()
    findings = [_modest(finding, findings) for finding in findings]
    power = {finding.cause: STRENGTHS[finding.strength] for finding in findings}
    explains = {name: set(causes[name].explains) & power.keys() - {name} for name in power}

    risks = {finding.cause for finding in findings if all(isinstance(piece, Fact) for piece in finding.evidence)}

    def roots(finding: Finding) -> list[Finding]:
        name = finding.cause
        above = [f for f in findings if name in explains[f.cause] and power[f.cause] >= max(power[name], 2)]
        above = [f for f in above if not {name, f.cause} <= risks]
        return [f for f in above if not (f.cause in explains[name] and power[f.cause] == power[name])]

    def order(finding: Finding) -> tuple[bool, bool, int, bool, int, int, str]:
        name = finding.cause
        usual = USUAL.index(name) if name in USUAL else len(USUAL)
        usual = -1 if getattr(finding.evidence[0], "kind", "") == "told.habit" else usual  # somebody saw that it fits
        weight = usual if power[name] == 1 else -len(explains[name])
        risk = name in risks
        return risk and power[name] == 1, bool(roots(finding)), -power[name], risk, weight, usual, name

    def said(finding: Finding) -> bool:
        stronger = [root for root in roots(finding) if power[root.cause] > power[finding.cause]]
        return any(_same_place(finding.evidence[0], piece) for root in stronger for piece in root.evidence)

    kept = [finding for finding in findings if not said(finding)]
    return sorted(kept, key=order)


def _modest(finding: Finding, others: Sequence[Finding]) -> Finding:
    """That ranks were late is no proven reason where another finding gives one for the very same ranks."""
    ranks, causes = finding.culprits.get("ranks"), catalogue()
    lines = not any(isinstance(piece, Event) and piece.kind in experiment_records.KINDS for piece in finding.evidence)
    if finding.cause == "slow_rank" and finding.strength == "proven" and ranks and lines:
        reasons = [f for f in others if finding.cause in causes[f.cause].explains and f.culprits.get("ranks") == ranks]
        return replace(finding, strength="likely") if any(STRENGTHS[f.strength] > 1 for f in reasons) else finding
    return finding


def _same_place(one: Evidence, two: Evidence) -> bool:
    """True when two pieces of evidence are the same words of the same source; a traceback holds its last line."""
    a, b = cite(one), cite(two)
    return bool(a["path"] == b["path"] and (a["text"] in b["text"] or b["text"] in a["text"]))


def describe(case: Case) -> dict[str, Any]:
    """The job as the evidence shows it."""
    evidence = import_module("ncclkit.evidence")  # at call time: records alone can be judged without the readers
    return dict(evidence.job(case.events, case.inputs))


def _row(finding: Finding) -> dict[str, Any]:
    keys = ("ranks", "hosts", "gpus", "interfaces")
    return {
        "cause": finding.cause,
        "verdict": finding.verdict,
        "strength": finding.strength,
        "culprits": {key: list(finding.culprits.get(key, ())) for key in keys},
        "say": finding.say,
        "evidence": [cite(piece) for piece in finding.evidence],
        "advice": [asdict(advice) for advice in finding.advice],
        "next": asdict(finding.next) if finding.next else None,
    }


def _text(number: int, finding: Finding) -> str:
    lines = [f"{number}. {finding.cause} ({finding.strength})", f"   {finding.say}", "   Evidence:"]
    for piece in finding.evidence:
        row = cite(piece)
        place = f"{row['path']}:{row['line']}" if row["line"] else row["path"]
        lines += [f"     {place}", *[f"       {line}" for line in _clip(row["text"])]]
    lines += [line for advice in finding.advice for line in _advice(advice)]
    if finding.next:
        lines.append(f"   To decide: {finding.next.question}")
        lines += [f"     {cause}: {answer}" for cause, answer in finding.next.predicts.items()]
    return "\n".join(lines)


def _clip(text: str, limit: int = 6) -> list[str]:
    lines = [line[:240] for line in text.splitlines()]
    return lines if len(lines) <= limit else [*lines[:2], f"... {len(lines) - limit} lines ...", *lines[2 - limit :]]


def _advice(advice: Advice) -> list[str]:
    lines = [f"   Do: {advice.do}"]
    lines += [f"     export {name}={value}" for name, value in advice.env.items()]
    lines += [f"     $ {advice.command}"] if advice.command else []
    lines += [f"     {line}" for line in advice.code.splitlines()]
    lines += [f"     Check: {advice.check}"] if advice.check else []
    return lines + ([f"     Risk: {advice.risk}"] if advice.risk else [])
