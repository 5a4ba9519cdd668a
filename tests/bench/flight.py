"""Flight Recorder dumps: time and memory of ncclkit and of `torchfrtrace`, on the same files in the same run.

    python tests/bench/flight.py [--ranks 256] [--entries 2000] [--scale 1024 4096] [--json FILE]

Dumps are written byte for byte as torch's own C++ pickler writes them.  The first set has one process group, the case
that `torchfrtrace` is fastest at; the sets of `--scale` have a world group, tensor-parallel groups of 8 and
data-parallel groups across them, and are read by ncclkit alone.  The last rank never enters the last collective.
Every figure is of a process of its own, start included; memory is the sum of the largest resident sets of its
processes.  Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TENSOR = 8
"""Ranks of one tensor-parallel group."""
SITES = 6
"""Places of the program that call a collective."""
DEPTH = 12
"""Frames of one stack."""
PEAK = 500
"""Megabytes that 1,024 ranks may take."""
READ = """
import resource, sys
from concurrent.futures import ProcessPoolExecutor
from ncclkit import evidence
workers = int(sys.argv[2])
pool = ProcessPoolExecutor(workers) if workers > 1 else None
events = evidence.read([sys.argv[1]], executor=pool).events
if pool:
    pool.shutdown()
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("peak", (peaks[0] + (workers > 1) * workers * peaks[1]) // 1024)
for event in events:
    if event.kind not in ("flight.dump", "flight.late"):
        print(event.kind, event.data.seq, event.data.missing)
"""


@dataclass(frozen=True)
class Run:
    """What one command took."""

    name: str
    ranks: int
    entries: int
    wall: float
    """Seconds."""
    cpu: float
    """User and system seconds of the process and its workers."""
    peak: int
    """Megabytes, of all its processes together."""
    verdict: str

    @property
    def rate(self) -> float:
        """Entries per second of wall time."""
        return self.ranks * self.entries / self.wall


@dataclass(frozen=True)
class Bar:
    """What is asked for, and what was measured."""

    what: str
    measured: str
    passed: bool


class Pickler:
    """Plain values as torch's C++ pickler writes them: only strings and shared frames are remembered."""

    def __init__(self) -> None:
        self.out, self.strings, self.count = bytearray(b"\x80\x02"), dict[str, int](), 0

    def remember(self) -> int:
        number, self.count = self.count, self.count + 1
        self.out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        return number

    def get(self, number: int) -> None:
        self.out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def write(self, value: Any) -> None:
        if isinstance(value, str):
            if value in self.strings:
                self.get(self.strings[value])
                return
            raw = value.encode()
            self.out += b"X" + struct.pack("<I", len(raw)) + raw
            self.strings[value] = self.remember()
        elif isinstance(value, dict):
            self.out += b"}("
            for key, item in value.items():
                self.write(key)
                self.write(item)
            self.out += b"u"
        elif isinstance(value, list):
            self.out += b"]("
            for item in value:
                self.write(item)
            self.out += b"e"
        elif isinstance(value, tuple):
            for item in value:
                self.write(item)
            self.out += b"\x86"
        else:
            self.scalar(value)

    def scalar(self, value: Any) -> None:
        if value is None or isinstance(value, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)


class Frame(dict[str, Any]):
    """A stack frame; torch writes each place of the program once."""


class Dump(Pickler):
    """One rank's dump; `stamps` are the places in it where a time stands."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: dict[int, int] = {}
        self.stamps: list[int] = []

    def write(self, value: Any) -> None:
        if isinstance(value, Frame):
            if id(value) in self.frames:
                self.get(self.frames[id(value)])
                return
            super().write(dict(value))
            self.frames[id(value)] = self.remember()
        else:
            super().write(value)

    def scalar(self, value: Any) -> None:
        super().scalar(value)
        if type(value) is int and value > 1 << 60:
            self.stamps.append(len(self.out) - 8)


@cache
def stacks() -> list[list[Frame]]:
    """Stacks of the places that call collectives; they share their outer frames, as a program's do."""
    outer = [Frame(name=f"call_{i}", filename=f"/work/job/train_{i}.py", line=100 + i) for i in range(DEPTH - 2)]
    return [
        [
            Frame(name="all_reduce", filename="/env/torch/distributed/distributed_c10d.py", line=3000 + site),
            Frame(name=f"site_{site}", filename="/work/job/model.py", line=40 + site),
            *outer,
        ]
        for site in range(SITES)
    ]


def entries(count: int, groups: tuple[tuple[str, str], ...]) -> Iterator[dict[str, Any]]:
    """`count` entries in turn over the groups; the last one, of the world, is still open."""
    places, seqs = stacks(), dict.fromkeys(groups, 0)
    for number in range(count):
        group = groups[0] if number in (count - 1, count - 2) else groups[number % len(groups)]
        seqs[group] += 1
        done, size = number < count - 1, 1024 * (1 + number % 7)
        yield {
            "frames": places[number % SITES],
            "record_id": number,
            "pg_id": groups.index(group),
            "process_group": group,
            "thread_name": "python",
            "thread_id": "140196079120704",
            "collective_seq_id": seqs[group],
            "p2p_seq_id": 0,
            "op_id": seqs[group],
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1795227622633279857 + number * 10_000_000,
            "input_sizes": [[size, 4]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[size, 4]],
            "output_dtypes": ["BFloat16"],
            "state": "completed" if done else "started",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": 1795227622733279857 + number * 10_000_000 if done else None,
            "retired": done,
            "timeout_ms": 600000,
            "is_p2p": False,
        }


def members(rank: int, ranks: int, mixed: bool) -> dict[tuple[str, str], list[int]]:
    """The process groups of one rank."""
    first = rank - rank % TENSOR
    found = {("0", "default_pg"): list(range(ranks))}
    if mixed:
        found[f"tp{first}", "tensor"] = list(range(first, min(first + TENSOR, ranks)))
        found[f"dp{rank % TENSOR}", "data"] = list(range(rank % TENSOR, ranks, TENSOR))
    return found


def write_set(folder: Path, ranks: int, count: int, mixed: bool) -> int:
    """Dumps of `ranks` ranks of `count` calls; returns their bytes.

    What follows the names of a rank's groups is the same for all: it is written once, and gets each rank's times.
    """
    bodies: dict[tuple[int, int], tuple[bytes, list[int]]] = {}
    total = 0
    for rank in range(ranks):
        dump, groups, own = Dump(), members(rank, ranks, mixed), count - (rank == ranks - 1)
        dump.out += b"}("
        for word in ("version", "2.10", "pg_config"):
            dump.write(word)
        dump.write({name: {"name": name, "desc": desc, "ranks": str(m)} for (name, desc), m in groups.items()})
        for word in ("comm_lib_version", "2.28.9", "entries"):
            dump.write(word)
        head, key = bytes(dump.out), (dump.count, own)
        if key not in bodies:
            dump.out, dump.stamps = bytearray(), []
            dump.write(list(entries(count, tuple(groups)))[:own])
            bodies[key] = bytes(dump.out), dump.stamps
        body, stamps = bytearray(bodies[key][0]), bodies[key][1]
        for place in stamps:
            struct.pack_into("<q", body, place, struct.unpack_from("<q", body, place)[0] + rank * 1009 % 99_991)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(head + body + b"u.")
        total += len(head) + len(body)
    return total


def run(name: str, ranks: int, count: int, command: list[str]) -> Run:
    """Run one command to its end."""
    start = time.perf_counter()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        said.seek(0)
        lines = said.read().splitlines()
    if status:
        sys.exit(f"{' '.join(command[:3])}: exit status {process.returncode}\n" + "\n".join(lines[-20:]))
    told = [int(line.split()[1]) for line in lines if line.startswith("peak ")]
    peak = told[0] if told else usage.ru_maxrss // 1024
    verdict = [line for line in lines if line.startswith(("flight.", "Not all ranks", "missing ranks"))]
    return Run(name, ranks, count, wall, usage.ru_utime + usage.ru_stime, peak, "; ".join(verdict)[:200])


def ours(folder: Path, ranks: int, count: int, workers: int) -> Run:
    """ncclkit, end to end from files to events."""
    command = [sys.executable, "-c", READ, str(folder), str(workers)]
    return run(f"ncclkit, {workers} worker{'s' * (workers > 1)}", ranks, count, command)


def theirs(folder: Path, ranks: int, count: int) -> Run:
    """torchfrtrace, with what it prints kept."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    return run(f"torchfrtrace (torch {metadata.version('torch')})", ranks, count, command)


def measure(ranks: int, count: int, scale: list[int]) -> list[Run]:
    """All runs, each set written and removed in turn."""
    runs: list[Run] = []
    for size, mixed in ((ranks, False), *((size, True) for size in scale)):
        with tempfile.TemporaryDirectory() as name:
            print(f"writing {size} x {count} …", end=" ", flush=True, file=sys.stderr)
            print(f"{write_set(Path(name), size, count, mixed) >> 20} MB", file=sys.stderr)
            runs += [ours(Path(name), size, count, workers) for workers in (1, 2)]
            runs += [] if mixed else [theirs(Path(name), size, count)]
    return runs


def judge(runs: list[Run], scale: list[int]) -> list[Bar]:
    """The bars of the plan."""
    one, two, peer = runs[:3]
    last = f"[{one.ranks - 1}]"
    bars = [
        Bar("one core at least 2 x torchfrtrace", f"{peer.wall / one.wall:.1f} x", peer.wall >= 2 * one.wall),
        Bar("two cores at least 3.5 x torchfrtrace", f"{peer.wall / two.wall:.1f} x", peer.wall >= 3.5 * two.wall),
        Bar("the same verdict", one.verdict, last in one.verdict and f"{{{one.ranks - 1}}}" in peer.verdict),
    ]
    by_size = {run.ranks: run for run in runs[3:] if run.name == "ncclkit, 1 worker"}
    for size in scale:
        peak = max(run.peak for run in runs[3:] if run.ranks == size)
        if size <= 1024:
            bars.append(Bar(f"{size} ranks within {PEAK} MB", f"{peak} MB", peak <= PEAK))
        elif scale[0] in by_size:
            times = by_size[size].wall / by_size[scale[0]].wall / (size / scale[0])
            bars.append(Bar(f"linear from {scale[0]} to {size} ranks (1.2)", f"{times:.2f}", times <= 1.2))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=256, help="ranks of the set that torchfrtrace reads too")
    parser.add_argument("--entries", type=int, default=2000, help="calls of each rank")
    parser.add_argument(
        "--scale", type=int, nargs="*", default=[1024, 4096], help="ranks of the sets for ncclkit alone"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    runs = measure(options.ranks, options.entries, options.scale)
    bars = judge(runs, options.scale)
    print(f"Python {platform.python_version()}, {cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| | ranks x calls | wall s | CPU s | calls/s | peak MB |\n|---|---|---|---|---|---|")
    for r in runs:
        print(f"| {r.name} | {r.ranks} x {r.entries} | {r.wall:.1f} | {r.cpu:.1f} | {r.rate:,.0f} | {r.peak} |")
    print("\n| bar | measured | |\n|---|---|---|")
    for bar in bars:
        print(f"| {bar.what} | {bar.measured} | {'pass' if bar.passed else 'FAIL'} |")
    if options.json:
        about: dict[str, Any] = {
            "date": datetime.now(timezone.utc).date().isoformat(),
            "cpu": cpu(),
            "cores": os.cpu_count(),
        }
        about |= {"load": os.getloadavg()[0]}
        about |= {"python": platform.python_version(), "torch": metadata.version("torch")}
        value = about | {"runs": [asdict(r) for r in runs], "bars": [asdict(bar) for bar in bars]}
        options.json.write_text(json.dumps(value, indent=1) + "\n")
    sys.exit(not all(bar.passed for bar in bars))


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
