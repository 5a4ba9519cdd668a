"""InfiniBand or RoCE is set up wrongly: GID, card choice, traffic class, GPU memory

What you see
    At the first connection, always and on all pairs: "Call to ibv_modify_qp failed with 110
    Connection timed out" (or 22 Invalid argument, 61 No data available), status=12 at once, or
    status=4 with GPU Direct.

Why it happens
    On RoCE every port has a table of addresses (GIDs): link-local and routable, version 1 and 2.
    Both ends must use entries that can reach each other; NCCL_IB_GID_INDEX=3 is right on many
    machines and wrong on others, and index 0 or 1 is often link-local.  NCCL_IB_HCA may name a
    storage card, rails in different subnets may not be routed, and GPU Direct needs nvidia-peermem
    or DMA-BUF and no ACS in between.

How to be sure
    `show_gids` (or ibv_devinfo -v) on both nodes: the entry in use must be a RoCE v2 IPv4 address
    of the same network. Does NCCL_IB_DISABLE=1 make the job work?

Read more
    NCCL user guide: NCCL_IB_GID_INDEX, NCCL_IB_HCA, NCCL_IB_TC, NCCL_CROSS_NIC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncclkit.analysis.diagnostics import diagnostics, named_ranks, ranks_of_job
from ncclkit.analysis.network_devices import channels, link_layers, rdma_devices
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    env_of,
    failed,
    family,
    first_finding,
    matching,
    name_hosts,
    name_ranks,
    of_job_hosts,
    on,
    over_infiniband,
    over_sockets,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import EARLY
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dTimeout,
    KernelLink,
    NcclDestroy,
    NcclInfo,
    NcclLink,
    NcclWarn,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "ib_config"
explains = (
    "ib_link_error",
    "c10d.error",
    "nccl.trace",
    "c10d.timeout",
    "slow_rank",
    "rank_exception",
    "network_loss",
)
MAPPED = "0000:ffff:"
"""In a GID: an IPv4 address follows."""
STARTS = ("nccl.version", "nccl.env", "nccl.bootstrap", "nccl.network", "nccl.init", "nccl.channel")
"""Event kinds of NCCL's start."""
MEANS = {
    110: (
        "the peer's port did not answer, most often since the two addresses (GIDs) do not reach"
        " each other"
    ),
    22: (
        "the card refused its settings, most often since the GID index is empty or of the wrong"
        " kind"
    ),
    61: "there is no route to the peer's address",
    113: "there is no route to the peer's address",
}


def diagnose(case: Case) -> Finding:
    """Found where a queue pair could not be set up.

    It is also found where the very first packets were never answered.
    """
    went_well = [
        *case.of(NcclDestroy),
        *over_sockets(case),
        *over_infiniband(case),
        *case.of(C10dTimeout),
    ]
    return first_finding(
        case,
        _setup_failed,
        _unknown_key,
        _address_changed,
        _memory_refused,
        _first_packets,
        _different_ports,
        _diagnosed,
        CHECK.risk,
    ) or CHECK.otherwise(
        case,
        went_well,
        "InfiniBand connections were made, or none was used.",
        "NCCL_DEBUG=INFO output and `show_gids` of both nodes",
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Ports with a bad entry of the GID table at NCCL_IB_GID_INDEX.

    It is empty, or holds an address that is not routed.
    """
    index = host.number("env.NCCL_IB_GID_INDEX")
    fact = host.fact("env.NCCL_IB_GID_INDEX")
    for port in host.value("net.rdma") or ():
        # only on Ethernet (RoCE) does the index choose between kinds of addresses
        if index is None or port.get("state") != "ACTIVE" or port.get("link_layer") != "Ethernet":
            continue
        row = next((row for row in port.get("gids") or () if row.get("index") == index), None)
        local = row is not None and (
            "v1" in str(row.get("type")) or str(row.get("gid")).startswith("fe80")
        )
        if row is None or local:
            what = "empty"
            if local:
                what = "of RoCE v1 or link-local"
            say = (
                f"NCCL_IB_GID_INDEX={index:g} is set and that entry of {port.get('device')} is"
                f" {what}; connections to "
            )
            strength: Strength = "likely"
            if local:
                strength = "possible"
            say += "other nodes would fail"
            yield Risk(
                say,
                [fact, host.fact("net.rdma")],
                _advice(True, False, [port])[0],
                strength,
                (),
                (port["device"],),
            )


def _unknown_key(case: Case) -> Finding | None:
    """The partition key that NCCL_IB_PKEY_VALUE names is not in a port's table."""
    lines = family(case, "ib_pkey")
    if not lines:
        return None
    say = f"NCCL_IB_PKEY_VALUE names a partition key that a port{on(lines[0].host)} does not have."
    why = pick(lines, env_of(case, "NCCL_IB_PKEY_VALUE"))
    return found(
        ID,
        "proven",
        say,
        why,
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=(OTHER_KEY,),
    )


OTHER_KEY = Advice(
    "Set NCCL_IB_PKEY_VALUE to a key that every port in use has, or unset it.",
    change={"unset": ["NCCL_IB_PKEY_VALUE"]},
    command="grep -H . /sys/class/infiniband/*/ports/*/pkeys/* | grep -v 0x0000",
    why="The subnet manager gives each port its partitions; NCCL compares the low 15 bits.",
    check="NCCL makes its queue pairs, and the pair test passes.",
    risk="Another partition may reach other hosts.",
)


def _memory_refused(case: Case) -> Finding | None:
    """The card refused to register GPU memory."""
    lines = []
    for event in family(case, "ib_setup"):
        if str(event.data.call).startswith("ibv_reg_"):
            lines.append(event)
    # no memory to lock is memlock_limit
    lines = [e for e in lines if not matching([e], "Cannot allocate")]
    if not lines:
        return None
    ranks = ranks_in(lines)
    hosts = name_hosts(lines)
    say = f"{who_are(ranks, lines[0].host)} could not register GPU memory with the InfiniBand card."
    return found(
        ID, "likely", say, pick(lines), ranks=ranks, hosts=hosts, advice=_advice(False, True, ())
    )


GID_FAILED = "after GID-change event handler failed"


def _address_changed(case: Case) -> Finding | None:
    """The address of a RoCE port changed while connections over it were open.

    They keep the old one: by itself that only warns, as it may be the port of no open connection.
    """
    fatal = matching(case.of(NcclWarn), GID_FAILED)
    changed = case.of(NcclLink, what="gid")
    failures = list(family(case, "ib_completion"))
    failures += case.of(C10dTimeout)
    if not fatal and not (changed and failures):
        return None
    lines = fatal or changed
    strength: Strength = "possible"
    if fatal:
        strength = "proven"
    device = ""
    for event in changed:
        name = event.data.device
        port_number = event.data.port
        device = f"{name}:{port_number}"
    port = "a RoCE port"
    interfaces: tuple[str, ...] = ()
    if device:
        port = f"the RoCE port {device}"
        interfaces = (device.partition(":")[0],)
    say = f"The address (GID) of {port}{on(lines[0].host)} changed during the job; connections"
    say += " that were open keep the old one."
    return found(
        ID,
        strength,
        say,
        pick(lines, failures, limit=4),
        ranks=(),
        hosts=name_hosts(lines),
        interfaces=interfaces,
        advice=(KEEP_ADDRESS,),
        next=experiment(case),
    )


KEEP_ADDRESS = Advice(
    "Let nothing change the addresses of RoCE ports while jobs run: no DHCP on them, no restart of"
    " the network service, fixed addresses.",
    command="show_gids; journalctl -u NetworkManager -u systemd-networkd --since -2h",
    why="A connection of RoCE is bound to the address at which it was made.",
    check="A job that runs as long shows no 'GID refreshed' any more.",
    risk="None for the job; a fixed address must be free.",
)


def _diagnosed(case: Case) -> Finding | None:
    """NCCL's diagnostics find the RDMA topology wrong, or cards of two rails far apart."""
    topology = diagnostics(case, "rdma_topo")
    rails = []
    for event in diagnostics(case, "net_bandwidth"):
        below = (event.data.rate or 0) < (event.data.median or 0)
        if below and event.data.value == "cross-nic":
            rails.append(event)
    lines = topology or rails
    if not lines or outcome(case).success:
        return None
    event = lines[0]
    data = event.data
    if topology:
        ranks, who = named_ranks(case, event)
        reason = ""
        quoted = FIRST_EXIT.search(data.message)
        if quoted:
            reason = f' ("{quoted[1][:120]}")'
        say = f"NCCL's check of the RDMA topology failed on {who}{reason}."
    else:
        ranks = ranks_of_job(case, event, [data.src or 0])
        say = (
            f"NCCL's diagnostics measure {data.rate:g} Gbit/s between the card of"
            f" {name_ranks(ranks)}{on(data.at)} and cards of another number, where the median is"
            f" {data.median:g}: these rails may not be joined."
        )
    hosts: tuple[str, ...] = ()
    if data.at:
        hosts = (data.at,)
    return found(
        ID,
        "possible",
        say,
        pick(lines, limit=4),
        ranks=ranks,
        hosts=hosts,
        advice=(PAIR_TEST,),
        next=experiment(case),
    )


FIRST_EXIT = re.compile(r"first rank \d{1,9} exit -?\d{1,9}: (.{1,300})")
"""What the tool printed that NCCL ran."""
PAIR_TEST = Advice(
    "Test the cards of the named ranks alone, one pair after the other (ib_write_bw of perftest),"
    " once between cards of the same number and once between different ones.",
    command="nvidia-smi topo -m; ibv_devinfo",
    why="Same cards fast and different ones slow: the rails are not joined, and NCCL must not"
    " cross them (NCCL_CROSS_NIC=0).",
    check="Each pair that NCCL uses reaches about the median.",
    risk="None; it takes bandwidth while it runs.",
)


def _first_packets(case: Case) -> Finding | None:
    """The first packets got no answer, before the job had done anything.

    A warning alone does not say when.
    """
    early = []
    for event in family(case, "ib_completion"):
        # routed GIDs reached each other: then it is a link or a peer that died (ib_link_error)
        if event.data.status in (12, 4) and not event.data.routed:
            early.append(event)
    # whatever worked once had the right addresses
    later = [*case.of("progress", "c10d.status", "kernel.link"), *family(case, "ib_async")]
    later += [e for e in case.of(C10dTimeout) if (e.data.seq or 0) > EARLY]
    starts = []
    for kind in STARTS:
        starts.extend(case.of(kind))
    begun = starts + matching(early, "localGid fe80")
    if not early or later or not (begun or early[0].data.status == 4):
        return None
    # the card itself was refused memory, no packet was lost
    memory = early[0].data.status == 4
    gid = env_of(case, "NCCL_IB_GID_INDEX")
    what = (
        "the first packets over InfiniBand or RoCE were never answered: the ports cannot reach each"
        " other"
    )
    if memory:
        what = "the card was refused access to memory (GPU Direct with ACS or without peermem)"
    ranks = ranks_in(early)
    hosts = name_hosts(early)
    advice = _advice(bool(gid), memory, _rdma_ports(case))
    if _is_native(case) and not gid and not memory:
        # its ports have addresses of their own, and no table to choose from
        advice = (NATIVE_PORTS, *advice[1:])
    say = f"{who_are(ranks, early[0].host)}: {what}."
    return found(
        ID,
        "likely",
        say,
        pick(early, gid),
        ranks=ranks,
        hosts=hosts,
        advice=advice,
        next=experiment(case),
    )


def _is_native(case: Case) -> bool:
    """Whether all ports that NCCL lists are of InfiniBand itself, and none of RoCE."""
    layers = set()
    for devices, _ in rdma_devices(case).values():
        layers |= link_layers(devices)
    return layers == {"IB"}


def _different_ports(case: Case) -> Finding | None:
    """Hosts list different cards, or a channel joins unlike ports.

    One port is of InfiniBand and the other of Ethernet.
    """
    held = rdma_devices(case)
    lists = {host: devices for host, (devices, _) in held.items()}
    if len(lists) < 2:
        return None
    # hosts may differ in cards and work
    if case.of("progress", "job.done"):
        return None
    if not failed(case) and not family(case, "ib_completion"):
        return None
    crossed = _crossed_channels(case)
    if not crossed and not _offer_unlike(lists.values()):
        return None
    parts = []
    for host, devices in sorted(lists.items()):
        parts.append(f"{host} {', '.join(devices[:4])}{' …' * (len(devices) > 4)}")
    say = f"The hosts offer different InfiniBand or RoCE ports to NCCL: {'; '.join(parts[:3])}."
    if crossed:
        say = f"A channel joins a port of InfiniBand with one of Ethernet: {'; '.join(parts[:3])}."
    advice = (SAME_PORTS, *_advice(False, False, _rdma_ports(case)))
    why = pick(crossed[:2], [said for _, said in held.values()], limit=5)
    return found(
        ID, "likely", say, why, hosts=tuple(sorted(lists)), advice=advice, next=experiment(case)
    )


SAME_PORTS = Advice(
    "Name in NCCL_IB_HCA the ports that are of one kind and in one network on all hosts, after an"
    " equals sign and with commas between them.",
    command="ibv_devinfo | grep -E 'hca_id|state|link_layer'",
    why="NCCL pairs the n-th port of a host with the n-th of another one.",
    check="The 'NET/IB : Using' lines of all hosts list the same kinds of ports.",
    risk="Ports that are left out carry no traffic.",
)


def _crossed_channels(case: Case) -> list[Event]:
    """Lines of channels whose two ends are ports of unlike link layers."""
    ends: dict[tuple[int, int], dict[str, set[str]]] = {}
    for event, device, _ in channels(case):
        hosts = ends.setdefault((event.data.src, event.data.dst), {})
        layers = hosts.setdefault(event.host, set())
        layers.update(link_layers([device]))
    crossed = []
    for event, _, _ in channels(case):
        hosts = ends[event.data.src, event.data.dst]
        if len(set(map(frozenset, hosts.values()))) > 1:
            crossed.append(event)
    return crossed


def _offer_unlike(lists: Iterable[list[str]]) -> bool:
    """Whether hosts differ in link layers or in how many ports they have."""
    layers = set()
    counts = set()
    for devices in lists:
        # a host with InfiniBand and one with Ethernet cannot join their n-th ports
        layers.add(frozenset(link_layers(devices)))
        counts.add(len(devices))
    return len(layers) > 1 or len(counts) > 1


def _setup_failed(case: Case) -> Finding | None:
    """A queue pair could not be set up."""
    texts = (
        "different link_layer",
        "incompatible devices",
        "RoceGetVersionNum",
        "ibv_modify_qp",
        "query_gid",
        "query GID",
    )
    setup = matching(family(case, "ib_setup"), *texts)
    if not setup:
        return None
    retries = []
    for event in case.of(NcclInfo, family="retry"):
        if "modify_qp" in event.text:
            retries.append(event)
    gid = env_of(case, "NCCL_IB_GID_INDEX")
    first = setup[0]
    number = first.data.errno or (
        110
        if matching([first], "timed out")
        else 22
        if matching([first], "invalid argument")
        else 0
    )
    # NCCL compares both ends before it connects
    mixed = matching([first], "link_layer", "incompatible devices")
    if mixed:
        why = "its cards mix InfiniBand and Ethernet"
    else:
        why = MEANS.get(number, "the connection could not be set up")
    device = str(first.data.device or "")
    say = (
        f"{who_of(setup, first.host)} could not connect over {device or 'InfiniBand/RoCE'}: {why}."
    )
    # a port that is down cannot be set up either
    lost = case.of(KernelLink, state="down") + family(case, "ib_async")
    strength: Strength = "likely"
    if number and "modify_qp" in first.text and not lost:
        strength = "proven"
    return found(
        ID,
        strength,
        say,
        pick(setup, gid, retries),
        ranks=ranks_in(setup),
        hosts=name_hosts(setup),
        interfaces=(device,) if device else (),
        advice=_advice(bool(gid), False, _rdma_ports(case)),
        next=experiment(case),
    )


def _rdma_ports(case: Case) -> list[Any]:
    """The RDMA ports of the job's hosts."""
    found: list[Any] = []
    for fact in of_job_hosts(case, case.facts_of("net.rdma")):
        for port in fact.value or ():
            found.append(port)
    return found


def _routed_gid(port: Mapping[str, Any]) -> int | None:
    """Index of a port's GID that other nodes can reach.

    It is a RoCE v2 entry with an IPv4 address; None where there is none.
    """
    rows = []
    for row in port.get("gids") or ():
        if "v2" in str(row.get("type")) and MAPPED in str(row.get("gid")):
            rows.append(row)
    return next((int(row["index"]) for row in rows), None)


def _advice(
    set_by_user: bool, memory: bool, ports: Sequence[Mapping[str, Any]]
) -> tuple[Advice, ...]:
    active = []
    for port in ports:
        if port.get("state") == "ACTIVE":
            active.append(port)
    # an address of version 1, or a link-local one, is not routed
    index = next((entry for port in active if (entry := _routed_gid(port)) is not None), None)
    cards = ",".join(sorted({str(port.get("device")) for port in active}))
    if memory:
        return (
            Advice(
                "Load nvidia-peermem or use DMA-BUF, and turn off PCIe ACS; without GPU Direct the"
                " job must run.",
                env={"NCCL_NET_GDR_LEVEL": "LOC"},
                command="lsmod | grep -i peermem",
                why="The card writes into GPU memory directly and was refused.",
                check="The job runs with the variable set; then repair and unset it.",
                risk="Without GPU Direct bandwidth between nodes drops.",
            ),
        )
    unset = ""
    if set_by_user:
        unset = "Unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer choose the right entry), or "
    this = ""
    if index is not None:
        this = f", here {index}"
    return (
        Advice(
            f"{unset}{'choose' if unset else 'Choose'} the GID index of the RoCE v2 entry with the"
            f" routable IPv4 address{this} (in a container one that show_gids lists inside it, or"
            " run on the host's network), and leave out a card that has none (NCCL_IB_HCA with ^).",
            change={"unset": ["NCCL_IB_GID_INDEX"]} if set_by_user else {},
            command="show_gids || ibv_devinfo -v | grep -i gid",
            env={} if set_by_user or index is None else {"NCCL_IB_GID_INDEX": str(index)},
            why="Link-local and version-1 entries are not routed between nodes.",
            check="The pair test over this card passes.",
            risk="The right number may differ between cards and nodes.",
        ),
        Advice(
            "Restrict NCCL to the cards of the compute network, and keep rails apart if they are"
            " not routed.",
            env=({"NCCL_IB_HCA": cards} if cards else {}) | {"NCCL_CROSS_NIC": "0"},
            why="Storage and management cards are often in the list.",
            check="'NET/IB : Using' lists only cards of the compute network.",
            risk="Leaving out a card lowers the bandwidth.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run on the same nodes with NCCL's own choice of GID.

    The rails are kept apart.
    """
    return experiment_of(
        "Do the nodes connect when NCCL chooses the GID and keeps the rails apart?",
        {"unset": ["NCCL_IB_GID_INDEX"], "env": {"NCCL_CROSS_NIC": "0"}},
        {
            ID: ("works", "they connect"),
            "ib_link_error": ("same", "they fail in the same way, over one link only"),
            "network_loss": ("same", "they fail in the same way; over sockets too"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("net.rdma",),
    risks=_host_risks,
    fine="No GID index is set, or every active RoCE port has that entry.",
    also=("env.NCCL_IB_GID_INDEX",),
    next=experiment,
)
NATIVE_PORTS = Advice(
    "Test the fabric itself between these two hosts: each port Active, one subnet manager, one"
    " partition key (ib_write_bw of perftest between them must pass); then repair or leave out the"
    " card that fails (NCCL_IB_HCA with ^).",
    command="ibstat; ibv_devinfo",
    why="A port of InfiniBand itself has no table of addresses to choose from, unlike one of RoCE.",
    check="The pair test over this card passes.",
    risk="Leaving out a card lowers the bandwidth.",
)
REMEDIES = (
    *_advice(True, False, ()),
    *_advice(False, True, ()),
    SAME_PORTS,
    NATIVE_PORTS,
    OTHER_KEY,
    KEEP_ADDRESS,
    PAIR_TEST,
)
