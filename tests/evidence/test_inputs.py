"""Whatever users hand over: read it, or say in one sentence why not; a bad file never spoils a good one."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import stat
import zipfile

import pytest

from ncclkit import evidence
from ncclkit.core.model import NcclkitError, fields_of
from ncclkit.evidence.sources import inputs, streams

GOOD = "step 1\nRuntimeError: CUDA error: boom\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def kinds(reading):
    return [event.kind for event in reading.events]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
def test_packed_files_are_read_whatever_their_name(read_text, pack):
    reading = read_text(pack(GOOD.encode()), "job.log")
    assert kinds(reading) == kinds(read_text(GOOD))
    assert reading.inputs[0]["lines"] == 2


@pytest.mark.parametrize(
    "text",
    [
        GOOD.encode("utf-16"),
        GOOD.encode("utf-16-le"),
        GOOD.encode("utf-16-be"),
        GOOD.replace("\n", "\r\n").encode(),
        b"\xff\xfe\xfa caf\xe9\n" + GOOD.encode(),
        b"\0" * 5000 + GOOD.encode(),
        GOOD.encode().replace(b"1", b"\0"),
        GOOD.encode().rstrip(b"\n"),
        b"\xef\xbb\xbf" + GOOD.encode(),
    ],
    ids=["utf16", "utf16le", "utf16be", "crlf", "invalid", "hole", "nul", "no newline", "bom"],
)
def test_odd_texts_are_read(read_text, text):
    assert "cuda.error" in kinds(read_text(text))


def test_a_broken_gz_gives_what_came_before_the_break(read_text):
    lines = "".join(f"ValueError: {os.urandom(30).hex()}\n" for _ in range(3000))
    whole = gzip.compress((GOOD + lines).encode())
    reading = read_text(whole[: len(whole) // 2], "job.log.gz")
    assert "cuda.error" in kinds(reading)
    assert len(reading.problems) == 1 and "breaks off" in reading.problems[0]


def test_a_bomb_stops_at_the_limit(read_text, monkeypatch):
    monkeypatch.setattr(streams, "LARGEST", 1 << 20)
    reading = read_text(gzip.compress(GOOD.encode() + b"x\n" * (4 << 20)), "job.gz")
    assert "cuda.error" in kinds(reading) and "unpacks to more than" in reading.problems[0]


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "empty"), (PNG, "binary"), (b"\0" * 100, "binary"), (zipfile.ZipFile, "holds no log")]
)
def test_one_sentence_where_nothing_can_be_read(tmp_path, content, says):
    path = tmp_path / "job.log"
    if content is zipfile.ZipFile:
        with zipfile.ZipFile(path, "w"):
            pass
    else:
        path.write_bytes(content)
    with pytest.raises(NcclkitError, match=says) as error:
        evidence.read([path])
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_paths_empty_folders_and_no_input(tmp_path):
    with pytest.raises(NcclkitError, match="nowhere.log does not exist"):
        evidence.read([tmp_path / "nowhere.log"])
    with pytest.raises(NcclkitError, match="holds no file"):
        evidence.read([tmp_path])
    with pytest.raises(NcclkitError, match="No input"):
        evidence.read([])
    (tmp_path / "a.bin").write_bytes(PNG)
    (tmp_path / "b.bin").write_bytes(PNG)
    with pytest.raises(NcclkitError, match="None of the 2 files"):
        evidence.read([tmp_path])


def deny(monkeypatch, forbidden):
    """Refuse one file as the kernel would refuse it to another user; root is refused nothing."""
    real = open

    def opened(path, *args, **kwargs):
        if os.fspath(path) == str(forbidden):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(inputs, "open", opened, raising=False)


def test_no_permission(tmp_path, monkeypatch):
    secret, good = tmp_path / "secret.log", tmp_path / "good.log"
    secret.write_text(GOOD)
    good.write_text(GOOD)
    deny(monkeypatch, secret)
    with pytest.raises(NcclkitError, match="may not be read"):
        evidence.read([secret])
    reading = evidence.read([secret, good])
    assert "cuda.error" in kinds(reading) and "may not be read" in reading.problems[0]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NcclkitError, match="not a regular file"):
        evidence.read([tmp_path / "pipe"])
    (tmp_path / "job.log").write_text(GOOD)
    assert "cuda.error" in kinds(evidence.read([tmp_path]))


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_the_other_lines_of_a_short_wide_log_are_its_words(tmp_path, codec):
    text = "Größe 7 läuft hier weiter\n\nes folgt ein Fehler: 没有空间\n\nund noch etwas mehr Text\n"
    (tmp_path / "job.log").write_bytes(text.encode(codec))
    (row,) = evidence.read([tmp_path / "job.log"]).inputs
    assert [quiet["text"] for quiet in row["quiet"]] == ["Größe 7 läuft hier weiter", "und noch etwas mehr Text"]
    assert [(found["line"], found["text"]) for found in row["abnormal"]] == [(3, "es folgt ein Fehler: 没有空间")]


def test_the_end_of_a_long_wide_log_is_searched_too(tmp_path):
    text = "all is well here\n" * 150_000 + "loss became strange: cannot go on\n"
    (tmp_path / "job.log").write_bytes(text.encode("utf-16"))
    (row,) = evidence.read([tmp_path / "job.log"]).inputs
    assert [found["line"] for found in row["abnormal"]] == [150_001]


def test_a_file_that_vanishes_is_a_problem(tmp_path, monkeypatch):
    (tmp_path / "job.log").write_text(GOOD)
    found = {str(tmp_path / name): str(tmp_path) for name in ("gone.log", "job.log")}
    monkeypatch.setattr(inputs, "find", lambda paths: (found, []))
    reading = evidence.read([tmp_path])
    assert "cuda.error" in kinds(reading) and "gone.log" in reading.problems[0]


def test_a_file_that_grows_as_fast_as_it_is_read_ends_where_it_ended_at_first(tmp_path, monkeypatch):
    path = tmp_path / "job.log"
    path.write_text(GOOD)

    class Growing(io.FileIO):
        def read(self, size=-1):
            with open(path, "ab") as more:
                more.write(b"ValueError: later\n" * 100)
            return super().read(size)

    monkeypatch.setattr(inputs, "opened", lambda name: Growing(name))
    reading = evidence.read([path])
    assert kinds(reading) == kinds(evidence.read(["-"], stdin=io.BytesIO(GOOD.encode())))
    assert (reading.inputs[0]["bytes"], reading.inputs[0]["lines"]) == (len(GOOD), 2)


def test_files_without_a_size_are_read():
    facts = {fact.name: fact.value for fact in evidence.read(["/proc/self/limits"]).facts}
    assert facts["limits.nofile.soft"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.out", ["rank9.out", "rank10.out"]),
        ("**/*.out", ["rank9.out", "rank10.out", "sub/deep/rank1.out"]),
        ("rank?.out", ["rank9.out"]),
        ("s*b", ["sub/deep/rank1.out"]),
        ("rank[1-9]*.out", ["rank9.out", "rank10.out"]),
        ("a[1].out", ["a[1].out"]),
    ],
)
def test_patterns_are_filled_in_here_where_the_shell_did_not(tmp_path, pattern, names):
    for name in (
        "rank10.out",
        "rank9.out",
        "sub/deep/rank1.out",
        ".hidden.out",
        *(["a[1].out"] if "a[" in pattern else []),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(GOOD)
    reading = evidence.read([tmp_path / pattern])
    assert [os.path.relpath(row["path"], tmp_path) for row in reading.inputs] == names


def test_a_pattern_that_matches_nothing_is_one_sentence(tmp_path):
    with pytest.raises(NcclkitError, match=r"Nothing matches .*\*\.out") as error:
        evidence.read([f"{tmp_path}/*.out"])
    assert "\n" not in str(error.value)


def test_standard_input():
    reading = evidence.read(["-"], stdin=io.BytesIO(GOOD.encode()))
    assert "cuda.error" in kinds(reading) and reading.inputs[0]["path"] == "-"


def test_folders_are_read_in_order_without_hidden_files_and_programs(tmp_path):
    for name in ("rank10.log", "rank9.log", "sub/rank1.log", ".hidden.log", "train.py", "case.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GOOD)
    reading = evidence.read([tmp_path])
    assert [os.path.relpath(row["path"], tmp_path) for row in reading.inputs] == [
        "rank9.log",
        "rank10.log",
        "sub/rank1.log",
    ]
    assert "1 file with a program" in reading.problems[0]


def test_rows_of_inputs(read_text):
    row = read_text(GOOD, "rank3.log").inputs[0]
    assert (row["bytes"], row["lines"], row["kind"], row["events"], row["ranks"]) == (len(GOOD), 2, "log", 3, [3])


def test_a_run_folder(tmp_path):
    run = tmp_path / "runs" / "1-all_reduce"
    run.mkdir(parents=True)
    hello = [
        {"ncclkit": 1, "kind": "phase", "t": 5.0, "phase": "hello", "rank": rank, "host": "a", "pid": 70 + rank}
        for rank in (0, 1)
    ]
    steps = [
        {"ncclkit": 1, "kind": "phase", "t": 6.0 + step, "phase": "step", "rank": 0, "step": step} for step in range(9)
    ]
    (run / "wire.jsonl").write_text(
        "".join(
            json.dumps(record, separators=(",", ":")).replace('":1,', '": 1,', 0) + "\n" for record in hello + steps
        )
    )
    (run / "plan.json").write_text(json.dumps({"ranks": 4, "backend": "gloo"}))
    (run / "status.json").write_text(json.dumps({"reason": "failed", "exitcode": 1, "say": "rank 1 is gone"}))
    (run / "rank0.log").write_text("a:70:9 [0] x.cc:1 NCCL WARN odd\n")
    (run / "rank2.log").write_text("nothing to see\n")
    reading = evidence.read([tmp_path])
    by_kind = {(event.kind, fields_of(event).get("phase")): event for event in reading.events}
    assert by_kind["worker.phase", "step"].data.step == 8 and by_kind["worker.phase", "step"].count == 9
    assert by_kind["run.end", None].text == "the run ended: failed (rank 1 is gone)"
    assert by_kind["nccl.warn", None].rank == 0
    job = evidence.job(reading.events, reading.inputs)
    assert (job["ranks"], job["silent"], job["hosts"]) == (4, [3], ["a"])


def test_the_job_of_a_log(read_text):
    lines = [
        f"n{r // 2}:{r}:1 [0] NCCL INFO comm 0x7f rank {r} nranks 4 cudaDev 0 busId 1000 - Init COMPLETE"
        for r in range(3)
    ]
    lines += ["n0:0:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0", "n0:0:1 [0] NCCL INFO Using network IB"]
    lines += [
        "n0:0:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "n0:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0",
    ]
    reading = read_text("\n".join(lines))
    assert evidence.job(reading.events, reading.inputs) == {
        "ranks": 4,
        "hosts": ["n0", "n1"],
        "nccl": "2.28.9",
        "torch": None,
        "cuda": "13.0",
        "transports": {"NET": 1, "P2P": 1},
        "network": "IB",
        "silent": [3],
    }


def test_markup_and_terminal_escapes_stay_text(only):
    (event,) = only("python.exception", "\x1b[31mValueError: <script>alert(1)</script>\x1b]0;title\x07\x1b[0m\n")
    assert event.text == "ValueError: <script>alert(1)</script>"


def test_files_stay_as_they_were(read_text, tmp_path):
    read_text(GOOD)
    assert stat.S_IMODE((tmp_path / "job.log").stat().st_mode) & 0o600 and (tmp_path / "job.log").read_text() == GOOD
