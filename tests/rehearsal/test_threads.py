"""Scripts of which several threads communicate, in real ranks."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ncclkit
from ncclkit.agent.rehearsal.idle_threads import without_work
from ncclkit.rehearsal.function import RanksDisagree
from tests.rehearsal import functions
from tests.rehearsal.rehearsed import SCRIPTS, rehearse_words

STAYS = ("executor", "queue")


@pytest.mark.parametrize("stays", STAYS)
def test_a_thread_that_stays_for_more_work_hides_no_deadlock(stays):
    with pytest.raises(RanksDisagree, match="would hang"):
        ncclkit.rehearse(
            functions.save_in_thread,
            ranks=2,
            values={"stays": stays, "crossed": True},
        )


@pytest.mark.parametrize("stays", STAYS)
def test_its_twin_agrees(stays):
    values = {"stays": stays, "crossed": False}
    assert ncclkit.rehearse(functions.save_in_thread, ranks=2, values=values).kind == "agree"


def test_who_waits_for_the_result_of_a_thread_hides_no_deadlock():
    with pytest.raises(RanksDisagree, match="would hang"):
        ncclkit.rehearse(functions.save_beside, ranks=2, values={"waits": True})
    rehearsed = ncclkit.rehearse(functions.save_beside, ranks=2, values={"waits": False})
    assert rehearsed.kind == "agree"


@pytest.mark.parametrize(
    ("runs", "deadline", "is_idle"),
    [
        (True, None, True),
        # what is still queued may be run by anybody
        (False, None, False),
        (True, 60, False),
    ],
)
def test_who_waits_for_a_result_is_idle_while_a_known_thread_runs_it(runs, deadline, is_idle):
    started = threading.Event()
    release = threading.Event()

    def work() -> None:
        started.set()
        release.wait(60)

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as asking:
        running = executor.submit(work)
        queued = executor.submit(int)
        started.wait(60)
        awaited = running if runs else queued
        asking.submit(awaited.result, deadline)
        (asker,) = asking._threads
        threads = [*executor._threads, asker]
        try:
            # it may not have come to its wait yet
            until = time.monotonic() + (30 if is_idle else 1)
            found: list[threading.Thread] = []
            while not found and time.monotonic() < until:
                found = without_work(threads)
        finally:
            release.set()
        assert found == ([asker] if is_idle else [])


def test_a_rank_has_not_ended_before_its_threads():
    rehearsed = ncclkit.rehearse(functions.save_late, ranks=2, values={"seconds": 1.0})
    # to make the ranks and the group are two more calls
    assert (rehearsed.kind, rehearsed.figures["calls"]) == ("agree", 4)


def test_only_a_thread_without_work_is_idle():
    started = threading.Event()
    release = threading.Event()
    tasks: queue.Queue[None] = queue.Queue()

    def work() -> None:
        started.set()
        release.wait()

    with ThreadPoolExecutor(1) as idle, ThreadPoolExecutor(2) as busy:
        idle.submit(int).result()
        busy.submit(work)
        busy.submit(tasks.get, timeout=60)
        started.wait()
        threads = [*idle._threads, *busy._threads]
        until = time.monotonic() + 30
        found: list[threading.Thread] = []
        while not found and time.monotonic() < until:
            found = without_work(threads)
        release.set()
        tasks.put(None)
        assert found == list(idle._threads)


@pytest.mark.parametrize(("words", "status"), [(["more"], 1), ([], 0), (["kernel"], 2)])
def test_a_thread_has_gpus_too_and_who_joins_it_hides_no_hang(tmp_path, words, status):
    """Of a thread that ended by what cannot be rehearsed the calls are missing: nobody agrees."""
    script = str(SCRIPTS / "gpu_thread.py")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "3", script, *words]
    answer = rehearse_words(tmp_path, command, "--ranks", "3", "--steps", "7")
    assert answer["exit"] == status, answer["sentence"]
    if status == 1:
        assert (
            "rank 1: all_reduce" in answer["sentence"] and "gpu_thread.py:12" in answer["sentence"]
        )
        assert "--steps 7" in answer["again"]
