"""What can be seen from outside: a rank that works while the others wait, or waits while they spin; a low bandwidth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import facts as agent
from ncclkit.causes import cpu_contention, gil_hold, network_loss, slow_rank, slow_transport
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Finding, Measurement
from tests.record.machine import machine_at

GIB = 1 << 30
H200 = Path(__file__).parents[1] / "machines" / "h200-x4"


def watched(*shares: float | None, more: tuple[Event, ...] = ()) -> Finding:
    """One rank for each share of time in which its main thread had something to do."""
    rest = {"seconds": 3.0, "states": "", "gpu": None, "cpu": 0.0, "sent": None, "received": None, "gpu_busy": None}
    case = Case()
    case.events = [
        *(
            Event("telemetry.utilization", f"rank {r}", rank=r, data=rest | {"main": share})
            for r, share in enumerate(shares)
        ),
        *more,
    ]
    return slow_rank.diagnose(case)


def stack(rank: int) -> Event:
    return Event(
        "stack", rank=rank, data={"frames": [{"file": "/t/torch/distributed/x.py", "line": 1, "func": "wait"}]}
    )


TIMEOUT = Event("gloo.timeout", "Timed out", rank=0, data={"timeout_ms": 5000})


@pytest.mark.parametrize(
    ("shares", "faulty"),
    [((1.0, 99.0, 0.0), (1,)), ((98.0, 100.0, 2.0, 99.0), (2,)), ((99.0, 0.0, 99.0, 0.0, 0.0), (0, 2))],
    ids=["works alone", "sleeps alone", "two work"],
)
def test_the_few_stand_against_the_many(shares: tuple[float, ...], faulty: tuple[int, ...]) -> None:
    finding = watched(*shares)
    assert (finding.verdict, finding.strength, finding.culprits["ranks"]) == ("found", "possible", faulty)
    assert "main thread at work" in finding.say and len(finding.evidence) == len(shares)


def test_a_stopped_process_holds_no_lock() -> None:
    rest = {"seconds": 3.0, "gpu": None, "cpu": 0.0, "main": 0.0, "sent": None, "received": None, "gpu_busy": None}
    end = {"reason": "deadline", "exitcode": None, "say": "rank 2 did not answer SIGUSR1"}
    for states, verdict in (("SSS", "found"), ("STT", "clear")):
        case = Case()
        case.events = [Event("telemetry.utilization", rank=2, data=rest | {"states": states}), TIMEOUT, stack(2)]
        case.events += [Event("c10d.timeout", data={"op": "ALLREDUCE", "seq": 1}), Event("run.end", data=end)]
        assert gil_hold.diagnose(case).verdict == verdict
        words = "stopped by a signal" if states == "STT" else "busy"
        assert slow_rank.how_it_stood(case, (2,)).startswith(words)


def test_a_line_that_says_it_timed_out_waiting_makes_it_likely() -> None:
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


def hello(*ranks: int, of: int) -> list[Event]:
    plan = Event("worker.phase", data={"phase": "plan", "ranks": of})
    return [plan, *(Event("worker.phase", rank=rank, data={"phase": "hello"}) for rank in ranks)]


WAITED = Event("store.wait", "wait timeout", rank=0, data={"keys": "/0/1", "timeout_ms": 10000})
ENDED = Event("run.end", data={"reason": "deadline", "exitcode": None, "say": ""})


@pytest.mark.parametrize(
    ("begun", "more", "faulty"),
    [
        (hello(0, 2, of=3), [WAITED], (1,)),
        (hello(0, 2, of=3), [ENDED], (1,)),
        (hello(0, of=3), [WAITED], ()),  # most are missing: no matter of single ranks
        (hello(0, 1, 2, of=3), [WAITED], ()),
        (hello(0, 1, 2, of=4), [WAITED], ()),  # of rank 3 there was never a process
    ],
    ids=["the store gave up", "the deadline came", "most", "nobody", "no process"],
)
def test_a_process_that_never_began_is_missed(begun: list[Event], more: list[Event], faulty: tuple[int, ...]) -> None:
    finding = watched(3.0, 0.0, 4.0, more=(*begun, *more))
    assert finding.culprits["ranks"] == faulty, finding.say
    if faulty:
        assert finding.strength == "likely" and "had not entered the rendezvous" in finding.say


def measured(busbw: float, size: int = GIB, hosts: int = 1, **more: Any) -> Finding:
    case = Case()
    case.facts = [Fact(**row) for row in agent.collect(machine=machine_at(str(H200)))]
    row = {"dtype": "float32", "ranks": 4, "backend": "nccl", "time_us": 1.0, "p99_us": None, "spread": None}
    row |= {"algbw": 1.0, "busbw": busbw, "wrong": 0, "run": "1-all_reduce", "expected": 370.8}
    case.events = [Event("run.end", "done", "/c/runs/1-all_reduce/status.json", data={"reason": "done"})]
    case.measurements = [Measurement("all_reduce", size, hosts=hosts, **(row | more))]
    return slow_transport.diagnose(case)


def test_much_less_than_the_links_carry_asks_whether_a_slower_way_is_taken() -> None:
    finding = measured(24.0)
    assert (finding.verdict, finding.strength) == ("found", "possible") and finding.next is not None
    assert "24.00 of at most 370.80 GB/s busbw = 6 %" in finding.say and "4 x H200: 354 GB/s" in finding.say


@pytest.mark.parametrize("more", [{"busbw": 340.0}, {"size": 1 << 20}, {"hosts": 2}, {"backend": "gloo"}, {"wrong": 7}])
def test_other_numbers_say_nothing_of_the_way(more: dict[str, Any]) -> None:
    assert measured(**({"busbw": 24.0} | more)).verdict != "found"


@pytest.mark.parametrize(
    ("sizes", "strength"),
    [((32768, 32768), "likely"), ((4096, 4096), "possible"), ((32768, 4096), "possible")],
    ids=["larger ones did not come through", "the first that was tried", "the ranks stand at different ones"],
)
def test_a_live_test_that_stands_at_a_larger_message_between_hosts(sizes: tuple[int, int], strength: str) -> None:
    case = Case()
    row: dict[str, Any] = {
        "dtype": "float32",
        "hosts": 2,
        "backend": "gloo",
        "p99_us": None,
        "spread": None,
        "algbw": 1.0,
        "wrong": 0,
    }
    case.measurements = [Measurement(op="all_reduce", bytes=4096, ranks=2, time_us=1.0, busbw=1.0, **row)]
    for rank, size in enumerate(sizes):
        where: dict[str, Any] = {"rank": rank, "host": f"node-{rank}"}
        case.events += [
            *(
                Event("worker.phase", data=data, **where)
                for data in ({"phase": "hello"}, {"phase": "size", "bytes": size})
            ),
            Event("gloo.timeout", "Timed out", data={"timeout_ms": 5000, "what": "recv"}, **where),
        ]
    finding = network_loss.diagnose(case)
    assert finding.strength == strength, finding.say
    assert ("of 4,096 bytes had come through" in finding.say) == (strength == "likely")


def over_gloo(busbw: float, waited: float, processes: int = 1, more: tuple[Event, ...] = ()) -> Case:
    """A live test over gloo that reached `busbw` GB/s on two cores, whose ranks waited so long for them."""
    case = Case()
    case.facts = [Fact("net.loopback.bandwidth", 4.0, "GB/s"), Fact("cpu.usable", 2), Fact("cpu.pressure", 66.0, "%")]
    case.measurements = [
        Measurement(
            "all_reduce", 4 << 20, "float32", 2, 1, "gloo", 4e3, None, None, busbw, busbw, 0, 5, "1-all_reduce",
            expected=2.0,
        )
    ]  # fmt: skip
    row = {"processes": processes, "cores": 2, "ran": 2.0, "waited": waited, "preempted": 900}
    case.events = [
        *(Event("telemetry.scheduling", f"rank {r}", "/c/runs/1-all_reduce/t", 9, rank=r, data=row) for r in (0, 1)),
        Event("run.end", "done", "/c/runs/1-all_reduce/status.json", data={"reason": "done", "exitcode": 0, "say": ""}),
        *more,
    ]
    return case


def test_a_slow_live_test_whose_ranks_wait_for_cores_shares_them_with_others() -> None:
    finding = cpu_contention.diagnose(over_gloo(0.2, waited=5.0))
    assert (finding.verdict, finding.strength) == ("found", "likely")
    assert "others" not in finding.say and "other processes use these cores" in finding.say
    assert "waited 10.0 s for one of 2 CPU cores" in finding.say
    assert finding.advice[0].command.startswith("ps ") and "num_workers" not in finding.advice[0].do


def test_ranks_that_do_not_fit_on_the_cores_are_not_blamed_on_others() -> None:
    finding = cpu_contention.diagnose(over_gloo(0.2, waited=5.0, processes=3))
    assert finding.strength == "likely" and "other processes" not in finding.say


def test_before_the_ranks_began_others_had_the_cores() -> None:
    case = over_gloo(0.2, waited=0.0)
    case.events = case.of("run.end")
    assert "66 % of the time" in cpu_contention.diagnose(case).say


@pytest.mark.parametrize(
    "case", [over_gloo(0.2, waited=0.1), over_gloo(1.9, waited=5.0)], ids=["slow, nobody waited", "as fast as usual"]
)
def test_a_queue_or_a_low_bandwidth_alone_is_no_contention(case: Case) -> None:
    assert cpu_contention.diagnose(case).verdict == "clear"


def test_what_an_older_run_measured_is_not_judged() -> None:
    case = over_gloo(0.2, waited=5.0)
    case.events = [Event("run.end", "x", "/c/runs/2-train/status.json", data={"reason": "done"})]
    assert cpu_contention.diagnose(case).verdict == "clear"
