"""The diagnosis of a job four times as large costs at most five times as much, whatever the job left behind."""

from __future__ import annotations

import gc
import time

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import summarize
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.hostile.growing import SHAPES

COUNT = 256
"""Large enough that what is compared with each other shows, and small enough for a test of each shape in seconds."""


def reading_of(shape, count, folder):
    folder.mkdir()
    for name, content in SHAPES[shape](count).items():
        (folder / name).write_bytes(content)
    return evidence.read([folder])


def seconds_of(reading):
    """CPU time of a diagnosis and its summary, without the collection of what is no longer used."""
    case = fill(Case(), reading)
    gc.collect()
    gc.disable()
    try:
        begun = time.process_time()
        summarize(case, diagnose(case))
        return time.process_time() - begun
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """What is loaded once is loaded before anything is measured."""
    seconds_of(reading_of("merged", 8, tmp_path_factory.mktemp("warm") / "logs"))


@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_job_costs_at_most_five_times_the_diagnosis(tmp_path, shape):
    small = reading_of(shape, COUNT, tmp_path / "small")
    large = reading_of(shape, 4 * COUNT, tmp_path / "large")
    assert small.events or small.facts
    least_small, least_large = [seconds_of(small)], [seconds_of(large)]
    for _ in range(3):  # other load on the machine only adds to it
        if min(least_large) <= 5 * min(least_small):
            break
        least_small.append(seconds_of(small))
        least_large.append(seconds_of(large))
    assert min(least_large) <= 5 * min(least_small)
