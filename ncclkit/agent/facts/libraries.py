"""Every NCCL library and net plugin that a process here could load, and how it would get there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .machine import Machine, Unread

SYSTEM = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nccl/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
)
LIBRARY = re.compile(r"libnccl\.so(?:\.[\d.]+)?")
PLUGIN = re.compile(r"libnccl-(?:net|tuner|profiler|env|rdma)[\w-]*\.so")
WHEEL = re.compile(r"nvidia_nccl_cu\d+-([\d.]+)\.dist-info")
DRIVER = re.compile(r"libnvidia-ml\.so\.[\d.]+")


def search(machine: Machine, loaded: Iterable[str] = ()) -> list[dict[str, Any]]:
    """``{path, version, how}`` of each NCCL library, each file once, in the order of preference."""
    rows: dict[str, dict[str, Any]] = {}
    for how, path in _places(machine, loaded, LIBRARY):
        real = _real(machine, path)
        if real not in rows:
            rows[real] = {"path": path, "version": _version(machine, path, real), "how": how}
    return list(rows.values())


def plugins(machine: Machine) -> list[str]:
    """Paths of NCCL plugins on the loader's path."""
    return sorted({path for _, path in _places(machine, (), PLUGIN)})


def driver(machine: Machine) -> str:
    """The version of the driver's user-space library, which must be that of the kernel module; raises Unread."""
    for _, path in _places(machine, (), DRIVER):
        match = re.search(r"\.so\.(\d+\.[\d.]+)$", _real(machine, path))
        if match:
            return match.group(1)
    raise Unread("no libnvidia-ml.so.VERSION on the loader's path")


def _places(machine: Machine, loaded: Iterable[str], wanted: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """(how, path) of each file whose name matches."""
    for path in loaded:
        yield "loaded by torch", path
    for path in re.split(r"[:\s]+", machine.environ.get("LD_PRELOAD", "")):
        if wanted.fullmatch(path.rsplit("/", 1)[-1]):
            yield "LD_PRELOAD", path
    for how, folder in _folders(machine):
        try:
            names = machine.names(folder, wanted.pattern) if folder.startswith("/") else []
        except Unread:
            continue  # most of these folders do not exist
        yield from ((how, "%s/%s" % (folder.rstrip("/"), name)) for name in names)


def _folders(machine: Machine) -> list[tuple[str, str]]:
    """(how, folder) of each place that the loader or a wheel looks in."""
    folders = [("LD_LIBRARY_PATH", folder) for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":")]
    folders += [("wheel", folder + "/nvidia/nccl/lib") for folder in _sites(machine)]
    folders += [("environment of Python", folder) for folder in _prefix(machine)]
    return folders + [("system", folder) for folder in dict.fromkeys([*_configured(machine), *SYSTEM])]


def _configured(machine: Machine) -> list[str]:
    """The folders that this system's loader was told of."""
    folder = "/etc/ld.so.conf.d"
    try:
        files = machine.names(folder, r".*\.conf")
        lines = [line.strip() for file in files for line in machine.read("%s/%s" % (folder, file)).splitlines()]
    except Unread:
        return []  # another C library, or none
    return [line for line in lines if line.startswith("/")]


def _sites(machine: Machine) -> list[str]:
    paths: list[str] = machine.call("sys.path", lambda: [path for path in sys.path if path.endswith("-packages")])
    return paths


def _prefix(machine: Machine) -> list[str]:
    """Where conda puts libraries; a recording made before this was asked has none."""
    try:
        return [machine.call("sys.prefix", lambda: sys.prefix) + "/lib"]
    except Unread:
        return []


def _real(machine: Machine, path: str) -> str:
    """The file behind all links, so that libnccl.so -> libnccl.so.2 -> libnccl.so.2.28.9 counts once."""
    done, left, links = "", _parts(path), 0
    while left and links < 40:
        part = left.pop(0)
        target = _target(machine, "%s/%s" % (done, part))
        if part == "..":
            done = done.rpartition("/")[0]
        elif target is None:
            done += "/" + part
        else:
            done, left, links = "" if target.startswith("/") else done, _parts(target) + left, links + 1
    return "/".join([done, *left]) if path.startswith("/") else path


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _target(machine: Machine, path: str) -> str | None:
    """Where a link points; None for what is no link."""
    try:
        return machine.link(path)
    except Unread:
        return None


def _version(machine: Machine, path: str, real: str) -> str | None:
    """From the file's name, else the wheel's metadata, else the library itself."""
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)$", real)
    if match:
        return match.group(1)
    site = re.match(r"(.*)/nvidia/nccl/lib/", path)
    try:
        names = machine.names(site.group(1), WHEEL.pattern) if site else []
    except Unread:
        names = []
    if names:
        return WHEEL.sub(r"\1", names[0])
    try:
        return spell(machine.child("child_nccl", path, deadline=10, form=int))
    except Unread:
        return None


def spell(number: int) -> str:
    """23007 → 2.30.7; up to 2.8 the number had one digit less: 2708 → 2.7.8."""
    thousand = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)
