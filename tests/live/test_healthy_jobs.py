"""Attach accuses nobody of a job that goes on; ``tests/bench/attach.py --healthy`` looks at all programs many times."""

from __future__ import annotations

import argparse

import pytest

from tests.bench.attach import busy_host, healthy_row
from tests.live.healthy import PROGRAMS, programs

pytestmark = pytest.mark.slow


def looked_at(name: str, dump: bool) -> dict[str, object]:
    """One look at a job of two ranks."""
    options = argparse.Namespace(looks=1, dump=dump, ranks=2, backend="gloo", timeout=None)
    return healthy_row(name, options)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", programs())
def test_nobody_is_accused_by_dumps_of_one_rank_after_the_other(name: str) -> None:
    row = looked_at(name, dump=True)
    assert (row["accusations"], row["exit_0"], row["lives"]) == (0, 1, True), row["said"]


def test_a_rank_that_is_busy_with_something_else_for_seconds_is_not_missing() -> None:
    row = looked_at("checkpoint_on_rank_0", False)
    assert (row["accusations"], row["goes_on"], row["exit_0"], row["lives"]) == (0, 1, 1, True), row["said"]


def test_on_a_busy_host_nobody_is_accused_either() -> None:
    with busy_host(3):
        row = looked_at("long_steps", False)
    assert (row["accusations"], row["lives"]) == (0, True), row["said"]


def test_a_server_without_a_request_is_idle() -> None:
    row = looked_at("idle_server", False)
    assert (row["accusations"], row["goes_on"], row["exit_0"]) == (0, 1, 1), row["said"]


def test_there_are_enough_programs_of_each_kind() -> None:
    assert len(PROGRAMS) >= 12 and set(PROGRAMS.values()) == {"torch", "accelerate", "transformers", "Lightning"}
