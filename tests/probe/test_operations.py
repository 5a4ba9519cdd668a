"""The check of the live test, rank by rank without a process: right values pass, and every way to be wrong shows."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ncclkit.agent.run.operations import DTYPES, NAMES, SPLIT_AMONG_RANKS, Operation  # noqa: E402

torch.set_num_threads(1)  # small sums: threads would mostly wait for each other where other tests run, too
RANKS = (1, 2, 3, 8, 72, 300)


class Group:
    """A process group of which one rank is here; what it receives is made from what all of them give."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.ranks


def arrive(name: str, dtype: str, size: int, rank: int, ranks: int, spoil: str = "") -> int:
    """Wrong elements that one rank counts when the collective is worked out by hand, in the type itself, in ring order.

    spoil: ``drop`` leaves the last rank's values out, ``swap`` exchanges the first two elements that differ, ``lose``
    gives the last one back as it was before the call.
    """
    one = Operation(torch, Group(rank, ranks), torch.device("cpu"), name, dtype, size)
    given = [one._given(r).to(one.sendbuff.dtype) for r in range(ranks)]
    if spoil == "drop":
        given[-1] = torch.zeros_like(given[-1])

    def call() -> None:
        result = worked(name, given, one)
        if spoil == "swap":
            other = int((result != result[0]).nonzero()[0])
            result[[0, other]] = result[[other, 0]].clone()
        if spoil == "lose":
            result[-1] = 0
        one.recvbuff.copy_(result)

    one.call = call  # type: ignore[method-assign]
    return one.check()


def worked(name: str, given: list[Any], one: Operation) -> Any:
    """What `one` receives."""
    mine = slice(one.rank * one.part, (one.rank + 1) * one.part)
    if name == "broadcast":
        return given[0].clone()
    if name == "send_recv":
        return given[one.rank - 1].clone()
    if name == "all_gather":
        return torch.cat(given)
    if name == "all_to_all":
        return torch.cat([values[mine] for values in given])
    parts = [values[mine] for values in given] if name == "reduce_scatter" else given
    total = parts[0].clone()
    for values in parts[1:]:
        total += values
    return total


@pytest.mark.parametrize(("name", "dtype"), list(product(NAMES, DTYPES)))
def test_right_values_pass_in_every_type(name: str, dtype: str) -> None:
    for ranks in RANKS:
        part = (600 if ranks <= 8 else 40) * DTYPES[dtype] // 8
        size = part * ranks if name in SPLIT_AMONG_RANKS else 4096
        assert arrive(name, dtype, size, ranks - 1 if name != "reduce" else 0, ranks) == 0, ranks


@pytest.mark.parametrize("name", [name for name in NAMES if name != "broadcast"])
def test_a_rank_that_is_left_out_shows(name: str) -> None:
    assert all(arrive(name, "float32", 65536, 0, ranks, "drop") for ranks in (2, 8, 72))


@pytest.mark.parametrize(("name", "spoil"), list(product(NAMES, ("swap", "lose"))))
def test_a_wrong_place_and_a_lost_element_show(name: str, spoil: str) -> None:
    assert all(arrive(name, "bfloat16", 65536, 0, ranks, spoil) for ranks in (2, 8, 72))


def test_only_the_root_checks_a_reduce() -> None:
    assert arrive("reduce", "float32", 4096, 1, 2, "drop") == 0


def test_messages_are_whole_numbers_of_parts() -> None:
    op = Operation(torch, Group(0, 3), torch.device("cpu"), "all_to_all", "float32", 1000)
    assert (op.bytes, op.part, op.sendbuff.numel()) == (996, 83, 249)
    assert Operation(torch, Group(0, 8), torch.device("cpu"), "all_gather", "float32", 4).bytes == 32


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_in_a_graph_what_is_sent_to_the_next_rank_is_what_that_one_takes(ranks: int) -> None:
    seen = {}
    for rank in range(ranks):
        group = Group(rank, ranks)
        group.all_to_all_single = lambda *given, rank=rank, group=None: seen.update({rank: given})  # type: ignore[attr-defined]
        made = Operation(torch, group, torch.device("cpu"), "send_recv", "float32", 64)
        made.call_in_graph()
        got, given, *_ = seen[rank]
        assert got is made.recvbuff and given is made.sendbuff
    for rank, (_, _, taken, sent) in seen.items():
        assert (sum(sent), sum(taken)) == (16, 16)
        assert [seen[peer][2][rank] for peer in range(ranks)] == sent and sent[(rank + 1) % ranks] == 16


def test_in_a_graph_the_others_are_called_as_they_are() -> None:
    called = []
    for name in NAMES:
        made = Operation(torch, Group(0, 1), torch.device("cpu"), name, "float32", 64)
        made.call = lambda name=name: called.append(name)  # type: ignore[method-assign]
        made.call_in_graph()
    assert tuple(called) == NAMES
