"""Numbers inside one line are checked against each other before a finding cites them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.analysis.gpu_memory import other_processes
from ncclkit.core.model import Finding
from tests.cases import judged_log

CARD = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of "
    "23.65 GiB of which 10.62 MiB is free. "
)
ITSELF = "Process 4711 has 22.00 GiB memory in use. "
TORCH = (
    "Of the allocated memory 20.90 GiB is allocated by PyTorch, and 612.00 MiB is reserved by PyTorch but unallocated."
)
OWN = "Including non-PyTorch memory, this process has {} GiB memory in use. "


def oom(tmp_path: Path, said: str) -> Finding:
    (first, *_) = judged_log(tmp_path, f"{CARD}{said}\n").findings
    assert first.cause == "gpu_oom"
    return first


def test_the_rank_itself_is_not_another_process(tmp_path: Path) -> None:
    """In a container the driver lists the rank under a number that the rank does not know."""
    first = oom(tmp_path, ITSELF + TORCH)
    assert "other process" not in first.say and "another process" not in first.say
    assert not any("end other processes on this one" in advice.do for advice in first.advice)


def test_a_process_beside_the_rank_is_named(tmp_path: Path) -> None:
    first = oom(tmp_path, OWN.format("1.50") + ITSELF + TORCH.replace("20.90 GiB", "512.00 MiB"))
    assert first.say.endswith("; another process holds 22.00 GiB.")
    assert any("end other processes on this one" in advice.do for advice in first.advice)


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        (OWN.format("22.00") + ITSELF + TORCH, ()),  # together more than the card has: the same one twice
        (ITSELF, ()),  # nothing tells whether it is the rank
        (ITSELF + "Process 9 has 1.20 GiB memory in use. " + TORCH, ("1.20 GiB",)),
        ("Process 8 has 10.80 GiB memory in use. Process 9 has 10.80 GiB memory in use. "
         + TORCH.replace("20.90", "10.00"), ("10.80 GiB",)),
        ("Process 8 has 10.80 GiB memory in use. Process 9 has 11.40 GiB memory in use. "
         + TORCH.replace("20.90", "10.00"), ()),  # either may be the rank
        (OWN.format("12.1.3") + TORCH, ()),
        ("", ()),
    ],
)  # fmt: skip
def test_sums_are_checked_before_a_process_is_named(said: str, sizes: tuple[str, ...]) -> None:
    assert other_processes(CARD + said).sizes == sizes


WATCHDOG = (
    "[rank{rank}]:[E1121 00:41:07.204118377 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={limit}) ran for {ran} "
    "milliseconds before timing out.\n"
)


@pytest.mark.parametrize(("limit", "strength"), [(1, "proven"), (500, "likely")])
def test_a_timeout_of_milliseconds_is_the_reason_and_no_rank(tmp_path: Path, limit: int, strength: str) -> None:
    log = "".join(WATCHDOG.format(rank=rank, limit=limit, ran=limit + 96) for rank in (0, 1))
    found = judged_log(tmp_path, log).findings
    assert (found[0].cause, found[0].strength) == ("timeout_too_short", strength)
    assert f"timed out after {limit} ms" in found[0].say and "no rank needs to have been late" in found[0].say
    assert "slow_rank" not in {finding.cause for finding in found}


def test_a_timeout_of_half_a_minute_still_leaves_open_who_was_late(tmp_path: Path) -> None:
    found = judged_log(tmp_path, WATCHDOG.format(rank=0, limit=30000, ran=30044)).findings
    assert {"slow_rank", "timeout_too_short"} <= {finding.cause for finding in found}
    assert all(finding.strength == "possible" for finding in found)
