"""Who waits for whom, by group and line, in text and JSON; no process is started."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ncclkit
from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.coordinator import Coordinator
from ncclkit.agent.rehearsal.endings import Ending
from ncclkit.agent.rehearsal.ranks import write_verdict
from ncclkit.rehearsal.function import RanksDisagree
from ncclkit.rehearsal.verdict import Rehearsal, read_verdict
from tests.cases import read_files
from tests.rehearsal import functions


def post(coordinator: Coordinator, rank: int, number: int = 1, **fields: Any) -> None:
    usual: dict[str, Any] = {"op": "all_reduce", "members": range(coordinator.world)}
    given = {**usual, **fields}
    members = tuple(given.pop("members"))
    coordinator.post_call(rank, Call(number, members=members, **given))


def ask(coordinator: Coordinator, rank: int, number: int = 1, **fields: Any) -> None:
    post(coordinator, rank, number, **fields)
    coordinator.begin_wait(rank, number)


def told(folder: Path, world: int, play: Callable[[Coordinator], None]) -> Rehearsal:
    coordinator = Coordinator(world)
    play(coordinator)
    coordinator.complete_verdict()
    assert coordinator.verdict is not None
    answer = folder / "rehearsal.json"
    options = {"answer": str(answer), "ranks": world, "host_ranks": world}
    write_verdict(options, coordinator.verdict, {})
    # diagnose reads the same file
    assert read_files(folder).events[0].kind == "rehearsal.verdict"
    return read_verdict(answer, world, "")


def crossed(coordinator: Coordinator) -> None:
    """Rank 0 begins with its group tp, its neighbour with dp; ranks 2 and 3 wait behind them."""
    tp = {"group": "5", "group_desc": "tp", "place": "train.py:12"}
    dp = {"group": "6", "group_desc": "dp", "place": "train.py:20"}
    ask(coordinator, 0, members=(0, 1), **tp)
    ask(coordinator, 2, group="0", group_desc="default_pg", place="train.py:30")
    ask(coordinator, 3, group="0", group_desc="default_pg", place="train.py:30")
    ask(coordinator, 1, members=(0, 1), **dp)


def test_a_circle_is_said_with_groups_and_lines(tmp_path):
    rehearsed = told(tmp_path, 4, crossed)
    lines = (
        "Rank 0 waits for rank 1 in group tp (ranks 0 and 1): all_reduce at train.py:12",
        "Rank 1 waits for rank 0 in group dp (ranks 0 and 1): all_reduce at train.py:20",
    )
    assert rehearsed.kind == "deadlock" and rehearsed.wait_lines == lines
    assert "\n".join(lines) in rehearsed.text()
    # the sentence stays as short as it was
    assert "waits for" not in rehearsed.sentence


def test_json_has_for_whom_every_rank_waits(tmp_path):
    values = json.loads(json.dumps(told(tmp_path, 4, crossed).to_dict()))
    assert [wait["rank"] for wait in values["waits"]] == [0, 1, 2, 3]
    assert values["circle"][0] == {
        "rank": 0,
        "waits_for": [1],
        "op": "all_reduce",
        "group": "group tp",
        "members": [0, 1],
        "place": "train.py:12",
    }
    behind = values["waits"][2]
    assert (behind["waits_for"], behind["group"]) == ([0, 1], "the default group")


@pytest.mark.parametrize(("world", "shown"), [(3, 3), (30, 9)])
def test_a_long_circle_names_its_first_and_its_last_ranks(tmp_path, world, shown):
    def meet_in_ring(coordinator: Coordinator) -> None:
        for rank in range(world):
            peer = (rank + 1) % world
            ask(coordinator, rank, op="send", peer=peer, group="0", place="ring.py:4")

    rehearsed = told(tmp_path, world, meet_in_ring)
    lines = rehearsed.wait_lines
    assert (len(rehearsed.circle), len(lines)) == (world, shown)
    assert lines[-1].startswith(f"Rank {world - 1} waits for rank 0 in group 0")
    assert ("… 22 ranks more, each of which waits for the next" in lines) == (world > shown)


def test_which_of_two_calls_comes_first_is_said(tmp_path):
    def call_crossed(coordinator: Coordinator) -> None:
        for rank, order in enumerate(("ab", "ab", "ba")):
            for number, group in enumerate(order, 1):
                line = f"gan.py:{number}{group}"
                post(coordinator, rank, number, group=group, place=line)
        coordinator.end_rank(2, Ending("ended", "ended"))

    rehearsed = told(tmp_path, 3, call_crossed)
    assert rehearsed.kind == "order"
    assert rehearsed.wait_lines == (
        "Rank 2: all_reduce in group b at gan.py:1b, then all_reduce in group a at gan.py:2a",
        "Ranks 0 and 1: all_reduce in group a at gan.py:1a, then all_reduce in group b at gan.py:2b",
    )
    assert rehearsed.orders[0].ranks == (2,)
    assert "ended" not in rehearsed.sentence


def test_ranks_that_agree_wait_for_nobody(tmp_path):
    def agree(coordinator: Coordinator) -> None:
        for rank in range(2):
            ask(coordinator, rank, group="0", place="train.py:1")
        for rank in range(2):
            coordinator.end_rank(rank, Ending("ended", "ended"))

    rehearsed = told(tmp_path, 2, agree)
    assert (rehearsed.kind, rehearsed.waits, rehearsed.wait_lines) == ("agree", (), ())


def test_groups_of_a_mesh_have_the_names_that_torch_gives():
    with pytest.raises(RanksDisagree) as failed:
        ncclkit.rehearse(functions.cross_mesh, ranks=4)
    said = str(failed.value)
    assert "Rank 0 waits for rank 1 in group mesh_tp (ranks 0 and 1): all_reduce at" in said
    assert "Rank 1 waits for rank 3 in group mesh_dp (ranks 1 and 3): all_reduce at" in said
