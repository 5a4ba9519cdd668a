"""Which interface NCCL and gloo will use, among all that there are; and the RDMA ports beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.core.text import host_list, plural, some
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fit, join, table
from ncclkit.views.facts import SHOWN, further_kinds, kinds_summary

MOST = 50
"""Rows of a table."""
NAMES = ("net.interfaces", "net.rdma", "net.default", "net.hostname.addresses", "net.nccl.interfaces", "net.nccl.hcas")
PICKS = {"NCCL": "net.nccl.interface", "gloo": "net.gloo.interface"}

INTERFACES = ("Interface", "Used by", "State", "Addresses", "Speed", "MTU", "Kind")
PORTS = ("RDMA port", "Used by", "State", "Rate", "Link layer", "NUMA node", "Interface", "Errors counted")


@dataclass(frozen=True, slots=True)
class Network:
    """The network of one host, as its facts tell it."""

    host: str
    facts: Mapping[str, Fact]

    def value(self, name: str) -> Any:
        """The value of a fact, None where it is not known."""
        return self.facts[name].value if name in self.facts else None

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        """Interfaces or ports; what is not a row of the agent's is left out."""
        held = self.value(name)
        return [row for row in held if isinstance(row, dict)] if isinstance(held, list) else []

    @property
    def picks(self) -> dict[str, str]:
        """Who → the interface that it will use; only those that find one."""
        return {who: str(self.value(name)) for who, name in PICKS.items() if self.value(name)}

    @property
    def key(self) -> str:
        """Equal for hosts whose networks differ in their addresses only."""
        shape = [[row.get(part) for part in ("name", "kind", "state", "mtu", "speed")] for row in self.rows(NAMES[0])]
        ports = [[row.get(part) for part in ("device", "port", "state", "rate")] for row in self.rows("net.rdma")]
        lost = [self.facts[name].why for name in PICKS.values() if name in self.facts]
        return repr((self.picks, self.value("net.nccl.hcas"), lost, shape, ports))


def network_view(case: Case) -> View:
    """The interface that NCCL's bootstrap and gloo will use on each host, and every other one; rare networks first."""
    kinds = _kinds(case.facts)
    if not kinds:
        return View("Nothing is known of the network: its facts have not been read yet", Markup(""))
    alike = [([network.host for network in held], sentence(held[0])) for held in kinds]
    parts = (_part(held, alone=len(kinds) == 1) for held in [*kinds[:-1][: SHOWN - 1], kinds[-1]])
    return View(kinds_summary(alike, "network"), join(*parts, further_kinds(alike, "network", "What they will use")))


def _kinds(facts: Iterable[Fact]) -> list[list[Network]]:
    """Hosts with equal networks together, the rarest first."""
    hosts: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        if fact.name in NAMES or fact.name in PICKS.values():
            hosts[fact.host][fact.name] = fact
    alike: dict[str, list[Network]] = defaultdict(list)
    for host, known in hosts.items():
        network = Network(host or "a host without a name", known)
        alike[network.key].append(network)
    return sorted(alike.values(), key=len)


def _hosts(held: Iterable[Network]) -> str:
    return host_list(network.host for network in held)


def sentence(network: Network) -> str:
    """What NCCL and gloo will use on one host, and why they find nothing where they do."""
    picks = network.picks
    if len(picks) == len(PICKS) and len(set(picks.values())) == 1:
        uses = f"NCCL and gloo will both use {_named(network, picks['NCCL'])}"
    else:
        uses = ", ".join(f"{who} will use {_named(network, name)}" for who, name in picks.items())
    lost = (f"{who} finds no interface: {why}" for who, why in _lost(network))
    return "; ".join(filter(None, (uses, *lost, _rdma(network))))


def _rdma(network: Network) -> str:
    """How many RDMA ports NCCL takes for its data, of those that there are."""
    taken, ports = network.value("net.nccl.hcas"), network.rows("net.rdma")
    if not ports or not isinstance(taken, list):
        return ""
    share = "all" if len(taken) == len(ports) > 1 else f"{len(taken):,} of" if taken else "none of"
    return f"for its data NCCL takes {share} {plural(len(ports), 'RDMA port')}"


def _lost(network: Network) -> list[tuple[str, str]]:
    """Who finds no interface, and why."""
    unread = Fact("", why="it was not looked at")
    whys = {who: network.facts.get(name, unread).why for who, name in PICKS.items() if who not in network.picks}
    return [(who, why or "no reason was recorded") for who, why in whys.items()]


def _named(network: Network, name: str) -> str:
    """``eth0 (25 Gb/s)``; of loopback for whom it is enough: a job on one host succeeds over it."""
    row = next((row for row in network.rows("net.interfaces") if row.get("name") == name), {})
    if row.get("kind") == "loopback":
        return f"{name}, which is enough on one host and reaches no other"
    about = [str(row["kind"])] if row.get("kind") not in (None, "physical") else []
    about += [_speed(row["speed"])] if row.get("speed") else []
    return f"{name} ({', '.join(about)})" if about else name


def _speed(megabits: Any) -> str:
    """``25 Gb/s``, ``100 Mb/s``; a dash for what nobody states."""
    if not isinstance(megabits, (int, float)) or megabits <= 0:
        return "–"
    return f"{megabits / 1000:g} Gb/s" if megabits >= 1000 else f"{megabits:g} Mb/s"


def _part(held: Sequence[Network], alone: bool) -> Markup:
    """One kind of network; addresses and the like are those of its first host."""
    network = held[0]
    several = f"{plural(len(held), 'host')}: {_hosts(held)}; addresses and errors are those of {network.host}"
    head = "" if alone and len(held) == 1 else el("h5", network.host if len(held) == 1 else several)
    interfaces = table(INTERFACES, islice(_interfaces(network), MOST), "nk-network")
    ports = table(PORTS, islice(_ports(network), MOST), "nk-ports")
    lost = [] if alone else _lost(network)  # alone, the conclusion says it
    said = (el("p", f"{who} finds no interface: {why}", cls="nk-bad") for who, why in lost)
    return join(head, *said, fit(interfaces), fit(ports), el("p", _around(network), cls="nk-dim"))


def _interfaces(network: Network) -> Iterator[tuple[object, ...]]:
    """One row per interface; those that will be used first."""
    used = _used(network)
    for row in sorted(network.rows("net.interfaces"), key=lambda row: str(row.get("name")) not in used):
        name, driver = str(row.get("name", "?")), f" ({row['driver']})" if row.get("driver") else ""
        yield (
            code(name),
            join(*used.get(name, ())) or "–",
            str(row.get("state") or "–"),
            _addresses(row),
            _speed(row.get("speed")),
            str(row.get("mtu") or "–"),
            f"{row.get('kind') or '–'}{driver}",
        )


def _used(network: Network) -> dict[str, list[Markup]]:
    """Interface → who will use it.  NCCL's sockets may use further ones than its bootstrap."""
    users: dict[str, list[Markup]] = defaultdict(list)
    alone = {str(row.get("name")) for row in network.rows("net.interfaces") if row.get("kind") == "loopback"}
    for who, name in network.picks.items():
        users[name].append(badge("▲", who, "lonely") if name in alone else badge("●", who, "used"))
    sockets = network.value("net.nccl.interfaces")
    idle = bool(network.value("net.nccl.hcas")) or not isinstance(sockets, list)  # data goes over RDMA
    for name in () if idle else sockets:
        if name != network.picks.get("NCCL"):
            users[str(name)].append(badge("●", "NCCL's data", "used"))
    return users


def _ports(network: Network) -> Iterator[tuple[object, ...]]:
    taken = network.value("net.nccl.hcas")
    for row in network.rows("net.rdma"):
        name = f"{row.get('device', '?')}:{row.get('port', '?')}"
        works = row.get("state") == "ACTIVE"
        counters = row.get("counters")
        errors = [f"{name} {count}" for name, count in counters.items()] if isinstance(counters, dict) else []
        rate = row.get("rate")
        yield (
            code(name),
            badge("●", "NCCL's data", "used") if isinstance(taken, list) and name in taken else "–",
            badge("✓" if works else "▲", str(row.get("state") or "not known"), "checked" if works else "problem"),
            _speed(1000 * rate if isinstance(rate, (int, float)) else None),
            str(row.get("link_layer") or "–"),
            "not known" if row.get("numa") is None else str(row["numa"]),
            some(_behind(row)) or "–",
            some(errors) or "none",
        )


def _behind(port: Mapping[str, Any]) -> list[str]:
    """The network interfaces that the GID table of a port names."""
    gids = port.get("gids")
    names = [str(gid.get("interface") or "") for gid in gids if isinstance(gid, dict)] if isinstance(gids, list) else []
    return list(dict.fromkeys(name for name in names if name))


def _addresses(row: Mapping[str, Any]) -> str:
    held = row.get("addresses")
    return some(str(address) for address in held) if isinstance(held, list) and held else "none"


def _around(network: Network) -> str:
    """Default route, own name, and how to make NCCL and gloo use another interface."""
    own = network.value("net.hostname.addresses")
    route = network.value("net.default")
    parts = [f"Default route over {route}." if route else "", ""]
    if isinstance(own, list) and own:
        parts[1] = f"The own name resolves to {some(map(str, own))}."
    change = "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another one, in the environment of every rank."
    return " ".join(filter(None, (*parts, change)))
