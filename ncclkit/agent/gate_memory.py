"""Whether each GPU of a node reaches the memory of each other one, by the test of the gate.

The test is that of ``probe --stages``: each direct pair is written, read and verified, and from
2.31 on NCCL does the same beside it.  Where the two disagree, both are told.
"""

from __future__ import annotations

import re
from typing import Any

from .gate_checks import Problem, Rows, problem_row
from .run.nccl_words import VERIFIED, WRONG_BYTES

DIAGNOSTIC = re.compile(r"NCCL DIAG (?:\[(?:OK|INFO)\] +|INFO )?(?P<said>.{1,1100})")
NCCL_WRONG = re.compile(WRONG_BYTES)
NCCL_RIGHT = re.compile(VERIFIED)
DONE = {"write": "wrote into", "read": "read"}
MOST_LINES = 65536
MOST_PAIRS = 64
"""Wrong accesses that are told."""
MOST_GPUS = 1024
NOT_EVALUATED = "not evaluated: "

Record = dict[str, Any]


def memory_of_test(records: list[Record], out: bytes) -> Record:
    """What the records of the test, and the lines that NCCL printed, say of pairs of GPUs."""
    right = 0
    apart = 0
    wrong = []
    untried = []
    for record in records:
        if record.get("kind") != "stage.peer":
            continue
        one = _gpu(record.get("rank"))
        two = _gpu(record.get("peer"))
        way = str(record.get("way"))
        if one is None or two is None:
            continue
        if record.get("wrong"):
            wrong.append(
                {
                    "gpu": one,
                    "peer": two,
                    "way": way,
                    "by": "ncclkit",
                }
            )
        elif record.get("problem"):
            why = str(record.get("problem"))[:300]
            untried.append(
                {
                    "gpu": one,
                    "peer": two,
                    "why": why,
                }
            )
        elif record.get("apart"):
            apart += 1
        elif way in DONE:
            right += 1
    said = _said_by_nccl(out)
    return {
        "right": right,
        "apart": apart,
        "wrong": [*wrong, *said["wrong"]][:MOST_PAIRS],
        "untried": untried[:MOST_PAIRS],
        "nccl": said["verdict"],
    }


def _gpu(value: Any) -> int | None:
    """A number of a GPU, as ranks of the test have those of their GPUs."""
    if isinstance(value, int) and 0 <= value < MOST_GPUS:
        return value
    return None


def _said_by_nccl(out: bytes) -> Record:
    """The verdict of NCCL's diagnostics, and the accesses that it found wrong."""
    wrong = []
    verdict = ""
    for line in out.decode("utf-8", "replace").splitlines()[:MOST_LINES]:
        found = DIAGNOSTIC.search(line)
        if not found:
            continue
        pair = NCCL_WRONG.match(found["said"])
        if pair:
            row = {
                "gpu": int(pair["src_nvml"]),
                "peer": int(pair["dst_nvml"]),
                "way": pair["way"],
                "by": "NCCL",
                "path": pair["path"],
            }
            # each communicator of the test checks its pairs anew
            if row not in wrong:
                wrong.append(row)
        elif NCCL_RIGHT.match(found["said"]):
            verdict = "right"
    if wrong:
        verdict = "wrong"
    return {"verdict": verdict, "wrong": wrong}


def judge_memory(memory: Record, found: Rows) -> list[Problem]:
    """The pairs of GPUs whose memory holds other bytes than were written, by pair and path."""
    problems = []
    for row in memory["wrong"]:
        one, two = row["gpu"], row["peer"]
        path = row.get("path") or _path(found, one, two)
        say = "GPU %d %s the memory of GPU %d over %s, and other bytes arrived" % (
            one,
            DONE.get(row["way"], "reached"),
            two,
            path,
        )
        if row["by"] == "NCCL":
            say += ", by NCCL's own diagnostics"
        problems.append(problem_row("gpu.%d.peer.%d" % (one, two), row["way"], say, "right bytes"))
    ours = {row["by"] for row in memory["wrong"]}
    if ours == {"ncclkit"} and memory["nccl"] == "right":
        problems[0]["say"] += "; NCCL's own diagnostics found all pairs right: the two disagree"
    if ours == {"NCCL"} and memory["right"]:
        problems[0]["say"] += "; ncclkit's check found all pairs right: the two disagree"
    return problems


def _path(found: Rows, one: int, two: int) -> str:
    """How two GPUs are joined, as nvidia-smi calls it."""
    matrix = (found.get("gpu.topology") or {}).get("value") or {}
    cell = str(matrix.get("GPU%d" % one, {}).get("GPU%d" % two, ""))
    if re.fullmatch(r"[A-Z]{3,4}|NV\d{1,3}", cell):
        return cell
    return "an unknown way"


def memory_sentence(memory: Record | None, count: int, was_tested: bool) -> str:
    """What the check of the memory came to, in one line."""
    if count < 2:
        return NOT_EVALUATED + "it takes two GPUs"
    if memory is None and not was_tested:
        return NOT_EVALUATED + "the GPUs were not tested"
    if memory is None:
        return NOT_EVALUATED + "the test of the GPUs said nothing of their memory"
    nccl = {
        "right": "; NCCL's own diagnostics found all pairs right",
        "wrong": "; NCCL's own diagnostics found a pair wrong",
    }.get(memory["nccl"], "")
    if memory["wrong"]:
        return "%d accesses with other bytes, %d right%s" % (
            len(memory["wrong"]),
            memory["right"],
            nccl,
        )
    if not memory["right"] and memory["untried"]:
        why = str(memory["untried"][0]["why"])
        return NOT_EVALUATED + "the memory of GPUs could not be shared (%s)%s" % (why, nccl)
    if not memory["right"]:
        return NOT_EVALUATED + "the driver joins no two GPUs directly" + nccl
    more = ""
    if memory["untried"]:
        more = ", %d could not be tried" % len(memory["untried"])
    return "%d accesses written, read and verified%s%s" % (memory["right"], more, nccl)
