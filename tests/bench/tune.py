"""How a sweep of settings does on real GPUs: ``python tests/bench/tune.py OUT.json`` (gloo and small without GPUs).

1. Forty settings, seven sizes, three collectives in one job, with what wins under computation: is it under 120 s?
2. All-equal candidates, seed by seed: how many sweeps claim a difference that is not there.
3. A gain that is there (32 channels, the largest message), run by run: how often it is found.
4. A bad environment: is each variable named, with a cost within 20 % of what live tests of their own show (jobs with
   that variable alone, and with none), and is a live test as fast as those with what stays once `nccl.env` has undone
   it?  What gains on one size and costs on another stays.
5. The planner of GPU memory beside what torch's allocator held at most, in training steps of a small model on one GPU.
6. The planner of shared memory beside what a job of two ranks takes of /dev/shm, where they may not copy directly.

With one GPU, `--share-gpu`: two ranks on the card, each as a host of its own, so messages go through sockets.  That
tells whether what is claimed is so, not how fast NCCL is between GPUs.  There the bad environment is another one, the
gain is what it costs, several sweeps share a job as sizes that differ by 64 bytes, and part 6 cannot be.

OUT.json is kept: parts that are not asked for stay as they are, and each row is written as soon as it is there.
A sweep with `--inherited` is told its variables: some machines must keep NCCL_NVLS_ENABLE=0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core import budgets  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.tuning import Comparison, Setting, Sweep, config_files, setting  # noqa: E402
from ncclkit.live import probe, tune  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

MIB = 1 << 20
OPS = "all_reduce,all_gather,reduce_scatter"
BAD = ("NCCL_PROTO=Simple", "NCCL_ALGO=Tree", "NCCL_MAX_NCHANNELS=1", "NCCL_P2P_DISABLE=1")
BAD_SHARED = ("NCCL_PROTO=LL", "NCCL_ALGO=Tree")
"""What may cost something between ranks that share a card: only their sockets count."""
PER_JOB = 5
"""Sweeps of a job, where ranks share a card."""
TURNS, NOISE = 2, 0.05
"""Live tests of each environment, and the least share by which two that are alike differ."""


class Out:
    """The file of results."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        known = json.loads(path.read_text()) if path.exists() else {}
        self.path, self.found, self.began = path, known | about, time.monotonic()

    def keep(self, part: str, **told: Any) -> None:
        """Write what is known of a part."""
        self.found[part] = told | {"seconds_all": round(time.monotonic() - self.began, 1)}
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")


async def main() -> int:
    """Make the parts that are asked for; returns 1 where one of them does not hold what it should."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--parts", default="")
    parser.add_argument("--share-gpu", action="store_true", help="two ranks on one GPU")
    parser.add_argument("--bad", nargs="+", default=(), metavar="NAME=VALUE", help="of the bad environment")
    parser.add_argument("--jobs", type=int, default=tune.JOBS, help="of each setting that a process keeps")
    told = parser.parse_args()
    tune.JOBS = told.jobs
    answer = await local.check_interpreter(sys.executable)
    told.gpus, parts = bool(answer["gpus"]), told.parts or ("12345" if told.share_gpu else "123456")
    if answer["gpus"] == 1 and not told.share_gpu and parts != "5":
        parser.error("one GPU compares nothing but itself: --share-gpu, or --parts 5")
    about = {"date": time.strftime("%Y-%m-%d"), **about_machine(answer)}
    out = Out(told.out, about | ({"shared": SHARED_CARD} if told.share_gpu else {}))
    wrong = 0
    for name, part in {"1": whole, "2": equal, "3": gain, "4": environment, "5": memory, "6": shared}.items():
        if name in parts:
            out.began = time.monotonic()
            await part(told, out)
            row = out.found[part.__name__]
            wrong += not row["holds"]
            print(part.__name__, json.dumps(row)[:1500], flush=True)
    return min(wrong, 1)


SHARED_CARD = "two ranks on one card, as two simulated hosts: messages go through sockets, and the ranks take turns"


def options(told: argparse.Namespace, op: str = "all_reduce") -> ProbeOptions:
    """Of a sweep on all GPUs, of two ranks that share one, or of two ranks on the CPU."""
    if not told.gpus:
        return ProbeOptions(op=op, backend="gloo", ranks=2, timeout=170)
    sharing = 2 if told.share_gpu else 1
    return ProbeOptions(op=op, timeout=170, simulate_hosts=sharing, ranks=2 if told.share_gpu else 0)


async def swept(settings: list[Setting], asked: ProbeOptions, sizes: list[int], **more: Any) -> Sweep:
    """A sweep in a case of its own, with its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        return await tune.sweep(Case.open(folder), settings, asked, sizes, **more)


async def repeated(
    told: argparse.Namespace, settings: list[Setting], sizes: list[int], count: int
) -> AsyncIterator[list[Comparison]]:
    """The comparisons of so many sweeps; where ranks share a card, `PER_JOB` of them share a job."""
    together = PER_JOB if told.share_gpu else 1
    for start in range(0, count, together):
        turns = range(min(together, count - start))
        sweep = await swept(settings, options(told), [size + 64 * turn for size in sizes for turn in turns])
        for turn in turns:
            mine = [one for one in sweep.comparisons if one.bytes - 64 * turn in sizes]
            yield [replace(one, comparisons=len(mine)) for one in mine]


async def whole(told: argparse.Namespace, out: Out) -> None:
    """The settings that share a job, on seven sizes of three collectives."""
    usual = await probe.plan_test(Case(), options(told))
    wanted = [one for one in tune.candidates((), usual) if one.per_communicator and (one.env or not told.share_gpu)]
    full = told.gpus and not told.share_gpu
    wanted += [Setting({"NCCL_ALGO": a, "NCCL_PROTO": p}, {"min_ctas": n, "max_ctas": n})
               for a in ("Ring", "Tree") for p in ("LL128", "Simple") for n in (4, 8, 16, 24, 32)] * full  # fmt: skip
    sizes = [*tune.SIZES["nccl"]] if full else [2 * MIB, 8 * MIB] if told.gpus else [8, 65536]
    began = time.monotonic()
    sweep = await swept(wanted, options(told, OPS), sizes)
    seconds = round(time.monotonic() - began, 1)
    least = 40 if full else 5 if told.gpus else 1
    row = row_of(sweep) | {"settings": len(wanted), "sizes": len(sizes), "under_computation": len(sweep.beside)}
    holds = seconds < 120 and sweep.tried >= least
    files = {name: file.text for name, file in config_files(sweep).items()}
    out.keep("whole", **row, seconds_with_start=seconds, under_120_s=seconds < 120, holds=holds, files=files)


async def equal(told: argparse.Namespace, out: Out) -> None:
    """Six settings that change nothing, in sweeps of their own; two where few groups fit on a card or on cores."""
    full = told.gpus and not told.share_gpu
    sizes = [8, 65536, MIB, 64 * MIB] if full else [2 * MIB] if told.gpus else [65536]
    same = [Setting(risk=str(number)) for number in range(6 if full else 2)]
    claims: list[list[dict[str, Any]]] = []
    async for rows in repeated(told, same, sizes, told.seeds):
        claims.append([row(one) for one in rows if one.better or one.worse])
        claim = sum(map(bool, claims))
        out.keep("equal", sweeps=len(claims), sweeps_that_claim=claim, holds=claim <= 1, claims=claims)


async def gain(told: argparse.Namespace, out: Out) -> None:
    """32 channels for 256 MiB: 4.4 % on two H200 by the reference that the project was given.

    On a shared card: to be without a bad variable; over gloo there is nothing to gain.
    """
    wanted, sizes = [setting("GLOO_SOCKET_IFNAME=lo")], [65536]
    if told.gpus:
        wanted, sizes = [setting("channels=32")], [256 * MIB]
    planted = dict([bad(told)[0].split("=")]) if told.share_gpu else {}
    if planted:
        wanted, sizes = [Setting(without=tuple(planted))], [2 * MIB if told.gpus else 65536]
    os.environ.update(planted)
    rows: list[dict[str, Any]] = []
    async for found in repeated(told, wanted, sizes, told.runs):
        rows += [row(one) | {"better": one.better} for one in found]
        better = sum(one["better"] for one in rows)
        holds = better >= 0.9 * len(rows) if told.gpus else better <= 0.1 * len(rows)
        out.keep("gain", runs=len(rows), found=better, holds=holds, planted=planted, rows=rows)
    for name in planted:
        del os.environ[name]


def bad(told: argparse.Namespace) -> tuple[str, ...]:
    """The variables of the bad environment."""
    usual = (BAD_SHARED if told.share_gpu else BAD) if told.gpus else ("GLOO_SOCKET_IFNAME=lo,lo",)
    return tuple(told.bad) or usual


async def environment(told: argparse.Namespace, out: Out) -> None:
    """Each variable of a bad environment beside live tests of its own; then the live test once it is undone."""
    words, sizes = bad(told), (8, 32768, 16 * MIB, 256 * MIB) if told.gpus else (8, 32768)
    sizes = (2 * MIB, 16 * MIB) if told.share_gpu and told.gpus else sizes
    planted = dict(word.split("=") for word in words)
    os.environ.update(planted)
    sweep = await swept([setting(word) for word in words], options(told), [*sizes], inherited=True)
    files = config_files(sweep)
    undo = files["nccl.env"].text if "nccl.env" in files else ""
    about = {"seconds": round(sweep.seconds, 1), "nccl_env": undo}
    about |= {"said": [sweep.effect_of(setting(word)) for word in words]}
    hows: dict[str, tuple[dict[str, str], str]] = {"": ({}, "")}
    hows |= {word: (dict([word.split("=")]), "") for word in words}
    stay = {name: value for name, value in planted.items() if name not in sweep.harmful}
    stays = str(Setting(stay)) if stay else ""
    hows |= {"all": (planted, ""), "undone": (planted, undo), stays: (stay, "")}
    laps: dict[str, list[dict[int, float]]] = {how: [] for how in hows}
    for turn in range(TURNS):
        for how in [*hows][:: -1 if turn % 2 else 1]:
            env, lines = hows[how]
            laps[how].append(await timed(told, {n: v for n, v in os.environ.items() if n not in planted} | env, lines))
            known = judged(sweep, laps, sizes, stays) if all(laps.values()) else {}
            out.keep("environment", **about, holds=False, **known)
    found = judged(sweep, laps, sizes, stays)
    named = {row["variable"] for row in found["rows"] if row["worse"]}
    # what live tests show to cost little need not be told from nothing
    costly = {row["variable"] for row in found["rows"] if row["truth"] > 2 * NOISE}
    undone = max(found["undone_beside_what_stays"].values()) < 2 * NOISE
    right = all(row["within_20_percent"] for row in found["rows"]) and undone
    must = costly if told.share_gpu or told.bad else set(words) if told.gpus else set()
    out.keep("environment", **about, holds=right and must <= named, **found)
    for name in planted:
        del os.environ[name]


async def timed(told: argparse.Namespace, environ: Mapping[str, str], lines: str) -> dict[int, float]:
    """Microseconds by size in one live test of its own, started from a shell that has read these lines."""
    where = ["--simulate-hosts", "2", "--max-bytes", str(16 * MIB)] if told.share_gpu else []
    where = where if told.gpus else ["--backend", "gloo", "--ranks", "2"]
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ncclkit", "probe", "--json", "--case", folder, "--timeout", "170", *where]
        shell = ["sh", "-c", f'{lines}exec "$@"', "sh", *words]
        pipe = asyncio.subprocess.PIPE
        root = Path(__file__).parents[2]
        child = await asyncio.create_subprocess_exec(*shell, stdout=pipe, stderr=pipe, env=environ, cwd=root)
        given, problem = await child.communicate()
        if child.returncode:
            raise SystemExit(f"A live test failed: {problem.decode()[-2000:]}")
        rows = [json.loads(line) for line in given.decode().splitlines()]
    return {row["bytes"]: row["graph_us"] or row["time_us"] for row in rows}


def judged(
    sweep: Sweep, laps: Mapping[str, Sequence[Mapping[int, float]]], sizes: Sequence[int], stays: str
) -> dict[str, Any]:
    """The cost of each variable by the sweep beside that of the live tests, and what is left once it is undone."""

    def cost(how: str, size: int, beside: str = "") -> float:
        before, after = (statistics.fmean(lap[size] for lap in laps[one]) for one in (beside, how))
        return after / before - 1

    rows: list[dict[str, Any]] = []
    for one in sweep.comparisons:
        truth, said = cost(str(one.setting), one.bytes), -one.gain
        # a cost below what jobs that are alike differ by is not told from none by live tests
        within = abs(said - truth) <= max(0.2 * abs(truth), NOISE, scatter(laps, one.bytes))
        row = {"variable": str(one.setting), "bytes": one.bytes, "worse": one.worse, "cost": round(said, 4)}
        rows.append(row | {"truth": round(truth, 4), "off": round(said / truth - 1, 4), "within_20_percent": within})
    left = {how: {size: round(cost(how, size), 4) for size in sizes} for how in ("all", "undone")}
    left["undone_beside_what_stays"] = {size: round(cost("undone", size, stays), 4) for size in sizes}
    return {"rows": rows, "stays": stays, **left, "live_tests_us": laps}


def scatter(laps: Mapping[str, Sequence[Mapping[int, float]]], size: int) -> float:
    """The share by which live tests without a bad variable, or with all of them undone, differed at this size."""
    alike = [lap[size] for how in ("", "undone") for lap in laps[how]]
    return max(alike) / min(alike) - 1


async def memory(told: argparse.Namespace, out: Out) -> None:
    """Planned and measured bytes of three batches."""
    rows: list[dict[str, Any]] = []
    for batch in (256, 4096, 32768) if told.gpus else ():
        code = MEMORY.replace("BATCH", str(batch))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        peak, workspaces = map(int, (await child.communicate())[0].split())
        many = 8 * 2049 * 2048, 1, "ZeRO-1", "fp32, or autocast", 2 * 8 * 2048 * 4, batch, 8
        plan = budgets.gpu_memory(*many, other=workspaces)
        row = {"batch": batch, "planned": plan.value, "measured": peak, "workspaces": workspaces}
        rows.append(row | {"off": round(plan.value / peak - 1, 3)})
        out.keep("memory", holds=all(abs(row["off"]) <= 0.1 for row in rows), rows=rows)
    out.keep("memory", holds=all(abs(row["off"]) <= 0.1 for row in rows), rows=rows)


async def shared(told: argparse.Namespace, out: Out) -> None:
    """Planned and measured bytes of /dev/shm, after a small and a large message."""
    rows: list[dict[str, Any]] = []
    for channels in (2, 4) if told.gpus else ():
        env = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}
        env |= {name: str(channels) for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "shared.py")
            script.write_text(SHARED)
            words = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "2",
                str(script),
            ]
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(*words, stdout=pipe, env={**os.environ, **env})
            taken = int((await asyncio.wait_for(child.communicate(), 120))[0])
        plan = budgets.shared_memory(2, channels)
        off = round(plan.value / taken - 1, 3) if taken else None
        rows.append({"channels": channels, "planned": plan.value, "measured": taken, "off": off})
        out.keep("shared", holds=all(row["off"] is not None and abs(row["off"]) <= 0.1 for row in rows), rows=rows)
    out.keep("shared", holds=all(row["off"] is not None and abs(row["off"]) <= 0.1 for row in rows), rows=rows)


SHARED = """
import os
import torch
import torch.distributed as dist

def used():
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize

dist.init_process_group("gloo")
rank, before = dist.get_rank(), used()
dist.barrier()
torch.cuda.set_device(rank)
group = dist.new_group(backend="nccl")
for size in (2, 16 << 20):
    dist.all_reduce(torch.ones(size, device="cuda"), group=group)
torch.cuda.synchronize()
dist.barrier()
if rank == 0:
    print(used() - before, flush=True)
dist.barrier()
os._exit(0)
"""


MEMORY = """
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.Sequential(*layers).cuda()
optimizer, rows = torch.optim.Adam(model.parameters(), foreach=True), torch.ones(BATCH, 2048, device="cuda")
for step in range(3):
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
peak, before = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
torch._C._cuda_clearCublasWorkspaces()  # two of 32 MiB on Hopper: one of the forward's thread, one of autograd's
print(peak, before - torch.cuda.memory_allocated())
"""


def row_of(sweep: Sweep) -> dict[str, Any]:
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
