"""Whether a running job goes on, by recorded looks: then nobody is accused; else a wait has outlasted the look."""

from __future__ import annotations

from dataclasses import replace
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from msgspec import structs

from ncclkit import evidence
from ncclkit.agent.monitor import attach as collect
from ncclkit.agent.monitor.snapshots import Snapshots
from ncclkit.analysis import waits
from ncclkit.analysis.motion import headline, motion
from ncclkit.analysis.waits import blockages, rank_positions
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from tests.cases import judged_log
from tests.causes.test_waits import LIBC, MAIN, own, rank, waiting
from tests.evidence.test_flight import dump, entry
from tests.evidence.test_flight import waiting as in_flight

SPINS = ["cuStreamSynchronize (/lib/libcuda.so.1)"]


def case_of(*groups: list[Event]) -> Case:
    case = Case()
    case.events = [event for events in groups for event in events]
    case.events += blockages(case.events)
    return case


def gap(missing: list[int], waits_in: list[int], **more: Any) -> Event:
    """What dumps say of ranks that never entered a collective."""
    data = {"seq": 4, "op": "all_reduce", "missing": missing, "waiting": waits_in, "no_dump": []}
    data |= {"overwritten": [], "group": "0", "desc": "", "frames": [], "last_seq": {}, "stacks": {}}
    return Event("flight.missing", "4 all_reduce", "fr_rank_0", rank=None, data=data | {"root": "", "holds": []} | more)


def ras(moved: dict[str, dict[str, int]], still: list[int]) -> list[Event]:
    counts = {"AllReduce": {"0": 41, "1": 40}}
    report = {"hash": "0xc5", "size": 2, "missing": [], "counts": counts, "behind": [1], "dead": [], "errors": {}}
    change = {"hash": "0xc5", "moved": moved, "still": still, "seconds": 2.0, "behind": [1]}
    return [
        Event("ras.communicator", "1 behind", "ras.json", data=report),
        Event("ras.change", "moved", "ras.json", data=change),
    ]


def test_launches_that_ras_counts_acquit_everybody() -> None:
    """Two snapshots met a rank in its own code and the other one waiting, and a dump came too early."""
    looks = [*waiting(0), *rank(1, own(9), MAIN, ran=1.0)]
    found = diagnose(case_of(looks, ras({}, [0, 1]), [gap([1], [0])]))
    assert found.findings and found.exit_code == 1
    counted = ras({"0": {"AllReduce": 30}, "1": {"AllReduce": 31}}, [])
    found = diagnose(case_of(looks, counted, [gap([1], [0])]))
    assert (found.findings, found.exit_code) == ((), 0)
    says = headline([*looks, *counted])
    assert says == (
        "The job goes on: ranks 0 and 1 launched collectives between two reports of NCCL's RAS, 16 a second."
    )


@pytest.mark.parametrize(("errors", "goes_on"), [({}, True), ({"0": "invalid usage"}, False)])
def test_what_moves_while_a_communicator_has_failed_is_its_end(errors: dict[str, str], goes_on: bool) -> None:
    """A rank that reads its libraries to print a stack moves, and its job does not go on."""
    looks = [*rank(0, own(9), MAIN, ran=1.0), *rank(1, own(9), MAIN, ran=1.0)]
    reports = ras({}, [0, 1])
    reports[0] = replace(reports[0], data=structs.replace(reports[0].data, errors=errors))
    assert (motion([*looks, *reports]) is not None) is goes_on


def two_looks(number: int, at: float) -> dict[str, Any]:
    """Of a rank that was met in one call at two moments."""
    stack = (
        "    all_reduce (/env/site-packages/torch/distributed/distributed_c10d.py:3252)\n    step (/app/train.py:33)"
    )
    shots = [{"t": moment, "state": "S", "main": 0.0, "switches": 5, "stack": stack} for moment in (at, at + 3.0)]
    return {"pid": 100 + number, "snapshots": shots, "command": "python train.py"}


@pytest.mark.parametrize(("called", "moved"), [(1000.0, False), (1002.0, True)], ids=["before", "meanwhile"])
def test_a_call_that_was_made_during_the_look_makes_dumps_incomparable(
    tmp_path: Path, called: float, moved: bool
) -> None:
    """Over gloo, where a dump does not tell a call that is done from one that timed out."""
    looks = {
        "attached": 1,
        "host": "node-1",
        "expected": [0, 1],
        "ranks": {str(n): two_looks(n, 1001.0) for n in (0, 1)},
    }
    (tmp_path / "attached.json").write_text(json.dumps(looks))
    ours = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    done = [entry(number, lib="gloo", state="scheduled", retired=True, time_created_ns=number) for number in (1, 2)]
    more = in_flight(3, lib="gloo", retired=False, time_created_ns=int(called * 1e9))
    for number, calls in enumerate((done, [*done, more])):
        (tmp_path / f"fr_rank_{number}").write_bytes(pickle.dumps(dump(calls, ours), 2))
    events = evidence.read([tmp_path]).events
    assert ("flight.missing" in {event.kind for event in events}) != moved
    case = Case()
    case.events = list(events)
    found = diagnose(case)
    assert (found.exit_code, bool(found.findings)) == ((0, False) if moved else (1, True))
    assert headline(events).startswith("The job goes on: rank 1 made calls while it was looked at") == moved


def recorded(number: int, late: float) -> dict[str, Any]:
    """The dump of a rank that comes so late to each of its calls, ten of which are made a second."""
    times = [int((1000.0 + 0.1 * seq + late) * 1e9) for seq in range(30)]
    calls = [
        entry(seq, lib="gloo", state="scheduled", retired=True, time_created_ns=at) for seq, at in enumerate(times)
    ]
    return dump(calls, {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}})


@pytest.mark.parametrize(("late", "last"), [(0.02, True), (0.0, False)], ids=["20 ms", "in time"])
def test_who_comes_last_is_said_of_a_job_that_goes_on_and_is_no_accusation(
    tmp_path: Path, late: float, last: bool
) -> None:
    looks = {str(number): two_looks(number, 1001.0) for number in range(3)}
    told = {"attached": 1, "host": "node-1", "expected": [0, 1, 2], "ranks": looks}
    (tmp_path / "attached.json").write_text(json.dumps(told))
    for number in range(3):
        value = recorded(number, late if number == 1 else 0.0)
        (tmp_path / f"fr_rank_{number}").write_bytes(pickle.dumps(value, 2))
    case = Case()
    case.events = list(evidence.read([tmp_path]).events)
    found = diagnose(case)
    assert (found.findings, found.exit_code) == ((), 0)
    says = "The job goes on: ranks 0-2 made calls while they were looked at, 10 a second."
    more = " Rank 1 comes last to 30 of 30 collectives, which the ranks enter 20.0 ms apart as a rule."
    assert headline(case.events) == says + more * last


def load(number: int, main: float, gpu: int | None = None) -> Event:
    data = {"seconds": 3.0, "states": "SSS", "gpu": gpu, "cpu": main, "main": main}
    return Event("telemetry.utilization", "", rank=number, data=data | dict.fromkeys(("sent", "received", "gpu_busy")))


def looks_at_work_on_rank_1() -> list[Event]:
    """Rank 1 is met in its own code, ranks 0 and 2 in a collective."""
    works = rank(1, own(67), MAIN, ran=0.97, wakes=6)
    return [*waiting(0, wakes=6), *works, *waiting(2, wakes=6)]


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((4.0, 97.0, 6.0), "The others wait for rank 1 most: it worked 97 % of the time, they 4 to 6 %."),
        ((40.0, 97.0, 6.0), ""),
        ((97.0, 97.0, 6.0), ""),
    ],
)
def test_for_whom_the_others_wait_is_seen_by_their_load(shares: tuple[float, ...], said: str) -> None:
    says = headline([*looks_at_work_on_rank_1(), *(load(number, main) for number, main in enumerate(shares))])
    assert says.startswith("The job goes on") and says.endswith(said)


def test_a_rank_that_spins_for_its_gpu_is_not_the_one_that_others_wait_for() -> None:
    """Seen on two H200: rank 0 saved, asleep; rank 1 spun in its barrier, and was called awaited."""
    shares = enumerate((4.0, 97.0, 6.0))
    on_gpus = [load(number, main, gpu=number) for number, main in shares]
    in_the_barrier = [event for number in range(3) for event in waiting(number, wakes=6)]
    by_load = [load(1, 97.0), load(0, 4.0), load(2, 6.0)]
    assert "wait for rank" not in headline([*looks_at_work_on_rank_1(), *on_gpus])
    assert "wait for rank" not in headline([*in_the_barrier, *by_load])


def test_one_wake_ends_a_wait_that_sleeps_and_not_one_that_spins() -> None:
    assert rank_positions(waiting(0, wakes=1))[0].moved
    assert not rank_positions(waiting(0, wakes=1, ran=1.0))[0].moved


def test_a_variable_that_counts_is_motion() -> None:
    events = waiting(0)
    events[0] = replace(events[0], data=structs.replace(events[0].data, counted=True))
    assert rank_positions(events)[0].moved and motion(events) is not None


def test_a_collective_over_gloo_is_motion_wherever_a_rank_was_met() -> None:
    """Its main thread was asleep in each snapshot, as in a loop that waits for something."""
    sleeps = [rank(number, own(9), MAIN, native=[f"clock_nanosleep ({LIBC})"], wakes=150) for number in (0, 1)]
    events = [event for one in sleeps for event in one]
    assert motion(events) is None
    for number, shot in enumerate(events[0].data.snapshots):
        shot["gloo"] = 40 + number
    assert motion(events) is not None and diagnose(case_of(events)).exit_code == 0


@pytest.mark.parametrize(
    ("native", "met"), [(f"fsync ({LIBC})", waits.FILE), (f"clock_nanosleep ({LIBC})", waits.TIMER)]
)
def test_a_file_that_is_written_is_motion(native: str, met: str) -> None:
    writes = rank(0, own(9, "save"), MAIN, native=[native])
    assert (rank_positions(writes)[0].waits_for, rank_positions(writes)[0].moved) == (met, False)
    for number, shot in enumerate(writes[0].data.snapshots):
        shot["io"] = 65536 * number
    assert rank_positions(writes)[0].moved


def test_a_rank_that_works_may_still_come() -> None:
    """Its loop may be endless, or an evaluation: the others have waited for as long as it was looked at."""
    found = diagnose(case_of(waiting(0), waiting(1), rank(2, own(9), MAIN, ran=1.0)))
    first = found.findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "possible", (2,))
    assert first.say.endswith("ranks 0 and 1 wait in it for at least 3 s: it may still come.")
    dumped = diagnose(case_of(waiting(0), waiting(1), rank(2, own(9), MAIN, ran=1.0), [gap([2], [0, 1])]))
    assert [one.strength for one in dumped.findings if one.cause == "slow_rank"] == ["possible"]


ACCEPTS = ("/usr/lib/python3.11/socket.py", 294, "socket.accept")
GETS = ("/usr/lib/python3.11/queue.py", 171, "Queue.get")
SELECTS = ("/usr/lib/python3.11/selectors.py", 468, "EpollSelector.select")


@pytest.mark.parametrize("frame", [ACCEPTS, GETS, SELECTS], ids=["accept", "get", "select"])
def test_a_server_without_a_request_is_not_accused(frame: tuple[str, int, str]) -> None:
    serves = rank(0, frame, own(9, "serve"), MAIN, native=[f"accept4 ({LIBC})"])
    events = [*serves, *waiting(1), *waiting(2)]
    assert rank_positions(events)[0].waits_for == waits.REQUESTS
    for dumps in ([], [gap([0], [1, 2])]):
        found = diagnose(case_of(events, dumps))
        assert (found.findings, found.verdict) == ((), "unexplained")
    assert "a server that has nothing to do looks like this" in headline(events)


def test_a_program_that_is_awaited_is_no_request() -> None:
    communicates = ("/usr/lib/python3.11/subprocess.py", 2021, "Popen._communicate")
    events = rank(0, communicates, own(9), MAIN, native=[f"poll ({LIBC})"])
    assert rank_positions(events)[0].waits_for == waits.PROCESS


def test_the_line_of_code_outvotes_counts() -> None:
    """Rank 1 has launched fewer, and rank 0 more, as it left the path of the others; RAS and dumps only count."""
    barrier = ("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 5000, "barrier")
    left = waiting(1, 20, barrier, condition="rank == 1")
    first = diagnose(case_of(waiting(0), left, [gap([0], [1])])).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("rank_divergence", (1,))
    spins = [*rank(0, own(67), MAIN, native=SPINS, ran=1.0)]
    spins += rank(1, own(20), MAIN, native=SPINS, ran=1.0, condition="rank == 1")
    case = Case()
    case.events = [*spins, *ras({}, [0, 1])]
    first = diagnose(case).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("rank_divergence", (1,))
    assert first.say.endswith("rank 1 left the common path, inside `if rank == 1`.")


def test_nothing_timed_out_where_nothing_says_so(tmp_path: Path) -> None:
    """Dumps show who waits for whom, and not that anybody gave up."""
    case = Case()
    case.events = [gap([1], [0, 2])]
    (found,) = [one for one in diagnose(case).findings if one.cause == "slow_rank"]
    assert found.say == "Rank 1 had not entered collective 4 (all_reduce); ranks 0 and 2 waited in it."
    log = (
        "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4,"
        " OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
    says = [one.say for one in judged_log(tmp_path, log).findings if one.cause == "slow_rank"]
    assert says and all("timed out" in say for say in says)


STANDS = "    all_reduce (/env/torch/distributed/distributed_c10d.py:3252)"


def snapshots_of(*places: str, switches: tuple[int, ...] = (), counts: tuple[int, ...] = ()) -> Snapshots:
    """One rank at as many moments as there are places, a second apart."""
    taken = Snapshots({0: 1})
    for at, place in enumerate(places):
        woken = switches[at] if switches else 0
        taken.rows[0].append({"t": float(at), "switches": woken, "main": 0.0, "stack": place})
        taken.numbers[0].append([({"func": "step"}, {"i": counts[at] if counts else 0})])
    return taken


@pytest.mark.parametrize(
    ("taken", "stands"),
    [
        (snapshots_of(STANDS, STANDS), True),
        (snapshots_of(STANDS, "forward"), False),
        (snapshots_of("", ""), False),
        (snapshots_of(STANDS, STANDS, switches=(5, 6)), False),
        (snapshots_of(STANDS, STANDS, counts=(5, 6)), False),
        (snapshots_of("get (data.py:3)", "get (data.py:3)", switches=(5, 6)), True),
    ],
    ids=["still", "elsewhere", "not read", "woken", "counts", "its loader looks for data"],
)
def test_who_stands_still_is_watched_longer(taken: Snapshots, stands: bool) -> None:
    assert taken.standing() == [0] * stands


def test_ranks_in_one_line_of_a_program_are_not_divided_by_what_it_calls() -> None:
    """Tensor parallelism: one rank waits in its backward, the others in an operation of it."""
    backward = ("/env/lib/python3.11/site-packages/torch/_tensor.py", 623, "Tensor.backward")
    dispatch = ("/env/lib/python3.11/site-packages/torch/_ops.py", 840, "__torch_dispatch__")
    native = [f"pthread_cond_wait ({LIBC})", "c10d::Work::wait() (/lib/libtorch_cpu.so)"]
    calls = (backward, dispatch, dispatch)
    looks = [rank(number, call, own(33), MAIN, native=native) for number, call in enumerate(calls)]
    case = case_of(*looks)
    assert diagnose(case).findings == () and "All 3 ranks wait" in headline(case.events)


class Stalling:
    """A job of which a rank stalls for so many snapshots."""

    def __init__(self, shots: int) -> None:
        self.left, self.taken = shots, 0

    def standing(self) -> list[int]:
        return [0] if self.taken < self.left else []

    def take(self, until: float) -> None:
        self.taken += 1


@pytest.mark.parametrize(("stalls", "taken"), [(0, 0), (3, 3)])
def test_a_look_ends_as_soon_as_nobody_stalls(monkeypatch: pytest.MonkeyPatch, stalls: int, taken: int) -> None:
    monkeypatch.setattr(collect, "AGAIN", 0.01)
    job = Stalling(stalls)
    collect._watch_longer(job, time.monotonic() + 60)
    assert job.taken == taken


def test_a_look_that_has_no_time_left_is_not_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Stalling(1000)
    collect._watch_longer(job, time.monotonic() + collect.NATIVELY)
    assert job.taken == 0


def test_a_rank_that_writes_is_not_accused_though_it_is_a_call_behind() -> None:
    """A checkpoint that rank 0 writes for some seconds, again and again: each look meets it there."""
    writes = rank(0, own(9, "save"), MAIN, native=[f"clock_nanosleep ({LIBC})"])
    looks = [*writes, *waiting(1)]
    stands = diagnose(case_of(looks, ras({}, [0, 1])))
    assert [finding.cause for finding in stands.findings] == ["slow_rank"]
    for number, shot in enumerate(writes[0].data.snapshots):
        shot["io"] = 65536 * number
    found = diagnose(case_of(looks, ras({}, [0, 1])))
    assert found.findings == ()


@pytest.mark.parametrize(
    ("op", "state", "cause"),
    [("broadcast", "completed", "rank_divergence"), ("all_reduce", "completed", ""), ("broadcast", "started", "")],
    ids=["another call", "the same calls", "a call that is not done"],
)
def test_calls_that_differ_and_are_completed_are_told_of_a_job_that_goes_on(
    tmp_path: Path, op: str, state: str, cause: str
) -> None:
    """As a GAN whose ranks update in another order over NCCL, where small messages pair up."""
    ranks = {str(n): two_looks(n, 1001.0) for n in (0, 1)}
    looks = {"attached": 1, "host": "node-1", "expected": [0, 1], "ranks": ranks}
    (tmp_path / "attached.json").write_text(json.dumps(looks))
    ours = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    for number, second in enumerate(("all_reduce", op)):
        calls = [entry(1, time_created_ns=1), entry(2, second, time_created_ns=2, state=state)]
        calls += [entry(3, time_created_ns=int((1002.0 + number) * 1e9))]
        (tmp_path / f"fr_rank_{number}").write_bytes(pickle.dumps(dump(calls, ours), 2))
    case = Case()
    case.events = list(evidence.read([tmp_path]).events)
    found = diagnose(case).findings
    assert [one.cause for one in found] == [cause] * bool(cause)
    for one in found:
        assert "rank 1 called broadcast" in one.say and "goes on with wrong values" in one.say
