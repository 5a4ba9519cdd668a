"""What p2pBandwidthLatencyTest measured of the copies between GPUs, with peer-to-peer and without."""

from __future__ import annotations

from ncclkit.core.case import Case
from ncclkit.core.model import Event

SLOWER = 2
"""Direct copies that are this many times slower than those through the host are not healthy on any machine."""


def measured(case: Case) -> list[tuple[Event, Event]]:
    """p2pBandwidthLatencyTest's matrices with and without peer-to-peer, in pairs."""
    tables = case.of("p2p.matrix")
    return [
        (on, off)
        for on in tables
        for off in tables
        if on.data["enabled"]
        and not off.data["enabled"]
        and all(on.data[key] == off.data[key] for key in ("direction", "gpus"))
        and (on.path, on.host) == (off.path, off.host)
    ]


def slow(case: Case) -> list[tuple[float, int, int, float, float]]:
    """(how many times slower, from GPU, to GPU, GB/s direct, GB/s through the host) of pairs that are not healthy.

    Equal ones are no sign: without peer access, and on PCIe, both go the same way.
    """
    return [
        (fast / max(direct, 0.01), a, b, direct, fast)
        for on, off in measured(case)
        for a, direct_row, fast_row in zip(on.data["gpus"], on.data["values"], off.data["values"], strict=False)
        for b, direct, fast in zip(on.data["gpus"], direct_row, fast_row, strict=True)
        if a != b and direct * SLOWER < fast
    ]
