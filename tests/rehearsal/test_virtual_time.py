"""Sleep is skipped where nothing else can happen, and nowhere else."""

import pickle
import threading
import time

import pytest

from ncclkit.agent.rehearsal.quiet_rank import is_quiet
from ncclkit.agent.rehearsal.skips import AGAIN, SleepWatch
from ncclkit.agent.rehearsal.virtual_time import RankSleepers, SharedClock
from tests.rehearsal.rehearsed import lines_of
from tests.rehearsal.warm import verdicts_of

pytestmark = pytest.mark.timeout(600)
SCRIPT = "sleeps.py"
SLEEP = {
    "long": 2400,
    "shorter": 1200,
    "in_order": 400,
    "with_heartbeat": 2400,
    "with_executor": 2400,
    "polls_sleeper": 60,
}
"""Way of a script that agrees → seconds that are skipped."""
AT_WORK = ("polls_worker", "polls_thread", "polls_timed_wait", "polls_child")
"""Ways in which one rank polls and something is at work: nothing may be skipped."""
HANGS = {"leaves_late": "left"}
UNKNOWN = ("never", "all_never")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Way → the verdict, each in some seconds of real time."""
    folder = tmp_path_factory.mktemp("sleeps")
    cases = [*SLEEP, *AT_WORK, *HANGS, *UNKNOWN]
    found = verdicts_of(folder, SCRIPT, cases, job_timeout=1800.0, timeout=100.0)
    found["order"] = (folder / "order").read_text().split()
    return found


@pytest.mark.parametrize("way", SLEEP)
def test_sleep_of_minutes_is_skipped(answers, way):
    answer = answers[way]
    assert answer["kind"] == "agree", answer
    skipped = answer["figures"]["skipped"]
    assert SLEEP[way] - 5 < skipped <= SLEEP[way], skipped
    assert answer["figures"]["seconds"] < 100


def test_who_sleeps_less_goes_on_first_and_all_clocks_agree(answers):
    assert answers["order"] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("way", AT_WORK)
def test_a_poll_does_not_run_ahead_of_who_works(answers, way):
    answer = answers[way]
    assert answer["kind"] == "agree", answer
    # the rest of its last sleep, in which all others wait for it
    assert answer["figures"]["skipped"] < 1


def test_a_wait_behind_sleep_is_held_against_the_limit_of_the_job(answers):
    (note,) = answers["long"]["notes"]
    line = lines_of(SCRIPT, "dist.all_reduce(torch.ones(1))")[0]
    assert f"{SCRIPT}:{line}, until rank 0 came" in note and "limit is 1800 s" in note
    assert answers["shorter"]["notes"] == []


def test_a_rank_that_leaves_after_its_sleep_is_named(answers):
    answer = answers["leaves_late"]
    assert (answer["kind"], answer["ranks"]) == ("left", [1]), answer


@pytest.mark.parametrize("way", UNKNOWN)
def test_who_polls_for_ever_is_not_called_hung(answers, way):
    answer = answers[way]
    assert (answer["kind"], answer["why"]) == ("unknown", "asleep"), answer
    assert 0 in answer["ranks"]


def test_a_call_that_waits_for_who_polls_for_ever_has_exceeded_the_limit(answers):
    (note,) = answers["never"]["notes"]
    assert "not all had come when the rehearsal ended" in note
    assert answers["all_never"]["notes"] == []


# ---------------------------------------------------------------- who is asked, and when


def watch_of(*until: float) -> SleepWatch:
    """A watch of ranks of which each sleeps until then."""
    watch = SleepWatch()
    for rank, end in enumerate(until):
        watch.begin_sleep(rank, 7, end)
    return watch


def test_the_clock_goes_to_the_first_sleeper_and_no_further():
    watch = watch_of(50.0, 40.0)
    assert watch.ranks_to_ask([0, 1, 2], [2], 10.0) == [0, 1, 2]
    assert watch.add_answer(0, 1, True, 11.0) == 0
    assert watch.add_answer(2, 1, True, 11.0) == 0
    assert watch.add_answer(1, 1, True, 12.0) == 28.0
    # an answer counts once
    assert watch.add_answer(1, 1, True, 12.0) == 0


def test_as_long_as_a_rank_runs_nobody_is_asked():
    watch = watch_of(50.0)
    assert watch.ranks_to_ask([0, 1], [], 10.0) == []
    assert watch.ranks_to_ask([0, 1], [1], 10.0) == [0, 1]
    # and nobody twice at one time
    assert watch.ranks_to_ask([0, 1], [1], 10.0) == []


def test_who_was_at_work_is_asked_again_later():
    watch = watch_of(50.0, 50.0)
    watch.ranks_to_ask([0, 1], [], 10.0)
    watch.add_answer(0, 1, False, 10.0)
    assert watch.add_answer(1, 1, True, 10.0) == 0
    assert watch.ranks_to_ask([0, 1], [], 10.0) == []
    assert watch.ranks_to_ask([0, 1], [], 10.0 + AGAIN) == [0, 1]


@pytest.mark.parametrize(
    "happens",
    [
        lambda watch: watch.end_round(),
        lambda watch: watch.begin_sleep(1, 8, 30.0),
        lambda watch: watch.end_sleep(1, 7),
        lambda watch: watch.end_rank(1),
    ],
)
def test_a_word_of_anybody_before_the_last_answer_ends_the_round(happens):
    watch = watch_of(50.0, 50.0)
    watch.ranks_to_ask([0, 1], [], 10.0)
    watch.add_answer(0, 1, True, 10.0)
    happens(watch)
    assert watch.add_answer(1, 1, True, 10.0) == 0


def test_whose_time_has_come_is_at_work_already():
    watch = watch_of(50.0, 10.3)
    watch.ranks_to_ask([0, 1], [], 10.0)
    watch.add_answer(0, 1, True, 10.1)
    assert watch.add_answer(1, 1, True, 10.4) == 0
    assert watch.ranks_to_ask([0, 1], [], 10.4) == []


# ---------------------------------------------------------------- in a rank


def test_a_short_sleep_says_nothing_and_a_long_one_ends_when_the_clock_was_put_forward():
    clock = SharedClock()
    told = []
    asleep = threading.Event()

    def tell(message):
        told.append(message)
        asleep.set()

    sleepers = RankSleepers(clock, tell)
    sleepers.sleep(0.01)
    assert told == []
    thread = threading.Thread(target=sleepers.sleep, args=(3600,))
    thread.start()
    assert asleep.wait(60)
    assert sleepers.is_asleep(thread.ident)
    clock.skip(3600)
    sleepers.wake_all()
    thread.join(60)
    assert not thread.is_alive() and not sleepers.is_asleep(thread.ident)
    assert [list(message)[0] for message in told] == ["sleep", "awake"]


@pytest.mark.parametrize("wrong", ["1", None, -1, float("nan")])
def test_what_no_sleep_takes_is_refused_as_ever(wrong):
    sleepers = RankSleepers(SharedClock(), print)
    with pytest.raises((TypeError, ValueError)):
        sleepers.sleep(wrong)


def test_mapped_functions_are_pickled_as_those_of_time(monkeypatch):
    from ncclkit.agent.rehearsal import virtual_time

    for name in ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"):
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr(time, "perf_counter_ns", time.perf_counter_ns)
    clock = SharedClock()
    virtual_time.map_clocks(clock, RankSleepers(clock, print))
    before = time.time()
    clock.skip(100)
    assert time.time() - before >= 100
    # it refuses a function that is not found under its name
    assert b"sleep" in pickle.dumps(time.sleep)


def test_a_thread_that_may_go_on_by_itself_is_at_work():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(60,))
    thread.start()
    try:
        assert not is_quiet(lambda ident: ident != thread.ident)
        assert not is_quiet(lambda ident: False)
    finally:
        release.set()
        thread.join(60)
