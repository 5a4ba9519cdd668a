"""RAS reports, as text of ncclras and as JSON."""

from __future__ import annotations

import json

TEXT = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

DEAD
  1 process is considered dead (unreachable via the RAS network)
  Process 4799 on node 10.0.0.9 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.1
"""


def test_text(look):
    reading = look(TEXT, "ras.txt")
    assert reading.inputs[0]["kind"] == "ras"
    dead, comm = sorted((event.data for event in reading.events), key=lambda data: data["hash"])
    assert dead["dead"] == ["10.0.0.9:4799"]
    assert (comm["hash"], comm["size"], comm["missing"], comm["behind"]) == ("27a079b828ff1a75", 8, [5], [3])
    assert comm["counts"] == {"AllReduce": {"3": 6649}}


def test_json(only):
    ranks = [
        {
            "rank": rank,
            "host": "a",
            "pid": rank,
            "collective_counts": {"AllReduce": 5 if rank == 2 else 6, "Broadcast": 1},
        }
        for rank in range(3)
    ]
    report = {
        "nccl_version": "2.28.9",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0x9a",
                "size": 5,
                "ranks": ranks,
                "missing_ranks": [{"rank": 3}, {"rank": 4, "status": {"considered_dead": True}}],
            }
        ],
    }
    (event,) = only("ras.communicator", json.dumps(report), "ras.json")
    assert (event.data["behind"], event.data["missing"], event.data["dead"], event.data["size"]) == ([2], [3], [4], 5)


def test_a_quiet_report_gives_nothing(look):
    assert look(TEXT.partition("Errors\n======")[0], "ras.txt").events == []
