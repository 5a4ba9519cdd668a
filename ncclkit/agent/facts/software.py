"""Software: Python, torch and its backends, every NCCL that could be loaded, frameworks."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from . import libraries
from .fact import Fact, attempt, known, unread
from .machine import Machine, Unread

TORCH_DEADLINE = 60.0
"""Seconds for importing torch: 2 to 7 are usual, a cold network file system needs tens."""

SEARCHED = "loader path, wheels, /proc/self/maps after import torch"

FRAMEWORKS = (
    "accelerate",
    "apex",
    "bitsandbytes",
    "colossalai",
    "datasets",
    "deepspeed",
    "fairscale",
    "flash-attn",
    "horovod",
    "jax",
    "lightning",
    "megatron-core",
    "mosaicml",
    "mpi4py",
    "nemo-toolkit",
    "numpy",
    "nvidia-ml-py",
    "peft",
    "py-spy",
    "pytorch-lightning",
    "ray",
    "recbole",
    "sglang",
    "tensorflow",
    "torch-geometric",
    "torchrec",
    "torchtitan",
    "torchtune",
    "torchvision",
    "transformer-engine",
    "transformers",
    "trl",
    "triton",
    "verl",
    "vllm",
    "xformers",
)

FROM_TORCH = {
    "software.torch": "version",
    "software.torch.cuda": "cuda",
    "software.torch.backends": "backends",
    "software.torch.gpus": "gpus",
    "software.cudnn": "cudnn",
    "software.nccl.built": "nccl",
    "software.torch.locks": "locks",
}


def facts(machine: Machine, torch: bool = True) -> Iterator[Fact]:
    """All ``software.`` facts; with `torch`, the interpreter's torch is asked in a child process."""
    yield attempt("software.python", lambda: machine.call("python", platform.python_version), source="platform")
    yield attempt("software.executable", lambda: machine.call("executable", lambda: sys.executable), source="sys")
    yield attempt("software.frameworks", lambda: machine.call("packages", _packages), source="importlib.metadata")
    yield attempt("software.nccl.plugins", lambda: libraries.plugins(machine), source="loader path and wheels")
    try:
        said = machine.child("child_torch", deadline=TORCH_DEADLINE, isolated=False) if torch else {}
        why = "torch was not asked"
    except Unread as error:
        said, why = {}, str(error)
    for name, key in FROM_TORCH.items():
        if said.get(key) is not None:
            yield known(name, said[key], source="import torch")
        else:
            yield unread(name, "this torch has none" if said else why, source="import torch")
    yield from _nccl(machine, said)


def _packages() -> dict[str, str]:
    """The versions of well-known frameworks that are installed; nothing is imported."""
    found = {}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _nccl(machine: Machine, said: dict[str, Any]) -> Iterator[Fact]:
    """Which NCCL wins: what torch has loaded, else the preloaded or the only one."""
    loaded = said.get("libraries", ())
    found = attempt("software.nccl.libraries", lambda: libraries.search(machine, loaded), source=SEARCHED)
    yield found
    rows = found["value"]
    yield unread("software.nccl", found["why"], source=SEARCHED) if rows is None else _winner(rows, said)


def _winner(rows: list[dict[str, Any]], said: dict[str, Any]) -> Fact:
    for how in ("loaded by torch", "LD_PRELOAD"):
        for row in rows:
            if row["how"] == how and row["version"]:
                return known("software.nccl", row["version"], source="%s (%s)" % (row["path"], how))
    if said.get("nccl"):
        return known("software.nccl", said["nccl"], source="torch.cuda.nccl.version()")
    if said:
        return unread("software.nccl", "this torch is built without NCCL", source="import torch")
    if len(rows) == 1 and rows[0]["version"]:
        return known("software.nccl", rows[0]["version"], source="%s (the only one)" % rows[0]["path"])
    why = "%d libraries could win; asking torch would tell" % len(rows) if rows else "no NCCL library was found"
    return unread("software.nccl", why, source=SEARCHED)
