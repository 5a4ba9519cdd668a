"""Planners: the numbers that a job's settings must reach, worked out instead of guessed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """One planned number and how it came about."""

    value: float
    unit: str
    words: str


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
    return Budget(
        value,
        "workers per rank",
        f"{cores} cores / {ranks} ranks - {reserve_per_rank} for the rank itself = {value} workers.",
    )


def descriptors(ranks: int, channels: int = 16, sockets_per_channel: int = 2, other: int = 256) -> Budget:
    """Open files that one rank needs over the socket transport: every peer can take a socket per channel, twice."""
    value = (ranks - 1) * channels * sockets_per_channel + other
    return Budget(
        value,
        "open files",
        f"{ranks - 1} peers x {channels} channels x {sockets_per_channel} sockets + {other} others = {value}.",
    )


def host_memory(
    dataset: float, ranks: int, workers_per_rank: int, prefetch: int, batch: float, shared: bool = False
) -> Budget:
    """Host memory in bytes: a copy of the dataset per rank (unless shared) and the batches that workers hold."""
    copies = 1 if shared else ranks
    value = dataset * copies + ranks * workers_per_rank * prefetch * batch
    return Budget(
        value,
        "bytes",
        f"{copies} x dataset + {ranks} ranks x {workers_per_rank} workers x {prefetch} batches in flight.",
    )
