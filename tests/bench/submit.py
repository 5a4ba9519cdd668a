"""How much later the first number of a live test comes through `ncclkit submit` than inside an allocation.

    SLURM_CONF=… python -m tests.bench.submit [--nodes 2] [--rounds 3] [--case DIR]

On a login node of an idle cluster whose nodes see the case folder.  Seconds from the command to the first measured
size, by turns; exit status 1 where submitting takes more than ten seconds longer, by the medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

MOST = 10.0
"""Seconds that submitting may add."""


def main() -> int:
    """Run both by turns, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case")
    asked = parser.parse_args()
    case = asked.case or tempfile.mkdtemp(prefix="ncclkit-submit-")
    command, test = [sys.executable, "-m", "ncclkit"], ["probe", "--max-bytes", "4KiB", "--case", case]
    ways = {
        "allocation": ["salloc", "-N", asked.nodes, "-n", asked.nodes, *command, *test],
        "submit": [*command, "submit", "-N", asked.nodes, *test],
    }
    subprocess.run(ways["allocation"], check=True, capture_output=True, timeout=600)  # reads the facts of the nodes
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
        for name, words in ways.items():
            seconds[name].append(first(words))
            print(f"{name}: first size measured after {seconds[name][-1]:.1f} s", flush=True)
    later = statistics.median(seconds["submit"]) - statistics.median(seconds["allocation"])
    print(f"submit is {later:.1f} s later; at most {MOST:g} s")
    return int(later > MOST)


def first(words: list[str]) -> float:
    """Seconds until the command says that rank 0 measures its second size."""
    begun, found = time.monotonic(), 0.0
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if not found and "size 64 " in line:
                found = time.monotonic() - begun
        if process.wait(timeout=300) or not found:
            raise RuntimeError(f"{' '.join(words)} measured nothing")
    return found


if __name__ == "__main__":
    sys.exit(main())
