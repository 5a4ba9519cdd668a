"""Rehearses the healthy scripts on a busy machine and counts false alarms.

    .venv/bin/python tests/bench/rehearse_alarms.py 100 [--json FILE]

Prints a line for each run, and last one JSON line: runs, alarms (told to hang), runs of which
nothing could be told, and seconds.  FILE takes the same with date, hardware and versions, after
each run.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import flight
from tests.rehearsal.rehearsed import rehearse
from tests.rehearsal.test_scripts import GPU_HEALTHY, HEALTHY

BUSY = 2
"""Processes that do nothing but take time of the processors."""
LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


def main(runs: int, record: Path | None = None) -> int:
    """Rehearse the scripts in turn; returns 1 where one was told to hang.

    record: a file for the figures.
    """
    scripts = [*HEALTHY, *GPU_HEALTHY]
    alarms, unknown = 0, 0
    figures: dict[str, Any] = {}
    loads = []
    about = about_machine()
    began = time.monotonic()
    with busy_loops(BUSY):
        for run in range(runs):
            script = scripts[run % len(scripts)]
            with tempfile.TemporaryDirectory() as folder:
                answer = rehearse(Path(folder), script)
            alarms += answer["exit"] == 1
            unknown += answer["exit"] == 2
            print(run + 1, script, answer["sentence"], flush=True)
            loads.append(round(os.getloadavg()[0], 1))
            figures = {"runs": run + 1, "alarms": alarms, "unknown": unknown}
            figures["seconds"] = round(time.monotonic() - began)
            figures["load"] = [min(loads), max(loads)]
            if record:
                record.write_text(json.dumps(about | figures, indent=1) + "\n")
    print(json.dumps(figures))
    return int(alarms > 0)


def about_machine() -> dict[str, Any]:
    """Date, hardware and versions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": flight.cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "busy": BUSY,
    }


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keep so many processors busy."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=100)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    sys.exit(main(options.runs, options.json))
