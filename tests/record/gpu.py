"""Record real runs on this machine's GPUs: the samples that notebooks, tests and installed users share.

    python tests/record/gpu.py OUT [--ranks 4] [--split 2] [FAULT …]

Breaks the lab's small training job in each way on all GPUs (gloo with four
ranks where there is none, for a dry run), checks that each run ended as its
fault must, and writes one recording per fault to OUT/samples/; with --split,
NCCL takes the ranks for those of so many hosts, which share the GPUs.  Where no fault is named, the
live test's case folder goes to OUT/probe and this machine's facts to
OUT/machine.  Copy what you want to keep into ncclkit/evidence/samples/ and tests/machines/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.lab.faults import injection, recording
from ncclkit.live import probe  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402

HANG = "hang"
"""The late rank once more, but looked at while it hangs: the deadline comes before the collective's own timeout."""
ENDS = {"healthy": "done", "p2p_off": "done", "sockets_only": "done", HANG: "deadline"}
"""How a run must end; every other one must fail."""


async def main(out: Path, names: list[str], ranks: int, split: int) -> int:
    """Record each fault; returns how many runs did not end as they must."""
    answer = await local.check_interpreter(sys.executable)
    about = about_machine(answer)
    backend, ranks = ("nccl", ranks or answer["gpus"]) if answer["gpus"] else ("gloo", ranks or 4)
    wrong = 0
    for name in names:
        chosen = injection.fault("rank_late" if name == HANG else name)
        if backend not in chosen.backends:
            continue
        started = time.time()
        case = Case.open(out / "work" / name)
        timeout, deadline = (600, 40) if name == HANG else (12, 100)
        culprit = ranks // 2 if chosen.culprit is None else chosen.culprit
        asked: dict[str, Any] = {"ranks": ranks, "backend": backend, "culprit": culprit, "simulate_hosts": split}
        run = await injection.inject(case, chosen.name, timeout=timeout, deadline=deadline, **asked)
        if run.reason != ENDS.get(name, "failed"):
            wrong += 1
            print(f"WRONG END: {name}: {run.reason}", flush=True)
        recording.bundle(
            run, out / "samples" / (name if split == 1 else f"{name}_hosts"), about | {"fault": chosen.says}
        )
        print(f"{name}: {run.summary} [{time.time() - started:.0f} s]", flush=True)
    return wrong


def about_machine(answer: dict[str, Any]) -> dict[str, Any]:
    """Hardware and versions, for the recording's ``case.json``."""
    hardware = platform.processor() or platform.machine()
    if answer["gpus"]:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        lines = (
            subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.strip().splitlines()
        )
        name, driver = lines[0].split(", ")
        used = "" if answer["gpus"] == len(lines) else f"{answer['gpus']} of "  # fewer by CUDA_VISIBLE_DEVICES
        hardware = f"{used}{len(lines)} x {name}, driver {driver}"
    return {"hardware": hardware, "torch": answer["torch"], "python": answer["python"], "cores": os.cpu_count()}


async def live(out: Path) -> None:
    """The live test over the whole range of sizes, and the facts."""
    case = await probe.inspect_hosts(Case.open(out / "probe"))
    largest = 1 << 30 if case.fact("gpu.count") else 16 * probe.MIB
    run = await probe.probe(case, ProbeOptions(max_bytes=largest, repeats=20, timeout=180))
    print(run.summary, json.dumps([(m.bytes, round(m.time_us, 1), m.busbw) for m in run.measurements]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--split", type=int, default=1)
    options = parser.parse_args()
    target = options.out.absolute()
    failures = asyncio.run(main(target, options.faults or [*injection.FAULTS, HANG], options.ranks, options.split))
    if not options.faults:
        asyncio.run(live(target))
        record = [sys.executable, "-m", "tests.record.machine", str(target / "machine")]
        subprocess.run(record, check=True, timeout=120, cwd=Path(__file__).parents[2])
    sys.exit(1 if failures else 0)
