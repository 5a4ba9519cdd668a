"""The closed loop: an experiment that separates the suspects, then the fix.

Both are made on the same small job.  `check` and `fix` run the last run of the case again (a run of
the lab or the live test) with one thing changed.  A job that ncclkit did not start cannot be run
again: a live test with its variables stands in for it.  If that does not fail in the same way,
nothing follows, and the answer says so.  Checks that start no rank test the connections between the
hosts of the last run, or the resources that a machine grants.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncclkit import evidence
from ncclkit.analysis.picks import failed
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER, NAME, ExperimentRecord, experiments, keep
from ncclkit.core.model import Advice, Experiment, Finding, NcclkitError
from ncclkit.core.resources import grant
from ncclkit.core.runs import Plan, Run, breakable, changed, possible
from ncclkit.experiments import baseline, comparison
from ncclkit.experiments.comparison import Arm
from ncclkit.live import probe, simulated_hosts
from ncclkit.live.launch import launchers, local
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.pack import packed
from ncclkit.live.options import ProbeOptions

__all__ = ["check", "close", "experiments", "fix"]

Kind = Literal["check", "fix"]
OnExperiment = Callable[[ExperimentRecord], None]
ROUNDS = 3
"""Experiments that `close` makes at most before a fix, and fixes that it tries at most."""
STAND_IN = 1 << 20
"""Largest message of the live test that stands in for a job, in bytes."""
TRYING = 200.0
"""Seconds for all that is tried of a machine's limits.

Each thing has a deadline of its own.
"""


def _ignore(record: object) -> None:
    """What happens to records that nobody wants."""


async def check(
    case: Case,
    cause: str = "",
    *,
    python: str | None = None,
    deadline: float = 120.0,
    on_record: OnRecord = _ignore,
) -> ExperimentRecord:
    """Run the experiment of one finding, and change the verdicts by what it shows.

    `cause` is whose experiment (default: the one that separates most of the suspects); `python` the
    training interpreter; `deadline` the seconds for each run.  Raises NcclkitError in one sentence
    where there is nothing to ask.
    """
    verdict = diagnose(case)
    finding = _finding_to_check(case, verdict, cause)
    experiment = finding.next
    assert experiment is not None
    started = time.monotonic()
    run_case = _run_case(case, finding.cause)
    if "check" in experiment.plan:
        return await _without_ranks(
            CheckInput(case, run_case, verdict, finding, experiment, python, on_record)
        )
    before, name = await _before(case, verdict, run_case, python, deadline, on_record)
    usable = bool(name) or comparison.comparable(before, finding)
    moves = dict.fromkeys(experiment.expects, "open")
    seen = "nothing"
    after = None
    if usable:  # a stand-in that does not fail as the job did is not worth another run
        after = await _again(run_case, before.run.plan, experiment.plan, name, on_record)
        seen = comparison.observed(before, after, experiment)
        moves = comparison.verdicts(experiment, before, after) | comparison.newly_proven(
            verdict, before, after
        )
    said = comparison.conclusion(finding, experiment, seen, moves, usable)
    known = {"observed": seen, "verdicts": moves, "summary": said, "baseline": name} | _both(
        before, after
    )
    asked = {"question": experiment.question, "change": dict(experiment.plan)}
    return _kept(case, run_case, started, "check", finding, **asked, **known)


async def fix(
    case: Case,
    cause: str = "",
    *,
    python: str | None = None,
    deadline: float = 120.0,
    on_record: OnRecord = _ignore,
) -> ExperimentRecord:
    """Apply the advice on one finding to the same small job.

    The default is the first finding; whether the job works then is recorded.  A job of the lab gets
    the cause that was *found*, and does right what it does wrong for that cause; so a wrong
    diagnosis fixes nothing.  Raises NcclkitError where the advice needs a person.
    """
    verdict = diagnose(case)
    finding = _fixable(case, verdict, cause)
    started = time.monotonic()
    run_case = _run_case(case, finding.cause)
    before, name = await _before(case, verdict, run_case, python, deadline, on_record)
    change = change_of(finding, before.run.plan)
    question = f"Does the same job work after this: {words_of(finding, before.run.plan)}"
    if not _is_found_in(before.diagnosis, finding.cause):
        # whatever a second run does then, the change need not be the reason
        known = {"observed": "nothing", "verdicts": {finding.cause: "open"}, "baseline": name}
        known |= {"question": question, "change": change} | _both(before, None)
        summary = comparison.not_shown(finding, before)
        return _kept(case, run_case, started, "fix", finding, summary=summary, **known)
    after = await _again(run_case, before.run.plan, change, name, on_record)
    still = _is_found_in(after.diagnosis, finding.cause)
    well = after.succeeded and not still
    # a second attempt that works shows only that the first was unlucky, whatever the reason
    move = "open"
    if well:
        move = "supported"
        if change.keys() - {"restarts"}:
            move = "proven"
    return _kept(
        case,
        run_case,
        started,
        "fix",
        finding,
        question=question,
        change=change,
        observed=comparison.observed(before, after, None),
        verdicts={finding.cause: move}
        | (comparison.newly_proven(verdict, before, after) if name else {}),
        summary=comparison.fix_summary(finding, after, well),
        baseline=name,
        **_both(before, after),
    )


def _is_found_in(verdict: Diagnosis, cause: str) -> bool:
    for finding in verdict.findings:
        if finding.cause == cause:
            return True
    return False


async def close(
    case: Case, on_experiment: OnExperiment = _ignore, **choices: Any
) -> tuple[ExperimentRecord, ...]:
    """Make experiments until the first cause is proven, then fix it.

    They end, too, where none is left.  `choices` are as of `check`.  A fix that does not help is a
    repetition with everything recorded: what that proves is checked and fixed next.
    `on_experiment` is called with each record when it is done.  Where an experiment cannot be made
    (NcclkitError), those before it are kept.
    """
    made: list[ExperimentRecord] = []
    tried: set[str] = set()
    for _ in range(ROUNDS):
        async for record in _ask(case, choices):
            on_experiment(record)
            made.append(record)
        first = next(iter(diagnose(case).findings), None)
        # a cause whose fix did not help would be tried again and again
        if first is None or first.cause in tried:
            break
        tried.add(first.cause)
        made.append(await fix(case, first.cause, **choices))
        on_experiment(made[-1])
        if made[-1].worked:
            break
    return tuple(made)


async def _ask(case: Case, choices: Mapping[str, Any]) -> AsyncIterator[ExperimentRecord]:
    """Experiments, until the first cause is proven or none is left."""
    for _ in range(ROUNDS):
        verdict = diagnose(case)
        settled = not verdict.findings or verdict.findings[0].strength == "proven"
        if settled or not _open(case, verdict):
            return
        yield await check(case, **choices)


def _finding_to_check(case: Case, verdict: Diagnosis, cause: str) -> Finding:
    """The finding whose experiment is to be made."""
    if cause:
        rows = (*verdict.findings, *verdict.unknown)
        finding = next((row for row in rows if row.cause == cause), None)
        if finding is None or finding.next is None or not finding.next.expects:
            what = "has no experiment"
            if finding is None:
                what = "was not found here"
            raise NcclkitError(
                f"There is nothing to check: {cause} {what}; here these have one:"
                f" {_names(verdict)}."
            )
        why_not = _why_not_here(finding, baseline.last(case))
        if why_not and "check" not in finding.next.plan:
            raise NcclkitError(why_not)
        return finding
    suspects = _open(case, verdict)
    if not suspects:
        raise NcclkitError(
            "There is nothing to check: no finding is left whose experiment was not made."
        )
    # seconds, where a run may hang until its deadline
    if suspects[0].next and "check" in suspects[0].next.plan:
        return suspects[0]
    # of equals the first, the better root
    return max(suspects, key=lambda finding: _splits(finding, verdict))


def _open(case: Case, verdict: Diagnosis) -> list[Finding]:
    """Findings whose experiment was not made yet.

    It can be made on the last run.
    """
    done = _done(case)
    run = baseline.last(case)
    open_findings = []
    for finding in verdict.findings:
        step = finding.next
        if not step or not step.expects or step.question in done:
            continue
        if "check" not in step.plan and _why_not_here(finding, run):
            continue
        # without a run a live test stands in for it
        if run is None or "check" in step.plan or possible(run.plan, step.plan):
            open_findings.append(finding)
    return open_findings


def _done(case: Case) -> set[str]:
    """The questions that were asked about the last run already."""
    about = _about(case)
    questions = set()
    for record in experiments(case):
        if record.kind == "check" and record.baseline == about:
            questions.add(record.question)
    return questions


def _about(case: Case) -> str:
    """Name of the run that an experiment would repeat.

    It is "" where a live test would stand in.
    """
    run = baseline.last(case)
    if run:
        return run.name
    return ""


def _splits(finding: Finding, verdict: Diagnosis) -> int:
    """How many different answers the suspects expect of this experiment."""
    expects = finding.next.expects if finding.next else {}
    words = []
    for row in verdict.findings:
        if row.cause in expects:
            words.append((row.cause, expects[row.cause]))
    # `named` and `found` are another answer for each cause; the others are one for all
    return len({(cause if word in ("named", "found") else "", word) for cause, word in words})


def _named(verdict: Diagnosis, cause: str) -> Finding:
    finding = next((row for row in verdict.findings if cause in ("", row.cause)), None)
    if finding is None:
        raise NcclkitError(f"There is nothing to fix: {cause or 'no cause'} was found here.")
    return finding


def _fixable(case: Case, verdict: Diagnosis, cause: str) -> Finding:
    """The finding whose advice is to be applied, where a machine can do that.

    It is told before anything is started in vain.
    """
    finding = _named(verdict, cause)
    run = baseline.last(case)
    why_not = _why_not_here(finding, run)
    if why_not:
        raise NcclkitError(why_not)
    if cure(finding) is None and (run is None or not breakable(run.plan.argv, run.plan.network)):
        raise error_for_person(finding)
    return finding


ONLY_ON_GPUS = frozenset(
    {
        "cuda_error",
        "cumem_container",
        "driver_too_old",
        "duplicate_gpu",
        "gpu_clock_limit",
        "gpu_hardware_error",
        "gpu_oom",
        "gpu_shared",
        "nccl_bug",
        "nvswitch_fabric",
        "p2p_broken",
        "slow_transport",
    }
)
"""Causes that no job over gloo on CPUs can show."""
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def _why_not_here(finding: Finding, run: Run | None) -> str:
    """Why a small job here cannot show the cause; empty where it may.

    `run` is the run of ours that would be repeated; it ran here once, and can again.
    """
    elsewhere = launchers.node_count() > 1
    if run or elsewhere or finding.cause not in ONLY_ON_GPUS or NVIDIA_DRIVER.exists():
        return ""
    return (
        f"This host has no NVIDIA GPU, so a job here cannot show {finding.cause}: try it on a host"
        " of the job."
    )


def unable(case: Case, cause: str = "") -> tuple[str, str]:
    """Why a cause's experiment and fix cannot be made; empty where they can.

    The case must have been judged.
    """
    found = tuple(one for one in case.findings if one.verdict == "found")
    unknown = tuple(one for one in case.findings if one.verdict == "unknown")
    verdict = Diagnosis(found, unknown)
    reasons = []
    for possible_on in (_finding_to_check, _fixable):
        try:
            _writable(case)
            possible_on(case, verdict, cause)
        except NcclkitError as error:
            reasons.append(str(error))
        else:
            reasons.append("")
    return reasons[0], reasons[1]


def _names(verdict: Diagnosis) -> str:
    causes = []
    for row in verdict.findings:
        if row.next and row.next.expects:
            causes.append(row.cause)
    return ", ".join(causes) or "none"


def _writable(case: Case) -> Path:
    """The folder of a case in which experiments can be kept."""
    if case.path is None or case.read_only:
        raise NcclkitError(
            "An experiment needs a writable case folder; open one with Case.open(path)."
        )
    return case.path


def _run_case(case: Case, cause: str) -> Case:
    """The case that the runs of one experiment get, hidden in its folder."""
    _writable(case)
    run_case = Case.open(case.new_folder(FOLDER, cause) / ".case")
    # of the same hosts, so that its runs are judged as the case's own
    run_case.facts = list(case.facts)
    return run_case


async def _before(
    case: Case,
    verdict: Diagnosis,
    run_case: Case,
    python: str | None,
    deadline: float,
    on_record: OnRecord,
) -> tuple[Arm, str]:
    """The run that is run again, with its name in the case.

    Without one it is a live test in its place.
    """
    run = baseline.last(case, python)
    if run:
        return Arm(run, verdict), run.name
    variables = baseline.nccl_variables(case)
    options = ProbeOptions(python=python or "", timeout=deadline, max_bytes=STAND_IN, env=variables)
    plan = await probe.plan_test(case, options)
    return await _run(run_case, plan, on_record), ""


async def _again(
    run_case: Case, plan: Plan, change: Mapping[str, Any], name: str, on_record: OnRecord
) -> Arm:
    """Run a plan with one thing changed.

    `name` is that of the run of the case that is run again, "" where it was made here.
    """
    plan = changed(plan, change)
    if name:  # recorded perhaps on a machine with more GPUs
        await probe.plan_here(run_case, plan)
    return await _run(run_case, plan, on_record)


async def _run(run_case: Case, plan: Plan, on_record: OnRecord) -> Arm:
    """Run a plan in the experiment's own case."""
    run = await probe.execute(run_case, plan, on_record)
    if run.reason == "cancelled":
        raise NcclkitError("The experiment was cancelled; the verdicts stay as they were.")
    return Arm(run, diagnose(run_case))


async def _without_ranks(asked: CheckInput) -> ExperimentRecord:
    """The record of a check that starts no rank."""
    case = asked.case
    finding = asked.finding
    experiment = asked.experiment
    run_case = asked.run_case
    started, run_case.facts = time.monotonic(), []  # a check is judged by what it finds itself
    seen = await RANKLESS[experiment.plan["check"]](asked)
    said = comparison.conclusion(
        finding, experiment, seen.shown, seen.moves, seen.usable, seen.summary
    )
    known = {
        "observed": seen.shown,
        "verdicts": seen.moves,
        "summary": said,
        "before": None,
        "after": None,
    }
    asks = {
        "question": experiment.question,
        "change": dict(experiment.plan),
        "baseline": _about(case),
    }
    return _kept(case, run_case, started, "check", finding, **asks, **known)


def _both(before: Arm, after: Arm | None) -> dict[str, Any]:
    """The fields of a record that the two runs fill."""
    said = (before.diagnosis.headline, after.diagnosis.headline if after else "")
    runs = {"before": before.run, "after": after.run if after else None}
    return runs | {
        "cause_before": before.cause,
        "cause_after": after.cause if after else "",
        "said": said,
    }


def _kept(
    case: Case, run_case: Case, started: float, kind: Kind, finding: Finding, **known: Any
) -> ExperimentRecord:
    """Keep the record of what `run_case` got since `started`.

    It is kept as an event that the diagnosis of `case` weighs.
    """
    assert run_case.path is not None  # `_run_case` made it
    folder = run_case.path.parent
    took = round(time.monotonic() - started, 1)
    record = ExperimentRecord(kind, finding.cause, seconds=took, folder=folder, **known)
    keep(record)
    case.add(evidence.read([folder / NAME]).events).save()
    diagnose(case)
    return record


# ---------------------------------------------------------------- checks that start no rank


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check that starts no rank."""

    shown: str
    """Of the cause that was asked about: ``found``, ``clear`` or ``nothing``."""
    moves: dict[str, str]
    """cause → one of `MOVES`."""
    summary: str = ""
    """What was seen, in words."""
    usable: bool = True
    """Whether it says anything about the job."""


@dataclass(frozen=True, slots=True)
class CheckInput:
    """The input of a check that starts no rank."""

    case: Case
    run_case: Case
    """The experiment's own case, which gets what is seen."""
    verdict: Diagnosis
    finding: Finding
    experiment: Experiment
    python: str | None = None
    """The training interpreter."""
    on_record: OnRecord = lambda record: None


async def connections(asked: CheckInput) -> CheckResult:
    """Test the connections between the hosts of the last run.

    The result is judged by itself.
    """
    await simulated_hosts.again(asked.case, asked.run_case)
    verdict = diagnose(asked.run_case)
    cause = asked.finding.cause
    seen = {row.cause: str(row.verdict) for row in (*verdict.findings, *verdict.clear)}
    moves = comparison.only_one_left(comparison.compare_expectations(asked.experiment, seen))
    sentence = ""
    for row in verdict.findings:
        if row.cause == cause:
            sentence = row.say
            break
    return CheckResult(seen.get(cause, "nothing"), moves, sentence)


async def resources(asked: CheckInput) -> CheckResult:
    """Try what this machine, or each node, grants of the job's needs.

    The nodes are those of the allocation.  All is given back at once.
    """
    case = asked.case
    cause = asked.finding.cause
    run = baseline.last(asked.case, asked.python)
    needs = baseline.needs(case, run, asked.verdict.job, asked.experiment.expects)
    folder = asked.run_case.new_run("resources")
    if run:
        python = run.plan.python
        env, unset = run.plan.env, run.plan.unset
    else:
        python = probe.interpreter(asked.python)
        env, unset = {}, ()
    with packed() as agent:
        launcher = launchers.starting_launcher()
        start = launcher.agent_on_each_node(agent, python, folder)
        command = [*start, "resources", json.dumps(needs)]
        await local.run_under_guard(
            agent, command, env, TRYING, folder, python, asked.on_record, unset
        )
    events = []
    for e in evidence.read([folder / "wire.jsonl"]).events:
        if e.kind == "resources.tried":
            events.append(e)
    asked.run_case.add(events).save()
    seen = comparison.granted(events, max(1, launchers.node_count()))
    here = baseline.is_local(case, run, asked.finding)
    broken = failed(case.latest())
    moves = comparison.apply_caution(
        comparison.compare_expectations(asked.experiment, seen), asked.verdict, here, broken
    )
    grants = []
    for event in events:
        if grant(event).cause == cause:
            grants.append(f"{event.host}: {event.text}")
    if seen.get(cause) == "clear" and moves[cause] == "open":
        grants += ["what is granted now does not disprove what the job has met"]
    return CheckResult(
        seen.get(cause, "nothing"),
        moves,
        f"{'; '.join(grants)}." if grants else "",
        here is not False,
    )


RANKLESS: dict[str, Callable[[CheckInput], Awaitable[CheckResult]]] = {
    "connections": connections,
    "resources": resources,
}
"""The words of ``{"check": …}``."""


# ---------------------------------------------------------------- what a fix changes


def cure(finding: Finding, plan: Plan | None = None) -> Advice | None:
    """The first advice that a machine can follow and that changes the job.

    Variables that only add logging do not change it.  A job of the lab (`plan`) does by itself what
    its finding's first advice asks of a person, so it needs no variables that are a later one's way
    around it.
    """
    first = None
    for advice in finding.advice:
        if advice.change or (advice.env and not _only_logs(advice)):
            first = advice
            break
    around = first is not None and first is not finding.advice[0] and not first.change
    if around and plan is not None and breakable(plan.argv, plan.network):
        return None
    return first


def _only_logs(advice: Advice) -> bool:
    """Whether all that it sets makes a job log more and changes nothing else."""
    return bool(advice.env) and not advice.change and comparison.only_log(advice.env)


def change_of(finding: Finding, plan: Plan) -> dict[str, Any]:
    """The change that the advice asks for.

    For a job of the lab it is also the cause whose bug it fixes.
    """
    advice = cure(finding, plan)
    change: dict[str, Any] = {}
    if advice is not None:
        env = dict(advice.env) | dict(advice.change.get("env", {}))
        change = dict(advice.change) | ({"env": env} if env else {})
    if breakable(plan.argv, plan.network):
        change["fix"] = finding.cause
    if not change:
        raise error_for_person(finding)
    return change


def error_for_person(finding: Finding) -> NcclkitError:
    """The error for advice that needs a person, with what to do."""
    do = "."
    if finding.advice:
        do = f": {finding.advice[0].do}"
    return NcclkitError(f"What helps against {finding.cause} needs a person{do}")


def words_of(finding: Finding, plan: Plan) -> str:
    """What was changed, in the words of the advice that asks for it."""
    changing = (advice for advice in finding.advice if not _only_logs(advice))
    advice = cure(finding, plan) or next(changing, None)
    if advice:
        return advice.do
    return f"the job does right what {finding.cause} names"
