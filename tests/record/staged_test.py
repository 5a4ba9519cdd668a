"""Record how broken paths are bisected on real ranks: on this host, and on hosts that it simulates.

python tests/record/staged_test.py [--backend nccl] [--out DIR] [NAME …]

Of each run the phases and the stages are kept, by default in ``tests/probe/staged``; tests judge them anew.  Hosts are
simulated by network namespaces over gloo, and by NCCL_HOSTID (``simulate_hosts``) on GPUs; fewer GPUs than ranks are
shared by as many simulated hosts as it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent import wire  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live import probe  # noqa: E402
from ncclkit.live.launch.launchers import launcher_of_plan  # noqa: E402
from ncclkit.live.launch import local, simulated  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests import networks  # noqa: E402

HERE = Path(__file__).parents[1] / "probe" / "staged"
SOCKETS = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
STUCK, SLOW = ("--fault", "stuck_among_many"), ("--fault", "slow_among_many")
JOBS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "well": ("gloo", {}, ()),
    "well_hosts": ("gloo", {"net": {"hosts": 2}}, ()),
    "stuck": ("gloo", {}, STUCK),
    "slow": ("gloo", {}, SLOW),
    "slow_on_host": ("gloo", {"net": {"hosts": 2}}, SLOW),
    "cut": ("gloo", {"net": {"hosts": 4, "wrong": "cut"}}, ()),
    "lossy": ("gloo", {"net": {"hosts": 2, "wrong": "narrow"}}, ()),
    "slow_host": ("gloo", {"net": {"hosts": 4, "wrong": "slow"}}, ()),
    "thin": ("gloo", {"net": {"hosts": 4, "wrong": "thin"}}, ()),
    "nccl_well": ("nccl", {}, ()),
    "nccl_hosts": ("nccl", {"simulate_hosts": 2, "env": SOCKETS}, ()),
    "nccl_stuck": ("nccl", {}, STUCK),
    "nccl_slow": ("nccl", {}, SLOW),
    "nccl_turns": ("nccl", {"ranks": 8, "simulate_hosts": 2, "env": SOCKETS}, ()),
}
"""Backend, what is asked of the live test beyond its defaults, and what is broken in its ranks."""
RANKS = 4
KINDS = ("phase", "stage.rank", "stage.pair", "stage.group")


simulated.WRONG.update(cut=networks.cut, thin=networks.thin)


async def record(name: str, out: Path, deadline: float = 500.0) -> None:
    """Run one job, bisect it, and keep what it said."""
    backend, asked, fault = JOBS[name]
    with tempfile.TemporaryDirectory() as place:
        case = Case.open(place)
        choices: dict[str, Any] = {"ranks": RANKS, "backend": backend, "max_bytes": 1 << 20, "stages": True}
        choices |= {word: asked[word] for word in asked if word != "net"}
        gpus = (await local.check_interpreter(sys.executable))["gpus"]
        ranks = choices["ranks"]
        if backend == "nccl" and 0 < gpus < ranks:
            choices["simulate_hosts"] = max(choices.get("simulate_hosts", 1), -(-ranks // gpus))
        plan = await probe.plan_test(case, ProbeOptions(**choices, timeout=deadline))
        plan = replace(plan, argv=(*plan.argv, *fault), network=asked.get("net", {}))
        run = await probe.execute(case, plan)
        found = await probe.bisect(case, run, launcher_of_plan(plan).run, lambda r: print(" ", r.get("say", "")))
        kept = out / name / "runs" / run.name
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("wire.jsonl", probe.KEPT):
            path = run.folder / file
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            (kept / file).write_bytes(b"".join(line for line in lines if (wire.parse_record(line) or {}).get("kind") in KINDS))
        (kept / "status.json").write_text((run.folder / "status.json").read_text())
        (kept / "plan.json").write_text(json.dumps({"ranks": ranks, "backend": backend}) + "\n")
    print(f"{name}: {run.summary}\n  {found.summary}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    for chosen in options.names or [name for name, job in JOBS.items() if job[0] == options.backend]:
        asyncio.run(record(chosen, options.out))
