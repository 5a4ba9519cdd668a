"""Blocks: bounded, and the same events however the text is cut."""

from __future__ import annotations

import io
from concurrent.futures import ProcessPoolExecutor

import pytest

from ncclkit import evidence
from ncclkit.evidence import scan
from tests.evidence import specimens
from tests.evidence.test_python import TRACE

LINES = [case[0] for case in (*specimens.NCCL, *specimens.C10D, *specimens.GLOO, *specimens.SYSTEM)]


def noisy(lines, between):
    filler = "epoch 3 loss 0.123 tokens 8192 of shard 7\n" * between
    return "".join(filler + line + "\n" for line in lines)


def told(reading):
    return [(event.kind, event.line, event.count, event.text) for event in reading.events]


@pytest.mark.parametrize("block", [700, 1500, 4096])
def test_the_size_of_blocks_changes_nothing(tmp_path, monkeypatch, block):
    path = tmp_path / "job.log"
    path.write_text(noisy([*LINES, *TRACE, *LINES], 3))
    whole = told(evidence.read([path]))
    monkeypatch.setattr(scan, "BLOCK", block)
    monkeypatch.setattr(scan, "AHEAD", 4000)
    assert told(evidence.read([path])) == whole


def test_blocks_are_cut_at_line_ends_and_cover_everything():
    text = b"".join(b"line %d\n" % number for number in range(200_000)) * 4
    blocks = list(scan.blocks(io.BytesIO(text), scan.Context("x")))
    assert b"".join(block.data[: block.limit] for block in blocks) == text
    assert len(blocks) > 1 and all(block.data[block.limit - 1 : block.limit] == b"\n" for block in blocks)
    assert [block.number for block in blocks][1] == blocks[0].data.count(b"\n", 0, blocks[0].limit) + 1


def test_a_line_without_end_is_read_in_bounded_pieces():
    found = [len(block.data) for block in scan.blocks(io.BytesIO(b"x" * (20 << 20)), scan.Context("x"))]
    assert max(found) <= scan.BLOCK + scan.AHEAD


def test_an_error_inside_a_giant_line_is_found(only):
    (event,) = only("cuda.error", "x" * (5 << 20) + " RuntimeError: CUDA error: boom " + "y" * 3000 + "\nnext\n")
    assert event.line == 1 and len(event.text) <= 2000


def test_any_executor_gives_the_same(tmp_path):
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(noisy(LINES[rank::4], 2))
    alone = evidence.read([tmp_path])
    with ProcessPoolExecutor(2) as executor:
        assert evidence.read([tmp_path], executor=executor) == alone


def test_every_rule_stands_behind_the_gate():
    """A line that no literal of the gate announces would never be shown to the rules."""
    lines = [
        case[0]
        for case in (
            *specimens.NCCL,
            *specimens.C10D,
            *specimens.GLOO,
            *specimens.STORE,
            *specimens.LAUNCHERS,
            *specimens.SYSTEM,
        )
    ]
    assert [line for line in lines if not any(literal in ("\n" + line).encode() for literal in scan.GATE)] == []
