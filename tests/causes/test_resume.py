"""Advice on a replay of data, and ranks that come when the others have given up."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes.engine import diagnose
from ncclkit.causes.slow_rank import keep_position
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.evidence.samples import sample


def stack(*frames: tuple[str, str]) -> Case:
    case = Case()
    rows = [{"file": file, "line": 1, "func": func} for file, func in frames]
    case.events = [Event("stack", rank=1, data={"frames": rows})]
    return case


@pytest.mark.parametrize(
    ("frame", "helps"),
    [
        (("train.py", "skip_batches"), True),
        (("site-packages/accelerate/data_loader.py", "skip_first_batches"), True),
        (("loop.py", "fast_forward"), True),
        (("train.py", "resume_from"), True),
        (("train.py", "torch_dynamo_resume_in_forward_at_12"), False),
        (("site-packages/torch/cuda/graphs.py", "replay"), False),
        (("train.py", "tokenize"), False),
    ],
)
def test_who_reads_data_again_is_told_to_keep_its_place(frame: tuple[str, str], helps: bool) -> None:
    advice = keep_position(stack(("data.py", "fetch"), frame), (1,))
    assert [bool(a.code and a.why and a.check and a.risk) for a in advice] == [True] * helps
    assert keep_position(stack(("data.py", "fetch"), frame), (2,)) == ()


def test_the_recorded_late_rank_gets_it_first() -> None:
    first = diagnose(sample("rank_late")).findings[0]
    assert first.cause == "slow_rank" and "StatefulDataLoader" in first.advice[0].code


def waits(*rows: tuple[int, float, int, str, int | None]) -> Case:
    """(rank, time at which it gave up, number, operation, milliseconds that it waited)"""
    case = Case()
    base: dict[str, Any] = {"timeout_ms": 12_000, "pg": "0", "desc": "default_pg", "api": "nccl"}
    case.events = [
        Event(
            "c10d.timeout", f"rank {r}", "job.log", r + 1, time, rank=r, data=base | {"seq": n, "op": op, "ran_ms": ran}
        )
        for r, time, n, op, ran in rows
    ]
    return case


def test_a_rank_that_came_when_the_others_had_given_up_was_late_and_not_elsewhere() -> None:
    """Recorded on 4 x H200: NCCL's ranks live for a minute after their timeout, and answer a rank that comes."""
    others = [(rank, 100.0 + rank / 100, 496, "_ALLGATHER_BASE", 12_007) for rank in (0, 1, 3)]
    late = waits(*others, (2, 121.3, 499, "_REDUCE_SCATTER_BASE", 12_032))
    assert sorted(rank_states(late).waiting) == [0, 1, 3]
    assert diagnose(late).findings[0].cause != "rank_divergence"
    elsewhere = waits(*others, (2, 100.9, 499, "_REDUCE_SCATTER_BASE", 12_032))
    assert sorted(rank_states(elsewhere).waiting) == [0, 1, 2, 3]
    assert diagnose(elsewhere).findings[0].cause == "rank_divergence"


def test_half_of_the_ranks_and_one_without_a_duration_are_not_called_late() -> None:
    rows = [(0, 100.0, 5, "ALLREDUCE", 12_000), (1, 900.0, 5, "ALLREDUCE", 12_000)]
    assert sorted(rank_states(waits(*rows)).waiting) == [0, 1]  # two clocks, perhaps
    assert sorted(rank_states(waits(*rows, (2, 900.0, 5, "ALLREDUCE", None))).waiting) == [0, 2]
