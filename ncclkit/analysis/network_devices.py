"""Which network each host and each channel uses, by NCCL's own lines.

It tells also what shows that InfiniBand was expected.
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

    Only hosts count that use one network only.
    """
    named: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in case.of(NcclNetwork):
        if event.host and event.data.name:
            named[event.host].setdefault(str(event.data.name), event)
    devices_of_host = {}
    for host, used in named.items():
        if len(used) == 1:
            devices_of_host[host] = next(iter(used.values()))
    return devices_of_host


@once
def rdma_devices(case: Case) -> dict[str, tuple[list[str], Event]]:
    """Host → its RDMA devices as NCCL counts them, and their line.

    A device is such as ``mlx5_0:1/IB``; the line is the one that lists them.
    """
    rows = []
    for event in case.of(NcclIbDevices):
        if event.host and event.data.devices:
            rows.append(event)
    # from the back, so that the first line of each host stands
    return {event.host: (list(map(str, event.data.devices)), event) for event in reversed(rows)}


def link_layers(devices: list[str]) -> set[str]:
    """``{"IB", "RoCE"}`` of such a list."""
    layers = set()
    for device in devices:
        if "/" in device:
            layers.add(device.rpartition("/")[2].split(" ")[0])
    return layers


@once
def sockets(case: Case) -> dict[str, tuple[list[str], Event]]:
    """Host → the interfaces of its sockets as NCCL counts them.

    With them comes the line that lists them.
    """
    rows = []
    for event in case.of(NcclSocketDevices):
        if event.host and event.data.devices:
            rows.append(event)
    row_of_host = {}
    # from the back, so that the first line of each host stands
    for event in reversed(rows):
        row_of_host[event.host] = ([str(d).partition(":")[0] for d in event.data.devices], event)
    return row_of_host


@once
def channels(case: Case) -> list[tuple[Event, str, Event]]:
    """Each channel between hosts whose device the log names.

    It comes as the line, the device, and the line that lists it.
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

    They are of two machines that have the same name.
    """
    seen: dict[tuple[str, str], dict[str, Event]] = defaultdict(dict)
    pids: dict[tuple[str, int | None], str] = {}
    for event in case.of(NcclBootstrap):
        address = str(event.data.address or "")
        # of a process with several interfaces only the first address counts
        if event.host and address and pids.setdefault((event.host, event.pid), address) == address:
            seen[event.host, str(event.data.interface)].setdefault(address, event)
    many = []
    for by_address in seen.values():
        if len({e.pid for e in by_address.values()}) > 1:
            many.append(list(by_address.values()))
    for lines in many:
        # one machine may have an address of either kind
        if not any(":" in str(e.data.address) for e in lines):
            return lines
    return []


@once
def infiniband_expected(case: Case) -> list[Event]:
    """What shows that somebody counted on InfiniBand or another RDMA network."""
    notes = []
    for event in case.of(PrintedEnv):
        if event.data.name in ASKED_FOR and event.data.value not in ("", "none"):
            notes.append(event)
    for event in case.of(PrintedEnv):
        if (event.data.name, event.data.value) == ("NCCL_IB_DISABLE", "0"):
            notes.append(event)
    asked = []
    for name in ASKED_FOR:
        for event in env_of(case, name):
            if event.data.value:
                asked.append(event)
    verbs = case.of(SystemFault, what="no_verbs")
    opened = matching(case.of(NcclWarn), "Unable to open device", "ibv_open_device")
    return [*asked, *notes, *verbs, *opened]


@once
def infiniband_seen(case: Case) -> list[Event]:
    """What shows that a host has InfiniBand.

    It is a plugin for it that was loaded, or an interface of IP over it.
    """
    plugins = [e for e in case.of(NcclInfo, family="plugin") if RDMA_PLUGIN.search(e.text)]
    over = [e for e in case.of(NcclBootstrap) if INFINIBAND.match(str(e.data.interface))]
    listed = [said for names, said in sockets(case).values() if any(map(INFINIBAND.match, names))]
    return [*plugins, *over, *listed]
