"""torchcomms and NCCLX: who a line is of, what a log says, and what clog files and recorders hold."""

from __future__ import annotations

import pytest

from tests.cases import judged_text

HEAD = "E0826 14:14:33.200000 5711 TorchCommNCCL.cpp:532] "


def lines(*said: tuple[int, str], name: str = "main_comm") -> str:
    return "".join(f"{HEAD}[TC][rank={rank}][name={name}] {text}\n" for rank, text in said)


def timed_out(*ranks: int, name: str = "main_comm") -> str:
    return lines(*((rank, "Operation timed out after 30000 ms") for rank in ranks), name=name)


@pytest.mark.parametrize(("name", "rank"), [("main_comm", 3), ("default_pg", 3), ("0", 3), ("tp", None), ("mesh_2", None)])
def test_the_prefix_names_the_rank_of_the_job_in_a_communicator_of_all_ranks_only(read_text, name, rank):
    (event,) = read_text(f"{HEAD}[TC][rank=3][name={name}] nccl hit async error: unhandled system error\n").events
    assert event.rank == rank


def test_a_launchers_own_word_for_the_rank_counts_more(read_text):
    (event,) = read_text("[rank7]:[E826 14:14:33.2 x.cpp:9] " + timed_out(3).removeprefix(HEAD)).events
    assert event.rank == 7


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (timed_out(0, 1, 3, name="trainer"), {0, 1, 3}),  # any name, as long as it is the only one
        (timed_out(0, 1, 3, name="tp"), {None}),
        (timed_out(0, 1, name="red") + timed_out(0, name="blue"), {None}),
        (timed_out(0, 1, name="red") + lines((0, "TorchCommNCCL initialized for rank: 0"), name="blue"), {None}),
    ],
)
def test_ranks_of_a_communicator_are_those_of_the_job_where_it_is_the_only_one(read_text, text, ranks):
    assert {event.rank for event in read_text(text).events if event.kind == "c10d.timeout"} == ranks


def test_ranks_of_a_part_of_the_job_accuse_nobody():
    finding = judged_text(timed_out(0, 1, 3, name="tp")).findings[0]
    assert finding.strength == "possible" and not finding.culprits["ranks"]


def test_the_rank_that_all_others_waited_for_is_named():
    finding = judged_text(timed_out(0, 1, 3)).findings[0]
    assert finding.cause == "slow_rank" and list(finding.culprits["ranks"]) == [2]


def test_an_abort_alone_says_who_waited():
    text = "Aborting process due to timeout on rank 3 - timeout watchdog detected operation timeout"
    finding = judged_text(lines((3, text))).findings[0]
    assert finding.cause == "slow_rank" and "rank 3 timed out" in finding.say


def test_a_job_that_revokes_a_communicator_and_goes_on_is_healthy():
    revoked = "Revoking communicator on rank 0 - watchdog detected error (reconfigurable mode)"
    error = "Async error on rank 0: remote process exited or there was a network error (reconfigurable mode)"
    steps = "".join(f"step {number} loss 2.1\n" for number in range(2, 5))
    assert judged_text("step 1 loss 2.3\n" + lines((0, error), (0, revoked)) + steps + "training done\n").verdict == "healthy"


def test_a_log_that_ends_well_is_healthy():
    begun = lines(*((rank, "TorchCommNCCL initialized for rank: 0") for rank in range(2)))
    ended = lines(*((rank, "Timeout thread exiting for rank: 0") for rank in range(2)))
    steps = "".join(f"step {number} loss 2.1\n" for number in range(1, 4))
    assert judged_text(begun + steps + ended + "training done\n").verdict == "healthy"
