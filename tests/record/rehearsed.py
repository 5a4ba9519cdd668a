"""What the scripts of the rehearsal do on real GPUs: does a job that `ncclkit rehearse` stops hang there, too?

    python tests/record/rehearsed.py OUT.json [SCRIPT …] [--ranks 4] [--seconds 40] [--side-by-side 4]

Starts each script of tests/rehearsal/scripts by torchrun, over NCCL where it asks for that, and ends it after
--seconds.  OUT.json says of each whether it hung (still there then), failed (torchrun's exit status) or ended, with the
last error that it printed, beside what the rehearsal's test expects.  It is written as soon as a row is there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tests.rehearsal.test_scripts import FAULTS  # noqa: E402

SCRIPTS = ROOT / "tests" / "rehearsal" / "scripts"
ERROR = 200
"""Letters of an error that are kept."""
KEPT = 4 << 20
"""Bytes of what a script prints that are searched for one."""


@dataclass
class Row:
    """One script on the GPUs."""

    script: str
    expected: str
    """What the rehearsal says of it: a verdict, or ``agree``."""
    outcome: str
    """``hung``, ``failed`` or ``ended``."""
    seconds: float
    error: str


def main() -> None:
    """Run the scripts, a few at a time."""
    parser = argparse.ArgumentParser(description="Run the scripts of the rehearsal on real GPUs.")
    parser.add_argument("out", type=Path)
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--side-by-side", type=int, default=4)
    options = parser.parse_args()
    names = options.scripts or gpu_scripts()
    rows: list[Row] = []
    with ThreadPoolExecutor(options.side_by_side) as pool:
        for row in pool.map(lambda name: run_script(name, options.ranks, options.seconds), names):
            rows.append(row)
            print(f"{row.script:28} {row.expected:9} {row.outcome:7} {row.seconds:5.1f} s  {row.error}", flush=True)
            write_rows(options.out, rows, options.ranks, options.seconds)


def gpu_scripts() -> list[str]:
    """Scripts that are to be judged: those with a fault, and healthy ones that ask for NCCL."""
    healthy = []
    for path in sorted(SCRIPTS.glob("healthy_*.py")):
        if "cuda" in path.read_text(encoding="utf-8"):
            healthy.append(path.name)
    return [*FAULTS, *healthy]


def run_script(name: str, ranks: int, seconds: float) -> Row:
    """Start one script by torchrun and see how it ends."""
    expected = "agree"
    if name in FAULTS:
        expected = FAULTS[name][0]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as printed:
        started = subprocess.Popen(
            [*launcher, str(SCRIPTS / name)],
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(seconds)
            outcome = "failed" if code else "ended"
        except subprocess.TimeoutExpired:
            outcome = "hung"
        took = time.monotonic() - began
        # what torchrun says of being ended is no error of the script
        said = os.pread(printed.fileno(), KEPT, 0).decode("utf-8", "replace")
        end_group(started)
    return Row(name, expected, outcome, round(took, 1), last_error(said))


def end_group(started: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks, and wait for them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(started.pid, number)
        except ProcessLookupError:
            break
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            continue


def last_error(said: str) -> str:
    """The last line of an exception that a rank printed; empty where there is none."""
    found = ""
    for line in said.splitlines():
        bare = line.partition("]: ")[2] or line
        word = bare.split(":", 1)[0]
        if word.endswith(("Error", "Exception")) and " " not in word and "ChildFailedError" not in word:
            found = bare
    return found[:ERROR]


def write_rows(out: Path, rows: list[Row], ranks: int, seconds: float) -> None:
    """Keep what is known so far, with hardware and versions."""
    gpu = ""
    nccl = ""
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name(0)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    about = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu,
        "ranks": ranks,
        "torch": torch.__version__,
        "nccl": nccl,
        "seconds": seconds,
    }
    table = {"about": about, "rows": [asdict(row) for row in rows]}
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
