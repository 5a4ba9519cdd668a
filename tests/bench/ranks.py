"""Time `ncclkit diagnose` on what jobs of many ranks leave behind: a log and a dump for each rank.

    python tests/bench/ranks.py

Prints Markdown; exits with 1 where 64 ranks take 5 s or more, the guilty rank is not named, or a healthy job is blamed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.record import thousand

LIMIT = 5.0
"""Seconds for 64 ranks."""


def diagnosed(folder: Path) -> tuple[float, list[tuple[str, str, list[int]]]]:
    """Seconds of the command, and what it found: cause, strength, ranks."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "ncclkit", "diagnose", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    seconds = time.perf_counter() - begin
    rows = json.loads(ended.stdout)["findings"]
    return seconds, [(row["cause"], row["strength"], row["culprits"]["ranks"]) for row in rows]


def main() -> int:
    """Write the jobs, diagnose them, print the table."""
    bad = 0
    print("| ranks | job | s | first finding |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in (8, 64, 256, 1024):
            for job in ("stuck", "healthy"):
                folder = Path(scratch, f"{job}-{ranks}")
                guilty = ranks // 2 + 1
                thousand.write(folder, ranks, guilty) if job == "stuck" else thousand.healthy(folder, ranks)
                seconds, found = diagnosed(folder)
                right = found[:1] == [("slow_rank", "proven", [guilty])] if job == "stuck" else not found
                bad += not right or (ranks == 64 and seconds >= LIMIT)
                print(f"| {ranks} | {job} | {seconds:.1f} | {found[0] if found else 'nothing'} |", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
