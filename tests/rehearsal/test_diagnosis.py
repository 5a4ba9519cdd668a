"""A rehearsal's verdict is judged by the causes that judge dumps; no process is started."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.coordinator import Coordinator
from ncclkit.agent.rehearsal.endings import Ending
from ncclkit.agent.rehearsal.ranks import write_verdict
from ncclkit.rehearsal import rehearse
from tests.cases import judged_files, read_files

WORLD = (0, 1, 2, 3)
BESIDE = {"rank_killed": ("host_oom",)}
"""Cause → others that a rehearsal shows with it."""


def ask(coordinator: Coordinator, rank: int, op: str, number: int = 1, **fields: Any) -> None:
    usual: dict[str, Any] = {"group": "0", "members": WORLD, "place": f"train.py:{len(op)}"}
    coordinator.post_call(rank, Call(number, op=op, **{**usual, **fields}))
    coordinator.begin_wait(rank, number)


def other_call(coordinator: Coordinator) -> None:
    for rank in WORLD:
        ask(coordinator, rank, "barrier" if rank == 2 else "all_reduce")


def other_size(coordinator: Coordinator) -> None:
    for rank in WORLD:
        size = 6 if rank == 3 else 8
        ask(coordinator, rank, "all_reduce", sizes=(size,), shapes=(f"[{size}]",))


def other_splits(coordinator: Coordinator) -> None:
    for rank in WORLD:
        gives = (2, 2, 2, 3) if rank == 1 else (2, 2, 2, 2)
        ask(coordinator, rank, "all_to_all", gives=gives, takes=(2, 2, 2, 2))


def left_early(coordinator: Coordinator) -> None:
    coordinator.end_rank(1, Ending("exited", "called sys.exit", "train.py:9"))
    ask(coordinator, 0, "all_reduce")


def raised(coordinator: Coordinator) -> None:
    coordinator.end_rank(2, Ending("failed", "ValueError: shard 2 is empty", "train.py:9", "load"))
    ask(coordinator, 0, "all_reduce")


def killed(coordinator: Coordinator) -> None:
    coordinator.end_rank(2, Ending("died", "killed by signal 9"))
    ask(coordinator, 0, "all_reduce")


def crossed_groups(coordinator: Coordinator) -> None:
    for rank in WORLD:
        ask(coordinator, rank, "all_reduce", group="5" if rank == 0 else "6")


def group_of_some(coordinator: Coordinator) -> None:
    for rank in WORLD:
        op, group = ("new_group", "world") if rank < 1 else ("all_reduce", "0")
        ask(coordinator, rank, op, group=group)


def unpaired_send(coordinator: Coordinator) -> None:
    ask(coordinator, 2, "send", peer=3)
    for rank in (0, 1, 3):
        ask(coordinator, rank, "barrier")


def unequal_pair(coordinator: Coordinator) -> None:
    ask(coordinator, 0, "send", peer=1, sizes=(4,))
    ask(coordinator, 1, "recv", peer=0, sizes=(5,))


def other_reduction(coordinator: Coordinator) -> None:
    for rank in WORLD:
        reduce = "MAX" if rank == 1 else "SUM"
        ask(coordinator, rank, "all_reduce", reduce=reduce, dtypes=("float32",), sizes=(4,))


def two_orders(coordinator: Coordinator) -> None:
    for rank in WORLD:
        for number, group in enumerate("21" if rank == 3 else "12", 1):
            call = Call(number, group=group, members=WORLD, place=f"a.py:{group}", op="all_reduce")
            coordinator.post_call(rank, call)


def begin_with_batch(coordinator: Coordinator) -> None:
    for rank, op in ((0, "send"), (1, "recv")):
        ask(coordinator, rank, op, peer=1 - rank, batched=True)
    for rank in WORLD:
        ask(coordinator, rank, "new_group", 2, group="world")


def share_gpus(coordinator: Coordinator) -> None:
    for rank in WORLD:
        gpu = "0" if rank < 2 else str(rank)
        ask(coordinator, rank, "all_reduce", gpu=gpu, gpu_place="train.py:3")
    for rank in WORLD:
        coordinator.end_rank(rank, Ending("ended", "ended"))


def agreed(coordinator: Coordinator) -> None:
    for rank in WORLD:
        ask(coordinator, rank, "all_reduce")
    for rank in WORLD:
        coordinator.end_rank(rank, Ending("ended", "ended"))


def failed_alike(coordinator: Coordinator) -> None:
    for rank in WORLD:
        coordinator.end_rank(rank, Ending("failed", "FileNotFoundError: data.bin", "train.py:3"))


def judged(folder: Path, play: Callable[[Coordinator], None], shown_gpus: str = "all") -> Any:
    coordinator = Coordinator(4, shown_gpus=shown_gpus)
    play(coordinator)
    coordinator.complete_verdict()
    assert coordinator.verdict is not None
    run = folder / "runs" / "1-rehearse"
    run.mkdir(parents=True)
    answer = run / "rehearsal.json"
    options = {"answer": str(answer), "ranks": 4, "host_ranks": 4}
    code = write_verdict(options, coordinator.verdict, {})
    reason = "failed" if code else "done"
    (run / "status.json").write_text(f'{{"reason": "{reason}", "exitcode": {code}, "ended": 1.8e9}}')
    return judged_files(folder)


@pytest.mark.parametrize(
    ("play", "cause", "ranks"),
    [
        (other_call, "rank_divergence", (2,)),
        (other_size, "shape_mismatch", (3,)),
        (other_splits, "send_recv_mismatch", (1, 3)),
        (left_early, "rank_divergence", (1,)),
        (raised, "rank_exception", (2,)),
        (killed, "rank_killed", (2,)),
        (crossed_groups, "concurrent_comms", (0,)),
        (group_of_some, "rank_divergence", (0,)),
        (unpaired_send, "send_recv_mismatch", (2,)),
        (other_reduction, "rank_divergence", (1,)),
        (two_orders, "concurrent_comms", (3,)),
        (begin_with_batch, "rank_divergence", (2, 3)),
        (share_gpus, "duplicate_gpu", (0, 1)),
        (unequal_pair, "send_recv_mismatch", (0, 1)),
    ],
)
def test_a_faulty_rehearsal_is_the_cause_that_dumps_would_show(tmp_path, play, cause, ranks):
    found = judged(tmp_path, play)
    first = found.findings[0]
    # who sent a signal, and whether NCCL itself waits, a rehearsal does not know
    strength = "likely" if play in (killed, two_orders, begin_with_batch) else "proven"
    assert (first.cause, first.strength) == (cause, strength), found
    assert first.culprits["ranks"] == ranks
    assert found.headline.startswith("Rehearsal of 4 ranks: ")
    # what its lines resemble, and NCCL, which did not run, are suspected of nothing
    assert {finding.cause for finding in found.findings} <= {cause, *BESIDE.get(cause, ())}


def test_ranks_that_agreed_are_healthy_and_were_rehearsed(tmp_path):
    found = judged(tmp_path, agreed)
    assert (found.verdict, found.findings) == ("healthy", ())
    assert "all 4 ranks of the rehearsal agreed" in found.headline


def test_what_could_not_be_told_is_not_healthy(tmp_path):
    """The rehearsal says itself why; what its sentence resembles is not suspected."""
    found = judged(tmp_path, failed_alike)
    assert (found.verdict, found.findings) == ("unexplained", ())
    assert found.headline.startswith("A rehearsal of 4 ranks could not tell: ")
    assert "FileNotFoundError: data.bin at train.py:3" in found.headline
    assert "more causes" not in found.text()


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_interrupted_rehearsal_suspects_nothing(tmp_path, monkeypatch, has_ended):
    """Where a verdict had been written before, that one stays."""
    run = tmp_path / "runs" / "1-rehearse"
    run.mkdir(parents=True)

    async def interrupt(*_: Any) -> None:
        (run / "status.json").write_text('{"reason": "cancelled", "exitcode": null, "ended": 1.8e9}')
        if has_ended:
            judged(tmp_path / "other", agreed)
            next((tmp_path / "other").rglob("rehearsal.json")).rename(run / "rehearsal.json")
        raise asyncio.CancelledError

    monkeypatch.setattr(rehearse.local, "run_under_guard", interrupt)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(rehearse.run_ranks(run, "python", [], rehearse.RankOptions(4, 4, 20, 60.0)))
    found = judged_files(run)
    assert found.findings == () and "Suspected" not in found.text()
    told = "A rehearsal of 4 ranks was interrupted: could not tell"
    assert (told in found.headline) == (not has_ended), found.headline


def two_calls(coordinator: Coordinator) -> None:
    for rank in WORLD:
        ask(coordinator, rank, "barrier" if rank < 2 else "all_reduce")


def two_sizes(coordinator: Coordinator) -> None:
    for rank in WORLD:
        size = 6 if rank < 2 else 8
        place = f"train.py:{size}"
        ask(coordinator, rank, "all_reduce", sizes=(size,), shapes=(f"[{size}]",), place=place)


@pytest.mark.parametrize(
    ("play", "lines"),
    [
        (two_calls, ("ranks 0 and 1 called barrier at train.py:7", "at train.py:10")),
        (two_sizes, ("ranks 0 and 1 at train.py:6", "ranks 2 and 3 at train.py:8")),
    ],
)
def test_of_two_sides_as_large_both_are_said_with_their_lines(tmp_path, play, lines):
    said = judged(tmp_path, play).findings[0].say
    assert said.endswith("Without a majority the rehearsal does not tell which of them is wrong.")
    for line in lines:
        assert line in said


def test_what_was_seen_besides_is_said_with_the_verdict(tmp_path):
    judged(tmp_path, agreed)
    file = next(tmp_path.rglob("rehearsal.json"))
    note = "Rank 2 waited 3 s, which is more than the job allows."
    file.write_text(json.dumps(json.loads(file.read_text()) | {"notes": [note]}))
    found = judged_files(tmp_path)
    assert (found.verdict, found.headline.endswith(f" {note}")) == ("healthy", True), found


def test_of_an_unknown_launcher_one_gpu_is_a_suspicion(tmp_path):
    (finding,) = judged(tmp_path, share_gpus, "unknown").findings
    assert (finding.cause, finding.strength) == ("duplicate_gpu", "possible")
    assert "unless the launcher shows each rank one of its own" in finding.say


@pytest.mark.parametrize("play", [agreed, left_early, crossed_groups, failed_alike])
def test_tensors_without_values_are_said(tmp_path, play):
    assert "had no values" not in judged(tmp_path, play).headline
    file = next(tmp_path.rglob("rehearsal.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"figures": {"fake": True}}))
    found = judged_files(tmp_path)
    assert "had no values" in found.headline, found


def test_empty_records_of_a_case_are_nothing_that_was_not_understood(tmp_path):
    judged(tmp_path, agreed)
    for name in ("facts.jsonl", "measurements.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "rank0.log").touch()
    empty = [row["path"] for row in read_files(tmp_path).inputs if row["kind"] == "empty"]
    assert empty == [str(tmp_path / "rank0.log")]


def test_a_damaged_verdict_is_no_evidence(tmp_path):
    (tmp_path / "rehearsal.json").write_text('{"ncclkit_rehearsal": 1, "kind": "left", "calls": 7}')
    assert judged_files(tmp_path).verdict == "no_job"
