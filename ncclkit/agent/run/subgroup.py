"""Some ranks of a job together: a checked and timed all_reduce, as a stage of the test or as a job of its own.

Narrowing down who is at fault starts the job anew for every question, with other groups: what hangs or dies then
takes nobody along but its own group, and no later question meets what an earlier one has left behind.
"""

import os
import threading
import time
from datetime import timedelta

from .. import wire
from . import crash_handler

REPEATS, ECHOES = 5, 20
"""Timed calls with the large message, and calls of 8 bytes for one latency."""
SHORT = 0.2
"""Seconds of a call up to which it is repeated: what takes longer is known well enough from one."""
LARGEST = 64 << 20
"""Bytes of a stage's message at most: large enough for full speed, small enough for many stages."""
MOST = 1 << 16
"""Ranks of the largest job; a torn number must not fill the memory."""
MEET = 30.0
"""Seconds for the ranks of a group to find each other: some import torch later than others."""


def measure(torch, job, ranks, size, group=None):
    """The same dict on all ranks of a group: busbw (GB/s, None for one rank), latency_us, how many values are wrong.

    Like the bandwidth of a pair, busbw is the best of some calls, on the rank that took longest.

    group: their process group (default: the process's own one).
    """
    dist, device = job.dist, job.device
    base = (torch.arange(max(1, size // 4), device=device) % 251 + 1).to(torch.float32)
    weights = [1 + place % 16 for place in range(len(ranks))]
    given, small = base * weights[ranks.index(job.rank)], torch.ones(2, device=device)

    def call(message=given):
        job.among(ranks)
        dist.all_reduce(message, group=group)

    call()
    wrong = int((given != base * sum(weights)).sum())
    given.zero_()
    first = torch.tensor([timed(torch, device, call)], dtype=torch.float64, device=device)
    dist.all_reduce(first, op=dist.ReduceOp.MAX, group=group)  # all must make the same number of calls
    repeats, echoes = (REPEATS, ECHOES) if first.item() < SHORT else (0, 1)
    times = [first.item(), *(timed(torch, device, call) for _ in range(repeats))]
    latency = timed(torch, device, lambda: [call(small.zero_()) for _ in range(echoes)]) / echoes
    own = torch.tensor([latency, min(times), float(wrong)], dtype=torch.float64, device=device)
    dist.all_reduce(own, op=dist.ReduceOp.MAX, group=group)
    latency, seconds, wrong = own.tolist()
    busbw = 2 * (len(ranks) - 1) / len(ranks) * given.numel() * 4 / seconds / 1e9
    return {"busbw": busbw if len(ranks) > 1 else None, "latency_us": latency * 1e6, "wrong": int(wrong)}


def tell(job, stage, ranks, size, busbw=None, latency_us=None, wrong=0, problem=""):
    """Send the result of a group: its first rank sends what was measured, any rank a problem."""
    if problem or job.rank == ranks[0]:
        told = {"busbw": busbw, "latency_us": latency_us, "wrong": wrong, "problem": problem[:300]}
        wire.send("stage.group", rank=job.rank, stage=stage, ranks=spans(ranks), bytes=size, **told)


def spans(ranks):
    """Ranks in few letters, as a line of the wire must not become long: ``0-3,8``."""
    runs = []  # type: list[list[int]]
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join("%d-%d" % (first, last) if last > first else "%d" % first for first, last in runs)


def ranks_of(text):
    """What `spans` made: ``0-3,8`` → [0, 1, 2, 3, 8]; ValueError for anything else."""
    ranks = []  # type: list[int]
    for run in text.split(","):
        first, dash, last = run.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < MOST:
            raise ValueError("no ranks: %s" % run)
        ranks += range(low, high + 1)
    return ranks


def apart(torch, job, groups, size):
    """Run this rank in its group of `groups` (lists of ranks), each a job of its own; a rank of no group does nothing.

    A group that does not get through within the job's timeout says so; the process succeeds in any case, as a
    launcher ends all ranks of a host when one of them fails.
    """
    limit, ranks = job.timeout, next((group for group in groups if job.rank in group), None)
    store, _, _ = next(job.dist.rendezvous("env://", job.rank, job.ranks, timeout=timedelta(seconds=2 * MEET)))
    if ranks:
        wire.send("phase", phase="group", rank=job.rank, ranks=spans(ranks))
        alarm = None
        try:
            _meet(store, job.rank, ranks)
            alarm = _watchdog(job, ranks, size, store)
            own = job.dist.PrefixStore("group-%d" % ranks[0], store)
            # beyond its limit NCCL would end the process, before it could say what it waits for
            spare = timedelta(seconds=MEET if job.device.type == "cuda" else 0)
            where = {"store": own, "rank": ranks.index(job.rank), "world_size": len(ranks), "timeout": limit + spare}
            job.begin(**where)
            tell(job, "bisect", ranks, size, **measure(torch, job, ranks, size))
        except Exception as error:  # whatever it is, it is this group's answer
            tell(job, "bisect", ranks, size, problem="%s: %s" % (type(error).__name__, str(error).partition("\n")[0]))
        finally:
            if alarm:
                alarm.cancel()
    _leave(store, job, groups)


def _meet(store, rank, ranks):
    store.set("here-%d" % rank, "!")
    store.wait(["here-%d" % other for other in ranks], timedelta(seconds=MEET))


def _watchdog(job, ranks, size, store):
    """A thread that speaks for this rank, and ends it, where it is still busy some seconds after the time limit."""
    seconds = job.timeout.total_seconds() + (0 if job.device.type == "cuda" else 3)

    def ring():
        tell(job, "bisect", ranks, size, problem="no answer within %.0f s" % seconds)
        crash_handler.write_stacks(job.options.folder, job.rank)
        # the store's own lock may be held by what hangs, so that it must not be waited for
        threading.Thread(target=_over, args=(store, job.rank), daemon=True).start()
        time.sleep(0.5)
        os._exit(0)

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    return timer


def _over(store, rank):
    store.set("over-%d" % rank, "!")


def _leave(store, job, groups):
    """The first rank may hold the store that the others need to find each other, so it goes last."""
    try:
        _over(store, job.rank)
        if job.rank == 0:
            others = sorted(rank for group in groups for rank in group)
            store.wait(["over-%d" % rank for rank in others], job.timeout + timedelta(seconds=MEET))
    except RuntimeError as error:  # one of them was ended by its alarm, or the store has gone with its host
        print("left alone: %s" % error, flush=True)
    os._exit(0)


def timed(torch, device, call):
    """Seconds that a call takes, until the device is done with it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
