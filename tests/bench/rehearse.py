"""What a rehearsal costs beside the same script under torchrun over gloo, in the same run.

    python -m tests.bench.rehearse [--ranks 4] [--calls 200] [--many 64 256] [--json FILE]

Printed: seconds of an all_reduce as rank 0 sees it, and seconds until the first one, on both; then
rehearsals of many ranks, and for each number of ranks one of a script that hangs, with the seconds
of silence between its last call and the verdict.  CPU seconds and the load of the machine before
each run stand beside wall time, as the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import flight

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
calls = int(sys.argv[1])
total = torch.ones(4)
dist.all_reduce(total)
first = time.time()
began, busy = time.perf_counter(), time.process_time()
for _ in range(calls):
    dist.all_reduce(total)
spent = (time.perf_counter() - began) / calls
busy = (time.process_time() - busy) / calls
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("each", spent, busy, first, flush=True)
dist.barrier()
dist.destroy_process_group()
"""
HANGS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
if dist.get_rank() == 0:
    dist.recv(total, 1)
dist.barrier()
"""
DEADLINE = 600


class Cost(NamedTuple):
    """What one run of the script took."""

    what: str
    ranks: int
    load: float
    """Processes that would run, on average of the minute before."""
    wall: float
    cpu: float
    each: float
    """Seconds of an all_reduce."""
    busy: float
    """CPU seconds of it, in one rank."""
    start: float
    """Seconds from the command to the end of the first all_reduce."""


def measured_run(what: str, ranks: int, command: list[str], folder: Path) -> Cost:
    """Run a command to its end; its CPU seconds are those of all its descendants."""
    load = os.getloadavg()[0]
    before = os.times()
    began = time.monotonic()
    clock = time.time()
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE)
    wall = time.monotonic() - began
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    printed = ran.stdout
    if "rehearse" in command:
        answer = json.loads(ran.stdout)
        if answer["kind"] != "agree":
            raise SystemExit(answer["sentence"])
        printed = Path(answer["folder"], "launcher.log").read_text()
    found = re.search(r"each ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)", printed)
    if found is None:
        raise SystemExit(f"{command} printed no time: {ran.stderr[-2000:]}")
    each, busy, first = map(float, found.groups())
    return Cost(what, ranks, load, wall, cpu, each, busy, first - clock)


class Hang(NamedTuple):
    """How soon a hang was told."""

    ranks: int
    load: float
    wall: float
    """Seconds of the whole command."""
    silence: float
    """Seconds from the last call of any rank to the verdict."""


def measured_hang(ranks: int, folder: Path) -> Hang:
    """Rehearse a script that hangs."""
    script = folder / "hangs.py"
    script.write_text(HANGS)
    load = os.getloadavg()[0]
    began = time.monotonic()
    command = rehearsal(script, ranks, 0)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE)
    wall = time.monotonic() - began
    answer = json.loads(ran.stdout)
    if answer["kind"] != "deadlock":
        raise SystemExit(answer["sentence"])
    return Hang(ranks, load, wall, answer["figures"]["silence"])


def about_machine() -> dict[str, Any]:
    """Date, hardware and versions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": flight.cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description="What a rehearsal costs.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--many", type=int, nargs="*", default=[64])
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    ranks, calls = options.ranks, options.calls
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words = [*torchrun, "--nproc-per-node", str(ranks), str(script), str(calls)]
        real = measured_run("torchrun over gloo", ranks, words, folder)
        print(describe(real), flush=True)
        rehearsed = measured_run("rehearsal", ranks, rehearsal(script, ranks, calls), folder)
        print(describe(rehearsed), flush=True)
        own = 1000 * (rehearsed.each - real.each)
        busy = 1000 * (rehearsed.busy - real.busy)
        print(f"the rehearsal's own cost of a call and rank: {own:.2f} ms, {busy:.2f} ms of CPU")
        runs = [real, rehearsed]
        for many in options.many:
            runs.append(measured_run("rehearsal", many, rehearsal(script, many, 3), folder))
            print(describe(runs[-1]), flush=True)
        hangs = []
        for number in (ranks, *options.many):
            hangs.append(measured_hang(number, folder))
            print(f"a hang of {number} ranks: told after {hangs[-1].silence:.3f} s", flush=True)
    if options.json:
        figures: dict[str, Any] = about_machine() | {"own_ms": round(own, 3), "own_cpu_ms": round(busy, 3)}
        figures["runs"] = [run._asdict() for run in runs]
        figures["hangs"] = [hang._asdict() for hang in hangs]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def rehearsal(script: Path, ranks: int, calls: int) -> list[str]:
    """The command that rehearses the script."""
    own = [sys.executable, "-m", "ncclkit", "rehearse", "--json", "--ranks", str(ranks)]
    return [*own, "--timeout", str(DEADLINE), "--", sys.executable, str(script), str(calls)]


def describe(cost: Cost) -> str:
    """The figures of a run in words."""
    return (
        f"{cost.what}, {cost.ranks} ranks, load {cost.load:.1f}: {cost.wall:.1f} s,"
        f" {cost.cpu:.1f} s of CPU, {1000 * cost.each:.2f} ms an all_reduce,"
        f" the first one after {cost.start:.1f} s"
    )


if __name__ == "__main__":
    main()
