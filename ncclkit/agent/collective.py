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

from . import blackbox, wire

WARMUP = 3
BATCH_SECONDS = 0.02
"""A batch repeats short calls for about this long, so that the clock's own error does not count."""


def main(argv):
    """``collective --folder DIR --backend nccl|gloo --sizes 8,1024 …``; exit status 0, or 1 after an error."""
    options = _options(argv)
    return blackbox.fly(options.folder, lambda rank: _run(options, rank))


def _options(argv):
    parser = argparse.ArgumentParser(prog="collective")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=30.0)
    return parser.parse_args(argv)


def _run(options, rank):
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before anything else touches CUDA
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, gpu=_gpu(torch, device))
    bound = {"device_id": device} if options.backend == "nccl" else {}
    dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout), **bound)
    wire.send("phase", phase="init", rank=rank, nccl=_nccl_version(torch, options.backend))
    for size in options.sizes:
        wire.send("phase", phase="size", rank=rank, bytes=size)
        measured = measure(torch, dist, device, size, options.repeats)
        if rank == 0:
            wire.send(
                "measure",
                op="all_reduce",
                bytes=size,
                dtype="float32",
                ranks=dist.get_world_size(),
                backend=options.backend,
                **measured,
            )
    dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
    dist.destroy_process_group()


def _gpu(torch, device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _nccl_version(torch, backend):
    return ".".join(str(part) for part in torch.cuda.nccl.version()) if backend == "nccl" else ""


def measure(torch, dist, device, size, repeats):
    """Check and time all_reduce of `size` bytes of float32; the same dict on every rank.

    Keys: time_us (median), p99_us, spread ((p90 - p10) / median), wrong (elements), repeats, and calls (per batch).
    """
    buffer = torch.empty(max(1, size // 4), dtype=torch.float32, device=device)
    wrong = check(torch, dist, buffer)
    for _ in range(WARMUP):
        _fill(torch, dist, buffer)
        once = _batch(torch, dist, buffer, 1)
    slowest = torch.tensor([once], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # every rank must make the same number of calls
    calls = int(min(20, max(1, BATCH_SECONDS / max(slowest.item(), 1e-6))))
    times = []
    for _ in range(repeats):
        _fill(torch, dist, buffer)
        times.append(_batch(torch, dist, buffer, calls) / calls * 1e6)
    own = torch.tensor([*_summary(times), float(wrong)], dtype=torch.float64, device=device)
    dist.all_reduce(own)
    median, p99, spread, wrong = own.tolist()
    ranks = dist.get_world_size()
    return {
        "time_us": median / ranks,
        "p99_us": p99 / ranks,
        "spread": spread / ranks,
        "wrong": int(wrong),
        "repeats": repeats,
        "calls": calls,
    }


def check(torch, dist, buffer):
    """All_reduce values that tell rank and position apart; returns how many elements came out wrong here.

    Element i of rank r is (r + 1) * (i % 251 + 1): the sum is exact in float32 up to 360 ranks, a missing or doubled
    rank changes it, and so does a chunk that landed in the wrong place, since 251 is prime.
    """
    ranks = dist.get_world_size()
    pattern = torch.arange(buffer.numel(), device=buffer.device).remainder_(251).add_(1).to(torch.float32)
    buffer.copy_(pattern).mul_(dist.get_rank() + 1)
    dist.all_reduce(buffer)
    return int((buffer != pattern.mul_(ranks * (ranks + 1) // 2)).sum())


def _fill(torch, dist, buffer):
    """Fresh values, so that sums of repeated calls stay finite: 1e-12 grows by the rank count with every call."""
    buffer.fill_(1e-12 * (dist.get_rank() + 1))


def _batch(torch, dist, buffer, calls):
    """Seconds that `calls` back-to-back all_reduces of `buffer` take on this rank."""
    dist.barrier(**({"device_ids": [buffer.device.index]} if buffer.is_cuda else {}))
    if not buffer.is_cuda:
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buffer)
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        dist.all_reduce(buffer)
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _summary(times):
    """(median, p99, (p90 - p10) / median) of a list of times."""
    ordered = sorted(times)
    median = statistics.median(ordered)
    p10, p90, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.1, 0.9, 0.99))
    return median, p99, (p90 - p10) / median if median else 0.0
