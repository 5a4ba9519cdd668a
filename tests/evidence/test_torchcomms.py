"""torchcomms and NCCLX: who a line is of, what a log says, and what clog files and recorders hold."""

from __future__ import annotations

import json

import pytest

from tests.cases import judged_files, judged_text, read_files

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


ALL_REDUCE = "all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f"
CALLS = (1, 2, 3)


def clog(rank: int, *events: str, size: int = 4, signatures: tuple[str, ...] = (ALL_REDUCE,), comm: str = "world") -> str:
    begun = [f"V|1|base_timestamp=1790000000.{rank:03d}", f"new_comm|comm={comm}|rank={rank}|world_size={size}"]
    signed = [f"C{n}|sig|{text}|comm={comm}" for n, text in enumerate(signatures, 1)]
    return "\n".join([*begun, *signed, *events]) + "\n"


def calls(*numbers: int, ends: bool = True, call: int = 1) -> tuple[str, ...]:
    found: list[str] = []
    for number in numbers:
        found.append(f"C{call}|Q|work_id={number}|+{number}.001")
        found += [f"C{call}|S|+{number}.002", f"C{call}|E|+{number}.005"] * ends
    return tuple(found)


BEGUN = ("C1|Q|work_id=4|+4.001", "C1|S|+4.002")


def files(folder, texts: dict[int, str]):
    for rank, text in texts.items():
        (folder / f"clog_of_{rank}.txt").write_text(text)
    events = read_files(folder).events
    return {event.kind: event for event in events if event.kind != "flight.dump"}


def test_a_clog_file_is_a_dump_of_its_rank(tmp_path):
    (tmp_path / "any.txt").write_text(clog(3, *calls(*CALLS)))
    case = read_files(tmp_path)
    (event,) = case.of("flight.dump")
    assert case.inputs[0]["kind"] == "clog" and event.rank == 3
    group = event.data.groups["world"]
    assert (group["ranks"], group["last_seq"], group["last_completed"]) == ([0, 1, 2, 3], 3, 3)
    assert group["sizes"] == [["all_reduce", 4096, 3]]


def test_the_rank_that_made_no_further_call_is_missing(tmp_path):
    late = {rank: clog(rank, *calls(*CALLS), *(BEGUN if rank != 2 else ())) for rank in range(4)}
    event = files(tmp_path, late)["flight.missing"]
    assert (event.data.seq, event.data.op, event.data.missing) == (4, "all_reduce", [2])


def test_files_of_a_moment_prove_nothing_until_a_rank_has_timed_out(tmp_path):
    files(tmp_path, {rank: clog(rank, *calls(*CALLS), *(BEGUN if rank != 2 else ())) for rank in range(4)})
    before = judged_files(tmp_path).findings[0]
    (tmp_path / "job.log").write_text(timed_out(0, name="world"))
    after = judged_files(tmp_path).findings[0]
    assert [before.cause, before.strength] == ["slow_rank", "possible"]
    assert [after.cause, after.strength, list(after.culprits["ranks"])] == ["slow_rank", "likely", [2]]


def test_a_job_at_work_and_one_that_ended_have_no_finding(tmp_path):
    assert files(tmp_path, {rank: clog(rank, *calls(*CALLS), *BEGUN) for rank in range(4)}) == {}
    assert files(tmp_path, {rank: clog(rank, *calls(*CALLS)) for rank in range(4)}) == {}


def test_calls_whose_end_nobody_saw_at_the_end_of_a_job_are_over(tmp_path):
    leaked = "WARN|comm=world|leaked work_id=4|corr_id=1|pending_events=E"
    texts = {rank: clog(rank, *calls(*CALLS), *BEGUN, leaked) for rank in range(4)}
    files(tmp_path, texts)
    dumps = read_files(tmp_path).of("flight.dump")
    assert [dump.data.groups["world"]["in_flight"] for dump in dumps] == [[]] * 4


def test_without_lifecycle_events_a_call_is_not_open(tmp_path):
    (tmp_path / "clog").write_text(clog(0, *calls(*CALLS, ends=False)))
    (event,) = read_files(tmp_path).of("flight.dump")
    assert event.data.groups["world"]["in_flight"] == []


def test_signatures_are_compared_by_their_place_and_not_by_their_number(tmp_path):
    barrier = "barrier|async_op=f"
    same = {
        0: clog(0, *calls(1), *calls(2, call=2), signatures=(ALL_REDUCE, barrier), size=2),
        1: clog(1, *calls(1, call=2), *calls(2), signatures=(barrier, ALL_REDUCE), size=2),
    }
    assert files(tmp_path, same) == {}
    crossed = same | {1: clog(1, *calls(1), *calls(2, call=2), signatures=(barrier, ALL_REDUCE), size=2)}
    event = files(tmp_path, crossed)["flight.mismatch"]
    assert (event.data.seq, event.data.field) == (1, "op")


def test_a_receive_without_its_send_is_found_and_sends_in_a_batch_are_not_compared(tmp_path):
    def pair(batch: tuple[str, ...] = ()) -> dict[int, str]:
        receive = "recv|in_count=0|out_count=8|dtype=f32|peer=1|async_op=f"
        return {
            0: clog(0, *calls(1), "C2|Q|work_id=4|+4.001", "C2|S|+4.002", signatures=(ALL_REDUCE, receive), size=2),
            1: clog(1, *calls(1), signatures=(ALL_REDUCE, *batch), size=2),
        }

    event = files(tmp_path, pair())["flight.p2p"]
    assert (event.data.src, event.data.dst, event.data.lacking) == (1, 0, [1])
    texts = pair(("batch_op_issue|num_ops=2|async_op=f",))
    texts[0] = texts[0].replace("C2|Q", "C3|sig|batch_op_issue|num_ops=2|async_op=f|comm=world\nC2|Q", 1)
    assert files(tmp_path, texts) == {}


def test_ranks_of_a_split_are_those_of_the_job_and_of_any_other_part_nothing_is_said(tmp_path):
    def texts(child: str) -> dict[int, str]:
        signature = f"C2|sig|{ALL_REDUCE}|comm=pair"
        rows = calls(1, call=2)
        return {
            rank: clog(rank, *calls(1), child.format(rank % 2, *(((0, 1), (2, 3))[rank // 2])), signature)
            + "\n".join(rows if rank == 3 else (*rows, "C2|Q|work_id=9|+4.001", "C2|S|+4.002"))
            for rank in (2, 3)
        } | {rank: clog(rank, *calls(1)) for rank in (0, 1)}

    event = files(tmp_path, texts("split|parent=world|child=pair|ranks={1},{2}"))["flight.missing"]
    assert (event.data.group, event.data.missing, event.data.waiting) == ("pair", [3], [2])
    assert files(tmp_path, texts("new_comm|comm=pair|rank={0}|world_size=2")) == {}


def test_lines_of_strangers_in_a_clog_file_break_nothing(tmp_path):
    bad = ("C9|E|+1.0", "C1|sig|", "split|parent=|child=|ranks=,,", "G1|C1|Q|work_id=5|+2.0", "C1|Q|work_id=|+x", "\xff" * 9)
    assert files(tmp_path, {0: clog(0, *bad, *calls(1), size=1)}) == {}


def recorder(*entries: tuple[str, str, bool], first: int = 0) -> dict:
    """A dump of torchcomms' recorder; entries are (communicator, operation, whether it has returned)."""
    return {
        "version": "2.10",
        "comm_lib_version": "2.29.3",
        "pg_config": {name: {"name": name, "desc": "ncclx", "ranks": "[0,1]"} for name in ("main", "tp")},
        "pg_status": {},
        "entries": [
            {
                "record_id": first + place,
                "pg_id": 0,
                "process_group": [comm, "ncclx"],
                "thread_id": "1",
                "collective_seq_id": first + place,
                "p2p_seq_id": 0,
                "profiling_name": f"ncclx:{op}",
                "time_created_ns": 1790000000000000000 + place,
                "input_sizes": [[8]],
                "input_dtypes": ["Float"],
                "output_sizes": [[8]],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "time_discovered_started_ns": 0,
                "retired": returned,
                "is_p2p": False,
                "timeout_ms": 600000,
            }
            for place, (comm, op, returned) in enumerate(entries)
        ],
    }


def recorded(folder, dumps: dict[int, dict]):
    for rank, value in dumps.items():
        (folder / f"comm_lib_trace_rank_{rank}").write_text(json.dumps(value))
    return {event.kind: event for event in read_files(folder).events if event.kind != "flight.dump"}


def test_the_recorder_numbers_each_communicator_by_itself(tmp_path):
    both = [("main", "all_reduce", True), ("tp", "all_gather_single", True)]
    other = [both[1], both[0]]  # the same calls of each communicator, in another order over both
    assert recorded(tmp_path, {0: recorder(*both), 1: recorder(*other)}) == {}


def test_sends_of_the_recorder_count_for_nothing(tmp_path):
    sends = [("main", "send", True), ("main", "all_reduce", True)]
    receives = [("main", "all_reduce", True)]
    assert recorded(tmp_path, {0: recorder(*sends), 1: recorder(*receives)}) == {}


def test_what_has_returned_is_not_open_and_who_made_no_call_is_missing(tmp_path):
    done = [("main", "all_reduce", True)] * 3
    assert recorded(tmp_path, {0: recorder(*done), 1: recorder(*done)}) == {}
    event = recorded(tmp_path, {0: recorder(*done, ("main", "all_reduce", False)), 1: recorder(*done)})["flight.missing"]
    assert (event.data.seq, event.data.missing, event.data.waiting) == (4, [1], [0])


def test_numbers_of_an_overwritten_recorder_are_known_with_one_communicator_only(tmp_path):
    two = [("main", "all_reduce", True), ("tp", "broadcast", True)]
    assert recorded(tmp_path, {0: recorder(*two, first=7), 1: recorder(*two[:1], first=9)}) == {}
