"""Files that nobody meant: one bad record or header costs one sentence, and never what stands beside it."""

from __future__ import annotations

import gzip
import struct
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from ncclkit import evidence
from ncclkit.evidence.sources import archives

GOOD = '{"ncclkit": 1, "kind": "phase", "phase": "import", "rank": 0, "host": "a", "pid": 3, "t": 1.0}\n'
BAD = {
    "phase": '"kind": "phase", "phase": {}, "rank": 0',
    "kind": '"kind": [], "rank": 0',
    "log": '"kind": "phase", "phase": "launch", "log": [], "host": "n1", "rank": 0',
    "host": '"kind": "phase", "phase": "x", "host": {}, "rank": []',
    "integers": f'"kind": "phase", "phase": "x", "rank": {10**30}, "pid": {10**40}, "t": {10**400}',
    "digits": f'"kind": "phase", "phase": "x", "rank": 1{"0" * 5000}',
    "nested": f'"kind": "phase", "phase": "x", "value": {"[" * 900}{"]" * 900}',
    "host of a test": '"kind": "connect.host", "interfaces": {"a": []}, "name": [], "names": 5',
    "pair of a test": '"kind": "connect.pair", "src": {}, "reached": [], "bandwidth": "x"',
    "limit": '"kind": "limits.tried", "what": [], "need": {}',
}


@pytest.mark.parametrize("record", BAD.values(), ids=BAD)
def test_a_bad_record_costs_no_other(tmp_path, record):
    path = tmp_path / "wire.jsonl"
    path.write_text(f'{{"ncclkit": 1, {record}}}\n{GOOD}')
    reading = evidence.read([path])
    assert [event.line for event in reading.events if event.pid == 3] == [2]
    assert all(abs(number) < 1 << 31 for event in reading.events for number in (event.rank, event.pid) if number)


@pytest.mark.parametrize("name", ["phase", "kind", "log"])
def test_a_record_that_cannot_be_told_apart_is_named(tmp_path, name):
    path = tmp_path / "wire.jsonl"
    path.write_text(f'{{"ncclkit": 1, {BAD[name]}}}\n{GOOD}')
    assert evidence.read([path]).problems == [f"{path}: 1 of 2 records could not be understood; the others were read."]


def test_equal_records_of_what_a_host_granted_are_not_merged(tmp_path):
    record = '{"ncclkit": 1, "kind": "resources.tried", "what": "shm", "need": 4, "got": 4, "host": "n1"}\n'
    (tmp_path / "wire.jsonl").write_text(2 * record)
    assert [event.line for event in evidence.read([tmp_path]).events] == [1, 2]


def header(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data):
    return data + b"\0" * (-len(data) % tarfile.BLOCKSIZE)


FIRST = header("first.log", 44) + padded(b"[rank0]: RuntimeError: CUDA error: unknown \n\n")
DIGITS = header("x", 1 << 20, tarfile.XHDTYPE) + padded(b"9" * (1 << 20))
MANY = b"".join(header("x", 8 << 10, tarfile.XHDTYPE) + padded(b"9" * (8 << 10)) for _ in range(2000))
ARCHIVES = {
    "a member of 2^60": header("a.log", 1 << 60) + b"x" * 4096,
    "a member of 2^60 that is passed over": header("a.pyc", 1 << 60) + b"\0" * 1024,
    "an unknown kind of 2^60": header("a.log", 1 << 60, b"z") + b"x" * 4096,
    "a long name of 2^60": header("a.log", 1 << 60, tarfile.GNUTYPE_LONGNAME) + b"x" * 4096,
    "an extended header of digits": DIGITS + header("b.log", 5) + padded(b"hello"),
    "thousands of extended headers": MANY + header("b.log", 5) + padded(b"hello"),
}


@pytest.mark.parametrize("rest", ARCHIVES.values(), ids=ARCHIVES)
def test_headers_of_archives_cost_little_and_lose_nothing_before_them(tmp_path, rest):
    path = tmp_path / "logs.tar"
    path.write_bytes(FIRST + rest)
    start = time.process_time()
    reading = evidence.read([path])
    assert time.process_time() - start < 20
    assert "cuda.error" in {event.kind for event in reading.events}
    assert any("breaks off" in problem for problem in reading.problems)


@pytest.mark.parametrize("is_large", [False, True], ids=["zip", "zip64"])
def test_a_zip_of_millions_of_members_costs_no_memory(tmp_path, monkeypatch, is_large):
    """Python's zipfile makes an object of each before it gives the first."""
    made = []
    monkeypatch.setattr(archives.zipfile, "ZipFile", lambda file: made.append(file))
    rows = b"".join(struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 9, 1, *[0] * 6) + b"x" for _ in range(1000)) * 600
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 0xFFFFFFFF if is_large else len(rows), 30, 0)
    whole = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(rows), 30) + bytes(20) if is_large else b""
    (tmp_path / "a.zip").write_bytes(b"PK\3\4" + bytes(26) + rows + whole + end)
    (tmp_path / "rank0.log").write_text("ValueError: boom\n")
    reading = evidence.read([tmp_path])
    assert reading.problems == [f"{tmp_path / 'a.zip'} has a directory of more than 24 MiB; give the logs that matter."]
    assert len(reading.events) == 1 and not made


TIB = 1 << 40
HOLES = {
    "emptied": [(5 << 20, b"[rank0]: ValueError: boom\n")],
    "emptied long ago": [(TIB, b"[rank0]: ValueError: boom\n")],
    "grown": [(0, b"[rank0]: ValueError: boom\n"), (TIB, b"\n")],
    "twice": [(TIB // 2, b"\n[rank0]: ValueError: boom\n"), (TIB - 90_000, b"x\n" + b"y" * 90_000 + b"\n")],
}
"""Where what is written."""


@pytest.mark.parametrize("helped", [False, True])
@pytest.mark.parametrize("name", HOLES)
def test_a_hole_of_a_file_takes_no_time(tmp_path, name, helped):
    path = tmp_path / "job.log"
    with open(path, "wb") as file:
        for place, text in HOLES[name]:
            file.seek(place)
            file.write(text)
    start = time.process_time()
    with ThreadPoolExecutor(2) if helped else nullcontext() as executor:
        reading = evidence.read([path], executor=executor)
    assert time.process_time() - start < 5
    assert [(event.kind, event.rank) for event in reading.events] == [("python.exception", 0)]
    assert reading.problems == [] and reading.inputs[0]["bytes"] == path.stat().st_size


def test_zero_bytes_that_are_no_hole_are_read_over(tmp_path):
    text = b"\0" * 200_000 + b"[rank0]: ValueError: boom\n"
    (tmp_path / "a.log").write_bytes(text)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(text))
    reading = evidence.read([tmp_path])
    assert [event.line for event in reading.events] == [1, 1] and reading.problems == []
    assert reading.inputs[0]["bytes"] == len(text)
