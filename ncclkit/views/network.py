"""Which interface NCCL and gloo will use, among all that there are, and the RDMA ports beside them.

Of a job that has run: which pair of ranks went over which transport, and how the rings ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from ncclkit.analysis import communicators
from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.core.text import MANY, host_list, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, badge, code, el, fit, join, table
from ncclkit.views.facts import SHOWN, further_kinds, kinds_summary

MOST = 50
"""Rows of a table."""
NAMES = (
    "net.interfaces",
    "net.rdma",
    "net.default",
    "net.hostname.addresses",
    "net.nccl.interfaces",
    "net.nccl.hcas",
)
PICKS = {"NCCL": "net.nccl.interface", "gloo": "net.gloo.interface"}

INTERFACES = ("Interface", "Used by", "State", "Addresses", "Speed", "MTU", "Kind")
PORTS = (
    "RDMA port",
    "Used by",
    "State",
    "Rate",
    "Link layer",
    "NUMA node",
    "Interface",
    "Errors counted",
)


@dataclass(frozen=True, slots=True)
class Network:
    """The network of one host, as its facts tell it."""

    host: str
    facts: Mapping[str, Fact]

    def value(self, name: str) -> Any:
        """The value of a fact, None where it is not known."""
        if name in self.facts:
            return self.facts[name].value
        return None

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        """Interfaces or ports; what is not a row of the agent's is left out."""
        held = self.value(name)
        if isinstance(held, list):
            return [row for row in held if isinstance(row, dict)]
        return []

    @property
    def picks(self) -> dict[str, str]:
        """Library → the interface that it will use, where it finds one."""
        return {who: str(self.value(name)) for who, name in PICKS.items() if self.value(name)}

    @property
    def key(self) -> str:
        """Equal for hosts whose networks differ in their addresses only."""
        shape = [
            [row.get(part) for part in ("name", "kind", "state", "mtu", "speed")]
            for row in self.rows(NAMES[0])
        ]
        ports = [
            [row.get(part) for part in ("device", "port", "state", "rate")]
            for row in self.rows("net.rdma")
        ]
        lost = [self.facts[name].why for name in PICKS.values() if name in self.facts]
        return repr((self.picks, self.value("net.nccl.hcas"), lost, shape, ports))


def network_view(case: Case) -> View:
    """The interface that NCCL's bootstrap and gloo will use on each host, and every other one; rare
    networks first.
    """
    kinds = _kinds(case.facts)
    if not kinds:
        return View("Nothing is known of the network: its facts have not been read yet", Markup(""))
    alike = [([network.host for network in held], sentence(held[0])) for held in kinds]
    parts = (_part(held, alone=len(kinds) == 1) for held in [*kinds[:-1][: SHOWN - 1], kinds[-1]])
    return View(
        kinds_summary(alike, "network"),
        join(*parts, further_kinds(alike, "network", "What they will use")),
    )


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
    taken = network.value("net.nccl.hcas")
    ports = network.rows("net.rdma")
    if not ports or not isinstance(taken, list):
        return ""
    if len(taken) == len(ports) > 1:
        share = "all"
    elif taken:
        share = f"{len(taken):,} of"
    else:
        share = "none of"
    return f"for its data NCCL takes {share} {plural(len(ports), 'RDMA port')}"


def _lost(network: Network) -> list[tuple[str, str]]:
    """Who finds no interface, and why."""
    unread = Fact("", why="it was not looked at")
    whys = {
        who: network.facts.get(name, unread).why
        for who, name in PICKS.items()
        if who not in network.picks
    }
    return [(who, why or "no reason was recorded") for who, why in whys.items()]


def _named(network: Network, name: str) -> str:
    """``eth0 (25 Gb/s)``; of loopback for whom it is enough: a job on one host succeeds over it."""
    row = next((row for row in network.rows("net.interfaces") if row.get("name") == name), {})
    if row.get("kind") == "loopback":
        return f"{name}, which is enough on one host and reaches no other"
    about = []
    if row.get("kind") not in (None, "physical"):
        about = [str(row["kind"])]
    about += [_speed(row["speed"])] if row.get("speed") else []
    if about:
        return f"{name} ({', '.join(about)})"
    return name


def _speed(megabits: Any) -> str:
    """``25 Gb/s``, ``100 Mb/s``; a dash for what nobody states."""
    if not isinstance(megabits, (int, float)) or megabits <= 0:
        return "–"
    if megabits >= 1000:
        return f"{megabits / 1000:g} Gb/s"
    return f"{megabits:g} Mb/s"


def _part(held: Sequence[Network], alone: bool) -> Markup:
    """One kind of network; addresses and the like are those of its first host."""
    network = held[0]
    several = (
        f"{plural(len(held), 'host')}: {_hosts(held)}; addresses and errors are those of"
        f" {network.host}"
    )
    if alone and len(held) == 1:
        head = ""
    else:
        head = el("h5", network.host if len(held) == 1 else several)
    interfaces = table(INTERFACES, islice(_interfaces(network), MOST), "nk-network")
    ports = table(PORTS, islice(_ports(network), MOST), "nk-ports")
    # alone, the conclusion says it
    if alone:
        lost = []
    else:
        lost = _lost(network)
    said = (el("p", f"{who} finds no interface: {why}", cls="nk-bad") for who, why in lost)
    return join(head, *said, fit(interfaces), fit(ports), el("p", _around(network), cls="nk-dim"))


def _interfaces(network: Network) -> Iterator[tuple[object, ...]]:
    """One row per interface; those that will be used first."""
    used = _used(network)
    for row in sorted(
        network.rows("net.interfaces"), key=lambda row: str(row.get("name")) not in used
    ):
        name = str(row.get("name", "?"))
        driver = ""
        if row.get("driver"):
            driver = f" ({row['driver']})"
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
    alone = {
        str(row.get("name"))
        for row in network.rows("net.interfaces")
        if row.get("kind") == "loopback"
    }
    for who, name in network.picks.items():
        users[name].append(badge("▲", who, "lonely") if name in alone else badge("●", who, "used"))
    sockets = network.value("net.nccl.interfaces")
    # data goes over RDMA
    idle = bool(network.value("net.nccl.hcas")) or not isinstance(sockets, list)
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
        errors = []
        if isinstance(counters, dict):
            errors = [f"{name} {count}" for name, count in counters.items()]
        rate = row.get("rate")
        yield (
            code(name),
            badge("●", "NCCL's data", "used") if isinstance(taken, list) and name in taken else "–",
            badge(
                "✓" if works else "▲",
                str(row.get("state") or "not known"),
                "checked" if works else "problem",
            ),
            _speed(1000 * rate if isinstance(rate, (int, float)) else None),
            str(row.get("link_layer") or "–"),
            "not known" if row.get("numa") is None else str(row["numa"]),
            some(_behind(row)) or "–",
            some(errors) or "none",
        )


def _behind(port: Mapping[str, Any]) -> list[str]:
    """The network interfaces that the GID table of a port names."""
    gids = port.get("gids")
    names = []
    if isinstance(gids, list):
        names = [str(gid.get("interface") or "") for gid in gids if isinstance(gid, dict)]
    return list(dict.fromkeys(name for name in names if name))


def _addresses(row: Mapping[str, Any]) -> str:
    held = row.get("addresses")
    if isinstance(held, list) and held:
        return some(str(address) for address in held)
    return "none"


def _around(network: Network) -> str:
    """Default route, own name, and how to make NCCL and gloo use another interface."""
    own = network.value("net.hostname.addresses")
    route = network.value("net.default")
    parts = [f"Default route over {route}." if route else "", ""]
    if isinstance(own, list) and own:
        parts[1] = f"The own name resolves to {some(map(str, own))}."
    change = (
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another one, in the environment of every"
        " rank."
    )
    return " ".join(filter(None, (*parts, change)))


EACH = 64
"""Up to here the matrix has a row for each rank; beyond, one for each host."""
LABELLED = 32
"""Ranks of a ring up to which each is named; beyond, those of a host stand together."""
NOTHING = (
    "the logs hold no line of NCCL about it; NCCL_DEBUG=INFO with"
    " NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET prints it"
)

Pair = tuple[int, int]
Links = Mapping[Pair, str]
"""(sender, receiver) → transport in words."""
Orders = Mapping[tuple[int, ...], Sequence[int]]
"""Ranks in the order of a ring, from the lowest on → its channels."""


def transports_view(case: Case) -> View:
    """The pairs of ranks that NCCL connected, by transport; the odd ones first."""
    links = _links(case)
    if not links:
        return View(f"Nothing is known of the transports: {NOTHING}", Markup(""))
    kinds = _by_transport(links)
    hosts = _hosts_of_ranks(case)
    rows = [
        (kind, f"{len(kinds[kind]):,}", _pairs(kinds[kind]), _places(kinds[kind], hosts))
        for kind in reversed(kinds)
    ]
    names, placed, what = _axes(links, hosts)
    figure = _draw.matrix({kind: _placed(kinds[kind], placed) for kind in kinds}, names, what)
    head = ("Transport", "Pairs", "Which ranks", "Hosts")
    return Drawn(_summary(kinds), figure, fit(table(head, rows)))


def rings_view(case: Case) -> View:
    """The rings: which rank follows which, and where a ring leaves its host."""
    known = communicators.rings(case.events)
    if not known:
        return View(f"Nothing is known of the rings: {NOTHING}", Markup(""))
    orders: dict[tuple[int, ...], list[int]] = {}
    for channel, order in sorted(known.items()):
        orders.setdefault(_turned(order), []).append(channel)
    ranked = sorted(orders, key=lambda order: -len(orders[order]))
    hosts = _hosts_of_ranks(case)
    rows = [(some(orders[order]), _order(order, hosts)) for order in ranked]
    return View(_rings_summary(orders, ranked[0], hosts), fit(table(("Channels", "Order"), rows)))


def _links(case: Case) -> dict[Pair, str]:
    return {
        pair: _words(link.transport, link.gdr)
        for pair, link in communicators.transports(case.events).items()
    }


def _words(transport: str, gdr: bool) -> str:
    """``P2P/CUMEM``, ``NET/IB with GPUDirect RDMA``: without the number of the device."""
    names = dict.fromkeys("/".join(name.split("/")[:2]) for name in transport.split(" / "))
    return " and ".join(names) + (" with GPUDirect RDMA" if gdr else "")


def _by_transport(links: Links) -> dict[str, list[Pair]]:
    """Transport → its pairs, the most frequent first."""
    kinds: dict[str, list[Pair]] = {}
    for pair, words in sorted(links.items()):
        kinds.setdefault(words, []).append(pair)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def _summary(kinds: Mapping[str, Sequence[Pair]]) -> str:
    (usual, pairs), *others = kinds.items()
    if not others:
        return f"All {plural(len(pairs), 'pair')} of ranks that NCCL connected go over {usual}"
    rest = ", ".join(f"{len(found):,} over {words}" for words, found in others)
    return f"{plural(len(pairs), 'pair')} of ranks over {usual}; {rest}"


def _hosts_of_ranks(case: Case) -> dict[int, str]:
    """rank → its host, as the communicators say, or else its own lines."""
    said = {
        event.rank: event.host for event in case.events if event.rank is not None and event.host
    }
    for comm in communicators.communicators(case.events):
        said |= {
            comm.ranks[rank]: host
            for rank, (host, _bus) in comm.members.items()
            if host and rank in comm.ranks
        }
    return said


def _axes(links: Links, hosts: Mapping[int, str]) -> tuple[list[str], dict[int, int], str]:
    """Names along the axes, the place of each rank among them, and what a name is."""
    ranks = sorted({rank for pair in links for rank in pair})
    if len(ranks) <= EACH or any(rank not in hosts for rank in ranks):
        return (
            [str(rank) for rank in ranks],
            {rank: place for place, rank in enumerate(ranks)},
            "rank",
        )
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    places = {name: place for place, name in enumerate(names)}
    return names, {rank: places[hosts[rank]] for rank in ranks}, "host"


def _placed(pairs: Iterable[Pair], places: Mapping[int, int]) -> list[Pair]:
    return list(dict.fromkeys((places[src], places[dst]) for src, dst in pairs))


def _pairs(pairs: Sequence[Pair]) -> str:
    shown = ", ".join(f"{src} → {dst}" for src, dst in pairs[:MANY])
    return shown + (f" and {len(pairs) - MANY:,} more" if len(pairs) > MANY else "")


def _places(pairs: Iterable[Pair], hosts: Mapping[int, str]) -> str:
    """The hosts that the pairs lie in or connect."""
    ends = [(hosts.get(src, ""), hosts.get(dst, "")) for src, dst in pairs]
    inside = sorted({a for a, b in ends if a and a == b})
    across = sum(a != b for a, b in ends)
    parts = (
        f"inside {some(inside)}" if inside else "",
        f"{plural(across, 'pair')} between hosts" if across else "",
    )
    return "; ".join(filter(None, parts)) or "–"


def _turned(order: Sequence[int]) -> tuple[int, ...]:
    """The same ring, from its lowest rank on."""
    at = order.index(min(order))
    return (*order[at:], *order[:at])


def _steps(order: Sequence[int], hosts: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Neighbours on one host together, where a ring is too long to name every rank."""
    if len(order) <= LABELLED:
        return [(str(rank), [rank]) for rank in order]
    return [
        (host or "unknown host", list(ranks))
        for host, ranks in groupby(order, lambda rank: hosts.get(rank, ""))
    ]


def _order(order: Sequence[int], hosts: Mapping[int, str]) -> Markup:
    steps = _steps(order, hosts)
    named = []
    for name, ranks in steps[:MANY]:
        if len(ranks) == 1:
            named.append(name)
        else:
            named.append(f"{name} ({some(ranks)})")
    more = ""
    if len(steps) > MANY:
        more = f" → … {len(steps) - MANY:,} more"
    return join(
        " → ".join(named), more, el("span", f" → {named[0]}", cls="nk-dim") if not more else ""
    )


def _rings_summary(orders: Orders, first: tuple[int, ...], hosts: Mapping[int, str]) -> str:
    channels = sum(len(found) for found in orders.values())
    places = [hosts.get(rank, "") for rank in first]
    crossings = sum(a != b for a, b in zip(places, [*places[1:], places[0]], strict=True))
    if len(orders) == 1:
        shape = "the same ring"
    else:
        shape = f"{len(orders)} different rings"
    across = ""
    if crossings and len(orders) == 1:
        across = f", which changes host {crossings:,} times"
    run = f"{plural(channels, 'channel')} run{'s' if channels == 1 else ''}"
    return f"{run} {shape} over {plural(len(first), 'rank')}{across}"
