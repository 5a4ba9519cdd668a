"""Whether the one of two simulated nodes that was slowed on purpose is named.

    python -m tests.bench.slow_node OUT.json [--parts link rank]

1. `link`: what the second node sends is held back to 200 Mbit/s (network namespaces). The live test crawls, and the
   experiment that its finding asks for names the sender.
2. `rank`: a rank of the second node takes 0.5 s for each call of three ranks and more (NCCL_HOSTID, four ranks). The
   staged test and its bisection name it.

Over NCCL where there are GPUs, else over gloo.  Exit status 1 where the node is not named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.experiments.fixes import check
from ncclkit.lab.faults import injection
from ncclkit.live import probe
from ncclkit.live.launch.launchers import launcher_of_plan
from ncclkit.live.launch import local
from ncclkit.live.options import ProbeOptions
from tests.record.gpu import about_machine

RANKS, SLOWED = 4, 3
"""Ranks of the staged test, and the one that is slowed."""


async def main() -> int:
    """Run the parts that were asked for, and write each as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", nargs="*", default=["link", "rank"], choices=("link", "rank"))
    parser.add_argument("--seconds", type=float, default=150.0, help="at most, of part rank (default 150)")
    asked = parser.parse_args()
    answer = await local.check_interpreter(sys.executable)
    backend = "nccl" if answer["gpus"] else "gloo"
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    known |= {"date": time.strftime("%Y-%m-%d"), **about_machine(answer), "backend": backend}
    for name in asked.parts:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ncclkit-slow-") as place:
            case = Case.open(place)
            found = await (link(case, backend) if name == "link" else rank(case, backend, asked.seconds))
        known[name] = found | {"seconds": round(time.monotonic() - begun, 1)}
        asked.out.write_text(json.dumps(known, indent=1) + "\n")
        print(name, json.dumps(known[name]), flush=True)
    return int(not all(known[name]["named"] for name in asked.parts))


async def link(case: Case, backend: str) -> dict[str, Any]:
    """Two ranks on two nodes, of which the second one sends slowly."""
    run = await injection.inject(case, "slow_link", ranks=2, backend=backend)
    record = await check(case)
    said = next((finding.say for finding in diagnose(case).findings), "")
    busbw = max((m.busbw or 0.0 for m in run.measurements), default=0.0)
    told = {"ranks": 2, "ended": run.reason, "busbw": round(busbw, 4), "experiment": record.summary, "said": said}
    return told | {"named": "What node-2 sends to node-1 passes at" in record.summary}


async def rank(case: Case, backend: str, seconds: float) -> dict[str, Any]:
    """Four ranks on two nodes, of which the last one is slow among many."""
    asked = {"ranks": RANKS, "backend": backend, "max_bytes": 1 << 20, "stages": True, "oversubscribe": True}
    asked |= {"env": {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, "simulate_hosts": 2} if backend == "nccl" else {}
    plan = await probe.plan_test(case, ProbeOptions(**asked, timeout=seconds))  # type: ignore[arg-type]
    network = {} if backend == "nccl" else {"hosts": 2}
    plan = replace(plan, argv=(*plan.argv, "--fault", "slow_among_many", "--rank", str(SLOWED)), network=network)
    run = await probe.execute(case, plan)
    found = await probe.bisect(case, run, launcher_of_plan(plan).run)
    name = f"Rank {SLOWED} on {'simulated-1' if backend == 'nccl' else 'node-2'} is slow"
    told = {"ranks": RANKS, "ended": run.reason, "tries": len(found.tried), "said": found.summary}
    return told | {"named": found.summary.startswith(name)}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
