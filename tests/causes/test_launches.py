"""In the kernel or before it: launched everywhere, not launched on one rank, or one rank in its own code."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis.launches import launch_sentence
from ncclkit.analysis.motion import headline
from ncclkit.core.model import Event
from tests.causes.test_waits import MAIN, own, rank, waiting

HASH = "0xc5"
PLACE = {"host": "192.0.2.11", "pid": 7, "gpu": "1"}


def counted(late: list[int], still: bool, moved: bool = False) -> list[Event]:
    """Two reports of RAS on two ranks: who is a call behind, and whether nothing was launched in between."""
    report = {"gpus": 2, "processes": 2, "communicators": 1}
    events = [Event("ras.report", "NCCL 2.28.9", "ras.json", data=report)]
    comm: dict[str, Any] = {"hash": HASH, "size": 2, "late": late, "behind": late, "late_number": len(late)}
    comm |= {"spreads": {"AllReduce": [640, 641]} if late else {}, "places": {str(one): PLACE for one in late}}
    events.append(Event("ras.communicator", "counts", "ras.json", data=comm))
    if still or moved:
        change = {"hash": HASH, "still": [] if moved else [0, 1], "moved": {"0": {"AllReduce": 3}} if moved else {}}
        events.append(Event("ras.change", "2 s", "ras_2.json", data=change))
    return events


def gpus(busy: float, watts: float) -> list[Event]:
    data = {"gpu": 0, "gpu_busy": busy, "gpu_watts": watts}
    return [Event("telemetry.utilization", "", "telemetry.jsonl", rank=one, data=data) for one in (0, 1)]


def test_launched_everywhere_and_none_ends() -> None:
    say = launch_sentence([*counted([], still=True), *waiting(0), *waiting(1), *gpus(100.0, 121.0)])
    assert "launched everywhere, and none ends" in say and "all 2 ranks wait" in say
    assert "their GPUs 100 % busy at 121 W" in say and "no call inside a CUDA graph" in say


def test_not_launched_on_one_rank() -> None:
    say = launch_sentence([*counted([1], still=True), *waiting(0), *waiting(1)])
    assert say.startswith("Rank 1 (GPU 1 on 192.0.2.11) has launched 640 of 641 AllReduce by NCCL's RAS")
    assert "nothing was launched between two reports" in say


def test_not_launched_on_a_rank_that_is_in_its_own_code() -> None:
    say = launch_sentence([*counted([1], still=True), *waiting(0), *rank(1, own(9), MAIN, ran=1.0)])
    assert "Rank 1" in say and "is in own code (" in say


def test_one_rank_in_its_own_code_with_even_counts() -> None:
    say = launch_sentence([*counted([], still=True), *waiting(0), *rank(1, own(9), MAIN, ran=1.0)])
    assert say.startswith("Rank 1 is in its own code (") and "rank 0 waits" in say
    assert "no call inside a CUDA graph" in say


def test_one_report_of_even_counts_says_nothing_of_their_end() -> None:
    say = launch_sentence(counted([], still=False))
    assert "does not say whether the calls end" in say and "second report" in say


def test_even_counts_that_stand_may_be_an_idle_server() -> None:
    say = launch_sentence([*counted([], still=True), *gpus(0.0, 80.0)])
    assert "so does a job that has nothing to do" in say and "their GPUs 0 % busy at 80 W" in say


def test_a_job_that_launches_goes_on() -> None:
    events = [*counted([1], still=False, moved=True), *waiting(0), *waiting(1)]
    assert headline(events).startswith("The job goes on:")


@pytest.mark.parametrize("events", [[], waiting(0)], ids=["nothing", "stacks alone"])
def test_without_a_report_it_says_nothing(events: list[Event]) -> None:
    assert launch_sentence(events) == ""
