"""Archives as users attach them: read like the folder they came from, whatever is wrong with them."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclkit import evidence
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.sources import archives, streams
from tests.evidence.test_flight import dump, entry, waiting

GOOD = b"step 1\nRuntimeError: CUDA error: boom\n"
NOISE = b"".join(b"ValueError: %s\n" % os.urandom(30).hex().encode() for _ in range(3000))
LOGS = {"rank0.log": GOOD, "inner/rank1.log": b"n1:9:9 [0] x.cc:1 NCCL WARN odd\n", "rank10.log": GOOD}


def tarred(files, mode="w", extra=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind in extra:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return buffer.getvalue()


def zipped(files, method=zipfile.ZIP_DEFLATED, mode=0):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = method, mode << 16
            archive.writestr(info, content)
    return buffer.getvalue()


PACKERS = {
    "tar": tarred,
    "tar.gz": lambda files: tarred(files, "w:gz"),
    "tar.xz": lambda files: tarred(files, "w:xz"),
    "tar.bz2": lambda files: tarred(files, "w:bz2"),
    "zip": zipped,
    "stored.zip": lambda files: zipped(files, zipfile.ZIP_STORED),
}


def rows_of(reading, root):
    return [(os.path.relpath(e.path, root), e.kind, e.rank, e.line, e.text) for e in reading.events]


@pytest.mark.parametrize("kind", PACKERS)
def test_an_archive_reads_like_the_folder_in_it(tmp_path, kind):
    folder, archive = tmp_path / "logs", tmp_path / "ticket.attachment"
    for name, content in LOGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    archive.write_bytes(PACKERS[kind](LOGS))
    reading = evidence.read([archive])
    assert sorted(rows_of(reading, archive)) == sorted(rows_of(evidence.read([folder]), folder)) and reading.events
    assert {event.rank for event in reading.events} == {0, 1, 10} and not reading.problems
    rows = {os.path.relpath(row["path"], tmp_path): row for row in reading.inputs}
    assert rows["ticket.attachment"]["bytes"] == archive.stat().st_size
    assert rows["ticket.attachment/rank0.log"]["bytes"] == len(GOOD)
    assert sorted(os.listdir(tmp_path)) == ["logs", "ticket.attachment"]


class Pipe(io.BytesIO):
    def seekable(self):
        return False


@pytest.mark.parametrize("kind", PACKERS)
def test_piped_in(kind):
    reading = evidence.read(["-"], stdin=io.BufferedReader(Pipe(PACKERS[kind](LOGS))))
    assert {event.path for event in reading.events} == {f"-/{name}" for name in LOGS} and not reading.problems


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_dumps_of_all_ranks_are_read_together(read_text, pack):
    files = {
        f"dumps/nccl_trace_rank_{r}": pickle.dumps(dump([entry(1), *([waiting(2)] if r else [])]), 2) for r in (0, 1)
    }
    files["rank0.log.gz"] = gzip.compress(GOOD)
    reading = read_text(pack(files), "job")
    kinds = [event.kind for event in reading.events]
    assert "flight.missing" in kinds and "cuda.error" in kinds
    missing = next(event for event in reading.events if event.kind == "flight.missing")
    assert missing.data.missing == [0]


def test_names_that_lead_elsewhere_are_left_out_and_named(read_text):
    files = {"../up.log": GOOD, "/etc/root.log": GOOD, "a/../../b.log": GOOD, "C:\\w.log": GOOD, "./ok.log": GOOD}
    files |= {".ssh/key": GOOD, "__MACOSX/._ok.log": GOOD, "train.py": GOOD, "a\x1b[31m.log": b"x\n"}
    extra = [("link.log", tarfile.SYMTYPE), ("hard.log", tarfile.LNKTYPE), ("dev.log", tarfile.CHRTYPE)]
    for reading in (read_text(tarred(files, extra=extra), "a"), read_text(zipped(files), "b")):
        assert {os.path.basename(event.path) for event in reading.events} == {"ok.log"}
        assert any("(4 in all) left out: the name leads out of the archive" in p for p in reading.problems)
        assert any("train.py left out: programs" in p for p in reading.problems)
        assert all("\x1b" not in row["path"] for row in reading.inputs)
    reading = read_text(tarred({"ok.log": GOOD}, extra=extra), "a")
    assert "link.log, hard.log, dev.log left out: links and devices" in reading.problems[0]
    with pytest.raises(NcclkitError, match="link left out: links and devices"):
        read_text(zipped({"link": b"/etc/passwd"}, mode=0o120777), "c.zip")


def test_archives_and_programs_inside_are_one_sentence(read_text):
    files = {f"{n}.tgz": tarred(LOGS, "w:gz") for n in range(5)} | {"z.zip": zipped(LOGS), "core": bytes(range(32)) * 9}
    reading = read_text(tarred(files | {"ok.log": GOOD}), "a.tar")
    assert len(reading.problems) == 2 and "(6 in all) left out: archives inside" in reading.problems[0]
    assert "core left out: binary" in reading.problems[1]


@pytest.mark.parametrize(
    "kind", sorted(PACKERS.keys() - {"tar.bz2", "zip", "stored.zip"})
)  # bz2 is one block here: nothing comes before a cut
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_cut_archive_gives_what_came_before(read_text, kind, share):
    whole = PACKERS[kind]({"rank0.log": GOOD, "rank1.log": NOISE})
    reading = read_text(whole[: int(len(whole) * share)], "logs")
    assert "cuda.error" in [event.kind for event in reading.events if event.rank == 0]
    assert reading.problems and all("\n" not in problem for problem in reading.problems)
    if kind != "tar.bz2" and kind != "tar.xz":
        assert any(event.rank == 1 for event in reading.events)


def test_a_header_damaged_in_the_middle_is_no_end(read_text):
    whole = bytearray(tarred({"rank0.log": GOOD, "rank1.log": GOOD}))
    whole[1024:1030] = b"\xff" * 6
    assert "damaged" in read_text(bytes(whole), "a.tar").problems[0]


@pytest.mark.parametrize("kind", ["zip", "stored.zip"])
def test_a_zip_without_the_directory_at_its_end_is_named(tmp_path, kind):
    (tmp_path / "a.zip").write_bytes(PACKERS[kind](LOGS)[:-100])
    (tmp_path / "job.log").write_bytes(GOOD)
    reading = evidence.read([tmp_path])
    assert len(reading.problems) == 1 and "is damaged or cut short" in reading.problems[0]
    assert {event.path for event in reading.events} == {str(tmp_path / "job.log")}


def test_a_large_zip_is_not_kept_for_a_pipe(monkeypatch):
    monkeypatch.setattr(archives, "PIPED", 1000)
    with pytest.raises(NcclkitError, match="piped zip of more than"):
        evidence.read(["-"], stdin=Pipe(zipped({"a.log": os.urandom(4000)})))


def test_locked_members_are_named(read_text):
    whole = bytearray(zipped({"rank0.log": GOOD, "open.log": GOOD}))
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        whole[whole.find(mark) + at] |= 1
    reading = read_text(bytes(whole), "a.zip")
    assert "rank0.log left out: a password is needed" in reading.problems[0]
    assert {os.path.basename(event.path) for event in reading.events} == {"open.log"}


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "zip"])
@pytest.mark.parametrize("name", ["UNPACKED", "RATIO"])
def test_bombs_stop_at_the_limit(read_text, monkeypatch, kind, name):
    monkeypatch.setattr(streams, name, (1 << 20) if name == "UNPACKED" else 4)
    monkeypatch.setattr(streams, "FREE", 1 << 20)
    reading = read_text(PACKERS[kind]({"a.log": GOOD, "b.log": b"x\n" * (8 << 20), "c.log": GOOD}), "logs")
    assert "cuda.error" in [event.kind for event in reading.events]
    assert any("was read only in part: the archive unpacks to more than" in problem for problem in reading.problems)
    assert not any(row["path"].endswith("c.log") for row in reading.inputs)


def test_a_hole_of_a_sparse_member_is_a_bomb_too(read_text, monkeypatch):
    monkeypatch.setattr(streams, "FREE", 1 << 20)
    pax = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "a.log"}
    pax |= {"GNU.sparse.size": str(1 << 60), "GNU.sparse.numblocks": "1", "GNU.sparse.map": f"0,{len(GOOD)}"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.log")
        info.size, info.pax_headers = len(GOOD), pax
        archive.addfile(info, io.BytesIO(GOOD))
    reading = read_text(buffer.getvalue(), "a.tar")
    assert "cuda.error" in [event.kind for event in reading.events] and "more than 400 times" in reading.problems[0]


def test_many_members_and_huge_headers_have_limits(read_text, monkeypatch):
    monkeypatch.setattr(archives, "MEMBERS", 2)
    for pack in (tarred, zipped):
        reading = read_text(pack({f"{n}.log": GOOD for n in range(4)}), "many")
        assert len(reading.inputs) == 3 and "more than 2 members" in reading.problems[0]
    monkeypatch.setattr(archives, "HEADER", 100)
    reading = read_text(tarred({"a.log": GOOD, "b" * 500: GOOD}), "a.tar")
    assert "extended header too large" in reading.problems[0] and reading.events


def test_the_first_of_two_members_of_one_name_is_read(read_text):
    with pytest.warns(UserWarning, match="Duplicate name"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.log", GOOD)
            archive.writestr("a.log", NOISE)
    reading = read_text(buffer.getvalue(), "a.zip")
    assert "another member has the same name" in reading.problems[0] and reading.inputs[1]["bytes"] == len(GOOD)


def test_a_checkpoint_is_not_read(tmp_path):
    (tmp_path / "job.log").write_bytes(GOOD)
    (tmp_path / "model.pt").write_bytes(zipped({"model/data.pkl": b"\x80\x02}.", "model/data/0": b"\0" * 99}))
    reading = evidence.read([tmp_path])
    assert len(reading.problems) == 1 and "is a checkpoint of torch" in reading.problems[0]
    assert [row["kind"] for row in reading.inputs] == ["log", "archive"]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(
    kind=st.sampled_from(sorted(PACKERS)),
    hits=st.lists(st.tuples(st.floats(0, 0.999), st.sampled_from([0, 1, 47, 127, 255])), max_size=6),
    share=st.sampled_from([1, 1, 1, 0.3, 0.7, 0.95]),
)
def test_damage_of_any_kind_is_one_sentence(tmp_path, kind, hits, share):
    whole = bytearray(PACKERS[kind](LOGS))
    for place, value in hits:
        whole[int(place * len(whole))] = value
    (tmp_path / "a").write_bytes(whole[: int(len(whole) * share)])
    try:
        problems = evidence.read([tmp_path / "a"]).problems
    except NcclkitError as error:
        problems = [str(error)]
    assert all("\n" not in problem for problem in problems)


def test_a_member_without_a_name_is_none(read_text):
    whole = zipped({"/": b"x", "ok.log": GOOD}, zipfile.ZIP_STORED).replace(b"/", b"\0")
    assert "cuda.error" in [event.kind for event in read_text(whole, "a.zip").events]
