"""Attach on jobs that nobody prepared: all ways to hang of `tests.live.hangs`, judged by the first sentence.

    python tests/bench/attach.py --healthy [--looks 5] [--busy 4] [--out OUT.json] [PROGRAM ...]
    python tests/bench/attach.py [--backend nccl] [--ranks N] [--side-by-side 3] [--dump] [--kernels] [WAY ...]
                                 [--timeout N] [--seconds N] [--out OUT.json] [--keep DIR]

Each job runs without a variable of ours: three ranks over gloo, or over NCCL one on each of two GPUs.  A cause counts
where the first finding is one of those that the way lists; a rank where it names exactly those at fault.
With ``--side-by-side`` so many jobs of one user run at once, and attach is given one process of one of them;
``beside`` counts the others that hung then.  OUT.json is written after each job; ways that were not begun within
``--seconds`` stand in ``not_begun``, and those whose job had ended before it was looked at in ``not_hung``.  Bar: the right cause in at least 12
of 15, with ``--dump`` over NCCL 14 of 15; the right rank wherever single ones are at fault, no wrong finding at
`proven`, nothing of another job in any output, and ranks that go on.

``--healthy`` looks at the jobs of `tests.live.healthy` instead, at each so many times with ``--dump`` and as often
without, beside so many processes that take the same cores (``--busy``).  An accusation is any finding.  Bar: none.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent.run.processes import is_alive  # noqa: E402
from ncclkit.agent.monitor.snapshots import TOOLS, find_tool  # noqa: E402
from ncclkit.agent.run.processes import die_with_parent  # noqa: E402
from ncclkit.analysis.motion import headline  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.kinds import AttachRank  # noqa: E402
from ncclkit.core.model import Event, NcclkitError  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.live import healthy  # noqa: E402
from tests.live.hangs import PATIENCE, RANKS, WAYS, start, ways  # noqa: E402

Job = dict[int, "subprocess.Popen[str]"]


class NotBegun(Exception):
    """The time for the whole run was over."""


class NotHung(Exception):
    """The job had ended before anybody looked: what it does here is no hang."""


class Bench:
    """All ways, so many jobs at a time; `rows` grow as they come."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.until = options, time.monotonic() + options.seconds
        self.rows: dict[str, dict[str, Any]] = {}
        self.not_begun: list[str] = []
        self.not_hung: list[str] = []
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
        if isinstance(error, (NotBegun, NotHung)):
            with self._lock:
                passed_over = self.not_begun if isinstance(error, NotBegun) else self.not_hung
                passed_over.append(name)
                write()
            return
        row |= (
            future.result()
            if error is None
            else {"says": f"{type(error).__name__}: {error}"[-4500:]}
        )
        with self._lock:
            self.rows[name] = row
            print(json.dumps(row), file=sys.stderr, flush=True)
            write()

    def _one(self, name: str) -> dict[str, Any]:
        if time.monotonic() > self.until:
            raise NotBegun
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
            self._lock.wait_for(
                lambda: len(self._hung) == self._begun, PATIENCE[self.options.backend]
            )
            others = [other for other in self._hung.values() if other is not job]
        if name != "gone" and not all(is_alive(one.pid) for one in job.values()):
            raise NotHung
        asked = AttachOptions(
            dump=self.options.dump, kernels=self.options.kernels, timeout=self.options.timeout
        )
        with tempfile.TemporaryDirectory() as folder, self._readers:
            place = self.options.keep / name if self.options.keep else Path(folder)
            row = attached_row(name, job, others, asked, place)
        row["goes_on"] = all(name == "gone" or is_alive(one.pid) for one in job.values())
        return row | {"beside": len(others)}


def _kernels(events: Sequence[Event]) -> dict[str, str]:
    """Rank → the kernel that runs on its GPU, where one was looked for."""
    seen = [event for event in events if isinstance(event.data, AttachRank)]
    return {str(event.rank): event.data.kernel for event in seen if event.data.kernel}


def attached_row(
    name: str, job: Job, others: list[Job], options: AttachOptions, folder: Path
) -> dict[str, Any]:
    """What attach says of one job, and whether that is right; folder: of the case."""
    begun, wanted = time.monotonic(), WAYS[name]
    case = Case.open(folder)
    made = asyncio.run(
        attach(case, [str(job[0].pid)], None, options)
    )  # one of its processes stands for the job
    found = diagnose(case).findings
    seconds = time.monotonic() - begun
    files = [
        path.read_text(errors="replace")
        for path in made.folder.glob("*")
        if not path.name.startswith("fr_")
    ]
    first = found[0] if found else None
    ranks = tuple(first.culprits["ranks"]) if first else ()
    kept = "\n".join(
        [*files, *made.problems, *made.jobs, *made.progress, *(one.say for one in found)]
    )
    named = {int(pid) for pid in re.findall(r"(?i)\b(?:pid|process)\W{1,4}(\d+)", kept)}
    return {
        "cause": first is not None and first.cause in wanted.causes,
        "rank": not wanted.ranks or ranks == wanted.at_fault(len(job)),
        "wrong_proven": [
            one.cause
            for one in found
            if one.strength == "proven" and one.cause not in wanted.causes
        ],
        "foreign": sorted(named & {process.pid for other in others for process in other.values()}),
        "seconds": round(seconds, 1),
        "found": first.cause if first else "",
        "strength": first.strength if first else "",
        "ranks": ranks,
        "says": first.say if first else headline(made.events),
        "dumps": sum(event.kind == "flight.dump" for event in made.events),
        "kernels": _kernels(made.events),
        "missing": list(made.problems),
    }


def healthy_row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What attach says of one job that nothing is wrong with, at each of its looks."""
    looks = []
    with healthy.start(name, options.ranks or RANKS[options.backend], options.backend) as job:
        for dump in (
            [True, False] * options.looks
            if options.dump is None
            else [options.dump] * options.looks
        ):
            looks.append(
                healthy_look(job, AttachOptions(dump=dump, timeout=options.timeout))
                | {"dump": dump}
            )
        lives = all(is_alive(process.pid) for process in job.values())
    accused = [look for look in looks if look["found"]]
    return {
        "program": name,
        "looks": len(looks),
        "accusations": len(accused),
        "goes_on": sum(look["says"].startswith("The job goes on") for look in looks),
        "exit_0": sum(look["exit"] == 0 for look in looks),
        "slowest": max(look["seconds"] for look in looks),
        "lives": lives,
        "said": accused or looks[-1:],
    }


def healthy_look(job: Job, options: AttachOptions) -> dict[str, Any]:
    """One look: what was found, the exit status, and the first sentence."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        case = Case.open(Path(folder) / "case")
        made = asyncio.run(attach(case, [str(job[0].pid)], None, options))
        found = diagnose(case)
    return {
        "found": [[one.cause, one.strength, one.say] for one in found.findings],
        "exit": found.exit_code,
        "says": headline(made.events),
        "seconds": round(time.monotonic() - begun, 1),
        "missing": list(made.problems),
    }


@contextmanager
def busy_host(processes: int) -> Iterator[None]:
    """So many processes that take all the time that the cores give them."""
    loop = [sys.executable, "-c", "while True: sum(range(10000))"]
    others = [subprocess.Popen(loop, preexec_fn=die_with_parent) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure_healthy(names: list[str], options: argparse.Namespace) -> int:
    """A row for each program, printed and written as it comes; returns 1 where somebody was accused."""
    rows: list[dict[str, Any]] = []
    if names and options.out and options.out.exists():  # these anew, the others as they were
        known = json.loads(options.out.read_text())["healthy"]["programs"]
        rows = [row for row in known if row["program"] not in names]
    head = machine(options.backend) | {"busy": options.busy, "timeout": options.timeout}
    result = head
    with busy_host(options.busy):
        for name in names or healthy.programs():
            try:
                rows.append(healthy_row(name, options))
            except (NcclkitError, RuntimeError, TimeoutError) as error:
                say = f"{type(error).__name__}: {error}"[-1000:]
                rows.append(
                    dict.fromkeys(COUNTED, 0) | {"program": name, "lives": False, "said": say}
                )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            result = head | {"healthy": healthy_summary(rows)}
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(any(row["accusations"] or not row["lives"] for row in rows))


COUNTED = ("looks", "accusations", "goes_on", "exit_0")


def healthy_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The looks of all programs together, and each."""
    ended = [row["program"] for row in rows if not row["lives"]]
    return {name: sum(row[name] for row in rows) for name in COUNTED} | {
        "ended": ended,
        "programs": rows,
    }


def machine(backend: str) -> dict[str, Any]:
    """Date, hardware and versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = (
        subprocess.check_output(query, text=True, timeout=60).strip().splitlines()
        if backend == "nccl"
        else []
    )
    found: dict[str, Any] = {"date": date.today().isoformat(), "python": platform.python_version()}
    found |= {"cores": os.cpu_count(), "load": os.getloadavg()[0], "gpus (name, driver)": gpus}
    packages = (
        "torch",
        "accelerate",
        "lightning",
        "pytorch-lightning",
        "transformers",
        "py-spy",
        "pystack",
    )
    found |= {name: installed(name) for name in packages}
    if backend == "nccl":
        import torch

        found |= {"cuda": torch.version.cuda, "nccl": loaded_nccl()}
    return found | {tool: shutil.which(tool) or "not installed" for tool in ("gdb", "cuda-gdb")}


def loaded_nccl() -> str:
    """The release of the library that ranks load here; torch's own function names the one it was built with."""
    import torch  # noqa: F401  (its own library, where `LD_PRELOAD` names no other)

    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def installed(package: str) -> str:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def hand_over_tools() -> None:
    """Let attach find py-spy and pystack where they lie on PYTHONPATH, outside of the interpreter's own folder."""
    for name, module in (("py-spy", ""), ("pystack", "pystack")):
        places = [
            Path(place, "bin", name) for place in sys.path if Path(place, "bin", name).is_file()
        ]
        if find_tool(name)[0] is None and places and not module:
            os.environ[TOOLS[name]] = str(places[0])
        if not Path(sys.executable).with_name(name).exists() and module and find_spec(module):
            script = Path(
                tempfile.mkdtemp(), name
            )  # one that was installed elsewhere names an interpreter of there
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", default=[], help="these only")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument(
        "--share-gpu", action="store_true", help="over nccl: all ranks on one GPU, each as a node"
    )
    parser.add_argument(
        "--ranks", type=int, default=0, help="of each job (default: 3 over gloo, 2 over nccl)"
    )
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--dump", action=argparse.BooleanOptionalAction)
    parser.add_argument("--healthy", action="store_true", help="jobs that nothing is wrong with")
    parser.add_argument(
        "--looks", type=int, default=5, help="at each of these, with --dump and without"
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="processes that take the same cores meanwhile"
    )
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--timeout", type=float, help="of each look (default: that of attach)")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="after which no further job is begun"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the case of each job")
    options = parser.parse_args()
    hand_over_tools()
    if options.healthy:
        return measure_healthy(options.ways, options)
    options.dump = bool(options.dump)
    names = options.ways or ways(options.backend)
    kept: dict[str, dict[str, Any]] = {}
    if (
        options.ways and options.out and options.out.exists()
    ):  # these rows anew, the others as they were
        kept = {row["way"]: row for row in json.loads(options.out.read_text())["ways"]}
    names_of_options = ("backend", "share_gpu", "side_by_side", "dump", "kernels", "timeout")
    chosen = {name: getattr(options, name) for name in names_of_options}
    head = machine(options.backend) | chosen | {"ranks": options.ranks or RANKS[options.backend]}
    bench = Bench(options)

    def result() -> dict[str, Any]:
        known = {
            name: row
            for name, row in (kept | bench.rows).items()
            if name not in bench.not_hung
        }
        more = {"not_begun": bench.not_begun, "not_hung": bench.not_hung}
        return head | more | summary([known[name] for name in WAYS if name in known])

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
