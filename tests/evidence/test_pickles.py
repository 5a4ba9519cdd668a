"""A dump that is no dump: nothing runs, nothing explodes, one sentence says so."""

from __future__ import annotations

import os
import pickle
import struct

import pytest

from ncclkit import evidence
from ncclkit.evidence import pickles


class Evil:
    def __init__(self, *what):
        self.what = what

    def __reduce__(self):
        return self.what[0], self.what[1:]


def hostile(tmp_path):
    mark = str(tmp_path / "ran")
    key: object = ()
    for _ in range(100_000):
        key = (key,)
    return {
        "system": pickle.dumps({"entries": [Evil(os.system, f"touch {mark}")]}, 2),
        "open": pickle.dumps({"entries": [Evil(open, mark, "w")]}, 4),
        "global": b"\x80\x02cposix\nsystem\n.",
        "reduce": b"\x80\x02X\x01\x00\x00\x00aX\x01\x00\x00\x00b\x85R.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "extension": b"\x80\x02\x82\x01.",
        "memo bomb": b"\x80\x02Nr\xff\xff\xff\xff.",
        "long string": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc.",
        "huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 100 + b".",
        "wide integer": b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
        "deep lists": b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",
        "deep key": b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.",
        "truncated": pickle.dumps({"entries": [{"profiling_name": "nccl:x"}]}, 2)[:-8],
        "no mark": b"\x80\x02]Ne.",
        "nothing": b"\x80\x02.",
        "self": b"\x80\x02]q\x00h\x00a.",
    }


NAMES = (
    "system",
    "open",
    "global",
    "reduce",
    "persistent",
    "extension",
    "memo bomb",
    "long string",
    "huge integer",
    "wide integer",
    "deep lists",
    "deep key",
    "truncated",
    "no mark",
    "nothing",
    "self",
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_and_the_rest_is_read(tmp_path, name):
    (tmp_path / "nccl_trace_rank_0").write_bytes(hostile(tmp_path)[name])
    (tmp_path / "rank1.log").write_text("ValueError: boom\n")
    reading = evidence.read([tmp_path])
    assert [event.kind for event in reading.events] == ["python.exception"]
    assert len(reading.problems) == 1 and "nccl_trace_rank_0" in reading.problems[0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_survive(protocol):
    value = {
        "a": [1, -1, 300, 70_000, 1 << 40, -(1 << 40), 1.5, None, True, False],
        "b": ("x", ("y",), ()),
        "c": {"d": "ü" * 300},
        "f": [[]],
    }
    assert pickles.loads(pickle.dumps(value, protocol)) == value
