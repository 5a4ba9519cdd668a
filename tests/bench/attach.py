"""Attach on jobs that nobody prepared: all ways to hang of `tests.live.hangs`, judged by the first sentence.

    python tests/bench/attach.py [--backend nccl] [--ranks N] [--side-by-side 3] [--dump] [--kernels] [WAY ...]
                                 [--out OUT.json]

Each job runs without a variable of ours: three ranks over gloo, or over NCCL one on each of two GPUs.  A cause counts
where the first finding is one of those that the way lists; a rank where it names exactly those at fault.
With ``--side-by-side`` so many jobs of one user hang at once, and each is looked at by itself.  Bar: the right cause in
at least 12 of 15, with ``--dump`` over NCCL 14 of 15; the right rank wherever single ones are at fault, no wrong
finding at `proven`, nothing of another job in any output, and ranks that go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.model import NcclkitError  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.live.hangs import RANKS, WAYS, start, ways  # noqa: E402


def look(name: str, job: Any, others: list[Any], options: AttachOptions) -> dict[str, Any]:
    """What attach says of one job, and whether that is right."""
    begun, wanted = time.monotonic(), WAYS[name]
    with tempfile.TemporaryDirectory() as folder:
        case = Case.open(folder)
        try:  # one of its processes stands for the job
            made = asyncio.run(attach(case, [str(job[0].pid)], None, options))
        except NcclkitError as error:
            return {"way": name, "framework": wanted.framework, "cause": False, "rank": False, "says": str(error)}
        found = diagnose(case).findings
        seconds = time.monotonic() - begun
        kept = [path.read_text(errors="replace") for path in made.folder.glob("*") if path.name.startswith("attached")]
        foreign = [p.pid for other in others for p in other.values() if f'"pid": {p.pid},' in "".join(kept)]
    first = found[0] if found else None
    ranks = tuple(first.culprits["ranks"]) if first else ()
    proven = [one.cause for one in found if one.strength == "proven" and one.cause not in wanted.causes]
    return {
        "way": name,
        "framework": wanted.framework,
        "cause": first is not None and first.cause in wanted.causes,
        "rank": not wanted.ranks or ranks == wanted.at_fault(len(job)),
        "wrong_proven": proven,
        "foreign": foreign,
        "seconds": round(seconds, 1),
        "found": first.cause if first else "",
        "strength": first.strength if first else "",
        "ranks": ranks,
        "says": first.say if first else "",
        "missing": list(made.problems),
    }


def rows(names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each way, so many jobs at a time."""
    asked = AttachOptions(dump=options.dump, kernels=options.kernels)
    done: list[dict[str, Any]] = []
    for begin in range(0, len(names), options.side_by_side):
        batch = names[begin : begin + options.side_by_side]
        with ExitStack() as stack:
            jobs: dict[str, Any] = {}
            for name in batch:
                try:
                    jobs[name] = stack.enter_context(start(name, options.ranks, options.backend))
                except (RuntimeError, TimeoutError) as error:
                    done.append({"way": name, "cause": False, "rank": False, "says": f"did not hang: {error}"[-600:]})
            for name, job in jobs.items():
                others = [other for other in jobs.values() if other is not job]
                done.append(look(name, job, others, asked))
                done[-1]["goes_on"] = all(name == "gone" or one.poll() is None for one in job.values())
                print(json.dumps(done[-1]), file=sys.stderr, flush=True)
    return done


def machine(backend: str) -> dict[str, Any]:
    """Date, hardware and versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = subprocess.check_output(query, text=True, timeout=60).strip().splitlines() if backend == "nccl" else []
    found: dict[str, Any] = {"date": date.today().isoformat(), "python": platform.python_version()}
    found |= {"cores": os.cpu_count(), "load": os.getloadavg()[0], "gpus (name, driver)": gpus}
    found |= {name: version(name) for name in ("torch", "accelerate", "lightning", "py-spy", "pystack")}
    absent = "not installed, so its Trainer is not among the jobs"
    found["transformers"] = version("transformers") if find_spec("transformers") else absent
    if backend == "nccl":
        import torch

        found |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found | {tool: shutil.which(tool) or "not installed" for tool in ("gdb", "cuda-gdb")}


def summary(table: list[dict[str, Any]]) -> dict[str, Any]:
    """How much of it is right."""
    return {
        "cause_right": f"{sum(row['cause'] for row in table)} of {len(table)}",
        "rank_right": f"{sum(row['rank'] for row in table)} of {len(table)}",
        "wrong_proven": sum(len(row.get("wrong_proven", ())) for row in table),
        "foreign": sum(len(row.get("foreign", ())) for row in table),
        "ended_by_looking": [row["way"] for row in table if not row.get("goes_on", True)],
        "slowest": max((row.get("seconds", 0) for row in table), default=0),
        "ways": table,
    }


def main() -> int:
    """Print the table, write it where asked, and return 1 where it is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=[], help="these only")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, default=0, help="of each job (default: 3 over gloo, 2 over nccl)")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--dump", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = rows(options.ways or ways(options.backend), options)
    if options.ways and options.out and options.out.exists():  # these rows anew, the others as they were
        kept = {row["way"]: row for row in json.loads(options.out.read_text())["ways"]}
        table = list((kept | {row["way"]: row for row in table}).values())
    chosen = {name: getattr(options, name) for name in ("backend", "side_by_side", "dump", "kernels")}
    chosen["ranks"] = options.ranks or RANKS[options.backend]
    result = machine(options.backend) | chosen | summary(table)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    bar = 14 / 15 if options.dump and options.backend == "nccl" else 12 / 15
    wrong = [row["way"] for row in table if not row["cause"]]
    bad = len(wrong) > (1 - bar) * len(table) or result["wrong_proven"] or result["foreign"]
    return int(bool(bad or result["ended_by_looking"]) or not all(row["rank"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
