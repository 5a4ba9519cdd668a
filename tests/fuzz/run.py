"""Fuzz every reader with atheris: ``python tests/fuzz/run.py --minutes 10`` (``pip install atheris``; Linux).

The minutes are shared by the targets, one after the other on one core.  Figures go to
``tests/bench/results/fuzz.json`` and, as a Markdown table, to standard output; inputs that break a property are kept in
the folder that the table names, and belong as ``found-*`` into the corpus once the reader is mended.  The exit status
is 1 when there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "tests" / "bench" / "results" / "fuzz.json"
MEMORY = 1024
"""MiB that one target may use; the interpreter, coverage counters and libFuzzer take about 150 of it."""


MOST = 5
"""Crashes after which a target is left alone: more of the same tell nothing."""


def main() -> int:
    """All targets in processes of their own, or in this one the target that such a process is told."""
    options = argparse.ArgumentParser(description=__doc__.split(":")[0])
    options.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    options.add_argument("--target", help=argparse.SUPPRESS)
    told, rest = options.parse_known_args()
    if told.target:
        return fuzz(told.target, rest)
    from tests.fuzz.targets import TARGETS

    kept = Path(tempfile.mkdtemp(prefix="ncclkit-fuzz-"))
    rows = {name: campaign(name, told.minutes * 60 / len(TARGETS), kept) for name in TARGETS}
    crashes = sum(row["crashes"] for row in rows.values())
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "atheris": version("atheris"),
        "sources": digest(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "minutes": told.minutes,
        "inputs": sum(row["inputs"] for row in rows.values()),
        "crashes": crashes,
        "targets": rows,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    if crashes:
        print(f"\nInputs that break a property: {kept}")
    else:
        shutil.rmtree(kept)
    return 1 if crashes else 0


def fuzz(name: str, rest: list[str]) -> int:
    """Hand one target to libFuzzer; does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["ncclkit"]):
        from tests.fuzz.targets import TARGETS, check
    target, slowest = TARGETS[name], 0.0
    note = Path(os.environ["FUZZ_SLOWEST"])

    def one(data: bytes) -> None:
        nonlocal slowest
        used = check(target, data)
        if used > slowest:
            slowest = used
            note.with_suffix(".input").write_bytes(data)
            note.write_text(json.dumps({"seconds": round(used, 3), "bytes": len(target.shape(data))}))

    atheris.Setup([sys.argv[0], *rest], one)
    atheris.Fuzz()
    return 0


def campaign(name: str, seconds: float, kept: Path) -> dict[str, Any]:
    """Fuzz one target for this long, beyond a crash too."""
    from tests.fuzz.targets import CORPUS, LARGEST, SECONDS

    until, row = time.monotonic() + seconds, {"inputs": 0, "crashes": 0, "peak_mib": 0, "seconds": round(seconds)}
    with tempfile.TemporaryDirectory() as scratch:
        note = Path(scratch, "slowest.json")
        found, words = Path(scratch, "corpus"), Path(scratch, "words")
        found.mkdir()
        words.write_text(dictionary(name))
        while (left := int(until - time.monotonic())) > 0:
            limits = [f"-max_total_time={left}", f"-max_len={LARGEST}", f"-rss_limit_mb={MEMORY}"]
            limits += [f"-timeout={SECONDS * 3:.0f}", f"-dict={words}", f"-artifact_prefix={kept}/{name}-"]
            limits += ["-print_final_stats=1"]
            command = [sys.executable, __file__, "--target", name, *limits, str(found), str(CORPUS / name)]
            environ = os.environ | {"FUZZ_SLOWEST": str(note), "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(command, capture_output=True, env=environ, cwd=ROOT, timeout=left + 120)
            said = done.stderr.decode("utf-8", "replace")
            row["inputs"] += _stat(said, "number_of_executed_units")
            row["peak_mib"] = max(row["peak_mib"], _stat(said, "peak_rss_mb"))
            if done.returncode == 0:
                break
            row["crashes"] += 1
            (kept / f"{name}-{row['crashes']}.txt").write_text(said + done.stdout.decode("utf-8", "replace"))
            if row["crashes"] == MOST:
                break
        row["slowest"] = json.loads(note.read_text()) if note.exists() else None
    return row


def dictionary(name: str) -> str:
    """The words of the seeds in libFuzzer's form: regular expressions tell its coverage nothing."""
    from tests.fuzz.targets import TARGETS

    words = {word for seed in TARGETS[name].seeds() for word in re.findall(rb"[ -~]{3,}?(?=[\s:=\[({]|$)", seed)}
    words |= {b"1e999", b"NaN", b"-1", b"9" * 30, b"99999999", b"null", b"[]", b"{}"}
    lines = ("".join(f"\\x{byte:02x}" for byte in word) for word in sorted(words) if len(word) <= 40)
    return "".join(f'"{line}"\n' for line in lines)


def _stat(said: str, name: str) -> int:
    match = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(match[1]) if match else 0


def digest() -> str:
    """SHA-256 over what was fuzzed, so that the figures name their code."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "ncclkit" / "evidence").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = ["| target | inputs | crashes | slowest input | peak MiB |", "|---|---:|---:|---:|---:|"]
    for name, row in rows.items():
        slow = row["slowest"] or {"seconds": 0.0, "bytes": 0}
        slowest = f"{slow['seconds']:.2f} s ({slow['bytes']:,} bytes)"
        lines.append(f"| {name} | {row['inputs']:,} | {row['crashes']} | {slowest} | {row['peak_mib']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
