"""Software: Python, torch, frameworks, and every NCCL library that could be loaded.

It tells also torch's backends and the net plugins.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

from .machine import Fact, Machine, Unread, attempt, known, unread
from .nccl_variables import version_of

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
    for how, path in _places_of_libraries(machine, loaded, LIBRARY):
        real = _real_path(machine, path)
        if real not in rows:
            rows[real] = {
                "path": path,
                "version": _library_version(machine, path, real),
                "how": how,
            }
    return list(rows.values())


def plugins(machine: Machine) -> list[str]:
    """Paths of NCCL plugins on the loader's path."""
    return sorted({path for _, path in _places_of_libraries(machine, (), PLUGIN)})


def driver(machine: Machine) -> str:
    """The version of the driver's user-space library.

    It must be that of the kernel module.  Raises Unread.
    """
    for _, path in _places_of_libraries(machine, (), DRIVER):
        match = re.search(r"\.so\.(\d+\.[\d.]+)$", _real_path(machine, path))
        if match:
            return match.group(1)
    raise Unread("no libnvidia-ml.so.VERSION on the loader's path")


def _places_of_libraries(
    machine: Machine, loaded: Iterable[str], wanted: re.Pattern[str]
) -> Iterator[tuple[str, str]]:
    """(how, path) of each file whose name matches."""
    # in the order in which the loader takes them
    for path in loaded:
        yield "loaded by torch", path
    for path in re.split(r"[:\s]+", machine.environ.get("LD_PRELOAD", "")):
        if wanted.fullmatch(path.rsplit("/", 1)[-1]):
            yield "LD_PRELOAD", path
    for how, folder in _library_folders(machine):
        try:
            names = []
            if folder.startswith("/"):
                names = machine.names(folder, wanted.pattern)
        except Unread:
            continue  # most of these folders do not exist
        for name in names:
            yield how, "%s/%s" % (folder.rstrip("/"), name)


def _library_folders(machine: Machine) -> list[tuple[str, str]]:
    """(how, folder) of each place that the loader or a wheel looks in."""
    folders = [
        ("LD_LIBRARY_PATH", folder)
        for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    ]
    folders += [("wheel", folder + "/nvidia/nccl/lib") for folder in _site_folders(machine)]
    folders += [("environment of Python", folder) for folder in _prefix_folders(machine)]
    return folders + [
        ("system", folder) for folder in dict.fromkeys([*_configured_folders(machine), *SYSTEM])
    ]


def _configured_folders(machine: Machine) -> list[str]:
    """The folders that this system's loader was told of."""
    folder = "/etc/ld.so.conf.d"
    try:
        files = machine.names(folder, r".*\.conf")
        lines = [
            line.strip()
            for file in files
            for line in machine.read("%s/%s" % (folder, file)).splitlines()
        ]
    except Unread:
        return []  # another C library, or none
    return [line for line in lines if line.startswith("/")]


def _site_folders(machine: Machine) -> list[str]:
    paths: list[str] = machine.call(
        "sys.path", lambda: [path for path in sys.path if path.endswith("-packages")]
    )
    return paths


def _prefix_folders(machine: Machine) -> list[str]:
    """Where conda puts libraries; a recording made before this was asked has none."""
    try:
        return [machine.call("sys.prefix", lambda: sys.prefix) + "/lib"]
    except Unread:
        return []


def _real_path(machine: Machine, path: str) -> str:
    """The file behind all links, so that libnccl.so -> libnccl.so.2 -> libnccl.so.2.28.9 counts
    once.
    """
    done = ""
    left = _path_parts(path)
    links = 0
    # as many links as the kernel follows
    while left and links < 40:
        part = left.pop(0)
        target = _link_target(machine, "%s/%s" % (done, part))
        if part == "..":
            done = done.rpartition("/")[0]
        elif target is None:
            done += "/" + part
        else:
            if target.startswith("/"):
                done = ""
            left = _path_parts(target) + left
            links += 1
    if path.startswith("/"):
        return "/".join([done, *left])
    return path


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _link_target(machine: Machine, path: str) -> str | None:
    """Where a link points; None for what is no link."""
    try:
        return machine.link(path)
    except Unread:
        return None


def _library_version(machine: Machine, path: str, real: str) -> str | None:
    """From the file's name, else the wheel's metadata, else the library itself."""
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)$", real)
    if match:
        return match.group(1)
    site = re.match(r"(.*)/nvidia/nccl/lib/", path)
    try:
        names = []
        if site:
            names = machine.names(site.group(1), WHEEL.pattern)
    except Unread:
        names = []
    if names:
        return WHEEL.sub(r"\1", names[0])
    try:
        return spell(machine.child("nccl", path, deadline=10, form=int))
    except Unread:
        return None


def spell(number: int) -> str:
    """23007 → 2.30.7; up to 2.8 the number had one digit less: 2708 → 2.7.8."""
    thousand = 1000
    if number >= 10000:
        thousand = 10000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


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


def software_facts(machine: Machine, torch: bool = True) -> Iterator[Fact]:
    """All ``software.`` facts; with `torch`, the interpreter's torch is asked in a
    child process.
    """
    yield attempt(
        "software.python",
        lambda: machine.call("python", platform.python_version),
        source="platform",
    )
    yield attempt(
        "software.executable",
        lambda: machine.call("executable", lambda: sys.executable),
        source="sys",
    )
    yield attempt(
        "software.frameworks",
        lambda: machine.call("packages", _installed_frameworks),
        source="importlib.metadata",
    )
    yield attempt(
        "software.nccl.plugins", lambda: plugins(machine), source="loader path and wheels"
    )
    try:
        said = {}
        if torch:
            # not isolated, as torch may lie on PYTHONPATH
            said = machine.child("torch", deadline=TORCH_DEADLINE, isolated=False)
        why = "torch was not asked"
    except Unread as error:
        said = {}
        why = str(error)
    for name, key in FROM_TORCH.items():
        if said.get(key) is not None:
            yield known(name, said[key], source="import torch")
        else:
            yield unread(name, "this torch has none" if said else why, source="import torch")
    yield from _nccl_facts(machine, said)


def _installed_frameworks() -> dict[str, str]:
    """The versions of well-known frameworks that are installed; nothing is imported."""
    found = {}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _nccl_facts(machine: Machine, said: dict[str, Any]) -> Iterator[Fact]:
    """Which NCCL wins: what torch has loaded, else the preloaded or the only one."""
    loaded = said.get("libraries", ())
    found = attempt("software.nccl.libraries", lambda: search(machine, loaded), source=SEARCHED)
    yield found
    rows = found["value"]
    if rows is None:
        yield unread("software.nccl", found["why"], source=SEARCHED)
    else:
        winner = _winning_fact(rows, said)
        yield winner
        yield from _image_facts(machine, winner["value"])


def _image_facts(machine: Machine, winner: Any) -> Iterator[Fact]:
    """The NCCL that an image names and that is not the one that wins.

    Images of NVIDIA set NCCL_VERSION for their own library; NCCL never reads it.
    """
    named = version_of(machine.environ.get("NCCL_VERSION", ""))
    loaded = version_of(str(winner or ""))
    if named and loaded and named != loaded:
        text = ".".join(str(part) for part in named)
        yield known("software.nccl.image", text, source="NCCL_VERSION; %s wins" % winner)


def _winning_fact(rows: list[dict[str, Any]], said: dict[str, Any]) -> Fact:
    for how in ("loaded by torch", "LD_PRELOAD"):
        for row in rows:
            if row["how"] == how and row["version"]:
                return known("software.nccl", row["version"], source="%s (%s)" % (row["path"], how))
    if said.get("nccl"):
        return known("software.nccl", said["nccl"], source="torch.cuda.nccl.version()")
    if said:
        return unread("software.nccl", "this torch is built without NCCL", source="import torch")
    if len(rows) == 1 and rows[0]["version"]:
        return known(
            "software.nccl", rows[0]["version"], source="%s (the only one)" % rows[0]["path"]
        )
    why = "no NCCL library was found"
    if rows:
        why = "%d libraries could win; asking torch would tell" % len(rows)
    return unread("software.nccl", why, source=SEARCHED)
