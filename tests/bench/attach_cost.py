"""What attach costs a job that goes on: its steps while attach reads it, against those before and after.

    python tests/bench/attach_cost.py [--backend nccl] [--rounds 5] [--out OUT.json]

The job is `tests.live.hangs.healthy`: DDP, two ranks, over NCCL each on its GPU, or on one as two nodes.  Each round
watches it for as long without attach as attach then takes.  Of each round counts the ratio of the medians; the noise is
the spread of such ratios between halves of the times without attach.  No signal may arrive in any rank.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.bench.attach import hand_over_tools, machine  # noqa: E402
from tests.live.hangs import start  # noqa: E402

TAKES = 6.0
"""Seconds of the first stretch without attach."""


def times(file: Path, begin: int) -> list[float]:
    """The seconds of the steps from this one on, which are written whole."""
    return [float(line) for line in file.read_text().split("\n")[begin:-1]]


def measure(job: Any, steps: Path, rounds: int) -> list[dict[str, float]]:
    """For each round: steps without attach in two halves, and with it; in milliseconds."""
    rows, seconds = [], TAKES
    for _ in range(rounds):
        row: dict[str, float] = {}
        for name in ("first", "second", "attach"):
            begun, known = time.monotonic(), len(times(steps, 0))
            if name == "attach":
                with tempfile.TemporaryDirectory() as folder:
                    asyncio.run(attach(Case.open(folder), [str(job[0].pid)], None, AttachOptions()))
                seconds = time.monotonic() - begun
            else:
                time.sleep(seconds / 2)
            found = times(steps, known)
            row |= {name: 1e3 * statistics.median(found), f"{name}_longest": 1e3 * max(found)}
        rows.append({name: round(value, 3) for name, value in row.items()} | {"attach_took": round(seconds, 1)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def shares_gpu(backend: str) -> bool:
    """Whether two ranks have fewer than two GPUs."""
    if backend != "nccl":
        return False
    import torch

    return bool(torch.cuda.device_count() < 2)


def main() -> int:
    """Print the table, write it where asked, and return 1 where a signal arrived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    hand_over_tools()
    how = (2, options.backend, shares_gpu(options.backend))
    with tempfile.TemporaryDirectory() as folder, start("healthy", *how, STEPS=f"{folder}/rank") as job:
        time.sleep(TAKES)
        rows = measure(job, Path(folder, "rank0"), options.rounds)
        signals = {rank: list(Path(folder, f"rank{rank}.signals").read_bytes()) for rank in job}
        goes_on = all(process.poll() is None for process in job.values())
    noise = [row["second"] / row["first"] for row in rows]
    ratio = [2 * row["attach"] / (row["first"] + row["second"]) for row in rows]
    result = machine(options.backend) | {
        "backend": options.backend,
        "share_gpu": how[2],
        "signals": signals,
        "goes_on": goes_on,
        "attach_over_without (median of rounds, least, most)": [
            round(one, 4) for one in (statistics.median(ratio), min(ratio), max(ratio))
        ],
        "noise (the same between halves without attach)": [
            round(one, 4) for one in (statistics.median(noise), min(noise), max(noise))
        ],
        "rounds (ms a step)": rows,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(signals.values()) or not goes_on)


if __name__ == "__main__":
    sys.exit(main())
