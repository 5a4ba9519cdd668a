"""Runs every cause over a case and puts the roots above their consequences.

Each cause judges on its own; this module only orders what they found.  A cause
that itself fails is reported as ``unknown`` and never hides the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from time import monotonic
from typing import Any

from ncclkit.analysis.complaints import DESKTOP
from ncclkit.analysis.launches import launch_sentence
from ncclkit.analysis.motion import with_blockages, without_moments
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.outcome import (
    asked_for,
    outcome,
    set_in_environment,
    shows_training,
    success_lines,
)
from ncclkit.analysis.picks import failed, process_ids, without_load_of
from ncclkit.analysis.speed import measured_speed
from ncclkit.analysis.succession import is_later
from ncclkit.analysis.trouble import is_of_job, trouble
from ncclkit.causes import Cause, catalogue, resemblance
from ncclkit.causes._rehearsed import named_as_rehearsed, undecided_rehearsal
from ncclkit.causes._sources import with_source
from ncclkit.causes.cpu_contention import shared_cores
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.order import rank_findings
from ncclkit.causes.recovery import recovered
from ncclkit.causes.restart_or_stop import decide
from ncclkit.causes.slow_transport import brakes
from ncclkit.causes.suspicion import names_with_suspects, went_well
from ncclkit.core import experiment_records, shapes
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Finding, unknown

OF_AN_END = ("rank_killed", "rank_exception", "host_oom")
"""Causes that end a rank, after which a launcher may start the job again."""
BRAKES = ("ib_not_used", "slow_transport", "cpu_binding", "cpu_contention", "gpu_clock_limit")
"""Causes that make a job slower and end none."""
DEADLINE = 120.0
"""Seconds after which no further cause is judged."""
OF_A_HOST = ("kernel.", "net.", "system.", "p2p.", "connect.", "printed.", "nccltests.")
"""How kinds begin that speak of the hosts and links that a job may have used."""


def diagnose(case: Case, deadline: float = DEADLINE) -> Diagnosis:
    """Judge `case`, as its last run left it, by the whole catalogue.

    The case and its folder keep the verdicts.  After `deadline` seconds no further cause is judged;
    those that are left are unknown.
    """
    scope = last_run_of(case)
    job = describe(scope)
    job_seen = _is_about_job(scope)
    scope = with_blockages(without_moments(scope))
    verdicts, ended = _verdicts(scope, deadline)
    verdicts = experiment_records.weigh(verdicts, scope.events)
    found = [verdict for verdict in verdicts if verdict.verdict == "found"]
    if not job_seen:
        found = [verdict for verdict in found if not _is_of_other_program(verdict, scope)]
    findings = [finding for finding in rank_findings(found) if not _is_mere_list(finding, scope)]
    findings = [finding for finding in findings if not _is_survived(finding, scope)]
    findings = [named_as_rehearsed(finding, scope) for finding in findings]
    suspects = None
    if not ended:
        findings, suspects = names_with_suspects(findings, verdicts, scope)
    brakes_found = _mere_brakes(findings, scope)
    findings = [finding for finding in findings if finding not in brakes_found]
    findings = [with_source(finding, scope) for finding in findings]
    unsure = all(map(resemblance.is_resembling, findings))
    errors: tuple[Event, ...] = ()
    if unsure or trouble(scope).says_no_reason:
        errors = _unexplained(scope, findings)
    risks_seen: tuple[Finding, ...] = ()
    if not ended:
        warned = {risk.cause for risk in brakes_found}
        facts = without_load_of(process_ids(case), scope.facts)
        others = [risk for risk in _risks(scope, facts, findings) if risk.cause not in warned]
        risks_seen = (*brakes_found, *others)
    speed = measured_speed(scope)
    # a cause is named once: what is a risk of these hosts has not passed as well
    named = {finding.cause for finding in (*findings, *risks_seen)}
    left = [verdict for verdict in verdicts if verdict.cause not in named]
    result = Diagnosis(
        tuple(findings),
        tuple(verdict for verdict in left if verdict.verdict == "unknown"),
        tuple(verdict for verdict in left if verdict.verdict == "clear"),
        job,
        errors,
        outcome(scope),
        trouble(scope),
        job_seen,
        risks_seen,
        speed.warning if speed else "",
        ended,
        launch_sentence(scope.events),
        suspects,
    )
    case.findings = [*result.findings, *result.unknown, *result.clear]
    case.save()
    return replace(result, decision=decide(result, scope))


def _verdicts(case: Case, deadline: float) -> tuple[list[Finding], str]:
    """The verdict of each cause, and that judging was ended.

    That is one sentence, where the deadline came before the last cause.  No cause is interrupted:
    each looks at every event a few times at most, so that it ends by itself.
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
    """What these facts alone warn of, the gravest first.

    It is one list for every page.
    """
    return rank_findings([verdict for verdict in judge_facts(facts) if verdict.verdict == "found"])


def _mere_brakes(findings: Sequence[Finding], case: Case) -> list[Finding]:
    """Slower paths that somebody asked for, in a job that nobody calls slow.

    The command line or the environment asks for them.
    """
    how = outcome(case)
    measured = case.measurements or any(case.of(kind) for kind in experiment_records.KINDS)
    if measured or trouble(case) or not (how.success or how.work):
        return []
    asked = asked_for(case) | set_in_environment(case)

    def was_asked_for(finding: Finding) -> bool:
        return finding.cause in BRAKES and any(name in finding.say for name in asked)

    return [finding for finding in findings if was_asked_for(finding)]


def _is_survived(finding: Finding, case: Case) -> bool:
    """Whether a rank's end was followed by a good end of the job.

    Nothing may speak against that.  A scheduler that preempts a job starts it again, and so does
    Ray.
    """
    if finding.cause not in OF_AN_END or trouble(case):
        return False
    lines = [one for one in finding.evidence if isinstance(one, Event) and one.line]
    if len(lines) < len(finding.evidence):
        return False
    return any(all(is_later(end, line) for line in lines) for end in success_lines(case))


def _is_mere_list(finding: Finding, case: Case) -> bool:
    """Whether a finding rests on NCCL's list of calls alone.

    The job must have been seen to go well.
    """
    of_calls = all(isinstance(one, Event) and one.kind == "nccl.op" for one in finding.evidence)
    return finding.strength == "possible" and of_calls and went_well(case)


def _risks(case: Case, facts: Sequence[Fact], findings: Sequence[Finding]) -> list[Finding]:
    """What the facts alone warn of, where a job ran and nothing was found.

    They are settings and neighbours that may slow it.
    """
    warned = []
    if case.events and not findings:
        warned = risks(facts)
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


def _unexplained(case: Case, findings: Sequence[Finding]) -> tuple[Event, ...]:
    """The errors that no cause explains.

    Without any, they are the lines of a job that speak of trouble.
    """
    undecided = undecided_rehearsal(case)
    if undecided:
        return () if findings else (undecided,)
    against = trouble(case)
    if against.errors:
        return against.errors
    if findings or resemblance.is_topic(case):
        return against.failures
    return ()


def _is_about_job(case: Case) -> bool:
    """Whether any line is of a job.

    It may also speak of success or trouble in the words of the field.
    """
    if any(map(is_of_job, case.events)) or shows_training(case):
        return True
    how = outcome(case)
    return resemblance.is_topic(case) and bool(trouble(case) or how.success or how.work)


def _is_of_other_program(finding: Finding, case: Case) -> bool:
    """Whether what ended may be any program.

    No job is seen, and no name says whose end it is.
    """
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
