"""Waits against the limit of the job, by a clock of our own."""

import pytest

from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.long_waits import WaitTimes

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
