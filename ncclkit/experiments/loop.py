"""The closed loop: the experiment that tells the suspects apart, then the fix, on the same small job.

The subject of a trial is the last run of the case that was ours, a run of the lab or the live test, and it is run
again with one thing changed.  A job of somebody else cannot be run again from here: a live test with its variables
stands in for it, and where that does not fail in the same way, nothing follows and the answer says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.causes.engine import Diagnosis, diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER, NAME, Trial, keep, trials
from ncclkit.core.model import Finding, NcclkitError
from ncclkit.core.runs import Plan, changed, possible
from ncclkit.experiments import baseline, comparison, fixes
from ncclkit.experiments.comparison import Arm
from ncclkit.experiments.resource_checks import LOOKS, Asked
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions

__all__ = ["check", "close", "fix", "trials"]

OnRecord = Callable[[dict[str, Any]], None]
OnTrial = Callable[[Trial], None]
ROUNDS = 3
"""Experiments that `close` makes at most before a fix, and fixes that it tries at most."""
STAND_IN = 1 << 20
"""Largest message of the live test that stands in for a job, in bytes."""


async def check(
    case: Case,
    cause: str = "",
    *,
    python: str | None = None,
    deadline: float = 120.0,
    on_record: OnRecord = lambda record: None,
) -> Trial:
    """Run the experiment of one finding, and move the verdicts by what it shows.

    cause: whose experiment (default: the one that tells most of the suspects apart); python: the training interpreter;
    deadline: seconds for each run.  Raises NcclkitError in one sentence where there is nothing to ask.
    """
    verdict = diagnose(case)
    finding = _asked(case, verdict, cause)
    experiment = finding.next
    assert experiment is not None
    started, room = time.monotonic(), _room(case, finding.cause)
    if "check" in experiment.plan:
        return await _look(Asked(case, room, verdict, finding, experiment, python, on_record))
    before, name = await _subject(case, verdict, room, python, deadline, on_record)
    usable = bool(name) or comparison.comparable(before, finding)
    moves, seen, after = dict.fromkeys(experiment.expects, "open"), "nothing", None
    if usable:  # a stand-in that does not fail as the job did is not worth another run
        after = await _again(room, before.run.plan, experiment.plan, name, on_record)
        seen = comparison.observed(before, after, experiment)
        moves = comparison.verdicts(experiment, before, after) | comparison.shown(verdict, before, after)
    return _kept(
        case,
        Trial(
            "check",
            finding.cause,
            experiment.question,
            dict(experiment.plan),
            observed=seen,
            verdicts=moves,
            say=comparison.answer(finding, experiment, seen, moves, usable),
            seconds=round(time.monotonic() - started, 1),
            folder=_folder(room),
            baseline=name,
            **_both(before, after),
        ),
    )


async def fix(
    case: Case,
    cause: str = "",
    *,
    python: str | None = None,
    deadline: float = 120.0,
    on_record: OnRecord = lambda record: None,
) -> Trial:
    """Apply the advice on one finding (default: the first) to the same small job, and look whether it works then.

    A job of the lab is told the cause that was *found*, and does right what it does wrong for that cause; so a wrong
    diagnosis mends nothing.  Raises NcclkitError where the advice is nothing that a machine can do.
    """
    verdict = diagnose(case)
    finding = _named(verdict, cause)
    if baseline.last(case) is None and fixes.cure(finding) is None:  # before anything is started in vain
        raise fixes.by_hand(finding)
    started, room = time.monotonic(), _room(case, finding.cause)
    before, name = await _subject(case, verdict, room, python, deadline, on_record)
    change = fixes.change_of(finding, before.run.plan)
    after = await _again(room, before.run.plan, change, name, on_record)
    still, shown = (finding.cause in {f.cause for f in arm.diagnosis.findings} for arm in (after, before))
    well = after.well and not still
    # that a second attempt works tells only that the first was unlucky, whatever the reason
    move = ("proven" if change.keys() - {"restarts"} else "supported") if well and shown else "open"
    return _kept(
        case,
        Trial(
            "fix",
            finding.cause,
            f"Does the same job work after this: {fixes.words_of(finding, before.run.plan)}",
            change,
            observed=comparison.observed(before, after, None),
            verdicts={finding.cause: move} | (comparison.shown(verdict, before, after) if name else {}),
            say=comparison.mended(finding, after, well, shown),
            seconds=round(time.monotonic() - started, 1),
            folder=_folder(room),
            baseline=name,
            **_both(before, after),
        ),
    )


async def close(case: Case, on_trial: OnTrial = lambda trial: None, **choices: Any) -> tuple[Trial, ...]:
    """Ask until the first cause is proven or nothing is left to ask, then fix it; `choices` as of `check`.

    A fix that does not help is a repetition with everything recorded: what that proves is asked and fixed next.
    on_trial: told of each trial when it is done; where one cannot be made (NcclkitError), those before it are kept.
    """
    made: list[Trial] = []
    tried: set[str] = set()
    for _ in range(ROUNDS):
        async for trial in _ask(case, choices):
            on_trial(trial)
            made.append(trial)
        first = next(iter(diagnose(case).findings), None)
        if first is None or first.cause in tried:
            break
        tried.add(first.cause)
        made.append(await fix(case, first.cause, **choices))
        on_trial(made[-1])
        if made[-1].worked:
            break
    return tuple(made)


async def _ask(case: Case, choices: Mapping[str, Any]) -> AsyncIterator[Trial]:
    """Experiments, until the first cause is proven or none is left."""
    for _ in range(ROUNDS):
        verdict = diagnose(case)
        settled = not verdict.findings or verdict.findings[0].strength == "proven"
        if settled or not _open(case, verdict):
            return
        yield await check(case, **choices)


def _asked(case: Case, verdict: Diagnosis, cause: str) -> Finding:
    """The finding whose experiment is to be made."""
    if cause:
        rows = (*verdict.findings, *verdict.unknown)
        finding = next((row for row in rows if row.cause == cause), None)
        if finding is None or finding.next is None or not finding.next.expects:
            what = "was not found here" if finding is None else "has no experiment"
            raise NcclkitError(f"There is nothing to check: {cause} {what}; here these have one: {_names(verdict)}.")
        return finding
    suspects = _open(case, verdict)
    if not suspects:
        raise NcclkitError("There is nothing to check: no finding is left whose experiment was not made.")
    if suspects[0].next and "check" in suspects[0].next.plan:  # seconds, where a run may hang until its deadline
        return suspects[0]
    return max(suspects, key=lambda finding: _splits(finding, verdict))  # of equals the first, the better root


def _open(case: Case, verdict: Diagnosis) -> list[Finding]:
    """Findings whose experiment was not made yet, and can be made on the last run."""
    done, run = _done(case), baseline.last(case)
    asked = [f for f in verdict.findings if f.next and f.next.expects and f.next.question not in done]
    return [f for f in asked if f.next and (run is None or "check" in f.next.plan or possible(run.plan, f.next.plan))]


def _done(case: Case) -> set[str]:
    """The questions that were asked about the last run already."""
    about = _about(case)
    return {trial.question for trial in trials(case) if trial.kind == "check" and trial.baseline == about}


def _about(case: Case) -> str:
    """Name of the run that a trial would be made on, "" where a live test would stand in."""
    run = baseline.last(case)
    return run.name if run else ""


def _splits(finding: Finding, verdict: Diagnosis) -> int:
    """How many different answers the suspects expect of this experiment."""
    expects = finding.next.expects if finding.next else {}
    words = [(row.cause, expects[row.cause]) for row in verdict.findings if row.cause in expects]
    return len({(cause if word in ("named", "found") else "", word) for cause, word in words})


def _named(verdict: Diagnosis, cause: str) -> Finding:
    finding = next((row for row in verdict.findings if cause in ("", row.cause)), None)
    if finding is None:
        raise NcclkitError(f"There is nothing to fix: {cause or 'no cause'} was found here.")
    return finding


def _names(verdict: Diagnosis) -> str:
    return ", ".join(row.cause for row in verdict.findings if row.next and row.next.expects) or "none"


def _room(case: Case, cause: str) -> Case:
    """The case that the runs of one trial get, hidden in the trial's own folder."""
    if case.path is None or case.read_only:
        raise NcclkitError("A trial needs a case folder that may be written; open one with Case.open(path).")
    folder = case.path / FOLDER
    numbers = [int(path.name.split("-")[0]) for path in folder.glob("*-*") if path.name.split("-")[0].isdigit()]
    room = Case.open(folder / f"{max(numbers, default=0) + 1}-{cause}" / ".case")
    room.facts = list(case.facts)
    return room


async def _subject(
    case: Case, verdict: Diagnosis, room: Case, python: str | None, deadline: float, on_record: OnRecord
) -> tuple[Arm, str]:
    """The run that is run again, with its name in the case; or a live test in its place, without one."""
    if run := baseline.last(case, python):
        return Arm(run, verdict), run.name
    variables = baseline.variables(case)
    options = ProbeOptions(python=python or "", timeout=deadline, max_bytes=STAND_IN, env=variables)
    plan = await probe.plan(case, options)
    return await _run(room, plan, on_record), ""


async def _again(room: Case, plan: Plan, change: Mapping[str, Any], name: str, on_record: OnRecord) -> Arm:
    """Run a plan with one thing changed; name: of the run of the case that is run again, "" where it was made here."""
    plan = changed(plan, change)
    if name:
        await probe.again(room, plan)
    return await _run(room, plan, on_record)


async def _run(room: Case, plan: Plan, on_record: OnRecord) -> Arm:
    """Run a plan in the trial's own case."""
    run = await probe.execute(room, plan, on_record)
    if run.reason == "cancelled":
        raise NcclkitError("The experiment was cancelled; the verdicts stay as they were.")
    return Arm(run, diagnose(room))


async def _look(asked: Asked) -> Trial:
    """Look, without any rank of the job, and ask what that says alone."""
    case, finding, experiment, room = asked.case, asked.finding, asked.experiment, asked.room
    started, room.facts = time.monotonic(), []
    seen = await LOOKS[experiment.plan["check"]](asked)
    say = comparison.answer(finding, experiment, seen.shown, seen.moves, seen.usable, seen.told)
    took, change, about = round(time.monotonic() - started, 1), dict(experiment.plan), _about(case)
    what, question, none = finding.cause, experiment.question, None
    trial = Trial("check", what, question, change, none, none, seen.shown, seen.moves, say, took, _folder(room), about)
    return _kept(case, trial)


def _both(before: Arm, after: Arm | None) -> dict[str, Any]:
    """Of a trial what the two runs say."""
    said = (before.diagnosis.headline, after.diagnosis.headline if after else "")
    runs = {"before": before.run, "after": after.run if after else None}
    return runs | {"cause_before": before.cause, "cause_after": after.cause if after else "", "said": said}


def _folder(room: Case) -> Path:
    assert room.path is not None  # `_room` made it
    return room.path.parent


def _kept(case: Case, trial: Trial) -> Trial:
    """Keep a trial in the case, as the event that the diagnosis weighs."""
    keep(trial)
    case.add(evidence.read([trial.folder / NAME]).events).save()
    diagnose(case)
    return trial
