"""Attach on jobs that nobody prepared: all ways to hang of `tests.live.hangs`, judged by the first sentence.

    python tests/bench/attach.py [--backend nccl] [--ranks N] [--side-by-side 3] [--dump] [--kernels] [WAY ...]
                                 [--timeout N] [--seconds N] [--out OUT.json] [--keep DIR]

Each job runs without a variable of ours: three ranks over gloo, or over NCCL one on each of two GPUs.  A cause counts
where the first finding is one of those that the way lists; a rank where it names exactly those at fault.
With ``--side-by-side`` so many jobs of one user run at once, and attach is given one process of one of them;
``beside`` counts the others that hung then.  OUT.json is written after each job.  Bar: the right cause in at least 12
of 15, with ``--dump`` over NCCL 14 of 15; the right rank wherever single ones are at fault, no wrong finding at
`proven`, nothing of another job in any output, and ranks that go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent.monitor.attach import is_alive  # noqa: E402
from ncclkit.agent.monitor.snapshots import TOOLS, find_tool  # noqa: E402
from ncclkit.analysis.motion import headline  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.live.hangs import PATIENCE, RANKS, WAYS, start, ways  # noqa: E402

Job = dict[int, "subprocess.Popen[str]"]


class Bench:
    """All ways, so many jobs at a time; `rows` grow as they come."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.until = options, time.monotonic() + options.seconds
        self.rows: dict[str, dict[str, Any]] = {}
        self._hung: dict[str, Job] = {}
        self._begun = 0
        self._lock = threading.Condition()
        self._readers = threading.Semaphore(max(1, (os.cpu_count() or 1) // 4))

    def measure(self, names: list[str], write: Callable[[], object]) -> None:
        """One row for each way, and `write` after each; a way that fails is a row that says so."""
        with ThreadPoolExecutor(self.options.side_by_side) as pool:
            for name in names:
                pool.submit(self._one, name).add_done_callback(partial(self._keep, name, write))

    def _keep(self, name: str, write: Callable[[], object], future: Future[dict[str, Any]]) -> None:
        row = {"way": name, "framework": WAYS[name].framework, "cause": False, "rank": False}
        error = future.exception()
        row |= future.result() if error is None else {"says": f"{type(error).__name__}: {error}"[-4500:]}
        with self._lock:
            self.rows[name] = row
            print(json.dumps(row), file=sys.stderr, flush=True)
            write()

    def _one(self, name: str) -> dict[str, Any]:
        if time.monotonic() > self.until:
            raise TimeoutError(f"not begun within {self.options.seconds:g} s")
        options, begun = self.options, time.monotonic()
        with self._lock:
            self._begun += 1
        try:
            with start(name, options.ranks, options.backend, options.share_gpu) as job:
                hung = time.monotonic() - begun
                return self._among_others(name, job) | {"hung_after": round(hung, 1)}
        finally:
            with self._lock:
                self._begun -= 1
                self._hung.pop(name, None)
                self._lock.notify_all()

    def _among_others(self, name: str, job: Job) -> dict[str, Any]:
        """The row of a job that is read while all those hang that were begun with it."""
        with self._lock:
            self._hung[name] = job
            self._lock.notify_all()
            self._lock.wait_for(lambda: len(self._hung) == self._begun, PATIENCE[self.options.backend])
            others = [other for other in self._hung.values() if other is not job]
        asked = AttachOptions(dump=self.options.dump, kernels=self.options.kernels, timeout=self.options.timeout)
        with tempfile.TemporaryDirectory() as folder, self._readers:
            place = self.options.keep / name if self.options.keep else Path(folder)
            row = attached_row(name, job, others, asked, place)
        row["goes_on"] = all(name == "gone" or is_alive(one.pid) for one in job.values())
        return row | {"beside": len(others)}


def attached_row(name: str, job: Job, others: list[Job], options: AttachOptions, folder: Path) -> dict[str, Any]:
    """What attach says of one job, and whether that is right; folder: of the case."""
    begun, wanted = time.monotonic(), WAYS[name]
    case = Case.open(folder)
    made = asyncio.run(attach(case, [str(job[0].pid)], None, options))  # one of its processes stands for the job
    found = diagnose(case).findings
    seconds = time.monotonic() - begun
    files = [path.read_text(errors="replace") for path in made.folder.glob("*") if not path.name.startswith("fr_")]
    first = found[0] if found else None
    ranks = tuple(first.culprits["ranks"]) if first else ()
    kept = "\n".join([*files, *made.problems, *made.jobs, *made.progress, *(one.say for one in found)])
    named = {int(pid) for pid in re.findall(r"(?i)\b(?:pid|process)\W{1,4}(\d+)", kept)}
    return {
        "cause": first is not None and first.cause in wanted.causes,
        "rank": not wanted.ranks or ranks == wanted.at_fault(len(job)),
        "wrong_proven": [one.cause for one in found if one.strength == "proven" and one.cause not in wanted.causes],
        "foreign": sorted(named & {process.pid for other in others for process in other.values()}),
        "seconds": round(seconds, 1),
        "found": first.cause if first else "",
        "strength": first.strength if first else "",
        "ranks": ranks,
        "says": first.say if first else headline(made.events),
        "dumps": sum(event.kind == "flight.dump" for event in made.events),
        "kernels": {str(event.rank): event.data["kernel"] for event in made.events if event.data.get("kernel")},
        "missing": list(made.problems),
    }


def machine(backend: str) -> dict[str, Any]:
    """Date, hardware and versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = subprocess.check_output(query, text=True, timeout=60).strip().splitlines() if backend == "nccl" else []
    found: dict[str, Any] = {"date": date.today().isoformat(), "python": platform.python_version()}
    found |= {"cores": os.cpu_count(), "load": os.getloadavg()[0], "gpus (name, driver)": gpus}
    packages = ("torch", "accelerate", "lightning", "pytorch-lightning", "transformers", "py-spy", "pystack")
    found |= {name: installed(name) for name in packages}
    if backend == "nccl":
        import torch

        found |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found | {tool: shutil.which(tool) or "not installed" for tool in ("gdb", "cuda-gdb")}


def installed(package: str) -> str:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def hand_over_tools() -> None:
    """Let attach find py-spy and pystack where they lie on PYTHONPATH, outside of the interpreter's own folder."""
    for name, module in (("py-spy", ""), ("pystack", "pystack")):
        places = [Path(place, "bin", name) for place in sys.path if Path(place, "bin", name).is_file()]
        if find_tool(name)[0] is None and places and not module:
            os.environ[TOOLS[name]] = str(places[0])
        if not Path(sys.executable).with_name(name).exists() and module and find_spec(module):
            script = Path(tempfile.mkdtemp(), name)  # one that was installed elsewhere names an interpreter of there
            script.write_text(f"#!{sys.executable}\nfrom {module}.__main__ import main\nmain()\n")
            script.chmod(0o700)
            os.environ[TOOLS[name]] = str(script)


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
    """Print the table, write it where asked, and return its `verdict`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=[], help="these only")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--share-gpu", action="store_true", help="over nccl: all ranks on one GPU, each as a node")
    parser.add_argument("--ranks", type=int, default=0, help="of each job (default: 3 over gloo, 2 over nccl)")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--dump", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--timeout", type=float, help="of each look (default: that of attach)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further job is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the case of each job")
    options = parser.parse_args()
    hand_over_tools()
    names = options.ways or ways(options.backend)
    kept: dict[str, dict[str, Any]] = {}
    if options.ways and options.out and options.out.exists():  # these rows anew, the others as they were
        kept = {row["way"]: row for row in json.loads(options.out.read_text())["ways"]}
    names_of_options = ("backend", "share_gpu", "side_by_side", "dump", "kernels", "timeout")
    chosen = {name: getattr(options, name) for name in names_of_options}
    head = machine(options.backend) | chosen | {"ranks": options.ranks or RANKS[options.backend]}
    bench = Bench(options)

    def result() -> dict[str, Any]:
        known = kept | bench.rows
        return head | summary([known[name] for name in WAYS if name in known])

    def write() -> None:
        if options.out:
            options.out.write_text(json.dumps(result(), indent=1) + "\n")

    begun = time.monotonic()
    bench.measure(names, write)
    head["took"] = round(time.monotonic() - begun, 1)
    write()
    print(json.dumps(result(), indent=1))
    return verdict(result(), options)


def verdict(result: dict[str, Any], options: argparse.Namespace) -> int:
    """1 where it is below the bar."""
    table = result["ways"]
    bar = 14 / 15 if options.dump and options.backend == "nccl" else 12 / 15
    wrong = [row["way"] for row in table if not row["cause"]]
    bad = len(wrong) > (1 - bar) * len(table) or result["wrong_proven"] or result["foreign"]
    return int(bool(bad or result["ended_by_looking"]) or not all(row["rank"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
