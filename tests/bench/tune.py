"""How a sweep of settings does on real GPUs: ``python tests/bench/tune.py OUT.json`` (gloo and small without GPUs).

1. Forty settings, seven sizes, three collectives in one job: its seconds, and what is better.
2. All-equal candidates, seed by seed: how many sweeps claim a difference that is not there.
3. A gain that is there (32 channels, the largest message), run by run: how often it is found.
4. A bad environment, variable by variable: the cost by `--inherited`, beside that of another sweep without it.
5. The planner of GPU memory beside what torch's allocator held at most, in training steps of a small model on one GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core import budgets  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.tuning import Comparison, Setting, Sweep, carriers, setting  # noqa: E402
from ncclkit.live import probe, tune  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

MIB = 1 << 20
OPS = "all_reduce,all_gather,reduce_scatter"
BAD = ("NCCL_PROTO=Simple", "NCCL_ALGO=Tree", "NCCL_MAX_NCHANNELS=1", "NCCL_P2P_DISABLE=1")


async def main() -> int:
    """Make every part that there is time for, and write each as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--parts", default="12345")
    parser.add_argument("--jobs", type=int, default=tune.JOBS, help="of each setting that a process keeps")
    told = parser.parse_args()
    tune.JOBS = told.jobs
    answer = await local.check(sys.executable)
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), **about_machine(answer)}
    for name, part in {"1": whole, "2": equal, "3": gain, "4": environment, "5": memory}.items():
        if name in told.parts:
            began = time.monotonic()
            found[part.__name__] = await part(told, bool(answer["gpus"]))
            found[part.__name__]["seconds_all"] = round(time.monotonic() - began, 1)
            told.out.write_text(json.dumps(found, indent=1) + "\n")
            print(part.__name__, json.dumps(found[part.__name__])[:1500], flush=True)
    return 0


def options(gpus: bool, op: str = "all_reduce") -> ProbeOptions:
    """Of a sweep on all GPUs, or with two ranks on the CPU."""
    return ProbeOptions(op=op, timeout=170) if gpus else ProbeOptions(op=op, backend="gloo", ranks=2, timeout=170)


async def swept(settings: list[Setting], asked: ProbeOptions, sizes: list[int], **more: Any) -> Sweep:
    """A sweep in a case of its own, with its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        return await tune.sweep(Case.open(folder), settings, asked, sizes, **more)


async def whole(told: argparse.Namespace, gpus: bool) -> dict[str, Any]:
    """The settings that share a job, on seven sizes of three collectives."""
    wanted = [one for one in tune.candidates((), await probe.plan(Case(), options(gpus))) if one.per_communicator]
    wanted += [Setting({"NCCL_ALGO": a, "NCCL_PROTO": p}, {"min_ctas": n, "max_ctas": n})
               for a in ("Ring", "Tree") for p in ("LL128", "Simple") for n in (4, 8, 16, 24, 32)]  # fmt: skip
    sizes = [*tune.SIZES["nccl"]] if gpus else [8, 65536]
    sweep = await swept(wanted if gpus else [], options(gpus, OPS), sizes)
    return told_of(sweep) | {"settings": len(wanted), "sizes": len(sizes), "files": carriers(sweep)}


async def equal(told: argparse.Namespace, gpus: bool) -> dict[str, Any]:
    """Six settings that change nothing, in sweeps of their own."""
    sizes = [8, 65536, MIB, 64 * MIB] if gpus else [65536]
    claims: list[list[dict[str, Any]]] = []
    same = [Setting(risk=str(number)) for number in range(6 if gpus else 2)]
    for _ in range(told.seeds):
        sweep = await swept(same, options(gpus), sizes)
        claims.append([row(one) for one in sweep.comparisons if one.better or one.worse])
    return {"sweeps": told.seeds, "sweeps_that_claim": sum(map(bool, claims)), "claims": claims}


async def gain(told: argparse.Namespace, gpus: bool) -> dict[str, Any]:
    """32 channels for 256 MiB: 4.4 % on two H200 by the reference that the project was given."""
    sizes = [256 * MIB] if gpus else [65536]
    rows = []
    for _ in range(told.runs):
        sweep = await swept(
            [setting("channels=32")] if gpus else [setting("GLOO_SOCKET_IFNAME=lo")], options(gpus), sizes
        )
        rows += [row(one) | {"better": one.better} for one in sweep.comparisons]
    return {"runs": told.runs, "found": sum(one["better"] for one in rows), "rows": rows}


async def environment(told: argparse.Namespace, gpus: bool) -> dict[str, Any]:
    """Each variable of a bad environment: its cost, and the same measured once more in a good one."""
    if not gpus:
        return {}
    sizes = [8, 65536, 16 * MIB, 256 * MIB]
    os.environ.update(dict(word.split("=") for word in BAD))
    together = await swept([], options(gpus), sizes, inherited=True)
    for word in BAD:
        del os.environ[word.split("=")[0]]
    again = await swept([setting(word) for word in BAD], options(gpus), sizes)
    alone = {(str(one.setting), one.bytes): one.gain for one in again.comparisons}
    rows = [row(one) | {"again": round(alone[str(one.setting), one.bytes], 4)} for one in together.comparisons]
    said = [together.effect_of(setting(word)) for word in BAD]
    return {"said": said, "rows": rows, "seconds": round(together.seconds, 1)}


async def memory(told: argparse.Namespace, gpus: bool) -> dict[str, Any]:
    """Planned and measured bytes of three batches."""
    rows = []
    for batch in (256, 4096, 32768) if gpus else ():
        code = MEMORY.replace("BATCH", str(batch))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        peak = int((await child.communicate())[0])
        plan = budgets.gpu_memory(8 * 2049 * 2048, 1, "ZeRO-1", "fp32, or autocast", 2 * 8 * 2048 * 4, batch, other=0)
        rows.append({"batch": batch, "planned": plan.value, "measured": peak, "off": round(plan.value / peak - 1, 3)})
    return {"rows": rows}


MEMORY = """
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.Sequential(*layers).cuda()
optimizer, rows = torch.optim.Adam(model.parameters(), foreach=True), torch.ones(BATCH, 2048, device="cuda")
for step in range(3):
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(torch.cuda.max_memory_allocated())
"""


def told_of(sweep: Sweep) -> dict[str, Any]:
    """Seconds, the answer, and where a setting is better."""
    rows = [row(one) for advantage in sweep.advantages for one in advantage.comparisons]
    lines = {"summary": sweep.summary, "advantages": [str(one) for one in sweep.advantages], "rows": rows}
    return {"seconds": round(sweep.seconds, 1), "tried": sweep.tried, "refused": dict(sweep.refused), **lines}


def row(one: Comparison) -> dict[str, Any]:
    """One comparison in numbers."""
    low, high = one.interval
    what = {"setting": str(one.setting), "op": one.op, "bytes": one.bytes, "rounds": len(one.with_us)}
    return what | {"gain": round(one.gain, 4), "low": round(low, 4), "high": round(high, 4)}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
