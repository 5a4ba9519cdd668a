"""Who holds the memory of a GPU, by torch's report that it ran out.

Torch lists the processes that the driver names, and calls its own one "this process".  In a
container it knows itself by another number than the driver does: then its own process is in the
list as if it were somebody else's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = r"([\d.]{1,20}) (bytes|[KMGT]iB)"
CONTEXT = 4 << 30
"""Bytes that a process holds at most beside what torch allocated: CUDA's context, NCCL's buffers,
libraries."""
ROUNDING = 0.02
"""Share of the card by which sizes, which are printed with two digits, may seem to exceed it."""


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Sizes of what other processes hold on a rank's GPU, as they are printed."""

    sizes: tuple[str, ...] = ()
    """Empty where there is none, or where the line does not tell the rank's own process from
    others."""

    @property
    def clause(self) -> str:
        """``another process holds 22.00 GiB``; empty where the line shows none."""
        if not self.sizes:
            return ""
        if len(self.sizes) == 1:
            who = "another process holds"
        else:
            who = f"{len(self.sizes)} other processes hold"
        return f"{who} {', '.join(self.sizes)}"


def other_processes(text: str) -> OtherProcesses:
    """The processes beside the rank's own that a line of torch proves.

    The sums of the line are checked before it is believed.
    """
    listed = []
    for found in re.findall(rf"Process \d+ has {SIZE} memory in use", text):
        listed.append("{} {}".format(*found))
    own = _size(text, rf"this process has {SIZE} memory in use")
    torch = _size(text, rf"Of the allocated memory {SIZE} is allocated by PyTorch")
    if own is None:
        return OtherProcesses(tuple(_without_own(listed, torch, text)))
    if not _fits(own + sum(map(_bytes, listed)), text):
        return OtherProcesses()  # more than the card has: the same process stands there twice
    return OtherProcesses(tuple(listed))


def _without_own(listed: list[str], torch: float | None, text: str) -> list[str]:
    """The list without the rank's own process.

    That is the one that can hold what torch says it allocated.
    """
    if not torch:
        return []  # nothing tells which of them it is
    reserved = _size(text, rf"and {SIZE} is reserved by PyTorch but unallocated") or 0.0
    least = torch + reserved
    beyond = {size: _bytes(size) - least for size in listed}
    possible = [size for size, more in beyond.items() if -ROUNDING * least <= more <= CONTEXT]
    if len(possible) != 1:
        return []
    others = list(listed)
    # one of them only, as two processes may hold as much
    others.remove(possible[0])
    return others


def _fits(held: float, text: str) -> bool:
    """Whether so many bytes, and what is free, fit on the card.

    It counts where the line says how large the card is.
    """
    total = _size(text, rf"total capacity of {SIZE}")
    free = _size(text, rf"of which {SIZE} is free") or 0.0
    return total is None or held + free <= (1 + ROUNDING) * total


def _size(text: str, pattern: str) -> float | None:
    found = re.search(pattern, text)
    if found:
        return _bytes(f"{found[1]} {found[2]}")
    return None


def _bytes(size: str) -> float:
    number, unit = size.split()
    try:
        return float(number) * UNITS[unit]
    except ValueError:  # 1.2.3
        return 0.0
