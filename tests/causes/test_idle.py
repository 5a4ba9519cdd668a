"""Whether a server is idle, by recorded looks: each that is has twins that look alike and are not."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis.idle import idle
from ncclkit.analysis.motion import headline
from ncclkit.analysis.waits import blockages
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from tests.causes.test_awaited import with_told
from tests.causes.test_motion import gap
from tests.causes.test_waits import LIBC, MAIN, TORCH, own, rank, waiting

LIB = "/usr/lib/python3.11"
GET = (f"{LIB}/multiprocessing/queues.py", 103, "Queue.get")
RECV = (f"{LIB}/multiprocessing/connection.py", 382, "Connection._recv")
SELECT = {"func": "EpollSelector.select", "file": f"{LIB}/selectors.py", "line": 468}
FRAME_GET = {"func": "Queue.get", "file": f"{LIB}/multiprocessing/queues.py", "line": 103}
ACCEPT = (f"{LIB}/socket.py", 294, "socket.accept")
BROADCAST = (f"{TORCH}/distributed/distributed_c10d.py", 2900, "broadcast")
LISTENS = {"ends": [{"kind": "socket", "state": "0A", "remote": ""}]}
READS = [f"__read ({LIBC})"]
SERVES = {"func": "main", "file": "/app/serve.py", "line": 5}
MAIN_LOOP = ("/env/lib/python3.11/site-packages/ray/_private/worker.py", 1069, "Worker.main_loop")
SHARED = ("/env/lib/python3.11/site-packages/vllm/distributed/shm_broadcast.py", 480, "MessageQueue.acquire_read")


def from_pipe(*writers: int) -> dict[str, Any]:
    return {"ends": [{"kind": "pipe", "does": "read", "others": [{"pid": pid} for pid in writers]}]}


def engine(pid: int = 50, **more: Any) -> dict[str, Any]:
    """An engine that waits for what its front end hands on."""
    told = {"pid": pid, "state": "S", "frames": [FRAME_GET, SERVES], "wait": from_pipe(40), "orphan": False}
    return told | {"listens": False, "ended": [], "threads": []} | more


def front(pid: int = 40, **more: Any) -> dict[str, Any]:
    """A front end that waits for clients."""
    return engine(pid, frames=[SELECT, SERVES], wait=LISTENS, listens=True) | more


def worker(number: int, *above: dict[str, Any], **more: Any) -> list[Event]:
    """One that waits for its engine in a pipe of its own."""
    told: dict[str, Any] = {"wait": from_pipe(50), "engines": list(above), "side": "process 50"} | more
    return with_told(rank(number, RECV, GET, own(9, "serve"), MAIN, native=READS), **told)


def events_of(*ranks: list[Event]) -> list[Event]:
    return [event for one in ranks for event in one]


def verdict_of(events: list[Event]) -> tuple[str, int, int]:
    case = Case()
    case.events = [*events, *blockages(events)]
    found = diagnose(case)
    return found.verdict, found.exit_code, len(found.findings)


ABOVE = (engine(), front())
TWO_RANKS = [*with_told(rank(0, ACCEPT, own(9, "serve"), MAIN, native=[f"accept4 ({LIBC})"]), wait=LISTENS),
             *waiting(1, 20, BROADCAST)]  # fmt: skip
IDLE = {
    "workers of an engine": events_of(worker(0, *ABOVE), worker(1, *ABOVE)),
    "a rank that accepts, and one that it hands requests to": TWO_RANKS,
    "dumps show the same": [*TWO_RANKS, gap([0], [1])],
    "an engine alone, which is its own front end": events_of(
        worker(0, front(50)), worker(1, front(50))
    ),
    "actors of Ray between two tasks": events_of(
        *(with_told(rank(number, MAIN_LOOP), side="Worker") for number in (0, 1))
    ),
    "workers of vLLM, which spin": events_of(
        *(with_told(rank(number, SHARED, ran=1.0, moved=False), engines=list(ABOVE)) for number in (0, 1))
    ),
    "a thread of uvicorn takes requests": events_of(
        with_told(rank(0, (f"{LIB}/queue.py", 171, "Queue.get"), own(9), MAIN), wait={"futex": "private"},
                  threads=[{"name": "Thread-1", "frames": [SELECT, {"func": "serve", "file": "/env/lib/python3.11/"
                            "site-packages/uvicorn/server.py", "line": 70}]}]),
        waiting(1, 20, BROADCAST),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDLE)
def test_a_server_that_waits_for_a_request_goes_on(name: str) -> None:
    events = IDLE[name]
    assert headline(events).startswith("The job goes on: it is idle and waits for a request (")
    assert verdict_of(events) == ("running", 0, 0)


def workers_with(**more: Any) -> list[Event]:
    return events_of(worker(0, *ABOVE), worker(1, *ABOVE, **more))


BUSY = {"name": "uploader", "frames": [{"func": "upload", "file": "/app/train.py", "line": 44}]}
REDUCES = {"name": "pool", "frames": [{"func": "all_reduce", "file": f"{TORCH}/distributed/distributed_c10d.py", "line": 3}]}
NOT_IDLE = {
    "its front end died": (events_of(*(worker(n, engine(orphan=True)) for n in (0, 1))), "their engine, has ended"),
    "its engine died": (events_of(*(worker(n, orphan=True) for n in (0, 1))), "no request can reach it"),
    "a worker died": (events_of(*(worker(n, engine(ended=[77]), front()) for n in (0, 2))), "(process 77)"),
    "one worker is behind": (events_of(worker(0, *ABOVE), waiting(1)), "rank 1 waits for something else"),
    "one worker is elsewhere": (events_of(worker(0, *ABOVE), rank(1, own(9), MAIN, native=[f"clock_nanosleep ({LIBC})"])),
                                "rank 1 waits for something else"),
    "an answer is lost": (events_of(*(worker(n, engine(wait=from_pipe(60, 61)), front()) for n in (0, 1))),
                          "the front end, has no end of the pipe"),
    "its engine reads what workers answer": (
        events_of(*(worker(n, engine(frames=[{"func": "dequeue", "file": "/env/vllm/shm_broadcast.py", "line": 3}],
                                     wait={}), front()) for n in (0, 1))), "waits for an answer of its workers"),
    "its engine works": (events_of(*(worker(n, engine(frames=[SERVES]), front()) for n in (0, 1))),
                         "waits for no request, but is at serve.py:5"),
    "its engine was not read": (events_of(*(worker(n, engine(frames=[]), front()) for n in (0, 1))), "could not be read"),
    "its front end is stopped": (events_of(*(worker(n, engine(), front(state="T")) for n in (0, 1))), "is stopped"),
    "nobody can connect": (events_of(*(worker(n, engine(), front(listens=False)) for n in (0, 1))),
                           "takes no connections"),
    "its pipe is another one's": (workers_with(wait=from_pipe(99)), "has no end of the pipe"),
    "nothing is known above": (workers_with(engines=[]), "nothing shows who could hand rank 1 one"),
    "a thread of it works": (workers_with(threads=[BUSY]), "thread uploader"),
    "a thread of it is in a collective": (workers_with(threads=[REDUCES]), "thread pool"),
    "ranks wait in an all_reduce": ([*TWO_RANKS[:2], *waiting(1)], "rank 1 waits for something else"),
    "a rank is gone": ([*TWO_RANKS, Event("attach.rank", "gone", "a", rank=2, data={"gone": True})], "rank 2 has no process"),
    "dumps show another one behind": ([*TWO_RANKS, gap([1], [0])], "rank 1 is behind"),
    "a rank accepts nobody": ([*rank(0, ACCEPT, own(9), MAIN, native=[f"accept4 ({LIBC})"]), *waiting(1, 20, BROADCAST)],
                              "nothing shows who"),
    "actors of Ray whose raylet died": (
        events_of(*(with_told(rank(n, MAIN_LOOP), side="Worker", orphan=True) for n in (0, 1))), "has ended"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_IDLE)
def test_what_only_looks_idle_is_not_called_so(name: str) -> None:
    events, hindrance = NOT_IDLE[name]
    found = idle(events)
    assert found is not None and hindrance in found.hindrance
    assert "is idle and" not in headline(events)
    verdict, status, _ = verdict_of(events)
    assert (verdict in ("unexplained", "found"), status) == (True, 1)


def test_workers_that_spin_for_an_engine_that_died_do_not_go_on() -> None:
    """They move all the while; what they do is wait."""
    looks = [with_told(rank(n, SHARED, (SHARED[0], 500, "dequeue"), ran=1.0, moved=True), orphan=True) for n in (0, 1)]
    events = events_of(*looks)
    assert "goes on" not in headline(events) and verdict_of(events)[1] == 1


# ---------------------------------------------------------------- sides of one job


def trainer(*frames: Any, **more: Any) -> list[Event]:
    return with_told(rank(0, *frames, own(7, "train"), MAIN, native=[f"clock_nanosleep ({LIBC})"]), side="process 40", **more)


def of_engine(number: int, line: int = 20, call: Any = BROADCAST) -> list[Event]:
    return with_told(waiting(number, line, call), side="process 50")


TRAINER_WAITS = with_told(waiting(0, 30, BROADCAST), side="process 40")
SECOND_WAITS = with_told(waiting(3, 30, BROADCAST), side="process 40")
MISSING = {
    "the trainer": (events_of(trainer(), of_engine(1), of_engine(2)), [0]),
    "the engine": (events_of(TRAINER_WAITS, worker(1, *ABOVE), worker(2, *ABOVE)), [1, 2]),
    "one worker, over gloo": (events_of(TRAINER_WAITS, worker(1), with_told(rank(2, own(9), MAIN), side="process 50")), [2]),
    "one worker": (events_of(TRAINER_WAITS, of_engine(1), worker(2, *ABOVE)), [2]),
    "one of the trainers, from a call of their own": (
        events_of(TRAINER_WAITS, with_told(rank(3, own(9), MAIN), side="process 40"), worker(1), worker(2)), [3]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_the_side_that_has_not_entered_is_named(name: str) -> None:
    events, missing = MISSING[name]
    assert [event.data.missing for event in blockages(events)] == [missing]
    case = Case()
    case.events = [*events, *blockages(events)]
    first = diagnose(case).findings[0]
    assert (first.cause, list(first.culprits["ranks"])) == ("slow_rank", missing)


NOBODY = {
    "a collective of the workers alone": events_of(trainer(), *(of_engine(n, call=waits) for n, waits in (
        (1, (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce")),
        (2, (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"))))),
    "trainers in a broadcast of their own, beside an engine without a request": events_of(
        TRAINER_WAITS, SECOND_WAITS, worker(1, *ABOVE), worker(2, *ABOVE)),
    "each side in a call of its own": events_of(
        with_told(waiting(0), side="process 40"), of_engine(1), of_engine(2)),
    "all of them in it": events_of(TRAINER_WAITS, of_engine(1), of_engine(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOBODY)
def test_a_call_that_need_not_be_of_both_sides_accuses_neither(name: str) -> None:
    events = NOBODY[name]
    assert blockages(events) == [] and verdict_of(events)[2] == 0
    assert "is idle and" not in headline(events)
