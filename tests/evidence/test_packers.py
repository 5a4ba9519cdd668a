"""Packed files read the same with and without the modules that make it faster, also when they are damaged."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import sys
import tarfile
import zlib

import pytest

from ncclkit import evidence
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.sources import streams

GOOD = b"step 1\nRuntimeError: CUDA error: boom\n"
NOISE = b"".join(b"line %d loss=%08x\n" % (n, random.Random(n).getrandbits(32)) for n in range(40_000))
PACKED = gzip.compress(GOOD + NOISE)
DAMAGE = {
    "whole": PACKED,
    "cut in the middle": PACKED[: len(PACKED) // 2],
    "cut in the trailer": PACKED[:-5],
    "cut in the header": PACKED[:5],
    "two members": PACKED + gzip.compress(GOOD),
    "padded": PACKED + b"\0" * 70_000 + gzip.compress(GOOD) + b"\0" * 9,
    "garbage after it": PACKED + b"no gzip at all",
    "flood": gzip.compress(b"x\n" * (4 << 20)),
}


def text(stream):
    take = getattr(stream, "read1", stream.read)
    parts = []
    try:
        while chunk := take(1 << 20):
            parts.append(chunk)
    except (OSError, EOFError) as error:
        return b"".join(parts), type(error).__base__ if isinstance(error, gzip.BadGzipFile) else type(error)
    return b"".join(parts), None


def source(data):
    return io.BufferedReader(io.BytesIO(data), 65536)


@pytest.mark.parametrize("damage", DAMAGE)
def test_isal_gives_what_python_gives(damage):
    pytest.importorskip("isal")
    stream = streams.gz(source(DAMAGE[damage]))
    assert isinstance(stream, streams.Members)
    fast, error = text(stream)
    plain, known = text(gzip.GzipFile(fileobj=source(DAMAGE[damage])))
    assert error == known
    assert plain.startswith(fast) and len(plain) - len(fast) <= 8  # bits of the last byte before a cut


def zst(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


def test_zst_is_read_whatever_its_name(read_text):
    reading = read_text(zst(GOOD) + zst(GOOD), "job.log")
    assert [event.count for event in reading.events if event.kind == "cuda.error"] == [2]
    assert reading.inputs[0]["lines"] == 4 and not reading.problems


def test_a_tar_zst_reads_like_its_folder(read_text):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("logs/rank3.log")
        info.size = len(GOOD)
        archive.addfile(info, io.BytesIO(GOOD))
    reading = read_text(zst(buffer.getvalue()), "ticket")
    assert {event.rank for event in reading.events} == {3}


def test_a_broken_zst_gives_what_came_before_the_break(read_text):
    whole = zst(GOOD + NOISE * 4)
    for damaged in (whole[: len(whole) // 2], whole + b"xx"):
        reading = read_text(damaged, "job.log.zst")
        assert "cuda.error" in [event.kind for event in reading.events]
        assert len(reading.problems) == 1 and "breaks off" in reading.problems[0]


def test_a_zst_bomb_stops_at_the_limit_and_is_given_out_in_small_pieces(read_text, monkeypatch):
    bomb = zst(GOOD + b"x\n" * (32 << 20))
    stream = streams.zst(source(bomb))
    assert stream is not None and max(len(stream.read(1 << 20)) for _ in range(5)) <= 1 << 20
    monkeypatch.setattr(streams, "LARGEST", 1 << 20)
    reading = read_text(bomb, "job.zst")
    assert "cuda.error" in [event.kind for event in reading.events] and "unpacks to more than" in reading.problems[0]


def test_without_the_module_zst_is_one_sentence_and_the_rest_is_read(tmp_path, monkeypatch):
    packed = tmp_path / "a.zst"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(50))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(NcclkitError, match="pip install zstandard.*zstd -d") as error:
        evidence.read([packed])
    assert "\n" not in str(error.value)
    (tmp_path / "good.log").write_bytes(GOOD)
    reading = evidence.read([tmp_path])
    assert "cuda.error" in [event.kind for event in reading.events] and "a.zst is packed" in reading.problems[0]
    assert [row["kind"] for row in reading.inputs] == ["unknown", "log"]


def test_without_isal_gz_is_read_all_the_same(read_text, monkeypatch):
    monkeypatch.setitem(sys.modules, "isal", None)
    assert streams.gz(source(PACKED)).broken is zlib.error
    assert "cuda.error" in [event.kind for event in read_text(PACKED).events]


def test_the_modules_are_loaded_only_for_their_files():
    code = "import sys, ncclkit.evidence; print({'isal', 'zstandard'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
