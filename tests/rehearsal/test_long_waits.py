"""Waits against the limit of the job, by a clock of our own."""

import asyncio

import pytest

from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.coordinator import Ruling
from ncclkit.agent.rehearsal.long_waits import WaitTimes
from ncclkit.agent.rehearsal.ranks import write_verdict
from ncclkit.core.case import Case
from ncclkit.rehearsal import rehearse
from ncclkit.rehearsal.rehearsal_options import RehearsalOptions

CALL = Call(1, "0", (0, 1), "train.py:9", "barrier")


@pytest.mark.parametrize(("limit", "notes"), [(5.0, 1), (20.0, 0), (0.0, 0)])
def test_a_wait_longer_than_the_limit_is_named_with_who_came_last(limit, notes):
    times = WaitTimes(limit)
    for number in (1, 2):
        times.add_call(0, CALL._replace(number=number), 0.0)
        times.add_call(1, CALL._replace(number=number), 6.0 * number)
        times.add_released([(0, number), (1, number)], 1, 6.0 * number)
    found = times.notes()
    assert len(found) == notes
    if notes:
        assert "Rank 0 waited 12 s in barrier at train.py:9, until rank 1 came" in found[0]


def test_a_call_that_is_open_at_the_deadline_counts_with_its_time_until_then():
    times = WaitTimes(5.0)
    times.add_call(0, CALL, 0.0)
    assert times.notes() == []
    times.add_open(7.0)
    assert "waited 7 s" in times.notes()[0] and "not all had come" in times.notes()[0]


@pytest.mark.parametrize(("limit", "seconds", "says"), [(1800.0, 120.0, True), (60.0, 120.0, False)])
def test_a_limit_that_no_wait_can_come_to_is_said(limit, seconds, says):
    options = RehearsalOptions(timeout=seconds, job_timeout=limit)
    assert ("say --timeout 3600" in options.lacking_time) == says
    assert RehearsalOptions(timeout=seconds).lacking_time == ""


def test_it_is_said_with_the_verdict(tmp_path, monkeypatch):
    async def agree(folder, *_: object) -> None:
        options = {"answer": str(folder / "rehearsal.json"), "ranks": 4, "host_ranks": 4}
        write_verdict(options, Ruling("agree"), {"calls": 1, "seconds": 1.0})

    monkeypatch.setattr(rehearse, "run_ranks", agree)
    script = tmp_path / "train.py"
    script.touch()
    words = ["python", str(script)]
    case = Case.open(tmp_path / "case")
    options = RehearsalOptions(job_timeout=1800.0)
    rehearsed = asyncio.run(rehearse.rehearse_script(case, words, options))
    assert rehearsed.notes == (options.lacking_time,) and options.lacking_time in rehearsed.text()
