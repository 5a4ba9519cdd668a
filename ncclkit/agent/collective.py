"""What each rank of the live test executes: checked and timed collectives, size after size.

Method: warm-up calls, then `repeats` batches of back-to-back calls; a batch is
timed with device events (NCCL) or the clock (gloo); the figure of a size is the
median over the batches, averaged over the ranks, as nccl-tests does with -a 1.
Every size is first checked with values that differ by rank and by position.
"""

import argparse
import os
import statistics
import time

from . import blackbox, breaks, ladder, operations, wire

WARMUP = 3
BATCH_SECONDS = 0.02
"""A batch repeats short calls for about this long, so that the clock's own error does not count."""
SMALL, CAPTURED = 1 << 20, 20
"""Up to this many bytes a CUDA graph of this many calls is timed as well: larger messages hide the launch anyway."""


def main(argv):
    """``collective --folder DIR --backend nccl|gloo --sizes 8,1024 …``; exit status 0, or 1 after an error."""
    options = _options(argv)
    return blackbox.fly(options.folder, lambda rank: _run(options, rank))


def _options(argv):
    parser = argparse.ArgumentParser(prog="collective")
    breaks.add_options(parser)
    parser.add_argument("--ops", type=lambda text: text.split(","), default=["all_reduce"])
    parser.add_argument("--dtype", choices=sorted(operations.DTYPES), default="float32")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--split", type=int, default=1, help="the ranks of this host pretend to be on so many hosts")
    parser.add_argument("--ladder", action="store_true", help="first each rank alone, then every pair")
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args(argv)


def _run(options, rank):
    hostid = _pretend(options.split)  # NCCL reads it when it starts

    import torch

    work = [(op, size) for op in options.ops for size in options.sizes]
    job = breaks.Job(torch, options, len(work))
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, gpu=_gpu(torch, job.device))
    job.begin()
    wire.send("phase", phase="init", rank=rank, nccl=_nccl_version(torch, options.backend), hostid=hostid)
    if options.ladder and job.dist.get_world_size() > 1:
        ladder.climb(torch, job.dist, job.device, max(options.sizes))
    for step, (op, size) in enumerate(work[: job.steps]):
        operation = operations.Operation(torch, job.dist, job.device, op, options.dtype, size)
        wire.send("phase", phase="size", rank=rank, bytes=operation.bytes, op=op)
        job.at(step)
        measured = measure(torch, operation, options.repeats)
        if rank == 0:
            what = {"op": op, "bytes": operation.bytes, "dtype": options.dtype, "ranks": operation.ranks}
            wire.send("measure", backend=options.backend, **what, **measured)
    job.dist.barrier(**({"device_ids": [job.device.index]} if job.device.type == "cuda" else {}))
    job.dist.destroy_process_group()


def _pretend(split):
    """Make NCCL believe that this rank is on another host than most of this one; returns that host's name."""
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if split > 1:
        os.environ["NCCL_HOSTID"] = "pretended-%d" % (local * split // here)
    return os.environ.get("NCCL_HOSTID", "")


def _gpu(torch, device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _nccl_version(torch, backend):
    return ".".join(str(part) for part in torch.cuda.nccl.version()) if backend == "nccl" else ""


def measure(torch, operation, repeats):
    """Check and time one `Operation`; the same dict on every rank.

    Keys: time_us (median), p99_us, spread ((p90 - p10) / median), wrong (elements), repeats, calls (per batch), and
    graph_us (median of a replayed CUDA graph; None on the CPU and for large messages).
    """
    dist, device = operation.dist, operation.given.device
    wrong = operation.check()
    for _ in range(WARMUP):
        operation.fill()
        once = _batch(torch, operation, operation.call, 1)
    slowest = torch.tensor([once], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # every rank must make the same number of calls
    calls = int(min(20, max(1, BATCH_SECONDS / max(slowest.item(), 1e-6))))
    times = [_fresh(torch, operation, operation.call, calls) / calls for _ in range(repeats)]
    replayed = _replayed(torch, operation, repeats) if device.type == "cuda" and operation.bytes <= SMALL else 0.0
    own = torch.tensor([*_summary(times), replayed, float(wrong)], dtype=torch.float64, device=device)
    dist.all_reduce(own)
    median, p99, spread, replayed, wrong = own.tolist()
    mean = 1e6 / operation.ranks
    return {
        "time_us": median * mean,
        "p99_us": p99 * mean,
        "spread": spread / operation.ranks,
        "graph_us": replayed * mean or None,
        "wrong": int(wrong),
        "repeats": repeats,
        "calls": calls,
    }


def _replayed(torch, operation, repeats):
    """Seconds of one call inside a replayed CUDA graph: what NCCL takes without Python and the launch of each call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            operation.call()
    times = [_fresh(torch, operation, graph.replay, 1) / CAPTURED for _ in range(repeats)]
    return statistics.median(times)


def _fresh(torch, operation, call, calls):
    operation.fill()
    return _batch(torch, operation, call, calls)


def _batch(torch, operation, call, calls):
    """Seconds that `calls` back-to-back calls take on this rank."""
    device = operation.given.device
    operation.dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _summary(times):
    """(median, p99, (p90 - p10) / median) of a list of times."""
    ordered = sorted(times)
    median = statistics.median(ordered)
    p10, p90, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.1, 0.9, 0.99))
    return median, p99, (p90 - p10) / median if median else 0.0
