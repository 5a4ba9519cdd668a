"""Which interface NCCL and gloo pick, by their own rules.

NCCL: `ncclFindInterfaces` of src/misc/socket.cc; tests/facts/test_choose.py holds
what NCCL 2.30.7 itself chose.  Older releases differ in two points: they do not
treat virbr specially, and they also take interfaces that are not running.
gloo: `createDefaultDevice` of torch's ProcessGroupGloo.cpp.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from .machine import Unread

UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
"""Interface flags of net/if.h."""

Entries = list[dict[str, Any]]


def nccl(entries: Entries, environ: Mapping[str, str]) -> list[str]:
    """The interfaces that NCCL picks, the first one also for its bootstrap; raises Unread where it would find none."""
    usable = _usable(entries, environ.get("NCCL_SOCKET_FAMILY", ""))
    wanted = environ.get("NCCL_SOCKET_IFNAME", "")
    if len(wanted) > 1:  # NCCL ignores a value of one character
        found = matching(usable, wanted)
        if not found:
            raise Unread("NCCL_SOCKET_IFNAME=%s matches none of %s" % (wanted, _names(usable) + _idle(entries, wanted)))
        return found
    root = environ.get("NCCL_COMM_ID", "")
    steps = ["ib"] + ([root] if root else []) + ["^docker,lo,virbr", "docker", "lo", "virbr"]
    for step in steps:
        found = _subnet(usable, step) if step == root else matching(usable, step)
        if found:
            return found
    raise Unread("no running interface with an address among %s" % _names(entries))


def _usable(entries: Entries, family: str) -> Entries:
    """NCCL looks at running interfaces with an IPv4 or IPv6 address, without ::1."""
    only = {"AF_INET": 4, "AF_INET6": 6}.get(family)
    return [
        entry
        for entry in entries
        if entry["family"]
        and entry["flags"] & RUNNING
        and only in (None, entry["family"])
        and not entry["address"].startswith("::1/")
    ]


def matching(entries: Entries, wanted: str) -> list[str]:
    """Interface names by NCCL's syntax: prefixes separated by commas, ``^`` excludes, ``=`` compares whole names."""
    exclude = wanted.startswith("^")
    wanted = wanted[1:] if exclude else wanted
    exact = wanted.startswith("=")
    items = [item.split(":")[0] for item in (wanted[1:] if exact else wanted).split(",") if item]
    names = list(dict.fromkeys(entry["name"] for entry in entries))
    return [
        name
        for name in names
        if (not items or any(name == item or not exact and name.startswith(item) for item in items)) != exclude
    ]


def _subnet(entries: Entries, root: str) -> list[str]:
    """The interfaces in one subnet with NCCL_COMM_ID (address:port)."""
    try:
        address = ipaddress.ip_address(root.rsplit(":", 1)[0].strip("[]"))
    except ValueError:
        return []
    names = [entry["name"] for entry in entries if address in ipaddress.ip_interface(entry["address"]).network]
    return list(dict.fromkeys(names))


def hcas(ports: list[dict[str, Any]], environ: Mapping[str, str]) -> list[str]:
    """``device:port`` of each RDMA port that NCCL's own IB transport takes; a net plugin has its own rules."""
    if environ.get("NCCL_IB_DISABLE", "").strip() == "1" or environ.get("NCCL_NET", "IB").upper() != "IB":
        return []
    usable = [row for row in ports if row["state"] == "ACTIVE" and row["link_layer"] in ("InfiniBand", "Ethernet")]
    wanted = environ.get("NCCL_IB_HCA", "")
    return ["%s:%d" % (row["device"], row["port"]) for row in usable if accepts(wanted, row["device"], row["port"])]


def accepts(wanted: str, device: str, port: int) -> bool:
    """Whether NCCL_IB_HCA takes a port: ``mlx5``, ``=mlx5_0:1,mlx5_2``, ``^mlx5_3``; empty takes all."""
    exclude = wanted.startswith("^")
    wanted = wanted[1:] if exclude else wanted
    exact = wanted.startswith("=")
    items = [item.partition(":") for item in (wanted[1:] if exact else wanted).split(",") if item]
    named = [
        (device == name or not exact and device.startswith(name)) and number in ("", str(port))
        for name, _, number in items
    ]
    return (not items or any(named)) != exclude


def gloo_named(entries: Entries, wanted: str) -> str:
    """GLOO_SOCKET_IFNAME takes whole names separated by commas; the first is used by rank pairs first."""
    having = {entry["name"] for entry in entries if entry["family"]}
    names = [name for name in wanted.split(",") if name]
    absent = [name for name in names if name not in having]
    if absent or not names:
        raise Unread(
            "GLOO_SOCKET_IFNAME=%s names %s, but the interfaces with an address are %s"
            % (wanted, ", ".join(absent) or "nothing", _names(entries))
        )
    return names[0]


def gloo(entries: Entries, own: list[str]) -> str:
    """The interface that gloo picks without the variable: the one with the host name's address, else loopback."""
    for address in own:
        loop = ipaddress.ip_address(address.split("%")[0]).is_loopback
        for entry in entries:
            if entry["address"].split("/")[0] == address or loop and entry["flags"] & LOOPBACK:
                return str(entry["name"])
    return next((str(entry["name"]) for entry in entries if entry["flags"] & LOOPBACK), "lo")


def _names(entries: Entries) -> str:
    return ", ".join(dict.fromkeys(entry["name"] for entry in entries if entry["family"])) or "no interface at all"


def _idle(entries: Entries, wanted: str) -> str:
    """A note on interfaces that the filter matches but NCCL passes over."""
    idle = matching(entries, wanted)
    return "; %s exists, but is down or has no address of the wanted family" % ", ".join(idle) if idle else ""
