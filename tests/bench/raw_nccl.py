"""The live test beside raw NCCL on the same GPUs in the same run: what measuring from Python costs.

    python tests/bench/raw_nccl.py [OUT.json [OP …]]

Builds ``raw_nccl.c`` with the C compiler (no CUDA headers needed) and runs both for all_reduce, all_to_all and
send/recv.  Bars: busbw within 2 % from 64 MiB up; with graph replay time within 10 % from 8 B to 64 KiB.  The eager
difference is what PyTorch adds.  Needs two GPUs; exits with 1 where a bar is missed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.model import Measurement  # noqa: E402
from ncclkit.live import probe  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

OPS = ("all_reduce", "all_to_all", "send_recv")
LARGEST = 1 << 30
LARGE, SMALL = 64 << 20, 64 << 10
LIBRARIES = (
    "import torch; maps = [line.split()[-1] for line in open('/proc/self/maps')]; "
    "print(*(next(m for m in maps if name in m) for name in ('libcudart', 'libnccl')))"
)


def raw(ranks: int, op: str, sizes: list[int], folder: Path) -> dict[int, tuple[float, float]]:
    """Bytes → (eager, graph) microseconds, as raw NCCL takes them."""
    program = folder / "raw_nccl"
    if not program.exists():
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-o", program, source, "-ldl", "-lpthread"], check=True, timeout=60)
    found = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=True, timeout=120)
    command = [str(program), *found.stdout.split(), str(ranks), op, *map(str, sizes)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    rows = [line.split() for line in ended.stdout.splitlines() if line[:1].isdigit()]
    return {int(size): (float(eager), float(graph)) for size, eager, graph in rows}


def row(m: Measurement, eager: float, graph: float) -> dict[str, Any]:
    """One line of the comparison, and whether its bar is kept (None: no bar)."""
    ratio = m.graph_us / graph if m.graph_us and graph else None
    kept = None
    if m.bytes >= LARGE:
        kept = eager / m.time_us > 0.98
    elif m.bytes <= SMALL and ratio:
        kept = ratio < 1.10
    ours, theirs = {"eager_us": m.time_us, "graph_us": m.graph_us}, {"eager_us": eager, "graph_us": graph or None}
    return {"op": m.op, "bytes": m.bytes, "ours": ours, "raw": theirs, "busbw": m.busbw, "kept": kept}


async def main(out: Path | None, ops: tuple[str, ...]) -> int:
    """Run both, print the table, keep the figures; returns the number of bars that were missed."""
    answer = await local.check_interpreter(sys.executable)
    if answer["gpus"] < 2:
        print("Raw NCCL needs two GPUs; there are not as many here.")
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        case = Case.open(Path(scratch, "case"))
        for op in ops:
            options = ProbeOptions(backend="nccl", op=op, max_bytes=LARGEST, repeats=15, timeout=150)
            run = await probe.probe(case, options)
            timed = {m.bytes: m for m in run.measurements}
            base = raw(answer["gpus"], op, list(timed), Path(scratch))
            rows += [row(m, *base[size]) for size, m in timed.items()]
    print("| op | bytes | ours µs | raw µs | ours in a graph | raw in a graph | busbw GB/s | bar |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for r in rows:
        ours, theirs = r["ours"], r["raw"]
        cells = (ours["eager_us"], theirs["eager_us"], ours["graph_us"], theirs["graph_us"], r["busbw"])
        said = {None: "", True: "kept", False: "MISSED"}[r["kept"]]
        print(f"| {r['op']} | {r['bytes']} | {' | '.join(f'{c:.1f}' if c else '' for c in cells)} | {said} |")
    if out:
        about = {"date": time.strftime("%Y-%m-%d"), **about_machine(answer), "ranks": answer["gpus"]}
        out.write_text(json.dumps({**about, "rows": rows}, indent=1))
    return sum(r["kept"] is False for r in rows)


if __name__ == "__main__":
    sys.exit(min(1, asyncio.run(main(Path(sys.argv[1]) if sys.argv[1:] else None, (*sys.argv[2:],) or OPS))))
