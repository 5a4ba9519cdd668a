"""RDMA devices (InfiniBand, RoCE, EFA) as the kernel shows them."""

from __future__ import annotations

import re
from typing import Any

from .machine import Absent, Machine, Unread

FOLDER = "/sys/class/infiniband"
COUNTERS = {
    "counters": (
        "symbol_error",
        "link_downed",
        "link_error_recovery",
        "port_rcv_errors",
        "port_xmit_discards",
        "local_link_integrity_errors",
    ),
    "hw_counters": (
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "np_cnp_sent",
        "rp_cnp_handled",
        "roce_adp_retrans",
    ),
}
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def ports(machine: Machine) -> list[dict[str, Any]]:
    """One row per port: device, driver, firmware, port, state, physical, rate (Gb/s), link_layer, numa, gids, counters.

    EFA devices (driver efa) come with link_layer "Unspecified" and no counters of these names.
    """
    try:
        devices = machine.names(FOLDER)
    except Absent:
        return []  # the kernel has no RDMA device
    rows = []
    for device in devices:
        folder = "%s/%s/ports" % (FOLDER, device)
        rows += [_port(machine, device, port, "%s/%s/" % (folder, port)) for port in _numbers(machine, folder)]
    if devices and not rows:
        raise Unread("the RDMA devices here have no port: %s" % ", ".join(devices))
    return rows


def _numbers(machine: Machine, folder: str) -> list[str]:
    """A device that is just being taken away, or that another container holds, has no ports any more."""
    try:
        return machine.names(folder, r"\d+")
    except Unread:
        return []


def _port(machine: Machine, device: str, port: str, folder: str) -> dict[str, Any]:
    rate = re.match(r"[\d.]+", _read(machine, folder + "rate"))
    numa = _read(machine, "%s/%s/device/numa_node" % (FOLDER, device))
    return {
        "device": device,
        "driver": _driver(machine, device),
        "firmware": _read(machine, "%s/%s/fw_ver" % (FOLDER, device)),
        "port": int(port),
        # "4: ACTIVE", "5: LinkUp"
        "state": _read(machine, folder + "state").split(": ")[-1],
        "physical": _read(machine, folder + "phys_state").split(": ")[-1],
        "rate": float(rate.group()) if rate else None,
        "link_layer": _read(machine, folder + "link_layer"),
        "numa": int(numa) if numa.lstrip("-").isdigit() else None,
        "gids": _gids(machine, folder),
        "counters": _counters(machine, folder),
    }


def _driver(machine: Machine, device: str) -> str:
    """mlx5_core, efa, bnxt_en …; empty where the kernel does not say."""
    try:
        return machine.link("%s/%s/device/driver" % (FOLDER, device)).rsplit("/", 1)[-1]
    except Unread:
        return ""


def _gids(machine: Machine, folder: str) -> list[dict[str, Any]]:
    """The filled rows of the GID table; it has up to 256 rows, so eight empty ones in a row end the search."""
    rows: list[dict[str, Any]] = []
    empty, index = 0, 0
    while empty < 8 and index < 256:
        gid = _read(machine, "%sgids/%d" % (folder, index))
        if gid and gid != EMPTY_GID:
            attributes = "%sgid_attrs/%%s/%d" % (folder, index)
            rows.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": _read(machine, attributes % "types"),
                    "interface": _read(machine, attributes % "ndevs"),
                }
            )
        empty = 0 if gid and gid != EMPTY_GID else empty + 1
        index += 1
    return rows


def _counters(machine: Machine, folder: str) -> dict[str, int]:
    values = {
        name: _read(machine, "%s%s/%s" % (folder, group, name)) for group, names in COUNTERS.items() for name in names
    }
    return {name: int(value) for name, value in values.items() if value.isdigit() and int(value)}


def _read(machine: Machine, path: str) -> str:
    """Drivers differ in what they show; an absent file reads as nothing."""
    try:
        return machine.read(path).strip()
    except Unread:
        return ""
