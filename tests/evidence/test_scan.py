"""Blocks, pieces, workers: bounded, and the same events however the text is cut and whoever reads it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ncclkit.core.model import fields_of
from ncclkit import evidence
from ncclkit.evidence.scanner import pieces, scan
from tests.evidence import specimens
from tests.evidence.test_python import TRACE

ROOT = str(Path(evidence.__file__).parents[2])
LINES = [case[0] for case in (*specimens.NCCL, *specimens.C10D, *specimens.GLOO, *specimens.SYSTEM)]
BACKTRACE = [f"node-1:4711:4720 [3] NCCL INFO {file}.cc:{line} -> 6" for line in range(6) for file in ("init", "group")]


def noisy(lines, between):
    filler = "epoch 3 loss 0.123 tokens 8192 of shard 7\n" * between
    return "".join(filler + line + "\n" for line in lines)


def comparable(reading):
    return [(event.kind, event.line, event.count, event.text, fields_of(event)) for event in reading.events]


@pytest.mark.parametrize("block", [700, 1500, 4096])
def test_the_size_of_blocks_changes_nothing(tmp_path, monkeypatch, block):
    path = tmp_path / "job.log"
    path.write_text(noisy([*LINES, *TRACE, *LINES], 3))
    whole = comparable(evidence.read([path]))
    monkeypatch.setattr(scan, "BLOCK", block)
    monkeypatch.setattr(scan, "AHEAD", 4000)
    assert comparable(evidence.read([path])) == whole
    assert comparable(evidence.read(["-"], stdin=io.BytesIO(path.read_bytes()))) == whole


@pytest.mark.parametrize("piece", [999, 5000, 20_000])
def test_the_size_of_pieces_changes_nothing(tmp_path, monkeypatch, piece):
    path = tmp_path / "job.log"
    path.write_text(noisy([*LINES, *BACKTRACE, *TRACE, *LINES], 3) + "\n".join(BACKTRACE))
    whole = evidence.read([path])
    monkeypatch.setattr(pieces, "PIECE", piece)
    cut = evidence.read([path])
    assert comparable(cut) == comparable(whole) and cut.inputs == whole.inputs


def test_blocks_are_cut_at_line_ends_and_cover_everything():
    text = b"".join(b"line %d\n" % number for number in range(200_000)) * 4
    blocks = list(scan.blocks(io.BytesIO(text), scan.Context("x")))
    assert b"".join(block.data[: block.limit] for block in blocks) == text
    assert len(blocks) > 1 and all(block.data[block.limit - 1 : block.limit] == b"\n" for block in blocks)
    assert [block.number for block in blocks][1] == blocks[0].data.count(b"\n", 0, blocks[0].limit) + 1


def test_a_line_without_end_is_read_in_bounded_pieces():
    found = [len(block.data) for block in scan.blocks(io.BytesIO(b"x" * (20 << 20)), scan.Context("x"))]
    assert max(found) <= scan.BLOCK + scan.AHEAD


@pytest.mark.parametrize(("before", "after"), [(0, 0), (100, 50), (3000, 1500), (100_000, 50_000), (5 << 20, 1000)])
def test_an_error_inside_a_giant_line_is_found_once(only, before, after):
    """Of a line beyond its budget both ends are read: what stands in its middle costs more than it is worth."""
    text = "x" * before + " RuntimeError: CUDA error: boom " + "y" * after + "\nnext\n"
    (event,) = only("cuda.error", text)
    assert (event.line, event.count) == (1, 1) and len(event.text) <= 2000


@pytest.mark.parametrize("make", [ProcessPoolExecutor, ThreadPoolExecutor])
@pytest.mark.parametrize("workers", [1, 3])
def test_any_executor_gives_the_same(tmp_path, monkeypatch, make, workers):
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(noisy(LINES[rank::4], 2))
    (tmp_path / "job.log").write_text(noisy([*LINES, *BACKTRACE, *TRACE] * 3, 2))
    monkeypatch.setattr(pieces, "PIECE", 5000)
    alone = evidence.read([tmp_path])
    with make(workers) as executor:
        assert evidence.read([tmp_path], executor=executor) == alone
    assert all(row["bytes"] == os.path.getsize(row["path"]) for row in alone.inputs)


def test_a_file_that_is_replaced_or_cut_while_it_is_read_says_so(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(noisy(LINES, 2))
    with path.open("rb") as file:
        plan = pieces.cut_into_pieces(file, path.stat().st_size, scan.Context(str(path)), labelled=False, stacks=False)
    path.write_text(LINES[0])
    assert "became shorter" in pieces.scan_piece(plan[0]).problem
    (tmp_path / "other").write_text("")
    os.replace(tmp_path / "other", path)
    assert "replaced" in pieces.scan_piece(plan[0]).problem


def test_who_logged_is_known_of_large_logs_too(tmp_path, monkeypatch):
    """A rank that says one dull line in the middle of a block is no silent rank."""
    monkeypatch.setattr(scan, "BLOCK", 1 << 20)
    lines = [f"[rank{rank}]: batch of {rank} tokens\n" for rank in (0, 1, 2, 4, 5)] * 20_000
    lines.insert(60_000, "[rank3]: batch\n")
    path = tmp_path / "job.log"
    path.write_text("".join(lines))
    assert evidence.read([path]).inputs[0]["ranks"] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [10, 30_000, 300_000])
def test_the_last_step_is_known_however_much_follows(only, after):
    steps = "".join(f"[rank{rank}]: step {step} loss 0.1\n" for step in range(700) for rank in (0, 1))
    events = only("progress", "waiting for data\n" * 300_000 + steps + "nothing to see here\n" * after)
    assert {event.rank: (event.data.step, event.line) for event in events} == {0: (699, 301_399), 1: (699, 301_400)}


SCRIPT = """
import sys, time
from ncclkit.evidence import processes
print("begun", flush=True)
processes.ENOUGH = 0
with processes.process_pool([]) as executor:
    list(executor.map(abs, range(8)))
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.slow
def test_workers_need_no_main_guard_and_end_with_their_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert [parent.stdout.readline(), parent.stdout.readline()] == ["begun\n", "ready\n"]
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert children and psutil.wait_procs(children, timeout=20)[1] == []


def test_little_to_read_starts_no_process(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(noisy(LINES, 1))
    before = len(psutil.Process().children())
    assert evidence.read([path], starts_processes=True) == evidence.read([path])
    assert len(psutil.Process().children()) == before
