"""Which network each host and each channel uses, by NCCL's own lines, and what shows that
InfiniBand was expected.
"""

from __future__ import annotations

import re
from collections import defaultdict

from ncclkit.analysis.once import once
from ncclkit.analysis.picks import env_of, matching
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    NcclBootstrap,
    NcclChannel,
    NcclIbDevices,
    NcclInfo,
    NcclNetwork,
    NcclSocketDevices,
    NcclWarn,
    PrintedEnv,
    SystemFault,
)
from ncclkit.core.model import Event

INFINIBAND = re.compile(r"(?:ib[a-z]?\d|ib[sp]\w*\d|ibdev|ipoib)\w*$")
"""Interfaces that carry IP over InfiniBand: ``ib0``, ``ibs5``, ``ibp24s0``."""
# NET/Plugin: Loaded net plugin IBext_v8 (v8)       Successfully loaded external network plugin …
# NET/OFI Selected …
RDMA_PLUGIN = re.compile(
    r"Loaded net plugin (?:IBext|AWS Libfabric|ucx|UCX|Libfabric|FasTrak)|NET/OFI Selected"
    r" [Pp]rovider"
)
ASKED_FOR = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_QPS_PER_CONNECTION",
)
"""Variables that nobody sets who has no such card."""
DEVICE = re.compile(r"NET/(?P<kind>\w+)/(?P<index>\d{1,3})")


@once
def by_host(case: Case) -> dict[str, Event]:
    """Host → the first line that names the network it uses.

    Of hosts that use one network only.
    """
    named: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in case.of(NcclNetwork):
        if event.host and event.data.name:
            named[event.host].setdefault(str(event.data.name), event)
    return {host: next(iter(used.values())) for host, used in named.items() if len(used) == 1}


@once
def rdma_devices(case: Case) -> dict[str, tuple[list[str], Event]]:
    """Host → its RDMA devices as NCCL counts them, and their line.

    ``mlx5_0:1/IB``; the line is the one that lists them.
    """
    rows = [event for event in case.of(NcclIbDevices) if event.host and event.data.devices]
    return {event.host: (list(map(str, event.data.devices)), event) for event in reversed(rows)}


def link_layers(devices: list[str]) -> set[str]:
    """``{"IB", "RoCE"}`` of such a list."""
    return {device.rpartition("/")[2].split(" ")[0] for device in devices if "/" in device}


@once
def sockets(case: Case) -> dict[str, tuple[list[str], Event]]:
    """Host → the interfaces of its sockets as NCCL counts them.

    And the line that lists them.
    """
    rows = [event for event in case.of(NcclSocketDevices) if event.host and event.data.devices]
    return {
        event.host: ([str(d).partition(":")[0] for d in event.data.devices], event)
        for event in reversed(rows)
    }


@once
def channels(case: Case) -> list[tuple[Event, str, Event]]:
    """Each channel between hosts whose device the log names.

    The line, the device, and the line that lists it.
    """
    found = []
    for event in case.of(NcclChannel):
        match = DEVICE.match(str(event.data.transport))
        held = None
        if match:
            held = {"Socket": sockets, "IB": rdma_devices}.get(match["kind"])
        if held:
            names, said = held(case).get(event.host, ([], None))
        else:
            names, said = [], None
        index = 0
        if match:
            index = int(match["index"])
        if said is not None and index < len(names):
            found.append((event, names[index], said))
    return found


@once
def shared_names(case: Case) -> list[Event]:
    """Lines of one host name with different addresses of one interface.

    Two machines that have the same name.
    """
    seen: dict[tuple[str, str], dict[str, Event]] = defaultdict(dict)
    pids: dict[tuple[str, int | None], str] = {}
    for event in case.of(NcclBootstrap):
        address = str(event.data.address or "")
        if event.host and address and pids.setdefault((event.host, event.pid), address) == address:
            seen[event.host, str(event.data.interface)].setdefault(address, event)
    many = [
        list(lines.values()) for lines in seen.values() if len({e.pid for e in lines.values()}) > 1
    ]
    return next((lines for lines in many if not any(":" in str(e.data.address) for e in lines)), [])


@once
def infiniband_expected(case: Case) -> list[Event]:
    """What shows that somebody counted on InfiniBand or another RDMA network."""
    notes = [
        e
        for e in case.of(PrintedEnv)
        if e.data.name in ASKED_FOR and e.data.value not in ("", "none")
    ]
    notes += [
        e for e in case.of(PrintedEnv) if (e.data.name, e.data.value) == ("NCCL_IB_DISABLE", "0")
    ]
    asked = [e for name in ASKED_FOR for e in env_of(case, name) if e.data.value]
    verbs = case.of(SystemFault, what="no_verbs")
    opened = matching(case.of(NcclWarn), "Unable to open device", "ibv_open_device")
    return [*asked, *notes, *verbs, *opened]


@once
def infiniband_seen(case: Case) -> list[Event]:
    """What shows that a host has InfiniBand.

    A plugin for it that was loaded, an interface of IP over it.
    """
    plugins = [e for e in case.of(NcclInfo, family="plugin") if RDMA_PLUGIN.search(e.text)]
    over = [e for e in case.of(NcclBootstrap) if INFINIBAND.match(str(e.data.interface))]
    listed = [said for names, said in sockets(case).values() if any(map(INFINIBAND.match, names))]
    return [*plugins, *over, *listed]
