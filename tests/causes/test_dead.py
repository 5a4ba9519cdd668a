"""Dead jobs: which rank left the common path, by its program, its dumps and its traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import dead_jobs
from tests.dead_jobs import (
    BARRIER,
    EVALUATES,
    IN_LOOP,
    CLOSED,
    dump,
    in_barrier,
    in_evaluation,
    in_loop,
    judged_dead,
    program,
    read_dead,
    stack,
    torchrun,
    traceback,
)

BRANCH = "it is inside `if rank == 0` at train.py:8."


def diverged(folder: Path, path: str) -> None:
    """Dumps of two ranks, of which rank 0 evaluates alone."""
    dump(folder / "dumps", 0, "all_gather", in_evaluation(path))
    dump(folder / "dumps", 1, "barrier", in_barrier(path))


def test_of_two_dumps_the_rank_in_a_branch_left_the_path(tmp_path: Path) -> None:
    diverged(tmp_path, program(tmp_path))
    first = judged_dead(tmp_path).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "proven", (0,))
    assert first.say.endswith(f"rank 0 left the common path: {BRANCH}")
    assert "dist.all_gather" not in first.say and any(line.text == "evaluate(batches)" for line in first.evidence)


def test_the_rank_after_the_loop_of_the_other_left_the_path(tmp_path: Path) -> None:
    path = program(tmp_path)
    dump(tmp_path / "dumps", 0, "all_reduce", in_loop(path))
    dump(tmp_path / "dumps", 1, "barrier", in_barrier(path))
    first = judged_dead(tmp_path).findings[0]
    assert first.culprits["ranks"] == (1,) and first.say.endswith("it is after the loop at train.py:5.")


def test_without_the_program_both_sides_are_shown(tmp_path: Path) -> None:
    diverged(tmp_path, "/gone/train.py")
    first = judged_dead(tmp_path).findings[0]
    assert first.culprits["ranks"] == (0, 1)
    assert "rank 0 at train.py:13 (evaluate)" in first.say and "rank 1 at train.py:9 (train)" in first.say


def test_the_program_lies_in_the_folder_that_was_named(tmp_path: Path) -> None:
    diverged(tmp_path, "/gone/job/train.py")
    (tmp_path / "here" / "job").mkdir(parents=True)
    program(tmp_path / "here" / "job")
    assert judged_dead(tmp_path, source=str(tmp_path / "here")).findings[0].culprits["ranks"] == (0,)


@pytest.mark.parametrize(
    "changed",
    [
        dead_jobs.PROGRAM.replace("import", "import os\nimport", 1),
        dead_jobs.PROGRAM[: dead_jobs.PROGRAM.index("def evaluate")],
        dead_jobs.PROGRAM.replace("    evaluate(batches)\n", "    pass\n"),
        "def train(:\n",
    ],
    ids=["a line more", "shorter", "another call", "no Python"],
)
def test_a_program_that_has_changed_names_nobody(tmp_path: Path, changed: str) -> None:
    diverged(tmp_path, program(tmp_path, changed))
    assert judged_dead(tmp_path).findings[0].culprits["ranks"] == (0, 1)
    assert any("may have changed since" in problem for problem in read_dead(tmp_path).problems)


def test_a_majority_is_not_overruled_by_a_branch(tmp_path: Path) -> None:
    path = program(tmp_path)
    for rank in 0, 1:
        dump(tmp_path / "dumps", rank, "all_gather", in_evaluation(path))
    dump(tmp_path / "dumps", 2, "barrier", in_barrier(path))
    assert judged_dead(tmp_path).findings[0].culprits["ranks"] == (2,)


def test_tracebacks_alone_tell_of_the_branch(tmp_path: Path) -> None:
    path = program(tmp_path)
    log = traceback(0, in_evaluation(path)) + traceback(1, in_barrier(path), CLOSED)
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "likely", (0,))
    assert first.say.startswith("Rank 0 was in all_gather at train.py:13 (evaluate) where rank 1 was in barrier")
    assert first.say.endswith(BRANCH)


def test_tracebacks_at_different_lines_without_the_program(tmp_path: Path) -> None:
    log = traceback(0, in_evaluation("/gone/train.py")) + traceback(1, in_barrier("/gone/train.py"))
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "possible", (0, 1))


def test_one_rank_still_in_a_broadcast_may_have_lost_its_network(tmp_path: Path) -> None:
    """The healthy twin: whoever sends has the call behind it, and waits in the next one."""
    path = program(tmp_path)
    log = traceback(0, in_barrier(path)) + traceback(1, stack(path, [(IN_LOOP - 1, "train")], "broadcast"))
    assert all("waited for each other" not in finding.say for finding in judged_dead(tmp_path, log).findings)


def test_tracebacks_at_one_line_are_no_divergence(tmp_path: Path) -> None:
    """The healthy twin: all made the same call, which the network did not carry."""
    path = program(tmp_path)
    log = traceback(0, in_barrier(path)) + traceback(1, in_barrier(path))
    assert all("left the common path" not in finding.say for finding in judged_dead(tmp_path, log).findings)


def test_a_silent_third_rank_keeps_others_from_being_accused(tmp_path: Path) -> None:
    """The healthy twin: two groups, each in its own call, both of which wait for the third rank."""
    path = program(tmp_path)
    log = traceback(0, in_evaluation(path)) + traceback(1, in_barrier(path)) + torchrun({0: 1, 1: 1, 2: -15}, [2])
    assert all("left the common path" not in finding.say for finding in judged_dead(tmp_path, log).findings)


def test_a_send_and_its_receive_stand_at_different_lines(tmp_path: Path) -> None:
    """The healthy twin: a pair whose connection broke."""
    path = program(tmp_path)
    send, recv = stack(path, [(8, "train")], "send"), stack(path, [(9, "train")], "recv")
    found = judged_dead(tmp_path, traceback(0, send) + traceback(1, recv)).findings
    assert all(finding.cause != "rank_divergence" or finding.strength == "possible" for finding in found)


# ---------------------------------------------------------------- what exceptions and the launcher say


def key_error(key: str) -> str:
    return f"torch.distributed.DistStoreError: wait timeout after 15000ms, keys: {key}"


def test_a_rank_that_waits_for_a_key_is_the_late_one(tmp_path: Path) -> None:
    path = program(tmp_path)
    waits = traceback(1, stack(path, [(EVALUATES, "train"), (14, "evaluate")], ""), key_error("/default_pg/0//data_ready"))
    first = judged_dead(tmp_path, traceback(0, in_barrier(path)) + waits).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "likely", (1,))
    assert "Rank 1, waiting for the key data_ready, which no rank set, in train.py:14 (evaluate)," in first.say
    assert "had not entered barrier at train.py:9 (train); rank 0 timed out after 15 s" in first.say


def test_a_key_of_torch_itself_says_nothing_of_the_program(tmp_path: Path) -> None:
    """The healthy twin: the key of a group that torch makes, for which ranks wait inside of torch."""
    path = program(tmp_path)
    waits = traceback(1, stack(path, [(EVALUATES, "train")], "new_group"), key_error("/default_pg/0//cpu//0/0"))
    found = judged_dead(tmp_path, traceback(0, in_barrier(path)) + waits).findings
    assert all("waiting for the key" not in finding.say for finding in found)


def test_the_address_that_gloo_waits_for_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    start = stack(program(tmp_path), [(EVALUATES, "train")], "init_process_group")
    log = traceback(0, start, key_error("/default_pg/0//cpu//0/1")).replace("[rank0]: ", "")
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "possible", (1,))


def group_of_rank_0(path: str) -> str:
    _, made = stack(path, [(EVALUATES, "train")], "new_group")
    return traceback(0, [(path, EVALUATES, "train", "dist.new_group()"), made], key_error("/default_pg/0//1//cpu//0/1"))


def watchdog(rank: int, op: str = "ALLREDUCE") -> str:
    """A collective of NCCL that timed out on a rank."""
    return (
        f"[rank{rank}]:[E1128 07:06:54.031657730 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog"
        f" caught collective operation timeout: WorkNCCL(SeqNum=4, OpType={op}, NumelIn=64,"
        " NumelOut=64, Timeout(ms)=15000) ran for 15022 milliseconds before timing out.\n"
    )


def test_a_group_that_some_ranks_make_is_a_call_of_all(tmp_path: Path) -> None:
    path = program(tmp_path, dead_jobs.PROGRAM.replace("evaluate(batches)\n", "dist.new_group()\n", 1))
    first = judged_dead(tmp_path, watchdog(1) + group_of_rank_0(path)).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "likely", (0,))
    assert first.say.startswith("Rank 0 made a group in new_group at train.py:8 (train), which every rank")
    assert f"where rank 1 waited in ALLREDUCE; rank 0 left the common path: {BRANCH}" in first.say


def test_of_two_ranks_without_the_program_neither_is_named_for_a_group(tmp_path: Path) -> None:
    first = judged_dead(tmp_path, watchdog(1) + group_of_rank_0("/gone/train.py")).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("rank_divergence", (0, 1))


@pytest.mark.parametrize("more", ["", watchdog(0)], ids=["nobody waits", "who makes it waits, too"])
def test_a_group_that_all_ranks_make_is_no_divergence(tmp_path: Path, more: str) -> None:
    """The healthy twin: the calls are the same, and the network or the store is at fault."""
    path = program(tmp_path)
    log = more + group_of_rank_0(path) + group_of_rank_0(path).replace("[rank0]", "[rank1]")
    found = judged_dead(tmp_path, log).findings
    assert all("made a group" not in finding.say for finding in found)


def test_a_call_after_the_communicator_was_aborted_is_no_fault_of_nccl(tmp_path: Path) -> None:
    """A rank that timed out is let go, and its next call finds an aborted communicator."""
    path = program(tmp_path)
    aborted = "torch.distributed.DistBackendError: NCCL error in: x.cpp:4257, internal error - please report"
    later = traceback(1, stack(path, [(BARRIER, "train")], "isend"), aborted)
    found = judged_dead(tmp_path, watchdog(0, "RECV") + watchdog(1, "RECV") + later).findings
    assert found[0].cause == "send_recv_mismatch"
    (tmp_path / "alone").mkdir()
    alone = judged_dead(tmp_path / "alone", later).findings
    assert "nccl_bug" in [finding.cause for finding in alone]


def test_the_line_in_which_a_rank_timed_out_is_said(tmp_path: Path) -> None:
    log = traceback(0, in_loop(program(tmp_path))) + torchrun({0: 1, 1: -15}, [1])
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "possible", (1,))
    assert first.say.startswith("Rank 1 may have been late for all_reduce at train.py:6 (train); rank 0 timed out")


def test_who_of_two_silent_ranks_was_late_is_not_guessed(tmp_path: Path) -> None:
    log = traceback(0, in_loop(program(tmp_path))) + torchrun({0: 1, 1: -15, 2: -15}, [1, 2])
    assert judged_dead(tmp_path, log).findings[0].culprits["ranks"] == ()


def test_a_closed_pair_is_an_echo_of_the_timeout(tmp_path: Path) -> None:
    path = program(tmp_path)
    closed = traceback(1, in_loop(path), "RuntimeError: Application timeout caused pair closure")
    found = judged_dead(tmp_path, closed + torchrun({1: 1, 0: -15}, [0])).findings
    assert all(finding.cause != "rank_exception" or finding.strength == "possible" for finding in found)
    assert (found[0].cause, found[0].culprits["ranks"]) == ("slow_rank", (0,))


HANDLER = "/venv/lib/python3.11/site-packages/lightning/pytorch/trainer/connectors/signal_connector.py"


def test_a_rank_stood_where_the_signal_met_it(tmp_path: Path) -> None:
    path = program(tmp_path)
    handler = [(HANDLER, 36, "__call__", "handler()"), (HANDLER, 118, "_sigterm_notifier_fn", "broadcast()")]
    met = stack(path, [(EVALUATES, "train"), (14, "evaluate")], "")
    ended = traceback(0, [*met, *handler, (dead_jobs.TORCH, 3151, "broadcast", "work.wait()")], CLOSED)
    first = judged_dead(tmp_path, traceback(1, in_loop(path)) + ended).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "likely", (0,))
    assert first.say.startswith("Rank 0, busy in train.py:14 (evaluate), had not entered all_reduce at train.py:6")


def test_a_rank_that_the_signal_met_in_a_collective_is_no_culprit(tmp_path: Path) -> None:
    """The healthy twin: it waited as the others did."""
    path = program(tmp_path)
    ended = traceback(0, in_loop(path), "KeyboardInterrupt")
    found = judged_dead(tmp_path, traceback(1, in_loop(path)) + ended).findings
    assert all(finding.strength == "possible" for finding in found if 0 in finding.culprits["ranks"])


def hung_with(folder: Path, *ranks: int) -> str:
    """Dumps of these ranks, which wait in one call; returns the traceback of rank 0."""
    path = program(folder)
    for rank in ranks:
        dump(folder / "dumps", rank, "all_reduce", in_loop(path), ranks=3)
    return traceback(0, in_loop(path))


def test_a_rank_that_ended_unseen(tmp_path: Path) -> None:
    log = hung_with(tmp_path, 0, 1) + torchrun({0: 1, 1: -15}, [1])
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "likely", (2,))
    assert first.say.startswith("Rank 2 left no dump, and torchrun neither reports it as failed nor had to stop it")


def test_a_rank_that_was_stopped_had_not_ended(tmp_path: Path) -> None:
    """The twin: it lived, and left no dump."""
    log = hung_with(tmp_path, 0, 1) + torchrun({0: 1, 1: -15, 2: -15}, [1, 2])
    first = judged_dead(tmp_path, log).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "possible", (2,))
    assert first.say.endswith("It left no dump.")


def test_of_two_ranks_without_a_dump_none_is_accused(tmp_path: Path) -> None:
    log = hung_with(tmp_path, 0) + torchrun({0: 1, 1: -15, 2: -15}, [1, 2])
    assert all(finding.culprits["ranks"] in ((), (0,)) for finding in judged_dead(tmp_path, log).findings)


FORCED = "W1127 19:11:44.621000 77 torch/api.py:1047] Unable to shutdown process 101 via 15, forcefully exiting via 9\n"


def test_a_rank_that_heeds_no_signal_was_not_killed_for_memory(tmp_path: Path) -> None:
    ended = torchrun({0: 1, 1: -9}, [1])
    log = traceback(0, in_loop(program(tmp_path))) + FORCED + ended
    found = judged_dead(tmp_path, log).findings
    assert (found[0].cause, found[0].culprits["ranks"]) == ("slow_rank", (1,))
    assert found[0].say.endswith("It did not heed SIGTERM: it was stopped, or held in native code.")
    assert all(finding.cause != "host_oom" for finding in found)


def test_a_rank_that_somebody_else_killed_may_have_been_killed_for_memory(tmp_path: Path) -> None:
    """The twin: torchrun had not asked for it."""
    log = traceback(0, in_loop(program(tmp_path)), CLOSED) + torchrun({1: -9, 0: 1})
    assert any(finding.cause == "host_oom" for finding in judged_dead(tmp_path, log).findings)


def test_the_rank_whose_exit_code_alone_is_known_is_named(tmp_path: Path) -> None:
    first = judged_dead(tmp_path, torchrun({1: 1, 0: -15}, [0])).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("rank_exception", (1,))
    assert judged_dead(tmp_path, torchrun({1: 1, 0: 1})).findings[0].culprits["ranks"] == ()


GIL = (
    "[rank1]:[E1127 19:40:16.975493 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0 Rank 1] Could not acquire GIL within"
    " 300 ms on exit, possible GIL induced hang\n"
)
NCCL_TIMEOUT = (
    "[rank0]:[E1127 19:39:54.026779 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=20000) ran for 20031 milliseconds before"
    " timing out.\n"
)


@pytest.mark.parametrize(("calls", "cause", "strength"), [(3, "gil_hold", "likely"), (4, "gil_hold", "possible")])
def test_a_rank_that_never_came_and_gives_no_lock(tmp_path: Path, calls: int, cause: str, strength: str) -> None:
    """The twin came to the collective: it may hold the lock only since it was stopped."""
    path = program(tmp_path)
    dump(tmp_path / "dumps", 0, "all_reduce", in_loop(path))
    dump(tmp_path / "dumps", 1, "all_reduce", in_loop(path), calls=calls)
    found = judged_dead(tmp_path, NCCL_TIMEOUT + GIL).findings
    assert [finding.strength for finding in found if finding.cause == cause] == [strength]
    assert calls == 4 or (found[0].cause, found[0].culprits["ranks"]) == (cause, (1,))


def test_wrappers_are_not_what_the_program_called(tmp_path: Path) -> None:
    path = program(tmp_path)
    packages = "/opt/torch/lib/python3.12/site-packages"
    saves = [
        *stack(path, [(EVALUATES, "train")], ""),
        (f"{packages}/torch/distributed/checkpoint/logger.py", 87, "wrapper", "func()"),
        (f"{packages}/torch/distributed/checkpoint/utils.py", 465, "inner_func", "func()"),
        (f"{packages}/torch/distributed/checkpoint/state_dict_saver.py", 176, "save", "gather()"),
        (f"{packages}/torch/distributed/distributed_c10d.py", 3200, "gather_object", "work.wait()"),
    ]
    trains = [
        *stack(path, [(BARRIER, "train")], ""),
        (f"{packages}/transformers/trainer.py", 2000, "train", "inner()"),
        (f"{packages}/torch/distributed/distributed_c10d.py", 3200, "all_reduce", "work.wait()"),
    ]
    first = judged_dead(tmp_path, traceback(0, saves) + traceback(1, trains)).findings[0]
    assert first.say.startswith("Rank 0 was in save at train.py:8 (train) where rank 1 was in all_reduce in Trainer.train")
