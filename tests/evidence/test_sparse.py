"""What stands behind the data of a sparse file: terabytes of zero bytes, which take no room on a disk."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import time

import pytest
import zstandard

from ncclkit import evidence
from ncclkit.evidence.sources import streams

TERABYTE = 1 << 40
ERROR = "[rank3]: ValueError: it broke"
LOG = f"step 1\n{ERROR}\n".encode()


def tar_gz(text):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("rank3.log")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


PACKERS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
    "tar.gz": tar_gz,
    "plain": bytes,
    "utf-16": lambda text: text.decode().encode("utf-16"),
}


def sparse(path, content):
    path.write_bytes(content)
    os.truncate(path, TERABYTE)
    return path


def read_quickly(path):
    """Its reading, within seconds of CPU: a terabyte would take minutes at least."""
    begun = time.process_time()
    reading = evidence.read([path])
    assert time.process_time() - begun < 20
    return reading


def errors_in(reading):
    return [event.text for event in reading.events if event.kind == "python.exception"]


@pytest.mark.parametrize("packing", PACKERS)
def test_a_hole_behind_the_data_is_passed(tmp_path, packing):
    reading = read_quickly(sparse(tmp_path / "rank3.log", PACKERS[packing](LOG)))
    assert errors_in(reading) == [ERROR] and not reading.problems


@pytest.mark.parametrize("engine", ["fast", "standard library"])
@pytest.mark.parametrize("packing", ["gz", "xz", "bz2", "zst", "tar.gz"])
def test_where_holes_cannot_be_seen_padding_has_a_limit(tmp_path, monkeypatch, packing, engine):
    monkeypatch.delattr(os, "SEEK_HOLE")
    if engine == "standard library":
        monkeypatch.setitem(sys.modules, "isal", None)
    path = sparse(tmp_path / "rank3.log", PACKERS[packing](LOG))
    reading = read_quickly(path)
    assert errors_in(reading) == [ERROR]
    (problem,) = reading.problems
    assert "nothing but padding in the next 64 MiB" in problem and str(path) in problem


@pytest.mark.parametrize("content", [PACKERS["utf-16"](LOG), json.dumps({"version": "2.10"}).encode()])
def test_zero_bytes_within_a_text_have_a_limit(tmp_path, monkeypatch, content):
    monkeypatch.delattr(os, "SEEK_HOLE")
    monkeypatch.setattr(streams, "ZEROS", 8 << 20)
    reading = read_quickly(sparse(tmp_path / "rank3.log", content))
    assert [problem for problem in reading.problems if "8 MiB of zero bytes at a stretch" in problem]


def test_a_frame_that_breaks_off_before_a_hole_ends(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "SEEK_HOLE")
    frame = zstandard.ZstdCompressor().compressobj()
    begun = frame.compress(LOG) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    reading = read_quickly(sparse(tmp_path / "rank3.log", begun))  # zero bytes are empty blocks of a frame
    assert errors_in(reading) == [ERROR] and "padding" in reading.problems[0]


@pytest.mark.parametrize("packing", ["gz", "xz", "bz2", "zst"])
def test_what_stands_behind_some_padding_is_read(tmp_path, packing):
    pack = PACKERS[packing]
    (tmp_path / "rank3.log").write_bytes(pack(b"step 1\n") + bytes(100_000) + pack(LOG) + bytes(100))
    reading = evidence.read([tmp_path / "rank3.log"])
    assert errors_in(reading) == [ERROR] and not reading.problems


def test_zeros_that_belong_to_the_data_are_kept(tmp_path):
    packed = gzip.compress(LOG)
    path = tmp_path / "rank3.log"
    with open(path, "wb") as file:
        file.write(packed.rstrip(b"\0"))  # the length that ends it has zeros, of which a copier may make a hole
    os.truncate(path, len(packed))
    os.truncate(path, TERABYTE)
    assert errors_in(read_quickly(path)) == [ERROR]
