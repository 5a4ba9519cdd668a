"""What the links of a running job lost while it was looked at.

It is read twice, by the kernel's own counts: packets that the ranks' own TCP connections had to
repeat, and errors of the RDMA ports that ranks hold open and of the interfaces of those
connections.  What other programs of the host use is not read.  Nothing is sent, nothing is changed.
"""

import ipaddress
import os
import struct
import time

from ..digits import whole_number
from ..facts import network
from ..run import processes
from ..threads import side_by_side
from . import utilization

SECONDS = 1.0
"""Seconds that a port's counters may take: some drivers ask the card for each."""
MOST = 32
"""Connections and counters of a host that are told of at most, the worst ones."""
BACKOFF, RTO, LOST, RETRANS, RESENT = 4, 8, 32, 36, 100
"""Where in the kernel's ``tcp_info`` stand: doublings of the timeout, the timeout in µs, packets
lost and repeated in flight, packets repeated in all."""
PORTS = "/sys/class/infiniband"
FAULTS = {
    "counters": (
        "symbol_error",
        "link_downed",
        "link_error_recovery",
        "port_rcv_errors",
        "local_link_integrity_errors",
    ),
    "hw_counters": ("packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"),
}
"""Counters of a port that rise where a link loses or repeats packets."""
VERBS, VERBS_CLASS = "/dev/infiniband/uverbs", "/sys/class/infiniband_verbs"
INTERFACES = "/sys/class/net"
STATISTICS = (
    "statistics/rx_crc_errors",
    "statistics/rx_errors",
    "statistics/tx_errors",
    "statistics/rx_dropped",
    "statistics/tx_dropped",
    "statistics/rx_missed_errors",
)
CARRIER = "carrier_down_count"


class Links:
    """The links of some ranks; begun with one reading, `lost` takes the other one."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.begun = time.monotonic()
        self.sockets = own_sockets(ranks)
        self.counts = _counts_in_time(ranks, self.sockets)

    def lost(self):
        """What was lost since: {seconds, sockets [row], counters [row]}."""
        sockets = own_sockets(self.ranks)
        counts = _counts_in_time(self.ranks, sockets)
        rows = []
        for key, now in sockets.items():
            before = self.sockets.get(key, now)
            grown = max(0, now["resent"] - before["resent"])
            if grown or now["backoff"]:
                rows.append({**now, "grown": grown})
        rows.sort(key=lambda row: (-row["backoff"], -row["grown"]))
        counters = []
        for key, count in counts.items():
            grown = count - self.counts.get(key, count)
            device, port, name = key
            if grown > 0:
                row = {
                    "device": device,
                    "port": port,
                    "name": name,
                    "grown": grown,
                }
                counters.append(row)
        counters.sort(key=lambda row: -row["grown"])
        return {
            "seconds": round(time.monotonic() - self.begun, 1),
            "sockets": rows[:MOST],
            "counters": counters[:MOST],
        }


def own_sockets(ranks):
    """{(rank, inode): what the kernel counts of a connection}.

    Those to the same host are left out, as no link lies between.  It is empty where the kernel does
    not tell.
    """
    known = utilization.tcp_sockets() or {}
    found = {}
    for rank, pid in ranks.items():
        for inode in utilization.inodes(pid):
            socket = known.get(inode)
            if socket is None or not socket.ports[1]:
                continue
            if _goes_out(socket):
                found[rank, inode] = _row(rank, socket)
    return found


def _goes_out(socket):
    return socket.local != socket.peer and not ipaddress.ip_address(socket.peer).is_loopback


def _row(rank, socket):
    info = socket.info
    (rto,) = struct.unpack_from("<I", info, RTO)
    (lost,) = struct.unpack_from("<I", info, LOST)
    (retrans,) = struct.unpack_from("<I", info, RETRANS)
    (resent,) = struct.unpack_from("<I", info, RESENT)
    return {
        "rank": rank,
        "local": socket.local,
        "peer": socket.peer,
        "port": socket.ports[1],
        "queued": socket.queued,
        "backoff": info[BACKOFF],
        "lost": lost,
        "retrans": retrans,
        "resent": resent,
        "rto_ms": rto / 1000,
    }


def _counts_in_time(ranks, sockets):
    """`_counts`, or nothing where a driver does not answer in time."""
    addresses = set()
    for row in sockets.values():
        addresses.add(row["local"])
    return side_by_side(lambda _: _counts(ranks, addresses), [None], SECONDS, {})[0]


def _counts(ranks, addresses):
    """{(device, port, name of a counter): its count}, of the ranks' devices and interfaces."""
    found = {}  # type: dict[tuple[str, object, str], int]
    for device in _open_devices(ranks):
        for port in _names("%s/%s/ports" % (PORTS, device)):
            for group, names in FAULTS.items():
                for name in names:
                    place = (PORTS, device, port, group, name)
                    path = "%s/%s/ports/%s/%s/%s" % place
                    key = (device, whole_number(port), name)
                    _read_count(found, key, path)
    for interface in _interfaces(addresses):
        for name in (*STATISTICS, CARRIER):
            path = "%s/%s/%s" % (INTERFACES, interface, name)
            key = (interface, None, os.path.basename(name))
            _read_count(found, key, path)
    return found


def _open_devices(ranks):
    """The RDMA devices that a rank holds open."""
    devices = set()
    for pid in ranks.values():
        for target in processes.targets_of_descriptors(pid):
            if target.startswith(VERBS):
                name = os.path.basename(target)
                devices.add(processes.read_text("%s/%s/ibdev" % (VERBS_CLASS, name)).strip())
    return sorted(devices & set(_names(PORTS)))


def _read_count(found, key, path):
    count = whole_number(processes.read_text(path).strip())
    if count is not None:
        found[key] = count


def _names(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _interfaces(addresses):
    """The interfaces that have one of these addresses."""
    try:
        entries = network.entries()
    except OSError:
        return []
    own = set()
    for entry in entries:
        address = entry["address"].partition("/")[0]
        if address in addresses:
            own.add(entry["name"])
    return sorted(own)
