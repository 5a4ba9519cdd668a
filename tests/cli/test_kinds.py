"""``ncclkit diagnose`` on each kind of input: read for what it is, whatever its name, and used."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cli.command import Typed
from tests.evidence import documents as docs
from tests.evidence.test_flight import dump, entry, waiting
from tests.evidence.test_nccltests import run as table
from tests.evidence.test_ras import TEXT
from tests.evidence.test_stacks import FAULT, PYSPY

MACHINE = Path(__file__).parents[1] / "machines" / "h200-x8-slurm" / "commands"
GOOD = b"RuntimeError: CUDA error: boom\n"
WARN = b"node-1:4711:4720 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes\n"
KERNEL = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


def tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("logs/rank0.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("rank0.log", data)
    return buffer.getvalue()


def zst(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))


PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zst,
    "tar.gz": tar,
    "zip": zipped,
    "utf-16": lambda data: data.decode().encode("utf-16"),
}
KINDS = {
    "log": (GOOD, "CUDA error: boom"),
    "NCCL_DEBUG_FILE": (WARN, "/dev/shm"),
    "flight": (pickle.dumps(dump([entry(1), waiting(2)]), 2), ""),
    "flight as JSON": (json.dumps(dump([entry(1), waiting(2)])).encode(), ""),
    "ras": (TEXT.encode(), ""),
    "stacks": (PYSPY.encode(), ""),
    "stacks of faulthandler": (FAULT.encode(), ""),
    "dmesg": (f"[12345.678901] {KERNEL}\n".encode(), "Xid 79"),
    "dmesg -T": (f"[Sat Nov 21 01:02:03 2026] {KERNEL}\n".encode(), "Xid 79"),
    "journal": (f"Nov 21 01:02:03 node-1 kernel: {KERNEL}\n".encode(), "Xid 79"),
    "journal -o short-iso": (f"2026-11-21T01:02:03+0000 node-1 kernel: {KERNEL}\n".encode(), "Xid 79"),
    "nvidia-smi -q -x": ((MACHINE / "nvidia_smi_q_x.txt").read_bytes(), "facts"),
    "nvidia-smi topo -m": ((MACHINE / "nvidia_smi_topo_m.txt").read_bytes(), "facts"),
    "collect_env": (docs.COLLECTED.encode(), "facts"),
    "ulimit -a": (docs.BASH.encode(), "4 facts"),
    "ibstat": (docs.IBSTAT.encode(), "1 facts"),
    "show_gids": (docs.GIDS.encode(), "1 facts"),
    "nccl-tests": (table().encode(), "6 measurements (all_reduce up to 326.41 GB/s busbw), 2 WRONG values"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_read(tmp_path: Path, kind: str, typed: Typed) -> None:
    data, says = KINDS[kind]
    (tmp_path / "attachment").write_bytes(data)
    done = typed("diagnose", str(tmp_path / "attachment"))
    assert done.returncode in (0, 1) or (done.returncode == 2 and says.endswith("facts")), done.stderr  # no job in it
    known = {"NCCL_DEBUG_FILE": "log", "flight as JSON": "flight", "stacks of faulthandler": "stacks"}
    known |= dict.fromkeys(("dmesg -T", "journal", "journal -o short-iso"), "dmesg")
    assert f"Read 1 × {known.get(kind, kind)}: " in done.stderr and "not understood" not in done.stderr
    assert says in done.stdout + done.stderr


@pytest.mark.parametrize("packer", PACKERS)
def test_each_packing_is_read(tmp_path: Path, packer: str, typed: Typed) -> None:
    (tmp_path / "attachment").write_bytes(PACKERS[packer](GOOD))
    done = typed("diagnose", str(tmp_path / "attachment"))
    assert done.returncode == 1 and "CUDA error: boom" in done.stdout, done.stderr


def test_a_pattern_a_folder_a_file_and_standard_input_together(tmp_path: Path, typed: Typed) -> None:
    for name in ("a/rank0.log", "a/rank1.log", "b/rank2.log", "rank3.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD)
    done = typed("diagnose", "--json", "a/*.log", "b", "rank3.log", "-", stdin=GOOD, cwd=tmp_path)
    paths = [row["path"] for row in json.loads(done.stdout)["inputs"]]
    assert paths == ["a/rank0.log", "a/rank1.log", "b/rank2.log", "rank3.log", "-"]


def test_a_slurm_job_id(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "out.txt").write_bytes(GOOD)
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/sh\necho 'JobId=12345 StdErr={tmp_path}/out.txt StdOut={tmp_path}/out.txt Power='\n")
    script.chmod(0o755)
    done = typed("diagnose", "12345", cwd=tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1 and f"{tmp_path}/out.txt:1" in done.stdout


@pytest.mark.parametrize(
    ("symptom", "document", "cause", "says"),
    [
        (b"call to ibv_reg_mr failed: Cannot allocate memory", docs.BASH, "memlock_limit", "ulimit -a"),
        (b"Error: failed to extend /dev/shm/nccl-x to 9637892 bytes", docs.DF, "shm_too_small", "df /dev/shm"),
    ],
)
def test_causes_use_what_other_tools_say(
    tmp_path: Path, symptom: bytes, document: str, cause: str, says: str, typed: Typed
) -> None:
    (tmp_path / "job.log").write_bytes(b"node-1:4711:4720 [0] misc/ibvwrap.cc:72 NCCL WARN " + symptom + b"\n")
    (tmp_path / "host.txt").write_text(document)
    first = json.loads(typed("diagnose", "--json", str(tmp_path)).stdout)["findings"][0]
    assert first["cause"] == cause and says in json.dumps(first["evidence"])


def test_what_is_not_understood_is_counted(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "job.log").write_bytes(GOOD)
    (tmp_path / "core.1").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    (tmp_path / "notes.txt").write_text("nothing that a library would say\n")
    (tmp_path / "none.log").touch()
    done = typed("diagnose", str(tmp_path))
    assert "Read 2 × log: 2 events; not understood: 1 × binary, 1 × empty, 1 × unknown, 1 × log" in done.stderr
    assert "core.1 is a binary file" in done.stderr and "model.pkl is a pickle without" in done.stderr


def test_nothing_that_a_log_says_steers_the_terminal(tmp_path: Path, typed: Typed) -> None:
    evil = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202ertl \x08\x08 <script>alert(1)</script> \r hidden"
    log = tmp_path / "a\x1b[31m\udcff.log"
    log.write_bytes(b"RuntimeError: CUDA error: boom " + evil.encode() + b" boom\n")
    for options in ((), ("--json",)):
        done = typed("diagnose", *options, str(log))
        assert done.returncode == 1 and "boom" in done.stdout
        assert [c for c in done.stdout + done.stderr if not (c.isprintable() or c in "\n\t")] == []
    assert typed("diagnose", str(tmp_path / "no\x1b[2J")).stderr.isascii()
