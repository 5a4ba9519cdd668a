"""GPUs: what nvidia-smi says, else NVML, else /dev and /proc.  A hung nvidia-smi is itself a fact."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial

from . import gpu_links, gpu_state, libraries
from .fact import Fact, attempt, known, unread
from .machine import Hung, Machine, Missing, Unread

QUERY = ["nvidia-smi", "-q", "-x"]
DEADLINE = 10.0
"""Seconds for one nvidia-smi: a healthy 8-GPU host without persistence mode needs about three."""


def facts(machine: Machine) -> Iterator[Fact]:
    """All ``gpu.`` facts; the per-GPU ones only where nvidia-smi or NVML answered."""
    yield from _modules(machine)
    yield attempt("gpu.library", lambda: libraries.driver(machine), source="file names of libnvidia-ml.so")
    source = " ".join(QUERY)
    try:
        answer = machine.run(QUERY, DEADLINE)
        log, cut = gpu_state.log(answer)
    except Unread as why:
        yield from _silent(machine, why)
        return
    gpus = log.findall("gpu")
    told = "; ".join(filter(None, (cut, gpu_state.remarks(answer))))
    yield {**known("gpu.nvidia_smi", "breaks off" if cut else "answers", source=source), "why": told}
    yield _devices(machine, cut) if cut else known("gpu.count", len(gpus), source=source)
    yield attempt("gpu.driver", lambda: gpu_state.text(log, "driver_version"), source=source)
    yield attempt("gpu.cuda", lambda: gpu_state.text(log, "cuda_version"), source=source)
    peers = list(gpu_links.PEERS.values()) if len(gpus) > 1 else []
    said = _at_once(machine, [gpu_links.TOPOLOGY, gpu_links.LINKS, *peers])
    yield from gpu_links.facts(said)
    links = gpu_links.nvlinks(said[" ".join(gpu_links.LINKS)])
    for index, gpu in enumerate(gpus):
        yield from gpu_state.facts(index, gpu)
        yield from gpu_links.topology_of(machine, index, gpu.get("id", ""), said[" ".join(gpu_links.TOPOLOGY)])
        yield from gpu_links.nvlink(index, links)


def _at_once(machine: Machine, commands: list[list[str]]) -> dict[str, gpu_links.Said]:
    """{command: what it said}: each mostly waits for the driver, so they wait side by side.

    Daemon threads: one that hangs in the kernel must not keep the agent from ending.
    """
    said: dict[str, gpu_links.Said] = {}

    def ask(argv: list[str]) -> None:
        try:
            said[" ".join(argv)] = machine.run(argv, DEADLINE)
        except Unread as why:
            said[" ".join(argv)] = why

    threads = [threading.Thread(target=ask, args=(argv,), daemon=True) for argv in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE + 2)
    return {name: said.get(name, Hung("%s did not even start" % name)) for name in map(" ".join, commands)}


def _silent(machine: Machine, why: Unread) -> Iterator[Fact]:
    """The facts of a machine whose nvidia-smi says nothing: absent, hung or refusing."""
    state = "hung" if isinstance(why, Hung) else "missing" if isinstance(why, Missing) else "failed"
    yield {**known("gpu.nvidia_smi", state, source=" ".join(QUERY)), "why": str(why)}
    for name in ("gpu.topology", "gpu.topology.nics", *("gpu.p2p." + name for name in gpu_links.PEERS)):
        yield unread(name, why, source="nvidia-smi topo")
    yield from _rest(machine, str(why))


def _rest(machine: Machine, why: str) -> Iterator[Fact]:
    """What the kernel alone tells."""
    yield _devices(machine, why)
    version = re.compile(r"Kernel Module(?: for \S+)?\s+(\S+)")
    file = "/proc/driver/nvidia/version"
    yield attempt("gpu.driver", lambda: version.findall(machine.read(file))[0], source=file)
    yield unread("gpu.cuda", why, source=" ".join(QUERY))


def _devices(machine: Machine, why: str) -> Fact:
    """How many GPUs there are by their device files; `why` they had to be counted so."""
    source = "/dev/nvidia*"
    try:
        return known("gpu.count", len(machine.names("/dev", r"nvidia\d+")), source=source)
    except Unread as error:
        return unread("gpu.count", "%s; %s" % (why, error), source=source)


def _modules(machine: Machine) -> Iterator[Fact]:
    """Kernel modules that GPU Direct RDMA needs."""
    for name, module in (("gpu.peermem", "nvidia_peermem"), ("gpu.gdrcopy", "gdrdrv")):
        yield attempt(name, partial(_has_module, machine, module), source="/sys/module/" + module)


def _has_module(machine: Machine, module: str) -> bool:
    return bool(machine.names("/sys/module", module))
