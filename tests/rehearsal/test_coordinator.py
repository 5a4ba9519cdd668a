"""The state machine alone: what is proven, and what is only waited for."""

from typing import Any

import pytest

from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.coordinator import Coordinator
from ncclkit.agent.rehearsal.endings import Ending

WORLD = (0, 1, 2, 3)


def call(number: int, op: str = "all_reduce", **fields: Any) -> Call:
    usual: dict[str, Any] = {"group": "0", "members": WORLD, "place": "train.py:1"}
    return Call(number, op=op, **{**usual, **fields})


def ask(coordinator: Coordinator, rank: int, asked: Call, thread: int = 0) -> list[tuple[int, int]]:
    """Post a call and wait for it, as a blocking call of a script does."""
    released = coordinator.post_call(rank, asked, thread)
    coordinator.begin_wait(rank, asked.number, thread)
    return released


def test_a_call_is_released_when_all_members_have_come():
    coordinator = Coordinator(4)
    for rank in (0, 1, 2):
        assert ask(coordinator, rank, call(1)) == []
    assert coordinator.running == (3,)
    assert ask(coordinator, 3, call(1)) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert coordinator.running == WORLD and coordinator.verdict is None


@pytest.mark.parametrize(
    ("field", "usual", "other"),
    [
        ("op", {}, {"op": "barrier"}),
        ("root", {"op": "broadcast", "root": 0}, {"op": "broadcast", "root": 2}),
        ("dtypes", {"dtypes": ("float32",), "sizes": (4,)}, {"dtypes": ("float64",), "sizes": (4,)}),
        # another call that also reduces otherwise: a flag where the others have gradients
        (
            "reduce",
            {"reduce": "SUM", "dtypes": ("float32",), "sizes": (17,)},
            {"reduce": "MIN", "dtypes": ("float32",), "sizes": (1,)},
        ),
        ("sizes", {"sizes": (4,)}, {"sizes": (8,)}),
        ("splits", {"gives": (4,), "takes": (4, 4, 4, 4)}, {"gives": (5,), "takes": (4, 4, 4, 4)}),
    ],
)
def test_calls_that_do_not_fit_are_a_mismatch_of_the_odd_rank(field, usual, other):
    coordinator = Coordinator(4)
    for rank in WORLD:
        fields = {**usual, **(other if rank == 2 else {})}
        assert ask(coordinator, rank, call(1, **fields)) == []
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.field) == ("mismatch", field)
    assert coordinator.verdict.ranks == (2,)


def test_shapes_of_as_many_elements_and_uneven_splits_that_match_are_no_mismatch():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    ask(coordinator, 0, call(1, shapes=("[2, 4]",), sizes=(8,), **pair))
    assert len(ask(coordinator, 1, call(1, shapes=("[8]",), sizes=(8,), **pair))) == 2
    ask(coordinator, 0, call(2, "all_to_all", gives=(1, 5), takes=(1, 2), **pair))
    assert len(ask(coordinator, 1, call(2, "all_to_all", gives=(2, 3), takes=(5, 3), **pair))) == 2
    assert coordinator.verdict is None


def test_a_rank_that_ended_is_waited_for_in_vain():
    coordinator = Coordinator(4)
    ask(coordinator, 0, call(1))
    coordinator.end_rank(2, Ending("exited", "called sys.exit", "train.py:9"))
    # ranks 1 and 3 still run, and can change nothing about it
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.ranks) == ("left", (2,))
    assert list(coordinator.verdict.calls) == [0]


def test_a_rank_that_cannot_be_rehearsed_is_not_accused():
    coordinator = Coordinator(4)
    ask(coordinator, 0, call(1))
    coordinator.end_rank(2, Ending("failed", "no driver", "train.py:9", unrehearsable=True))
    assert coordinator.verdict is not None and coordinator.verdict.kind == "unknown"


def test_a_slow_rank_is_only_waited_for():
    coordinator = Coordinator(4)
    for rank in (0, 1, 2):
        ask(coordinator, rank, call(1))
    assert coordinator.verdict is None
    coordinator.give_up("deadline")
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.ranks) == ("unknown", (3,))


def test_two_groups_in_another_order_are_a_deadlock():
    coordinator = Coordinator(4)
    ask(coordinator, 0, call(1, group="data"))
    for rank in (1, 2, 3):
        ask(coordinator, rank, call(1, group="model"))
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.ranks) == ("deadlock", (0,))
    assert coordinator.verdict.waits[0] == (1, 2, 3)


def test_asynchronous_calls_in_another_order_go_on_over_gloo():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1), "backend": "gloo"}
    coordinator.post_call(0, call(1, group="data", **pair))
    ask(coordinator, 0, call(2, group="model", **pair))
    coordinator.post_call(1, call(1, group="model", **pair))
    released = ask(coordinator, 1, call(2, group="data", **pair))
    assert released == [(0, 1), (1, 2)] and coordinator.verdict is None


def test_sends_that_meet_sends_are_a_deadlock_and_a_batch_is_none():
    blocking, batched = Coordinator(2), Coordinator(2)
    pair = {"members": (0, 1)}
    for rank, peer in ((0, 1), (1, 0)):
        send = call(1, "send", peer=peer, **pair)
        ask(blocking, rank, send)
        batched.post_call(rank, send)
    for rank, peer in ((0, 1), (1, 0)):
        ask(batched, rank, call(2, "recv", peer=peer, **pair))
    assert blocking.verdict is not None and blocking.verdict.kind == "deadlock"
    assert batched.verdict is None and batched.running == (0, 1)


def test_who_waits_behind_a_circle_is_not_odd():
    coordinator = Coordinator(4)
    for rank, peer in ((0, 1), (1, 0)):
        if rank == 1:
            for behind in (2, 3):
                ask(coordinator, behind, call(1, "barrier"))
        ask(coordinator, rank, call(1, "send", peer=peer, members=WORLD))
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.ranks) == ("deadlock", (0, 1))


def test_of_a_send_without_recv_both_ends_are_named():
    coordinator = Coordinator(4)
    ask(coordinator, 2, call(1, "send", peer=3, members=WORLD))
    for rank in (0, 1, 3):
        ask(coordinator, rank, call(1, "barrier"))
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.ranks) == ("deadlock", (2, 3))


def test_a_recv_from_anybody_is_freed_by_whoever_sends():
    coordinator = Coordinator(3)
    three = {"members": (0, 1, 2)}
    ask(coordinator, 0, call(1, "recv", peer=None, **three))
    coordinator.end_rank(1, Ending("ended"))
    assert coordinator.verdict is None
    assert ask(coordinator, 2, call(1, "send", peer=0, **three)) == [(2, 1), (0, 1)]


@pytest.mark.parametrize("peer", [1, None])
def test_of_many_sends_the_oldest_that_fits_is_met_first(peer):
    coordinator = Coordinator(3)
    three = {"members": (0, 1, 2)}
    sends = [(1, 7), (2, 7), (1, 8), (1, 7)]
    for number, (sender, tag) in enumerate(sends, 1):
        asked = call(number, "send", peer=0, tag=tag, **three)
        assert coordinator.post_call(sender, asked) == []
    met = []
    for number in range(1, 4):
        asked = call(number, "recv", peer=peer, tag=7, **three)
        met += [one for one in coordinator.post_call(0, asked) if one[0] != 0]
    # whoever sends, or rank 1 alone; that of another tag is met by nobody
    assert met == ([(1, 1), (2, 2), (1, 4)] if peer is None else [(1, 1), (1, 4)])


def test_of_two_recvs_a_send_meets_the_older_one():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    coordinator.post_call(0, call(1, "recv", peer=None, **pair))
    coordinator.post_call(0, call(2, "recv", peer=1, **pair))
    assert coordinator.post_call(1, call(1, "send", peer=0, **pair)) == [(1, 1), (0, 1)]
    assert coordinator.post_call(1, call(2, "send", peer=0, **pair)) == [(1, 2), (0, 2)]


def test_a_send_to_itself_meets_nobody():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    coordinator.post_call(0, call(1, "send", peer=0, **pair))
    assert coordinator.post_call(0, call(2, "recv", peer=None, **pair)) == []


def test_ranks_that_wait_for_one_that_was_stopped_agree():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    coordinator.end_rank(0, Ending("stopped", "after 20 steps"))
    ask(coordinator, 1, call(1, **pair))
    assert coordinator.verdict is not None and coordinator.verdict.kind == "agree"


def test_a_deadlock_is_not_said_of_ranks_with_two_threads():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    ask(coordinator, 1, call(1, group="third", **pair))
    for number, group in ((1, "data"), (2, "model")):
        coordinator.post_call(0, call(number, group=group, **pair), thread=number)
    coordinator.begin_wait(0, 2, 2, alive=(1, 2))
    # its other thread has not come to a wait, and may still make the call of rank 1
    assert coordinator.running == (0,) and coordinator.verdict is None
    coordinator.begin_wait(0, 1, 1, alive=(1, 2))
    assert coordinator.verdict is not None
    assert (coordinator.verdict.kind, coordinator.verdict.why) == ("unknown", "threads")


def test_a_thread_that_has_ended_is_waited_for_no_more():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    for rank in (0, 1):
        coordinator.post_call(rank, call(1, group="saving", **pair), thread=7)
    for rank, group in ((0, "data"), (1, "model")):
        coordinator.post_call(rank, call(2, group=group, **pair), thread=1)
        coordinator.begin_wait(rank, 2, 1, alive=(1,))
    assert coordinator.verdict is not None and coordinator.verdict.kind == "deadlock"


def test_a_thread_that_is_freed_runs_while_another_one_waits():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    for thread, group in ((1, "data"), (2, "saving")):
        coordinator.post_call(0, call(thread, group=group, **pair), thread=thread)
        coordinator.begin_wait(0, thread, thread, alive=(1, 2))
    assert coordinator.running == (1,)
    ask(coordinator, 1, call(1, group="data", **pair))
    assert coordinator.running == (0, 1)


def test_a_thread_that_begins_to_communicate_runs_while_another_one_waits():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    ask(coordinator, 0, call(1, group="data", **pair), thread=1)
    assert coordinator.running == (1,)
    coordinator.post_call(0, call(2, group="saving", **pair), thread=2)
    assert coordinator.running == (0, 1)


def test_ranks_that_all_fail_prove_no_hang():
    coordinator = Coordinator(2)
    for rank in (0, 1):
        coordinator.end_rank(rank, Ending("failed", "FileNotFoundError", "train.py:3"))
    assert coordinator.verdict is not None and coordinator.verdict.kind == "unknown"


# ---------------------------------------------------------------- passes here, and not on NCCL


def call_in_order(coordinator: Coordinator, rank: int, *groups: str) -> None:
    """Asynchronous calls of groups, one after the other."""
    for number, group in enumerate(groups, 1):
        coordinator.post_call(rank, call(number, group=group, members=(0, 1, 2), place=f"a.py:{group}"))


def test_two_groups_in_another_order_without_a_wait_may_hang_on_nccl():
    coordinator = Coordinator(3)
    call_in_order(coordinator, 0, "1", "2")
    call_in_order(coordinator, 1, "1", "2")
    call_in_order(coordinator, 2, "2", "1")
    verdict = coordinator.verdict
    assert verdict is not None and (verdict.kind, verdict.ranks) == ("order", (2,))
    assert (verdict.calls[2].place, verdict.later[2].place) == ("a.py:2", "a.py:1")


@pytest.mark.parametrize("orders", [["12", "12", "12"], ["1212", "1221", "1221"]])
def test_the_same_order_of_each_pair_of_calls_is_compared(orders):
    coordinator = Coordinator(3)
    for rank, order in enumerate(orders):
        call_in_order(coordinator, rank, *order)
    kind = coordinator.verdict.kind if coordinator.verdict else None
    assert kind == (None if orders[0] == "12" else "order")


def test_groups_that_share_one_rank_have_no_common_order():
    coordinator = Coordinator(3)
    left, right = {"group": "1", "members": (0, 1)}, {"group": "2", "members": (1, 2)}
    coordinator.post_call(1, call(1, **left))
    coordinator.post_call(1, call(2, **right))
    coordinator.post_call(2, call(1, **right))
    coordinator.post_call(0, call(1, **left))
    assert coordinator.verdict is None and coordinator.released == 2


THREE: dict[str, Any] = {"members": (0, 1, 2)}


def exchange(coordinator: Coordinator, number: int, batched: bool = True) -> None:
    """Ranks 0 and 1 send to each other."""
    for rank, op in ((0, "send"), (1, "recv")):
        asked = call(number, op, peer=1 - rank, batched=batched, place="exchange.py:4", **THREE)
        ask(coordinator, rank, asked)


def test_a_batch_as_first_call_of_a_group_waits_for_all_of_its_ranks():
    coordinator = Coordinator(3)
    exchange(coordinator, 1)
    assert coordinator.verdict is None
    # on NCCL rank 2 waits here for rank 0, which waits for rank 2
    ask(coordinator, 2, call(1, "recv", peer=0, **THREE))
    ask(coordinator, 0, call(2, "send", peer=2, **THREE))
    verdict = coordinator.verdict
    assert verdict is not None and (verdict.kind, verdict.ranks) == ("first_use", (2,))
    assert (verdict.calls[1].place, verdict.calls[2].op) == ("exchange.py:4", "recv")


@pytest.mark.parametrize(("how", "kind"), [("ended", "first_use"), ("stopped", "agree")])
def test_a_member_that_never_uses_the_group_leaves_the_others_waiting(how, kind):
    coordinator = Coordinator(3)
    exchange(coordinator, 1)
    for rank in (0, 1, 2):
        coordinator.end_rank(rank, Ending(how if rank == 2 else "ended"))
    assert coordinator.verdict is not None and coordinator.verdict.kind == kind


@pytest.mark.parametrize("twin", ["collective before", "collective after", "all batch", "single"])
def test_a_batch_is_no_hazard_where_all_ranks_use_the_group(twin):
    coordinator = Coordinator(3)
    if twin == "collective before":
        for rank in (0, 1, 2):
            ask(coordinator, rank, call(1, **THREE))
    exchange(coordinator, 2, batched=twin != "single")
    if twin == "collective after":
        for rank in (0, 1, 2):
            ask(coordinator, rank, call(3, **THREE))
    # in a pipeline the last rank comes with the batch of its neighbour
    is_batch = twin == "all batch"
    ask(coordinator, 2, call(4, "recv", peer=1, batched=is_batch, **THREE))
    ask(coordinator, 1, call(4, "send", peer=2, batched=is_batch, **THREE))
    for rank in (0, 1, 2):
        coordinator.end_rank(rank, Ending("ended"))
    verdict = coordinator.verdict
    assert verdict is not None and verdict.kind == "agree", verdict


@pytest.mark.parametrize(
    ("field", "usual", "other"),
    [
        ("reduce", {"reduce": "SUM"}, {"reduce": "MAX"}),
        ("dtypes", {}, {"dtypes": ("int32",)}),
        ("owner", {"owner": "model 1"}, {"owner": "model 2"}),
    ],
)
def test_calls_of_as_many_bytes_differ_silently(field, usual, other):
    coordinator = Coordinator(4)
    for rank in WORLD:
        fields = {"dtypes": ("float32",), "sizes": (4,), **(other if rank == 1 else usual)}
        ask(coordinator, rank, call(1, **fields))
    verdict = coordinator.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.field, verdict.ranks) == ("differs", field, (1,))


@pytest.mark.parametrize(
    ("gpus", "ranks"),
    [("0011", (0, 1, 2, 3)), ("0001", (0, 1)), ("01-0", ()), ("0101", ())],
)
def test_ranks_of_one_host_that_use_one_gpu_are_told_when_all_agree(gpus, ranks):
    coordinator = Coordinator(4, host_ranks=2)
    for rank in WORLD:
        gpu = gpus[rank].strip("-")
        ask(coordinator, rank, call(1, gpu=gpu))
    assert coordinator.verdict is None
    for rank in WORLD:
        coordinator.end_rank(rank, Ending("ended", "ended"))
    verdict = coordinator.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("same_gpu" if ranks else "agree", ranks)


def test_beside_another_fault_shared_gpus_are_told_too():
    coordinator = Coordinator(2)
    pair = {"members": (0, 1), "gpu": "0"}
    for rank in (0, 1):
        ask(coordinator, rank, call(1, **pair))
    ask(coordinator, 0, call(2, "barrier", **pair))
    ask(coordinator, 1, call(2, **pair))
    coordinator.complete_verdict()
    verdict = coordinator.verdict
    assert verdict is not None and (verdict.kind, list(verdict.shared)) == ("mismatch", [0, 1])


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        # each rank's lines, one after the other
        (["ab", "ba", "ab"], 1),
        (["ab", "ab", "ab"], 0),
        # one rank gives in turn, the others give nothing
        (["abb", "bab", "bba"], 0),
        (["ab", "ba"], 0),
        (["aa", "bb", "bb"], 0),
        # another collective lies between them
        (["acb", "bca", "acb"], 0),
    ],
)
def test_calls_in_the_other_order_that_fit_are_noted(lines, notes):
    members = tuple(range(len(lines)))
    coordinator = Coordinator(len(lines))
    for number in range(len(lines[0])):
        for rank, own in enumerate(lines):
            place = f"train.py:{own[number]}"
            ask(coordinator, rank, call(number + 1, members=members, place=place))
    for rank in members:
        coordinator.end_rank(rank, Ending("ended", "ended"))
    verdict = coordinator.verdict
    assert verdict is not None and (verdict.kind, len(verdict.notes)) == ("agree", notes)
    for note in verdict.notes:
        assert note.startswith("Rank 1 calls all_reduce at train.py:")


def test_gradients_meet_zeros_of_nobody():
    """As under `join()`, where a rank without data answers for the model."""
    coordinator = Coordinator(4)
    for rank in WORLD:
        ask(coordinator, rank, call(1, owner="" if rank == 3 else "model 1"))
    assert coordinator.verdict is None and coordinator.released == 1


@pytest.mark.parametrize(("second", "notes"), [("0", 1), ("1", 0)])
def test_two_threads_in_one_group_are_noted_and_in_two_groups_are_not(second, notes):
    coordinator = Coordinator(2)
    pair = {"members": (0, 1)}
    for rank in (0, 1):
        ask(coordinator, rank, call(1, **pair), thread=1)
        ask(coordinator, rank, call(2, group=second, **pair), thread=2 if rank == 0 else 1)
    for rank in (0, 1):
        coordinator.end_rank(rank, Ending("ended", "ended"))
    verdict = coordinator.verdict
    assert verdict is not None and (verdict.kind, len(verdict.notes)) == ("agree", notes)
