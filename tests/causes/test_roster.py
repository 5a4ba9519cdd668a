"""The roster of a job, from how its ranks announce themselves: doubled, beyond, of two sizes, or unknown to others."""

from __future__ import annotations


import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.model import Finding
from tests.cases import read_text

LIGHTNING = "Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {member}/{world}\n"


def members(ranks: range, world: int) -> str:
    return "".join(LIGHTNING.format(rank=rank, member=rank + 1, world=world) for rank in ranks)


def verdict(log: str) -> Finding | None:
    """What the cause says; None where it finds nothing."""
    case = read_text(log)
    diagnose(case)
    found = [f for f in case.findings if f.cause == "world_size_mismatch" and f.verdict == "found"]
    return found[0] if found else None


def test_two_launchers_that_claim_the_same_ranks() -> None:
    finding = verdict(members(range(4), 8) + members(range(4), 8))
    assert finding and finding.strength == "likely" and finding.culprits["ranks"] == (0, 1, 2, 3)
    assert "ranks 4-7 never" in finding.say


def test_ranks_of_jobs_of_two_sizes() -> None:
    finding = verdict(members(range(2), 4) + members(range(2, 4), 8))
    assert finding and finding.strength == "likely" and "4 and 8" in finding.say


def test_a_rank_beyond_the_job() -> None:
    finding = verdict(members(range(5, 6), 4) + members(range(4), 4))
    assert finding and finding.strength == "likely" and finding.culprits["ranks"] == (5,)


def test_processes_that_know_nothing_of_one_another() -> None:
    lines = (f"#  Rank  0 Group  0 Pid  {pid} on  n-1 device  0 [0x07] NVIDIA A100\n" for pid in (31, 32, 33))
    finding = verdict("".join(lines))
    assert finding and finding.strength == "likely" and "3 processes" in finding.say


@pytest.mark.parametrize(
    "form", ["Hello from rank 0 of 1 on {}\n", "Hello world from {}, rank 0 out of 1 processors\n"]
)
def test_processes_that_an_mpi_of_another_build_starts_alone(form: str) -> None:
    finding = verdict("".join(form.format(f"node-{n}") for n in range(4)))
    assert finding and finding.strength == "likely" and "4 processes" in finding.say
    assert verdict(form.format("node-1")) is None


@pytest.mark.parametrize(
    "log",
    [
        members(range(8), 8),
        members(range(4), 8),
        members(range(2), 2) + "step 10/90 loss 2.1\n" + members(range(2), 2) + "step 20/90 loss 1.9\n",
        members(range(2), 2) + "`Trainer.fit` stopped: `max_epochs=3` reached.\n",
    ],
)
def test_a_job_whose_ranks_come_once_or_have_met(log: str) -> None:
    assert verdict(log) is None
