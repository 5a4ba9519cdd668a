"""Gloo for tensors of a GPU: their values travel by way of the CPU.

A call is made when all members have come; its outputs are on the GPU again when it was waited for.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

ONLY_GIVES = ("send",)
"""Calls whose first tensors are not written; of all others they are the outputs."""


class StagedTensor(NamedTuple):
    """A tensor of a call."""

    on_gpu: Any
    copy: Any
    """What gloo reads or writes in its place."""


class StagedGloo:
    """The methods of a group of gloo, which copies what lies on a GPU."""

    def __init__(self, gloo: Any) -> None:
        self._gloo = gloo

    def rank(self) -> int:
        """The place of this rank among its members."""
        return int(self._gloo.rank())

    def size(self) -> int:
        """How many members it has."""
        return int(self._gloo.size())

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._gloo, name)
        return functools.partial(_call_staged, method, name)


class StagedWork:
    """The handle of a call that was made on copies."""

    def __init__(self, inner: Any, outputs: list[StagedTensor]) -> None:
        self._inner = inner
        self._outputs = outputs

    def wait(self) -> None:
        """Block until the outputs are on the GPU."""
        self._inner.wait()
        with torch.no_grad():
            for output in self._outputs:
                output.on_gpu.copy_(output.copy)
        # another thread may use another stream
        if self._outputs:
            torch.cuda.current_stream().synchronize()
        self._outputs = []

    def is_completed(self) -> bool:
        """Whether gloo has made it."""
        return bool(self._inner.is_completed())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())


def _call_staged(method: Any, name: str, *given: Any) -> StagedWork:
    outputs: list[StagedTensor] = []
    inputs: list[StagedTensor] = []
    words = []
    for place, value in enumerate(given):
        copies = inputs
        if place == 0 and name not in ONLY_GIVES:
            copies = outputs
        words.append(_on_cpu(value, copies))
    return StagedWork(method(*words), outputs)


def _on_cpu(value: Any, copies: list[StagedTensor]) -> Any:
    """A tensor's copy on the CPU, or lists of them; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_on_cpu(part, copies) for part in value]
    if not isinstance(value, torch.Tensor) or not lies_on_gpu(value):
        return value
    copy = value.detach().to("cpu", copy=True)
    copies.append(StagedTensor(value, copy))
    return copy


def lies_on_gpu(tensor: Any) -> bool:
    """Whether gloo cannot take it as it is."""
    return bool(tensor.is_cuda)
