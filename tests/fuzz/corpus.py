"""Make the seeds of the fuzzers from specimens, samples and recorded reports: ``python -m tests.fuzz.corpus``.

Small, as mutations of short inputs go further: at most 4 KB each.  Files named ``found-*`` are inputs that once broke
a property; they stay.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ncclkit.evidence.flight import dumps
from tests.evidence import documents as tools
from tests.evidence import specimens, test_nccltests
from tests.evidence.cliffs import CLIFFS, DUMPS
from tests.evidence.meanings import MEANINGS
from tests.evidence.test_flight import dump, entry, waiting
from tests.evidence.test_python import TRACE
from tests.evidence.test_ras import BLOCKS, DATA, text
from tests.evidence.test_stacks import FAULT, GDB, PYSPY
from tests.fuzz.targets import CORPUS

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "ncclkit" / "samples"
LINES = [
    case[0] for name in ("NCCL", "C10D", "GLOO", "STORE", "LAUNCHERS", "SYSTEM") for case in getattr(specimens, name)
]
LINES += [case[2] for case in CLIFFS] + [case[1] for case in MEANINGS]
LARGEST = 4096


def logs() -> Iterator[bytes]:
    """Every line of the conformance tests, in groups, and the shortest specimen of each cause."""
    for start in range(0, len(LINES), 8):
        yield "\n".join(LINES[start : start + 8]).encode() + b"\n"
    yield "\n".join(TRACE).encode()
    for cause in sorted((ROOT / "tests" / "specimens").iterdir()):
        found = [path for path in cause.glob("found-*/*") if path.suffix in (".log", ".txt", ".out")]
        yield min((path.read_bytes() for path in found), key=len, default=b"")[:LARGEST]


def repeated() -> Iterator[bytes]:
    """One line each, as this target repeats what it gets."""
    yield from (line.encode() for line in LINES[::10])


def stacks() -> Iterator[bytes]:
    """Stacks of each tool."""
    yield from (said.encode() for said in (FAULT, GDB, PYSPY))
    yield gzip.decompress((SAMPLES / "hang/runs/1-rank_late/stacks_rank2.txt.gz").read_bytes())[:LARGEST]


def flight_dumps() -> Iterator[bytes]:
    """Flight Recorder dumps as pickles of each protocol and as JSON, whole and cut."""
    made = dump([entry(1), entry(2), waiting(3)])
    real = dumps.loads((SAMPLES / "hang/runs/1-rank_late/fr_rank_0").read_bytes())
    real["entries"] = real["entries"][-2:]
    for value in (made, real):
        yield from (pickle.dumps(value, protocol) for protocol in (2, 3, 4, 5))
        yield json.dumps(value, default=str).encode()
    yield from (pickle.dumps(value, 2) for value in DUMPS.values())
    yield pickle.dumps(made, 2)[:200]


def reports() -> Iterator[bytes]:
    """RAS reports."""
    yield from (path.read_bytes() for path in sorted(DATA.iterdir()))
    yield from (text(version, op).encode() for version, op in (("2.24.3", "collective"), ("2.28.9", "AllReduce")))
    yield BLOCKS.encode()


def documents() -> Iterator[bytes]:
    """JSON that ncclkit knows, and JSON that it does not."""
    run = SAMPLES / "hang/runs/1-rank_late"
    yield from ((run / name).read_bytes() for name in ("plan.json", "status.json", "processes.json"))
    yield gzip.decompress((run / "wire.jsonl.gz").read_bytes())[:LARGEST]
    yield json.dumps(
        [{"pid": 1, "frames": [{"name": "f", "filename": "a.py", "line": 3}], "thread_name": "x"}]
    ).encode()
    yield json.dumps({"distributedInfo": {"backend": "nccl", "rank": 0}, "traceEvents": [{"ph": "X"}]}).encode()
    yield b'{"a": [1, 2.5, null, true, "\\u00fc"]}\n[]\n'


def printed() -> Iterator[bytes]:
    """What other tools print."""
    known = vars(tools) | vars(test_nccltests)
    yield from (text.encode() for name, text in known.items() if name.isupper() and isinstance(text, str))
    machine = ROOT / "tests" / "machines" / "h200-x4" / "commands"
    yield (machine / "nvidia_smi_topo_m.txt").read_bytes()
    report = (machine / "nvidia_smi_q_x.txt").read_bytes()
    yield report[: report.index(b"</product_name>")] + b"</product_name></gpu></nvidia_smi_log>"


def archives() -> Iterator[bytes]:
    """Archives of two logs; the first byte says whether the target packs the rest."""
    members = {"inner/rank0.log": LINES[0].encode() + b"\n", "fr_rank_1": pickle.dumps(dump([entry(1)]), 2)}
    tar, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in members.items():
            out.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    yield b"0" + tar.getvalue()[:4608]
    yield b"1" + tar.getvalue()[:4608]
    yield b"0" + zipped.getvalue()
    yield b"0" + gzip.compress(members["inner/rank0.log"] * 20, mtime=0)
    yield b"0" + gzip.compress(members["inner/rank0.log"] * 20, mtime=0)[:-12]


SOURCES = {
    "log": logs,
    "repeated": repeated,
    "stacks": stacks,
    "dump": flight_dumps,
    "ras": reports,
    "document": documents,
    "tools": printed,
    "archive": archives,
}


def main() -> int:
    """Write the corpus anew; what was found stays."""
    for name, source in SOURCES.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for number, data in enumerate(dict.fromkeys(source())):
            (folder / f"seed-{number:03d}").write_bytes(data)
    print(sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
