"""What may be asked of a live test: its values, its collectives, and how many ranks the GPUs carry."""

from __future__ import annotations

from typing import Any

from ncclkit.agent.run.operations import DTYPES, NAMES
from ncclkit.core.model import NcclkitError


def operations(op: Any, dtype: Any) -> tuple[str, ...]:
    """The collectives that `op` names; NcclkitError for one that the live test does not know."""
    if dtype not in DTYPES:
        raise NcclkitError(f"The dtype must be one of {', '.join(DTYPES)}, but it is {dtype!r}.")
    named = NAMES if op == "all" else tuple(dict.fromkeys(str(op).replace(" ", "").split(",")))
    strange = next((name for name in named if name not in NAMES), None)
    if strange is not None:
        raise NcclkitError(f"The live test knows {', '.join(NAMES)}, and all, but not {strange!r}.")
    return named


def validate(ranks: Any, backend: Any, largest: Any, repeats: Any, split: Any, deadline: Any, net: object) -> None:
    """Refuse what cannot work, before anything is started (0 for ranks and largest lets the host decide)."""
    if backend not in ("auto", "any", "nccl", "gloo"):
        raise NcclkitError(f"The backend must be auto, nccl or gloo, but it is {backend!r}.")
    for name, value, least in (
        ("ranks", ranks, 0),
        ("bytes of the largest message", largest, 0),
        ("repeats", repeats, 1),
        ("pretended hosts", split, 1),
    ):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise NcclkitError(
                f"The number of {name} must be a whole number of at least {max(least, 1)}, but it is {value!r}."
            )
    if split > 1 and net:
        raise NcclkitError("Ranks that have pretended hosts of their own cannot be split once more; leave --split out.")
    if not isinstance(deadline, (int, float)) or deadline <= 0:
        raise NcclkitError(f"The deadline must be a number of seconds above 0, but it is {deadline!r}.")


def too_few(gpus: int, hosts: int, split: int, count: int, more: bool) -> NcclkitError:
    """More ranks than GPUs, and the ways out of that; more: the GPUs may be split among more hosts."""
    if not gpus:
        return NcclkitError(f"{count} NCCL ranks need {count} GPUs, but the training interpreter sees none; use gloo.")
    places, needed = gpus * hosts, -(-count // split)
    where = f" on each of {hosts} nodes" if hosts > 1 else ""
    where += f", which {split} pretended hosts share" if split > 1 else ""
    wider = f"let more pretended hosts share them (--split {-(-count // places)}), " if more else ""
    told = f"{count} NCCL ranks need {needed} GPUs, but the training interpreter sees {gpus}{where}"
    return NcclkitError(f"{told}; ask for at most {places * split} ranks, {wider}or use gloo.")
