"""What can be seen from outside: a rank that works while the others wait, or waits while they spin; a low bandwidth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import facts as agent
from ncclkit.case import Case
from ncclkit.causes import _lateness, gil_hold, slow_rank, slow_transport
from ncclkit.model import Event, Fact, Finding, Measurement

GIB = 1 << 30
H200 = Path(__file__).parents[1] / "machines" / "h200-x4"


def watched(*shares: float | None, more: tuple[Event, ...] = ()) -> Finding:
    """One rank for each share of time in which its main thread had something to do."""
    rest = {"seconds": 3.0, "states": "", "gpu": None, "cpu": 0.0, "sent": None, "received": None, "gpu_busy": None}
    case = Case()
    case.events = [
        *(Event("watch.load", f"rank {r}", rank=r, data=rest | {"main": share}) for r, share in enumerate(shares)),
        *more,
    ]
    return slow_rank.diagnose(case)


def stack(rank: int) -> Event:
    return Event(
        "stack", rank=rank, data={"frames": [{"file": "/t/torch/distributed/x.py", "line": 1, "func": "wait"}]}
    )


TIMEOUT = Event("gloo.timeout", "Timed out", rank=0, data={"timeout_ms": 5000})


@pytest.mark.parametrize(
    ("shares", "guilty"),
    [((1.0, 99.0, 0.0), (1,)), ((98.0, 100.0, 2.0, 99.0), (2,)), ((99.0, 0.0, 99.0, 0.0, 0.0), (0, 2))],
    ids=["works alone", "sleeps alone", "two work"],
)
def test_the_few_stand_against_the_many(shares: tuple[float, ...], guilty: tuple[int, ...]) -> None:
    finding = watched(*shares)
    assert (finding.verdict, finding.strength, finding.culprits["ranks"]) == ("found", "possible", guilty)
    assert "main thread at work" in finding.say and len(finding.evidence) == len(shares)


def test_a_stopped_process_holds_no_lock() -> None:
    rest = {"seconds": 3.0, "gpu": None, "cpu": 0.0, "main": 0.0, "sent": None, "received": None, "gpu_busy": None}
    end = {"reason": "deadline", "exitcode": None, "say": "rank 2 did not answer SIGUSR1"}
    for states, verdict in (("SSS", "found"), ("STT", "clear")):
        case = Case()
        case.events = [Event("watch.load", rank=2, data=rest | {"states": states}), TIMEOUT, stack(2)]
        case.events += [Event("c10d.timeout", data={"op": "ALLREDUCE", "seq": 1}), Event("run.end", data=end)]
        assert gil_hold.diagnose(case).verdict == verdict
        words = "stopped by a signal" if states == "STT" else "busy"
        assert _lateness.doing(case, (2,)).startswith(words)


def test_who_says_that_it_waited_in_vain_makes_it_likely() -> None:
    assert watched(0.0, 99.0, 0.0, more=(TIMEOUT,)).strength == "likely"


@pytest.mark.parametrize(
    ("shares", "more"),
    [
        ((0.0, 99.0), ()),  # which of two waits, nobody can tell: NCCL spins, gloo sleeps
        ((0.0, 99.0, 99.0, 0.0), ()),
        ((0.0, 99.0, 40.0), ()),
        ((0.0, 99.0, None), ()),
        ((1.0, 2.0, 3.0), ()),
        ((0.0, 99.0, 0.0), (stack(1),)),  # its stack tells more: it waits
        ((0.0, 99.0, 0.0), (Event("run.end", data={"reason": "done", "exitcode": 0, "say": ""}),)),
    ],
)
def test_nobody_is_accused_without_a_difference(shares: tuple[float | None, ...], more: tuple[Event, ...]) -> None:
    assert watched(*shares, more=more).verdict != "found"


def measured(busbw: float, size: int = GIB, hosts: int = 1, **more: Any) -> Finding:
    case = Case()
    case.facts = [Fact(**row) for row in agent.collect(root=str(H200))]
    row = {"dtype": "float32", "ranks": 4, "backend": "nccl", "time_us": 1.0, "p99_us": None, "spread": None}
    row |= {"algbw": 1.0, "busbw": busbw, "wrong": 0, "run": "1-all_reduce"}
    case.measurements = [Measurement("all_reduce", size, hosts=hosts, **(row | more))]
    return slow_transport.diagnose(case)


def test_much_less_than_the_links_carry_asks_whether_a_slower_way_is_taken() -> None:
    finding = measured(24.0)
    assert (finding.verdict, finding.strength) == ("found", "possible") and finding.next is not None
    assert "24.00 of at most 370.80 GB/s busbw = 6%" in finding.say and "4 x H200: 354 GB/s" in finding.say


@pytest.mark.parametrize("more", [{"busbw": 340.0}, {"size": 1 << 20}, {"hosts": 2}, {"backend": "gloo"}, {"wrong": 7}])
def test_other_numbers_say_nothing_of_the_way(more: dict[str, Any]) -> None:
    assert measured(**({"busbw": 24.0} | more)).verdict != "found"
