"""Logs and dumps of thousands of ranks, read by workers of Dask: MB/s, memory of the coordinator, equal results.

    python -m tests.bench.workers [--ranks 16384] [--entries 200] [--gigabytes 1 2 4] [--workers 1 2 4] [--json FILE]

Logs and dumps are format-true (`logs.py`, `flight.py`).  Every figure is of a process of its own with its own workers,
start included; ``workers 0`` is one process without.  CPU seconds are of all processes, and tell of a busy machine what
the others do not.  Several sizes of logs show whether time is linear in bytes.  Rows are added to FILE, so parts may be
run one by one.  Exit status 1 where a result differs from that of one process or the coordinator takes more than a
gigabyte.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.bench import flight, logs

BASE = 256 << 20
"""Bytes of one log; the others are its copies."""
MOST = 1024
"""Megabytes that the coordinator may take."""
READ = """
import hashlib, resource, sys, time
from contextlib import nullcontext
from dataclasses import replace
from ncclkit import evidence
from ncclkit.core.model import to_json
from ncclkit.live import workers
what, lists = sys.argv[2], {}
with workers.started(what, lambda said: print(said, file=sys.stderr)) if what else nullcontext() as executor:
    begun = time.monotonic()
    events = evidence.read([sys.argv[1]], executor=executor).events
    seconds = time.monotonic() - begun
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = sum(of.ru_utime + of.ru_stime for of in (own, others))
def shorter(value):  # a list of all ranks stands in each event: as text they would be gigabytes
    if isinstance(value, dict):
        return {key: shorter(item) for key, item in value.items()}
    if not isinstance(value, list) or len(value) < 1000:
        return value
    if id(value) not in lists:
        lists[id(value)] = hashlib.sha256(repr(value).encode()).hexdigest()
    return lists[id(value)]
digest = hashlib.sha256()
for event in events:
    digest.update(to_json(replace(event, data=shorter(event.data))).encode())
print(round(seconds, 2), round(cpu, 2), own.ru_maxrss >> 10, len(events), digest.hexdigest())
"""


def main() -> int:
    """Write the files, read them by each number of workers, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[1.0, 2.0, 4.0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ncclkit-workers-") as place:
        folder = dumps(Path(place), asked.ranks, asked.entries)
        rows += measured(f"dumps of {asked.ranks} ranks", folder, asked.workers)
        shutil.rmtree(folder)
        for size in asked.gigabytes:
            rows += measured("logs", texts(Path(place), size), asked.workers)
    if asked.json:
        known = json.loads(asked.json.read_text()) if asked.json.exists() else {"rows": []}
        about: dict[str, Any] = {"hardware": flight.cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
        about["versions"] = {name: metadata.version(name) for name in ("distributed", "dask")}
        known |= {"entries": asked.entries, **about, "rows": known["rows"] + rows}
        asked.json.write_text(json.dumps(known, indent=1) + "\n")
    return int(any(row["differs"] or row["peak_mb"] > MOST for row in rows))


def dumps(place: Path, ranks: int, entries: int) -> Path:
    """A folder with the Flight Recorder dumps of so many ranks."""
    folder = place / "dumps"
    folder.mkdir()
    if ranks:
        flight.write_set(folder, ranks, entries, mixed=True)
    return folder


def texts(place: Path, gigabytes: float) -> Path:
    """A folder with logs of so many gigabytes; those of a smaller size are kept."""
    folder = place / "logs"
    folder.mkdir(exist_ok=True)
    for number in range(round(gigabytes * (1 << 30) / BASE)):
        path = folder / f"job{number}.log"
        if number and not path.exists():
            shutil.copy(folder / "job0.log", path)
        elif not number and not path.exists():
            logs.write(path, "mixed", BASE)
    return folder


def measured(name: str, folder: Path, workers: list[int]) -> list[dict[str, Any]]:
    """The figures of one set, first those of one process; nothing where the set is empty."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    rows: list[dict[str, Any]] = []
    for count in [0, *workers] if size else []:
        begun, load = time.monotonic(), os.getloadavg()[0]
        command = [sys.executable, "-c", READ, str(folder), f"dask:{count}" if count else ""]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
        seconds, cpu, peak, events, digest = done.stdout.split()
        row = {"set": name, "workers": count, "mb": size // 1_000_000, "seconds": float(seconds)}
        row |= {"mb_per_s": round(size / float(seconds) / 1e6), "wall": round(time.monotonic() - begun, 1)}
        row |= {"cpu": float(cpu), "peak_mb": int(peak), "events": int(events), "digest": digest}
        rows.append(row | {"differs": bool(rows) and digest != rows[0]["digest"], "load": round(load, 1)})
        rows[-1]["date"] = time.strftime("%Y-%m-%d %H:%M")
        print(" ".join(f"{key}={value}" for key, value in rows[-1].items() if key != "digest"), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
