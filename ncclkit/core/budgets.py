"""Planners: the numbers that a job's settings must reach, worked out instead of guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclkit.core.text import format_bytes, plural


@dataclass(frozen=True, slots=True, repr=False)
class Budget:
    """One planned number and how it came about."""

    value: float
    unit: str
    words: str
    parts: Mapping[str, float] = field(default_factory=dict)
    """What it is made of, in the same unit."""

    def __repr__(self) -> str:
        return self.words


RETRY = 30.0
"""Seconds for which InfiniBand tries again before it reports an error (timeout 20, 7 retries)."""


def timeout(
    longest_phase_s: float,
    slowest_collective_s: float = 0.0,
    spread: float = 0.0,
    retry_s: float = RETRY,
) -> Budget:
    """Smallest safe timeout of a process group in seconds.

    No sound job reaches it, and a hang is found soonest.

    `longest_phase_s` is what one rank does alone at most between two collectives of the group
    (checkpoint, evaluation, compilation, replay of data on resume); `spread` the share by which
    that varies from time to time; `retry_s` the time for which the network itself tries again.
    """
    # twice the phase is too short for one that varies threefold, and wastes GPU hours for a steady
    # one
    # added one by one and returned by name, so that the user sees which part to shorten
    parts = {"longest phase": longest_phase_s, "its spread": spread * longest_phase_s}
    parts |= {"slowest collective": slowest_collective_s, "network retries": retry_s}
    value = math.ceil(sum(parts.values()))
    said = f"{longest_phase_s:g} s on one rank + {parts['its spread']:g} s by which that varies"
    words = (
        f"{said} + {slowest_collective_s:g} s collective + {retry_s:g} s of network retries ="
        f" {value:g} s."
    )
    return Budget(value, "s", words, parts)


def idle_cost(ranks: int, timeout_s: float, dump_s: float) -> Budget:
    """GPU hours that one hang costs until it is found.

    All ranks wait for the timeout, and for the dumps.
    """
    value = ranks * (timeout_s + dump_s) / 3600
    words = (
        f"{ranks} GPUs x ({timeout_s:g} s timeout + {dump_s:g} s for dumps) / 3,600 = {value:.3g}"
        " GPU hours a hang."
    )
    return Budget(value, "GPU hours", words)


def workers(cores: int, ranks: int) -> Budget:
    """DataLoader workers per rank that one host's cores allow; at least 0.

    It keeps (workers + 1) x ranks <= cores of one host.
    """
    # the rank's own process needs a core, too, or its workers starve it
    value = max(0, cores // ranks - 1)
    noun = "workers"
    if value == 1:
        noun = "worker"
    return Budget(
        value,
        "workers per rank",
        f"{cores} cores / {ranks} ranks - 1 for the rank itself = {value} {noun}.",
    )


def descriptors(
    ranks: int, channels: int = 16, sockets_per_channel: int = 2, other: int = 256
) -> Budget:
    """Open files that one rank needs over the socket transport.

    Every peer can take a socket per channel, twice.
    """
    value = (ranks - 1) * channels * sockets_per_channel + other
    return Budget(
        value,
        "open files",
        f"{ranks - 1} peers x {channels} channels x {sockets_per_channel} sockets + {other} others"
        f" = {value}.",
    )


SEGMENT = (4 << 20) + 640 * 120 * 8 * 8 + 512 * 8 * 16 * 8 + 4096
"""Bytes of NCCL's buffers for one direction between two ranks on one channel.

They are those of Simple, LL128, LL and their counters, the "shared memory segment … (size 9637888)"
of NCCL's own message.
"""


def shared_memory(ranks: int, channels: int = 4) -> Budget:
    """Bytes of /dev/shm for the ranks of one host where none copies directly.

    Each rank sends to the next one in the ring, and to the one before as well in the tree, which is
    a chain within a host.  Of two ranks these are the same one: measured on two H100
    (`tests/bench/results/tune-h100-x2.json`).
    """
    peers = min(2, ranks - 1)
    value = ranks * peers * channels * SEGMENT
    sends = f"{ranks} ranks x {plural(peers, 'peer')} x {channels} channels"
    words = f"{sends} x {format_bytes(SEGMENT)} = {format_bytes(value)}."
    return Budget(value, "bytes", words)


def loader_memory(ranks: int, workers_per_rank: int, prefetch: int, batch: float) -> Budget:
    """Bytes of /dev/shm that data loaders of one host fill.

    They are what each worker has ready, and the batch in use.
    """
    held = 0
    if workers_per_rank:
        held = workers_per_rank * prefetch + 1
    value = ranks * held * batch
    words = (
        f"Data loaders: {ranks} ranks x ({workers_per_rank} workers x {prefetch} batches + 1 in"
        f" use) of {format_bytes(batch)} = {format_bytes(value)}."
    )
    return Budget(
        value, "bytes", words if held else "Without workers data loaders need no shared memory."
    )


def locked_memory(channels: int = 16) -> Budget:
    """Bytes that one rank locks for a network card without GPUDirect.

    It has two peers in a ring, and four in trees.
    """
    value = 6 * channels * SEGMENT
    return Budget(
        value,
        "bytes",
        f"6 connections x {channels} channels x {format_bytes(SEGMENT)} = {format_bytes(value)}.",
    )


def threads(ranks: int, each: int = 128) -> Budget:
    """Threads that the ranks of one host run.

    They are those of OpenMP, CUDA, NCCL and autograd, and the workers of each rank with theirs.
    """
    return Budget(ranks * each, "threads", f"{ranks} ranks x {each} threads = {ranks * each}.")


def host_memory(
    dataset: float,
    ranks: int,
    workers_per_rank: int,
    prefetch: int,
    batch: float,
    shared: bool = False,
    each: float = 0.0,
) -> Budget:
    """Host memory in bytes: data of the ranks, and what workers hold.

    It counts a copy of the dataset per rank (unless `shared`) and the batches that workers hold.
    `each` is what a rank takes before it has any data: Python, torch, CUDA.
    """
    if shared:
        copies = 1
    else:
        copies = ranks
    parts = {"data": dataset * copies, "batches ahead": ranks * workers_per_rank * prefetch * batch}
    parts["ranks"] = ranks * each
    value = sum(parts.values())
    own = ""
    if each:
        own = f" + {ranks} ranks of {format_bytes(each)}"
    return Budget(
        value,
        "bytes",
        f"{copies} x {format_bytes(dataset)} of data + {ranks} ranks x {workers_per_rank} workers x"
        f" {prefetch} batches of {format_bytes(batch)}{own} = {format_bytes(value)}.",
        parts,
    )


ADAM = {"bf16, fp32 master weights": (2, 2, 12), "fp32, or autocast": (4, 4, 8)}
"""Precision → bytes of a parameter for weights, gradients, and Adam with its master weights."""
SHARDS = {"DDP": (), "ZeRO-1": (2,), "ZeRO-2": (1, 2), "FSDP, ZeRO-3": (0, 1, 2)}
"""Strategy → which of weights (0), gradients (1) and optimizer (2) the ranks divide among each
other."""
CONTEXT = 600 << 20
"""Bytes of a CUDA context and its libraries on one GPU."""


def activations(layers: int, hidden: int, sequence: int, vocabulary: int, item: int = 2) -> Budget:
    """Bytes of one sample's activations in a transformer.

    Its attention keeps no matrix (FlashAttention).  A layer takes 34 values of two bytes for each
    element (Korthikanti et al. 2022); the logits come with their gradient in fp32.
    """
    # 17 values of `item` bytes are the 34 bytes of the paper at two bytes each
    body = 17 * item * layers * sequence * hidden
    logits = sequence * vocabulary * (item + 4)
    words = (
        f"{layers} layers x {sequence} tokens x {hidden} x {17 * item} B + {sequence} x"
        f" {vocabulary} logits x {item + 4} B = {format_bytes(body + logits)} a sample."
    )
    return Budget(body + logits, "bytes", words)


def per_sample(activations: float, layers: int) -> float:
    """Bytes that one more sample takes at most.

    These are its activations, and their gradients in the layer that is computed.
    """
    return activations * (1 + 1 / layers if layers > 1 else 1)


def gpu_memory(
    parameters: float,
    ranks: int,
    strategy: str,
    precision: str,
    sample: float,
    batch: int,
    layers: int = 1,
    other: float = CONTEXT,
) -> Budget:
    """Bytes that training takes at most on one GPU, with Adam.

    `sample` is the bytes of one sample's activations; `batch` the samples of a rank; `layers` 1
    where unknown; `other` CUDA's context, the workspaces of cuBLAS and NCCL's buffers.  Activations
    go as gradients come, so the larger of the two counts, beside weights, optimizer and buckets.
    """
    whole = [parameters * each for each in ADAM[precision]]
    share = []
    for place, size in enumerate(whole):
        share.append(size / ranks if place in SHARDS[strategy] else size)
    gathered = 0.0
    if strategy.startswith("FSDP"):
        gathered = 2 * whole[0] / layers
    if strategy == "DDP":
        buckets = whole[1]
    else:
        buckets = gathered
    update = parameters * 4 / (ranks if 2 in SHARDS[strategy] else 1)  # Adam's square root, in fp32
    held = per_sample(sample, layers) * batch
    # activations go as gradients come, so the larger of the two counts
    moving = max(held, share[1] + update)
    name = "gradients, update"
    if moving == held:
        name = "activations"
    parts = {
        "weights": share[0],
        "optimizer": share[2],
        "buckets": buckets,
        name: moving,
        "CUDA, NCCL": other,
    }
    parts_in_words = []
    for what, size in parts.items():
        if size:
            parts_in_words.append(f"{format_bytes(size)} {what}")
    words = " + ".join(parts_in_words)
    value = sum(parts.values())
    return Budget(value, "bytes", f"{words} = {format_bytes(value)}.", parts)


def largest_batch(room: float, without: float, sample: float) -> int:
    """Samples of a rank that fit in the memory; 0 where none does.

    Everything else takes `without` bytes.
    """
    if sample > 0:
        return max(0, int((room - without) // sample))
    return 0


def micro_batches(samples: int, sample: float, room: float) -> Budget:
    """Gradient accumulation steps by which a rank's part of a step fits.

    The gradients stay the same.  `samples` are those of one rank in one step; `sample` the bytes
    that training needs for one of them; `room` the bytes that there are.  Raises ValueError where
    not even one sample fits.
    """
    if sample > room:
        raise ValueError("not even one sample fits")
    if sample > 0:
        fit = int(room // sample)
    else:
        fit = samples
    value = max(1, math.ceil(samples / fit))
    each = f"{value} micro-batches of {-(-samples // value)}"
    words = f"{samples} samples of {format_bytes(sample)} in {format_bytes(room)}: {each}."
    return Budget(value, "micro-batches", words)


def knee(steps: Mapping[int, tuple[float, float]]) -> Budget:
    """The fewest DataLoader workers per rank whose steps are among the fastest.

    They cannot be told from the fastest ones.  `steps` is workers per rank → between what and what
    half of the steps lay, in milliseconds.  Raises ValueError where nothing was measured.
    """
    # the sum of both quartiles is twice their middle
    fastest = min(steps, key=lambda workers: sum(steps[workers]))
    alike = alike_steps(steps)
    value = alike[0]
    own, best = ("{:.3g} to {:.3g} ms".format(*steps[workers]) for workers in (value, fastest))
    if value == fastest:
        against = ""
    else:
        against = f", as those with {fastest} do: {best}"
    words = (
        f"The fewest whose steps take as long as the fastest: {value} (half of the steps:"
        f" {own}{against})."
    )
    if len(alike) > 1:
        words += f" Which of {', '.join(map(str, alike))} is fastest these steps cannot tell."
    return Budget(value, "workers per rank", words)


def alike_steps(steps: Mapping[int, tuple[float, float]]) -> list[int]:
    """The counts of workers whose steps cannot be told from the fastest ones.

    The fastest ones are included.
    """
    fastest = min(steps, key=lambda workers: sum(steps[workers]))
    # intervals that overlap cannot be told apart, so the fewest workers among them cost least
    return [workers for workers, (low, _) in sorted(steps.items()) if low <= steps[fastest][1]]


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What a message costs: a fixed time, and a time for each byte."""

    latency_us: float
    us_per_byte: float
    """Inverse of the bandwidth."""

    def all_reduce(self, ranks: int, size: float) -> float:
        """Microseconds of an all_reduce.

        They are a tree's latency, and a ring's bandwidth, whose parts overlap well.
        """
        # a tree's latency and a ring's bandwidth: on 4 H200 off by 2 % (median of ten sizes)
        hops = 2 * math.ceil(math.log2(max(ranks, 2)))
        return hops * self.latency_us + 2 * (ranks - 1) / ranks * size * self.us_per_byte


def fitted(points: Sequence[tuple[int, float, float]]) -> MessageCost:
    """The line through all_reduce times whose relative errors are least.

    `points` are (ranks, bytes, microseconds).  Raises ValueError with fewer than two sizes.
    """
    if len({size for _, size, _ in points}) < 2:
        raise ValueError("a line needs two sizes")
    # least squares of 1 = (a x + b y) / t
    rows = []
    for ranks, size, time in points:
        rows.append(
            (2 * math.ceil(math.log2(max(ranks, 2))) / time, 2 * (ranks - 1) / ranks * size / time)
        )
    xx = sum(a * a for a, _ in rows)
    xy = sum(a * b for a, b in rows)
    yy = sum(b * b for _, b in rows)
    x = sum(a for a, _ in rows)
    y = sum(b for _, b in rows)
    down = xx * yy - xy * xy
    latency = (x * yy - y * xy) / down
    byte = (y * xx - x * xy) / down
    if latency <= 0 or byte <= 0:  # one of the two explains everything
        if byte <= 0:
            return MessageCost(x / xx, 0.0)
        return MessageCost(0.0, y / yy)
    return MessageCost(latency, byte)


def open_files_budget(measured: Mapping[int, float], ranks: int) -> Budget:
    """Open files of one rank at `ranks`.

    They lie on the straight line through what was `measured` at fewer: ranks → open files.  Raises
    ValueError where fewer than two counts were measured.
    """
    few = min(measured)
    many = max(measured)
    if few == many:
        raise ValueError("a straight line needs two counts of ranks")
    each = (measured[many] - measured[few]) / (many - few)
    value = measured[many] + each * (ranks - many)
    words = (
        f"{measured[many]:g} measured at {many} ranks + {each:.3g} for each of {ranks - many} more"
        f" = {value:.0f}."
    )
    return Budget(round(value), "open files", words)


def phase(done: float, total: float, seconds: float) -> Budget:
    """How long a phase takes from its start to its end, in seconds.

    By now `done` of `total` took `seconds`.  Raises ValueError where nothing is done yet.
    """
    if done <= 0:
        raise ValueError("no pace can be told before anything is done")
    value = seconds * total / done
    return Budget(
        value, "s", f"{done:g} of {total:g} in {seconds:g} s: all of it takes {value:.3g} s."
    )
