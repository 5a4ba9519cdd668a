"""Planners: the numbers that a job's settings must reach, worked out instead of guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ncclkit.core.text import format_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Budget:
    """One planned number and how it came about."""

    value: float
    unit: str
    words: str

    def __repr__(self) -> str:
        return self.words


def timeout(longest_phase_s: float, slowest_collective_s: float = 0.0, margin: float = 2.0) -> Budget:
    """Process-group timeout in seconds: the longest time that one rank may rightly be away, times a margin.

    longest_phase_s: longest rank-local phase (checkpoint, evaluation, replay of data on resume), seconds.
    """
    value = margin * (longest_phase_s + slowest_collective_s)
    return Budget(
        value,
        "s",
        f"{margin:g} x ({longest_phase_s:g} s on one rank + {slowest_collective_s:g} s collective) = {value:g} s.",
    )


def workers(cores: int, ranks: int, reserve_per_rank: int = 1) -> Budget:
    """DataLoader workers per rank so that workers and ranks fit on the cores of one host (at least 0)."""
    value = max(0, cores // ranks - reserve_per_rank)
    noun = "worker" if value == 1 else "workers"
    return Budget(
        value,
        "workers per rank",
        f"{cores} cores / {ranks} ranks - {reserve_per_rank} for the rank itself = {value} {noun}.",
    )


def descriptors(ranks: int, channels: int = 16, sockets_per_channel: int = 2, other: int = 256) -> Budget:
    """Open files that one rank needs over the socket transport: every peer can take a socket per channel, twice."""
    value = (ranks - 1) * channels * sockets_per_channel + other
    return Budget(
        value,
        "open files",
        f"{ranks - 1} peers x {channels} channels x {sockets_per_channel} sockets + {other} others = {value}.",
    )


SEGMENT = (4 << 20) + 640 * 120 * 8 * 8 + 512 * 8 * 16 * 8 + 4096
"""Bytes of NCCL's buffers for one direction between two ranks on one channel: Simple, LL128, LL and their counters.

It is the "shared memory segment … (size 9637888)" of NCCL's own message.
"""


def shared_memory(ranks: int, channels: int = 4) -> Budget:
    """Bytes of /dev/shm that the ranks of one host need where none copies directly: each sends in a ring and a tree."""
    value = ranks * 2 * channels * SEGMENT
    words = f"{ranks} ranks x 2 peers x {channels} channels x {format_bytes(SEGMENT)} = {format_bytes(value)}."
    return Budget(value, "bytes", words)


def locked_memory(channels: int = 16) -> Budget:
    """Bytes that one rank locks for a network card without GPUDirect: two peers in a ring, four in trees."""
    value = 6 * channels * SEGMENT
    return Budget(
        value, "bytes", f"6 connections x {channels} channels x {format_bytes(SEGMENT)} = {format_bytes(value)}."
    )


def threads(ranks: int, each: int = 128) -> Budget:
    """Threads that the ranks of one host run: OpenMP, CUDA, NCCL, autograd, and the workers of each with theirs."""
    return Budget(ranks * each, "threads", f"{ranks} ranks x {each} threads = {ranks * each}.")


def host_memory(
    dataset: float, ranks: int, workers_per_rank: int, prefetch: int, batch: float, shared: bool = False
) -> Budget:
    """Host memory in bytes: a copy of the dataset per rank (unless shared) and the batches that workers hold."""
    copies = 1 if shared else ranks
    value = dataset * copies + ranks * workers_per_rank * prefetch * batch
    return Budget(
        value,
        "bytes",
        f"{copies} x {format_bytes(dataset)} of data + {ranks} ranks x {workers_per_rank} workers x {prefetch} batches "
        f"of {format_bytes(batch)} = {format_bytes(value)}.",
    )


def micro_batches(samples: int, sample: float, room: float) -> Budget:
    """Micro-batches into which a rank divides its part of a step, so that each fits; the gradients add up to the same.

    samples: of one rank in one step; sample: bytes that training needs for one of them; room: bytes that there are.
    Raises ValueError where not even one sample fits.
    """
    if sample > room:
        raise ValueError("not even one sample fits")
    fit = int(room // sample) if sample > 0 else samples
    value = max(1, math.ceil(samples / fit))
    each = f"{value} micro-batches of {-(-samples // value)}"
    words = f"{samples} samples of {format_bytes(sample)} in {format_bytes(room)}: {each}."
    return Budget(value, "micro-batches", words)


def knee(steps: Mapping[int, tuple[float, float]]) -> Budget:
    """The fewest DataLoader workers per rank whose steps cannot be told from the fastest ones.

    steps: workers per rank → between what and what half of the steps lay, in milliseconds.  Raises ValueError where
    nothing was measured.
    """
    fastest = min(steps, key=lambda workers: sum(steps[workers]))
    value = min(workers for workers, (low, _) in steps.items() if low <= steps[fastest][1])
    own, best = ("{:.3g} to {:.3g} ms".format(*steps[workers]) for workers in (value, fastest))
    against = "" if value == fastest else f", as those with {fastest} do: {best}"
    words = f"The fewest whose steps take as long as the fastest: {value} (half of the steps: {own}{against})."
    return Budget(value, "workers per rank", words)


def open_files(measured: Mapping[int, float], ranks: int) -> Budget:
    """Open files of one rank at `ranks`, on the straight line through what was measured at fewer.

    measured: ranks → open files.  Raises ValueError where fewer than two counts were measured.
    """
    few, many = min(measured), max(measured)
    if few == many:
        raise ValueError("a straight line needs two counts of ranks")
    each = (measured[many] - measured[few]) / (many - few)
    value = measured[many] + each * (ranks - many)
    words = f"{measured[many]:g} measured at {many} ranks + {each:.3g} for each of {ranks - many} more = {value:.0f}."
    return Budget(round(value), "open files", words)


def phase(done: float, total: float, seconds: float) -> Budget:
    """How long a phase takes from its start to its end, in seconds, when `done` of `total` took `seconds`.

    Raises ValueError where nothing is done yet.
    """
    if done <= 0:
        raise ValueError("no pace can be told before anything is done")
    value = seconds * total / done
    return Budget(value, "s", f"{done:g} of {total:g} in {seconds:g} s: all of it takes {value:.3g} s.")
