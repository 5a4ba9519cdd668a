"""What each rank of the live test executes: checked and timed collectives.

It goes from size to size.  The method is warm-up calls, then `repeats` batches of back-to-back
calls; a batch is timed with device events (NCCL) or the clock (gloo); the figure of a size is the
median over the batches, averaged over the ranks, as nccl-tests does with -a 1.  Batches follow each
other without a pause, and one before them does not count: in it the ranks that leave the barrier
early wait for those that Python lets go some ten microseconds later.  Single calls are timed in a
short phase of their own, each between two events or looks at the clock, which would spoil the
batches: their p99 is what a step meets now and then.  Every size is first checked with values that
differ by rank and by position.
"""

import argparse
import contextlib
import ctypes
import os
import re
import statistics
import time

from .. import wire
from ..facts.software import spell
from . import crash_handler, operations, processes, stages
from .job import Job, add_job_options

WARMUP = 2
BATCH_SECONDS, MOST = 0.02, 20
"""A batch repeats short calls for about this long, so that the clock's own error does not count;
and how often."""
SINGLES, LEAST, SINGLE_SECONDS = 200, 10, 0.2
"""Single calls that are timed at most and at least, and about how long that takes."""
SMALL, CAPTURED = 1 << 20, 20
"""Up to this many bytes a CUDA graph of this many calls is timed as well: larger messages hide the
launch anyway."""


def main(argv, job=Job, add=add_job_options):
    """``collective --folder DIR --backend nccl|gloo --sizes 8,1024 …``.

    Returns exit status 0, or 1 after an error.  `job` is the class of the job, whose options `add`
    adds to a parser; the lab brings its own, which can be broken.
    """
    options = _parse_options(argv, add)
    return crash_handler.run_rank(options.folder, lambda rank: _run_collectives(options, rank, job))


def options(add):
    """A parser of what is measured.

    That is collectives, data type, sizes and repeats; `add` adds the options of the job.
    """
    parser = argparse.ArgumentParser(prog="collective")
    add(parser)
    parser.add_argument("--ops", type=lambda text: text.split(","), default=["all_reduce"])
    parser.add_argument("--dtype", choices=sorted(operations.DTYPES), default="float32")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True
    )
    parser.add_argument("--repeats", type=int, default=10)
    return parser


def _parse_options(argv, add):
    parser = options(add)
    parser.add_argument(
        "--stages", action="store_true", help="first each rank alone, every pair, each node …"
    )
    parser.add_argument(
        "--groups", type=_groups_of_text, default=[], help="instead, each of these alone: 0,1/2-5"
    )
    return parser.parse_args(argv)


def _groups_of_text(text):
    return [stages.ranks_of(group) for group in text.split("/")]


def _run_collectives(options, rank, job_class):
    import torch

    work = [(op, size) for op in options.ops for size in options.sizes]
    job = job_class(torch, options, len(work))
    wire.send(
        "phase", phase="import", rank=rank, torch=torch.__version__, gpu=gpu(torch, job.device)
    )
    if options.groups:
        return stages.run_groups(
            torch, job, options.groups, min(max(options.sizes), stages.LARGEST)
        )
    nccl = nccl_version(torch, options.backend)
    if options.stages and diagnoses_itself(nccl):
        # NCCL then writes, reads and verifies each pair at the start of every communicator
        os.environ.setdefault("NCCL_RUN_DIAGNOSTICS", "1")
    job.begin()
    hostid = os.environ.get("NCCL_HOSTID", "")
    wire.send("phase", phase="init", rank=rank, nccl=nccl, hostid=hostid)
    if options.stages:
        stages.run_stages(torch, job, max(options.sizes), options.simulate_hosts)
    for step, (op, size) in enumerate(work[: job.steps]):
        operation = operations.Operation(torch, job.dist, job.device, op, options.dtype, size)
        wire.send("phase", phase="size", rank=rank, bytes=operation.bytes, op=op)
        job.before_step(step)
        with stream(torch, job.device):
            measured = measure_operation(torch, operation, options.repeats)
        if rank == 0:
            what = {
                "op": op,
                "bytes": operation.bytes,
                "dtype": options.dtype,
                "ranks": operation.ranks,
            }
            wire.send("measure", backend=options.backend, **what, **measured)
    job.dist.barrier(**({"device_ids": [job.device.index]} if job.device.type == "cuda" else {}))
    job.dist.destroy_process_group()


def stream(torch, device):
    """A stream for what is timed.

    The default one waits for all others, which takes 5 us more for each small call.
    """
    if device.type == "cuda":
        return torch.cuda.stream(torch.cuda.Stream(device))
    return contextlib.nullcontext()


def gpu(torch, device):
    """The name of a GPU; empty on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return ""


def nccl_version(torch, backend):
    """The version of NCCL that this process has loaded; empty over gloo."""
    if backend != "nccl":
        return ""
    return loaded_nccl() or ".".join(str(part) for part in torch.cuda.nccl.version())


def loaded_nccl(maps="/proc/self/maps"):
    """What the library itself says, as torch tells the release that it was compiled with.

    Empty where no library is mapped, as in a torch that holds NCCL within.
    """
    found = re.findall(r"/\S*/libnccl\.so\S*", processes.read_text(maps, 16 << 20))
    number = ctypes.c_int()
    for path in found[:1]:
        try:
            if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)):
                return ""
        except (OSError, AttributeError):
            return ""
    if not number.value:
        return ""
    return spell(number.value)


DIAGNOSES = (2, 31)
"""The first release of NCCL that checks the pairs of GPUs itself, where it is told to."""


def diagnoses_itself(nccl):
    """Whether an NCCL of this version has diagnostics of its own."""
    numbers = re.findall(r"\d{1,4}", nccl)
    return tuple(map(int, numbers[:2])) >= DIAGNOSES


def measure_operation(torch, operation, repeats):
    """Check and time one `Operation`; the same dict on every rank.

    Its keys are time_us (median over batches), spread ((p90 - p10) / median of batches), wrong
    (elements), repeats, calls (per batch), p99_us over so many `singles`, single calls (of fewer
    than 100 it is the slowest), and graph_us (median of a replayed CUDA graph; None on the CPU and
    for large messages).
    """
    dist, device = operation.dist, operation.sendbuff.device
    wrong = operation.check()
    operation.clear()

    def timed(call, laps, calls=1):
        return [lap / calls for lap in time_laps(torch, operation, call, calls, laps)]

    once = min(timed(operation.call, WARMUP))
    calls = calls_that_fit(torch, operation, BATCH_SECONDS, once, 1, MOST)
    times = timed(operation.call, repeats, calls)
    singles = calls_that_fit(
        torch, operation, SINGLE_SECONDS, statistics.median(times), LEAST, SINGLES
    )
    p99 = _time_at_share(timed(operation.call, singles), 0.99)
    small = device.type == "cuda" and operation.bytes <= SMALL
    replayed = 0.0
    if small:
        replayed = statistics.median(timed(cuda_graph_of(torch, operation), repeats)) / CAPTURED
    # one vector and one all_reduce: every rank returns the same, the mean of the times and the sum
    # of wrong elements
    figures = [*_median_and_spread(times), p99, replayed, float(wrong)]
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


def calls_that_fit(torch, operation, seconds, once, least, most):
    """How many calls of about `once` seconds fit.

    It is the same number on every rank, or they would wait for each other.
    """
    slowest = torch.tensor([once], dtype=torch.float64, device=operation.sendbuff.device)
    operation.dist.all_reduce(slowest, op=operation.dist.ReduceOp.MAX)
    return int(min(most, max(least, seconds / max(slowest.item(), 1e-6))))


def cuda_graph_of(torch, operation):
    """Some calls as a CUDA graph.

    Its replay takes what NCCL takes, without Python and the launch of each call.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            operation.call_in_graph()
    return graph.replay


def time_laps(torch, operation, call, calls, laps):
    """Seconds of each of `laps` laps on this rank; a lap is `calls` calls.

    A first lap does not count.
    """
    device = operation.sendbuff.device
    operation.dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
    if device.type == "cuda":
        torch.cuda.synchronize()
    marks = []
    for _ in range(laps + 1):
        for _ in range(calls):
            call()
        marks.append(timestamp(torch, device))
    if device.type != "cuda":
        return [end - start for start, end in zip(marks, marks[1:])]
    marks[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in zip(marks, marks[1:])]


def timestamp(torch, device):
    """This moment, by the clock of the calls.

    On a GPU it is an event in the stream of the calls, else the clock.
    """
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _median_and_spread(times):
    """(median, (p90 - p10) / median) of a list of times."""
    median = statistics.median(times)
    return median, (
        _time_at_share(times, 0.9) - _time_at_share(times, 0.1)
    ) / median if median else 0.0


def _time_at_share(times, share):
    """The time that this share of the times does not exceed."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]
