"""Seconds that the facts of this host cost, without torch and with it, beside what importing torch costs alone.

    python tests/bench/facts.py [--rounds 5] [--json FILE]

Run it with the training interpreter on a quiet machine; it asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "facts --no-torch": ["-m", "ncclkit.agent", "facts", "--no-torch"],
    "facts": ["-m", "ncclkit.agent", "facts"],
    "import torch": ["-c", "import torch"],
    "torch.utils.collect_env": ["-m", "torch.utils.collect_env"],
}


def ask(arguments: list[str]) -> tuple[float, str]:
    """Wall seconds of one command, a new process each time, and what it printed."""
    started = time.perf_counter()
    run = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return time.perf_counter() - started, run.stdout if run.returncode == 0 else ""


def main() -> None:
    """Print, and with --json keep, one line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    kept: dict[str, object] = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    lines = ask(COMMANDS["facts"])[1].splitlines()  # this first run also fills the page cache
    facts = {row["name"]: row["value"] for row in map(json.loads, lines)}
    kept |= {name: facts.get(name) for name in ("cpu.model", "gpu.count", "gpu.0.model", "software.torch")}
    figures: dict[str, object] = {}
    for name, arguments in COMMANDS.items():
        answers = [ask(arguments) for _ in range(options.rounds)]
        seconds = [took for took, said in answers if said or name == "import torch"]
        figures[name] = {"median": statistics.median(seconds), "worst": max(seconds)} if seconds else None
        told = f"{statistics.median(seconds):6.2f} s, worst {max(seconds):.2f} s" if seconds else "failed"
        print(f"{name:24} {told}")
    if options.json:
        kept |= {"facts": len(facts), "seconds": figures}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
