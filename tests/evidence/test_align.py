"""The first collective on which ranks disagree, from whatever tells it, and the clocks of their hosts."""

from __future__ import annotations

import pytest

from ncclkit.analysis.alignment import align, clocks, differing_calls
from ncclkit.analysis.communicators import communicators, rings, transports
from ncclkit.analysis.timeline import timelines
from ncclkit.causes.engine import diagnose
from ncclkit.core.model import Event
from tests.cases import case_of
from tests.evidence.jobs import COMM_ID, call, line, started, status, timeout
from tests.recordings import sample

GROUPS = pytest.mark.parametrize("pg", [None, "0(default_pg)"], ids=["torch 2.4", "torch 2.14"])


def only(found):
    (one,) = found
    return one


RUNS = {  # ground truth of the recordings: rank 2 (of eight: 5) in collective 12
    "hang": ("missing", (2,)),
    "rank_late": ("missing", (2,)),
    "rank_killed": ("missing", (2,)),
    "rank_raises": ("missing", (2,)),
    "segfault": ("missing", (2,)),
    "other_op": ("op", (2,)),
    "other_size": ("size", (2,)),
    "eight_ranks_late": ("missing", (5,)),
}


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_with_their_dumps(name):
    one = align(sample(name).events)[0]
    assert (one.desc, one.seq, one.what, one.minority) == ("default_pg", 12, *RUNS[name])
    assert set(one.majority).isdisjoint(one.minority) and one.evidence


@pytest.mark.parametrize("name", ["rank_late", "other_op", "other_size"])
def test_recorded_runs_without_dumps_name_the_same_rank(name):
    events = [event for event in sample(name).events if not event.kind.startswith("flight.")]
    one = only(align(events))
    assert (one.desc, one.seq, one.minority) == ("default_pg", 12, (2,))
    assert one.what == ("size" if name == "other_size" else "missing")  # a log names no operation that was completed


@pytest.mark.parametrize("name", ["healthy", "duplicate_gpu", "ifname_missing"])
def test_nothing_is_claimed_where_no_collective_failed(name):
    assert align(sample(name).events) == []


def test_ras_joins_by_hash():
    events = [event for event in sample("hang").events if event.kind in ("nccl.init", "ras.communicator")]
    one = only(align(events))
    assert (one.group, one.seq, one.what, one.majority, one.minority) == (
        "0x7c120c2fdde7853",
        7,
        "missing",
        (0, 1, 3),
        (2,),
    )


@GROUPS
def test_watchdogs_that_name_another_operation(read_text, pg):
    text = "".join(timeout(rank, 42, "ALLGATHER" if rank == 1 else "ALLREDUCE", pg=pg) for rank in range(4))
    one = only(align(read_text(text).events))
    assert (one.seq, one.what, one.majority, one.minority) == (42, "op", (0, 2, 3), (1,))
    assert "rank 1: all_gather" in one.summary


@GROUPS
def test_watchdogs_that_name_another_size(read_text, pg):
    text = "".join(timeout(rank, 42, numel=7 if rank == 3 else 1024, pg=pg) for rank in range(4))
    one = only(align(read_text(text).events))
    assert (one.what, one.minority) == ("size", (3,)) and "7 elements" in one.summary


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"op": "ALLGATHER"}, "rank_divergence"),
        ({"numel": 512}, "shape_mismatch"),
        ({"numel": 7}, "rank_divergence"),  # a flag beside a bucket of gradients
    ],
    ids=["operation", "size", "size of another call"],
)
def test_picture_and_verdict_read_one_comparison_of_watchdogs(read_text, odd, cause):
    """Of twenty ranks the last is the odd one: both name it, and both cite its line, which is the last of the log."""
    events = read_text("".join(timeout(rank, 42, **(odd if rank == 19 else {})) for rank in range(20))).events
    drawn, first = only(align(events)), diagnose(case_of(events)).findings[0]
    assert (first.cause, first.culprits["ranks"]) == (cause, (19,)) == (cause, drawn.minority)
    assert 19 in {e.rank for e in drawn.evidence} and 19 in {e.rank for e in first.evidence}


def test_sizes_that_may_differ_are_no_disagreement(read_text):
    text = "".join(timeout(rank, 42, "ALLTOALL_BASE", numel=rank) for rank in range(4))
    assert only(align(read_text(text).events)).what == "stuck"


def test_a_rank_whose_status_is_behind_is_missing(read_text):
    text = "".join(timeout(rank, 42) for rank in (0, 1, 3)) + status(2, 41, 41)
    one = only(align(read_text(text).events))
    assert (one.seq, one.what, one.minority) == (42, "missing", (2,)) and "41" in one.summary


def test_a_rank_that_left_its_watchdog_silent_is_missing(read_text):
    text = started("2.21.5", range(4), 4) + "".join(timeout(rank, 42) for rank in (0, 1, 3))
    one = only(align(read_text(text).events))
    assert (one.what, one.minority) == ("missing", (2,)) and "says nothing of it" in one.summary


def test_a_rank_without_any_line_is_said_to_be_without(read_text):
    text = started("2.21.5", (0, 1, 3), 4) + "".join(timeout(rank, 42) for rank in (0, 1, 3))
    assert "rank 2 left no line" in only(align(read_text(text).events)).summary


def test_one_speaker_among_many_accuses_nobody(read_text):
    assert align(read_text(started("2.21.5", range(4), 4) + timeout(0, 42)).events) == []


def test_ranks_that_wait_together_are_stuck(read_text):
    one = only(align(read_text("".join(timeout(rank, 42) for rank in range(4))).events))
    assert (one.what, one.majority, one.minority) == ("stuck", (0, 1, 2, 3), ())


def test_groups_are_compared_each_for_itself(read_text):
    """The tensor-parallel group of ranks 2 and 3 has another number; nobody is missing in it."""
    text = "".join(timeout(rank, 42) for rank in (0, 1)) + status(2, 41, 41) + status(3, 41, 41)
    text += "".join(timeout(rank, 9, pg="5(tp)") for rank in (2, 3))
    found = {one.desc: one for one in align(read_text(text).events)}
    assert (found["default_pg"].minority, found["tp"].what, found["tp"].seq) == ((2, 3), "stuck", 9)


def test_two_sides_of_a_pipeline_are_no_mismatch(read_text):
    assert align(read_text(timeout(0, 5, "SEND") + timeout(1, 5, "RECV")).events) == []


def test_a_fingerprint_mismatch(read_text):
    prints = [
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType={op}, TensorShape=[4], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions())"
        for rank, op in enumerate(("ALLREDUCE", "BROADCAST"))
    ]
    text = f"RuntimeError: Detected mismatch between collectives on ranks. {prints[0]}, but {prints[1]}."
    text += "Collectives differ in the following aspects: \t Op type: ALLREDUCE vs BROADCAST\n"
    one = only(align(read_text(text).events))
    assert (one.seq, one.what) == (7, "op") and "rank 1 broadcast" in one.summary


def test_a_desync_report_names_the_missing_ranks(read_text):
    text = (
        "To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t - [2] finished collective #41, but didn't join collective #42 (count from 1)\n"
        "\t - [0, 1, 3] joined but didn't finish collective #42 (count from 1)\n"
    )
    one = only(align(read_text(text).events))
    assert (one.seq, one.what, one.majority, one.minority) == (42, "missing", (0, 1, 3), (2,))


def test_a_monitored_barrier_names_the_missing_ranks(read_text):
    one = only(align(read_text("[Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 6000 ms\n").events))
    assert (one.what, one.minority, one.seq) == ("missing", (2, 3), -1)


VERSIONS = pytest.mark.parametrize("version", ["2.10.3", "2.21.5", "2.28.9"])


def calls(version, **odd):
    """Four ranks call AllReduce ten times; from 2.27 on opCount stands still on one node."""
    text = started(version, range(4), 4)
    for number in range(10):
        last = 0 if version >= "2.27" else number
        text += "".join(line(rank, call(rank, last=last)) for rank in range(4))
    return text


@VERSIONS
def test_equal_calls_are_no_disagreement(read_text, version):
    assert align(read_text(calls(version)).events) == []


@VERSIONS
@pytest.mark.parametrize(
    ("odd", "what"),
    [({"name": "AllGather"}, "op"), ({"count": 7}, "size"), ({"dtype": 9}, "dtype"), (None, "missing")],
    ids=["op", "size", "dtype", "missing"],
)
def test_the_eleventh_call_differs(read_text, version, odd, what):
    text = calls(version) + "".join(line(rank, call(rank)) for rank in (0, 1, 3))
    text += line(2, call(2, **odd)) if odd else ""
    one = only(align(read_text(text).events))
    assert one.group == (COMM_ID if version >= "2.16" else "4 ranks #1")
    assert (one.seq, one.what, one.majority, one.minority) == (11, what, (0, 1, 3), (2,))


def test_a_rank_that_called_more_than_the_others_is_the_odd_one(read_text):
    one = only(align(read_text(calls("2.28.9") + line(2, call(2, "Broadcast"))).events))
    assert (one.seq, one.what, one.minority) == (11, "missing", (2,)) and "broadcast" in one.summary


def test_ranks_that_are_not_equally_far_do_not_differ_in_the_operation(read_text):
    text = calls("2.28.9") + line(0, call(0)) + line(0, call(0, "AllGather")) + line(1, call(1))
    assert only(align(read_text(text).events)).what == "missing"


def test_lines_that_two_logs_lost_are_no_other_operation(read_text):
    """Ranks 2 and 3 show that both calls were made, so the logs of ranks 0 and 1 each lack one."""
    text = calls("2.28.9") + line(0, call(0)) + line(1, call(1, "AllGather"))
    text += "".join(line(rank, call(rank)) + line(rank, call(rank, "AllGather")) for rank in (2, 3))
    events = read_text(text).events
    assert only(align(events)).what == "missing" and differing_calls(case_of(events)) == []


def test_logs_that_begin_after_the_init_say_nothing_of_other_calls(read_text):
    text = "".join(f"[rank{r}]:{line(r, call(r, size=4, count=7 if r == 2 else 1024))}" for r in range(4))
    assert differing_calls(case_of(read_text(text).events)) == []


def test_coll_lines_alone_are_joined_by_the_size_of_the_job(read_text):
    text = "".join(f"[rank{r}]:{line(r, call(r, size=4, count=7 if r == 2 else 1024))}" for r in range(4))
    one = only(align(read_text(text).events))
    assert (one.seq, one.what, one.minority) == (1, "size", (2,))


# Clocks ---------------------------------------------------------------------------------------------------------------


def steps(host_offset, count=5):
    """Ranks 0-3 on two hosts say when they came through each init; host n1's clock is ahead."""
    text = ""
    for number in range(count):
        for rank in range(4):
            seconds = 10 * number + 0.001 * rank + (host_offset if rank > 1 else 0)
            stamp = f"[2026-11-21 01:{int(seconds // 60):02d}:{seconds % 60:06.3f}] "
            text += line(
                rank,
                f"comm 0x{number}{rank} rank {rank} nranks 4 cudaDev 0 busId 1000 commId 0xa{number} - Init COMPLETE",
                per_host=2,
                stamp=stamp,
            )
    return text


def test_clocks_of_two_hosts(read_text):
    reference, other = clocks(read_text(steps(2.5)).events)
    assert (reference.host, reference.offset, reference.shared) == ("n0", 0.0, 5)
    assert (other.host, other.shared) == ("n1", 5)
    assert other.offset == pytest.approx(2.502) and other.spread == pytest.approx(0, abs=1e-5)


def test_too_few_shared_events_claim_nothing(read_text):
    assert clocks(read_text(steps(2.5, count=2)).events) == []


def test_timeouts_serve_where_nothing_better_is_shared(read_text):
    text = started("2.21.5", range(4), 4, per_host=2)
    for seq in range(3):
        for rank in range(4):
            text += timeout(rank, seq, pg=f"{seq}(g{seq})", at=f"00:{10 * seq + 5 * (rank > 1):02d}:00.500000")
    assert [(clock.host, clock.offset) for clock in clocks(read_text(text).events)] == [("n0", 0.0), ("n1", 300.0)]


# Dumps: what their analysis may say beyond missing ranks --------------------------------------------------------------

GROUP = {"group": "0", "desc": "default_pg", "root": "", "holds": []}
STATES = {"0": "started", "1": "started", "2": "completed"}
FOUND = [
    (
        "flight.p2p",
        {"src": 0, "dst": 1, "sent": 3, "received": 2, "sizes": None, "waiting": [0], "lacking": [1]},
        (-1, "missing", (0,), (1,), "3 sends and 2 receives were posted"),
    ),
    (
        "flight.p2p",
        {"src": 0, "dst": 1, "sent": 3, "received": 3, "sizes": [8, 4], "waiting": [], "lacking": []},
        (-1, "size", (0,), (1,), "8 elements are sent, 4 expected"),
    ),
    (
        "flight.mismatch",
        {"seq": 7, "field": "splits", "op": "all_to_all", "majority": {"value": 12, "ranks": [0, 1, 2]}}
        | {"odd": [{"value": 11, "ranks": [1, 2]}], "pairs": [[1, 2, 4, 3]]},
        (7, "size", (0,), (1, 2), "12 elements are sent, 11 expected"),
    ),
    (
        "flight.stuck",
        {"seq": 7, "op": "broadcast", "ranks": [0, 1, 2], "states": STATES},
        (7, "stuck", (0, 1), (2,), "rank 2 finished it"),
    ),
    (
        "flight.missing",
        {"seq": 7, "op": "all_reduce", "missing": [], "waiting": [0], "no_dump": [], "overwritten": [1], "root": "5"},
        (7, "missing", (0,), (1,), "overwrote the record of it; it only waits for group 5"),
    ),
]


@pytest.mark.parametrize(("kind", "data", "expected"), FOUND)
def test_what_dumps_say(kind, data, expected):
    one = only(align([Event(kind, data=GROUP | data)]))
    assert (one.seq, one.what, one.majority, one.minority) == expected[:4] and expected[4] in one.summary


TORN = [
    ("nccl.init", {"phase": "done", "rank": None, "nranks": None, "comm": "0x1", "comm_id": None, "bus": None}),
    ("nccl.init", {"phase": "done", "rank": 9, "nranks": 4, "comm": "0x1", "comm_id": "0x2", "bus": None}),
    ("nccl.channel", {"src": None, "dst": 1, "transport": "SHM", "via": "SHM", "gdr": False, "channels": 1}),
    ("nccl.ring", {"channel": None, "order": [0, None, 1], "whole": False}),
    ("nccl.tree", {"trees": [{"channel": None, "rank": None, "children": [], "parent": None}]}),
    (
        "nccl.op",
        {"op": "AllReduce", "comm": "0x1", "count": None, "dtype": None, "root": None, "nranks": None, "last": 0},
    ),
    ("c10d.status", {"seq": None, "enqueued": None, "completed": None, "pg": "0", "desc": "", "pg_rank": None}),
]


@pytest.mark.parametrize(("kind", "data"), TORN)
def test_torn_numbers_are_passed_over(kind, data):
    events = [Event(kind, path="a", line=n, rank=rank, data=data) for n, rank in enumerate((0, 1, None))]
    assert align(events) == [] and clocks(events) == []
    assert communicators(events) == [] and transports(events) == {} and rings(events) == {}
    assert [story.end for story in timelines(case_of(events))][:2] == ["still running where its log ends"] * 2
