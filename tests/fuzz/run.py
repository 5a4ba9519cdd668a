"""Fuzz every reader with atheris: ``python tests/fuzz/run.py --inputs 10_000_000`` (``pip install atheris``; Linux).

One process at a time.  The readers take turns until so many inputs were read or the minutes are over, so that the
figures hold for all of them whenever it ends; they go to ``tests/bench/results/fuzz.json`` and, as a Markdown table, to
standard output.  Inputs that break a property are kept in the folder that the table names, and belong as ``found-*``
into the corpus once the reader is mended.  The exit status is 1 when there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "tests" / "bench" / "results" / "fuzz.json"
SECONDS = 2.0
"""CPU time that one input may take."""
MEMORY = 512
"""MiB that the process of a reader may have; the interpreter, coverage counters and libFuzzer take about 100 of it."""
WAIT = 300
"""Seconds after which libFuzzer ends an input that Python's timer cannot end, as another process may use the core."""
MOST = 5
"""Crashes after which a reader is left alone: more of the same tell nothing."""


def main() -> int:
    """All readers in processes of their own, or in this one the reader that such a process is told."""
    options = argparse.ArgumentParser(description=__doc__.split(":")[0])
    options.add_argument("--inputs", type=int, default=100_000, help="for all readers together")
    options.add_argument("--minutes", type=float, default=600.0, help="after which it ends in any case")
    options.add_argument("--turn", type=float, default=60.0, metavar="SECONDS", help="of a reader of share 1")
    options.add_argument("--work", type=Path, help="a folder that is kept: the next run goes on from what lies there")
    options.add_argument("--reader", help=argparse.SUPPRESS)
    told, rest = options.parse_known_args()
    if told.reader:
        return fuzz(told.reader, rest)
    from tests.fuzz.readers import READERS

    work = told.work or Path(tempfile.mkdtemp(prefix="ncclkit-fuzz-"))
    rows = {name: Row(name, work) for name in READERS}
    if (before := work / "figures.json").exists():
        told_before = json.loads(before.read_text())
        if told_before["sources"] == digest():
            for name, row in rows.items():
                row.go_on(told_before["readers"][name])
    until, result = time.monotonic() + told.minutes * 60, figures(rows)
    for row in cycle(rows.values()):
        if result["inputs"] >= told.inputs or time.monotonic() > until:
            break
        row.turn(min(told.turn * row.reader.share, until - time.monotonic()))
        result = figures(rows)
        for path in (RESULTS, work / "figures.json"):
            path.write_text(json.dumps(result, indent=1) + "\n")
        if all(row.crashes >= MOST for row in rows.values()):
            break
    print(table(result))
    if result["crashes"]:
        print(f"\nInputs that break a property: {work / 'crashes'}")
    elif not told.work:
        shutil.rmtree(work)
    return 1 if result["crashes"] else 0


def fuzz(name: str, rest: list[str]) -> int:
    """Hand one reader to libFuzzer; does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["ncclkit"]):
        from ncclkit.evidence import processes
        from tests.fuzz.guards import guarded
        from tests.fuzz.readers import READERS, check, one_process
    reader, slowest, note = READERS[name], 0.0, Path(os.environ["FUZZ_SLOWEST"])
    if note.exists():
        slowest = json.loads(note.read_text())["seconds"]

    def one(data: bytes) -> None:
        nonlocal slowest
        with guarded(SECONDS) as used:
            check(reader, data)
        if used[0] > slowest:
            slowest = used[0]
            note.write_text(json.dumps({"seconds": round(slowest, 4), "input": data.hex()}))

    if name in ("dump", "json"):  # what its process would have
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + processes.MEMORY,) * 2)
    with one_process():
        atheris.Setup([sys.argv[0], *rest], one)
        atheris.Fuzz()
    return 0


class Row:
    """What is known of one reader so far, and its corpus, which grows from turn to turn."""

    def __init__(self, name: str, work: Path) -> None:
        from tests.fuzz.readers import READERS, dictionary

        self.name, self.reader = name, READERS[name]
        self.inputs = self.crashes = self.mib = 0
        self.seconds = self.cpu = 0.0
        self.note, self.corpus = work / f"{name}.slowest", work / name
        self.kept, self.words = work / "crashes", work / f"{name}.words"
        self.corpus.mkdir(parents=True, exist_ok=True)
        self.kept.mkdir(exist_ok=True)
        seeds = dict.fromkeys(seed[: self.reader.longest] for seed in self.reader.seeds())
        for number, data in enumerate(seeds):
            (self.corpus / f"seed-{number:03d}").write_bytes(data)
        words = ("".join(f"\\x{byte:02x}" for byte in word) for word in dictionary(seeds))
        self.words.write_text("".join(f'"{word}"\n' for word in words))

    def go_on(self, told: dict[str, Any]) -> None:
        """Add to the figures of an earlier run of the same code."""
        self.inputs, self.crashes, self.mib = told["inputs"], told["crashes"], told["peak_mib"]
        self.seconds, self.cpu = told["seconds"], told["cpu_seconds"]

    def turn(self, seconds: float) -> None:
        """Fuzz the reader for this long, unless it has crashed `MOST` times."""
        if self.crashes >= MOST or seconds < 1:
            return
        limits = [f"-max_total_time={seconds:.0f}", f"-max_len={self.reader.longest}", f"-rss_limit_mb={MEMORY}"]
        limits += [f"-timeout={WAIT}", f"-dict={self.words}", f"-artifact_prefix={self.kept}/{self.name}-"]
        command = [sys.executable, __file__, "--reader", self.name, *limits, "-print_final_stats=1", str(self.corpus)]
        environ = os.environ | {"FUZZ_SLOWEST": str(self.note), "PYTHONDONTWRITEBYTECODE": "1"}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, capture_output=True, env=environ, cwd=ROOT, timeout=seconds + 2 * WAIT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds += time.monotonic() - start
        self.cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = done.stderr.decode("utf-8", "replace")
        self.inputs += _stat(said, "number_of_executed_units")
        self.mib = max(self.mib, _stat(said, "peak_rss_mb"))
        if done.returncode != 0:
            self.crashes += 1
            (self.kept / f"{self.name}-{self.crashes}.txt").write_text(said + done.stdout.decode("utf-8", "replace"))

    def figures(self) -> dict[str, Any]:
        """What is committed of it."""
        slowest = json.loads(self.note.read_text()) if self.note.exists() else {"seconds": 0.0, "input": ""}
        return {
            "inputs": self.inputs,
            "seconds": round(self.seconds),
            "cpu_seconds": round(self.cpu),
            "crashes": self.crashes,
            "slowest_seconds": slowest["seconds"],
            "slowest_bytes": len(slowest["input"]) // 2,
            "peak_mib": self.mib,
            "corpus": len(list(self.corpus.iterdir())),
            "longest_bytes": self.reader.longest,
        }


def figures(rows: dict[str, Row]) -> dict[str, Any]:
    """The figures of all readers, with what they were taken on."""
    told = {name: row.figures() for name, row in rows.items()}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "atheris": version("atheris"),
        "sources": digest(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seconds": sum(row["seconds"] for row in told.values()),
        "cpu_seconds": sum(row["cpu_seconds"] for row in told.values()),
        "inputs": sum(row["inputs"] for row in told.values()),
        "crashes": sum(row["crashes"] for row in told.values()),
        "limit_seconds": SECONDS,
        "limit_mib": MEMORY,
        "slowest_seconds": max(row["slowest_seconds"] for row in told.values()),
        "peak_mib": max(row["peak_mib"] for row in told.values()),
        "readers": told,
    }


def _stat(said: str, name: str) -> int:
    match = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(match[1]) if match else 0


def digest() -> str:
    """SHA-256 over what was fuzzed, so that the figures name their code."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "ncclkit" / "evidence").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| reader | inputs | CPU s | crashes | slowest input | peak MiB |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in result["readers"].items():
        slowest = f"{row['slowest_seconds']:.3f} s ({row['slowest_bytes']} bytes)"
        cells = (name, f"{row['inputs']:,}", f"{row['cpu_seconds']:,}", row["crashes"], slowest, row["peak_mib"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, f"| all | {result['inputs']:,} | | {result['crashes']} | | {result['peak_mib']} |"])


if __name__ == "__main__":
    sys.exit(main())
