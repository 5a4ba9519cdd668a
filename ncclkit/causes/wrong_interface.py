"""NCCL or gloo picked a network interface that the other nodes cannot reach

What you see
    "Bootstrap: Using docker0:172.17.0.1" (or virbr0, veth..., lo, a management network) on a job of
    several nodes, then a hang, "connect to 172.17.0.1 returned Connection refused", "No route to
    host", or a job that works but crawls over a 1 Gb/s network.

Why it happens
    Without NCCL_SOCKET_IFNAME NCCL takes the first interfaces that look usable (names starting with
    ib first, then anything but docker and lo).  The kernel knows many: bridges of containers,
    virtual machines, VPNs, IPMI.  An address like 172.17.0.1 exists on every Docker host, so each
    node talks to itself.

How to be sure
    Look at the interface and address each node prints, and ping that address from another node.

What to do
    NCCL_SOCKET_IFNAME takes prefixes, GLOO_SOCKET_IFNAME exact names.

Read more
    NCCL user guide: NCCL_SOCKET_IFNAME, IP network interfaces.  PyTorch docs: common environment
    variables.
"""

from __future__ import annotations

import ipaddress
import re

from ncclkit.analysis.hosts import (
    VIRTUAL,
    all_holders,
    common_interface,
    interfaces_used,
    isolated,
    plain_address,
)
from ncclkit.analysis.network_devices import channels
from ncclkit.analysis.picks import (
    env_of,
    failed,
    family,
    first_finding,
    initialized,
    matching,
    messages,
    name_hosts,
    on,
    otherwise,
    pick,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states, spans_hosts
from ncclkit.causes import _starting, _tested
from ncclkit.causes._experiments import experiment_of
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath, ends
from ncclkit.core.event_list import known_hosts
from ncclkit.core.kinds import (
    GlooConnect,
    NcclBootstrap,
    NcclMessage,
    NcclSocketDevices,
    NcclWarn,
    StepProgress,
)
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found

ID = "wrong_interface"
explains = (
    "c10d.error",
    "nccl.trace",
    "c10d.timeout",
    "store.lost",
    "network_loss",
    "slow_rank",
    "rank_exception",
    "rank_divergence",
    "store_unreachable",
)


def diagnose(case: Case) -> Finding:
    """Found where a multi-node or unconnected job uses a virtual or isolated interface."""
    used = case.of(NcclBootstrap)
    done = initialized(case)
    # an address that was announced shows no more than that NCCL found one; a virtual one is no good
    # sign
    went_well = done or ([] if any(map(_is_virtual, used)) else used)
    went_well = went_well or _tested.passed(case, lambda link: link.nccl == "open")
    seen = first_finding(
        case,
        _taken_address,
        _inside_interface,
        _channel_inside,
        _announced_address,
        _different_networks,
        _unreachable_address,
        _tested_paths,
        _chosen_by_facts,
        _failed_connection,
    )
    return seen or otherwise(
        ID,
        went_well,
        "The interfaces in use connect the ranks.",
        "NCCL_DEBUG=INFO lines 'Bootstrap: Using …' of each node",
    )


IPV4, IPV6 = re.compile(r"[\d.]+"), re.compile(r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*")
"""What addresses look like, whatever stands beside them."""


def _refused_connections(case: Case) -> list[Event]:
    gloo = []
    for event in case.of(GlooConnect):
        if not plain_address(event.data.address).startswith("127."):
            gloo.append(event)
    lines = matching(messages(case), "No route to host", "Network is unreachable")
    # that connection had been established
    refused_lines = []
    for e in lines:
        # that a connection which worked lost its route is the network's matter
        if not isinstance(e.data, NcclMessage) or e.data.family != "socket_closed":
            refused_lines.append(e)
    lines = refused_lines
    return family(case, "socket_connect") + gloo + lines


def _announced_address(case: Case) -> Finding | None:
    """A rank could not connect to an address that, by the facts, no other host can reach."""
    holding = all_holders(case)
    for event in case.of(GlooConnect):
        address = plain_address(event.data.address)
        held = holding.get(address, [])
        names = tuple(dict.fromkeys(name for _, name in held))
        # loopback is the own name's fault (hostname_resolution)
        if address.startswith("127.") or not (len(held) > 1 or any(map(VIRTUAL.match, names))):
            continue
        who = who_of([event])
        where = f"{names[0]} on {' and '.join(host for host, _ in held)}"
        say = f"{who}{on(event.host)} could not connect to {address}, which is {where}"
        if len(held) > 1:
            say += ": each host reaches only itself there."
        else:
            say += ": it exists only inside that host."
        asked = []
        for fact in case.facts_of("env.GLOO_SOCKET_IFNAME"):
            if fact.value:
                asked.append(fact)
        why = pick([event], case.facts_of("net.gloo.interface"), asked, limit=5)
        hosts = tuple(host for host, _ in held)
        name = common_interface(case)
        advice = (
            (
                _name_interface(name, "It joins the hosts in one network.")
                if name
                else _for_gloo(names[0], bool(asked))
            ),
        )
        strength: Strength = "likely"
        if len(held) > 1:
            strength = "proven"
        return found(
            ID,
            strength,
            say,
            why,
            hosts=hosts,
            interfaces=names,
            advice=advice,
            next=experiment(case),
        )
    return None


def _taken_address(case: Case) -> Finding | None:
    """NCCL uses an address that others cannot use.

    By the facts several hosts have it or no other can reach it.
    """
    refused = _refused_connections(case)
    done = bool(initialized(case))
    if rank_states(case).ended or not (refused or failed(case)):
        return None
    holding = all_holders(case)
    apart = isolated(case)
    naming = _by_address(refused)
    for event in case.of("nccl.bootstrap", "nccl.socket_devices"):
        for interface, address in interfaces_used(event):
            held = holding.get(address, [])
            # an address that one host alone has, in a network that others share, is a good one
            if len(held) < 2 and (event.host, interface) not in apart:
                continue
            knocked = naming.get(address, [])
            # it exists and did no harm
            if not knocked and (done or event.kind != "nccl.bootstrap"):
                continue
            same = (
                f"an address that {' and '.join(host for host, _ in held)} all have: each reaches"
                " only itself"
            )
            say = f"NCCL{on(event.host)} uses {interface} ({address}), "
            if len(held) > 1:
                say += f"{same}."
            else:
                say += "in a network to which no other host of the job has an interface."
            hosts = tuple(host for host, _ in held) or (event.host,)
            name = common_interface(case)
            advice = (
                _name_interface(name, "It joins the hosts in one network.")
                if name
                else _advice(case, interface),
            )
            why = pick(knocked or refused[:2], [event], case.facts_of("net.interfaces"), limit=5)
            sure: Strength = "likely"
            # the refused line names the very address, and the facts say why it cannot answer
            if knocked and (len(held) > 1 or matching(knocked, "unreachable")):
                sure = "proven"
            names = (interface,)
            return found(
                ID,
                sure,
                say,
                why,
                hosts=hosts,
                interfaces=names,
                advice=advice,
                next=experiment(case),
            )
    return None


def _by_address(events: list[Event]) -> dict[str, list[Event]]:
    """Address → the lines that name it."""
    naming: dict[str, list[Event]] = {}
    for event in events:
        for address in {*IPV4.findall(event.text), *IPV6.findall(event.text)}:
            naming.setdefault(address, []).append(event)
    return naming


def _inside_interface(case: Case) -> Finding | None:
    """A multi-node job uses an interface that exists only inside its machine."""
    bad = []
    for event in case.of(NcclBootstrap):
        if _is_virtual(event):
            bad.append(event)
    refused = _refused_connections(case)
    # within one machine a virtual interface serves as well as any
    if not bad or not (spans_hosts(case) or refused) or rank_states(case).ended:
        return None
    name = _refused_scope(bad, refused) or next(
        name for e in bad for name in _interface_names(e) if VIRTUAL.match(name)
    )
    chosen = ""
    if env_of(case, "NCCL_SOCKET_IFNAME"):
        chosen = " as NCCL_SOCKET_IFNAME says"
    say = (
        f"NCCL uses {name}{on(bad[0].host)}{chosen}, which exists only inside that machine; other"
        " nodes cannot reach it."
    )
    strength: Strength = "possible"
    if refused or failed(case):
        strength = "likely"
    return _finding(case, strength, say, pick(bad, refused), (name,))


def _refused_scope(used: list[Event], refused: list[Event]) -> str:
    """The interface in use whose link-local address a rank could not reach; it is "" if none."""
    names = {name for event in used for name in _interface_names(event)}
    for event in refused:
        for scope in re.findall(r"%([\w.-]+)", event.text):
            if scope in names:
                return str(scope)
    return ""


def _channel_inside(case: Case) -> Finding | None:
    """A channel between hosts goes over an interface that exists only inside its machine."""
    bad = [(event, name, said) for event, name, said in channels(case) if VIRTUAL.match(name)]
    if (
        not bad
        or not (failed(case) or _refused_connections(case))
        or case.of(StepProgress)
        or rank_states(case).ended
    ):
        return None
    event, name, said = bad[0]
    say = (
        f"Channels from rank {event.data.src} to rank {event.data.dst} go over"
        f" {name}{on(event.host)}, which "
    )
    say += "exists only inside that machine."
    return _finding(
        case, "likely", say, pick([event, said], _refused_connections(case), limit=5), (name,)
    )


def _different_networks(case: Case) -> Finding | None:
    """The nodes announce addresses of different networks, and a rank waited or was refused."""
    apart = _different_subnets(case.of(NcclBootstrap))
    refused = _refused_connections(case)
    # hosts of one job may have different networks that are routed: only beside trouble it is a sign
    waited = case.of("c10d.timeout", "gloo.timeout", "store.wait")
    if not apart or not (refused or waited):
        return None
    names = tuple(dict.fromkeys(str(event.data.interface) for event in apart))
    used = ", ".join(f"{e.host} {e.data.interface} ({e.data.address})" for e in apart[:3])
    say = f"The nodes use interfaces of different networks: {used}."
    return _finding(
        case, "likely" if refused else "possible", say, pick(apart, refused or waited[:2]), names
    )


def _unreachable_address(case: Case) -> Finding | None:
    """The routing table of a host has no route to an announced address."""
    lines = matching(_refused_connections(case), "No route to host", "Network is unreachable")
    if not lines:
        return None
    say = (
        f"An address that a peer announced cannot be reached{on(lines[0].host)}: the peer probably"
        " took the wrong interface."
    )
    return _finding(case, "likely", say, pick(lines, case.of(NcclBootstrap)))


def _tested_paths(case: Case) -> Finding | None:
    """By a connection test NCCL would announce no good address.

    It is none, or one that cannot be reached.
    """
    bad = _tested.paths(case, _is_unusable)
    if not bad:
        return None
    first = bad[0]
    hosts = _tested.hosts(case)
    works = ""
    for a in first.reached:
        if first.dst in hosts:
            works = hosts[first.dst].holder(a)
            break
    say = f"NCCL on {first.dst} would use {_interface_in_words(first)}{_tested.plus(bad, 'path')}"
    say += f"; {works} ({first.reached[0]}) can be reached." if works else "."
    why = tuple(link.event for link in bad[:6])
    names = tuple(dict.fromkeys(link.interface for link in bad))
    advice = (
        (
            _name_interface(works)
            if works
            else _advice(case, first.interface)
            if first.nccl_address
            else _give_address(first.dst)
        ),
    )
    to = _tested.ends_of(bad)
    return found(
        ID,
        _tested.risk(case),
        say,
        why,
        hosts=to,
        interfaces=names,
        advice=advice,
        next=experiment(case),
    )


def _interface_in_words(link: NetworkPath) -> str:
    if not link.nccl_address:
        return (
            f"{link.interface}, which no other host can reach; no other running interface there has"
            " an address"
        )
    return f"{link.interface} ({link.nccl_address}), which {ends(link.nccl)} when {link.src} asks"


def _is_unusable(link: NetworkPath) -> bool:
    """Whether others cannot use the interface that NCCL found.

    Another one must work, or there is none.
    """
    return (
        bool(link.interface) and link.nccl != "open" and bool(link.reached or not link.nccl_address)
    )


def _chosen_by_facts(case: Case) -> Finding | None:
    """With the present variables NCCL would use an interface of containers or virtual machines."""
    inner = []
    for fact in case.facts_of("net.nccl.interface"):
        # on a host without any network lo is the right choice
        if VIRTUAL.match(str(fact.value)) and fact.value != "lo":
            inner.append(fact)
    # a test, or NCCL itself, says better what is used
    if not inner or _tested.hosts(case) or case.of(NcclBootstrap):
        return None
    first: Fact = inner[0]
    also = _tested.plus(inner, "host")
    say = (
        f"NCCL would use {first.value}{on(first.host)}{also}, which usually exists only inside its"
        " machine: a job of several hosts would not connect."
    )
    names = tuple(sorted({str(f.value) for f in inner}))
    hosts = tuple(sorted(known_hosts(inner)))
    advice = (_advice(case, names[0]),)
    return found(
        ID,
        "possible",
        say,
        pick(inner),
        hosts=hosts,
        interfaces=names,
        advice=advice,
        next=experiment(case),
    )


def _failed_connection(case: Case) -> Finding | None:
    """A connection failed, or a start over several nodes never ends."""
    vague = matching(
        messages(case), "failed (Connect)", "operation Connect", "unhandled system error"
    )
    tried = _refused_connections(case) or (
        [] if case.of(NcclWarn) and not matching(vague, "Connect") else vague
    )
    hung = []
    # once the bootstrap has gone around, the addresses are right
    if spans_hosts(case) and not _starting.bootstrapped(case):
        hung = _starting.hung_starts(case)
    if not tried and not hung:
        return None
    say = (
        "NCCL's start began on several nodes and none completed it: they may not reach each other's"
        " addresses."
    )
    if tried:
        where = on(tried[0].host)
        say = (
            f"A connection to another rank{where} failed; one reason is an interface that the"
            " others cannot reach."
        )
    return _finding(case, "possible", say, pick(tried, hung, case.of(NcclBootstrap), limit=4))


def _interface_names(event: Event) -> list[str]:
    """The interfaces of one line; before 2.10 NCCL listed several.

    The line is such as ``Using [0]eth0:… [1]veth1:…``.
    """
    return [str(event.data.interface or ""), *re.findall(r"\[\d+\]([\w.-]+):", event.text)]


def _is_virtual(event: Event) -> bool:
    return any(VIRTUAL.match(name) for name in _interface_names(event))


def _different_subnets(used: list[Event]) -> list[Event]:
    """One event of each network, where the hosts' addresses are of several.

    Addresses are of one network while their first 16 bits agree.
    """
    first: dict[str, Event] = {}
    for event in used:
        if event.host and event.data.address:
            first.setdefault(event.host, event)
    networks: dict[str, Event] = {}
    for event in first.values():
        network = _network_of_address(str(event.data.address))
        if network:
            networks.setdefault(network, event)
    if len(networks) > 1:
        return list(networks.values())
    return []


def _network_of_address(address: str) -> str | None:
    try:
        # the first 16 bits: large sites route between their smaller subnets
        return str(ipaddress.ip_network(f"{re.sub(r'<.*|%.*', '', address)}/16", strict=False))
    except ValueError:
        return None


def _finding(
    case: Case, strength: Strength, say: str, why: tuple[Evidence, ...], names: tuple[str, ...] = ()
) -> Finding:
    # facts tell of every host, the lines of those at fault
    hosts = name_hosts(piece for piece in why if isinstance(piece, Event))
    name = common_interface(case)
    advice = (
        (
            _name_interface(name, "It joins the hosts in one network.")
            if name
            else _advice(case, next(iter(names), ""))
        ),
    )
    return found(
        ID, strength, say, why, hosts=hosts, interfaces=names, advice=advice, next=experiment(case)
    )


USUAL_VIRTUAL = ("docker", "lo", "virbr", "veth")
"""How interfaces begin that nearly always exist only inside their machine."""


def _advice(case: Case, name: str = "") -> Advice:
    """To name the interface that joins the nodes, or to exclude those that cannot.

    `name` is the one at fault; what the log shows besides is kept.
    """
    kept = _other_interfaces(case, name)
    such = ""
    if len(kept) == 1:
        such = f" (here {kept[0]}, as it seems)"
    # an exclusion fits hosts whose interfaces have different names
    return Advice(
        f"Name the interface that connects the nodes{such}, on all of them, or exclude those that"
        " exist only inside their machine; `ip route get` with the address of another node shows"
        " the right one.",
        env={"NCCL_SOCKET_IFNAME": _exclusion(name, kept)},
        command="ip -brief address; ip route",
        why=(
            "The route to another node names the right interface; gloo needs that exact name in"
            " GLOO_SOCKET_IFNAME."
        ),
        check="'Bootstrap: Using' shows addresses of one network on all nodes.",
        risk="A name that one node lacks stops that node (see ifname_not_found).",
    )


def _other_interfaces(case: Case, name: str) -> list[str]:
    """The interfaces that NCCL lists besides this one.

    They are those of hardware where there is any; else a container's only way out is virtual, too.
    """
    listed: set[str] = set()
    for event in case.of(NcclBootstrap):
        listed.update(_interface_names(event))
    for devices in case.of(NcclSocketDevices):
        listed.update(interface for interface, _ in interfaces_used(devices))
    others = listed - {name, "", "lo"}
    hardware = {other for other in others if not VIRTUAL.match(other)}
    return sorted(hardware or others)


def _exclusion(name: str, kept: list[str]) -> str:
    """NCCL_SOCKET_IFNAME that leaves this interface out, and no other that the log shows."""
    excluded = []
    for start in USUAL_VIRTUAL:
        if not any(other.startswith(start) for other in kept):
            excluded.append(start)
    if name and not name.startswith(tuple(excluded)):
        excluded.append(name)
    return f"^{','.join(excluded)}"


def _for_gloo(name: str, asked: bool) -> Advice:
    """Advice where gloo took this interface.

    It did so because GLOO_SOCKET_IFNAME names it (`asked`), or as the own name resolves to it.
    """
    if asked:
        return Advice(
            f"Unset GLOO_SOCKET_IFNAME, which names {name}, or name the interface that connects the"
            " nodes.",
            command="unset GLOO_SOCKET_IFNAME",
            change={"unset": ["GLOO_SOCKET_IFNAME"]},
            why="Without it gloo uses the address of the host's own name.",
            check="All ranks pass init_process_group.",
            risk="The own name must not resolve to 127.x (see hostname_resolution).",
        )
    return Advice(
        "Name for gloo, on each node, the interface that connects the nodes, by its exact name in"
        " GLOO_SOCKET_IFNAME; `ip route get` with the address of another node shows it.",
        command="ip -brief address; ip route",
        why=f"gloo took {name}, to which the host's own name resolves.",
        check="All ranks pass init_process_group.",
        risk="A name that one node lacks stops that node (see ifname_not_found).",
    )


def _name_interface(
    interface: str, why: str = "The test reached its address from another host."
) -> Advice:
    return Advice(
        f"Name the interface that the other hosts reach: {interface}.",
        env={"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface},
        why=why,
        check="`ncclkit connect` with these variables finds every path open.",
        risk="A host on which it has another name would stop (see ifname_not_found).",
    )


NAME_IT = Advice(
    "Name the interface that the other hosts reach, in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.",
    command="ip -brief address; ip route",
    why="The test reached its address from another host, or the facts say that it joins them.",
    check="`ncclkit connect` with these variables finds every path open.",
    risk="A host on which it has another name would stop (see ifname_not_found).",
)


def _give_address(host: str) -> Advice:
    return Advice(
        f"Give {host} a running interface with an address in the network of the others.",
        command="ip -brief address; ip -brief link",
        why="NCCL skips interfaces that are down or have no address, and falls back to loopback.",
        check="`ncclkit connect` finds every path open.",
        risk="Ask who runs the machine: the network may be down for a reason.",
    )


def experiment(case: Case) -> Experiment:
    """Run the same job with the interface that joins the nodes.

    Where none is known, run without the virtual ones.
    """
    if name := common_interface(case):
        advice = _name_interface(name)
    else:
        advice = _advice(case)
    return experiment_of(
        f"Do the nodes connect over {name}?"
        if name
        else "Do the nodes connect without the virtual interfaces?",
        {"env": dict(advice.env)},
        {
            ID: ("works", "they connect"),
            "network_loss": ("same", "they still do not"),
            "store_unreachable": ("same", "they do not meet"),
        },
    )


REMEDIES = (
    _advice(Case()),
    _for_gloo("another", asked=False),
    NAME_IT,
    _give_address("the host"),
)
