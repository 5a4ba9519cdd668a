"""Network: interfaces, default route, the own name, what NCCL and gloo would pick, the speed of loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from . import choose, conf, ifaddrs, rdma
from .fact import Fact, attempt, unread
from .machine import Machine, Unread

LOOPBACK_SECONDS = 0.3


def facts(machine: Machine) -> Iterator[Fact]:
    """All ``net.`` facts."""
    yield attempt("net.interfaces", lambda: interfaces(machine), source="getifaddrs, /sys/class/net")
    yield attempt("net.default", lambda: _default(machine), source="/proc/net/route, /proc/net/ipv6_route")
    yield attempt("net.hostname.addresses", lambda: resolve(machine), source="getaddrinfo of the own host name")
    yield attempt("net.rdma", lambda: rdma.ports(machine), source="/sys/class/infiniband")
    rules = "NCCL's rules (prefix, ^, =) applied to getifaddrs"
    yield attempt("net.nccl.interface", lambda: choose.nccl(addresses(machine), conf.values(machine))[0], source=rules)
    yield attempt("net.nccl.interfaces", lambda: choose.nccl(addresses(machine), conf.values(machine)), source=rules)
    rules = "NCCL's rules (prefix, ^, =) applied to /sys/class/infiniband"
    yield attempt("net.nccl.hcas", lambda: choose.hcas(rdma.ports(machine), conf.values(machine)), source=rules)
    yield attempt("net.gloo.interface", lambda: _gloo(machine), source="torch's rules for gloo")
    yield from _loopback(machine)


def addresses(machine: Machine) -> list[dict[str, Any]]:
    """The entries of getifaddrs (see ifaddrs.entries)."""
    return list(machine.call("getifaddrs", ifaddrs.entries))


def interfaces(machine: Machine) -> list[dict[str, Any]]:
    """One row per interface: name, state, addresses with prefix, mtu, speed in Mbit/s or None, driver, kind."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in addresses(machine):
        row = rows.setdefault(
            entry["name"],
            {"name": entry["name"], "state": _state(entry["flags"]), "addresses": [], "mtu": entry["mtu"]},
        )
        if entry["address"]:
            row["addresses"].append(entry["address"])
        if "kind" not in row:
            row.update(_device(machine, entry["name"], entry["index"], entry["flags"]))
    return list(rows.values())


def _state(flags: int) -> str:
    if not flags & choose.UP:
        return "down"
    return "up" if flags & choose.RUNNING else "no carrier"


def _device(machine: Machine, name: str, index: int | None, flags: int) -> dict[str, Any]:
    """Speed, driver and kind out of /sys, which may belong to another network namespace than ours."""
    folder = "/sys/class/net/" + name
    try:
        ours = int(machine.read(folder + "/ifindex")) == index
        files = machine.names(folder, "device|bridge|tun_flags") if ours else []
    except Unread:
        ours, files = False, []
    try:
        speed = int(machine.read(folder + "/speed")) if ours else -1
    except (Unread, ValueError):
        speed = -1
    try:
        driver = machine.link(folder + "/device/driver").rsplit("/", 1)[-1]
    except Unread:
        driver = ""
    kind = _kind(files, name, flags) or ("veth" if ours and _peer(machine, folder) else "virtual")
    return {"speed": speed if speed > 0 else None, "driver": driver if ours else "", "kind": kind}


def _kind(files: list[str], name: str, flags: int) -> str:
    """physical, loopback, docker, bridge, veth or tun; empty where neither /sys nor the name tells."""
    if flags & choose.LOOPBACK:
        return "loopback"
    if re.match(r"docker|br-[0-9a-f]{12}$", name):
        return "docker"
    if "device" in files:
        return "physical"
    for file, kind in (("bridge", "bridge"), ("tun_flags", "tun")):
        if file in files:
            return kind
    if re.match(r"tun|tap|wg|tailscale", name):
        return "tun"
    if re.match(r"virbr|br\d|cni|lxcbr", name):
        return "bridge"
    return "veth" if name.startswith(("veth", "cali")) else ""


def _peer(machine: Machine, folder: str) -> bool:
    """A veth names another index than its own in iflink and, unlike VLANs and macvlans, no DEVTYPE."""
    try:
        same = machine.read(folder + "/iflink") == machine.read(folder + "/ifindex")
        return not same and "DEVTYPE=" not in machine.read(folder + "/uevent")
    except Unread:
        return False


def _default(machine: Machine) -> str:
    """The interface of the default route with the lowest metric; of IPv6 where IPv4 has none."""
    rows = [line.split() for line in machine.read("/proc/net/route").splitlines()[1:]]
    routes = sorted((int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")
    return routes[0][1] if routes else _default6(machine)


def _default6(machine: Machine) -> str:
    """Of IPv6, where a row is destination, its length, source, its length, next hop, metric, …, name, in hex."""
    try:
        rows = [line.split() for line in machine.read("/proc/net/ipv6_route").splitlines()]
    except Unread:
        rows = []  # a kernel without IPv6
    # the row of lo rejects what has no route
    ours = [row for row in rows if len(row) == 10 and row[:2] == ["0" * 32, "00"] and row[9] != "lo"]
    routes = sorted((int(row[5], 16), row[9]) for row in ours)
    if not routes:
        raise Unread("no default route")
    return routes[0][1]


def resolve(machine: Machine) -> list[str]:
    """The addresses of the own host name."""
    name = machine.read("/proc/sys/kernel/hostname").strip()
    found: list[str] = machine.child("child_resolve", name, deadline=5, form=list)
    return found


def _gloo(machine: Machine) -> str:
    entries = addresses(machine)
    if machine.environ.get("GLOO_SOCKET_IFNAME"):
        return choose.gloo_named(entries, machine.environ["GLOO_SOCKET_IFNAME"])
    try:
        own = resolve(machine)
    except Unread:
        own = []
    return choose.gloo(entries, own)


def _loopback(machine: Machine) -> Iterator[Fact]:
    source = "one TCP stream through 127.0.0.1 for %g s" % LOOPBACK_SECONDS
    try:
        said = machine.child("child_loopback", str(LOOPBACK_SECONDS), deadline=LOOPBACK_SECONDS + 5)
    except Unread as why:
        said = why
    for name, unit in (("net.loopback.bandwidth", "GB/s"), ("net.loopback.cost", "CPU s/GB")):
        if isinstance(said, Unread):
            yield unread(name, said, unit, source)
        else:
            yield attempt(name, partial(said.__getitem__, unit), unit, source)
