"""What a cluster costs, on a real Slurm of this machine that this script starts and ends.

    python -m tests.bench.cluster FILE.json [--parts submit facts ranks hosts]

- `submit`: seconds from the command to the first measured size of a live test on two nodes, through `ncclkit submit`
  and inside an allocation, by turns; submitting may add ten.
- `facts`: facts of 16 nodes (16 slurmd) read and compared, and whether every node's came.
- `ranks`: an all_reduce of 64 ranks on 16 nodes over gloo, at small sizes.
- `hosts`: the facts of 1,024 hosts as they come (JSON lines of simulated streams) read, compared and drawn, in five
  seconds.

Each part is written to FILE as soon as it is done, with the load of the machine.  Exit status 1 where a bar is missed.
Needs root, Slurm and munge, but for `hosts`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ncclkit.agent import wire
from ncclkit.analysis.consistency import compare
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, from_dict
from ncclkit.live.launch import local
from ncclkit.views.facts import consistency_view
from tests.bench import flight
from tests.fleet import fleet
from tests.live.slurm_cluster import cluster
from tests.record.gpu import about_machine

LATER, DRAWN = 10.0, 5.0
"""Seconds that submitting may add; and in which the facts of all hosts are compared and drawn."""
NODES, RANKS, HOSTS = 16, 64, 1024
ODD: dict[str, dict[str, Any]] = {"node0417": {"gpu.5.nvlink.links": 17, "software.nccl": "2.26.2"}}
COMMAND = [sys.executable, "-m", "ncclkit"]


def main() -> int:
    """Run the parts that were asked for; returns 1 where one of them misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=3, help="of part submit (default 3)")
    asked = parser.parse_args()
    known: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    known |= about_machine(asyncio.run(local.check_interpreter(sys.executable))) | {"hardware": flight.cpu()}
    known["kernel"] = platform.release()
    for name in asked.parts:
        about = {"date": time.strftime("%Y-%m-%d %H:%M"), "load": round(os.getloadavg()[0], 1)}
        known[name] = about | PARTS[name](asked.rounds)
        asked.out.write_text(json.dumps(known, indent=1) + "\n")
        print(name, json.dumps(known[name]), flush=True)
    return int(not all(known[name]["good"] for name in asked.parts))


@contextmanager
def _slurm(nodes: int) -> Any:
    """A cluster, and the folder that its nodes share; the processes of this one are its clients."""
    with tempfile.TemporaryDirectory(prefix="ncclkit-cluster-") as place, cluster(Path(place) / "slurm", nodes) as env:
        os.environ.update(env, GLOO_SOCKET_IFNAME="lo")
        yield Path(place)


def submit(rounds: int) -> dict[str, Any]:
    """How much later the first number comes through `ncclkit submit`."""
    seconds: dict[str, list[float]] = {"allocation": [], "submit": []}
    with _slurm(2) as place:
        test = ["probe", "--max-bytes", "4KiB", "--case", str(place / "case")]
        ways = {"allocation": ["salloc", "-N2", "-n2", *COMMAND, *test], "submit": [*COMMAND, "submit", "-N2", *test]}
        _first(ways["allocation"])  # reads the facts of the nodes
        for _ in range(rounds):
            for name, words in ways.items():
                seconds[name].append(round(_first(words), 2))
    later = statistics.median(seconds["submit"]) - statistics.median(seconds["allocation"])
    return {"seconds": seconds, "later": round(later, 2), "most": LATER, "good": later <= LATER}


def _first(words: list[str]) -> float:
    """Seconds until a command says that rank 0 measures its second size."""
    begun, found = time.monotonic(), 0.0
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if not found and "size 64 " in line:
                found = time.monotonic() - begun
        if process.wait(timeout=300) or not found:
            raise RuntimeError(f"{' '.join(words)} measured nothing")
    return found


def facts(rounds: int) -> dict[str, Any]:
    """Facts of all nodes, once."""
    with _slurm(NODES) as place:
        begun = time.monotonic()
        words = ["inspect", "--case", str(place / "case")]
        done = subprocess.run(
            ["salloc", f"-N{NODES}", f"-n{NODES}", *COMMAND, *words], capture_output=True, text=True, timeout=600
        )
        seconds, case = time.monotonic() - begun, Case.open(place / "case")
    hosts = {fact.host for fact in case.facts if fact.name == "host.kernel"}
    found = compare(case.facts)
    told = {"nodes": NODES, "facts": len(case.facts), "seconds": round(seconds, 1), "said": found.summary}
    return told | {"good": done.returncode in (0, 1) and len(hosts) == NODES}


def ranks(rounds: int) -> dict[str, Any]:
    """An all_reduce of all ranks, four on each node."""
    with _slurm(NODES) as place:
        begun = time.monotonic()
        words = ["--ranks", str(RANKS), "--max-bytes", "4KiB", "--timeout", "500", "--case", str(place / "case")]
        done = subprocess.run(
            ["salloc", f"-N{NODES}", f"-n{NODES}", *COMMAND, "probe", *words],
            capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        seconds, case = time.monotonic() - begun, Case.open(place / "case")
    rows = [{"bytes": m.bytes, "ranks": m.ranks, "time_us": m.time_us, "wrong": m.wrong} for m in case.measurements]
    good = bool(rows) and all(row["ranks"] == RANKS and row["wrong"] == 0 for row in rows)
    said = (done.stdout + done.stderr).strip().splitlines()
    return {"nodes": NODES, "seconds": round(seconds, 1), "measured": rows, "said": said[0][:200], "good": good}


def hosts(rounds: int) -> dict[str, Any]:
    """Facts of many hosts, from the lines that their agents send to the picture."""
    lines = [json.dumps({"ncclkit": wire.VERSION, "kind": "fact", **_row(fact)}).encode() for fact in fleet(HOSTS, ODD)]
    times = {"begun": (time.perf_counter(), time.process_time())}
    case = Case()
    case.facts = [from_dict(Fact, record) for record in map(wire.parse_record, lines) if record is not None]
    times["read"] = time.perf_counter(), time.process_time()
    found = compare(case.facts)
    times["compared"] = time.perf_counter(), time.process_time()
    page = str(consistency_view(case).static())
    times["drawn"] = time.perf_counter(), time.process_time()
    walls, cpus = zip(*times.values(), strict=True)
    steps = [*times][1:]
    told = {"hosts": HOSTS, "facts": len(lines), "said": found.summary, "page_kb": len(page) >> 10}
    told["seconds"] = {name: round(walls[i + 1] - walls[i], 2) for i, name in enumerate(steps)}
    told["cpu"] = {name: round(cpus[i + 1] - cpus[i], 2) for i, name in enumerate(steps)}
    later = min(walls[-1] - walls[1], cpus[-1] - cpus[1])  # a busy machine gives this process part of a core
    return told | {"most": DRAWN, "good": later < DRAWN and "node0417" in page}


def _row(fact: Fact) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in ("name", "value", "host", "source", "why")}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {"submit": submit, "facts": facts, "ranks": ranks, "hosts": hosts}

if __name__ == "__main__":
    sys.exit(main())
