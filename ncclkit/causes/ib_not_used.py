"""InfiniBand is there but NCCL went over plain sockets

What you see
    "NET/IB : No device found." and "Using network Socket" on machines that have InfiniBand or RoCE
    cards; a job that is ten times slower between nodes than inside them; or "socketFinalizeAccept:
    wrong type" when one node uses IB and the other does not.

Why it happens
    NCCL asks libibverbs for devices.  In a container without /dev/infiniband or the library, with
    an NCCL_IB_HCA that matches no card, with a port that is down, or with NCCL_IB_DISABLE=1 left in
    a profile, the answer is "none", and NCCL takes TCP without a warning.  If only some nodes do
    so, the ranks do not use the same protocol.

How to be sure
    `ibv_devinfo` in the container shows the cards and "PORT_ACTIVE"; NCCL's log says "Using network
    IB" on all ranks.

What to do
    In Kubernetes the RDMA plugin takes the place of --device; install rdma-core in an image that
    lacks libibverbs.

Read more
    NCCL user guide: NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_NET.
"""

from __future__ import annotations

from dataclasses import replace

from collections.abc import Iterator

from ncclkit.analysis.network_devices import infiniband_expected, infiniband_seen
from ncclkit.analysis.picks import (
    env_of,
    failed,
    first_finding,
    matching,
    messages,
    name_hosts,
    on,
    over_sockets,
    pick,
)
from ncclkit.analysis.rank_states import spans_hosts
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclIbDevices, NcclInfo, NcclInit, NcclNetwork, PrintedEnv
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, Strength, found

ID = "ib_not_used"
explains = (
    "c10d.error",
    "nccl.trace",
    "c10d.timeout",
    "network_loss",
    "slow_rank",
    "bad_env_value",
    "rank_exception",
)


def diagnose(case: Case) -> Finding:
    """Found where ranks use sockets although InfiniBand is expected.

    Cards, variables or other ranks let one expect it.
    """
    went_well = _other_networks(case) or over_sockets(case) or case.of(NcclIbDevices)
    say = "NCCL uses the network that this machine is known to have."
    missing = "NCCL_DEBUG=INFO lines 'NET/IB' and 'Using network', and `ibv_devinfo` on the node"
    return first_finding(
        case, _missing_on_some, _mixed_connection, _sockets_everywhere, _no_library, CHECK.risk
    ) or CHECK.otherwise(case, went_well, say, missing)


def _without_devices(case: Case) -> list[Event]:
    """The lines in which NCCL says that it found no card."""
    return [event for event in case.of(NcclIbDevices) if not event.data.devices]


def _other_networks(case: Case) -> list[Event]:
    """The lines in which NCCL says that it uses another network than sockets."""
    return [event for event in case.of(NcclNetwork) if event.data.name not in ("Socket", None)]


def _wrong_types(case: Case) -> list[Event]:
    """A rank received a connection of another kind than its own."""
    return matching([*messages(case), *case.of(NcclInfo)], "wrong type")


def _switched_off(case: Case) -> list[Event]:
    """The lines by which NCCL_IB_DISABLE=1 is set."""
    off = [event for event in env_of(case, "NCCL_IB_DISABLE") if event.data.value == "1"]
    for event in case.of(PrintedEnv):
        if (event.data.name, event.data.value) == ("NCCL_IB_DISABLE", "1"):
            off.append(event)
    return off


def _missing_on_some(case: Case) -> Finding | None:
    """Ranks of one host use sockets, and those of another a faster network."""
    slow = [*over_sockets(case), *_without_devices(case)]
    other = _other_networks(case)
    pair = _differing_hosts(slow, other)
    if pair is None:
        return None
    without, uses = pair
    hosts = name_hosts(slow)
    say = (
        f"Some ranks use sockets and others {uses.data.name}: InfiniBand is missing on "
        f"{', '.join(hosts) or 'some nodes'}."
    )
    # a host whose line only counts cards may still have chosen another network
    firm = without.host and without.kind == "nccl.network" and failed(case)
    strength: Strength = "likely"
    if firm:
        strength = "proven"
    cited = pick([without], [uses], slow[:2], other[:2], _wrong_types(case), limit=5)
    return _finding(case, strength, say, cited, hosts)


def _mixed_connection(case: Case) -> Finding | None:
    """NCCL itself says that two ranks do not use the same network."""
    mixed = _wrong_types(case)
    if not mixed:
        return None
    return _finding(
        case,
        "likely",
        "A rank received a connection of another kind than it expected: one node uses"
        " InfiniBand, the other sockets.",
        pick(mixed, _without_devices(case), over_sockets(case)),
    )


def _sockets_everywhere(case: Case) -> Finding | None:
    """All ranks use sockets, where cards are expected.

    It also counts where a variable switches them off.
    """
    sockets, none = over_sockets(case), _without_devices(case)
    wanted: list[Evidence] = [
        *infiniband_expected(case),
        *[fact for fact in case.facts_of("net.rdma") if fact.value],
    ]
    # they are there by chance where all is well
    if failed(case):
        wanted += infiniband_seen(case)
    off = _switched_off(case)
    on_one_host = len(name_hosts(case.of(NcclInit))) == 1
    if not (sockets or none) or not (wanted or off) or on_one_host:
        return None
    why = "NCCL found no usable device although one is expected"
    if off:
        why = "NCCL_IB_DISABLE=1 is set"
    return _finding(
        case,
        "likely",
        f"The ranks talk over plain sockets because {why}.",
        pick(off, none, sockets[:1], wanted),
    )


def _no_library(case: Case) -> Finding | None:
    """NCCL of a job on several hosts found no libibverbs."""
    lines = case.of("nccl.warn", "nccl.info")
    lacking = []
    for event in lines:
        if event.data.family == "no_ib_library":
            lacking.append(event)
    # within one machine no InfiniBand is needed
    across = spans_hosts(case) or len(name_hosts(case.of(NcclInit) or lacking)) != 1
    # a plugin that brings another network needs no libibverbs
    if not lacking or not across or _other_networks(case):
        return None
    say = (
        f"NCCL found no libibverbs{on(lacking[0].host)}, so ranks of different hosts talk over"
        " plain sockets."
    )
    seen = [*_without_devices(case), *over_sockets(case)]
    finding = _finding(case, "possible", say, pick(lacking, seen, limit=3))
    return replace(finding, advice=(INSTALL, *finding.advice))


INSTALL = Advice(
    "Install libibverbs and the provider of the card in the image or on the host: rdma-core on"
    " RHEL; libibverbs1 and ibverbs-providers on Debian and Ubuntu.",
    command="ldconfig -p | grep -E 'libibverbs|libmlx5'; ls /sys/class/infiniband",
    why="NCCL loads libibverbs when it starts, and without it knows sockets only.",
    check="'NET/IB : Using' and 'Using network IB' stand in the log of every rank.",
    risk="None on hosts with such cards; on others nothing changes.",
)


def _differing_hosts(without: list[Event], other: list[Event]) -> tuple[Event, Event] | None:
    """Lines of two hosts of which one has no InfiniBand.

    The other uses a network; None where no two hosts differ.  A host whose ranks use another
    network has looked for cards before it chose.
    """
    # a host that uses a faster network has looked for cards before it chose: its own line of no
    # cards proves nothing
    hosts = {two.host for two in other}
    ranks = {two.rank for two in other}
    # whether a pair differs depends on the second only by what it names
    kinds = {(bool(two.host), two.rank is None): two for two in reversed(other)}
    first_of_each = [two for two in other if any(two is kept for kept in kinds.values())]
    for one in without:
        for two in first_of_each:
            named = one.host and two.host
            if (
                one.host not in hosts
                if named
                else None not in (one.rank, two.rank) and one.rank not in ranks
            ):
                return one, two
    return None


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """RDMA ports that NCCL would not use, because of a variable or their own state."""
    ports = host.value("net.rdma") or ()
    active = []
    for port in ports:
        if port.get("state") == "ACTIVE":
            active.append(port)
    names = sorted({str(port.get("device")) for port in active or ports})
    off = []
    if host.number("env.NCCL_IB_DISABLE"):
        off = [host.fact("env.NCCL_IB_DISABLE")]
    off += (
        [host.fact("env.NCCL_NET")] if str(host.value("env.NCCL_NET")).lower() == "socket" else []
    )
    # without cards the variable changes nothing
    if active and off and off[0]:
        say = (
            f"{off[0].name[4:]}={off[0].value} is set although RDMA ports are active"
            f" ({', '.join(names)}); NCCL would "
        )
        yield Risk(say + "use plain sockets", off, UNSET, "likely", interfaces=tuple(names))
    elif active and host.value("net.nccl.hcas") == []:
        say = (
            f"RDMA ports are active ({', '.join(names)}), but with the present variables NCCL would"
            " use none of them"
        )
        facts = [host.fact("env.NCCL_IB_HCA"), host.fact("net.nccl.hcas")]
        yield Risk(
            say + " and use plain sockets", facts, _advice()[0], "likely", interfaces=tuple(names)
        )
    # a machine may have its ports unplugged on purpose, hence only possible
    elif ports and not active:
        say = (
            f"no RDMA port is active ({', '.join(names)}); NCCL would use plain sockets without a"
            " warning"
        )
        yield Risk(say, [host.fact("net.rdma")], _advice()[0], interfaces=tuple(names))


def _finding(
    case: Case, strength: Strength, say: str, why: tuple[Evidence, ...], hosts: tuple[str, ...] = ()
) -> Finding:
    hosts = hosts or tuple(
        sorted({piece.host for piece in why if hasattr(piece, "host") and piece.host})
    )
    return found(ID, strength, say, why, hosts=hosts, advice=_advice(), next=experiment(case))


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Make the cards visible to the job on every node and correct the filters (NCCL_IB_HCA,"
            " NCCL_IB_DISABLE, NCCL_NET): a container needs --device=/dev/infiniband and"
            " --cap-add=IPC_LOCK, or on Kubernetes the RDMA resource, and the library of the card's"
            " provider (rdma-core, ibverbs-providers).",
            command="ibv_devinfo | grep -E 'hca_id|state'; ls /dev/infiniband",
            why="NCCL falls back to TCP silently when it sees no active port.",
            check="'Using network IB' on all ranks, and the bandwidth between nodes fits the link.",
            risk="None.",
        ),
        Advice(
            "Or keep all nodes on sockets, so that they agree.",
            env={"NCCL_IB_DISABLE": "1"},
            why="Ranks with different networks cannot connect.",
            check="'Using network Socket' on all ranks.",
            risk="Slow; only until the cards work.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run without the variables that switch InfiniBand off.

    Where none is set, run with InfiniBand required.
    """
    off = []
    for name in ("NCCL_IB_DISABLE", "NCCL_NET"):
        if env_of(case, name) or case.facts_of(f"env.{name}"):
            off.append(name)
    if off:
        return experiment_of(
            f"Is the job faster without {' and '.join(off)}?",
            {"unset": off},
            {
                ID: ("faster", "it is: the ranks then use InfiniBand"),
                "ib_config": ("other", "it fails now: connections over InfiniBand cannot be made"),
                "ib_link_error": (
                    "other",
                    "it fails now: a link is broken, and InfiniBand had been switched off for that",
                ),
            },
        )
    return experiment_of(
        "Which node cannot use InfiniBand?",
        {"env": {"NCCL_NET": "IB"}},
        {
            ID: ("other", "the node without devices stops with an error that names it"),
            "ib_config": ("other", "none: all nodes have devices, and connections over them fail"),
            "slow_transport": (
                "works",
                "none: the job runs as before, so InfiniBand was in use and something else is slow",
            ),
            "network_loss": (
                "works",
                "none: the job runs as before, so InfiniBand was in use and something else is slow",
            ),
        },
    )


UNSET = Advice(
    "Unset the variable and measure one all_reduce between two nodes.",
    command="unset NCCL_IB_DISABLE NCCL_NET",
    change={"unset": ["NCCL_IB_DISABLE", "NCCL_NET"]},
    why="It is often left from a search for another fault.",
    check=(
        "NCCL's log says 'Using network IB', and busbw between the nodes is a multiple of what it"
        " was."
    ),
    risk=(
        "The fault for which it was set may still be there: try it with the live test, not with the"
        " long job."
    ),
)
CHECK = Preflight(
    ID,
    reads=("net.rdma",),
    risks=_host_risks,
    fine="NCCL can use the RDMA ports of this host, or it has none.",
    also=("env.NCCL_IB_DISABLE", "env.NCCL_NET", "env.NCCL_IB_HCA", "net.nccl.hcas"),
    next=experiment,
)
REMEDIES = (*_advice(), INSTALL, UNSET)
