"""Every experiment can be run, and says beforehand what each cause would show."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.case import Case
from ncclkit.causes import catalogue
from ncclkit.model import OUTCOMES, Experiment, Finding
from ncclkit.runs import Plan, changed
from tests.causes.specimens import FOLDERS, judged, name

PLAN = Plan("small", ("train", "--backend", "gloo", "--timeout", "8"), 4, "gloo", "python", 60.0, {"NCCL_ALGO": "Ring"})
ITSELF = {"named", "found", "clear"}
"""Outcomes that speak of each cause by itself: two causes that expect the same one are told apart all the same."""
ASKED = {name: module.experiment for name, module in catalogue().items()}


def sound(cause: str, experiment: Experiment) -> None:
    expects = experiment.expects
    assert experiment.question.endswith("?") and "\n" not in experiment.question
    assert expects.keys() == experiment.predicts.keys() <= catalogue().keys()
    assert cause in expects and set(expects.values()) <= OUTCOMES.keys()
    assert len(expects) > 1 and (len(set(expects.values())) > 1 or set(expects.values()) <= ITSELF)
    if "look" in experiment.plan:
        assert experiment.plan["look"] in ("facts", "connect") and len(experiment.plan) == 1
        assert set(expects.values()) <= {"found", "clear"}
    else:
        assert changed(PLAN, experiment.plan) != PLAN, "something is changed"
        assert not set(expects.values()) & {"found", "clear"}


@pytest.mark.parametrize("cause", ASKED)
def test_a_run_that_fails_again_proves_nothing(cause: str) -> None:
    """Many things fail in the same way; only what helps, or what a recording names, is proof."""
    expects = [*ASKED[cause](Case()).expects.values()]
    assert expects.count("same") != 1


@pytest.mark.parametrize("cause", ASKED)
def test_an_experiment_without_evidence(cause: str) -> None:
    sound(cause, ASKED[cause](Case()))


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_the_experiments_that_a_specimen_asks_for(folder: Path) -> None:
    result, _ = judged(folder)
    asked: list[Finding] = [f for f in (*result.findings, *result.unknown) if f.next]
    for finding in asked:
        assert finding.next is not None
        sound(finding.cause, finding.next)
