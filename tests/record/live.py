"""Record the live test on this machine's GPUs: ladder, every collective, two types, and the GPUs as two hosts.

    python tests/record/live.py OUT

On all GPUs (gloo with four ranks and small messages where there is none, for a dry run).  Writes OUT/live.json, the
measurements and pairs with date, hardware and versions, and OUT/<run>.tar.gz, each run's case folder as it is.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit import ladder, probe  # noqa: E402
from ncclkit.case import Case  # noqa: E402
from ncclkit.launch import local  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

SOCKETS = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
RUNS: dict[str, dict[str, Any]] = {
    "ladder": {"op": "all", "ladder": True, "repeats": 15},
    "bfloat16": {"op": "all_reduce,reduce_scatter", "dtype": "bfloat16", "repeats": 15},
    "two_hosts": {"op": "all_reduce", "ladder": True, "split": 2, "repeats": 5, "env": SOCKETS, "largest": 64 << 20},
}
"""Name → what is asked of `probe.plan`."""


async def main(out: Path) -> int:
    """Make every run; returns how many did not end well or gave a wrong value."""
    answer = await local.check(sys.executable)
    gpus = answer["gpus"]
    where = {"backend": "nccl", "largest": probe.GIB} if gpus else {"backend": "gloo", "ranks": 4, "largest": 1 << 20}
    told: dict[str, Any] = {"recorded": time.strftime("%Y-%m-%d"), **about_machine(answer), "runs": {}}
    bad = 0
    for name, asked in RUNS.items():
        case = await probe.inspect(Case.open(out / name))
        run = await probe.probe(case, **(where | asked | ({} if gpus else {"largest": 1 << 20})), deadline=170)
        climbed = ladder.ladder(case)
        rungs = [[p.a, p.b, p.way, p.bandwidth, p.latency_us, p.wrong] for p in climbed.pairs]
        told["runs"][name] = {
            "say": run.say,
            "plan": asdict(run.plan),
            "measurements": [asdict(m) for m in run.measurements],
            "ladder": {"say": climbed.say, "alone": climbed.alone, "pairs": rungs} if rungs else None,
        }
        bad += run.reason != "done" or any(m.wrong for m in run.measurements)
        print(f"{name}: {run.say}\n  {climbed.say}", flush=True)
        with tarfile.open(out / f"{name}.tar.gz", "w:gz") as kept:
            kept.add(out / name, name)
    told["nvidia_smi_topo"] = subprocess.run(
        ["nvidia-smi", "topo", "-m"] if gpus else ["true"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    (out / "live.json").write_text(json.dumps(told, indent=1, default=str) + "\n")
    return bad


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]).resolve())))
