"""Every experiment can be run, and says beforehand what each cause would show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit.causes import catalogue
from ncclkit.causes._experiments import LIMITS
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import OUTCOMES, Event, Experiment, Finding
from ncclkit.core.resources import THINGS
from ncclkit.core.runs import Plan, changed
from ncclkit.experiments.fixes import RANKLESS
from tests.causes.specimens import FOLDERS, judged, load, name

PLAN = Plan("small", ("train", "--backend", "nccl", "--timeout", "8"), 4, "nccl", "python", 60.0, {"NCCL_ALGO": "Ring"})
PLAN = replace(PLAN, network={"hosts": 2, "wrong": ""})
ITSELF = {"named", "found", "clear"}
"""Outcomes that speak of each cause by itself: two causes that expect the same one are told apart all the same."""
ASKED = {name: module.experiment for name, module in catalogue().items()}


def sound(cause: str, experiment: Experiment) -> None:
    expects = experiment.expects
    assert experiment.question.endswith("?") and "\n" not in experiment.question
    assert expects.keys() == experiment.predicts.keys() <= catalogue().keys()
    assert cause in expects and set(expects.values()) <= OUTCOMES.keys()
    assert len(expects) > 1 and (len(set(expects.values())) > 1 or set(expects.values()) <= ITSELF)
    if "check" in experiment.plan:
        assert experiment.plan["check"] in RANKLESS and len(experiment.plan) == 1
        assert set(expects.values()) <= {"found", "clear"}
    else:
        assert changed(PLAN, experiment.plan) != PLAN, "something is changed"
        assert not set(expects.values()) & {"found", "clear"}


def every(cause: str, *told: Event) -> Iterator[Experiment]:
    """The experiments of a cause, one after the other, as each of them tells nothing."""
    case, seen = Case(), set()
    case.events = list(told)
    while (experiment := ASKED[cause](case)).question not in seen:
        yield experiment
        seen.add(experiment.question)
        case.events.append(Event("experiment.check", "", data={"question": experiment.question}))


@pytest.mark.parametrize("cause", ASKED)
def test_a_run_that_fails_again_proves_nothing(cause: str) -> None:
    """Many things fail in the same way; only what helps, or what a recording names, is proof."""
    for experiment in every(cause):
        expects = [*experiment.expects.values()]
        assert expects.count("same") != 1 and expects.count("fails") != 1


@pytest.mark.parametrize("cause", ASKED)
def test_an_experiment_without_evidence(cause: str) -> None:
    for experiment in every(cause):
        sound(cause, experiment)


def test_limits_are_tried_before_a_job_is_run_again() -> None:
    plans = {cause: [list(experiment.plan.values()) for experiment in every(cause)] for cause in LIMITS}
    del plans["host_oom"]  # what is free now is asked before a job runs; of one that was killed it says nothing
    assert all(first == ["resources"] and len(more) == 1 for first, *more in plans.values())
    assert LIMITS.keys() == {cause for cause, _ in THINGS.values()}


@pytest.mark.parametrize("cause", ["nccl_bug", "p2p_broken", "cuda_error"])
def test_a_job_without_nccl_is_not_asked_to_do_without_it(cause: str) -> None:
    ran = [Event("worker.phase", "", data={"phase": "plan", "backend": name}) for name in ("nccl", "gloo")]
    asked = [["backend" in experiment.plan for experiment in every(cause, event)] for event in ran]
    assert asked[0].count(True) == 1 and len(asked[1]) == 1 and True not in asked[1]


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_the_experiments_that_a_specimen_asks_for(folder: Path) -> None:
    result, *_ = judged(folder)
    asked: list[Finding] = [f for f in (*result.findings, *result.unknown) if f.next]
    for finding in asked:
        assert finding.next is not None
        sound(finding.cause, finding.next)
    answers_hide_nothing(folder, result.findings)


def answers_hide_nothing(folder: Path, findings: Iterable[Finding]) -> None:
    """What was found before is found with it, too: an answer moves a verdict, and is no word of the job."""
    for finding in findings:
        if finding.next is not None and finding.next.expects:
            case = load(folder)
            told = {"cause": finding.cause, "baseline": "", "question": finding.next.question, "observed": "found"}
            case.add([Event("experiment.check", data=told | {"verdicts": {finding.cause: "supported"}})])
            assert finding.cause in {again.cause for again in diagnose(case).findings}
