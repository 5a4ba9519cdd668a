"""Input that means harm: read under watch, in a process of its own, in little time and memory, and nothing changes.

What the fuzzers cannot reach: inputs that are small on disk and huge in memory, names of files, a line of a gigabyte.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
READ = """
import json, resource, sys
from ncclkit import evidence
from ncclkit.core.model import to_json
from tests.fuzz.guards import watched
evidence.read([sys.argv[2]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with watched(float(sys.argv[1])) as used:
    reading = evidence.read(sys.argv[2:])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"rows": [row["path"] for row in reading.inputs], "problems": reading.problems,
                  "events": [event.kind for event in reading.events if to_json(event)],
                  "mib": grown >> 10, "seconds": used[0]}))
"""


def read(*paths, seconds=20.0):
    """Read a harmless log, then these files: what came out, and the memory in MiB that the latter took."""
    beside = paths[0].with_name("rank0.log")
    beside.write_text("ValueError: the file beside it is read all the same\n")
    command = [sys.executable, "-c", READ, str(seconds), str(beside), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert "python.exception" in said["events"] and {str(beside), *map(str, paths)} <= set(said["rows"])
    return said


def laughs(levels=12):
    """A tree of 10 ** `levels` leaves in a few hundred bytes: each level holds the one below ten times."""
    value: object = "ha"
    for _ in range(levels):
        value = [value] * 10
    return value


def entry(**changed):
    made = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "state": "scheduled", "frames": []}
    return made | {"process_group": ("0", "default_pg")} | changed


class System:
    def __reduce__(self):
        return os.system, ("touch ran",)


DUMPS = {
    "os.system": pickle.dumps({"entries": [System()]}, 2),
    "a class that looks harmless": b"\x80\x02cbuiltins\nlist\n)R.",
    "deep nesting": b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 500_000 + b".",
    "huge integer": b"\x80\x02\x8b" + struct.pack("<i", 50 << 20) + b"\x7f" * 1000 + b".",
    "digits without end": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "memo bomb": b"\x80\x02Nr\xff\xff\xff\xff.",
    "string of an exabyte": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc.",
    "duplicates": b"\x80\x02]" + b"2" * 1_000_000 + b".",
    "laughing version": pickle.dumps({"version": laughs(), "entries": [entry()]}, 2),
    "laughing name": pickle.dumps({"entries": [entry(profiling_name=laughs())]}, 2),
    "laughing state": pickle.dumps({"entries": [entry(state=laughs())]}, 2),
    "laughing group": pickle.dumps({"entries": [entry(process_group=(laughs(), laughs()))]}, 2),
    "laughing sizes": pickle.dumps({"entries": [entry(input_sizes=laughs(), input_dtypes=laughs())]}, 2),
    "laughing frames": pickle.dumps({"entries": [entry(frames=laughs())]}, 2),
    "laughing members": pickle.dumps({"pg_config": {"0": {"ranks": laughs()}}, "entries": [entry()]}, 2),
    "one entry many times": pickle.dumps({"entries": [entry()] * 400_000}, 2),
}


def test_hostile_dumps(tmp_path):
    """All of them in one process: nothing runs, and together they take less than a minute and 400 MiB."""
    paths = []
    for number, data in enumerate(DUMPS.values()):
        paths.append(tmp_path / f"nccl_trace_rank_{number}")
        paths[-1].write_bytes(data)
    said = read(*paths, seconds=60)
    assert said["mib"] < 400
    assert not (tmp_path / "ran").exists() and not (ROOT / "ran").exists()
    refused = {problem.partition(" ")[0].rpartition("_")[2] for problem in said["problems"]}
    assert set(map(str, range(9))) <= refused


DOCUMENTS = {
    "deep": b"[" * 1_000_000,
    "deep and closed": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "digits": b'{"entries": [' + b"9" * 1_000_000 + b"]}",
    "exponent": b'{"entries": [{"profiling_name": "x", "seq_id": 1e999999999}]}',
    "not a number": b'{"communicators": [{"hash": "0x1", "size": NaN, "ranks": [{"rank": Infinity}]}]}',
    "entities": b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(12))
    + b"]><nvidia_smi_log>&m;</nvidia_smi_log>",
    "another file": b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    b"<nvidia_smi_log><driver_version>&a;</driver_version></nvidia_smi_log>",
}


WIRE = b'{"ncclkit":1,"kind":"phase","phase":"step","rank":1,'
DOCUMENTS |= {
    "records of no clock": b"\n".join(WIRE + b'"t":%s,"x":%s}' % (n, n) for n in (b"1e999", b"NaN", b"9" * 400, b"[]")),
    "a deep record": WIRE + b'"x":' + b"[" * 100_000,
    "an end without end": b'{"reason": "done", "exitcode": -Infinity, "say": [], "ended": ' + b"9" * 400 + b"}",
}


def test_hostile_documents(tmp_path):
    """All of them in one process: together they take no more memory than one of them may."""
    paths = [tmp_path / f"rank{number}.json" for number in range(1, len(DOCUMENTS) + 1)]
    for path, data in zip(paths, DOCUMENTS.values(), strict=True):
        path.write_bytes(data)
    said = read(*paths)
    assert said["mib"] < 200 and "root:" not in json.dumps(said), said


RUN = "from ncclkit.cli import main; sys.exit(main(sys.argv[1:]))"
CLAIMS = [
    "node-1:4711:4720 [3] NCCL INFO comm 0x7f10 rank 3 nranks {} cudaDev 3 nvmlDev 3 busId 5d000 commId 0x9a - "
    "Init START",
    "[rank{}]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds",
    "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/{} clients joined.",
    "{}: ValueError: boom",
]


def test_a_job_of_billions_of_ranks(tmp_path):
    """What readers and causes make for every rank of a job must not fill the memory because a number says so."""
    for number, count in enumerate(("2000000000", "9999999", "999999", "9" * 18, "9" * 30)):
        (tmp_path / f"rank{number}.log").write_text("".join(line.replace("{}", count) + "\n" for line in CLAIMS))
        (tmp_path / f"rank{count}.json").write_text(json.dumps({"ranks": int(count), "name": "x", "backend": "nccl"}))
    entries = [entry(collective_seq_id=seq, profiling_name="nccl:all_to_all") for seq in (1, 1 << 60)]
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    for number in (0, 1):
        dump = {"version": "2.9", "pg_config": group, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{number}").write_text(json.dumps(dump))
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); {RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 1 and "check itself failed" not in done.stdout, done.stderr[-2000:]


def test_a_folder_of_odd_names(tmp_path):
    """Names are external text too: nothing that a terminal would obey reaches a sentence."""
    for name in ("a\nb.log", "\x1b[31mred.log", "-rf", "$(touch ran).log", "<b>.log", "x" * 250):
        (tmp_path / name).write_bytes(b"\x7fELF\0\1\2\3" * 100)
    (tmp_path / "rank0.log").write_text("ValueError: boom\n")
    done = subprocess.run(
        [sys.executable, "-m", "ncclkit", "diagnose", str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode in (0, 1) and "\x1b" not in done.stderr + done.stdout
    assert "ValueError" in done.stdout


def test_a_line_of_a_gibibyte(tmp_path):
    """A sparse file: an error at the start, another near the end, and no line end between them."""
    path = tmp_path / "rank1.log"
    with path.open("wb") as out:
        out.write(b"ValueError: first\n")
        out.seek((1 << 30) - 10_000)
        out.write(b" torch.OutOfMemoryError: CUDA out of memory." + b"." * 9_000 + b"\n")
    said = read(path, seconds=60)
    assert said["mib"] < 300 and "cuda.oom" in said["events"]
