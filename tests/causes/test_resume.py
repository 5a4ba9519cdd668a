"""Advice on a replay of data, and ranks that come when the others have given up."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes.engine import diagnose
from ncclkit.causes._resuming import keep_position
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event
from ncclkit.evidence.logs import read_logs
from ncclkit.evidence.samples import open_sample


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
    first = diagnose(open_sample("rank_late")).findings[0]
    assert first.cause == "slow_rank" and "StatefulDataLoader" in first.advice[0].code


WATCHDOG = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=300000) ran for 300527 milliseconds before timing out.\n"
)


def advised(log: str) -> tuple[Advice, ...]:
    """What is advised of the late rank."""
    findings = diagnose(read_logs(log)).findings
    return next(finding.advice for finding in findings if finding.cause == "slow_rank")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("resume iter 890000", "StatefulDataLoader(dataset, ...)"),
        ("skipping batches", "StatefulDataLoader(dataset, ...)"),
        ("Resuming from checkpoint out/iter-890000-ckpt.pth", "StatefulDataLoader(dataset, ...)"),
        ("Restored all states from the checkpoint at logs/epoch=2.ckpt", "LightningDataModule"),
        ("  Continuing training from checkpoint, will skip to saved global_step", "ignore_data_skip"),
        ("Will skip the first 2 epochs then the first 400 batches in the first epoch.", "ignore_data_skip"),
        ("accelerate launch train.py\nskipping batches", "DataLoaderConfiguration"),
    ],
)
def test_a_timeout_after_a_resume_is_told_to_save_the_loader_before_more_time(said: str, code: str) -> None:
    done = [advice.do for advice in advised(f"{said}\n{WATCHDOG.format(seq=2)}")]
    keep = next(advice for advice in advised(f"{said}\n{WATCHDOG.format(seq=2)}") if "place in its data" in advice.do)
    assert code in keep.code and said.splitlines()[-1].strip() in keep.why and keep.check and keep.risk
    longer = [number for number, do in enumerate(done) if do.startswith("Raise the timeout")]
    assert longer and done.index(keep.do) < longer[0]


@pytest.mark.parametrize(
    ("said", "seq"),
    [
        ("loading the data", 2),
        ("resume_from_checkpoint=None", 2),
        ("Resuming from checkpoint: None", 2),
        ("[rank1]: loss is nan, skipping this batch", 2),
        ("resume iter 890000", 51234),
    ],
    ids=["a fresh start", "no checkpoint", "none found", "one batch", "hours after the resume"],
)
def test_who_did_not_just_resume_is_not_told_of_loaders(said: str, seq: int) -> None:
    findings = diagnose(read_logs(f"{said}\n{WATCHDOG.format(seq=seq)}")).findings
    assert findings and not any("place in its data" in a.do for finding in findings for a in finding.advice)


def test_a_resumed_job_that_goes_on_is_told_nothing() -> None:
    log = "resume iter 890000\nstep 890100/900000 loss 2.1\nstep 890200/900000 loss 2.0\n"
    assert diagnose(read_logs(log)).findings == ()


def test_where_nobody_knows_what_the_rank_did_a_look_stands_first() -> None:
    done = [advice.do for advice in advised(WATCHDOG.format(seq=2))]
    assert done[0].startswith("Look first: ") and done[-1].startswith("Raise the timeout")


def test_where_a_stack_shows_what_the_rank_did_no_look_stands_before_the_remedy() -> None:
    known = diagnose(open_sample("rank_late")).findings[0]
    assert known.strength in ("likely", "proven")
    assert not any(advice.do.startswith("Look first: ") for advice in known.advice)


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
