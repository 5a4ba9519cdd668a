"""What the facts of a job's hosts say together.

They say who holds an address, and which interface joins the hosts.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ncclkit.analysis.once import once
from ncclkit.analysis.picks import of_job_hosts
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclEnv, NcclSocketDevices, WorkerPhase
from ncclkit.core.model import Event, Fact

VIRTUAL = re.compile(
    r"(?:docker|virbr|veth|br-|cni|flannel|cali|tun|tap|lxc|podman|usb|kube|vmnet)\w*|lo\b"
)
"""Interfaces that usually exist only inside their machine."""

Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def plain_address(address: object) -> str:
    """``[::ffff:10.0.0.1]:29500`` and ``::ffff:10.0.0.1`` as ``10.0.0.1``; names as they are."""
    text = str(address or "")
    inside = re.match(r"\[([^\]]*)\]", text)
    return (inside[1] if inside else text).removeprefix("::ffff:")


def as_nccl_sees(case: Case) -> Callable[[Event], str]:
    """The host for which NCCL takes the rank of an INIT line.

    It is another one than it is on where NCCL_HOSTID says so.
    """
    by_pid = {}
    for variable in case.of(NcclEnv):
        if variable.data.name == "NCCL_HOSTID":
            by_pid[(variable.host, variable.pid)] = str(variable.data.value)
    by_rank = {}
    for phase in case.of(WorkerPhase):
        if phase.data.hostid:
            by_rank[phase.rank] = str(phase.data.hostid)
    return lambda start: (
        f"{start.host} {by_pid.get((start.host, start.pid), by_rank.get(start.data.rank, ''))}"
    )


@once
def subnets(case: Case) -> dict[str, dict[str, list[Network]]]:
    """Host → interface → its addresses with their networks.

    It holds the interfaces of the job's hosts that are up.
    """
    rows_of_host = {}
    for fact in of_job_hosts(case, case.facts_of("net.interfaces")):
        if fact.host:
            rows_of_host[fact.host] = dict(_rows(fact))
    return rows_of_host


def _rows(fact: Fact) -> Iterator[tuple[str, list[Network]]]:
    for row in fact.value if isinstance(fact.value, list) else ():
        # loopback and tunnels say "unknown"
        if isinstance(row, dict) and row.get("state") in ("up", "UP", "unknown"):
            texts = row.get("addresses")
            found = []
            if isinstance(texts, list):
                found = [_network(text) for text in texts]
            reachable = []
            for one in found:
                # every link has such an address, so it joins no two hosts
                if one is not None and not one.is_link_local:
                    reachable.append(one)
            yield (
                str(row.get("name")),
                reachable,
            )


def _network(text: object) -> Network | None:
    try:
        return ipaddress.ip_interface(str(text))
    except ValueError:
        return None


def holders(case: Case, address: str) -> list[tuple[str, str]]:
    """(host, interface) of every host of the job that has this address.

    A host that has it on loopback has it in a way of its own.
    """
    return all_holders(case).get(address, [])


@once
def all_holders(case: Case) -> dict[str, list[tuple[str, str]]]:
    """Address → (host, interface) of all that have it."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for host, rows in sorted(subnets(case).items()):
        for name, networks in rows.items():
            addresses = dict.fromkeys(str(one.ip) for one in networks)
            for address in addresses:
                found[address].append((host, name))
    return dict(found)


def interfaces_used(event: Event) -> list[tuple[str, str]]:
    """(interface, address) of what a line of NCCL says that it uses, but for loopback."""
    if isinstance(event.data, NcclSocketDevices):
        rows = [str(device).partition(":")[::2] for device in event.data.devices or ()]
    else:
        rows = [(event.data.interface, event.data.address)]
    known = []
    for name, address in rows:
        if name and address:
            # NCCL writes <0> behind an address, and the scope of IPv6 behind %
            known.append((str(name), re.sub(r"<.*|%.*", "", plain_address(address))))
    used_interfaces = []
    for name, address in known:
        if not address.startswith(("127.", "::1")):
            used_interfaces.append((name, address))
    return used_interfaces


@once
def shared_network(case: Case) -> dict[str, tuple[str, str]]:
    """Host → (interface, address) by which the job's hosts share a network.

    It is empty where less than two hosts do.  An address that several hosts have joins nobody, and
    real interfaces come before virtual ones.
    """
    known = subnets(case)
    holding = all_holders(case)
    rows = []
    for host, own in known.items():
        for name, held in own.items():
            rows += [(one, host, name) for one in held]
    shared: dict[Network, dict[str, tuple[str, str]]] = {}
    for one, host, name in sorted(rows, key=lambda row: bool(VIRTUAL.match(row[2]))):
        if name != "lo" and len(holding[str(one.ip)]) == 1:
            places = shared.setdefault(one.network, {})  # type: ignore[arg-type]
            places.setdefault(host, (name, str(one.ip)))
    best = max(shared.values(), key=len, default={})
    # a network that leaves out a host does not join the job
    if len(best) > 1 and len(best) == len(known):
        return best
    return {}


@once
def isolated(case: Case) -> set[tuple[str, str]]:
    """(host, interface) whose networks no other host has a part in.

    It counts where another network joins the job's hosts.
    """
    found: set[tuple[str, str]] = set()
    parts = _parts(case)
    for host, rows in subnets(case).items() if shared_network(case) else ():
        for interface, held in rows.items():
            if held and all(parts[one.network] <= {host} for one in held):
                found.add((host, interface))
    return found


@once
def _parts(case: Case) -> dict[Any, set[str]]:
    """Network → hosts that have a part in it."""
    found: dict[Any, set[str]] = {}
    for host, rows in subnets(case).items():
        for held in rows.values():
            for one in held:
                found.setdefault(one.network, set()).add(host)
    return found


@once
def common_interface(case: Case) -> str:
    """The name that the joining interface has on every host of the job.

    It is empty where it has several, or none joins.
    """
    names = {name for name, _ in shared_network(case).values()}
    if len(names) == 1:
        return names.pop()
    return ""


def can_simulate_again(case: Case) -> bool:
    """True where the hosts were simulated by a run of ours.

    Such a run can make them again and look.
    """
    return any(event.data.phase == "launch" for event in case.of(WorkerPhase))
