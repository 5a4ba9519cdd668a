"""What each rank of the live test executes: checked and timed collectives, size after size.

Method: warm-up calls, then `repeats` batches of back-to-back calls; a batch is
timed with device events (NCCL) or the clock (gloo); the figure of a size is the
median over the batches, averaged over the ranks, as nccl-tests does with -a 1.
Single calls are timed in a short phase of their own, each between two events or looks at the clock, which would
spoil the batches: their p99 is what a step meets now and then.
Every size is first checked with values that differ by rank and by position.
"""

import argparse
import os
import statistics
import time

from . import blackbox, breaks, ladder, operations, together, wire

WARMUP = 3
BATCH_SECONDS = 0.02
"""A batch repeats short calls for about this long, so that the clock's own error does not count."""
BURST = 20
"""Calls between two fills: sums of repeated calls grow by the number of ranks each time, and must stay finite."""
SINGLES, LEAST, SINGLE_SECONDS = 200, 10, 0.2
"""Single calls that are timed at most and at least, and about how long that takes."""
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
    parser.add_argument("--ladder", action="store_true", help="first each rank alone, every pair, each node …")
    parser.add_argument("--groups", type=_groups, default=[], help="instead, each of these alone: 0,1/2-5")
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args(argv)


def _groups(text):
    return [together.ranks_of(group) for group in text.split("/")]


def _run(options, rank):
    hostid = _pretend(options.split)  # NCCL reads it when it starts

    import torch

    work = [(op, size) for op in options.ops for size in options.sizes]
    job = breaks.Job(torch, options, len(work))
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, gpu=_gpu(torch, job.device))
    if options.groups:
        return together.apart(torch, job, options.groups, min(max(options.sizes), together.LARGEST))
    job.begin()
    wire.send("phase", phase="init", rank=rank, nccl=_nccl_version(torch, options.backend), hostid=hostid)
    if options.ladder and job.dist.get_world_size() > 1:
        ladder.climb(torch, job, max(options.sizes), options.split)
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

    Keys: time_us (median over batches), spread ((p90 - p10) / median of batches), wrong (elements), repeats, calls
    (per batch), p99_us over so many `singles`, single calls (of fewer than 100 it is the slowest), and graph_us
    (median of a replayed CUDA graph; None on the CPU and for large messages).
    """
    dist, device = operation.dist, operation.given.device
    wrong = operation.check()
    for _ in range(WARMUP):
        operation.fill()
        (once,) = _laps(torch, operation, operation.call, 1)
    calls = _within(torch, operation, BATCH_SECONDS, once, 1, BURST)
    times = [_fresh(torch, operation, operation.call, calls)[0] / calls for _ in range(repeats)]
    replayed = _replayed(torch, operation, repeats) if device.type == "cuda" and operation.bytes <= SMALL else 0.0
    singles = _within(torch, operation, SINGLE_SECONDS, statistics.median(times), LEAST, SINGLES)
    # the first call of a burst waits for ranks that leave the barrier late
    bursts = [_fresh(torch, operation, operation.call, 1, count + 1)[1:] for count in _bursts(singles)]
    figures = [*_summary(times), _share(sum(bursts, []), 0.99), replayed, float(wrong)]
    own = torch.tensor(figures, dtype=torch.float64, device=device)
    dist.all_reduce(own)
    median, spread, p99, replayed, wrong = own.tolist()
    mean = 1e6 / operation.ranks
    return {
        "time_us": median * mean,
        "p99_us": p99 * mean,
        "singles": singles,
        "spread": spread / operation.ranks,
        "graph_us": replayed * mean or None,
        "wrong": int(wrong),
        "repeats": repeats,
        "calls": calls,
    }


def _within(torch, operation, seconds, once, least, most):
    """How many calls of about `once` seconds fit; the same number on every rank, or they would wait for each other."""
    slowest = torch.tensor([once], dtype=torch.float64, device=operation.given.device)
    operation.dist.all_reduce(slowest, op=operation.dist.ReduceOp.MAX)
    return int(min(most, max(least, seconds / max(slowest.item(), 1e-6))))


def _replayed(torch, operation, repeats):
    """Seconds of one call inside a replayed CUDA graph: what NCCL takes without Python and the launch of each call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            operation.call()
    times = [_fresh(torch, operation, graph.replay, 1)[0] / CAPTURED for _ in range(repeats)]
    return statistics.median(times)


def _bursts(count):
    """20, 20, 7 for 47: how many calls are made between two fills."""
    return [BURST] * (count // BURST) + ([count % BURST] if count % BURST else [])


def _fresh(torch, operation, call, calls, laps=1):
    operation.fill()
    return _laps(torch, operation, call, calls, laps)


def _laps(torch, operation, call, calls, laps=1):
    """Seconds of each of `laps` laps on this rank, with no pause between them; a lap is `calls` back-to-back calls."""
    device = operation.given.device
    operation.dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
    if device.type == "cuda":
        torch.cuda.synchronize()
    marks = [_mark(torch, device)]
    for _ in range(laps):
        for _ in range(calls):
            call()
        marks.append(_mark(torch, device))
    if device.type != "cuda":
        return [end - start for start, end in zip(marks, marks[1:])]
    marks[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in zip(marks, marks[1:])]


def _mark(torch, device):
    """This moment: on a GPU an event in the stream of the calls, else the clock."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _summary(times):
    """(median, (p90 - p10) / median) of a list of times."""
    median = statistics.median(times)
    return median, (_share(times, 0.9) - _share(times, 0.1)) / median if median else 0.0


def _share(times, share):
    """The time that this share of the times does not exceed."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]
