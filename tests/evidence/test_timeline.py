"""A story per rank: what it reached, what went wrong first, how it ended."""

from __future__ import annotations

import json

import pytest

from ncclkit import evidence
from ncclkit.analysis import rank_states
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.timeline import KEPT, RankProgress, abnormal, reported_by_others, timelines
from ncclkit.core.model import Event, fields_of
from ncclkit.evidence.samples import list_samples
from tests.cases import case_of
from tests.evidence.jobs import COMM_ID, call, init, line, started, status, timeout
from tests.recordings import sample

SUMMARY = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})\n"
TRACE = "".join(
    f"[rank{{rank}}]: {text}\n"
    for text in ("Traceback (most recent call last):", '  File "train.py", line 8, in go', "{error}")
)


@pytest.fixture
def timelines_of(read_text):
    """The stories of a text, by rank."""
    return lambda text, **known: {story.rank: story for story in timelines(case_of(read_text(text, **known).events))}


WAITED = "waited in all_reduce 12 of default_pg"
ENDS = {  # what the recordings are known to hold, of rank 2 (of eight: 5) and of rank 0
    "duplicate_gpu": ("raised DistBackendError in the init of a communicator of 4 ranks, then exited with 1",) * 2,
    "hang": ("was in train.py:19 (skip_batches), then ended", "waited in all_reduce 12 of default_pg, then ended"),
    "healthy": ("finished", "finished"),
    "ifname_missing": ("was in train.py:129 (_train), then ended by", "raised DistBackendError, then exited with 1"),
    "other_op": ("waited in all_reduce 13 of default_pg", "waited in all_reduce 12 of default_pg"),
    "other_size": ("waited in all_reduce 12 of default_pg", "waited in all_reduce 12 of default_pg"),
    "rank_killed": ("came to step 3, then killed by SIGKILL", "waited in all_reduce 12 of default_pg, then ended by"),
    "rank_late": (
        "was in train.py:19 (skip_batches), then ended",
        "waited in all_reduce 12 of default_pg, then raised",
    ),
    "rank_raises": ("raised ValueError, then exited with 1", "waited in all_reduce 12 of default_pg, then ended by"),
    "segfault": ("was in train.py:50 (segfault), then killed by SIGSEGV", "waited in all_reduce 12 of default_pg"),
    "eight_ranks_late": (
        "was in train.py:18 (skip_batches), then",
        "waited in all_reduce 12 of default_pg, then raised",
    ),
    "bad_value": ("raised DistBackendError in the init of a communicator of 4 ranks, then exited with 1",) * 2,
    "cuda_assert": ("waited in collective 4 of default_pg, then raised AcceleratorError", WAITED),
    "exchange_uneven": ("waited in all_to_all 12 of default_pg", "waited in all_reduce 13 of default_pg"),
    "few_files": ("raised DistBackendError in the init", "waited in the init of a communicator of 4 ranks"),
    "gpu_memory_full": ("raised OutOfMemoryError, then exited with 1", WAITED),
    "groups_swapped": ("was in breaks.py:109 (groups_swapped), then ended by",) * 2,
    "little_memory": ("raised RuntimeError, then exited with 1", "waited in the init of a communicator of 4 ranks"),
    "other_dtype": (WAITED + ", then killed by SIGABRT", WAITED + ", then raised DistBackendError"),
    "p2p_off": ("finished", "finished"),
    "uneven_data": ("finished", WAITED + ", then killed by SIGABRT"),
    "unpaired_recv": ("was in breaks.py:78 (unpaired_recv), then ended by", WAITED),
    "world_larger": ("waited in the init of a communicator of 5", "waited in the init of a communicator of 4"),
    "wrong_device": ("raised DistBackendError in the init of a communicator of 4 ranks, then exited with 1",) * 2,
}
SIZES = {"eight_ranks_late": 8, "world_larger": 5}
"""How many ranks somebody was told of, where it is not four."""


@pytest.mark.parametrize("name", ENDS)
def test_recorded_runs(name):
    case = sample(name)
    told = timelines(case)
    odd, other = (5, 0) if name == "eight_ranks_late" else (2, 0)
    assert [story.rank for story in told] == list(range(SIZES.get(name, 4)))
    told = [story for story in told if story.end != "silent"]
    assert (told[odd].end.startswith(ENDS[name][0]), told[other].end.startswith(ENDS[name][1])) == (True, True)


@pytest.mark.parametrize("name", sorted({*list_samples()} - {*ENDS}))
def test_every_rank_of_the_other_recordings_has_a_story(name):
    case = sample(name)
    told = timelines(case)
    assert {story.rank for story in told} >= set(range(case.about["ranks"]))


@pytest.mark.parametrize("name", ["hang", "rank_killed", "rank_raises", "rank_late"])
def test_the_late_rank_reached_one_collective_less(name):
    reached = {story.rank: story.progress for story in timelines(sample(name))}
    assert all(reached[rank][0].waits == 12 and reached[rank][0].completed == 11 for rank in (0, 1, 3))
    assert not reached[2] or (reached[2][0].enqueued, reached[2][0].waits) == (11, None)


def test_ranks_of_which_nothing_was_left_are_silent(timelines_of):
    told = timelines_of(started("2.21.5", (0, 1, 3), 4))
    assert list(told) == [0, 1, 2, 3]
    assert (told[2].end, told[2].at) == ("silent", ())
    assert told[0].end == "still running where its log ends"


def test_a_log_without_events_is_not_silence(tmp_path):
    (tmp_path / "rank0.log").write_text(started("2.21.5", (0,), 2))
    (tmp_path / "rank1.log").write_text("training on\n")
    reading = evidence.read([tmp_path])
    assert timelines(case_of(reading.events, reading.inputs))[1].end == "left a log in which nothing stands out"


def test_an_init_that_never_ended(timelines_of):
    start = init("2.21.5", 1, 4, phase="START")
    told = timelines_of(started("2.21.5", (0,), 4) + line(1, start))
    assert told[1].end == "waits in the init of a communicator of 4 ranks"


EXITS = [
    (SUMMARY.format(rank=1, code=-9, pid=1001), "killed by SIGKILL"),
    (SUMMARY.format(rank=1, code=-11, pid=1001), "killed by SIGSEGV"),
    (SUMMARY.format(rank=1, code=3, pid=1001), "exited with 3"),
    (TRACE.format(rank=1, error="ValueError: no"), "raised ValueError"),
    (
        TRACE.format(rank=1, error="ValueError: no") + SUMMARY.format(rank=1, code=1, pid=1001),
        "raised ValueError, then ",
    ),
    ("srun: error: n0: task 1: Killed\n", "killed by SIGKILL"),
    ("srun: error: n0: tasks 0-1: Exited with exit code 7\n", "exited with 7"),
    ("W1121 00:00:00.0 7 api.py:1] Sending process 1001 closing signal SIGTERM\n", "ended by the launcher (SIGTERM)"),
    (timeout(1, 42), "waits in all_reduce 42 of default_pg"),
    (timeout(1, 42, "_ALLGATHER_BASE", pg="3(dp)") + status(1, 50, 41, pg="3(dp)"), "waits in all_gather 42 of dp"),
    (timeout(1, 42) + SUMMARY.format(rank=1, code=-6, pid=1001), "waited in all_reduce 42 of default_pg, then killed"),
]


@pytest.mark.parametrize(("text", "end"), EXITS, ids=[end for _, end in EXITS])
def test_ends(timelines_of, text, end):
    assert timelines_of(started("2.21.5", range(2), 2) + text)[1].end.startswith(end)


def test_a_picture_says_killed_of_whom_a_verdict_says_so(read_text):
    """A rank that the launcher had told to stop, and then killed, is in both a victim of the launcher."""
    stop = "W1121 00:00:00.0 7 api.py:1] Sending process 1001 closing signal SIGTERM\n"
    killed = SUMMARY.format(rank=0, code=-9, pid=1000) + SUMMARY.format(rank=1, code=-9, pid=1001)
    case = case_of(read_text(started("2.21.5", range(2), 2) + stop + killed).events)
    assert [story.end for story in timelines(case)] == ["killed by SIGKILL", "ended by the launcher (SIGKILL)"]
    assert list(rank_states.rank_states(case).killed) == [0]


def test_the_kernel_says_why_a_rank_was_killed(timelines_of):
    text = started("2.21.5", range(2), 2) + SUMMARY.format(rank=1, code=-9, pid=1001)
    text += "[12.5] Out of memory: Killed process 1001 (python) total-vm:1kB, anon-rss:1kB\n"
    assert timelines_of(text)[1].end == "killed by SIGKILL (out of memory)"


GROUPS = [
    (status(1, 42, 41), RankProgress("0", "default_pg", "", 42, None, 41)),
    (timeout(1, 42) + status(1, 50, 41), RankProgress("0", "default_pg", "ALLREDUCE", 50, None, 41)),
    (timeout(1, 42, pg=None) + status(1, 42, 41), RankProgress("0", "default_pg", "ALLREDUCE", 42, None, 41)),
    (timeout(1, 42, pg=None), RankProgress("", "", "ALLREDUCE", 42, None, 41)),
    (status(1, 0, -1), RankProgress("0", "default_pg", "", 0, None, 0)),
    (status(1, 18446744073709551615, -1), RankProgress("0", "default_pg", "", None, None, 0)),
]


@pytest.mark.parametrize(("text", "reached"), GROUPS)
def test_what_a_rank_reached(timelines_of, text, reached):
    assert timelines_of(text)[1].progress == (reached,)


def test_calls_are_counted_per_communicator_and_process(timelines_of):
    text = (
        started("2.28.9", range(2), 2) + "".join(line(1, call(1, size=2)) for _ in range(5)) + line(1, call(1, "Send"))
    )
    assert timelines_of(text)[1].progress == (RankProgress(COMM_ID, "2 ranks", "AllReduce", 5, None, None),)


def test_the_first_abnormal_line_is_the_rank_s_own(timelines_of):
    text = "W1121 00:00:00.000000 7 api.py:1] Sending process 1001 closing signal SIGTERM\n"
    text += started("2.21.5", range(2), 2) + TRACE.format(rank=1, error="ValueError: no") + timeout(1, 42)
    assert timelines_of(text)[1].abnormal.kind == "python.exception" and timelines_of(text)[0].abnormal is None


def test_lines_keep_their_order_where_stamps_fall_back():
    """torch reads seconds and fraction one after the other: 09.93 is followed by 09.01, meaning 10.01."""
    stamps = [5.0, 9.93, 9.01, None, 10.5]
    events = [Event("c10d.timeout", path="a", line=number, time=time) for number, time in enumerate(stamps)]
    other = Event("c10d.timeout", path="b", line=1, time=7.0)
    assert [(e.path, e.line) for e in in_order([*reversed(events), other])] == [
        ("a", 0), ("b", 1), ("a", 1), ("a", 2), ("a", 3), ("a", 4)
    ]  # fmt: skip


def test_a_story_keeps_its_abnormal_events_first():
    quiet = [Event("nccl.info", path="a", line=number, rank=0, data={"message": str(number)}) for number in range(900)]
    trouble = [Event("nccl.warn", path="a", line=450, rank=0, data={"message": "", "family": "other"})]
    (story,) = timelines(case_of([*quiet[:450], *trouble, *quiet[450:]]))
    assert len(story.at) == KEPT and trouble[0] in story.at and quiet[0] in story.at and quiet[-1] in story.at


def test_kinds_are_abnormal_or_not_but_no_kind_that_a_healthy_run_holds():
    case = sample("healthy")
    assert {event.kind for event in case.events if abnormal(event)} == set()
    assert all(not reported_by_others(event) for event in case.events if event.kind.startswith("nccl."))


def test_a_claimed_size_does_not_fill_the_memory(read_text):
    text = line(0, "comm 0x5 rank 0 nranks 900000000 cudaDev 0 busId 1000 - Init COMPLETE")
    assert len(timelines(case_of(read_text(text).events))) <= 1 << 16


def test_stories_survive_the_trip_through_a_case_file():
    """Events that were saved hold lists and string keys; a dump read back tells the same."""
    events = sample("hang").events
    back = [Event(**{**vars_of(event), "data": json.loads(json.dumps(fields_of(event)))}) for event in events]
    assert [story.end for story in timelines(case_of(back))] == [story.end for story in timelines(case_of(events))]


def vars_of(event):
    return {name: getattr(event, name) for name in Event.__slots__}
