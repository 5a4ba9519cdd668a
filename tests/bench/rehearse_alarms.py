"""Rehearses the healthy scripts on a busy machine and counts false alarms.

    .venv/bin/python tests/bench/rehearse_alarms.py 100 [--json FILE]

Prints a line for each run, and last one JSON line: runs, alarms (told to hang), runs of which
nothing could be told, and seconds.  FILE takes the same with date, hardware and versions, after
each run; where it holds the runs of an earlier call on the same machine and versions, they count
and the next script follows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.rehearse import about_machine
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
    about = about_machine() | {"busy": BUSY}
    figures = earlier_runs(record, about)
    done = figures["runs"]
    alarms, unknown = figures["alarms"], figures["unknown"]
    loads = list(figures["load"])
    began = time.monotonic() - figures["seconds"]
    with busy_loops(BUSY):
        for run in range(done, runs):
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


def earlier_runs(record: Path | None, about: dict[str, Any]) -> dict[str, Any]:
    """The figures of an earlier call; none where its machine or versions were others."""
    figures: dict[str, Any] = {"runs": 0, "alarms": 0, "unknown": 0, "seconds": 0, "load": []}
    if record is None or not record.exists():
        return figures
    known = json.loads(record.read_text())
    for name, value in about.items():
        if name != "date" and known[name] != value:
            return figures
    for name in figures:
        figures[name] = known[name]
    return figures


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
