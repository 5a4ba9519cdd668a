"""Jobs as large as one likes, one shape for each thing that a large job leaves behind many times.

Each function gives the files of a job of `count` ranks, hosts or errors, by their names.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ncclkit.core.model import to_json
from tests.evidence import jobs
from tests.evidence.test_flight import dump, entry, waiting
from tests.evidence.test_nccltests import run
from tests.fleet import fleet

Files = dict[str, bytes]


def word(number: int) -> str:
    """A number in letters, as equal lines are merged whatever numbers they hold."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:05}")


def merged(count: int) -> Files:
    """A watchdog line, an init line and a short traceback a rank, in one log."""
    return log([*inits(count), *watchdogs(count), *tracebacks(count)])


def log(lines: Iterable[str]) -> Files:
    return {"job.log": "".join(lines).encode()}


def inits(count: int) -> Iterator[str]:
    for rank in range(count):
        text = jobs.init("2.28.9", rank, count)
        yield jobs.line(rank, text, per_host=8)


def watchdogs(count: int) -> Iterator[str]:
    for rank in range(count):
        yield jobs.timeout(rank, 241, at=f"01:51:30.{rank % 1000:03}000")


def tracebacks(count: int) -> Iterator[str]:
    for rank in range(count):
        yield traceback(rank, f"RuntimeError: rank {rank} could not go on")


def traceback(rank: int, error: str) -> str:
    lines = ("Traceback (most recent call last):", '  File "/app/train.py", line 212, in <module>', "    main()", error)
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def watchdogs_but_one(count: int) -> Files:
    """Every rank but one waits."""
    return log([*inits(count), *list(watchdogs(count))[:-1]])


def halves(count: int) -> Files:
    """Half of the ranks wait in one collective, the others in another."""
    operations = ("ALLREDUCE", "_ALLGATHER_BASE")
    return log(jobs.timeout(rank, 42, operations[rank % 2]) for rank in range(count))


def timeouts_apart(count: int) -> Files:
    """Every rank waits in another collective, each of another size."""
    return log(jobs.timeout(rank, 100 + rank, numel=1024 + rank) for rank in range(count))


def steps(count: int) -> Files:
    """A start, rings, channels, steps and an end of every rank: a healthy job."""
    lines = [*inits(count)]
    for rank in range(count):
        after = (rank + 1) % count
        ring = f"Ring 00 : {(rank - 1) % count} -> {rank} -> {after}"
        channel = f"Channel 00/0 : {rank}[{rank % 8}] -> {after}[{after % 8}] via P2P/CUMEM"
        ident = jobs.init("2.28.9", rank, count).split(" commId")[0].removeprefix("ncclCommInitRankConfig ")
        lines += [jobs.line(rank, text, per_host=8) for text in (ring, channel)]
        lines += [f"[rank{rank}]: step 100 loss 0.5\n"]
        lines += [jobs.line(rank, f"{ident} - Destroy COMPLETE", per_host=8)]
    return log(lines)


def steps_then_errors(count: int) -> Files:
    """Every rank takes a step after a warning of its own, and again."""
    lines = []
    for rank in range(count):
        lines += [f"[rank{rank}]: step 100 loss 0.5\n", warning(rank), f"[rank{rank}]: step 101 loss 0.5\n"]
    return log([*inits(count), *lines, *watchdogs(count)])


def warning(rank: int, text: str = "") -> str:
    host = f"n{rank // 8}:{1000 + rank}:{1000 + rank} [{rank % 8}]"
    return f"\n{host} misc/socket.cc:{rank} NCCL WARN {text or f'Something odd about {word(rank)} happened'}\n"


def warnings(count: int) -> Files:
    """An NCCL WARN of a text of its own a rank."""
    return log([*inits(count), *map(warning, range(count))])


def refused(count: int) -> Files:
    """Each rank is refused by the next one."""
    lines = []
    for rank in range(count):
        peer = f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}<{20000 + rank}>"
        lines.append(warning(rank, f"socketPollConnect: connect to {peer} returned Connection refused, exceeded"))
        lines.append(
            traceback(rank, "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited")
        )
    return log([*inits(count), *lines])


def out_of_memory(count: int) -> Files:
    """Every GPU is full."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU {} has a total capacity of 79.1 GiB"
    )
    text += " of which 1.2 GiB is free."
    return log([*inits(count), *(traceback(rank, text.format(rank + 2, rank % 8)) for rank in range(count))])


def cuda_errors(count: int) -> Files:
    """Every GPU met an illegal address, and the ranks then wait or close their sockets."""
    text = "RuntimeError: CUDA error: an illegal memory access was encountered in kernel_{}"
    lines = (traceback(rank, text.format(word(rank))) for rank in range(count))
    return log([*watchdogs(count), *lines])


def xids(count: int) -> Files:
    """The kernel's log of each of many hosts tells of a GPU that fell off the bus."""
    text = "2026-11-21T01:02:03.123456+00:00 node-{} kernel: NVRM: Xid (PCI:0000:4f:00): {}, pid={}, {}\n"
    told = "GPU has fallen off the bus."
    return log(text.format(host, 79, 1000 + host, told) for host in range(count))


def exits(count: int) -> Files:
    """torchrun's table of failures, and srun's word on every task."""
    lines = ["=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"]
    for rank in range(count):
        code = -9 if rank % 3 == 0 else 1
        lines.append(
            f"[{rank}]:\n  time      : 2026-11-21_01:02:03\n  host      : node-{rank // 8}\n"
            f"  rank      : {rank} (local_rank: {rank % 8})\n  exitcode  : {code} (pid: {5000 + rank})\n"
            f"  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs\n"
        )
    lines += [f"srun: error: node-{rank // 8}: task {rank}: Exited with exit code 1\n" for rank in range(count)]
    return log(lines)


def attempts(count: int) -> Files:
    """A launcher that starts its ranks again and again, and each attempt fails."""
    lines = []
    for number in range(count):
        host = f"n0:{1000 + number}:{1000 + number} [0]"
        lines.append(f"{host} NCCL INFO {jobs.init('2.28.9', number % 8, 8)}\n")
        lines.append(f"[rank{number % 8}]: step {number} loss 0.5\n")
        lines.append(
            "E1121 01:02:03.000000 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
            f"local_rank: {number % 8} (pid: {1000 + number}) of binary: /usr/bin/python\n"
        )
    return log(lines)


def jobs_in_a_row(count: int) -> Files:
    """One job after the other appended to one log, each of which ends well."""
    lines = []
    for number in range(count):
        host, ident = f"n0:{1000 + number}:{1000 + number} [0]", jobs.init("2.28.9", 0, 1)
        comm = ident.split(" commId")[0].removeprefix("ncclCommInitRankConfig ")
        lines += [f"{host} NCCL INFO {ident}\n", f"{host} NCCL INFO {comm} - Destroy COMPLETE\n"]
        lines += [f"Training completed, as run {word(number)}\n"]
    return log(lines)


def unknown_errors(count: int) -> Files:
    """Errors that no grammar knows, each in words of its own."""
    return log(f"ERROR: module {word(number)} met {word(number * 7)} and gave up\n" for number in range(count))


def tables(count: int) -> Files:
    """Many runs of nccl-tests, each of eight ranks."""
    return {f"run{number}.log": run().encode() for number in range(count // 8)}


def dumps(count: int) -> Files:
    """Flight Recorder dumps of every rank, in groups of eight; in each group a rank is missing."""
    files = {}
    for rank in range(count):
        first = rank - rank % 8
        group = {"name": str(first), "desc": f"tensor_{first}", "ranks": str(list(range(first, first + 8)))}
        calls = [entry(number) for number in range(1, 20)] + ([waiting(20)] if rank % 8 else [])
        calls = [call | {"process_group": (str(first), f"tensor_{first}")} for call in calls]
        files[f"nccl_trace_rank_{rank}"] = pickle.dumps(dump(calls) | {"pg_config": {str(first): group}}, protocol=2)
    return files


def ras(count: int) -> Files:
    """NCCL's RAS report of a job in which one rank of each host is behind."""
    ranks = [ras_rank(rank) for rank in range(count)]
    communicator = {
        "hash": "0x81d564e230a45639",
        "secondary_hash": "0xeb1dd83c9460efb:0xaecc19296c3dec8d",
        "size": count,
        "ranks_count": count,
        "missing_ranks_count": 0,
        "ranks": ranks,
    }
    report = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-21 04:36:39",
        "communicators_count": 1,
        "communicators": [communicator],
    }
    return {"ras.json": json.dumps(report).encode()} | log(inits(count))


def ras_rank(rank: int) -> dict[str, Any]:
    status = dict.fromkeys(("finalize_called", "destroy_flag", "abort_flag"), False)
    return {
        "rank": rank,
        "host": f"10.0.{rank // 8 >> 8}.{rank // 8 & 255}",
        "pid": 1000 + rank,
        "cuda_dev": rank % 8,
        "nvml_dev": rank % 8,
        "status": {"init_state": 0, "async_error": 0, **status},
        "collective_counts": {"Broadcast": 0, "AllReduce": 41 + (rank % 8 > 0)},
    }


def stacks(count: int) -> Files:
    """Where every rank stood, as py-spy tells, and the wait of each."""
    files = log(watchdogs(count))
    for rank in range(count):
        files[f"stacks_rank{rank}.txt"] = (
            f"Process {4000 + rank}: python train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
            f'Thread {4000 + rank} (active): "MainThread"\n    read_{word(rank)} (data.py:{rank})\n'
            "    train (train.py:207)\n    <module> (train.py:260)\n"
        ).encode()
    return files


def stuck_in_own_code(count: int) -> Files:
    """By the stacks half of the ranks wait in a collective, and the others are at work."""
    files = {}
    for rank in range(count):
        innermost = "all_reduce (torch/distributed/distributed_c10d.py:3068)" if rank % 2 else f"read (data.py:{rank})"
        files[f"stacks_rank{rank}.txt"] = (
            f"Process {4000 + rank}: python train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
            f'Thread {4000 + rank} (active): "MainThread"\n    {innermost}\n    train (train.py:207)\n'
        ).encode()
    return files


def facts(count: int) -> Files:
    """What `ncclkit inspect --json` says on each of many hosts."""
    lines = [to_json(fact) for fact in fleet(count // 4)]
    return {"facts.jsonl": "\n".join(lines).encode()}


def logs(count: int) -> Files:
    """A log of its own of each rank: start, settings, a step, a timeout."""
    files = {}
    for rank in range(count):
        lines = [jobs.line(rank, jobs.init("2.28.9", rank, count), per_host=8)]
        lines += [jobs.line(rank, "NCCL_SOCKET_IFNAME set by environment to eth0.", per_host=8)]
        lines += [jobs.line(rank, f"NET/Socket : Using [0]eth0:10.0.{rank >> 8}.{rank & 255}<0>", per_host=8)]
        lines += [jobs.line(rank, f"Bootstrap: Using eth0:10.0.{rank >> 8}.{rank & 255}<0>", per_host=8)]
        lines += [f"step 10 loss {rank}.5\n", jobs.timeout(rank, 42)]
        files[f"rank{rank}.log"] = "".join(lines).encode()
    return files


def calls(count: int) -> Files:
    """The collectives of each rank as NCCL's trace tells them, each of a size of its own."""
    lines = [*inits(count)]
    for rank in range(count):
        lines += [jobs.line(rank, jobs.call(rank, count=1024 + rank, size=count), per_host=8)]
        lines += [
            jobs.line(rank, jobs.call(rank, name, size=count, last=2), per_host=8) for name in ("AllGather", "Send")
        ]
    return log([*lines, *watchdogs(count)])


def settings(count: int) -> Files:
    """NCCL's variables, another value on every rank."""
    lines = [jobs.line(rank, f"NCCL_IB_HCA set by environment to mlx5_{rank}.", per_host=8) for rank in range(count)]
    lines += [jobs.line(rank, f"NCCL_BUFFSIZE set by environment to {rank}.", per_host=8) for rank in range(count)]
    return log([*inits(count), *lines, *watchdogs(count)])


def gloo(count: int) -> Files:
    """Every pair of neighbours lost its connection."""
    text = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:{}] Connection closed by peer [10.0.{}.{}]:{}"
    return log(traceback(rank, text.format(525, rank >> 8, rank & 255, 2000 + rank)) for rank in range(count))


def store(count: int) -> Files:
    """No rank reaches the store, and each says so of another port."""
    text = "[W1121 01:02:03.000000 socket.cpp:{}] [c10d] The client socket has failed to connect to [node-0]:{} "
    text += "(errno: 111 - Connection refused).\n"
    error = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect"
    lines = [text.format(601, 20000 + rank) for rank in range(count)]
    return log([*lines, *(traceback(rank, f"{error} to (10.0.0.1, {20000 + rank}).") for rank in range(count))])


def exceptions(count: int) -> Files:
    """An error of the program on each rank, of a type and in words of its own."""
    return log(
        traceback(rank, f"app.{word(rank)}Error: {word(rank * 3)} is not {word(rank * 7)}") for rank in range(count)
    )


SHAPES: dict[str, Callable[[int], Files]] = {
    made.__name__: made
    for made in (
        merged, watchdogs_but_one, halves, timeouts_apart, steps, steps_then_errors, warnings, refused, out_of_memory,
        cuda_errors, xids, exits, attempts, jobs_in_a_row, unknown_errors, tables, dumps, ras, stacks,
        stuck_in_own_code, facts, logs, calls, settings, gloo, store, exceptions,
    )
}  # fmt: skip
