"""Runs every cause over a case and puts the roots above their consequences.

Each cause judges on its own; this module only orders what they found.  A cause
that itself fails is reported as ``unknown`` and never hides the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from time import monotonic
from typing import Any

from ncclkit.analysis.complaints import DESKTOP, is_short_of_target, is_source
from ncclkit.analysis.motion import without_moments
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.outcome import (
    Outcome,
    asked_for,
    outcome,
    shows_training,
    success_lines,
)
from ncclkit.analysis.picks import FATAL, failed, initialized, pick
from ncclkit.analysis.rank_states import is_own
from ncclkit.analysis.speed import measured_speed
from ncclkit.analysis.succession import Span, is_later
from ncclkit.analysis.trouble import UNCAUGHT, Trouble, is_of_job, lines_after, trouble
from ncclkit.causes import Cause, catalogue, resemblance
from ncclkit.causes.differential import Differential, differential
from ncclkit.causes.cpu_contention import shared_cores
from ncclkit.causes.slow_transport import brakes
from ncclkit.causes.suspects import suspect_finding
from ncclkit.core import experiment_records, shapes
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    AttachRank,
    C10dTimeout,
    FlightFinding,
    JobDone,
    NcclMessage,
    PythonException,
    RunEnd,
    StepProgress,
    StoreClients,
    SystemFault,
)
from ncclkit.core.model import SCHEMA, Advice, Event, Evidence, Fact, Finding, cite, clear, unknown
from ncclkit.core.text import plural
from ncclkit.evidence.quotation import is_quotation

JOB = ("ranks", "hosts", "nccl", "torch", "cuda", "transports")
"""What ``--json`` says of the job; others script against it, so it grows only with the schema
number."""
SHOWN = 5
"""Errors without a known cause that a text quotes."""
EXIT_STATUS = {"found": 1, "unexplained": 1, "slow": 1, "running": 0, "healthy": 0, "no_job": 2}
"""Verdict on the whole case → exit status of ``ncclkit diagnose``."""
OF_AN_END = ("rank_killed", "rank_exception", "host_oom")
"""Causes that end a rank, after which a launcher may start the job again."""
BRAKES = ("ib_not_used", "slow_transport", "cpu_binding", "cpu_contention", "gpu_clock_limit")
"""Causes that make a job slower and end none."""
DEADLINE = 120.0
"""Seconds after which no further cause is judged."""
STRENGTHS = {"proven": 3, "likely": 2, "possible": 1, None: 0}
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
"""Among causes that are merely possible, those that turn out to be right most often, the most
frequent first."""


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
    """Where no cause is known: the first errors of the job that nothing shows it to have
    survived."""
    outcome: Outcome = Outcome(None, None)
    """How the job came out, as far as the evidence shows it."""
    against: Trouble = Trouble((), (), (), ())
    """What speaks against the job."""
    job_seen: bool = False
    """Whether any line is of a training job."""
    risks: tuple[Finding, ...] = ()
    """What this job did not suffer: where nothing was found, what the facts of the hosts alone warn
    of; and settings in its log that may slow it."""
    slow: str = ""
    """Where a live test succeeded and was slower than it should be: that in a sentence, and what
    others used."""
    ended: str = ""
    """That judging was ended at its deadline, and how many causes it had reached, in one sentence;
    else empty."""
    differential: Differential | None = None
    """Where no cause is more than possible and the job was not seen to go well: the usual suspects,
    for who asks."""

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
        """The error without its reason, where that is all there is and no cause is more than
        possible.
        """
        firm = any(STRENGTHS[finding.strength] > 1 for finding in self.findings)
        if firm:
            return ""
        return self.against.says_no_reason

    @property
    def healthy(self) -> Event | None:
        """The line that shows that all of the job succeeded, where nothing speaks against it."""
        if self.against:
            return None
        return self.outcome.success

    @property
    def at_work(self) -> Event | None:
        """The last line that only a job at work writes, where nothing speaks against it."""
        if self.against:
            return None
        return self.outcome.work

    @property
    def exit_code(self) -> int:
        """0 the job was seen to go well, 1 it was not, 2 there is no job (or nothing could be
        read).
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

        The best root, the first error that no cause explains, or that all is well.
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
        if self.job_seen:
            return "There is no error, but nothing shows that the job succeeded or goes on."
        if self.clear:
            return f"No risk found ({self.checks})."
        return "Nothing in this is of a training job that ncclkit knows."

    @property
    def _suspected(self) -> str:
        """The error, and the first suspects, where no line proves one of them."""
        named = [finding.cause for finding in self.findings[:3]]
        error = ""
        if self.errors:
            error = self.errors[0].text.strip().splitlines()[-1]
        why = "No line proves why"
        if error:
            why = f"No line proves why: {error}"
        after = ""
        if self.differential and self.differential.answers:
            after = " after the answers given"
        return f"{why}. Suspected first{after}: {', '.join(named)}."

    def to_dict(self, inputs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The object that ``ncclkit diagnose --json`` prints.

        inputs: one mapping per file with ``path``, ``bytes``, ``lines``.
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
        }

    def text(self) -> str:
        """The report for a terminal: culprit, sentence, the very lines, what to do."""
        if not self.findings:
            lines = [f"  {error}" for error in self.errors[:SHOWN]]
            lines += map(_risk, self.risks)
            lines += [self.ended] if self.ended not in ("", self.headline) else []
            asked = sorted({missing for finding in self.unknown for missing in finding.missing})[:5]
            if asked and self.verdict in ("unexplained", "slow"):
                lines += [
                    "What would let more causes be judged:",
                    *(f"  - {missing}" for missing in asked),
                ]
            return "\n".join([self.headline, *lines])
        parts = [_text(number, finding) for number, finding in enumerate(self.findings, 1)]
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


def diagnose(case: Case, deadline: float = DEADLINE) -> Diagnosis:
    """Judge `case`, as its last run left it, by the whole catalogue.

    The case and its folder keep the verdicts.

    deadline: seconds after which no further cause is judged; those that are left are unknown.
    """
    scope = last_run_of(case)
    job = describe(scope)
    job_seen = _is_about_job(scope)
    scope = without_moments(scope)
    verdicts, ended = _verdicts(scope, deadline)
    verdicts = experiment_records.weigh(verdicts, scope.events)
    found = [verdict for verdict in verdicts if verdict.verdict == "found"]
    if not job_seen:
        found = [verdict for verdict in found if not _is_of_other_program(verdict, scope)]
    findings = [finding for finding in rank(found) if not _is_mere_list(finding, scope)]
    findings = [finding for finding in findings if not _is_survived(finding, scope)]
    suspects = None
    if not ended:
        findings, suspects = _with_suspects(findings, verdicts, scope)
    brakes_found = _mere_brakes(findings, scope)
    findings = [finding for finding in findings if finding not in brakes_found]
    unsure = all(map(resemblance.is_resembling, findings))
    speed = measured_speed(scope)
    named = {finding.cause for finding in findings}
    result = Diagnosis(
        tuple(findings),
        tuple(
            verdict
            for verdict in verdicts
            if verdict.verdict == "unknown" and verdict.cause not in named
        ),
        tuple(
            verdict
            for verdict in verdicts
            if verdict.verdict == "clear" and verdict.cause not in named
        ),
        job,
        _unexplained(scope, findings) if unsure or trouble(scope).says_no_reason else (),
        outcome(scope),
        trouble(scope),
        job_seen,
        () if ended else (*brakes_found, *_risks(scope, findings)),
        speed.warning if speed else "",
        ended,
        suspects,
    )
    case.findings = [*result.findings, *result.unknown, *result.clear]
    case.save()
    return result


def _verdicts(case: Case, deadline: float) -> tuple[list[Finding], str]:
    """The verdict of each cause.

    And that judging was ended, in one sentence, where the deadline came before the last.

    No cause is interrupted: each looks at every event a few times at most, so that it ends by
    itself.
    """
    until = monotonic() + deadline
    causes = catalogue()
    verdicts: list[Finding] = []
    for name, cause in causes.items():
        if monotonic() >= until:
            break
        verdicts.append(recovered(judge(name, cause, case), case))
    judged = len(verdicts)
    if judged == len(causes):
        return verdicts, ""
    verdicts += [
        unknown(name, f"more time: judging was ended after {deadline:g} s")
        for name in [*causes][judged:]
    ]
    return (
        verdicts,
        f"Judging was ended after {deadline:g} s, with {judged} of {len(causes)} causes judged.",
    )


def judge_facts(facts: Iterable[Fact]) -> list[Finding]:
    """What every cause of the catalogue says to these facts alone."""
    seen = Case()
    seen.facts = list(map(shapes.validated, facts))
    return [judge(name, cause, seen) for name, cause in catalogue().items()]


def risks(facts: Iterable[Fact]) -> list[Finding]:
    """What these facts alone warn of, the gravest first: one list for every page."""
    return rank([verdict for verdict in judge_facts(facts) if verdict.verdict == "found"])


def _mere_brakes(findings: Sequence[Finding], case: Case) -> list[Finding]:
    """Slower paths that the command line asks for, in a job of which nobody says that
    it is slow.
    """
    how = outcome(case)
    measured = case.measurements or any(case.of(kind) for kind in experiment_records.KINDS)
    if measured or trouble(case) or not (how.success or how.work):
        return []
    asked = asked_for(case)

    def was_asked_for(finding: Finding) -> bool:
        return finding.cause in BRAKES and any(name in finding.say for name in asked)

    return [finding for finding in findings if was_asked_for(finding)]


def _is_survived(finding: Finding, case: Case) -> bool:
    """Whether a rank's end was followed by a good end of the job, and nothing speaks against it.

    A scheduler that preempts a job starts it again, and so does Ray.
    """
    if finding.cause not in OF_AN_END or trouble(case):
        return False
    lines = [one for one in finding.evidence if isinstance(one, Event) and one.line]
    if len(lines) < len(finding.evidence):
        return False
    return any(all(is_later(end, line) for line in lines) for end in success_lines(case))


def _is_mere_list(finding: Finding, case: Case) -> bool:
    """Whether a finding rests on NCCL's list of calls alone, of a job that was seen to go well."""
    of_calls = all(isinstance(one, Event) and one.kind == "nccl.op" for one in finding.evidence)
    return finding.strength == "possible" and of_calls and _went_well(case)


def _risks(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """What the facts alone warn of, where a job ran and nothing was found.

    Settings and neighbours that may slow it.
    """
    warned = []
    if case.events and not findings:
        warned = risks(case.facts)
    known = {finding.cause for finding in (*findings, *warned)}
    if failed(case):
        seen = []
    else:
        seen = [brakes(case), shared_cores(case)]
    return [*warned, *(risk for risk in seen if risk and risk.cause not in known)]


def judge(name: str, cause: Cause, case: Case) -> Finding:
    """One cause's verdict; an error inside it becomes ``unknown`` with its sentence."""
    try:
        return cause.diagnose(case)
    except Exception as error:  # a defect in one cause must not take the other verdicts with it
        return unknown(
            name,
            f"this check itself failed ({type(error).__name__}: {error}); please report it with the"
            " case folder",
        )


def rank(findings: Sequence[Finding]) -> list[Finding]:
    """Best root first: what another one explains stands below it.

    Then by strength; then by how much it explains.

    A finding explains another of its strength or less; one that is merely possible explains
    nothing.  What is explained by a stronger one and rests on the very same line adds nothing and
    is left out.  What the facts of hosts alone tell is a risk: it explains no other risk, and
    stands below what a job itself has said as firmly.
    """
    causes = catalogue()
    findings = [_modest(finding, findings) for finding in findings]
    power = {finding.cause: STRENGTHS[finding.strength] for finding in findings}
    explains = {name: set(causes[name].explains) & power.keys() - {name} for name in power}

    risks = {
        finding.cause
        for finding in findings
        if all(isinstance(piece, Fact) for piece in finding.evidence)
    }

    def roots(finding: Finding) -> list[Finding]:
        name = finding.cause
        above = [
            f
            for f in findings
            if name in explains[f.cause] and power[f.cause] >= max(power[name], 2)
        ]
        above = [f for f in above if not {name, f.cause} <= risks]
        return [
            f for f in above if not (f.cause in explains[name] and power[f.cause] == power[name])
        ]

    def order(finding: Finding) -> tuple[bool, bool, int, bool, int, int, str]:
        name = finding.cause
        if name in USUAL:
            usual = USUAL.index(name)
        else:
            usual = len(USUAL)
        if power[name] == 1:
            weight = usual
        else:
            weight = -len(explains[name])
        risk = name in risks
        return (
            risk and power[name] == 1,
            bool(roots(finding)),
            -power[name],
            risk,
            weight,
            usual,
            name,
        )

    def repeats_root(finding: Finding) -> bool:
        stronger = [root for root in roots(finding) if power[root.cause] > power[finding.cause]]
        return any(
            _same_place(finding.evidence[0], piece) for root in stronger for piece in root.evidence
        )

    kept = [finding for finding in findings if not repeats_root(finding)]
    return sorted(kept, key=order)


def _with_suspects(
    findings: list[Finding], verdicts: Sequence[Finding], case: Case
) -> tuple[list[Finding], Differential | None]:
    """The findings; where something failed and none is more than possible, also the usual suspects,
    in one order.

    Without a line that says failure or complaint nothing is said: a table or a command line
    resembles much.
    """
    against = trouble(case)
    lines = resemblance.abnormal(case)
    if not lines or case.of(AttachRank):  # ranks of any job that waits look alike
        return findings, None
    text = resemblance.Text(lines)
    findings = [_messenger(finding, text) for finding in findings]
    if any(STRENGTHS[finding.strength] > 1 for finding in findings) or _went_well(case):
        return findings, None
    known = {finding.cause: finding for finding in findings}
    cleared = {
        verdict.cause: verdict.evidence for verdict in verdicts if verdict.verdict == "clear"
    }
    suspects = differential(case, text, list(known), cleared)
    # who answers a question about a job says that something is wrong with it
    is_asked = bool(suspects.answers)
    is_failure = against and (known or _names_suspects(case, text, against, suspects))
    if not is_asked and not is_failure:
        return findings, suspects  # for who asks: nothing here says that anything failed
    named = suspects.named(known)
    return [
        suspect_finding(one, suspects, known.get(one.cause), case, text, against.lines)
        for one in named
    ], suspects


def _went_well(case: Case) -> bool:
    """Whether a job was seen to succeed or to be at work, and nothing speaks against it."""
    how = outcome(case)
    return not trouble(case) and bool(how.success or how.work)


def _names_suspects(
    case: Case, text: resemblance.Text, against: Trouble, suspects: Differential
) -> bool:
    """Whether a text says clearly enough that a job failed, by its symptom or by what
    it resembles.
    """
    if all(is_short_of_target(line.text) for line in against.lines):
        return False
    if resemblance.resembles_sound_job(text, resemblance.SOUND if against.errors else 0.0):
        return False
    if suspects.seen and resemblance.is_topic(case):
        return True
    only_errors = not (against.failures or against.complaints or against.stacks)
    if only_errors and not resemblance.comparable(against.errors):
        return False
    return max(text.shares.values()) >= _least_share(case, against)


def _least_share(case: Case, against: Trouble) -> float:
    """The share of the resemblance that the best cause must have: the less was said, the more."""
    if not resemblance.is_topic(case):
        return resemblance.SURE
    if resemblance.comparable([*against.errors, *against.failures]):
        return resemblance.FIRST
    if against.complaints:
        return resemblance.COMPLAINED
    return resemblance.CALM


def _messenger(finding: Finding, text: resemblance.Text) -> Finding:
    """An exception is merely a possible cause where all lines together clearly resemble another
    one.
    """
    raised = [
        piece
        for piece in finding.evidence
        if isinstance(piece, Event) and piece.kind == "python.exception"
    ]
    sign = (finding.cause, finding.strength) == ("rank_exception", "likely") and raised
    if (
        not sign
        or any(event.data.type in PROGRAM for event in raised)
        or not resemblance.messenger(text)
    ):
        return finding
    return replace(finding, strength="possible")


def _unexplained(case: Case, findings: Sequence[Finding]) -> tuple[Event, ...]:
    """The errors that no cause explains; without any, the lines of a job that speak of trouble."""
    against = trouble(case)
    if against.errors:
        return against.errors
    if findings or resemblance.is_topic(case):
        return against.failures
    return ()


def _modest(finding: Finding, others: Sequence[Finding]) -> Finding:
    """That ranks were late is no proven reason where another finding gives one for the very same
    ranks.
    """
    ranks = finding.culprits.get("ranks")
    causes = catalogue()
    lines = not any(
        isinstance(piece, Event) and piece.kind in experiment_records.KINDS
        for piece in finding.evidence
    )
    if finding.cause == "slow_rank" and finding.strength == "proven" and ranks and lines:
        reasons = [
            f
            for f in others
            if finding.cause in causes[f.cause].explains and f.culprits.get("ranks") == ranks
        ]
        if any(STRENGTHS[f.strength] > 1 for f in reasons):
            return replace(finding, strength="likely")
        return finding
    return finding


def _same_place(one: Evidence, two: Evidence) -> bool:
    """True when two pieces of evidence are the same words of the same source.

    A traceback holds its last line.
    """
    a = cite(one)
    b = cite(two)
    return bool(a["path"] == b["path"] and (a["text"] in b["text"] or b["text"] in a["text"]))


def _is_about_job(case: Case) -> bool:
    """Whether any line is of a job, or speaks of success or trouble in the words of the field."""
    if any(map(is_of_job, case.events)) or shows_training(case):
        return True
    how = outcome(case)
    return resemblance.is_topic(case) and bool(trouble(case) or how.success or how.work)


def _is_of_other_program(finding: Finding, case: Case) -> bool:
    """Whether what ended may be any program: no job is seen, and no name says whose end it is."""
    if finding.cause == "rank_exception":
        return not _is_about_hosts(case) or _is_debugged(case)
    killed = [one for one in finding.evidence if isinstance(one, Event)]
    if finding.cause != "host_oom" or {event.kind for event in killed} != {"kernel.oom"}:
        return False
    return all(DESKTOP.search(str(event.data.name)) for event in killed)


def _is_debugged(case: Case) -> bool:
    """Whether a debugger runs the program whose end is seen."""
    return any(event.data.tool == "gdb" for event in case.of("stack"))


def _is_about_hosts(case: Case) -> bool:
    """Whether facts or lines are of hosts and links that a job may use.

    Other texts are about other things.
    """
    return bool(case.facts) or any(event.kind.startswith(OF_A_HOST) for event in case.events)


def describe(case: Case) -> dict[str, Any]:
    """The job as the evidence shows it."""
    evidence = import_module(
        "ncclkit.evidence"
    )  # at call time: records alone can be judged without the readers
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

    Of more than `limit` the first two and the last.
    """
    lines = [line[:240] for line in text.splitlines()]
    if len(lines) <= limit:
        return lines
    return [*lines[:2], f"... {len(lines) - limit} lines ...", *lines[2 - limit :]]


def _advice(advice: Advice) -> list[str]:
    lines = [f"   Do: {advice.do}"]
    lines += [f"     {line}" for line in advice.exports]
    lines += [f"     $ {advice.command}"] if advice.command else []
    lines += [f"     {line}" for line in advice.code.splitlines()]
    lines += [f"     Check: {advice.check}"] if advice.check else []
    return lines + ([f"     Risk: {advice.risk}"] if advice.risk else [])


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
    "ddp.",
)
"""Kinds of lines that a job that goes on has recovered from; settings, and what the kernel saw of
hardware, last."""
OWN = (
    "IndexError",
    "KeyError",
    "NameError",
    "AttributeError",
    "ModuleNotFoundError",
    "ZeroDivisionError",
)
"""Errors that nothing but the program brings about, least of all the end of another rank."""
PROGRAM = (*OWN, "TypeError", "AssertionError", "FileNotFoundError", "UnboundLocalError")
"""Errors that hardly any library uses to report what the system refused."""
TEXT = re.compile(
    r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name"
    r" resolution|can(?:'|no)t resolve|could not resolve|does not resolve"
)
"""What exceptions say of the same."""
OF_A_HOST = ("kernel.", "net.", "system.", "p2p.", "connect.", "printed.", "nccltests.")
"""How kinds begin that speak of the hosts and links that a job may have used."""
LASTING = ("dataloader_workers", "memlock", "own_name", "no_verbs")
"""What a `system.error` says of a setting, which is as it was however long the job goes on."""
WAITS = ("c10d.timeout", "gloo.timeout")
DAY = 86400.0
FAR = 50
"""Lines between an error and a step that was done after it: further away than the ranks beside a
dead one come."""


def recovered(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after every line on which it rests."""
    if finding.verdict == "found" and _is_source(finding):
        return clear(finding.cause, "Only source code holds these words.", finding.evidence[:1])
    if _quoted(finding, case):
        if case.of(JobDone) and not any(
            e.kind in FATAL and not is_quotation(e.text) for e in case.events
        ):
            return clear(finding.cause, "Somebody only speaks of it.", finding.evidence[:1])
        finding = replace(finding, strength="possible")
    if finding.strength == "proven" and (
        _long_before(finding, case) or _seen_live(finding) or _any_program(finding)
    ):
        return replace(finding, strength="likely")
    lines = [
        piece
        for piece in finding.evidence
        if isinstance(piece, Event) and piece.kind.startswith(ERRORS)
    ]
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of(RunEnd):
        return finding
    fatal = [event for event in case.events if event.kind in FATAL]
    done = lines_after(case, lines, case.of(JobDone))
    went_on = done
    if not done and finding.strength == "possible" and not fatal:
        went_on = lines_after(case, lines, case.of(StepProgress))
    if went_on and not any(is_later(event, went_on[-1]) for event in fatal):
        return clear(
            finding.cause,
            "The job went on after it.",
            (*pick(went_on, limit=1), *finding.evidence[:1]),
        )
    met = []
    if all(map(_meeting, lines)):
        met = lines_after(case, lines, _meetings(case))
    if not met:
        return _got_over(finding, case, lines, fatal)
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
    events = [piece for piece in finding.evidence if isinstance(piece, Event)]
    quoting = (event.path in documents or is_quotation(event.text) for event in events)
    return finding.verdict == "found" and bool(events) and all(quoting)


def _is_source(finding: Finding) -> bool:
    """Whether it rests on lines of source code alone, or of a compiler or of git."""
    events = [piece for piece in finding.evidence if isinstance(piece, Event)]
    kernel = any(event.kind.startswith("kernel.") for event in events)
    return bool(events) and not kernel and all(is_source(event.text) for event in events)


def _any_program(finding: Finding) -> bool:
    """True where it rests on error lines alone that no grammar knows.

    Some program's words, of whatever it means.
    """
    return all(isinstance(piece, Event) and piece.kind == "log.error" for piece in finding.evidence)


def _seen_live(finding: Finding) -> bool:
    """True where it rests on where ranks stood.

    Without sequence numbers a rank may only be on its way.
    """
    events = [piece for piece in finding.evidence if isinstance(piece, Event)]
    return any(isinstance(event.data, FlightFinding) and event.data.live for event in events)


def _got_over(finding: Finding, case: Case, lines: list[Event], fatal: list[Event]) -> Finding:
    """Weaker where work was done after its lines, and then something else failed.

    Or where a rank had failed before.

    Which rank did the work is mostly not known: near the lines it may be one that had not missed
    the other yet.
    """
    said = [event for event in lines if event.kind not in WAITS] or lines
    errors = [event.data for event in said if isinstance(event.data, SystemFault)]
    if any(error.what in LASTING for error in errors):
        return finding
    last = max(said, key=lambda event: (event.path, event.line))
    steps = [e for e in _lived(case, said) if e.path == last.path]
    ends = [event for event in fatal if steps and is_later(event, steps[-1])]
    far = bool(steps) and (
        steps[-1].line - last.line > FAR or steps[-1].rank == last.rank is not None
    )
    if far:
        return replace(finding, strength="possible")
    second = finding.strength == "proven" and ((steps and ends) or _after_own(finding, case, said))
    if second:
        return replace(finding, strength="likely")
    return finding


def _lived(case: Case, said: list[Event]) -> list[Event]:
    """Steps, and starts of NCCL, that came after it.

    After a rank's last words where that rank speaks again later.
    """
    work = [*case.of(StepProgress), *initialized(case)]
    work.sort(key=lambda event: (event.path, event.line))
    ranks = {event.rank for event in said if UNCAUGHT.match(event.text)}
    if not ranks or None in ranks:
        return lines_after(case, said, work)
    waits = [Span(event for event in case.of(*WAITS) if event.rank == rank) for rank in ranks]
    later = [event for event in work if all(is_later(event, line) for line in said)]
    return [event for event in later if all(own.ends_after(event) for own in waits)]


def _after_own(finding: Finding, case: Case, said: list[Event]) -> bool:
    """True where a rank ended with an error of the program.

    Before these lines, or with lines that no rank wrote.
    """
    errors = [
        e
        for e in case.of(PythonException)
        if is_own(e) and UNCAUGHT.match(e.text) and e.data.type in OWN
    ]
    errors = [event for event in errors if event not in finding.evidence]
    stray = [line for line in said if line.rank is None and not UNCAUGHT.match(line.text)]
    return any(all(line in stray or is_later(line, error) for line in said) for error in errors)


def _long_before(finding: Finding, case: Case) -> bool:
    """True where it rests on the kernel's log alone, and ranks took steps or began a collective a
    minute later.

    The kernel's clock may be that of another zone, so that this clears nothing.
    """
    times = [
        e.time for e in finding.evidence if isinstance(e, Event) and e.kind.startswith("kernel.")
    ]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(finding.evidence):
        return False
    steps = [event.time - max(known) for event in case.of(StepProgress) if event.time]
    begun = [
        e.time - (e.data.ran_ms or 0) / 1000 - max(known) for e in case.of(C10dTimeout) if e.time
    ]
    return any(age > 60 for age in steps) or any(
        60 < age < DAY for age in begun
    )  # glog's lines tell no year


def _meeting(event: Event) -> bool:
    """True for what is said of a connection between ranks that was not made."""
    is_refused = isinstance(event.data, NcclMessage) and event.data.family == "socket_connect"
    return bool(event.kind.startswith(MEETING) or is_refused or TEXT.search(event.text))


def _meetings(case: Case) -> list[Event]:
    """Lines that only ranks write that have met.

    Communicators made, steps done, collectives begun.
    """
    done = initialized(case)
    joined = [e for e in case.of(StoreClients) if e.data.joined == e.data.expected is not None]
    begun = [
        e for e in case.of(C10dTimeout) if e.data.seq != 1
    ]  # the first one begins without the others
    kinds = ("nccl.version", "nccl.connected", "nccl.op", "c10d.status", "progress", "job.done")
    return [*done, *joined, *begun, *(event for kind in kinds for event in case.of(kind))]
