"""Reading logs: MB/s and memory of `evidence.read`, beside ripgrep and grep with the same patterns in the same run.

    python tests/bench/scan.py [--size 1024] [--rounds 5] [--json FILE]

The log of --size MiB looks like that of 256 ranks, with one line in 10,000 that says something (see `logs.py`); a
quarter of it is written for each log in which every line does, and a line of that size without an end.  Every figure
is of a process of its own, on files in the page cache: the best of some rounds in which all take turns, wall seconds
of `evidence.read` to its events (of the whole command for rg and grep), and the largest resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ncclkit.evidence.scanner import scan  # noqa: E402
from tests.bench import logs  # noqa: E402

READ = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
if sys.argv[2] == "stdlib":
    sys.modules["hyperscan"] = None
from ncclkit import evidence
workers = int(sys.argv[3])
if __name__ == "__main__":
    start = time.perf_counter()
    pool = ProcessPoolExecutor(workers) if workers > 1 else None
    events = evidence.read([sys.argv[1]], executor=pool).events
    print(time.perf_counter() - start, sum(event.count for event in events if event.kind != "progress"))
"""
PEAK = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(status)
"""
"""A small process in between: the memory of a process begins with that of the one that starts it."""
FACTOR = 4
"""How many times larger the log is whose time must grow no faster than its size."""


@dataclass(frozen=True)
class Run:
    """What one command took on one log."""

    name: str
    log: str
    mb: float
    """Size of the log in MB (1e6 bytes)."""
    seconds: float
    cpu: float
    """User and system seconds of the whole command; about `seconds` for two workers: others used the second core."""
    peak: float
    """Largest resident set of one of its processes in MiB."""
    hits: int
    """Lines that gave an event (ours), or that hold a pattern (peers)."""

    @property
    def speed(self) -> float:
        """MB/s."""
        return self.mb / self.seconds


def run(name: str, log: str, path: Path, command: list[str]) -> Run:
    """Run one command to its end; ours prints its own seconds."""
    start = time.perf_counter()
    argv = [sys.executable, "-S", "-c", PEAK, *command]
    result = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    took = time.perf_counter() - start
    *said, cpu, peak = result.stdout.split() or ["", ""]
    if result.returncode not in (0, 1) or not said:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stderr}")
    seconds = float(said[0]) if said[1:] else took
    return Run(name, log, path.stat().st_size / 1e6, seconds, float(cpu), int(peak) / 1024, int(said[-1]))


def ours(log: str, path: Path, backend: str, workers: int = 1) -> Run:
    """`evidence.read` in a process of its own."""
    name = f"ncclkit, {backend}" + (f", {workers} workers" if workers > 1 else "")
    return run(name, log, path, [sys.executable, "-c", READ, str(path), backend, str(workers)])


def peers(path: Path, patterns: Path) -> Iterator[Run]:
    """ripgrep and grep, counting the lines that hold one of our anchors."""
    os.environ["LC_ALL"] = "C"
    for name, command in {
        "rg -c --no-mmap": ["rg", "-c", "--no-mmap", "-f", str(patterns), str(path)],
        "grep -cE": ["grep", "-cE", "-f", str(patterns), str(path)],
    }.items():
        if shutil.which(command[0]):
            yield run(name, "mixed", path, command)


def anchors(path: Path) -> None:
    """Our anchors as regular expressions that rg and grep take: no blank is escaped."""
    path.write_text("".join(re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", text.decode()) + "\n" for text in scan.ANCHORS))


def best(rounds: list[list[Run]]) -> list[Run]:
    """The fastest run of each command, with the largest memory that it ever needed."""
    return [
        Run(**{**asdict(min(runs, key=lambda run: run.seconds)), "peak": max(run.peak for run in runs)})
        for runs in zip(*rounds, strict=True)
    ]


def measure(folder: Path, size: int, rounds: int) -> list[Run]:
    """All figures; large files are gone before the next ones are written."""
    patterns, path = folder / "anchors", folder / "mixed.log"
    anchors(patterns)
    logs.write(path, "mixed", size)
    runs = best(
        [
            [
                ours("mixed", path, "hyperscan"),
                *peers(path, patterns),
                ours("mixed", path, "hyperscan", 2),
                ours("mixed", path, "stdlib"),
                ours("mixed", path, "stdlib", 2),
            ]
            for _ in range(rounds)
        ]
    )
    large = folder / "large.log"
    with large.open("wb") as out:
        for _ in range(FACTOR):
            with path.open("rb") as part:
                shutil.copyfileobj(part, out, 1 << 20)
    runs += best([[ours(f"mixed x {FACTOR}", large, "hyperscan")] for _ in range(2)])
    large.unlink()
    path.unlink()
    for name in (*list(logs.LOGS)[1:], "one line"):
        path = folder / "one.log"
        logs.write(path, name, size if name == "one line" else size // 4)
        turns = 1 if name == "one line" else 2
        runs += best([[ours(name, path, backend) for backend in ("hyperscan", "stdlib")] for _ in range(turns)])
        path.unlink()
    return runs


def bars(runs: list[Run]) -> Iterator[tuple[str, float, float, bool]]:
    """(what, figure, bar, passed) of issue 5."""
    of = {(run.log, run.name): run for run in runs}
    one, two = of["mixed", "ncclkit, hyperscan"], of["mixed", "ncclkit, hyperscan, 2 workers"]
    plain, large = of["mixed", "ncclkit, stdlib"], of[f"mixed x {FACTOR}", "ncclkit, hyperscan"]
    if peer := of.get(("mixed", "rg -c --no-mmap")):
        yield "speed against rg", one.speed / peer.speed, 1.0, one.speed >= peer.speed
    yield "two workers against one", one.seconds / two.seconds, 1.6, one.seconds / two.seconds >= 1.6
    yield f"time of {FACTOR} x the size", large.seconds / one.seconds, 4.2, large.seconds / one.seconds <= 4.2
    yield "standard library alone, MB/s", plain.speed, 80, plain.speed >= 80
    for name in list(logs.LOGS)[1:]:
        slow = min((run for run in runs if run.log == name), key=lambda run: run.speed)
        yield f"{name}, MB/s a core", slow.speed, 30, slow.speed >= 30
    peak = max(run.peak for run in runs if run.name.startswith("ncclkit"))
    yield "largest memory, MiB", peak, 300, peak < 300


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    rg = subprocess.run(["rg", "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "hyperscan": metadata.version("hyperscan"),
        "ripgrep": rg,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the log")
    parser.add_argument("--rounds", type=int, default=5, help="how often each reads the first log")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), options.size << 20, options.rounds)
    about, checks = versions(), list(bars(runs))
    print(", ".join(about.values()))
    print("\n| log | read by | MB | s | CPU s | MB/s | peak MiB | hits |\n|---|---|--:|--:|--:|--:|--:|--:|")
    for r in runs:
        figures = f"{r.mb:.0f} | {r.seconds:.2f} | {r.cpu:.2f} | {r.speed:.0f} | {r.peak:.0f} | {r.hits}"
        print(f"| {r.log} | {r.name} | {figures} |")
    print("\n| bar | figure | limit | |\n|---|--:|--:|---|")
    for what, figure, limit, passed in checks:
        print(f"| {what} | {figure:.2f} | {limit:g} | {'pass' if passed else 'FAIL'} |")
    if options.json:
        kept = {**about, "size_mib": options.size, "runs": [asdict(r) | {"mb_per_s": round(r.speed, 1)} for r in runs]}
        kept["bars"] = [dict(zip(("what", "figure", "limit", "passed"), check, strict=True)) for check in checks]
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
