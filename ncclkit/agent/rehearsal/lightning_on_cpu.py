"""Lightning's GPUs on a CPU: its own check of the kind of a device is left out."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

CHECKING = (
    "lightning.fabric.accelerators.cuda",
    "lightning.pytorch.accelerators.cuda",
    "lightning_fabric.accelerators.cuda",
    "pytorch_lightning.accelerators.cuda",
)
"""Modules whose accelerator refuses a device that is no GPU."""


def map_lightning() -> None:
    """Let Lightning take the CPU for a GPU, once a script imports it."""
    sys.meta_path.insert(0, _LightningFinder())


class _LightningFinder(importlib.abc.MetaPathFinder):
    """Finds those modules where they are, and changes them after they were loaded."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own place."""
        if name not in CHECKING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            _change_after_load(spec.loader)
        return spec


def _change_after_load(loader: Any) -> None:
    real = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        real(module)
        vars(module)["CUDAAccelerator"].setup_device = _set_up_device

    loader.exec_module = exec_module


def _set_up_device(accelerator: Any, device: Any) -> None:
    torch.cuda.set_device(device)
