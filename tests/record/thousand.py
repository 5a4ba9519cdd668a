"""Write what a job of a thousand ranks leaves behind: one log and one Flight Recorder dump for each rank.

    python tests/record/thousand.py OUT [RANKS]

Format-true (NCCL 2.28.9, torch 2.11, as the bundled recordings hold them), equal on every call, written rank by rank.
Eight GPUs a host, one group over all ranks and one for each GPU of a host.  The truth, which a diagnosis must find:
rank STUCK sits in its data loader and never enters collective LAST, in which every other rank waits until its watchdog
gives up.  And what a view must not drown: the ranks of host ODD go through shared memory (a variable forbids P2P
there), and the clock of host AHEAD is ahead.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

RANKS, LOCAL = 1024, 8
STUCK, ODD, AHEAD = 517, 12, 90
LAST, KEPT = 241, 30
"""The collective that never completes, and how many entries each dump keeps."""
SHIFT, TIMEOUT = 3, 600
"""Seconds by which the odd clock is ahead, and of the watchdog."""
START = datetime(2026, 11, 21, 1, 40)
CHANNELS = 2
SIZE = 25557032
"""Elements of each gradient bucket."""
COMM = "0x9a5e3c01d2b4f677"
TORCH = "/env/lib/python3.12/site-packages/torch/distributed"


def healthy(folder: Path, ranks: int) -> Path:
    """Write ``rank<N>.log`` of the same job, which nothing and nobody stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        host, gpu, pid = rank // LOCAL, rank % LOCAL, _pid(rank)
        begun = [line for line in _begun(rank, ranks) if "P2P_DISABLE" not in line and " via SHM" not in line]
        steps = [f"step {step} loss {4 / (step + 1):.4f}" for step in range(0, LAST // 3, 5)]
        ident = f"comm 0x{0x3C000000 + rank:x} rank {rank} nranks {ranks} cudaDev {gpu} busId {_bus(gpu)}"
        place = f"[{_clock(host, 900):%Y-%m-%d %H:%M:%S}] node-{host:03d}:{pid}:{pid} [{gpu}] NCCL INFO"
        done = f"{place} {ident} - Destroy COMPLETE"
        (folder / f"rank{rank}.log").write_text("".join(f"{line}\n" for line in [*begun, *steps, done]))
    return folder


def write(folder: Path, ranks: int = RANKS, stuck: int = STUCK) -> Path:
    """Write ``rank<N>.log``, ``fr_rank_<N>`` and the stuck rank's stack into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        text = "".join(f"{line}\n" for line in log(rank, ranks, stuck))
        (folder / f"rank{rank}.log").write_text(text)
        (folder / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump(rank, ranks, stuck), protocol=2))
    (folder / f"stacks_rank{stuck}.txt").write_text(STACK.format(pid=_pid(stuck), rank=stuck))
    return folder


def log(rank: int, ranks: int, stuck: int) -> Iterator[str]:
    """The lines of one rank, as it would print them with NCCL_DEBUG=INFO and time stamps on."""
    yield from _begun(rank, ranks)
    yield from (f"step {step} loss {4 / (step + 1):.4f}" for step in range(0, LAST // 3, 5))
    prefix = f"[rank{rank}]:[E{{}} ProcessGroupNCCL.cpp:{{}}]"
    yield from _dumped(rank, stuck, prefix) if rank == stuck else _timed_out(rank, prefix)


def _begun(rank: int, ranks: int) -> Iterator[str]:
    """What NCCL says until the first collective."""
    host, gpu, pid = rank // LOCAL, rank % LOCAL, _pid(rank)
    ident = f"comm 0x{0x3C000000 + rank:x} rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} busId {_bus(gpu)}"
    group = ident.replace("0x3c", "0x5c").replace(
        f"rank {rank} nranks {ranks}", f"rank {host} nranks {-(-ranks // LOCAL)}"
    )
    group += f" commId 0x{0xD0000000 + gpu:x}"
    said = [
        (0.1, f"Bootstrap: Using eth0:10.{host // 250}.{host % 250}.1<0>"),
        (0.1, "NCCL version 2.28.9+cuda13.0"),
        (0.2, f"NET/IB : Using [0]mlx5_{gpu}:1/IB [RO]; OOB eth0:10.{host // 250}.{host % 250}.1<0>"),
        (0.2, "NCCL_IB_HCA set by environment to mlx5."),
        *([(0.2, "NCCL_P2P_DISABLE set by environment to 1.")] if host == ODD else []),
        (0.3, "Using network IB"),
        (0.4, f"ncclCommInitRankConfig {ident} commId {COMM} - Init START"),
        (8.0, f"comm 0x{0x3C000000 + rank:x} rank {rank} nRanks {ranks} nNodes {-(-ranks // LOCAL)} localRanks 8"),
        *((8.1, f"Ring {c:02d} : {(rank - 1) % ranks} -> {rank} -> {(rank + 1) % ranks}") for c in range(CHANNELS)),
        (9.0, f"ncclCommInitRankConfig {ident} commId {COMM} - Init COMPLETE"),
        *((9.5, line) for line in _channels(rank, ranks)),
        (10.0, "Connected all rings, use ring PXN 0 GDR 1"),
        (10.5, f"ncclCommInitRankConfig {group} - Init START"),
        (12.0, f"ncclCommInitRankConfig {group} - Init COMPLETE"),
    ]
    for seconds, text in said:
        yield f"[{_clock(host, seconds):%Y-%m-%d %H:%M:%S}] node-{host:03d}:{pid}:{pid} [{gpu}] NCCL INFO {text}"


def _timed_out(rank: int, prefix: str) -> Iterator[str]:
    when = 90 + TIMEOUT + rank % 40 / 10
    stamps = [_glog(rank // LOCAL, when + tenth / 10) for tenth in range(4)]
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    work = (
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={LAST}, OpType=ALLREDUCE, NumelIn={SIZE}, "
        f"NumelOut={SIZE}, Timeout(ms)={TIMEOUT}000) ran for {TIMEOUT}0{20 + rank % 70} milliseconds before timing out."
    )
    yield f"{prefix.format(stamps[0], 689)} [Rank {rank}] {work}"
    yield (
        f"{prefix.format(stamps[1], 2303)} {group}  failure detected by watchdog at work sequence id: {LAST} "
        f"PG status: last enqueued work: {LAST}, last completed work: {LAST - 1}"
    )
    yield (
        f"{prefix.format(stamps[2], 750)} [Rank {rank}] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
    )
    yield f"{prefix.format(stamps[3], 2119)} {group} Process group watchdog thread terminated with exception: {work}"


def _dumped(rank: int, stuck: int, prefix: str) -> Iterator[str]:
    stamp = _glog(rank // LOCAL, 90 + TIMEOUT + 5)
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    yield f"{prefix.format(stamp, 1849)} {group} Observed flight recorder dump signal from another rank via TCPStore."


def _channels(rank: int, ranks: int) -> Iterator[str]:
    """Rings run through each host in the order of its ranks; between hosts they go over the network."""
    after, gpu = (rank + 1) % ranks, rank % LOCAL
    inside = rank // LOCAL == after // LOCAL
    near = "SHM/direct/direct" if rank // LOCAL == ODD else "P2P/CUMEM"
    for channel in range(CHANNELS):
        if inside:
            yield f"Channel {channel:02d}/0 : {rank}[{gpu}] -> {after}[{after % LOCAL}] via {near}"
        else:
            yield f"Channel {channel:02d}/0 : {rank}[{gpu}] -> {after}[{after % LOCAL}] [send] via NET/IB/{gpu}/GDRDMA"


def dump(rank: int, ranks: int, stuck: int) -> dict[str, Any]:
    """One rank's Flight Recorder: its last collectives, one of which is open unless the rank is the stuck one."""
    last = LAST - (rank == stuck)
    begin = int(START.timestamp() * 1e9)
    gpu, made = rank % LOCAL, begin + rank * 1000
    calls = [(str(gpu + 1), "data_parallel", seq) for seq in range(1, 6)]
    calls += [("0", "default_pg", seq) for seq in range(last - KEPT, last + 1)]
    entries = [
        _entry(number, made + number * 330_000_000, (name, desc), seq, name != "0" or seq < LAST)
        for number, (name, desc, seq) in enumerate(calls, LAST - KEPT - 5)
    ]
    status = {"last_enqueued_collective": last, "last_started_collective": last, "last_completed_collective": LAST - 1}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
            str(gpu + 1): {"name": str(gpu + 1), "desc": "data_parallel", "ranks": str(list(range(gpu, ranks, LOCAL)))},
        },
        "pg_status": {"0": status},
        "entries": entries,
    }


def _entry(number: int, created: int, group: tuple[str, str], seq: int, done: bool) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": int(group[0] != "0"),
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": [[SIZE]],
        "input_dtypes": ["Float"],
        "output_sizes": [[SIZE]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": created + 1_000_000,
        "time_discovered_completed_ns": created + 200_000_000 if done else None,
        "retired": done,
        "timeout_ms": TIMEOUT * 1000,
        "is_p2p": False,
        "thread_id": "140290653419200",
        "thread_name": "pt_autograd_0",
        "frames": [
            {"name": "all_reduce", "filename": f"{TORCH}/distributed_c10d.py", "line": 3068},
            {"name": "train_step", "filename": "/app/train.py", "line": 212},
        ],
    }  # fmt: skip


STACK = """Process {pid}: rank {rank}
Current thread 0x00007f1ede62d140 (most recent call first):
  File "/app/data.py", line 88 in read_shard
  File "/app/data.py", line 41 in __iter__
  File "/app/train.py", line 207 in train
  File "/app/train.py", line 260 in <module>
"""


def _pid(rank: int) -> int:
    return 4000 + rank % LOCAL


def _bus(gpu: int) -> str:
    return f"{0x10 * (gpu + 1):x}000"


def _clock(host: int, seconds: float) -> datetime:
    """What the clock of a host says so many seconds after the start."""
    return START + timedelta(seconds=seconds + (SHIFT if host == AHEAD else 0))


def _glog(host: int, seconds: float) -> str:
    return f"{_clock(host, seconds):%m%d %H:%M:%S.%f}000"


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
