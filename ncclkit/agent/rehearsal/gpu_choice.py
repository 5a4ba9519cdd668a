"""Which GPU a rank would use: the number that its script names, or that of its current device.

Tensors lie on the CPU here, so each that a script makes on a GPU, or moves there, is marked with
the number.  What is computed from it is not: of such a tensor the GPU is known where the rank has
used one GPU alone.  Where it is not known, nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..digits import whole_number
from .connection import user_place

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuChoice(NamedTuple):
    """A GPU that a script chose."""

    number: int
    """As the rank counts its GPUs; -1 where several may be meant."""
    place: str = ""
    """file:line of the program that chose it."""


UNKNOWN = GpuChoice(-1)
CURRENT = torch.device("cpu")
"""What `torch.device("cuda")` is here.  It is known by being this very object."""
CPU = torch.device("cpu")


class RankGpus:
    """What the script of this rank has chosen until now."""

    current = GpuChoice(0)
    """What `cuda` means without a number: the first one, as for every new process."""
    # no attributes of the tensors: they would be saved with them
    marks: Any = WeakTensorKeyDictionary()
    """Tensor → the GPU on which it lies."""
    used: dict[int, GpuChoice] = {}
    """Number → where a tensor was first put on that GPU."""
    begun = False
    """Whether a GPU was chosen or used."""
    visible = ""
    """`CUDA_VISIBLE_DEVICES` at that time: CUDA reads it once."""


def number_of(device: Any) -> int | None:
    """The GPU that a device, its name or its number means; None for anything else."""
    if type(device) is int:
        return _existing(device)
    if isinstance(device, str):
        return _number_in_name(device)
    if isinstance(device, torch.device):
        return _number_of_device(device)
    return None


def _number_of_device(device: torch.device) -> int | None:
    """A device of the CPU with a number is a GPU of the script: its own CPU has none."""
    if device.index is not None and device.type in ("cpu", "cuda"):
        return int(device.index)
    is_current = device is CURRENT and CURRENT is not CPU
    if is_current or device.type == "cuda":
        return RankGpus.current.number
    return None


def _number_in_name(name: str) -> int | None:
    if name == "cuda":
        return RankGpus.current.number
    kind, _, number = name.partition(":")
    if kind == "cuda":
        return whole_number(number)
    return None


def _existing(number: int) -> int | None:
    """CUDA takes a negative number as none."""
    if number < 0:
        return None
    return number


def set_current(device: Any) -> None:
    """From now on `cuda` without a number means this GPU."""
    number = number_of(device)
    if number is not None:
        _begin()
        RankGpus.current = GpuChoice(number, user_place())


def set_first(number: int) -> None:
    """The same where torch chooses one for a script that has used none until now."""
    if not RankGpus.begun:
        _begin()
        RankGpus.current = GpuChoice(number, user_place())


def note_use(number: int) -> GpuChoice:
    """Remember that this GPU is used; returns it with the line that chose it."""
    _begin()
    choice = GpuChoice(number, user_place())
    # the line that made it the current one is the one to change
    if number == RankGpus.current.number and RankGpus.current.place:
        choice = RankGpus.current
    RankGpus.used.setdefault(number, choice)
    return choice


def _begin() -> None:
    if not RankGpus.begun:
        RankGpus.begun = True
        RankGpus.visible = os.environ.get(VISIBLE, "")


def put_on_gpu(tensors: Iterable[Any], number: int) -> None:
    """Mark tensors that are made on a GPU, or moved there."""
    choice = note_use(number)
    for tensor in tensors:
        known = RankGpus.marks.get(tensor, choice)
        # here a move copies nothing, so one object may stand for tensors on two GPUs
        if known.number == number:
            RankGpus.marks[tensor] = choice
        else:
            RankGpus.marks[tensor] = UNKNOWN


def put_on_cpu(tensor: Any) -> None:
    """A tensor is copied to the CPU, which here is the tensor itself."""
    if tensor in RankGpus.marks:
        RankGpus.marks[tensor] = UNKNOWN


def choice_for(tensors: Iterable[Any], gpus_only: bool) -> GpuChoice | None:
    """The GPU on which tensors lie; None where it is not known.

    gpus_only: whether the call takes no tensors of the CPU.
    """
    choices = set()
    for tensor in tensors:
        choices.add(RankGpus.marks.get(tensor))
    if len(choices) != 1:
        return None
    choice: GpuChoice | None = choices.pop()
    if choice is None and gpus_only and len(RankGpus.used) == 1:
        (choice,) = RankGpus.used.values()
    if choice == UNKNOWN:
        return None
    return choice


def name_on_host(choice: GpuChoice) -> str:
    """The GPU as its host counts them; empty where that is not known."""
    # changed after the first use, it counts for nothing in CUDA, and who knows what was meant
    if os.environ.get(VISIBLE, "") != RankGpus.visible:
        return ""
    if not RankGpus.visible:
        return str(choice.number)
    shown = RankGpus.visible.split(",")
    if choice.number >= len(shown):
        return ""
    return shown[choice.number].strip()


def visible_count(host_gpus: int) -> int:
    """How many GPUs a rank sees."""
    shown = os.environ.get(VISIBLE, "")
    if not shown:
        return host_gpus
    return len(shown.split(","))
