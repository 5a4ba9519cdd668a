"""Logs by somebody who had not read the tool: what was once reached is not lost (tests/exam/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.diagnosis import Score, samples, score
from tests.bench.resemblance import SETS

EXAM = Path(__file__).parents[1] / "exam"


@pytest.fixture(scope="module", params=SETS)
def scores(request: pytest.FixtureRequest) -> list[Score]:
    return [score(sample, sample.files) for sample in samples(EXAM / request.param)]


def test_nothing_wrong_is_called_proven(scores: list[Score]) -> None:
    assert [item.sample.name for item in scores if item.wrong_at_proven] == []


def test_jobs_that_are_well_are_left_alone(scores: list[Score]) -> None:
    well = [item for item in scores if item.sample.cause is None]
    assert len(well) >= 5 and [item.sample.name for item in well if item.found] == []


def test_no_job_that_failed_is_called_healthy(scores: list[Score]) -> None:
    """Where no cause is found the verdict says that it is unexplained, or that no job was seen."""
    failed = [item for item in scores if item.sample.cause is not None]
    assert failed and [item.sample.name for item in failed if item.verdict == "healthy"] == []


def test_the_right_cause_comes_first(scores: list[Score]) -> None:
    enough = [item for item in scores if item.sample.group == "posted log suffices"]
    wrong = [item.sample.name for item in enough if not item.right(1)]
    assert len(wrong) <= len(enough) / 10, wrong
