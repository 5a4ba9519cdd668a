"""How far each rank has come, as whoever watches is told."""

from ncclkit.agent.rehearsal import lanes
from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.lanes import SHOWN_CALLS, SHOWN_RANKS, CallLanes
from tests.rehearsal.rehearsed import rehearse


def call(number: int, op: str = "all_reduce") -> Call:
    return Call(number, op=op, group="0", members=(0, 1), place="train.py:1")


def test_a_call_waits_until_all_have_come():
    watched = CallLanes(2)
    watched.add_call(0, call(1))
    watched.add_call(0, call(2, "barrier"))
    watched.add_released([(0, 1)])
    watched.end_rank(1, "exited")
    first, second = watched.records()
    assert (first["letters"], first["waits"], first["calls"]) == ("R|", " ?", 2)
    assert (second["calls"], second["end"]) == (0, "exited")


def test_what_is_told_fits_into_one_record(monkeypatch):
    sent = []
    monkeypatch.setattr(lanes.wire, "send", lambda kind, **fields: sent.append(fields["lanes"]))
    watched = CallLanes(300)
    for rank in range(300):
        for number in range(1, 100):
            watched.add_call(rank, call(number))
    watched.send_changes(1.0)
    watched.send_changes(2.0)
    (told,) = sent
    assert len(told) == SHOWN_RANKS
    assert told[0]["calls"] == 99 and told[0]["letters"] == "R" * SHOWN_CALLS


def test_a_rehearsal_tells_its_lanes_and_keeps_the_last_ones(tmp_path):
    answer = rehearse(tmp_path, "barrier_rank0.py", "--ranks", "2")
    kept = answer["lanes"]
    assert [lane["letters"][-1] for lane in kept] == ["|", "R"]
    assert all(lane["waits"].endswith("?") for lane in kept)
    (wire,) = tmp_path.rglob("wire.jsonl")
    assert '"kind": "lanes"' in wire.read_text()
