"""The record of a diagnosis: its verdict, its headline, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ncclkit.analysis.outcome import Outcome
from ncclkit.analysis.trouble import Trouble
from ncclkit.causes import resemblance
from ncclkit.causes.decision import Decision
from ncclkit.causes.differential import Differential
from ncclkit.causes.order import STRENGTHS
from ncclkit.core.model import SCHEMA, Advice, Event, Finding, cite
from ncclkit.core.text import plural, start

JOB = ("ranks", "hosts", "nccl", "torch", "cuda", "transports")
"""What ``--json`` says of the job.

Others script against it, so it grows only with the schema number.
"""
SHOWN = 5
"""Errors without a known cause that a text quotes."""
EXIT_STATUS = {"found": 1, "unexplained": 1, "slow": 1, "running": 0, "healthy": 0, "no_job": 2}
"""Verdict on the whole case → exit status of ``ncclkit diagnose``."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What was found, what could not be judged, what was looked at and is fine."""

    findings: tuple[Finding, ...] = ()
    """Verdict ``found``, the best root first."""
    unknown: tuple[Finding, ...] = ()
    clear: tuple[Finding, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    """``ranks``, ``hosts``, ``nccl``, ``torch``, ``cuda``, ``transports`` as far as the evidence
    says."""
    errors: tuple[Event, ...] = ()
    """The first errors that nothing shows the job to have survived.

    They are kept where no cause is known.
    """
    outcome: Outcome = Outcome(None, None)
    """How the job came out, as far as the evidence shows it."""
    against: Trouble = Trouble((), (), (), ())
    """What speaks against the job."""
    job_seen: bool = False
    """Whether any line is of a training job."""
    risks: tuple[Finding, ...] = ()
    """What this job did not suffer, but what may harm it.

    Where nothing was found it is what the facts of the hosts alone warn of, and settings in its log
    that may slow it.
    """
    slow: str = ""
    """That a live test was slower than it should be, in a sentence.

    It succeeded; the sentence says also what others used.
    """
    ended: str = ""
    """That judging was ended at its deadline, in one sentence.

    It says how many causes it had reached; else it is empty.
    """
    counted: str = ""
    """Where the job stands by NCCL's RAS, in one sentence, where there is a report of it."""
    differential: Differential | None = None
    """The usual suspects, for who asks.

    They are kept where no cause is more than possible and the job was not seen to go well.
    """
    decision: Decision = Decision("wait_and_see", "the job was not judged")
    """Whether the job is started again as it is."""

    @property
    def verdict(self) -> str:
        """``found``, ``unexplained``, ``slow``, ``running``, ``healthy`` or ``no_job``."""
        if (
            self.slow
            and not self.errors
            and all(STRENGTHS[finding.strength] == 1 for finding in self.findings)
        ):
            return "slow"
        if not all(map(resemblance.is_resembling, self.findings)) and not self.says_no_reason:
            return "found"
        if not self.job_seen and not self.findings:
            return "no_job"
        if self.errors or self.findings:
            return "unexplained"
        if self.healthy and not self.ended:
            return "healthy"
        if self.at_work:
            return "running"
        return "unexplained"

    @property
    def says_no_reason(self) -> str:
        """The error without its reason, where that is all there is.

        No cause may be more than possible.
        """
        firm = any(STRENGTHS[finding.strength] > 1 for finding in self.findings)
        if firm:
            return ""
        return self.against.says_no_reason

    @property
    def healthy(self) -> Event | None:
        """The line that shows that all of the job succeeded.

        It counts where nothing speaks against it.
        """
        if self.against:
            return None
        return self.outcome.success

    @property
    def at_work(self) -> Event | None:
        """The last line that only a job at work writes.

        It counts where nothing speaks against it.
        """
        if self.against:
            return None
        return self.outcome.work

    @property
    def exit_code(self) -> int:
        """The exit status of ``ncclkit diagnose``.

        It is 0 where the job was seen to go well, 1 where it was not, 2 where there is no job (or
        nothing could be read).
        """
        return EXIT_STATUS[self.verdict]

    @property
    def checks(self) -> str:
        """How many causes were judged, and how many of these could not be."""
        causes = plural(len(self.clear) + len(self.unknown), "cause")
        return (
            f"of {causes}, {plural(len(self.clear), 'check')} passed, {len(self.unknown)} not"
            " evaluated"
        )

    @property
    def headline(self) -> str:
        """The verdict in one sentence.

        It is the best root, the first error that no cause explains, or that all is well.
        """
        if self.verdict == "slow":
            return self.slow
        if self.says_no_reason:
            return (
                f'The log says "{self.says_no_reason}" and not why: its reason stands in lines that'
                " are not here."
            )
        if self.findings and (self.verdict == "found" or not self.errors):
            return self.findings[0].say
        if self.findings and self.differential and self.verdict == "unexplained":
            return self._suspected
        if self._is_undecided_rehearsal:
            why, *notes = self.errors[0].text.splitlines()
            return " ".join([f"{start(why)}.", *notes])
        if self.errors and self.job_seen:
            first = self.errors[0].text.strip().splitlines()[-1]
            many = f"{plural(len(self.errors), 'error')}, the first: {first}"
            return (
                "No known cause explains"
                f" {many if len(self.errors) > 1 else f'this error: {first}'}"
            )
        if self.ended:
            return self.ended
        if self.healthy:
            others = ""
            if self.risks:
                others = f"; {plural(len(self.risks), 'risk')}"
            if self.healthy.kind == "rehearsal.verdict":
                agreed, *notes = self.healthy.text.splitlines()
                return " ".join([f"Nothing found: {agreed} ({self.checks}){others}.", *notes])
            return f"Nothing found: the job was seen to go well ({self.checks}){others}."
        if self.at_work and self.at_work.kind == "attach.motion":
            return f"The job goes on: {self.at_work.text}."
        if self.at_work and self.outcome.interrupted:
            return (
                "The job was at work until somebody interrupted it from the keyboard; the log shows"
                " no trouble before that."
            )
        if self.at_work:
            return (
                "The job is at work, with no trouble in this excerpt, which ends before the job"
                " does."
            )
        if self.counted:
            return self.counted
        if self.job_seen:
            return "There is no error, but nothing shows that the job succeeded or goes on."
        if self.clear:
            return f"No risk found ({self.checks})."
        return "Nothing in this is of a training job that ncclkit knows."

    @property
    def _is_undecided_rehearsal(self) -> bool:
        """Whether what is left open is why a rehearsal could not tell, which it says itself."""
        return bool(self.errors) and self.errors[0].kind == "rehearsal.verdict"

    @property
    def _suspected(self) -> str:
        """The error, and the first suspects, where no line proves one of them."""
        named = [finding.cause for finding in self.findings[:3]]
        error = ""
        if self.errors:
            error = self.errors[0].text.strip().splitlines()[-1]
        why = "No line proves why"
        if error:
            why = f"No line proves why: {error.rstrip('.')}"
        after = ""
        if self.differential and self.differential.answers:
            after = " after the answers given"
        return f"{why}. Suspected first{after}: {', '.join(named)}."

    def to_dict(self, inputs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The object that ``ncclkit diagnose --json`` prints of one job.

        The verb (`ncclkit.cli.verbs.diagnose`) adds ``other_jobs`` where there are several.
        `inputs` is one mapping per file with ``path``, ``bytes``, ``lines``.
        """
        measured = {}
        if self.slow:
            measured = {"measured": self.slow}
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            **measured,
            "inputs": [{key: row.get(key) for key in ("path", "bytes", "lines")} for row in inputs],
            "job": {key: self.job.get(key) for key in JOB},
            "findings": [_row(finding) for finding in self.findings],
            "unknown": [
                {"cause": finding.cause, "missing": list(finding.missing)}
                for finding in self.unknown
            ],
            "errors": [cite(error) for error in self.errors],
            "risks": [_row(risk) for risk in self.risks],
            "action": self.decision.to_dict(),
        }

    def text(self) -> str:
        """The report for a terminal: culprit, sentence, the very lines, what to do."""
        if not self.findings:
            lines = [f"  {error}" for error in self.errors[:SHOWN]]
            lines += map(_risk, self.risks)
            lines += [self.ended] if self.ended not in ("", self.headline) else []
            asked = sorted({missing for finding in self.unknown for missing in finding.missing})[:5]
            is_open = self.verdict in ("unexplained", "slow")
            if asked and is_open and not self._is_undecided_rehearsal:
                lines += [
                    "What would let more causes be judged:",
                    *(f"  - {missing}" for missing in asked),
                ]
            return "\n".join([self.headline, *lines])
        parts = []
        for number, finding in enumerate(self.findings, 1):
            if resemblance.is_resembling(finding):
                parts.append(
                    suspect_heading(self.findings, number) + _suspect_text(number, finding)
                )
            else:
                parts.append(_text(number, finding))
        above = []
        if self.errors:
            above = [self.headline, *(f"  {error}" for error in self.errors[:SHOWN])]
        if self.verdict == "slow":
            above = [self.headline]
        below = []
        if self.ended:
            below = [self.ended]
        return "\n\n".join(
            [*(["\n".join(above)] if above else []), *parts, *map(_risk, self.risks), *below]
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.headline


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
        if row["line"]:
            place = f"{row['path']}:{row['line']}"
        else:
            place = row["path"]
        lines += [f"     {place}", *[f"       {line}" for line in clip(row["text"])]]
    asked = finding.next
    steps = [line for advice in finding.advice for line in _advice(advice)]
    if asked:
        predictions = [f"     {cause}: {answer}" for cause, answer in asked.predicts.items()]
        if finding.experiment_first:
            at = 0
        else:
            at = len(steps)
        steps[at:at] = [f"   Next experiment: {asked.question}", *predictions]
    return "\n".join([*lines, *steps])


LOOKS_LIKE = "What it looks like, though no line shows it. Each has the look that decides."
"""Above the findings that rest on wording and on settled cases alone."""


def suspect_heading(findings: Sequence[Finding], number: int) -> str:
    """The line above the first suspect of a list, and an empty one.

    It is "" above others.
    """
    if number > 1 and resemblance.is_resembling(findings[number - 2]):
        return ""
    return f"{LOOKS_LIKE}\n\n"


def _suspect_text(number: int, finding: Finding) -> str:
    """What a suspect rests on, and the look that decides.

    No evidence proves more.
    """
    look = finding.advice[0]
    lines = [
        f"{number}. {finding.cause} ({finding.strength})",
        f"   {finding.say}",
        f"   {look.do}",
    ]
    lines += [f"     {line}" for line in look.to_copy]
    return "\n".join([*lines, f"     {look.check}"])


def _risk(finding: Finding) -> str:
    return f"A risk ({finding.cause}, {finding.strength}): {with_fix(finding)}"


def with_fix(finding: Finding) -> str:
    """The sentence of a finding and, in the same line, the first thing to do about it."""
    if not finding.advice:
        return finding.say
    first = finding.advice[0]
    variables = ""
    if first.env:
        variables = f" ({'; '.join(first.exports)})"
    return f"{finding.say} Fix: {first.do}{variables}"


def clip(text: str, limit: int = 6) -> list[str]:
    """The lines of a text, cut to 240 characters.

    Of more than `limit` lines it is the first two and the last.
    """
    lines = [line[:240] for line in text.splitlines()]
    # the first two lines say what it is, the last ones how it ended
    if len(lines) <= limit:
        return lines
    return [*lines[:2], f"... {len(lines) - limit} lines ...", *lines[2 - limit :]]


def _advice(advice: Advice) -> list[str]:
    lines = [f"   Do: {advice.do}"]
    lines += [f"     {line}" for line in advice.to_copy]
    lines += [f"     Check: {advice.check}"] if advice.check else []
    return lines + ([f"     Risk: {advice.risk}"] if advice.risk else [])
