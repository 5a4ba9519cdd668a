"""What telemetry costs: our own live test with telemetry and live progress on and off, in alternating pairs of one run.

    python tests/bench/telemetry.py [--backend nccl] [--ranks N] [--pairs 12] [--repeats 30] [OUT.json]

The ranks measure the same sizes again and again.  For every second stretch telemetry is taken once a second, with
nvidia-smi where there is one, by a process of its own as the guard is, and a live test draws what the ranks tell;
for the others that process is stopped and nobody draws.  The order within a pair alternates, so that drift cancels.
Bar: the median ratio on / off within 1 %, which counts only where its 95 % interval is within 1 % as well; where the
machine's noise is larger, that is what is said.  CPU time of both does not depend on noise: on a host with a core to
spare it costs the ranks nothing, on a full one they give it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent.run import processes  # noqa: E402
from ncclkit.core.runs import Plan  # noqa: E402
from ncclkit.core.tuning import LEAST_ROUNDS, Comparison, Setting  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from ncclkit.views.live import LiveTest  # noqa: E402

SIZES = {"gloo": (8, 256 << 10, 4 << 20), "nccl": (8, 1 << 20, 256 << 20)}
BAR = 0.01


SAMPLER = """
import sys, time
from ncclkit.agent.monitor.telemetry import Sampler
from ncclkit.agent.run import processes
root = int(sys.argv[2])
sampler = Sampler(sys.argv[1], lambda: processes.ranks_of_processes(processes.descendants(root)))
while True:
    sampler.take()
    time.sleep(1.0)
"""
"""Telemetry of the ranks below a process, as the guard takes it, until somebody ends it."""


class Watching:
    """What is switched on and off: telemetry, and a live test that draws."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", SAMPLER, str(folder / "telemetry.jsonl"), str(os.getpid())]
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        self.sampler = subprocess.Popen(command, start_new_session=True, env=environ)
        while not (folder / "telemetry.jsonl").exists():  # its start is no part of the cost
            if self.sampler.poll() is not None:
                raise SystemExit("Telemetry ended before its first sample.")
            time.sleep(0.05)
        self.before = self._taken()
        self.live = LiveTest(ProbeOptions(ranks=2), self.follow, lambda m, options: (None, ""))
        self.feed: Callable[[dict[str, Any]], None] | None = None
        self.over: asyncio.Event | None = None
        self.since = time.monotonic(), time.process_time()
        self.spent = {False: [0.0, 0.0], True: [0.0, 0.0]}
        """Whether it was on → seconds, and seconds of CPU of this process, in which the drawing happens."""

    def _taken(self) -> float:
        """Seconds of CPU that telemetry's process has used."""
        stat = processes.read_text(f"/proc/{self.sampler.pid}/stat").rpartition(")")[2].split()
        return sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK")

    async def follow(self, options: ProbeOptions, on_record: Callable[[dict[str, Any]], None]) -> Any:
        """What the live test awaits: the end of the stretch."""
        over, self.feed = self.over, on_record
        assert over is not None
        await over.wait()
        return SimpleNamespace(reason="done", summary="", measurements=())

    def turn(self, on: bool) -> None:
        """Begin a stretch."""
        now = time.monotonic(), time.process_time()
        for place in (0, 1):
            self.spent[self.over is not None][place] += now[place] - self.since[place]
        self.since = now
        os.killpg(self.sampler.pid, signal.SIGCONT if on else signal.SIGSTOP)
        if self.over is not None:
            self.over.set()
        self.feed = self.over = None
        if on:
            self.over = asyncio.Event()
            self.live.begin()

    def close(self) -> dict[str, float]:
        """End what was started; what it took of a core, in % of one, while it was on."""
        self.turn(False)
        taken = self._taken() - self.before
        os.killpg(self.sampler.pid, signal.SIGKILL)
        self.sampler.wait()
        off, on = self.spent[False], self.spent[True]
        drawing = on[1] / on[0] - off[1] / off[0] if on[0] and off[0] else 0.0
        return {
            "telemetry_cpu_percent": round(100 * taken / max(on[0], 1e-3), 2),
            "drawing_cpu_percent": round(100 * drawing, 2),
        }


def is_on(stretch: int) -> bool:
    """Stretch 0 warms up; then off on, on off, off on …"""
    pair, second = divmod(stretch - 1, 2)
    return stretch > 0 and second != pair % 2


async def measure(
    options: argparse.Namespace, ranks: int, folder: Path
) -> tuple[list[dict[int, float]], dict[str, float]]:
    """Stretch by stretch {bytes: microseconds}, and what the watching itself took."""
    sizes = SIZES[options.backend]
    stretches: list[dict[int, float]] = [{}]
    watching = Watching(folder)
    watching.turn(False)

    def on_record(record: dict[str, Any]) -> None:
        if record["kind"] == "measure":
            stretches[-1][record["bytes"]] = record["time_us"]
            record = record | {"algbw": record["bytes"] / record["time_us"] / 1e3, "busbw": None}
        if watching.feed is not None:
            watching.feed(record)
        if len(stretches[-1]) == len(sizes):
            stretches.append({})
            watching.turn(is_on(len(stretches) - 1))

    (folder / "run").mkdir()
    every = ",".join(map(str, sizes * (2 * options.pairs + 1)))
    argv = ("collective", "--backend", options.backend, "--sizes", every, "--repeats", str(options.repeats))
    plan = Plan("watched", (*argv, "--timeout", "60"), ranks, options.backend, sys.executable, 580)
    try:
        records = await local.run_locally(plan, folder / "run", on_record)
    finally:
        cost = watching.close()
    if records[-1].get("reason") != "done":
        raise SystemExit(f"The run did not end well: {records[-1]}")
    cost["samples"] = len((folder / "telemetry.jsonl").read_text().splitlines())
    return stretches[1 : 2 * options.pairs + 1], cost


def judged(stretches: list[dict[int, float]], size: int) -> dict[str, Any]:
    """The pairs of one size: what watching changes, and how much two stretches without it differ."""
    times = {on: [s[size] for n, s in enumerate(stretches, 1) if is_on(n) == on] for on in (False, True)}
    ratios = [on / off for off, on in zip(times[False], times[True], strict=True)]
    gains = Comparison(Setting(), "all_reduce", size, tuple(times[False]), tuple(times[True])).interval
    low, high = 1 - gains[1], 1 - gains[0]
    median = statistics.median(ratios)
    noise = statistics.median(abs(b / a - 1) for a, b in zip(times[False], times[False][1:], strict=False))
    within = 1 - BAR < low and high < 1 + BAR
    told = (
        "differs by less than 1 %" if within
        else "differs by more than 1 %" if low > 1 + BAR or high < 1 - BAR
        else f"cannot be told to 1 %: two stretches without watching differ by {noise:.1%} themselves"
    )  # fmt: skip
    off, on = (statistics.median(times[on]) for on in (False, True))
    figures = {"off_us": off, "on_us": on, "median": median, "low": low, "high": high, "noise": noise}
    return {"bytes": size} | {name: round(value, 4) for name, value in figures.items()} | {"say": told}


def main() -> None:
    """Run it, print a table, keep the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=sorted(SIZES), default="gloo")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--pairs", type=int, default=12, help=f"at least {LEAST_ROUNDS}")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("out", nargs="?", type=Path)
    options = parser.parse_args()
    answer = asyncio.run(local.check_interpreter(sys.executable))
    ranks = options.ranks or (answer["gpus"] if options.backend == "nccl" else 2)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        stretches, cost = asyncio.run(measure(options, ranks, Path(folder)))
    rows = [judged(stretches, size) for size in SIZES[options.backend]]
    print("| bytes | off, µs | on, µs | on / off, median | 95 % interval | off / off before | |")
    print("|--:|--:|--:|--:|--:|--:|---|")
    for row in rows:
        spread = f"{row['low']:.3f} to {row['high']:.3f}"
        print(f"| {row['bytes']} | {row['off_us']:.1f} | {row['on_us']:.1f} | {row['median']:.3f} | {spread} "
              f"| {row['noise']:.1%} | {row['say']} |")  # fmt: skip
    print(
        f"Telemetry took {cost['telemetry_cpu_percent']:.2f} % of a core, drawing {cost['drawing_cpu_percent']:.2f} %."
    )
    about = {"date": date.today().isoformat(), "backend": options.backend, "ranks": ranks, "pairs": options.pairs}
    about |= {"repeats": options.repeats, "cores": os.cpu_count(), "load_before": round(load, 2), **cost}
    if options.out:
        options.out.write_text(json.dumps(about | {"torch": answer["torch"], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
