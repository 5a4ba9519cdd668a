"""How long each stage of a staged test and its verdict take, against the bars of the live test; Markdown.

python tests/bench/staged_test.py [RANKS …] [--backend gloo] [--max-bytes BYTES]

Bars: 60 s for the quick staged test of a node with 8 GPUs, 30 s for 4 gloo ranks on 2 cores, 15 s to the first number.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.analysis import stages
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live import probe  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402

STARTS = ("hello", "import", "init", "alone", "pairs", "groups", "size", "done")
"""Phases in order; a stage ends where the next one begins on the slowest rank."""
NAMES = ("launch", "import torch", "meet", "make groups", "alone", "pairs", "groups", "collective")
BARS = {("nccl", 8): 60.0, ("gloo", 4): 30.0}
FIRST = 15.0


def staged_run(ranks: int, backend: str, largest: int | None) -> tuple[dict[str, float], float, float, str]:
    """Seconds from the start to the end of each phase, to the first number and to the verdict; and the verdict."""
    begun, ends, numbers = time.time(), dict[str, float](), list[float]()

    def hear(record: dict[str, Any]) -> None:
        if record["kind"] in ("stage.rank", "stage.pair", "measure"):
            numbers.append(time.time() - begun)
        if record["kind"] == "phase" and record["phase"] in STARTS:
            known = ends.get(record["phase"])
            again = record["phase"] in ("pairs", "groups", "size")  # of these the first one counts
            ends[record["phase"]] = known if known and again else record["t"] - begun

    with tempfile.TemporaryDirectory() as place:
        case = Case.open(place)
        options = ProbeOptions(ranks=ranks, backend=backend, max_bytes=largest or 0, stages=True, repeats=5)
        run = asyncio.run(probe.probe(case, options, hear))
        verdict = stages.staged_test(case).summary if run.reason == "done" else run.summary
    return ends, numbers[0] if numbers else float("nan"), time.time() - begun, verdict


def main() -> None:
    """Print one row for each number of ranks, and what the staged test said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--max-bytes", type=int)
    asked = parser.parse_args()
    print(f"| ranks | {' | '.join(NAMES)} | first number | verdict | bar |")
    print("|---" * (len(NAMES) + 4) + "|")
    said = []
    for ranks in asked.ranks:
        ends, first, whole, verdict = staged_run(ranks, asked.backend, asked.max_bytes)
        at = [0.0, *(ends.get(name, float("nan")) for name in STARTS)]
        spans = " | ".join(f"{after - before:.1f} s" for before, after in zip(at, at[1:], strict=False))
        bar = BARS.get((asked.backend, ranks))
        held = "–" if bar is None else f"{'held' if whole < bar and first < FIRST else 'MISSED'} ({bar:.0f} s)"
        print(f"| {ranks} | {spans} | {first:.1f} s | {whole:.1f} s | {held} |", flush=True)
        said.append(f"{ranks} ranks: {verdict}")
    print("\n" + "\n".join(said))


if __name__ == "__main__":
    main()
