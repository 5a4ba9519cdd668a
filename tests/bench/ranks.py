"""Time `ncclkit diagnose` on what jobs of many ranks leave behind: a log and a dump for each rank, or one merged log.

    python tests/bench/ranks.py
    python tests/bench/ranks.py --merged NAME     # NAME: of the code that is measured, such as a commit

Prints Markdown; exits with 1 where 64 ranks take 5 s or more, the guilty rank is not named, or a healthy job is blamed.
--merged measures CPU time on one log in which each rank has an init line, a watchdog's line and a short traceback, and
keeps it under that name in `results/ranks.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.hostile import growing
from tests.record import thousand

LIMIT = 5.0
"""Seconds for 64 ranks."""
PATIENCE = 300
"""Seconds for any command."""
RESULTS = Path(__file__).with_name("results") / "ranks.json"


def diagnosed(path: Path) -> tuple[float, list[tuple[str, str, list[int]]]]:
    """Seconds of the command, and what it found: cause, strength, ranks."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "ncclkit", "diagnose", str(path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    seconds = time.perf_counter() - begin
    rows = json.loads(ended.stdout)["findings"]
    return seconds, [(row["cause"], row["strength"], row["culprits"]["ranks"]) for row in rows]


def by_rank(scratch: Path) -> int:
    """Diagnose jobs that left a log and a dump for each rank; how many answers were wrong or late."""
    bad = 0
    print("| ranks | job | s | first finding |\n|---|---|---|---|")
    for ranks in (8, 64, 256, 1024):
        for job in ("stuck", "healthy"):
            folder = scratch / f"{job}-{ranks}"
            guilty = ranks // 2 + 1
            thousand.write(folder, ranks, guilty) if job == "stuck" else thousand.healthy(folder, ranks)
            seconds, found = diagnosed(folder)
            right = found[:1] == [("slow_rank", "proven", [guilty])] if job == "stuck" else not found
            bad += not right or (ranks == 64 and seconds >= LIMIT)
            print(f"| {ranks} | {job} | {seconds:.1f} | {found[0] if found else 'nothing'} |", flush=True)
    return bad


def merged(scratch: Path) -> list[dict[str, Any]]:
    """CPU seconds of the command on merged logs; None where it gave no answer in time."""
    rows = []
    print("| ranks | MB | CPU s | first finding |\n|---|---|---|---|")
    for ranks in (1024, 4096, 16384):
        path = scratch / f"merged-{ranks}.log"
        path.write_bytes(growing.merged(ranks)["job.log"])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            found = diagnosed(path)[1]
        except subprocess.TimeoutExpired:
            found = None
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row: dict[str, Any] = {"ranks": ranks, "mb": round(path.stat().st_size / 1e6, 2), "cpu": None, "first": None}
        if found is not None:
            row |= {"cpu": round(cpu, 2), "first": found[0][0] if found else None}
        rows.append(row)
        shown = row["cpu"] if found is not None else f"no answer in {PATIENCE} s"
        print(f"| {ranks} | {row['mb']} | {shown} | {row['first']} |", flush=True)
    return rows


def processor() -> str:
    """The name of the processor, as the kernel says it."""
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return names[0] if names else platform.processor()


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Put the rows into the file of results, beside those of other code."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    about = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": processor(),
        "python": platform.python_version(),
        "hyperscan": metadata.version("hyperscan") if find_spec("hyperscan") else None,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "patience": PATIENCE,
    }
    RESULTS.write_text(json.dumps(known | {name: about | {"merged": rows}}, indent=1) + "\n")


def main() -> int:
    """Write the jobs, diagnose them, print the table."""
    parser = argparse.ArgumentParser(description="Time the diagnosis of jobs of many ranks.")
    parser.add_argument("--merged", metavar="NAME", help="measure merged logs, and keep the figures under this name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.merged:
            keep(options.merged, merged(Path(scratch)))
            return 0
        return int(by_rank(Path(scratch)) > 0)


if __name__ == "__main__":
    sys.exit(main())
