"""Flight Recorder beyond one group of collectives: ring buffers, sub-groups, cascades, pairs, splits, lateness."""

from __future__ import annotations

import json
import pickle

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from tests.evidence.test_flight import ALL, dump, entry, waiting


def config(**groups):
    return {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in groups.items()}


def ring(entries, first):
    """Entries of a buffer that has dropped the ones before record `first`."""
    return [item | {"record_id": first + place} for place, item in enumerate(entries)]


def read(folder, dumps, name="nccl_trace_rank_{}"):
    folder.mkdir(exist_ok=True)
    for rank, value in dumps.items():
        (folder / name.format(rank)).write_bytes(pickle.dumps(value, 2))
    return [
        event
        for event in evidence.read([folder]).events
        if event.kind.startswith("flight.") and event.kind != "flight.dump"
    ]


def only(events, kind):
    assert [event.kind for event in events] == [kind]
    return events[0].data


# ring buffers


def test_what_was_overwritten_is_not_missing(tmp_path):
    """Rank 1 recorded more in between; its oldest entry is collective 6."""
    dumps = {0: dump([entry(n) for n in range(1, 11)]), 1: dump(ring([entry(n) for n in range(6, 11)], 100))}
    assert (
        read(
            tmp_path,
            {rank: value | {"pg_config": config(**{"0": ("default_pg", [0, 1])})} for rank, value in dumps.items()},
        )
        == []
    )


@pytest.mark.parametrize(("oldest", "missing", "lost"), [(50, [], [1]), (5, [1], [])])
def test_a_group_of_which_the_buffer_holds_nothing(tmp_path, oldest, missing, lost):
    """Rank 0 waits in its first call of "tp", made at 20 s.  Rank 1's buffer begins after that, or well before."""
    groups = config(**{"0": ("default_pg", [0, 1]), "1": ("tp", [0, 1])})
    tp = waiting(1, group=("1", "tp"), time_created_ns=20)
    old = ring([entry(n, time_created_ns=oldest + n) for n in range(6, 9)], 100)
    dumps = {0: dump([*[entry(n) for n in range(6, 9)], tp], groups), 1: dump(old, groups)}
    data = only(read(tmp_path, dumps), "flight.missing")
    assert (data.group, data.missing, data.overwritten, data.waiting) == ("1", missing, lost, [0])


def test_a_batch_half_overwritten_is_no_mismatch(tmp_path):
    batch = [entry(1, "_all_gather_base"), entry(1, "_broadcast_oop"), entry(1, "coalesced"), entry(2)]
    dumps = {0: dump(batch), 1: dump(ring(batch[1:], 7))}
    assert (
        read(tmp_path, {rank: value | {"pg_config": config(**{"0": ("x", [0, 1])})} for rank, value in dumps.items()})
        == []
    )


def test_snapshots_of_a_running_job_are_no_hang(tmp_path):
    """NCCL says complete, so the rank whose dump is older was in it."""
    assert read(tmp_path, {rank: dump([entry(1), *([entry(2)] if rank else [])]) for rank in range(4)}) == []


def test_a_completed_call_proves_that_all_have_entered_it(tmp_path):
    """A job that runs, dumped one rank after the other: rank 0 came first, and the others have gone on with it."""
    ahead = [entry(1), entry(2), entry(3), waiting(4)]
    for oldest in ([entry(1)], [entry(1), waiting(2)]):
        dumps = {rank: dump([*ahead] if rank else oldest) for rank in range(4)}
        assert read(tmp_path, dumps) == []


def test_who_is_missing_is_told_beside_a_dump_that_came_too_early(tmp_path):
    ahead = [entry(1), entry(2), entry(3)]
    dumps = {rank: dump([*ahead, *([waiting(4)] if rank != 2 else [])]) for rank in range(1, 4)}
    data = only(read(tmp_path, {0: dump([entry(1)]), **dumps}), "flight.missing")
    assert (data.seq, data.missing, data.waiting) == (4, [2], [1, 3])


def test_a_call_that_was_aborted_proves_nothing(tmp_path):
    aborted = entry(2, retired=False, time_discovered_completed_ns=10**12)
    dumps = {rank: dump([entry(1), *([aborted, waiting(3)] if rank else [])]) for rank in range(4)}
    assert only(read(tmp_path, dumps), "flight.missing").missing == [0]


def test_who_is_ahead_of_a_broadcast_shows_who_is_missing(tmp_path):
    events = read(tmp_path, {r: dump([entry(1), *([entry(2, "broadcast")] if r != 2 else [])]) for r in range(4)})
    assert only(events, "flight.missing").missing == [2]


def test_one_that_finished_first_does_not_make_the_others_missing(tmp_path):
    """Rank 0 is through collective 2 and waits in 3; the others are all inside 2."""
    ahead = [entry(1), entry(2, "broadcast"), waiting(3)]
    events = read(tmp_path, {r: dump(ahead if r == 0 else [entry(1), waiting(2, op="broadcast")]) for r in range(4)})
    data = only(events, "flight.stuck")
    assert (data.seq, data.states) == (2, {"0": "completed", "1": "started", "2": "started", "3": "started"})


@pytest.mark.parametrize(("orders", "found"), [((1, 2), ["2"]), ((1, 1), [])], ids=["in two orders", "in one order"])
def test_groups_that_all_entered_in_two_orders(tmp_path, orders, found):
    """Over NCCL the calls only queue up on the GPU: all are made, and none is begun."""
    groups = config(**{"1": ("tp", [0, 1]), "2": ("dp", [0, 1])})
    dumps = {}
    for rank, first in enumerate(orders):
        times = {"1": 20 if first == 1 else 30, "2": 30 if first == 1 else 20}
        calls = [
            entry(1, state="scheduled", group=(name, desc), time_created_ns=1000 * rank + times[name])
            for name, desc in (("1", "tp"), ("2", "dp"))
        ]
        dumps[rank] = dump(calls, groups)
    events = read(tmp_path, dumps)
    assert [(event.kind, event.data.crossed) for event in events][0] == ("flight.stuck", found)
    case = Case()
    case.events = events
    named = [one.cause for one in diagnose(case).findings if one.strength == "likely"]
    assert ("concurrent_comms" in named) == bool(found)


def test_of_two_dumps_of_a_rank_the_newer_counts(tmp_path):
    old, new = [entry(1, time_created_ns=10)], [entry(1, time_created_ns=10), entry(2, time_created_ns=20)]
    (tmp_path / "old").mkdir()
    for name, entries in (("fr_rank_0", new), ("fr_rank_1", new), ("old/fr_rank_1", old)):
        (tmp_path / name).write_bytes(pickle.dumps(dump(entries, config(**{"0": ("default_pg", [0, 1])})), 2))
    assert [event.kind for event in evidence.read([tmp_path]).events] == ["flight.dump"] * 3


# groups


def test_the_same_name_with_other_members_is_another_communicator(tmp_path):
    """Two groups called "1": one of ranks 0 and 1, one of ranks 2 and 3, as far as their own calls go."""
    dumps = {}
    for rank in range(4):
        mine = [0, 1] if rank < 2 else [2, 3]
        op = "all_reduce" if rank < 2 else "broadcast"
        dumps[rank] = dump([entry(1, op, group=("1", "tp"))], config(**{"1": ("tp", mine)}))
    assert read(tmp_path, dumps) == []


def test_a_cascade_names_its_root(tmp_path):
    """Rank 3 hangs on its own; 2 waits for it in "tp", 0 and 1 wait for 2 in "dp"."""
    groups = config(**{"0": ("default_pg", [0, 1, 2, 3]), "1": ("tp", [2, 3]), "2": ("dp", [0, 1, 2])})
    tp, dp = {"group": ("1", "tp")}, {"group": ("2", "dp")}
    dumps = {rank: dump([entry(1), waiting(1, **dp)], groups) for rank in (0, 1)}
    dumps |= {2: dump([entry(1), waiting(1, **tp)], groups), 3: dump([entry(1)], groups)}
    found = {event.data.group: event for event in read(tmp_path, dumps)}
    assert {name: (e.data.missing, e.data.root, e.data.holds) for name, e in found.items()} == {
        "1": ([3], "", ["2"]),
        "2": ([2], "1", []),
    }
    assert "only a consequence: rank 2 wait in process group 1 (tp)" in found["2"].text
    assert "because of it wait: 1 other groups, 2" in found["1"].text


def test_groups_that_wait_for_each_other_are_all_roots(tmp_path):
    groups = config(**{"1": ("a", [0, 1]), "2": ("b", [0, 1])})
    dumps = {0: dump([waiting(1, group=("1", "a"))], groups), 1: dump([waiting(1, group=("2", "b"))], groups)}
    assert {(e.data.group, e.data.root) for e in read(tmp_path, dumps)} == {("1", ""), ("2", "")}


def test_the_missing_ranks_live_stack_is_joined(tmp_path):
    (tmp_path / "stacks_rank2.txt").write_text(
        'Process 4711: python train.py\n\nThread 4711 (idle): "MainThread"\n'
        "    tokenize (data.py:41)\n    main (train.py:9)\n"
    )
    events = read(tmp_path, {r: dump([entry(1), *([waiting(2)] if r != 2 else [])]) for r in range(4)})
    (event,) = events
    assert event.data.stacks["2"][0] == {"file": "data.py", "line": 41, "func": "tokenize"}
    assert "rank 2 stood in tokenize at data.py:41 (py-spy)" in event.text


# batches and other libraries


def test_members_of_a_batch_have_the_state_of_its_end(tmp_path):
    """torch leaves them "scheduled" for ever; the record that closes the batch tells."""
    batch = [entry(2, "_all_gather_base", state="scheduled", retired=False), entry(2, "ALLGATHER_coalesced")]
    assert read(tmp_path, {rank: dump([entry(1), *batch]) for rank in range(4)}) == []


def test_a_batch_that_never_ends(tmp_path):
    batch = [
        entry(2, "_all_gather_base", state="scheduled", retired=False),
        entry(2, "ALLGATHER_coalesced", state="started"),
    ]
    assert only(read(tmp_path, {rank: dump([entry(1), *batch]) for rank in range(4)}), "flight.stuck").seq == 2


def test_inside_a_batch_calls_are_compared_one_by_one(tmp_path):
    def batch(other):
        return ring([entry(1, "_all_gather_base"), entry(1, other), entry(1, "coalesced")], 0)

    events = read(tmp_path, {r: dump(batch("broadcast" if r == 3 else "_all_gather_base")) for r in range(4)})
    assert only(events, "flight.mismatch").odd == [{"value": "broadcast", "ranks": [3]}]


def test_a_hook_that_reports_no_completion_tells_only_by_retired(tmp_path):
    def call(seq, retired):
        return entry(seq, lib="nccl2", state="scheduled", retired=retired)

    dumps = {r: dump([call(1, True), *([call(2, False)] if r != 1 else [])]) for r in range(4)}
    assert only(read(tmp_path, dumps), "flight.missing").missing == [1]


def test_old_json_with_numbers_as_text(tmp_path):
    for rank in range(2):
        status = {
            "0": {"last_enqueued_collective": "2", "last_started_collective": "-1", "last_completed_collective": "1"}
        }
        value = dump([entry(1), *([waiting(2)] if rank else [])], config(**{"0": ("default_pg", [0, 1])}))
        for item in value["entries"]:
            del item["frames"]
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_bytes(json.dumps(value | {"pg_status": status}).encode())
    (event,) = [e for e in evidence.read([tmp_path]).events if e.kind != "flight.dump"]
    assert (event.kind, event.data.missing) == ("flight.missing", [0])


# sends and receives


def p2p(seq, op, **more):
    return entry(0, op, is_p2p=True, p2p_seq_id=seq, **more)


def open_p2p(seq, op, **more):
    return p2p(seq, op, state="started", **more)


TWO = config(**{"0": ("default_pg", [4, 9])})


def pair(tmp_path, left, right):
    """Dumps of ranks 4 and 9, which are 0 and 1 of the group."""
    return read(tmp_path, {4: dump(ring([entry(1), *left], 0), TWO), 9: dump(ring([entry(1), *right], 0), TWO)})


def test_pairs_that_match_are_silent(tmp_path):
    left = [p2p(1, "send 0->1"), p2p(2, "recv 0<-1"), p2p(3, "send 0->1", sizes=((3,),))]
    right = [p2p(1, "recv 1<-0"), p2p(2, "send 1->0"), p2p(3, "recv 1<-0", sizes=((3,),), output_sizes=[[3]])]
    assert pair(tmp_path, left, right) == []


def test_a_send_without_its_receive(tmp_path):
    data = only(pair(tmp_path, [p2p(1, "send 0->1"), open_p2p(2, "send 0->1")], [p2p(1, "recv 1<-0")]), "flight.p2p")
    assert (data.src, data.dst, data.sent, data.received) == (4, 9, 2, 1)
    assert (data.waiting, data.lacking) == ([4], [9])


def test_a_receive_without_its_send(tmp_path):
    data = only(pair(tmp_path, [], [open_p2p(1, "recv 1<-0")]), "flight.p2p")
    assert (data.src, data.dst, data.waiting, data.lacking) == (4, 9, [9], [4])


def test_both_send_first(tmp_path):
    events = pair(tmp_path, [open_p2p(1, "send 0->1")], [open_p2p(1, "send 1->0")])
    assert [(e.data.src, e.data.dst, e.data.waiting) for e in events] == [(4, 9, [4]), (9, 4, [9])]


def test_a_pair_of_different_sizes(tmp_path):
    left, right = [open_p2p(1, "send 0->1", sizes=((8,),))], [open_p2p(1, "recv 1<-0", output_sizes=[[6]])]
    data = only(pair(tmp_path, left, right), "flight.p2p")
    assert (data.sizes, data.waiting, data.lacking) == ([8, 6], [4, 9], [])


def test_a_receive_from_any_source_takes_what_is_left(tmp_path):
    assert pair(tmp_path, [open_p2p(1, "send 0->1")], [open_p2p(1, "recv 1<-?")]) == []


def test_a_send_whose_partner_left_no_dump(tmp_path):
    events = read(tmp_path, {4: dump([entry(1), open_p2p(1, "send 0->1")], TWO)})
    assert [event.kind for event in events if event.kind == "flight.p2p"] == []


def test_overwritten_pairs_are_counted_by_those_in_flight(tmp_path):
    left = ring([p2p(n, "send 0->1") for n in range(7, 9)] + [open_p2p(9, "send 0->1")], 50)
    right = ring([p2p(9, "recv 1<-0", state="started")], 80)
    events = read(tmp_path, {4: dump(left, TWO), 9: dump(right, TWO)})
    assert events == []


def test_a_batch_of_sends_is_finished_by_its_end(tmp_path):
    def batch(*ops, end):
        return [*[p2p(1, op, state="scheduled", retired=False) for op in ops], p2p(1, "coalesced", state=end)]

    done = [batch("send 0->1", "recv 0<-1", end="completed"), batch("recv 1<-0", "send 1->0", end="completed")]
    assert pair(tmp_path / "done", *done) == []
    (event,) = pair(tmp_path / "half", batch("send 0->1", end="started"), [])
    assert (event.kind, event.data.waiting, event.data.lacking) == ("flight.p2p", [4], [9])


# all_to_all


def exchange(rank, sends, takes, **more):
    return waiting(2, op="all_to_all", sizes=sends, output_sizes=[list(shape) for shape in takes], **more)


def test_total_sizes_of_an_all_to_all(tmp_path):
    groups = config(**{"0": ("default_pg", [0, 1])})
    dumps = {r: dump([entry(1), exchange(r, ((4,),), ((4 + r,),))], groups) for r in range(2)}
    data = next(e.data for e in read(tmp_path, dumps) if e.kind == "flight.mismatch")
    assert (data.field, data.majority["value"], data.odd[0]["value"]) == ("splits", 8, 9)


def test_an_all_to_all_names_the_rank_with_the_odd_split(tmp_path):
    """Ranks 0, 2 and 3 notice that rank 1 sends them less than they expect; the odd one is rank 1."""
    groups = config(**{"0": ("default_pg", [0, 1, 2, 3])})
    dumps = {}
    for rank in range(4):
        sends = tuple((2,) if rank == 1 and peer != 1 else (4,) for peer in range(4))
        dumps[rank] = dump([entry(1), exchange(rank, sends, ((4,),) * 4)], groups)
    data = next(e.data for e in read(tmp_path, dumps) if e.kind == "flight.mismatch")
    assert (data.field, data.odd[0]["ranks"]) == ("splits", [1])


def test_an_all_to_all_whose_totals_alone_are_known_names_the_odd_rank(tmp_path):
    groups = config(**{"0": ("default_pg", [0, 1, 2, 3])})
    dumps = {r: dump([entry(1), exchange(r, ((16,),), ((20 if r == 2 else 16,),))], groups) for r in range(4)}
    data = next(e.data for e in read(tmp_path, dumps) if e.kind == "flight.mismatch")
    assert (data.field, data.odd[0]["ranks"]) == ("splits", [2])


def test_an_all_to_all_names_the_pair(tmp_path):
    """Rank 1 sends 3 to rank 0, which expects 5."""
    groups = config(**{"0": ("default_pg", [0, 1])})
    dumps = {
        0: dump([entry(1), exchange(0, ((1,), (2,)), ((1,), (5,)))], groups),
        1: dump([entry(1), exchange(1, ((3,), (4,)), ((2,), (4,)))], groups),
    }
    data = next(e.data for e in read(tmp_path, dumps) if e.kind == "flight.mismatch")
    assert (data.pairs, data.odd[0]["ranks"]) == ([[1, 0, 3, 5]], [0])


# lateness

SECOND = 10**9
START = 1_795_227_622 * SECOND


def run(rank, *, late=0, skew=0.0, count=20, wait=0.001):
    """`count` collectives, one a second; `late` seconds late for the last one, with a clock that is wrong by `skew`."""
    moments = [n + skew + rank * wait + (late if n == count - 1 else 0) for n in range(count)]
    return dump([entry(n + 1, time_created_ns=START + int(t * SECOND)) for n, t in enumerate(moments)])


def lateness(tmp_path, runs, name="nccl_trace_rank_{}"):
    return [event for event in read(tmp_path, runs, name) if event.kind == "flight.late"]


def test_who_came_last_and_by_how_much(tmp_path):
    (event,) = lateness(tmp_path, {rank: run(rank, late=7.5 * (rank == 2)) for rank in range(4)})
    data = event.data
    assert (data.seq, data.worst, data.of, event.rank) == (20, 2, 20, 2)
    assert data.seconds["2"] == pytest.approx(7.5, abs=0.01) and data.usual < 0.01


def test_a_wrong_clock_is_no_lateness(tmp_path):
    assert lateness(tmp_path, {rank: run(rank, skew=40.0 * (rank == 2)) for rank in range(4)}) == []


def test_lateness_is_seen_behind_a_wrong_clock(tmp_path):
    (event,) = lateness(tmp_path, {r: run(r, skew=40.0 * (r == 2), late=7.5 * (r == 1)) for r in range(4)})
    assert event.data.worst == 1


def test_few_calls_tell_lateness_only_within_a_host(tmp_path):
    runs = {rank: run(rank, late=7.5 * (rank == 2), count=2) for rank in range(4)}
    assert lateness(tmp_path / "unknown", runs) == []
    assert lateness(tmp_path / "apart", {r: runs[r] for r in (0, 2)}, "trace_host-{0}_rank_{0}") == []
    (event,) = lateness(tmp_path / "together", runs, "trace_host-1_rank_{}")
    assert event.data.worst == 2


def test_usual_spread_is_no_lateness(tmp_path):
    assert lateness(tmp_path, {rank: run(rank, wait=3.0) for rank in range(4)}) == []


def test_a_job_of_the_same_calls_has_nothing_to_tell(tmp_path):
    assert read(tmp_path, {rank: dump([entry(1)], ALL) for rank in range(4)}) == []
