"""Logs and dumps of thousands of ranks, read by workers of Dask: MB/s, memory of the coordinator, equal results.

    python -m tests.bench.workers [--ranks 16384] [--entries 200] [--gigabytes 1] [--workers 1 2 4] [--json FILE]

Logs and dumps are format-true (`logs.py`, `flight.py`).  Every figure is of a process of its own with its own workers,
start included; ``alone`` is one process without workers.  Exit status 1 where a result differs from that of one process
or the coordinator takes more than a gigabyte.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
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
from ncclkit import evidence
from ncclkit.core.model import to_json
from ncclkit.live import workers
what = sys.argv[2]
with workers.started(what, lambda said: print(said, file=sys.stderr)) if what else nullcontext() as executor:
    begun = time.monotonic()
    events = evidence.read([sys.argv[1]], executor=executor).events
    seconds = time.monotonic() - begun
digest = hashlib.sha256("".join(map(to_json, events)).encode()).hexdigest()
print(round(seconds, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, len(events), digest)
"""


def main() -> int:
    """Write the files, read them by each number of workers, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclkit-workers-") as place:
        sets = {"dumps": dumps(Path(place), asked.ranks, asked.entries), "logs": texts(Path(place), asked.gigabytes)}
        rows = [row for name, folder in sets.items() for row in measured(name, folder, asked.workers)]
    if asked.json:
        asked.json.write_text(json.dumps({"ranks": asked.ranks, "entries": asked.entries, "rows": rows}, indent=1))
    return int(any(row["differs"] or row["peak_mb"] > MOST for row in rows))


def dumps(place: Path, ranks: int, entries: int) -> Path:
    """A folder with the Flight Recorder dumps of so many ranks."""
    folder = place / "dumps"
    folder.mkdir()
    if ranks:
        flight.write_set(folder, ranks, entries, mixed=True)
    return folder


def texts(place: Path, gigabytes: float) -> Path:
    """A folder with logs of so many gigabytes."""
    folder = place / "logs"
    folder.mkdir()
    for number in range(round(gigabytes * (1 << 30) / BASE)):
        if number:
            shutil.copy(folder / "job0.log", folder / f"job{number}.log")
        else:
            logs.write(folder / "job0.log", "mixed", BASE)
    return folder


def measured(name: str, folder: Path, workers: list[int]) -> list[dict[str, Any]]:
    """The figures of one set, first those of one process; nothing where the set is empty."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    rows: list[dict[str, Any]] = []
    for count in [0, *workers] if size else []:
        begun = time.monotonic()
        command = [sys.executable, "-c", READ, str(folder), f"dask:{count}" if count else ""]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
        seconds, peak, events, digest = done.stdout.split()
        rate = size / float(seconds) / 1e6
        row = {
            "set": name,
            "workers": count,
            "mb": size // 1_000_000,
            "seconds": float(seconds),
            "mb_per_s": round(rate),
        }
        row |= {
            "wall": round(time.monotonic() - begun, 1),
            "peak_mb": int(peak),
            "events": int(events),
            "digest": digest,
        }
        rows.append(row | {"differs": bool(rows) and digest != rows[0]["digest"]})
        print(" ".join(f"{key}={value}" for key, value in rows[-1].items() if key != "digest"), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
