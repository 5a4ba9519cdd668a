"""Ranks that a program left out as it shrank a communicator are known by who stays, and only where that tells it."""

from __future__ import annotations

import pytest

from ncclkit import evidence
from ncclkit.analysis.shrinks import shrinks
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import summarize
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.causes.specimens import ROOT


def init_line(old: int, rank: int, size: int, rest: str, api: str = "ncclCommInitRank", comm: int = 0x55D0) -> str:
    head = f"node-1:{4000 + old}:{4050 + old} [{old}] NCCL INFO {api} comm {comm + old:#x} rank {rank} nranks {size}"
    return f"{head} cudaDev {old} nvmlDev {old} busId {old + 1}b000 {rest}- Init START\n"


def log_of(ranks: int, stays: list[int], said: list[int], again: list[int] | None = None) -> str:
    """A job of so many ranks, of which some stay, and some of these say so."""
    lines = [init_line(rank, rank, ranks, "commId 0x9a ") for rank in range(ranks)]
    for old in said:
        rest = f"parent {0x55D0 + old:#x} splitCount 0 color 0 key {old}"
        lines.append(init_line(old, stays.index(old), len(stays), rest, "ncclCommShrink", 0x66E0))
    for old in again or ():
        rest = f"parent {0x66E0 + old:#x} splitCount 0 color 0 key {stays.index(old)}"
        lines.append(init_line(old, again.index(old), len(again), rest, "ncclCommShrink", 0x77F0))
    return "".join(lines)


@pytest.mark.parametrize(
    ("stays", "said", "left_out", "unnamed"),
    [
        ([0, 1, 2], [0, 1, 2], (3,), 0),
        ([0, 3], [0, 3], (1, 2), 0),
        ([1, 2, 3], [1], (0,), 0),
        # of 2 and 3 one stays that says nothing
        ([0, 1, 2], [0, 1], (), 1),
        ([0, 1, 2], [2], (3,), 0),
    ],
    ids=["the last", "two in the middle", "the first", "one of two", "by the last one alone"],
)
def test_who_is_left_out_is_known_by_those_that_stay(stays, said, left_out, unnamed, tmp_path):
    (tmp_path / "job.log").write_text(log_of(4, stays, said))
    (shrink,) = shrinks(evidence.read([tmp_path / "job.log"]).events)
    assert (shrink.left_out, shrink.unnamed, shrink.size) == (left_out, unnamed, len(stays))


def test_a_second_shrink_names_global_ranks(tmp_path):
    (tmp_path / "job.log").write_text(log_of(4, [0, 2, 3], [0, 2, 3], again=[0, 3]))
    events = evidence.read([tmp_path / "job.log"]).events
    assert [shrink.left_out for shrink in shrinks(events)] == [(1,), (2,)]


def test_a_split_and_a_shrink_without_its_parent_leave_nobody_out(tmp_path):
    split = log_of(4, [0, 1], [0, 1]).replace("ncclCommShrink", "ncclCommSplit")
    alone = "".join(log_of(4, [0, 1, 2], [0, 1, 2]).splitlines(keepends=True)[4:])
    for text in (split, alone):
        (tmp_path / "job.log").write_text(text)
        assert shrinks(evidence.read([tmp_path / "job.log"]).events) == []


@pytest.mark.parametrize(
    ("specimen", "ranks"),
    [("found-left-out", (3,)), ("clear-left-out-on-purpose", None), ("clear-went-on-without-one", None)],
)
def test_who_was_left_out_is_said_and_accused_only_of_a_job_that_failed(specimen, ranks):
    case = Case()
    fill(case, evidence.read([ROOT / "rank_exception" / specimen / "job.log"]))
    diagnosis = diagnose(case)
    assert summarize(case, diagnosis).job.left_out == "without rank 3 since ncclCommShrink"
    blamed = [tuple(finding.culprits["ranks"]) for finding in diagnosis.findings if "left rank 3" in finding.say]
    assert blamed == ([] if ranks is None else [ranks])
