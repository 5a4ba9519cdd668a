"""Synthetic logs that look like those of a job of 256 ranks, written as a stream; see `scan.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

RANKS = 256
HITS = 1e-4
"""Share of lines that say something in the `mixed` log."""

# What NCCL prints at NCCL_DEBUG=INFO and no cause asks for: topology, graph search, proxies, allocations.
INFO = (
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO === System : maxBw 48.0 totalBw 370.8 ===",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO CPU/{gpu}-0 (1/1/2)",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO + PCI[48.0] - NIC/{gpu}-{byte:x}000",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO               + NVL[370.8] - NVS/0-0",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO GPU/{gpu}-{byte:x}000 :GPU/0-1b000 (2/370.8/NVL) NET/{gpu}-2 (3/24.0/PXB)",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO threadThresholds 8/8/64 | 2048/8/64 | 512 | 512",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO New proxy send connection {small} from local rank {gpu}, transport 2",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO Mem Alloc Size {size} pointer 0x7f{long:010x}",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO proxyProgressAsync opId=0x7f{long:010x} op.type={gpu} op.respSize=16 done",
)
TRAINING = (
    "[rank{rank}]: {day} {clock},{ms:03d} INFO trainer.py:412 step {step} loss {loss:.4f} lr 3.0e-04 tokens/s {size}",
    "[rank{rank}]: step {step}/100000 | loss {loss:.5f} | tflops {small}.{gpu} | mem {small}.{byte} GiB",
    "{day} {clock},{ms:03d} [INFO] data.loader shard {byte} of 512 read in {loss:.3f} s, {ms} samples, cached 0.{ms}",
    "{node}: iteration {step} of 100000 | consumed samples: {size} | elapsed time per iteration (ms): {ms}.{small} | "
    "learning rate: 3.000E-04 | global batch size: 512 | lm loss: {loss:.6E} | grad norm: 0.{ms}",
)
BARS = ("\rEpoch 3:  {small}%|██████▌         | {step}/100000 [1:{clock}<2:10:11, {small}.{ms}it/s, loss={loss:.3f}]",)
HARMLESS = (
    "/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:{ms}: UserWarning: torch.utils.checkpoint: the "
    "use_reentrant parameter should be passed explicitly.",
    "[rank{rank}]:[W1121 {clock}.{ms:03d}000 Utils.hpp:110] Warning: Environment variable NCCL_BLOCKING_WAIT is "
    "deprecated; use TORCH_NCCL_BLOCKING_WAIT instead (function operator())",
    "WARNING:root:tokenizer length {step} is above the model's maximum of 4096, {small} tokens cut",
    "wandb: WARNING retrying request, status 503, attempt {small}",
    "{day} {clock},{ms:03d} [WARNING] dataloader: worker {small} is {ms} ms late, prefetch factor raised",
    "FutureWarning: `clean_up_tokenization_spaces` was not set; it will be set to `True` by default ({small})",
)
EVENTS = (
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO Channel {small:02d}/0 : {gpu}[{gpu}] -> 1[1] via P2P/CUMEM",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO Using network IB",
    "{node}:{pid}:{tid} [{gpu}] transport/shm.cc:590 NCCL WARN Error while attaching to shared memory (size 96)",
    "[rank{rank}]:[E1121 {clock}.{ms} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={step}, OpType=ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=60000) ran for 60044 "
    "milliseconds before timing out.",
    "[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has a total "
    "capacity of 79.15 GiB of which 1.06 GiB is free.",
)
WARNINGS = (
    "[{day} {clock}] {node}:{pid}:{tid} [{gpu}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
    "10.0.{gpu}.{gpu}<{size}> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_{gpu}",
    "[{day} {clock}] {node}:{pid}:{tid} [{gpu}] misc/socket.cc:915 (socketProgress) NCCL WARN socketProgress: "
    "Connection closed by remote peer node-{gpu}<{size}>",
    "[{day} {clock}] {node}:{pid}:{tid} [{gpu}] proxy.cc:1671 NCCL WARN [Service thread] Accept failed Too many open "
    "files, {step} in use",
    "[{day} {clock}] {node}:{pid}:{tid} [{gpu}] enqueue.cc:1556 NCCL WARN Cuda failure {gpu} 'invalid argument'",
)
COLLECTIVES = (
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO AllReduce: opCount {step:x} sendbuff 0x7f{long:010x} recvbuff "
    "0x7f{long:010x} count {gpu}048576 datatype 9 op 0 root 0 comm 0x55{rank:010x} [nranks=256] stream 0x56{rank:010x}",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO AllGather: opCount {step:x} sendbuff 0x7f{long:010x} recvbuff "
    "0x7f{long:010x} count {gpu}2048 datatype 7 op 0 root 0 comm 0x56{rank:010x} [nranks=8] stream 0x56{rank:010x}",
)
CHANNELS = (
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO Channel {small:02d}/0 : {rank}[{gpu}] -> {next}[{gpu}] [send] via "
    "NET/IB/{gpu}/GDRDMA",
    "{node}:{pid}:{tid} [{gpu}] NCCL INFO Channel {small:02d}/0 : {rank}[{gpu}] -> {next}[{gpu}] via P2P/CUMEM/read",
)
POOL = 1 << 16


def line(rng: random.Random, kinds: tuple[str, ...]) -> str:
    """One line of one of these kinds, of a random rank."""
    rank = rng.randrange(RANKS)
    text = rng.choice(kinds).format(
        rank=rank,
        next=(rank + 1) % RANKS,
        node=f"node-{rank // 8:02d}",
        gpu=rank % 8,
        pid=41_000 + rank,
        tid=41_000 + rank + 300 * rng.randrange(4),
        day="2026-11-21",
        clock=f"0{rng.randrange(10)}:{rng.randrange(60):02d}:{rng.randrange(60):02d}",
        ms=rng.randrange(1000),
        step=rng.randrange(100_000),
        loss=rng.random() * 4,
        small=rng.randrange(32),
        byte=rng.randrange(256),
        size=rng.randrange(1_000, 60_000),
        long=rng.randrange(1 << 40),
    )
    return text if kinds is BARS else text + "\n"


def mixed(rng: random.Random) -> Iterator[str]:
    """Lines of a training job of which one in ten thousand says something."""
    while True:
        kind = rng.random()
        kinds = INFO if kind < 0.3 else TRAINING if kind < 0.85 else BARS if kind < 0.93 else HARMLESS
        yield line(rng, EVENTS if rng.random() < HITS else kinds)


def all_of(kinds: tuple[str, ...]) -> Callable[[random.Random], Iterator[str]]:
    """Logs of which every line says something."""

    def lines(rng: random.Random) -> Iterator[str]:
        while True:
            yield line(rng, kinds)

    return lines


LOGS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "mixed": mixed,
    "all WARN": all_of(WARNINGS),
    "all COLL": all_of(COLLECTIVES),
    "all channels": all_of(CHANNELS),
}


def write(path: Path, name: str, size: int) -> None:
    """Write a log of about `size` bytes; "one line" is a single line without an end."""
    with path.open("wb") as out:
        if name == "one line":
            while out.tell() < size:
                out.write(b"token 17 of shard 42 is 0.123, " * (POOL // 2))
            return
        lines = LOGS[name](random.Random(7))
        while out.tell() < size:
            out.write("".join(next(lines) for _ in range(POOL)).encode())
