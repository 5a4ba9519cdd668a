"""RAS reports: text and JSON, healthy, uneven, with a process stopped and dead; and what two of them tell together.

The files under ``ras/`` are what NCCL 2.28.9 answered on 4 H200 (2026-11-21): all ranks at work, rank 3 one all_reduce
behind, stopped by SIGSTOP, dead.  With a rank missing it writes JSON without a comma and, in the text, foreign memory
(30 such lines are kept).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from msgspec.structs import asdict

from ncclkit import evidence
from ncclkit.evidence.samples import open_sample

DATA = Path(__file__).parent / "ras"
WORLD, OTHER = "0xc79f4d8d6eae7162", "0x81d564e230a45639"
HEAD = """NCCL version {version} compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          8            1         16       16
      1          4            1          4        4

The outlier node(s):
  Node 10.0.0.9 running process(es) 1, 2, 3, 4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         3       4-8        20        20   RUNNING  {errors}
    1         3         1         2         2         6   {status}  OK

Errors
======

"""
BLOCKS = """DEAD
  1 process is considered dead (unreachable via the RAS network)
  Process 4799 on node 10.0.0.9 managing GPU 3

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4798 on node 10.0.0.9 managing GPU 2

#0-0 (07a079b828ff1a75) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 18, 19

#0-0 (07a079b828ff1a75) ERROR
  Asynchronous errors on 1 rank
  Rank 5 reported remote error -- GPU 5 managed by process 4005 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
UNEVEN = """#0-0 (07a079b828ff1a75) MISMATCH
  Communicator ranks have different {op} operation counts
  16 ranks have launched up to operation {top}
  Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.1
  Rank 4 has not launched any operations -- GPU 4 managed by process 4712 on node 10.0.0.1
"""
STATUS = """#0-0 (07a079b828ff1a75) MISMATCH
  Communicator ranks have different status
  19 ranks have status RUNNING
  Rank 7 has status ABORT -- GPU 7 managed by process 4715 on node 10.0.0.1
"""


def text(version="2.28.9", op="AllReduce", top=6650, blocks=BLOCKS):
    status = " UNKNOWN" if version < "2.26" else " NOCOMM"
    return HEAD.format(version=version, errors="MISMATCH", status=status) + blocks + UNEVEN.format(op=op, top=top)


TEXT = text()


def of(reading, kind):
    return [event.data for event in reading.events if event.kind == kind]


def compare(tmp_path, *texts):
    """The changes between reports that lie in one folder."""
    for number, said in enumerate(texts, 1):
        (tmp_path / f"ras_{number}.txt").write_text(said)
    return of(evidence.read([tmp_path]), "ras.change")


@pytest.mark.parametrize(
    ("version", "op"), [("2.24.3", "collective"), ("2.26.2", "AllGather"), ("2.28.9", "AllReduce")]
)
def test_text(read_text, version, op):
    reading = read_text(text(version, op), "ras.txt")
    assert [row["kind"] for row in reading.inputs] == ["ras"] and not reading.problems
    (report,), (comm,) = of(reading, "ras.report"), of(reading, "ras.communicator")
    assert asdict(report) == {
        "version": version,
        "nodes": 3,
        "processes": 20,
        "gpus": 20,
        "communicators": 4,
        "sound": 3,
        "silent": ["10.0.0.9:4798"],
        "silent_number": 1,
        "dead": ["10.0.0.9:4799"],
        "dead_number": 1,
        "timeouts": 2,
        "outliers": ["10.0.0.9"],
    }
    assert (comm.hash, comm.size, comm.missing, comm.behind) == ("0x7a079b828ff1a75", 20, [18, 19], [3, 4])
    assert comm.counts == {op: {"3": 6649, "4": 0}} and comm.errors == {"5": "remote error"}


def test_a_status_is_no_count(read_text):
    (comm,) = of(
        read_text(HEAD.format(version="2.28.9", errors="MISMATCH", status=" RUNNING") + STATUS), "ras.communicator"
    )
    assert comm.counts == {} and comm.behind == [] and "Rank 7 has status ABORT" in STATUS


def test_a_quiet_report_says_that_all_is_well(read_text):
    reading = read_text(HEAD.format(version="2.28.9", errors="OK", status=" RUNNING"), "ras.txt")
    assert [event.kind for event in reading.events] == ["ras.report"]
    assert reading.events[0].data.communicators == reading.events[0].data.sound == 4


def test_a_report_is_read_to_its_end(read_text):
    """Of a job of thousands of ranks it is longer than what the kind of a file is told from."""
    whole = (DATA / "mismatch.txt").read_text()
    row = "    1         1         1         4         4         4   RUNNING      OK\n"
    short, long = (read_text(whole.replace(row, row * times).encode(), "ras.txt") for times in (1, 2000))
    assert of(long, "ras.communicator") == of(short, "ras.communicator") != []
    assert long.inputs[0]["lines"] == short.inputs[0]["lines"] + 1999


def test_the_recorded_hang_still_reads():
    (comm,) = open_sample("hang").of("ras.communicator")
    assert comm.data.behind == [2] and comm.data.counts == {"AllReduce": {"2": 6}}


def test_recorded_json_and_text_agree():
    for name in ("mismatch.json", "mismatch.txt"):
        uneven = [data for data in of(evidence.read([DATA / name]), "ras.communicator") if data.behind]
        assert [(data.hash, data.size, data.behind) for data in uneven] == [(WORLD, 4, [3])]
        assert uneven[0].counts["AllReduce"]["3"] == 5


@pytest.mark.parametrize(("name", "lost"), [("stopped.json", "silent"), ("dead.json", "dead")])
def test_json_without_its_comma(name, lost):
    with pytest.raises(ValueError, match="delimiter"):
        json.loads((DATA / name).read_text())
    reading = evidence.read([DATA / name])
    (report,), comms = of(reading, "ras.report"), of(reading, "ras.communicator")
    assert asdict(report)[lost] == ["192.0.2.2:899"] and report.sound == 0 and not reading.problems
    assert [data.dead if lost == "dead" else data.missing for data in comms] == [[3], [3]]
    assert [data.hash for data in comms] == [OTHER, WORLD]


def test_foreign_memory_makes_no_ranks():
    """The second communicator of this text does not exist; its "ranks" are the bytes of other messages."""
    reading = evidence.read([DATA / "stopped.txt"])
    (comm,) = of(reading, "ras.communicator")
    assert (comm.hash, comm.missing, comm.counts) == (OTHER, [3], {})


def test_two_reports_show_who_stands_still(tmp_path):
    shutil.copy(DATA / "mismatch.json", tmp_path / "ras.json")
    shutil.copy(DATA / "mismatch_2.json", tmp_path / "ras_2.json")
    changes = of(evidence.read([tmp_path]), "ras.change")
    assert [(data.hash, data.moved, data.still, data.behind) for data in changes] == [
        (OTHER, {}, [0, 1, 2, 3], []),
        (WORLD, {}, [0, 1, 2, 3], [3]),
    ]
    assert changes[0].seconds == 2.0


def test_two_reports_of_a_job_at_work():
    """Given in the wrong order; their time stamps put them right."""
    changes = of(evidence.read([DATA / "running_2.json", DATA / "running.json"]), "ras.change")
    world = next(data for data in changes if data.hash == WORLD)
    assert world.moved == {str(rank): {"AllReduce": 193} for rank in range(4)} and world.still == []


def test_others_move_and_one_does_not(tmp_path):
    """What 16 ranks share goes to those that the text does not name."""
    (change,) = compare(tmp_path, text(top=6650), text(top=6660))
    assert change.still == [3, 4] and len(change.moved) == 16
    assert change.moved["0"] == {"AllReduce": 10} and change.behind == [3, 4] and change.seconds is None


def test_those_behind_catch_up(tmp_path):
    quiet = HEAD.format(version="2.28.9", errors="OK", status=" NOCOMM")
    (change,) = compare(tmp_path, text(blocks=""), quiet)
    assert change.moved == {"3": {"AllReduce": 1}, "4": {"AllReduce": 6650}} and change.still == []


def test_other_jobs_are_not_compared(tmp_path):
    assert compare(tmp_path, text(), text().replace("07a079b828ff1a75", "17a079b828ff1a75")) == []
    assert compare(tmp_path, text(top=9000), text(top=7000))[0].still == [3, 4]  # started again: counts fell


@pytest.mark.parametrize("cut", [60, 700, 900, 1200, 1500])
def test_a_report_cut_short(read_text, cut):
    whole = read_text(TEXT, "whole.txt")
    assert {event.kind for event in read_text(TEXT[:cut], "cut.txt").events} <= {event.kind for event in whole.events}


ODD = (
    {"communicators": [None, 3, {}]},
    {"communicators": [{"hash": 7, "size": "4", "ranks": 3, "missing_ranks": 9}]},
    {"communicators": [{"hash": "0x9a", "ranks": [1, {"rank": []}, {"rank": True}], "missing_ranks": [1, [], {}]}]},
    {"communicators": [{"ranks": [{"rank": 1, "status": 5, "collective_counts": [1]}]}], "ras": 4, "timestamp": []},
    {"communicators": [{"ranks": [{"rank": 0, "collective_counts": {"AllReduce": 1 << 80, "Reduce": None}}]}]},
)


@pytest.mark.parametrize("value", ODD)
def test_json_that_nobody_meant(read_text, value):
    reading = read_text(json.dumps(value), "ras.json")
    assert reading.inputs[0]["kind"] == "ras" and all(not comm.counts for comm in of(reading, "ras.communicator"))


def test_states_that_are_errors(read_text):
    status = {"init_state": 0, "async_error": 6, "abort_flag": True}
    ranks = [{"rank": 0, "status": {"init_state": 7, "async_error": 0}}, {"rank": 1, "status": status}]
    (comm,) = of(
        read_text(json.dumps({"communicators": [{"hash": "0x1", "size": 2, "ranks": ranks}]})), "ras.communicator"
    )
    assert comm.errors == {"1": "remote error"} and comm.missing == []
