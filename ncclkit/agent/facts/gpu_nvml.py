"""GPUs through NVML, where nvidia-smi is missing or silent and the interpreter has nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .fact import Fact, known, unread
from .machine import Machine, Unread

DEADLINE = 10.0
SOURCE = "NVML through nvidia-ml-py"
UNITS = {"memory.total": "MiB", "memory.free": "MiB", "busy": "%", "temperature": "C", "power": "W", "power.limit": "W"}
UNITS.update({"clock.%s%s" % (kind, end): "MHz" for kind in ("sm", "memory") for end in ("", ".max")})


def facts(machine: Machine) -> Iterator[Fact]:
    """The ``gpu.`` facts that NVML knows, under the names of nvidia-smi's; raises Unread where it cannot be asked."""
    said = machine.child("child_nvml", deadline=DEADLINE, isolated=False)
    gpus = said.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise Unread("child nvml named no GPUs")
    yield known("gpu.count", len(gpus), source=SOURCE)
    for name in ("driver", "cuda"):
        yield _fact("gpu." + name, said.get(name))
    for index, gpu in enumerate(gpus):
        for name, value in gpu.items():
            yield _fact("gpu.%d.%s" % (index, name), value, UNITS.get(name, ""))


def _fact(name: str, value: Any, unit: str = "") -> Fact:
    """NVML's own words for what it refuses come as {"error": …}."""
    if isinstance(value, dict) and "error" in value:
        return unread(name, "NVML says: %s" % value["error"], unit, SOURCE)
    return known(name, value, unit, SOURCE) if value is not None else unread(name, "NVML did not say", unit, SOURCE)
