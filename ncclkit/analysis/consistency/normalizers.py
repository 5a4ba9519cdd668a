"""What of a fact can be compared between hosts: names, addresses and order of one host are left behind.

A form takes the value and all facts of its host, and gives what is equal on hosts that are equal; None where this host
has nothing to compare.  A set stands for things; only those that not all hosts have need to be named.  It may
raise on values of an unexpected shape, as facts can come from a file.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from ncclkit.core.model import Fact

Host = Mapping[str, Fact]
"""The facts of one host by name."""
Form = Callable[[Any, Host], Any]


def same(value: Any, host: Host) -> Any:
    """The value itself."""
    return value


def count(value: Any, host: Host) -> int:
    """How many."""
    return len(value)


def parts(value: Any, host: Host) -> frozenset[str]:
    """The members of a list as the loader takes it, in any order."""
    return frozenset(filter(None, re.split(r"[: ]", value)))


def file_names(value: Any, host: Host) -> frozenset[str]:
    """Files without their folders."""
    return frozenset(PurePosixPath(path).name for path in value)


def versions(value: Any, host: Host) -> frozenset[str]:
    """Packages with their versions."""
    return frozenset(f"{name} {version}" for name, version in value.items())


def some(value: Any, host: Host) -> bool:
    """Whether there is any."""
    return bool(value > 0)


def span(value: Any, host: Host) -> str:
    """First and last of a range."""
    return f"{value[0]}–{value[1]}"


def swap(value: Any, host: Host) -> tuple[str, ...]:
    """What the swap areas lie on."""
    return tuple(sorted({str(row["storage"]) for row in value}))


def libraries(value: Any, host: Host) -> frozenset[str]:
    """Version and way of every NCCL, whatever folder it is in."""
    return frozenset(f"{row['version'] or 'of unknown version'} ({row['how']})" for row in value)


def worrying(value: Any, host: Host) -> tuple[str, ...]:
    """Reasons for lower clocks that come from heat or hardware; a power cap is part of normal work."""
    return tuple(sorted(reason for reason in value if "thermal" in reason or reason.startswith("hw")))


def remapped(value: Any, host: Host) -> str:
    """State of the row remapping, without its counts."""
    return next((word for word in ("failure", "pending") if value[word]), "in order")


def between_gpus(value: Any, host: Host) -> tuple[str, ...] | None:
    """The kinds of paths that join GPUs."""
    gpus = [name for name in value if name.startswith("GPU")]
    return tuple(sorted({value[a][b] for a in gpus for b in value[a] if b in gpus and a != b})) or None


def to_nics(value: Any, host: Host) -> tuple[str, ...] | None:
    """The kinds of way from a GPU to the NIC nearest to it."""
    rows = [
        [way for to, way in row.items() if to.startswith("NIC")] for name, row in value.items() if name[:3] == "GPU"
    ]
    return tuple(sorted({min(ways, key=_distance) for ways in rows if ways})) or None


def _distance(way: str) -> int:
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    return order.index(way) if way in order else len(order)


def row(value: Any, host: Host) -> Mapping[str, Any]:
    """The interface of that name."""
    return next(row for row in host["net.interfaces"].value if row["name"] == value)


def kind(value: Any, host: Host) -> Any:
    """What the named interface is: physical, loopback, docker …"""
    return row(value, host)["kind"]


def mtu(value: Any, host: Host) -> Any:
    """The largest packet of the named interface."""
    return row(value, host)["mtu"]


def speed(value: Any, host: Host) -> str | None:
    """Of the named interface; None where its driver does not say."""
    rate = row(value, host)["speed"]
    return f"{rate / 1000:g} Gb/s" if rate else None


def family(value: Any, host: Host) -> str:
    """The kind of address that NCCL finds first on the named interface."""
    versions = {ipaddress.ip_interface(address).version for address in row(value, host)["addresses"]}
    return "IPv4" if 4 in versions else "IPv6"


def resolved(value: Any, host: Host) -> str:
    """What the own host name resolves to."""
    inward = [ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in value]
    return "127.x" if inward and inward[0] else "an address that others can reach"


def cards(value: Any, host: Host) -> tuple[str, ...]:
    """Physical interfaces that are up, by speed."""
    up = [row["speed"] for row in value if row["kind"] == "physical" and row["state"] == "up"]
    return tuple(f"{many} × {f'{rate / 1000:g} Gb/s' if rate else 'unknown speed'}" for rate, many in _counted(up))


def virtual(value: Any, host: Host) -> frozenset[str]:
    """Kinds of interface that are up and lead to no card, but for the loopback."""
    return frozenset(row["kind"] for row in value if row["state"] == "up") - {"physical", "loopback"}


def active(value: Any, host: Host) -> list[Mapping[str, Any]]:
    """RDMA ports that carry data."""
    return [row for row in value if row["state"] == "ACTIVE"]


def has_rdma(value: Any, host: Host) -> bool:
    """Whether any RDMA port carries data."""
    return bool(active(value, host))


def ports(value: Any, host: Host) -> tuple[str, ...] | None:
    """Active RDMA ports by link layer and rate."""
    known = _counted((row["link_layer"], row["rate"]) for row in active(value, host))
    return tuple(f"{many} × {layer} {rate:g} Gb/s" for (layer, rate), many in known) or None


def devices(value: Any, host: Host) -> tuple[str, ...] | None:
    """Names of the RDMA devices with an active port."""
    return tuple(sorted({row["device"] for row in active(value, host)})) or None


def gids(value: Any, host: Host) -> tuple[int, ...] | None:
    """Indexes of the RoCE v2 entries with an IPv4 address, over all ports."""
    found = {
        gid["index"]
        for row in active(value, host)
        for gid in row["gids"]
        if "v2" in gid["type"] and ":ffff:" in gid["gid"]
    }
    return tuple(sorted(found)) or None


def _counted(items: Any) -> list[tuple[Any, int]]:
    return sorted(Counter(items).items(), key=str)


Reach = tuple[str, Mapping[str, frozenset[str]]]
"""The interface that NCCL picks, and the networks of the host, each with the interfaces that lie in it."""


def reach(value: Any, host: Host) -> Reach:
    """Where NCCL's interface leads, and where the others do; link-local networks lead nowhere."""
    found: dict[str, frozenset[str]] = {}
    for row in host["net.interfaces"].value:
        for address in row["addresses"] if row["state"] == "up" else ():
            network = ipaddress.ip_interface(address.partition("%")[0]).network
            if not (network.is_loopback or network.is_link_local):
                found[str(network)] = found.get(str(network), frozenset()) | {row["name"]}
    return str(value), found


def subnets(column: Mapping[str, Reach]) -> dict[str, str | None]:
    """host → ``10.0.0.0/16``, or that NCCL picks another interface although one lies in most others' network.

    Hosts in networks of their own (one a rack) are joined by routers, and have nothing to compare.
    """
    own = Counter(net for chosen, nets in column.values() for net, names in nets.items() if chosen in names)
    network, many = max(own.items(), key=lambda item: item[1], default=("", 0))
    if 2 * many <= len(column):
        return dict.fromkeys(column)
    return {host: _side(network, chosen, nets.get(network)) for host, (chosen, nets) in column.items()}


def _side(network: str, chosen: str, inside: frozenset[str] | None) -> str | None:
    if inside is None:
        return None
    return network if chosen in inside else f"not {network}, where its {min(inside)} is"
