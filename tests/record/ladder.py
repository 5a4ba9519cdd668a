"""Record how broken ladders are narrowed down on real gloo ranks: on this host, and on hosts that it pretends to be.

python tests/record/ladder.py [NAME …]

Of each run the phases and the rungs are kept, in ``tests/probe/climbed``; tests judge them anew.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit import climb, probe  # noqa: E402
from ncclkit.agent import wire  # noqa: E402
from ncclkit.case import Case  # noqa: E402

HERE = Path(__file__).parents[1] / "probe" / "climbed"
JOBS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "well": (4, {}, ()),
    "well_hosts": (4, {"hosts": 2}, ()),
    "stuck": (4, {}, ("--fault", "stuck_among_many")),
    "slow": (4, {}, ("--fault", "slow_among_many")),
    "cut": (4, {"hosts": 4, "wrong": "cut"}, ()),
    "lossy": (4, {"hosts": 2, "wrong": "narrow"}, ()),
    "slow_host": (4, {"hosts": 4, "wrong": "slow"}, ()),
    "thin": (4, {"hosts": 4, "wrong": "thin"}, ()),
}
"""Ranks, network, and what is broken."""
KINDS = ("phase", "ladder.rank", "ladder.pair", "ladder.group")


async def record(name: str, deadline: float = 500.0) -> None:
    """Run one job, narrow it down, and keep what it said."""
    ranks, net, fault = JOBS[name]
    with tempfile.TemporaryDirectory() as place:
        case = Case.open(place)
        choices: dict[str, Any] = {"ranks": ranks, "backend": "gloo", "largest": 1 << 20, "ladder": True}
        plan = await probe.plan(case, deadline=deadline, **choices)
        plan = replace(plan, argv=(*plan.argv, *fault), net=net)
        run = await probe.execute(case, plan)
        found = await climb.to_the_end(case, run, probe.launcher(plan), lambda r: print(" ", r.get("say", "")))
        kept = HERE / name / "runs" / run.name
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("wire.jsonl", climb.KEPT):
            path = run.folder / file
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            (kept / file).write_bytes(b"".join(line for line in lines if (wire.parse(line) or {}).get("kind") in KINDS))
        (kept / "status.json").write_text((run.folder / "status.json").read_text())
        (kept / "plan.json").write_text(f'{{"ranks": {ranks}, "backend": "gloo"}}\n')
    print(f"{name}: {run.say}\n  {found.say}", flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or JOBS:
        asyncio.run(record(chosen))
