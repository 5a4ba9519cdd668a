"""Each line that the printers of NCCL 2.24 to 2.32 can write, by itself: what the reader makes of it.

Texts are made from the format strings.  `test_ras_text.py` judges whole reports.
"""

from __future__ import annotations

import pytest

from ncclkit.evidence.ras import Comm, Report
from ncclkit.evidence.ras_text import from_text, is_report

HEAD = """NCCL version {version} compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

"""
TABLE = """Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   {status}  {errors}

"""
PLACE = " -- GPU {gpu} managed by process {pid} on node 192.0.2.12"


def reading(body: str, errors: str = "MISMATCH", status: str = "RUNNING", version: str = "2.28.3") -> Report:
    text = HEAD.format(version=version) + TABLE.format(status=status, errors=errors) + body
    assert is_report(text)
    return from_text(text, "ras.txt")


def comm_of(what: str, *lines: str, version: str = "2.28.3") -> Comm:
    body = "\n".join((f"Warnings\n========\n\n#0-0 (5f3a9c0012d4e8b7) {what}", *(f"  {line}" for line in lines), ""))
    (comm,) = reading(body, what, version=version).comms.values()
    return comm


def test_a_job_of_which_no_communicator_is_known() -> None:
    report = from_text(HEAD.format(version="2.28.3") + "No communicator data collected!\n\nErrors\n======\n\nWarnings\n========\n", "r")
    assert (report.total, report.comms, report.gpus) == (0, {}, 8)


@pytest.mark.parametrize(
    ("lines", "dead", "number"),
    [
        (
            ["1 job process is considered dead (unreachable via the RAS network)", "Process 4105 on node 192.0.2.12 managing GPU 1"],
            ["192.0.2.12:4105"],
            1,
        ),
        (
            [
                "3 job processes are considered dead (unreachable via the RAS network)",
                "Process 4105 on node 192.0.2.12 managing GPUs 0,1 (NVML 4,5)",
                "[could not find information on 2 processes]",
            ],
            ["192.0.2.12:4105"],
            3,
        ),
        (["12 job processes are considered dead (unreachable via the RAS network)"], [], 12),
    ],
)
def test_dead_processes_are_counted_where_they_are_not_named(lines: list[str], dead: list[str], number: int) -> None:
    report = reading("Errors\n======\n\nDEAD\n" + "".join(f"  {line}\n" for line in lines), "INCOMPLETE")
    assert (report.dead, report.dead_number, report.silent_number) == (dead, number, 0)


@pytest.mark.parametrize(("who", "number"), [("1 job process", 1), ("4 job processes", 4)])
def test_processes_that_did_not_answer(who: str, number: int) -> None:
    body = f"Errors\n======\n\nINCOMPLETE\n  Missing communicator data from {who}\n  Process 77 on node 192.0.2.12 managing GPU 1\n"
    report = reading(body, "INCOMPLETE")
    assert (report.silent, report.silent_number, report.dead_number) == (["192.0.2.12:77"], number, 0)


@pytest.mark.parametrize(
    ("version", "lines", "missing"),
    [
        ("2.25.1", ["Missing communicator data from 1 rank", "The missing rank: 5"], [5]),
        ("2.25.1", ["Missing communicator data from 2 ranks", "The missing ranks: 4,5"], [4, 5]),
        ("2.28.3", ["Missing communicator data from 1 rank", "Rank 5" + PLACE.format(gpu="1 (NVML 5)", pid=77)], [5]),
        ("2.28.3", ["Missing communicator data from 1 rank", "Rank 5 -- [process information not found]"], [5]),
    ],
)
def test_ranks_without_data(version: str, lines: list[str], missing: list[int]) -> None:
    comm = comm_of("INCOMPLETE", *lines, version=version)
    assert (comm.missing, comm.missing_number) == (missing, len(missing))


@pytest.mark.parametrize(
    ("version", "op", "lines"),
    [
        ("2.28.3", "AllReduce", ["2 ranks have not launched any operations", "Rank 3" + PLACE.format(gpu=3, pid=7), "Rank 4"]),
        ("2.25.1", "collective", ["2 ranks have launched up to operation 0", "Rank 3" + PLACE.format(gpu=3, pid=7), "Rank 4"]),
    ],
)
def test_a_set_that_launched_nothing(version: str, op: str, lines: list[str]) -> None:
    head = [f"Communicator ranks have different {op} operation counts", "6 ranks have launched up to operation 9"]
    comm = comm_of("MISMATCH", *head, *lines, version=version)
    assert comm.shares == {op: {9: 6, 0: 2}}
    assert comm.counts == {op: {3: 0, 4: 0}}
    assert comm.places[3]["host"] == "192.0.2.12"


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("has launched up to operation 8 -- GPU 3 (NVML 7) managed by process 7 on node 192.0.2.12", 8),
        ("has launched up to operation 8 -- [process information not found]", 8),
        ("has not launched any operations -- GPU 3 managed by process 7 on node 192.0.2.12", 0),
        ("has not launched any operations -- [process information not found]", 0),
    ],
)
def test_a_rank_alone(said: str, count: int) -> None:
    head = ["Communicator ranks have different AllGather operation counts", "7 ranks have launched up to operation 9"]
    comm = comm_of("MISMATCH", *head, f"Rank 3 {said}")
    assert comm.counts == {"AllGather": {3: count}}
    if "NVML" in said:
        assert comm.places[3]["gpu"] == "3 (NVML 7)"


@pytest.mark.parametrize(
    ("version", "lines", "statuses"),
    [
        ("2.25.1", ["6 ranks have status RUNNING", "2 ranks have status UNKNOWN", "The unknown ranks: 4,5"], {4: "UNKNOWN", 5: "UNKNOWN"}),
        ("2.25.1", ["7 ranks have status RUNNING", "Rank 4 has status UNKNOWN"], {4: "UNKNOWN"}),
        ("2.28.3", ["7 ranks have status RUNNING", "Rank 4 has status FINALIZE" + PLACE.format(gpu=0, pid=7)], {4: "FINALIZE"}),
        ("2.28.3", ["6 ranks have status RUNNING", "2 ranks have status INIT", "Rank 4", "Rank 5"], {4: "INIT", 5: "INIT"}),
    ],
)
def test_ranks_of_another_status(version: str, lines: list[str], statuses: dict[int, str]) -> None:
    comm = comm_of("MISMATCH", "Communicator ranks have different status", *lines, version=version)
    assert comm.statuses == statuses


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (["Initialization error on 1 rank", "Rank 3 reported System error" + PLACE.format(gpu=3, pid=7)], {3: "System error"}),
        (
            ["Asynchronous errors on 2 ranks", "2 ranks reported Remote process error", "Rank 3" + PLACE.format(gpu=3, pid=7), "Rank 4"],
            {3: "Remote process error", 4: "Remote process error"},
        ),
        (
            [
                "Initialization error on 1 rank",
                "Rank 1 reported Invalid usage" + PLACE.format(gpu=1, pid=5),
                "Asynchronous error on 1 rank",
                "Rank 3 reported Unhandled CUDA error" + PLACE.format(gpu=3, pid=7),
            ],
            {1: "Invalid usage", 3: "Unhandled CUDA error"},
        ),
        (["Asynchronous errors on 12 ranks"], {}),  # ncclTimeout is counted, and not listed
    ],
)
def test_errors_of_ranks(lines: list[str], errors: dict[int, str]) -> None:
    assert comm_of("ERROR", *lines).errors == errors


@pytest.mark.parametrize(("times", "number"), [("1 communication timeout", 1), ("2 communication timeouts", 2)])
def test_timeouts_of_ras_itself(times: str, number: int) -> None:
    body = f"Warnings\n========\n\nTIMEOUT\n  Encountered {times} while gathering communicator data\n"
    assert reading(body, "OK").timeouts == number


@pytest.mark.parametrize("status", ["INIT", "RUNNING", "FINALIZE", "ABORT", "NOCOMM", "UNKNOWN"])
def test_a_table_row_of_each_status(status: str) -> None:
    report = reading("Errors\n======\n\nWarnings\n========\n", "OK", status=status)
    assert (report.total, report.sound, report.comms) == (1, 1, {})
