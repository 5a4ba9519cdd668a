"""Which interface NCCL and gloo will use, among all that there are.

The RDMA ports stand beside them.  Of a job that has run it shows which pair of ranks went over
which transport, and how the rings ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ncclkit.analysis import communicators
from ncclkit.analysis.ring_orders import (
    Order,
    channels_by_order,
    host_changes,
    hosts_of_ranks,
    neighbours_by_host,
)
from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.core.text import MANY, host_list, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, badge, code, el, fit, join, table
from ncclkit.views._missing import NoData
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
        """Interfaces or ports.

        What is not a row of the agent's is left out.
        """
        held = self.value(name)
        if isinstance(held, list):
            return [row for row in held if isinstance(row, dict)]
        return []

    @property
    def picks(self) -> dict[str, str]:
        """Library → the interface that it will use, where it finds one."""
        interfaces_picked = {}
        for who, name in PICKS.items():
            if self.value(name):
                interfaces_picked[who] = str(self.value(name))
        return interfaces_picked

    @property
    def key(self) -> str:
        """Equal for hosts whose networks differ in their addresses only."""
        shapes = self._parts("net.interfaces", ("name", "kind", "state", "mtu", "speed"))
        ports = self._parts("net.rdma", ("device", "port", "state", "rate"))
        taken = self.value("net.nccl.hcas")
        lost = []
        for name in PICKS.values():
            if name in self.facts:
                lost.append(self.facts[name].why)
        return repr((self.picks, taken, lost, shapes, ports))

    def _parts(self, name: str, parts: Sequence[str]) -> list[list[Any]]:
        """Of each row these parts, in their order."""
        found = []
        for row in self.rows(name):
            found.append([row.get(part) for part in parts])
        return found


def network_view(case: Case) -> View:
    """The interface that NCCL's bootstrap and gloo will use on each host.

    Every other interface is shown, too, rare networks first.
    """
    kinds = _different_networks(case.facts)
    if not kinds:
        return NoData("the network", "its facts have not been read yet")
    alike = []
    for held in kinds:
        hosts = [network.host for network in held]
        alike.append((hosts, network_sentence(held[0])))
    # the usual network last, as the rare ones are to be looked at
    *rare, usual = kinds
    shown = [*rare[: SHOWN - 1], usual]
    parts = [_network_part(held, alone=not rare) for held in shown]
    further = further_kinds(alike, "network", "What they will use")
    return View(kinds_summary(alike, "network"), join(*parts, further))


def _different_networks(facts: Iterable[Fact]) -> list[list[Network]]:
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


def network_sentence(network: Network) -> str:
    """What NCCL and gloo will use on one host.

    It tells why they find nothing where they do.
    """
    picks = network.picks
    words = [f"{who} will use {_interface_words(network, name)}" for who, name in picks.items()]
    if len(picks) == len(PICKS) and len(set(picks.values())) == 1:
        words = [f"NCCL and gloo will both use {_interface_words(network, picks['NCCL'])}"]
    sentences = [", ".join(words)]
    for who, why in _without_interface(network):
        sentences.append(f"{who} finds no interface: {why}")
    sentences.append(_rdma_share(network))
    return "; ".join(filter(None, sentences))


def _rdma_share(network: Network) -> str:
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


def _without_interface(network: Network) -> list[tuple[str, str]]:
    """Who finds no interface, and why."""
    # facts of another agent may lack the name altogether
    unread = Fact("", why="it was not looked at")
    found = []
    for who, name in PICKS.items():
        if who not in network.picks:
            fact = network.facts.get(name, unread)
            found.append((who, fact.why or "no reason was recorded"))
    return found


def _interface_words(network: Network, name: str) -> str:
    """``eth0 (25 Gb/s)``.

    Of loopback it tells for whom it is enough: a job on one host succeeds over it.
    """
    row: Mapping[str, Any] = {}
    for one in network.rows("net.interfaces"):
        if one.get("name") == name:
            row = one
            break
    kind = row.get("kind")
    if kind == "loopback":
        return f"{name}, which is enough on one host and reaches no other"
    about = []
    if kind not in (None, "physical"):
        about.append(str(kind))
    if row.get("speed"):
        about.append(_speed_words(row["speed"]))
    if about:
        return f"{name} ({', '.join(about)})"
    return name


def _speed_words(megabits: Any) -> str:
    """``25 Gb/s``, ``100 Mb/s``; a dash for what nobody states."""
    if not isinstance(megabits, (int, float)) or megabits <= 0:
        return "–"
    if megabits >= 1000:
        return f"{megabits / 1000:g} Gb/s"
    return f"{megabits:g} Mb/s"


def _network_part(held: Sequence[Network], alone: bool) -> Markup:
    """One kind of network; addresses and the like are those of its first host."""
    network = held[0]
    parts = [_hosts_heading(held, alone)]
    # alone, the conclusion says it
    if not alone:
        for who, why in _without_interface(network):
            parts.append(el("p", f"{who} finds no interface: {why}", cls="nk-bad"))
    interfaces = table(INTERFACES, islice(_interface_rows(network), MOST), "nk-network")
    ports = table(PORTS, islice(_port_rows(network), MOST), "nk-ports")
    parts += [fit(interfaces), fit(ports)]
    parts.append(el("p", _around_interfaces(network), cls="nk-dim"))
    return join(*parts)


def _hosts_heading(held: Sequence[Network], alone: bool) -> Markup:
    """Which hosts a part is of; nothing where there is one host only."""
    first = held[0].host
    if len(held) > 1:
        hosts = host_list(network.host for network in held)
        which = f"{plural(len(held), 'host')}: {hosts}"
        return el("h5", f"{which}; addresses and errors are those of {first}")
    if alone:
        return Markup("")
    return el("h5", first)


def _interface_rows(network: Network) -> Iterator[tuple[object, ...]]:
    """One row per interface; those that will be used first."""
    used = _users_of_interfaces(network)
    rows = network.rows("net.interfaces")
    # the table is cut at `MOST` rows, and what is used must be among them
    rows.sort(key=lambda row: str(row.get("name")) not in used)
    for row in rows:
        name = str(row.get("name", "?"))
        driver = ""
        if row.get("driver"):
            driver = f" ({row['driver']})"
        yield (
            code(name),
            join(*used.get(name, ())) or "–",
            str(row.get("state") or "–"),
            _address_words(row),
            _speed_words(row.get("speed")),
            str(row.get("mtu") or "–"),
            f"{row.get('kind') or '–'}{driver}",
        )


def _users_of_interfaces(network: Network) -> dict[str, list[Markup]]:
    """Interface → who will use it.

    NCCL's sockets may use further ones than its bootstrap.
    """
    users: dict[str, list[Markup]] = defaultdict(list)
    loopbacks = set()
    for row in network.rows("net.interfaces"):
        if row.get("kind") == "loopback":
            loopbacks.add(str(row.get("name")))
    for who, name in network.picks.items():
        # loopback is a choice that works on one host and hangs on two
        if name in loopbacks:
            users[name].append(badge("▲", who, "lonely"))
        else:
            users[name].append(badge("●", who, "used"))
    sockets = network.value("net.nccl.interfaces")
    # with RDMA devices the data goes over those, not over sockets
    if network.value("net.nccl.hcas") or not isinstance(sockets, list):
        return users
    for name in sockets:
        if name != network.picks.get("NCCL"):
            users[str(name)].append(badge("●", "NCCL's data", "used"))
    return users


def _port_rows(network: Network) -> Iterator[tuple[object, ...]]:
    taken = network.value("net.nccl.hcas")
    if not isinstance(taken, list):
        taken = []
    for row in network.rows("net.rdma"):
        name = f"{row.get('device', '?')}:{row.get('port', '?')}"
        user: object = "–"
        if name in taken:
            user = badge("●", "NCCL's data", "used")
        state = str(row.get("state") or "not known")
        if state == "ACTIVE":
            light = badge("✓", state, "checked")
        else:
            light = badge("▲", state, "problem")
        megabits = None
        if isinstance(row.get("rate"), (int, float)):
            megabits = 1000 * row["rate"]
        node = "not known"
        if row.get("numa") is not None:
            node = str(row["numa"])
        counters = row.get("counters")
        errors = []
        if isinstance(counters, dict):
            errors = [f"{counter} {count}" for counter, count in counters.items()]
        yield (
            code(name),
            user,
            light,
            _speed_words(megabits),
            str(row.get("link_layer") or "–"),
            node,
            some(_interfaces_of_port(row)) or "–",
            some(errors) or "none",
        )


def _interfaces_of_port(port: Mapping[str, Any]) -> list[str]:
    """The network interfaces that the GID table of a port names."""
    gids = port.get("gids")
    if not isinstance(gids, list):
        return []
    names = []
    for gid in gids:
        if isinstance(gid, dict) and gid.get("interface"):
            names.append(str(gid["interface"]))
    return list(dict.fromkeys(names))


def _address_words(row: Mapping[str, Any]) -> str:
    held = row.get("addresses")
    if isinstance(held, list) and held:
        return some(str(address) for address in held)
    return "none"


def _around_interfaces(network: Network) -> str:
    """Default route, own name, and how to make NCCL and gloo use another interface."""
    parts = []
    route = network.value("net.default")
    if route:
        parts.append(f"Default route over {route}.")
    own = network.value("net.hostname.addresses")
    if isinstance(own, list) and own:
        parts.append(f"The own name resolves to {some(map(str, own))}.")
    parts.append(
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another one, in the environment of every"
        " rank."
    )
    return " ".join(parts)


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
Orders = Mapping[Order, Sequence[int]]
"""Ranks in the order of a ring → its channels."""


def transports_view(case: Case) -> View:
    """The pairs of ranks that NCCL connected, by transport; the odd ones first."""
    links = _transport_of_pairs(case)
    if not links:
        return NoData("the transports", NOTHING)
    kinds = _pairs_by_transport(links)
    hosts = hosts_of_ranks(case)
    names, places, what = _axis_names(links, hosts)
    rows = []
    # the rarest first: it is the odd one
    for kind, pairs in reversed(kinds.items()):
        rows.append((kind, f"{len(pairs):,}", _pair_words(pairs), _host_words(pairs, hosts)))
    drawn = {kind: _cells_of(pairs, places) for kind, pairs in kinds.items()}
    head = ("Transport", "Pairs", "Which ranks", "Hosts")
    figure = _draw.matrix(drawn, names, what)
    return Drawn(_transports_summary(kinds), figure, fit(table(head, rows)))


def rings_view(case: Case) -> View:
    """The rings: which rank follows which, and where a ring leaves its host."""
    orders = channels_by_order(case)
    if not orders:
        return NoData("the rings", NOTHING)
    hosts = hosts_of_ranks(case)
    rows = []
    for order, channels in orders.items():
        rows.append((some(channels), _order_words(order, hosts)))
    return View(_rings_summary(orders, hosts), fit(table(("Channels", "Order"), rows)))


def _transport_of_pairs(case: Case) -> dict[Pair, str]:
    found = {}
    for pair, link in communicators.transports(case.events).items():
        found[pair] = _transport_words(link.transport, link.gdr)
    return found


def _transport_words(transport: str, gdr: bool) -> str:
    """``P2P/CUMEM``, ``NET/IB with GPUDirect RDMA``.

    The number of the device is left out.
    """
    names = []
    # the third part is the number of a device, by which equal paths would look different
    for name in transport.split(" / "):
        kind = name.split("/")[:2]
        names.append("/".join(kind))
    words = " and ".join(dict.fromkeys(names))
    if gdr:
        words += " with GPUDirect RDMA"
    return words


def _pairs_by_transport(links: Links) -> dict[str, list[Pair]]:
    """Transport → its pairs, the most frequent first."""
    pairs_of: dict[str, list[Pair]] = {}
    for pair, transport in sorted(links.items()):
        pairs_of.setdefault(transport, []).append(pair)
    by_number = sorted(
        pairs_of,
        key=lambda transport: len(pairs_of[transport]),
        reverse=True,
    )
    ordered = {}
    for transport in by_number:
        ordered[transport] = pairs_of[transport]
    return ordered


def _transports_summary(kinds: Mapping[str, Sequence[Pair]]) -> str:
    (usual, pairs), *others = kinds.items()
    if not others:
        return f"All {plural(len(pairs), 'pair')} of ranks that NCCL connected go over {usual}"
    rest = ", ".join(f"{len(found):,} over {words}" for words, found in others)
    return f"{plural(len(pairs), 'pair')} of ranks over {usual}; {rest}"


def _axis_names(links: Links, hosts: Mapping[int, str]) -> tuple[list[str], dict[int, int], str]:
    """Names along the axes, the place of each rank among them, and what a name is."""
    axis_ranks: set[int] = set()
    for pair in links:
        axis_ranks.update(pair)
    ranks = sorted(axis_ranks)
    # a row for each host only where the host of every rank is known
    each_rank = len(ranks) <= EACH or not hosts.keys() >= axis_ranks
    names: list[str] = []
    places: dict[int, int] = {}
    # in the order of ranks, so that neighbours in the matrix are neighbours in the job
    for rank in ranks:
        name = hosts.get(rank, "")
        if each_rank:
            name = str(rank)
        if name not in names:
            names.append(name)
        places[rank] = names.index(name)
    if each_rank:
        return names, places, "rank"
    return names, places, "host"


def _cells_of(pairs: Iterable[Pair], places: Mapping[int, int]) -> list[Pair]:
    """Cells of the matrix that the pairs fall into, each once."""
    cells = [(places[src], places[dst]) for src, dst in pairs]
    return list(dict.fromkeys(cells))


def _pair_words(pairs: Sequence[Pair]) -> str:
    shown = ", ".join(f"{src} → {dst}" for src, dst in pairs[:MANY])
    if len(pairs) > MANY:
        shown += f" and {len(pairs) - MANY:,} more"
    return shown


def _host_words(pairs: Iterable[Pair], hosts: Mapping[int, str]) -> str:
    """The hosts that the pairs lie in or connect."""
    inside = set()
    across = 0
    for src, dst in pairs:
        # of ranks whose hosts are not known nothing is said
        here = hosts.get(src, "")
        there = hosts.get(dst, "")
        if here != there:
            across += 1
        elif here:
            inside.add(here)
    parts = []
    if inside:
        parts.append(f"inside {some(sorted(inside))}")
    if across:
        parts.append(f"{plural(across, 'pair')} between hosts")
    return "; ".join(parts) or "–"


def _order_words(order: Sequence[int], hosts: Mapping[int, str]) -> Markup:
    steps = _ring_steps(order, hosts)
    named = " → ".join(steps[:MANY])
    if len(steps) > MANY:
        return join(named, f" → … {len(steps) - MANY:,} more")
    # a ring ends where it began
    return join(named, el("span", f" → {steps[0]}", cls="nk-dim"))


def _ring_steps(order: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    """Each rank, in the order of a ring.

    Neighbours on one host stand together, where a ring is too long for that.
    """
    if len(order) <= LABELLED:
        return [str(rank) for rank in order]
    steps = []
    for host, ranks in neighbours_by_host(order, hosts):
        name = host or "unknown host"
        if len(ranks) > 1:
            name = f"{name} ({some(ranks)})"
        steps.append(name)
    return steps


def _rings_summary(orders: Orders, hosts: Mapping[int, str]) -> str:
    first = next(iter(orders))
    count = sum(len(channels) for channels in orders.values())
    run = "run"
    if count == 1:
        run = "runs"
    shape = f"{len(orders)} different rings"
    across = ""
    if len(orders) == 1:
        shape = "the same ring"
        crossings = host_changes(first, hosts)
        if crossings:
            across = f", which changes host {crossings:,} times"
    length = plural(len(first), "rank")
    return f"{plural(count, 'channel')} {run} {shape} over {length}{across}"
