"""Network: interfaces, RDMA devices, and what NCCL and gloo would pick.

Also the default route, the own name and the speed of loopback.

Interfaces come from getifaddrs(3), the call that NCCL and gloo themselves use, so with their order.

What they pick follows their own rules. NCCL: `ncclFindInterfaces` of src/misc/socket.cc;
tests/facts/test_choose.py holds what NCCL 2.30.7 itself chose. Older releases differ in two points:
they do not treat virbr specially, and they also take interfaces that do not run. gloo:
`createDefaultDevice` of torch's ProcessGroupGloo.cpp.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from ..digits import whole_number
from . import settings
from .cpu import usable
from .machine import Absent, Fact, Machine, Unread, attempt, known, unread, value_of

_SIOCGIFMTU = 0x8921


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def entries() -> list[dict[str, Any]]:
    """Every interface address in the kernel's order.

    An entry is name, index, flags, mtu, family (4, 6, 0), and address with prefix.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return list(_addresses_of(head))
    finally:
        libc.freeifaddrs(head)


def _addresses_of(node: Any) -> Iterator[dict[str, Any]]:
    index = {name: number for number, name in socket.if_nameindex()}
    while node:
        entry = node.contents
        name = os.fsdecode(entry.name)
        family, address = _address_of_pointer(entry.address)
        yield {
            "name": name,
            "index": index.get(name),
            "flags": entry.flags,
            "mtu": _mtu(name),
            "family": family,
            "address": "%s/%d" % (address, _prefix(entry.netmask)) if address else "",
        }
        node = entry.next


def _address_of_pointer(pointer: int | None) -> tuple[int, str]:
    """(4 or 6, text) of a sockaddr, (0, "") for other families."""
    if not pointer:
        return 0, ""
    family = ctypes.c_ushort.from_address(pointer).value
    if family == socket.AF_INET:
        return 4, socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return 6, socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return 0, ""


def _prefix(netmask: int | None) -> int:
    text = _address_of_pointer(netmask)[1]
    if text:
        return bin(int(ipaddress.ip_address(text))).count("1")
    return 0


def _mtu(name: str) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(
                probe, _SIOCGIFMTU, struct.pack("16si", os.fsencode(name), 0) + bytes(12)
            )
        except OSError:
            return None
    return int(struct.unpack_from("i", answer, 16)[0])


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


def rdma_ports(machine: Machine) -> list[dict[str, Any]]:
    """One row for each RDMA port.

    It holds device, driver, firmware, port, state, physical, rate (Gb/s), link_layer, numa, gids
    and counters.  EFA devices (driver efa) come with link_layer "Unspecified" and no counters of
    these names.
    """
    try:
        devices = machine.names(FOLDER)
    except Absent:
        return []  # the kernel has no RDMA device
    rows = []
    for device in devices:
        folder = "%s/%s/ports" % (FOLDER, device)
        rows += [
            _port_row(machine, device, port, "%s/%s/" % (folder, port))
            for port in _port_numbers(machine, folder)
        ]
    if devices and not rows:
        raise Unread("the RDMA devices here have no port: %s" % ", ".join(devices))
    return rows


def _port_numbers(machine: Machine, folder: str) -> list[str]:
    """The numbers of a device's ports.

    A device that is just being taken away, or that another container holds, has no ports any more.
    """
    try:
        return machine.names(folder, r"\d+")
    except Unread:
        return []


def _port_row(machine: Machine, device: str, port: str, folder: str) -> dict[str, Any]:
    rate = re.match(r"[\d.]+", _read_or_empty(machine, folder + "rate"))
    numa = _read_or_empty(machine, "%s/%s/device/numa_node" % (FOLDER, device))
    return {
        "device": device,
        "driver": _driver(machine, device),
        "firmware": _read_or_empty(machine, "%s/%s/fw_ver" % (FOLDER, device)),
        "port": int(port),
        # "4: ACTIVE", "5: LinkUp"
        "state": _read_or_empty(machine, folder + "state").split(": ")[-1],
        "physical": _read_or_empty(machine, folder + "phys_state").split(": ")[-1],
        "rate": float(rate.group()) if rate else None,
        "link_layer": _read_or_empty(machine, folder + "link_layer"),
        "numa": _numa_node(numa),
        "gids": _filled_gids(machine, folder),
        "counters": _counters(machine, folder),
    }


def _driver(machine: Machine, device: str) -> str:
    """mlx5_core, efa, bnxt_en …; empty where the kernel does not say."""
    try:
        return machine.link("%s/%s/device/driver" % (FOLDER, device)).rsplit("/", 1)[-1]
    except Unread:
        return ""


def _filled_gids(machine: Machine, folder: str) -> list[dict[str, Any]]:
    """The filled rows of the GID table.

    It has up to 256 rows, so eight empty ones in a row end the search.
    """
    rows: list[dict[str, Any]] = []
    empty, index = 0, 0
    while empty < 8 and index < 256:
        gid = _read_or_empty(machine, "%sgids/%d" % (folder, index))
        if gid and gid != EMPTY_GID:
            attributes = "%sgid_attrs/%%s/%d" % (folder, index)
            rows.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": _read_or_empty(machine, attributes % "types"),
                    "interface": _read_or_empty(machine, attributes % "ndevs"),
                }
            )
        if gid and gid != EMPTY_GID:
            empty = 0
        else:
            empty = empty + 1
        index += 1
    return rows


def _counters(machine: Machine, folder: str) -> dict[str, int]:
    values = {
        name: _read_or_empty(machine, "%s%s/%s" % (folder, group, name))
        for group, names in COUNTERS.items()
        for name in names
    }
    counted = {name: whole_number(value) for name, value in values.items()}
    return {name: count for name, count in counted.items() if count}


def _numa_node(text: str) -> int | None:
    """The number of a NUMA node, -1 where the device belongs to none."""
    if text == "-1":
        return -1
    return whole_number(text)


def _read_or_empty(machine: Machine, path: str) -> str:
    """Drivers differ in what they show; an absent file reads as nothing."""
    try:
        return machine.read(path).strip()
    except Unread:
        return ""


UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
"""Interface flags of net/if.h."""

Entries = list[dict[str, Any]]


def nccl_picks(entries: Entries, environ: Mapping[str, str]) -> list[str]:
    """The interfaces that NCCL picks, the first one also for its bootstrap.

    Raises Unread where it would find none.
    """
    usable = _usable_entries(entries, environ.get("NCCL_SOCKET_FAMILY", ""))
    wanted = environ.get("NCCL_SOCKET_IFNAME", "")
    if len(wanted) > 1:  # NCCL ignores a value of one character
        found = matching(usable, wanted)
        if not found:
            raise Unread(
                "NCCL_SOCKET_IFNAME=%s matches none of %s"
                % (wanted, _names_of_entries(usable) + _note_on_idle(entries, wanted))
            )
        return found
    root = environ.get("NCCL_COMM_ID", "")
    steps = ["ib"] + ([root] if root else []) + ["^docker,lo,virbr", "docker", "lo", "virbr"]
    for step in steps:
        if step == root:
            found = _interfaces_in_subnet(usable, step)
        else:
            found = matching(usable, step)
        if found:
            return found
    raise Unread("no running interface with an address among %s" % _names_of_entries(entries))


def _usable_entries(entries: Entries, family: str) -> Entries:
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
    """Interface names by the syntax of NCCL_SOCKET_IFNAME; `accepts` has that of NCCL_IB_HCA.

    Prefixes separated by commas, ``^`` excludes, ``=`` compares whole names.
    """
    exclude = wanted.startswith("^")
    if exclude:
        wanted = wanted[1:]
    exact = wanted.startswith("=")
    # some write a port or an alias behind the name, which NCCL does not compare
    items = [item.split(":")[0] for item in (wanted[1:] if exact else wanted).split(",") if item]
    names = list(dict.fromkeys(entry["name"] for entry in entries))
    return [
        name
        for name in names
        if (not items or any(name == item or not exact and name.startswith(item) for item in items))
        != exclude
    ]


def _interfaces_in_subnet(entries: Entries, root: str) -> list[str]:
    """The interfaces in one subnet with NCCL_COMM_ID (address:port)."""
    try:
        address = ipaddress.ip_address(root.rsplit(":", 1)[0].strip("[]"))
    except ValueError:
        return []
    names = [
        entry["name"]
        for entry in entries
        if address in ipaddress.ip_interface(entry["address"]).network
    ]
    return list(dict.fromkeys(names))


def hcas(ports: list[dict[str, Any]], environ: Mapping[str, str]) -> list[str]:
    """``device:port`` of each RDMA port that NCCL's own IB transport takes.

    A net plugin has its own rules.
    """
    if (
        environ.get("NCCL_IB_DISABLE", "").strip() == "1"
        or environ.get("NCCL_NET", "IB").upper() != "IB"
    ):
        return []
    usable = [
        row
        for row in ports
        if row["state"] == "ACTIVE" and row["link_layer"] in ("InfiniBand", "Ethernet")
    ]
    wanted = environ.get("NCCL_IB_HCA", "")
    return [
        "%s:%d" % (row["device"], row["port"])
        for row in usable
        if accepts(wanted, row["device"], row["port"])
    ]


def accepts(wanted: str, device: str, port: int) -> bool:
    """Whether NCCL_IB_HCA takes a port: ``mlx5``, ``=mlx5_0:1,mlx5_2``, ``^mlx5_3``.

    An empty value takes all.
    """
    exclude = wanted.startswith("^")
    if exclude:
        wanted = wanted[1:]
    exact = wanted.startswith("=")
    items = [item.partition(":") for item in (wanted[1:] if exact else wanted).split(",") if item]
    named = [
        (device == name or not exact and device.startswith(name)) and number in ("", str(port))
        for name, _, number in items
    ]
    return (not items or any(named)) != exclude


def gloo_picks_named(entries: Entries, wanted: str) -> str:
    """The first interface that GLOO_SOCKET_IFNAME picks, of whole names separated by commas.

    Pairs of ranks use the first one first.
    """
    having = {entry["name"] for entry in entries if entry["family"]}
    names = [name for name in wanted.split(",") if name]
    absent = [name for name in names if name not in having]
    if absent or not names:
        raise Unread(
            "GLOO_SOCKET_IFNAME=%s names %s, but the interfaces with an address are %s"
            % (wanted, ", ".join(absent) or "nothing", _names_of_entries(entries))
        )
    return names[0]


def gloo_picks(entries: Entries, own: list[str]) -> str:
    """The interface that gloo picks without the variable.

    It is the one with the host name's address, else loopback.
    """
    for address in own:
        loop = ipaddress.ip_address(address.split("%")[0]).is_loopback
        for entry in entries:
            if entry["address"].split("/")[0] == address or loop and entry["flags"] & LOOPBACK:
                return str(entry["name"])
    return next((str(entry["name"]) for entry in entries if entry["flags"] & LOOPBACK), "lo")


def _names_of_entries(entries: Entries) -> str:
    return (
        ", ".join(dict.fromkeys(entry["name"] for entry in entries if entry["family"]))
        or "no interface at all"
    )


def _note_on_idle(entries: Entries, wanted: str) -> str:
    """A note on interfaces that the filter matches but NCCL passes over."""
    idle = matching(entries, wanted)
    if idle:
        return "; %s exists, but is down or has no address of the wanted family" % ", ".join(idle)
    return ""


LOOPBACK_SECONDS = 0.3


def network_facts(machine: Machine) -> Iterator[Fact]:
    """All ``net.`` facts."""
    yield attempt(
        "net.interfaces", lambda: interfaces(machine), source="getifaddrs, /sys/class/net"
    )
    yield attempt(
        "net.default",
        lambda: _default_interface(machine),
        source="/proc/net/route, /proc/net/ipv6_route",
    )
    # a name server that is gone takes seconds each time it is asked
    own = attempt(
        "net.hostname.addresses",
        lambda: own_addresses(machine),
        source="getaddrinfo of the own host name",
    )
    yield own
    ports = attempt("net.rdma", lambda: rdma_ports(machine), source="/sys/class/infiniband")
    yield ports
    rules = "NCCL's rules (prefix, ^, =) applied to getifaddrs"
    yield attempt(
        "net.nccl.interface",
        lambda: nccl_picks(addresses(machine), settings.values(machine))[0],
        source=rules,
    )
    yield attempt(
        "net.nccl.interfaces",
        lambda: nccl_picks(addresses(machine), settings.values(machine)),
        source=rules,
    )
    rules = "NCCL's rules (prefix, ^, =) applied to /sys/class/infiniband"
    yield attempt(
        "net.nccl.hcas", lambda: hcas(value_of(ports), settings.values(machine)), source=rules
    )
    yield attempt(
        "net.gloo.interface",
        lambda: _gloo_interface(machine, own["value"] or []),
        source="torch's rules for gloo",
    )
    yield from loopback_facts(machine)


def addresses(machine: Machine) -> list[dict[str, Any]]:
    """The entries of getifaddrs (see `entries`)."""
    return list(machine.call("getifaddrs", entries))


def interfaces(machine: Machine) -> list[dict[str, Any]]:
    """One row for each interface.

    It holds name, state, addresses with prefix, mtu, speed in Mbit/s or None, driver and kind.
    """
    rows: dict[str, dict[str, Any]] = {}
    for entry in addresses(machine):
        row = rows.setdefault(
            entry["name"],
            {
                "name": entry["name"],
                "state": _link_state(entry["flags"]),
                "addresses": [],
                "mtu": entry["mtu"],
            },
        )
        if entry["address"]:
            row["addresses"].append(entry["address"])
        if "kind" not in row:
            row.update(_device_of_interface(machine, entry["name"], entry["index"], entry["flags"]))
    return list(rows.values())


def _link_state(flags: int) -> str:
    if not flags & UP:
        return "down"
    if flags & RUNNING:
        return "up"
    return "no carrier"


def _device_of_interface(
    machine: Machine, name: str, index: int | None, flags: int
) -> dict[str, Any]:
    """Speed, driver and kind out of /sys, which may belong to another network namespace
    than ours.
    """
    folder = "/sys/class/net/" + name
    try:
        ours = int(machine.read(folder + "/ifindex")) == index
        files = []
        if ours:
            files = machine.names(folder, "device|bridge|tun_flags")
    except Unread:
        ours, files = False, []
    try:
        speed = -1
        if ours:
            speed = int(machine.read(folder + "/speed"))
    except (Unread, ValueError):
        speed = -1
    try:
        driver = machine.link(folder + "/device/driver").rsplit("/", 1)[-1]
    except Unread:
        driver = ""
    kind = _interface_kind(files, name, flags) or (
        "veth" if ours and _is_veth(machine, folder) else "virtual"
    )
    return {"speed": speed if speed > 0 else None, "driver": driver if ours else "", "kind": kind}


def _interface_kind(files: list[str], name: str, flags: int) -> str:
    """physical, loopback, docker, bridge, veth or tun.

    The kind is empty where neither /sys nor the name tells.
    """
    if flags & LOOPBACK:
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
    if name.startswith(("veth", "cali")):
        return "veth"
    return ""


def _is_veth(machine: Machine, folder: str) -> bool:
    """Whether an interface is a veth.

    A veth names another index than its own in iflink and, unlike VLANs and macvlans, no DEVTYPE.
    """
    try:
        same = machine.read(folder + "/iflink") == machine.read(folder + "/ifindex")
        return not same and "DEVTYPE=" not in machine.read(folder + "/uevent")
    except Unread:
        return False


def _default_interface(machine: Machine) -> str:
    """The interface of the default route with the lowest metric.

    It is that of IPv6 where IPv4 has none.
    """
    rows = [line.split() for line in machine.read("/proc/net/route").splitlines()[1:]]
    routes = sorted(
        (int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"
    )
    if routes:
        return routes[0][1]
    return _default6(machine)


def _default6(machine: Machine) -> str:
    """The interface of the default route of IPv6.

    A row is destination, its length, source, its length, next hop, metric, …, name, in hex.
    """
    try:
        rows = [line.split() for line in machine.read("/proc/net/ipv6_route").splitlines()]
    except Unread:
        rows = []  # a kernel without IPv6
    # the row of lo rejects what has no route
    ours = [
        row for row in rows if len(row) == 10 and row[:2] == ["0" * 32, "00"] and row[9] != "lo"
    ]
    routes = sorted((int(row[5], 16), row[9]) for row in ours)
    if not routes:
        raise Unread("no default route")
    return routes[0][1]


def own_addresses(machine: Machine) -> list[str]:
    """The addresses of the own host name."""
    name = machine.read("/proc/sys/kernel/hostname").strip()
    found: list[str] = machine.child("resolve", name, deadline=5, form=list)
    return found


def gloo_default(machine: Machine) -> str:
    """The interface that gloo takes without GLOO_SOCKET_IFNAME."""
    return gloo_picks(addresses(machine), own_addresses(machine))


def _gloo_interface(machine: Machine, own: list[str]) -> str:
    entries = addresses(machine)
    if machine.environ.get("GLOO_SOCKET_IFNAME"):
        return gloo_picks_named(entries, machine.environ["GLOO_SOCKET_IFNAME"])
    return gloo_picks(entries, own)


LOOPBACK_FACTS = (
    ("net.loopback.bandwidth", "GB/s", "GB/s"),
    ("net.loopback.interval", "GB/s", "interval"),
    ("net.loopback.cost", "CPU s/GB", "CPU s/GB"),
)
"""Fact, unit, and how what was measured calls it."""
DISTURBED = 0.25
"""Share of the time without a core that makes a host busy.

In the best window, so much says that a busy host was measured and not its loopback.
"""


def loopback_facts(machine: Machine) -> Iterator[Fact]:
    """The speed of one TCP stream through this host.

    On a busy host there is no number, but the reason.
    """
    source = "one TCP stream through 127.0.0.1 for %g s" % LOOPBACK_SECONDS
    try:
        said = machine.child("loopback", str(LOOPBACK_SECONDS), deadline=LOOPBACK_SECONDS + 15)
    except Unread as why:
        said = why
    lost = None
    if isinstance(said, dict):
        lost = said.get("waited")
    if isinstance(lost, float) and lost >= DISTURBED:
        said = Unread(_why_busy(machine))
    for name, unit, key in LOOPBACK_FACTS:
        if isinstance(said, Unread):
            yield unread(name, said, unit, source)
        elif key in said:  # recordings of earlier editions lack some
            yield known(name, said[key], unit, source)


def _why_busy(machine: Machine) -> str:
    """Why there is no reference: ``no reference: this host is busy (load 13.6 on 2 cores)``."""
    try:
        load, _, _, wanting = machine.read("/proc/loadavg").split()[:4]
        cores = usable(machine)
        # the load is a mean over a minute, and may not know yet who came a second ago
        most = max(float(load), float(wanting.split("/")[0]))
    except (Unread, ValueError):
        return "no reference: this host is busy"
    return "no reference: this host is busy (load %.3g on %g core%s)" % (
        most,
        cores,
        "" if cores == 1 else "s",
    )
