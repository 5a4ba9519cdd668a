"""Whole jobs as text: what the ranks of several NCCL and torch versions print.  Format-true, written here."""

from __future__ import annotations

from collections.abc import Iterable


COMM_ID = "0x7c120c2fdde7853"


def line(rank: int, text: str, *, per_host: int = 4, stamp: str = "") -> str:
    """A line of NCCL, from process 1000 + rank on host n<rank // per_host>."""
    return f"{stamp}n{rank // per_host}:{1000 + rank}:{1000 + rank} [{rank % per_host}] NCCL INFO {text}\n"


def pointer(rank: int, number: int = 0) -> str:
    return f"0x{0x55D0000 + 256 * rank + number:x}"


def init(
    version: str, rank: int, ranks: int, *, phase: str = "COMPLETE", comm_id: str = COMM_ID, number: int = 0
) -> str:
    """The INIT line of one rank, as the version prints it; empty where it prints none."""
    minor = int(version.split(".")[1])
    if minor < 18 and phase == "START":
        return ""
    front = f"[Rank {rank}] " * (minor >= 29 and phase == "START") + "ncclCommInitRankConfig " * (minor >= 21)
    nvml = f" nvmlDev {rank % 4}" * (minor >= 18)
    last = f" commId {comm_id}" * (minor >= 16)
    gpu = f"cudaDev {rank % 4}{nvml} busId {rank % 4 + 1}b000"
    return f"{front}comm {pointer(rank, number)} rank {rank} nranks {ranks} {gpu}{last} - Init {phase}"


def child(version: str, world: int, rank: int, ranks: int, color: int, *, nth: int = 1) -> str:
    """The INIT line of a child of a split: global rank `world` is `rank` of `ranks` in it."""
    minor = int(version.split(".")[1])
    count = f"childCount {nth} " if minor >= 29 else f"splitCount {nth} " if minor >= 24 else ""
    gpu = f"cudaDev {world % 4} nvmlDev {world % 4} busId {world % 4 + 1}b000"
    return (
        f"ncclCommSplit comm {pointer(world, 16 * nth)} rank {rank} nranks {ranks} {gpu} parent {pointer(world)} "
        f"{count}color {color} key {rank}- Init COMPLETE"
    )


def started(version: str, ranks: Iterable[int], size: int, *, per_host: int = 4) -> str:
    """All these ranks come through the init of the job's communicator."""
    held = list(ranks)
    phases = [init(version, rank, size, phase=phase) for phase in ("START", "COMPLETE") for rank in held]
    return "".join(line(rank, text, per_host=per_host) for rank, text in zip(held * 2, phases, strict=True) if text)


def call(
    rank: int,
    name: str = "AllReduce",
    count: int = 1024,
    dtype: int = 7,
    *,
    size: int = 4,
    last: int = 0,
    number: int = 0,
) -> str:
    """A COLL line."""
    return (
        f"{name}: opCount {last:x} sendbuff 0x7f recvbuff 0x7f count {count} datatype {dtype} op 0 root 0 "
        f"comm {pointer(rank, number)} [nranks={size}] stream 0x5"
    )


def timeout(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    numel: int = 1024,
    *,
    pg: str | None = "0(default_pg)",
    at: str = "00:00:00.000000",
) -> str:
    """The watchdog's word, with its group since torch 2.14."""
    who = f"[PG GUID {pg} Rank {rank}]" if pg else f"[Rank {rank}]"
    work = f"SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000"
    return (
        f"[rank{rank}]:[E1121 {at} ProcessGroupNCCL.cpp:689] {who} Watchdog caught collective operation timeout: "
        f"WorkNCCL({work}) ran for 600010 milliseconds before timing out.\n"
    )


def status(rank: int, enqueued: int, completed: int, *, pg: str = "0(default_pg)", id: int = 0) -> str:
    """What torch 2.5 and later prints where another rank's watchdog asks for a dump."""
    why = "Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump."
    who = f"[rank{rank}]:[E1121 00:00:00.000000 ProcessGroupNCCL.cpp:1914] [PG ID {id} PG GUID {pg} Rank {rank}]"
    return f"{who} {why} Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"


def large(size: int = 1024, *, late: int = 600, silent: int = 17, version: str = "2.28.9") -> str:
    """A job of `size` ranks, eight a host: one never came to all_reduce 42 of the job, one left no line at all.

    Each host has a communicator of its own (tensor parallel), split from the job's.
    """
    ranks = [rank for rank in range(size) if rank != silent]
    text = [started(version, ranks, size, per_host=8)]
    for rank in ranks:
        text += [
            line(rank, f"Ring 0{c} : {(rank - 1) % size} -> {rank} -> {(rank + 1) % size}", per_host=8) for c in (0, 1)
        ]
        way = "P2P/CUMEM" if rank % 8 < 7 else "NET/IB/0/GDRDMA"
        text += [
            line(rank, f"Channel 0{c}/0 : {rank}[{rank % 8}] -> {(rank + 1) % size}[0] via {way}", per_host=8)
            for c in (0, 1)
        ]
        text += [line(rank, "NCCL_SOCKET_IFNAME set by environment to eth0.", per_host=8)]
        text += [line(rank, child(version, rank, rank % 8, 8, rank // 8), per_host=8)]
        text += [line(rank, call(rank, size=size), per_host=8)] * (3 if rank == late else 4)
    text += [status(rank, 41, 41) if rank == late else timeout(rank, 42) for rank in ranks]
    return "".join(text)
