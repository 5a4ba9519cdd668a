"""A dump that is no dump: nothing runs, nothing explodes, one sentence says so."""

from __future__ import annotations

import os
import pickle
import struct

import pytest

from ncclkit import evidence
from ncclkit.evidence import processes
from ncclkit.evidence.flight import dumps

PAIRS = b"h\0h\0\x86q\0"
"""A pair of what stands in place 0, kept in place 0: n of them make a key whose hash takes 2 ** n steps."""


class Evil:
    def __init__(self, *what):
        self.what = what

    def __reduce__(self):
        return self.what[0], self.what[1:]


def hostile(mark):
    return {
        "system": pickle.dumps({"entries": [Evil(os.system, f"touch {mark}")]}, 2),
        "open": pickle.dumps({"entries": [Evil(open, mark, "w")]}, 4),
        "global": b"\x80\x02cposix\nsystem\n.",
        "reduce": b"\x80\x02X\x01\x00\x00\x00aX\x01\x00\x00\x00b\x85R.",
        "build": b"\x80\x02]}b.",
        "instance": b"\x80\x02(iposix\nsystem\n.",
        "object": b"\x80\x02(cposix\nsystem\no.",
        "new object": b"\x80\x04\x8c\x05posix\x8c\x06system\x93)\x81.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "extension": b"\x80\x02\x82\x01.",
        "memo bomb": b"\x80\x02Nr\xff\xff\xff\xff.",
        "memo bomb in text": b"\x80\x02Np4294967295\n.",
        "long string": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc.",
        "long array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc.",
        "long frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
        "huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 100 + b".",
        "wide integer": b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
        "integer in text": b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
        "deep lists": b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",
        "deep dicts": b"\x80\x02" + b"}K\x01" * 100_000 + b"Ns" * 1 + b"s" * 99_999 + b".",
        "deep key": b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.",
        "key of pairs": b"\x80\x02K\x01q\0" + PAIRS * 60 + b"}h\0Ns.",
        "key of pairs later": b"\x80\x02K\x01q\0h\0h\0\x86q\x01h\x01q\0" + PAIRS * 60 + b"}h\0Ns.",
        "key of pairs after an empty list": b"\x80\x02K\x01q\0h\0h\0\x86(eq\0" + PAIRS * 60 + b"}h\0Ns.",
        "equal hashes": b"\x80\x02}("
        + b"".join(b"\x8a\x0c" + (n * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for n in range(1, 50_000))
        + b"u.",
        "truncated": pickle.dumps({"entries": [{"profiling_name": "nccl:x"}]}, 2)[:-8],
        "no mark": b"\x80\x02]Ne.",
        "nothing": b"\x80\x02.",
        "only a mark": b"\x80\x02(.",
        "self": b"\x80\x02]q\x00h\x00a.",
    }


NAMES = list(hostile("x"))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(processes, "SECONDS", 1)


@pytest.mark.slow  # each is read in a process of its own
@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_and_the_rest_is_read(tmp_path, name, monkeypatch):
    monkeypatch.setattr(processes, "SECONDS", 0)  # what would never end takes the one second that a limit has at least
    (tmp_path / "nccl_trace_rank_0").write_bytes(hostile(str(tmp_path / "ran"))[name])
    (tmp_path / "rank1.log").write_text("ValueError: boom\n")
    reading = evidence.read([tmp_path])
    assert [event.kind for event in reading.events] == ["python.exception"]
    assert len(reading.problems) == 1 and "nccl_trace_rank_0" in reading.problems[0]
    assert not (tmp_path / "ran").exists()


def laughs(levels):
    """A list that holds the same list ten times, which holds …"""
    value: list[object] = [1] * 10
    for _ in range(levels):
        value = [value] * 10
    return value


def bomb(**fields):
    entry = {
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "x"),
        "collective_seq_id": 1,
        "state": "started",
    }
    entry |= {"p2p_seq_id": 0, "time_created_ns": 1, "input_sizes": [[1]], "input_dtypes": ["Float"]}
    entry |= {"output_sizes": [[1]], "output_dtypes": ["Float"], "retired": False, "is_p2p": False, "frames": []}
    return entry | fields


WIDE = [[1] * 10_000] * 10_000
BOMBS = {
    **{field: bomb(**{field: laughs(60)}) for field in bomb()},
    "wide sizes": bomb(input_sizes=WIDE, output_sizes=WIDE),
    "long names": bomb(profiling_name="nccl:" + "a" * 1_000_000, state="s" * 1_000_000, input_dtypes=["F" * 1_000_000]),
    "frames": bomb(frames=[{"filename": "/torch/" + "f" * 1_000_000, "name": "n" * 1_000_000, "line": 1}] * 10_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_that_stand_for_endless_values_are_read_at_once(tmp_path, name):
    value = {"version": "2.10", "pg_config": {}, "entries": [BOMBS[name]] * 5_000}
    (tmp_path / "fr_rank_0").write_bytes(pickle.dumps(value, 2))
    reading = evidence.read([tmp_path])
    (event,) = [event for event in reading.events if event.kind == "flight.dump"]
    assert event.data.entries == 5_000 and len(event.text) <= 2000


def test_endless_groups_and_headers_are_read_at_once(tmp_path):
    endless, ranks = laughs(60), list(range(10_000))
    config = {str(n): {"desc": "x" if n % 2 else endless, "ranks": ranks} for n in range(20_000)} | {"x": endless}
    value = {"version": endless, "pg_config": config, "rank": endless, "entries": [bomb()]}
    (tmp_path / "fr_rank_0").write_bytes(pickle.dumps(value, 2))
    assert [event.kind for event in evidence.read([tmp_path]).events] == ["flight.dump", "flight.missing"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_survive(protocol):
    value = {
        "a": [1, -1, 300, 70_000, 1 << 40, -(1 << 40), 1.5, None, True, False],
        "b": ("x", ("y",), ()),
        "c": {"d": "ü" * 300},
        "f": [[]],
        "g": [(str(n), "pair") for n in range(300)],
    }
    assert dumps.loads(pickle.dumps(value, protocol)) == value
