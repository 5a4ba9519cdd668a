"""How ranks, collectives and sizes are written for people, and read from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ncclkit.core.model import NcclkitError

SHOWN = 8
"""Ranges of ranks that a text names before it counts the rest."""
OPS = {
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_base": "all_to_all",
    "alltoall_base": "all_to_all",
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
"""Lower-case names of c10d, the Flight Recorder and NCCL → torch.distributed's own."""


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 2 and 5``, ``ranks 0-16 and 18-63``, ``no rank``."""
    runs: list[list[int]] = []
    for rank in sorted(set(numbers)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [part for run in runs for part in (map(str, run) if len(run) < 3 else [f"{run[0]}-{run[-1]}"])]
    if len(parts) < 2:
        return f"rank{'s' if '-' in parts[0] else ''} {parts[0]}" if parts else "no rank"
    tail = f"{sum(map(_width, parts[SHOWN:]))} more" if len(parts) > SHOWN + 1 else parts.pop()
    return f"ranks {', '.join(parts[:SHOWN])} and {tail}"


def _width(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def rate(speed: float) -> str:
    """``160.00 GB/s``; with two digits that count where it is low, ``0.0032``, and no fraction where it is high."""
    return f"{speed:,.0f} GB/s" if speed >= 1000 else f"{speed:.2f} GB/s" if speed >= 0.1 else f"{speed:.2g} GB/s"


def verb(numbers: Iterable[int], one: str, many: str) -> str:
    """The form of a verb that agrees with the ranks before it."""
    return one if len(set(numbers)) == 1 else many


def start(sentence: str) -> str:
    """The sentence with a capital letter at its beginning."""
    return sentence[:1].upper() + sentence[1:]


def op(name: str) -> str:
    """``ALLREDUCE``, ``AllReduce``, ``nccl:all_reduce`` → ``all_reduce``; ``collective`` where there is no name."""
    plain = name.rpartition(":")[2].lower()
    return OPS.get(plain, plain) or "collective"


def group(name: str, desc: str) -> str:
    """A process group as people know it: its description, else its name."""
    return desc if desc and desc != "undefined" else f"group {name}" if name else "an unnamed group"


def collective(name: str, seq: int | None, group_name: str, desc: str) -> str:
    """``all_reduce 42 of default_pg``; without the group where nothing names it."""
    call = f"{op(name)} {seq}" if seq is not None and seq >= 0 else op(name)
    return f"{call} of {group(group_name, desc)}" if group_name or desc else call


_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(?:([KMGT])(iB|B)?|B)?", re.IGNORECASE)


def parse_size(value: Any, what: str = "The size") -> int:
    """Bytes from a whole number or from text: ``4096``, ``64MB`` (powers of 1000), ``1GiB`` and ``1G`` (of 1024).

    Raises NcclkitError, about `what`, for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise NcclkitError(f"{what} must be a number of bytes such as 4096, 64MB or 1GiB, but it is {value!r}.")
    number, letter, rest = match.groups()
    power = "KMGT".index(letter.upper()) + 1 if letter else 0
    factor = int((1000 if (rest or "").upper() == "B" else 1024) ** power)
    return round(float(number) * factor) if "." in number else int(number) * factor
