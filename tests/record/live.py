"""Record the live test on this machine's GPUs: stages, every collective, two types, and the GPUs as two hosts.

    python tests/record/live.py OUT

On all GPUs (gloo with four ranks and small messages where there is none, for a dry run).  Writes each run as a
recording, a small case folder without names and paths of this machine, to OUT/recorded/<run>, and all of them as
OUT/recorded.tar.gz.  Copy what you want to keep to tests/probe/recorded/.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.analysis import stages
from ncclkit.core import storage  # noqa: E402
from ncclkit.core.case import SCHEMA, Case  # noqa: E402
from ncclkit.lab.faults import recording
from ncclkit.live import probe
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

SOCKETS = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
RUNS: dict[str, dict[str, Any]] = {
    "stages": {"op": "all", "stages": True, "repeats": 15},
    "bfloat16": {"op": "all_reduce,reduce_scatter", "dtype": "bfloat16", "repeats": 15},
    "two_hosts": {"stages": True, "simulate_hosts": 2, "repeats": 5, "env": SOCKETS, "max_bytes": 64 << 20},
}
"""Name → what is asked of the live test."""


async def main(out: Path) -> int:
    """Make every run; returns how many did not end well or gave a wrong value."""
    answer = await local.check_interpreter(sys.executable)
    gpus = answer["gpus"]
    gloo: dict[str, Any] = {"backend": "gloo", "ranks": 4, "max_bytes": 1 << 20}
    where = {"backend": "nccl", "max_bytes": 1 << 30} if gpus else gloo
    about = {"recorded": time.strftime("%Y-%m-%d"), **about_machine(answer)}
    bad = 0
    for name, asked in RUNS.items():
        case = await probe.inspect_hosts(Case.open(out / name))
        asked = where | asked | ({} if gpus else {"max_bytes": 1 << 20, "simulate_hosts": 1})
        run = await probe.probe(case, ProbeOptions(**asked, timeout=170))
        bad += run.reason != "done" or any(m.wrong for m in run.measurements)
        print(f"{name}: {run.summary}\n  {stages.staged_test(case).summary}", flush=True)
        keep(case, out / "recorded" / name, about)
    with tarfile.open(out / "recorded.tar.gz", "w:gz") as kept:
        kept.add(out / "recorded", "recorded")
    return bad


def keep(case: Case, target: Path, about: dict[str, Any]) -> None:
    """The last run of a case as a recording, with its facts and measurements."""
    run = case.runs()[-1]
    recording.files(run, target / "runs" / run.name)
    clean = recording.cleaner(run)
    assert case.path is not None
    for name in ("facts.jsonl", "measurements.jsonl"):
        storage.write(target / name, clean((case.path / name).read_text()))
    storage.write(target / "case.json", json.dumps({"schema": SCHEMA, **about}, indent=1))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]).resolve())))
