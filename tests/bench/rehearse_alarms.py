"""Rehearses the healthy scripts on a busy machine and counts false alarms.

    .venv/bin/python tests/bench/rehearse_alarms.py 100

Prints a line for each run, and last one JSON line: runs, alarms (told to hang), runs of which
nothing could be told, and seconds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

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


def main(runs: int) -> int:
    """Rehearse the scripts in turn; returns 1 where one was told to hang."""
    scripts = [*HEALTHY, *GPU_HEALTHY]
    alarms, unknown = 0, 0
    began = time.monotonic()
    with busy_loops(BUSY):
        for run in range(runs):
            script = scripts[run % len(scripts)]
            with tempfile.TemporaryDirectory() as folder:
                answer = rehearse(Path(folder), script)
            alarms += answer["exit"] == 1
            unknown += answer["exit"] == 2
            print(run + 1, script, answer["sentence"], flush=True)
    seconds = round(time.monotonic() - began)
    figures = {"runs": runs, "alarms": alarms, "unknown": unknown, "seconds": seconds}
    print(json.dumps(figures))
    return int(alarms > 0)


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
    sys.exit(main(parser.parse_args().runs))
