"""How many data-loader workers, and how far ahead.

The speech job is measured once for each choice, on a few shared cores.  Each batch costs CPU and a
wait for storage.  Workers hide the wait; once the cores are full, more of them only queue.
"""

import os
import time

from ncclkit.agent import wire
from ncclkit.agent.monitor.utilization import Scheduling
from ncclkit.agent.run import crash_handler, processes
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.stories import speech

HIGHEST = ("step_ms", "low_ms", "high_ms", "first_ms", "data_ms", "others_ms")
"""What is measured on each rank, where the slowest one counts.

It is a step (mean, and between what and what half of the steps lay), the first batch, waiting for
data, and waiting for other ranks.
"""
TOGETHER = ("queue", "preempted")
"""What is added up over the ranks.

It is processes that wait for a core at a time, and times a second that one was taken off its core.
"""


def main(argv):
    """``stories.loader_sweep --folder DIR --backend gloo --choices 0:2,1:2,8:2 [--cores 2 --steps
    16]``.
    """
    parser = inject.parser(
        "stories.loader_sweep", 16, "measured for each choice, once the loader runs steadily"
    )
    parser.add_argument(
        "--choices", required=True, help="workers of a rank : batches that each prepares ahead, …"
    )
    parser.add_argument("--cores", type=int, default=2, help="that all ranks share")
    parser.add_argument(
        "--cost", type=float, default=0.02, help="seconds of CPU that a batch needs"
    )
    parser.add_argument(
        "--wait", type=float, default=0.02, help="seconds of storage that a batch needs"
    )
    options = parser.parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _sweep(options, rank))


def _sweep(options, rank):
    import torch

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    job = inject.LabJob(torch, options, options.steps)
    job.begin()
    wire.send("phase", phase="init", rank=rank, cores=len(os.sched_getaffinity(0)))
    trainer = speech.Trainer(job)
    rows = []
    for choice in options.choices.split(","):
        workers, prefetch = (int(word) for word in choice.split(":"))
        own = _measure_workers(trainer, options, workers, prefetch)
        row = {name: round(value, 3) for name, value in _agreed_values(job, own).items()}
        rows.append({"workers": workers, "prefetch": prefetch if workers else 0, **row})
        # again with each choice, so that a sweep that is cut short leaves what it has
        if rank == 0:
            cores = len(os.sched_getaffinity(0))
            local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            wire.send("phase", phase="loader_sweep", rank=0, cores=cores, ranks=local, rows=rows)
    del trainer
    job.end()


def _measure_workers(trainer, options, workers, prefetch):
    """What this rank sees with so many workers.

    The batches that all workers begin at once come in a burst, so what is measured of a step begins
    after them; and it ends before the workers run out of work, as the last batches would come for
    nothing.
    """
    job, ahead = trainer.job, max(1, workers * prefetch)
    one = job.torch.ones(1, device=job.device)
    job.dist.all_reduce(one)
    scheduling, began = Scheduling(), time.monotonic()
    count = 2 * ahead + options.steps
    batches = iter(
        speech.loader(job.torch, job.rank, workers, options.cost, count, prefetch, options.wait)
    )
    data, others, ends, first, steady = [], [], [], 0.0, began
    for step in range(ahead + options.steps):
        batch, waited = speech.next_batch(batches)
        first = first or time.monotonic() - began
        since = time.monotonic()
        job.dist.all_reduce(one)  # returns when the slowest rank has its batch
        job.synchronize()
        if step >= ahead:
            data.append(waited)
            others.append(time.monotonic() - since)
        trainer.step(batch)
        ends.append(time.monotonic())
        steady = ends[-1] if step == ahead - 1 else steady
        if step == 0:  # the workers are there
            before = _family_counts(scheduling)
            at = time.monotonic()
    now, passed = _family_counts(scheduling), max(time.monotonic() - at, 1e-3)
    times = sorted(1e3 * (end - start) for start, end in zip(ends[ahead - 1 :], ends[ahead:]))
    return {
        "step_ms": 1e3 * (time.monotonic() - steady) / options.steps,
        "low_ms": times[len(times) // 4],
        "high_ms": times[-1 - len(times) // 4],
        "first_ms": 1e3 * first,
        "data_ms": 1e3 * sum(data) / len(data),
        "others_ms": 1e3 * sum(others) / len(others),
        "queue": (now[3] - before[3]) / passed,
        "preempted": (now[4] - before[4]) / passed,
    }


def _family_counts(scheduling):
    """What the scheduler has counted of this process and its workers.

    It is nothing where the kernel does not tell.
    """
    own = os.getpid()
    return scheduling.take(processes.families({0: own})).get(0, [0, 0, 0.0, 0.0, 0])


def _agreed_values(job, own):
    """The same values on all ranks.

    It is the highest of the times, the sum of what is counted.
    """
    found = {}  # type: dict[str, float]
    for names, how in ((HIGHEST, job.dist.ReduceOp.MAX), (TOGETHER, job.dist.ReduceOp.SUM)):
        values = job.torch.tensor(
            [own[name] for name in names], device=job.device, dtype=job.torch.float32
        )
        job.dist.all_reduce(values, op=how)
        found.update(zip(names, values.tolist()))
    return found
