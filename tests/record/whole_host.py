"""All that is to be seen once on every GPU of a host, in one call: eight of them, or as many as there are.

    python tests/record/whole_host.py OUT [--ranks 8] [--backend gloo] [--seconds 1500] [PART ...]

1. `raw`: `tests/bench/raw_nccl.py`: bus bandwidth and latency beside NCCL asked without torch.
2. `stages`: `tests/bench/staged_test.py`: from the start to the verdict, with the matrix of pairs.
3. `slowed`: a matrix product beside rank 1, and whether the staged test names that GPU.
4. `tune`: `tests/bench/tune.py`, parts 1 to 4.
5. `plain`, `dump`, `healthy`: `tests/bench/attach.py`, three jobs at once.
6. `pages`: the guided report and that of 04, to be looked at.

Each part writes OUT/PART.log and what its bench keeps; OUT/whole_host.json has commands, seconds and exit statuses,
and is written after each part, so an ended call loses only the part that ran.  Over gloo it is a dry run: `raw` and
`slowed` need GPUs and are left out.  NVLink multicast stays off in all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent.run.processes import die_with_parent  # noqa: E402
from ncclkit.analysis import stages  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live import probe  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

ROOT = Path(__file__).parents[2]
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0"}
"""Of every process that this script starts: some hosts must not use NVLink multicast."""
ON_GPUS = ("raw", "slowed")
"""Parts that say nothing without GPUs."""
DRY_WAYS = ["divergent_branch", "lock", "stopped"]
DRY_PROGRAMS = ["ddp_loop"]
"""Of the ways to hang, and of the healthy programs, what a dry run looks at."""
SLOWED = 1
"""The rank whose GPU a matrix product shares."""
PRODUCT = """
import torch
torch.cuda.set_device(int(__import__("sys").argv[1]))
side = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("begun", flush=True)
while True:
    side @ side
    torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Part:
    """A part that has ended: its command, how it ended and what it took."""

    name: str
    command: list[str]
    seconds: float
    status: int
    note: str = ""


def commands(out: Path, ranks: int, backend: str) -> dict[str, list[str]]:
    """Part → the words after this interpreter."""
    attach = ["tests/bench/attach.py", "--backend", backend, "--ranks", str(ranks)]
    ways, programs = list[str](), list[str]()
    if backend == "gloo":
        ways, programs = DRY_WAYS, DRY_PROGRAMS
    beside = [*attach, *ways, "--side-by-side", "3"]
    report = ["-m", "ncclkit", "report", "-p", f"ranks={ranks}", "--notebook"]
    return {
        "raw": ["tests/bench/raw_nccl.py", str(out / "raw_nccl.json")],
        "stages": ["tests/bench/staged_test.py", str(ranks), "--backend", backend],
        "slowed": [__file__, str(out), "--ranks", str(ranks), "--slowed"],
        "tune": ["tests/bench/tune.py", str(out / "tune.json"), "--parts", "1234"],
        "plain": [*beside, "--out", str(out / "attach.json")],
        "dump": [*beside, "--dump", "--out", str(out / "attach-dump.json")],
        "healthy": [*attach, *programs, "--healthy", "--looks", "1", "--out", str(out / "healthy.json")],
        "guided": [*report, "guided", "--case", str(out / "guided")],
        "tuning": [*report, "04_tuning", "--case", str(out / "tuning")],
    }


def run_part(name: str, words: list[str], out: Path, seconds: float) -> Part:
    """The part's bench, at most so many seconds; what it prints is in OUT/NAME.log."""
    begun = time.monotonic()
    command = [sys.executable, *words]
    with open(out / f"{name}.log", "wb") as log:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | MULTICAST_OFF,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        try:
            status = child.wait(seconds)
            note = ""
        except subprocess.TimeoutExpired:
            child.terminate()
            status = child.wait(30)
            note = f"ended after its {seconds:.0f} s"
    took = round(time.monotonic() - begun, 1)
    return Part(name, ["python", *words], took, status, note)


@contextmanager
def product_beside(gpu: int) -> Iterator[None]:
    """A process that multiplies matrices on that GPU until the block ends."""
    words = [sys.executable, "-c", PRODUCT, str(gpu)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    try:
        assert child.stdout is not None
        if child.stdout.readline() != b"begun\n":
            raise RuntimeError(f"the matrix product on GPU {gpu} did not begin")
        yield
    finally:
        child.kill()
        child.wait()


def is_slowed_rank_named(ranks: int, out: Path) -> bool:
    """Whether the staged test beside a matrix product names that GPU's rank."""
    case = Case.open(out / "slowed")
    options = ProbeOptions(ranks=ranks, backend="nccl", stages=True, repeats=5)
    with product_beside(SLOWED):
        asyncio.run(probe.probe(case, options))
    said = stages.staged_test(case).summary
    print(said)
    return f"rank {SLOWED}" in said.lower() or f"gpu {SLOWED}" in said.lower()


def head_of(out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Date, hardware and versions, and those parts that an earlier call made."""
    about = about_machine(asyncio.run(local.check_interpreter(sys.executable)))
    known: dict[str, Any] = {}
    place = out / "whole_host.json"
    if place.exists():
        known = json.loads(place.read_text())["parts"]
    asked = {"ranks": options.ranks, "backend": options.backend}
    return {"date": date.today().isoformat()} | about | asked | {"parts": known}


def main() -> int:
    """Run the parts; 1 where one missed its bars or did not end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--seconds", type=float, default=1500.0, help="of all parts together")
    parser.add_argument("--slowed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.update(MULTICAST_OFF)
    if options.slowed:
        return int(not is_slowed_rank_named(options.ranks, out))
    known = commands(out, options.ranks, options.backend)
    chosen = options.parts or list(known)
    wrong = sorted(set(chosen) - set(known))
    if wrong:
        parser.error(f"no part is called {wrong[0]}; there are {', '.join(known)}")
    if options.backend == "gloo":
        chosen = [name for name in chosen if name not in ON_GPUS]
    result = head_of(out, options)
    until = time.monotonic() + options.seconds
    for name in chosen:
        left = until - time.monotonic()
        if left < 1:
            print(f"{name}: no time was left")
            continue
        part = run_part(name, known[name], out, left)
        result["parts"][name] = asdict(part)
        (out / "whole_host.json").write_text(json.dumps(result, indent=1) + "\n")
        print(f"{name}: status {part.status} after {part.seconds} s {part.note}".rstrip(), flush=True)
    statuses = [result["parts"][name]["status"] for name in chosen if name in result["parts"]]
    return int(len(statuses) < len(chosen) or any(statuses))


if __name__ == "__main__":
    sys.exit(main())
