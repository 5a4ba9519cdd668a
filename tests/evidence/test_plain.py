"""What others put around a log is gone, and what a program wrote itself stays."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.core.model import Event
from ncclkit.evidence.scanner import plain
from tests.cases import judged_text
from tests.bench.variations import VARIATIONS, WELL

LOG = """\
n1:71:90 [1] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
n1:71:90 [1] misc/socket.cc:396 NCCL WARN Call to bind failed : Address already in use

[rank1]:[E1121 01:51:30.100000000 ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=10000) ran for 10001 milliseconds before \
timing out.
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/train.py", line 12, in main
[rank1]:     raise ValueError('no "such" key')
[rank1]: ValueError: no "such" key
slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.
"""


def events(text: str) -> list[Event]:
    return evidence.read(["-"], stdin=io.BytesIO(text.encode())).events


@pytest.mark.parametrize("name", [name for name in VARIATIONS if not name.startswith("jobs")])
def test_the_same_is_found_however_the_log_is_written(name: str) -> None:
    want = {"nccl.warn", "c10d.timeout", "python.exception", "slurm.event"}
    assert want <= {event.kind for event in events(VARIATIONS[name](LOG))}


def test_a_wrapped_line_is_found_where_it_begins() -> None:
    (timeout,) = [event for event in events(VARIATIONS["wrap 100"](LOG)) if event.kind == "c10d.timeout"]
    assert timeout.line == 4 and timeout.data.ran_ms == 10001


@pytest.mark.parametrize("name", [name for name in VARIATIONS if name.startswith("wrap")])
def test_wrapped_sentences_and_lists_are_whole_again(name: str) -> None:
    devices = " ".join(f"[{n}]mlx5_{n}:1/RoCE" for n in range(9))
    lines = [
        f"very-long-name-of-a-host-in-the-cluster.example.org:76786:76786 [0] NCCL INFO NET/IB : Using {devices}",
        "Everything is fine on one node, but on two of them the job stops after a few minutes and nobody says why, "
        "neither the ranks of the first node nor those of the second one; we have waited for hours and seen nothing.",
    ]
    wrapped = VARIATIONS[name]("\n".join(lines)).encode()
    assert [line for line in plain.plain_text(wrapped).decode().split("\n") if line] == lines


def test_rows_of_a_table_as_wide_as_a_terminal_stay() -> None:
    rows = "".join(f"| {name} |{' ' * (73 - len(name))} MiB |\n" for name in ("free", "used", "total", "reserved"))
    ranks = "".join(f"rank {n} of 8 is done with {'x' * (78 - 24)}\n" for n in range(8))
    for text in (rows, ranks, f"+{'-' * 78}+\n{rows}"):
        assert plain.plain_text(text.encode()).decode() == text


def test_the_rank_and_the_host_of_a_prefix_are_kept() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 3", "ended"]
    ranks = events("\n".join(f"[{rank}] {line}" for rank in (0, 7) for line in lines))
    assert {event.rank for event in ranks if event.kind == "python.exception"} == {0, 7}
    hosts = events("\n".join(f"gpu{number}: {line}" for number in (1, 2) for line in lines))
    assert {event.host for event in hosts if event.kind == "python.exception"} == {"gpu1", "gpu2"}


@pytest.mark.parametrize(
    "text",
    [
        LOG,
        WELL,
        "".join(f"step {n}/90 loss 2.{n}\n" for n in range(90)),
        "".join(f"[rank{n % 4}]: ValueError: {n}\n" for n in range(20)),
        "".join(
            f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000-0000-0000-0000-000000000000000000)\n\tup\n"
            for n in range(8)
        ),
        "".join(f"2026-01-01 00:00:{n} error: shard {n}\n" for n in range(10, 60)),
        "".join(json.dumps({"ncclkit": 1, "message": "x"}) + "\n" for _ in range(9)),
        '<?xml version="1.0"?>\n<a>&lt;</a>\n',
        "",
    ],
)
def test_what_a_program_wrote_itself_stays(text: str) -> None:
    data = text.encode()
    assert plain.plain_text(data) is data


def test_a_file_is_read_as_it_stands_and_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "post.txt"
    path.write_text(VARIATIONS["quoting html br"](LOG))
    before = path.read_bytes()
    row = evidence.read([path]).inputs[0]
    assert path.read_bytes() == before and row["bytes"] == len(before)


def test_of_two_jobs_in_one_log_the_last_is_judged() -> None:
    alone, after = (
        judged_text(text) for text in (LOG, WELL + LOG)
    )
    assert [finding.cause for finding in alone.findings] == [finding.cause for finding in after.findings]
    first = len(WELL.splitlines())
    assert all(getattr(piece, "line", first + 1) > first for finding in after.findings for piece in finding.evidence)
