"""Settings that name something of this host: an interface, an RDMA device, a GPU, a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import choose
from .checks import Problem, problem
from .machine import Absent, Machine, Unread

Ports = list[dict[str, Any]]

FILES = set("NCCL_CONF_FILE NCCL_GRAPH_FILE NCCL_NET_PLUGIN NCCL_TOPO_FILE NCCL_TUNER_PLUGIN LD_PRELOAD".split())
"""Variables that name a file which must be there, if they hold a path."""

WRITTEN = set(
    """
NCCL_DEBUG_FILE NCCL_GRAPH_DUMP_FILE NCCL_TOPO_DUMP_FILE TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
TORCH_FR_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE
""".split()
)
"""Variables that name a file, or the beginning of one, that is written to."""


def interfaces(values: Mapping[str, str], entries: choose.Entries) -> Iterator[Problem]:
    """Interface names that match nothing here."""
    checks = (
        ("NCCL_SOCKET_IFNAME", lambda: choose.nccl(entries, values)),
        ("GLOO_SOCKET_IFNAME", lambda: choose.gloo_named(entries, values["GLOO_SOCKET_IFNAME"])),
    )
    for name, choice in checks:
        if values.get(name):
            try:
                choice()
            except Unread as why:
                yield problem("device", name, values[name], str(why), "name an interface that has this host's address")


def rdma(values: Mapping[str, str], ports: Ports) -> Iterator[Problem]:
    """RDMA devices that do not exist or whose ports are down, and rows of the GID table that are empty."""
    having = sorted({port["device"] for port in ports})
    if values.get("NCCL_NET", "").upper() == "IB" and not having:
        yield problem("device", "NCCL_NET", "IB", "this host has no RDMA device", "unset it, or load the driver")
    wanted = values.get("NCCL_IB_HCA", "")
    if wanted:
        yield from _hca(wanted, ports, having)
    index = values.get("NCCL_IB_GID_INDEX", "").strip()
    if index.isdecimal():
        yield from _gid(index, [port for port in ports if choose.accepts(wanted, port["device"], port["port"])])


def _hca(wanted: str, ports: Ports, having: list[str]) -> Iterator[Problem]:
    items = [item.split(":")[0] for item in wanted.lstrip("^=").split(",") if item]
    absent = [item for item in items if not any(device.startswith(item) for device in having)]
    taken = [port for port in ports if choose.accepts(wanted, port["device"], port["port"])]
    hint = "name devices that /sys/class/infiniband lists"
    if absent and not wanted.startswith("^"):
        what = "%s not among the RDMA devices here: %s" % (", ".join(absent), ", ".join(having) or "none")
        yield problem("device", "NCCL_IB_HCA", wanted, what, hint)
    elif having and not taken:
        what = "it takes none of the RDMA devices here: %s" % ", ".join(having)
        yield problem("device", "NCCL_IB_HCA", wanted, what, hint)
    elif taken and not any(port["state"] == "ACTIVE" for port in taken):
        states = ", ".join("%s:%d is %s" % (port["device"], port["port"], port["state"] or "unknown") for port in taken)
        yield problem(
            "device", "NCCL_IB_HCA", wanted, "no active port is left: %s" % states, "fix the link, or unset it"
        )


def _gid(index: str, ports: Ports) -> Iterator[Problem]:
    """RoCE only: InfiniBand does well with row 0."""
    for port in ports:
        if port["state"] != "ACTIVE" or port["link_layer"] != "Ethernet":
            continue
        kinds = {row["index"]: row["type"] for row in port["gids"]}
        kind = kinds.get(int(index))
        where = "row %s of the GID table of %s" % (index, port["device"])
        if kind is None:
            hint = "unset it: since 2.21 NCCL finds the row itself; filled are %s" % (sorted(kinds) or "none")
            yield problem("device", "NCCL_IB_GID_INDEX", index, where + " is empty", hint)
        elif kind.endswith("v1"):
            hint = "unset it, or choose a row of RoCE v2"
            yield problem("harmful", "NCCL_IB_GID_INDEX", index, where + " is RoCE v1, which no router carries", hint)


def gpus(values: Mapping[str, str], machine: Machine) -> Iterator[Problem]:
    """CUDA_VISIBLE_DEVICES beyond the GPUs of this host."""
    wanted = values.get("CUDA_VISIBLE_DEVICES", "")
    try:
        count = len(machine.names("/dev", r"nvidia\d+"))
    except Unread:
        return  # the GPUs could not be counted, which gpu.count says
    absent = [item for item in re.findall(r"(?:^|,)\s*(\d+)\s*(?=,|$)", wanted) if int(item) >= count]
    if absent:
        what = "this host has %d GPUs, so %s does not exist and ends the list for CUDA" % (count, absent[0])
        yield problem("device", "CUDA_VISIBLE_DEVICES", wanted, what, "name indices below %d" % count)


def paths(values: Mapping[str, str], machine: Machine) -> Iterator[Problem]:
    """Files that must exist, and folders that something is to be written to."""
    for name in sorted(FILES & set(values)):
        for path in re.split(r"[:\s]+", values[name]) if name == "LD_PRELOAD" else [values[name]]:
            folder, _, file = path.rpartition("/")
            if path.startswith("/") and _absent(machine, folder or "/", file):
                what = "there is no file %s, which is ignored without a warning or ends the job" % path
                yield problem("path", name, values[name], what, "correct the path, or unset it")
    for name in sorted(WRITTEN & set(values)):
        folder = values[name].rpartition("/")[0]
        parent, _, last = folder.rpartition("/")
        if folder.startswith("/") and "%" not in folder and _absent(machine, parent or "/", last):
            what = "there is no folder %s, so nothing can be written there" % folder
            yield problem("path", name, values[name], what, "make the folder on every host, or choose another")


def _absent(machine: Machine, folder: str, name: str) -> bool:
    """Certainly not there; what may not be looked at counts as there."""
    try:
        return not machine.names(folder, re.escape(name))
    except Unread as why:
        return isinstance(why, Absent)
