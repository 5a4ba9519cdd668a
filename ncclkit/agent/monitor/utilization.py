"""How busy the process of each rank is.

It tells CPU time, state and TCP traffic, and how long the process waited for a core.  In a hang one
rank differs from all others: it computes while they wait, or sleeps while they spin.  That can be
seen from outside, without stopping or signalling anybody, also where no stack may be read.
"""

import ipaddress
import os
import socket
import struct
import time
from typing import NamedTuple

from ..digits import whole_number
from ..run import processes

TICKS = os.sysconf("SC_CLK_TCK")
"""Units of a second in which ``/proc`` counts CPU time."""


class Utilization:
    """Rates since the last sample; `take` one at a time."""

    def __init__(self):
        self.before = {}  # type: dict[int, tuple[float, float, float]]
        self.moved = None  # type: dict[int, tuple[int, int]] | None
        self.asked = 0.0

    def take(self, ranks):
        """{rank: its state as in ps, and its rates of CPU time and traffic}.

        ``cpu`` is the percentage of a core, all threads together; ``main`` that of the time in
        which the main thread had something to do: it ran, or waited for a core, so that a crowded
        host does not look idle.  ``sent`` and ``received`` are bytes a second.  `ranks` is {rank:
        pid}.  Rates are missing where there is no sample before, or the kernel does not tell.
        """
        found = {}
        for rank, pid in ranks.items():
            stat = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
            main = seconds_runnable(pid)
            if len(stat) < 13 or main is None or stat[0] in "ZX":
                self.before.pop(pid, None)
                continue
            now = (time.monotonic(), (int(stat[11]) + int(stat[12])) / TICKS, main)
            old = self.before.get(pid)
            self.before[pid] = now
            found[rank] = {"state": stat[0]}
            if old and now[0] > old[0]:
                cpu, busy = (
                    100 * (new - then) / (now[0] - old[0]) for new, then in zip(now[1:], old[1:])
                )
                found[rank].update(cpu=round(cpu, 1), main=round(busy, 1))
        for rank, (sent, received) in self._traffic({rank: ranks[rank] for rank in found}).items():
            found[rank].update(sent=sent, received=received)
        return found

    def _traffic(self, ranks):
        """{rank: (bytes sent, received) a second}, over the sockets that it holds now."""
        moved = traffic()
        moment = time.monotonic()
        (before, asked), (self.moved, self.asked) = (self.moved, self.asked), (moved, moment)
        if moved is None or before is None:
            return {}
        rates = {}
        for rank, pid in ranks.items():
            held = [inode for inode in inodes(pid) if inode in moved]
            grown = []
            for i in held:
                grown.append([new - old for new, old in zip(moved[i], before.get(i, (0, 0)))])
            if held:
                rates[rank] = [
                    round(max(0, sum(direction)) / max(moment - asked, 1e-3))
                    for direction in zip(*grown)
                ]
        return rates


def seconds_runnable(pid):
    """Seconds that the main thread of a process ran, or waited for a core.

    It is None when the process is gone.
    """
    times = processes.read_text("/proc/%d/schedstat" % pid).split()
    if len(times) > 1:
        return (int(times[0]) + int(times[1])) / 1e9
    return None


# ---------------------------------------------------------------- CPU scheduling

SECOND = 1e9
"""Nanoseconds, in which the kernel counts."""


class Scheduling:
    """CPU scheduling of each rank since the run began, summed over its processes.

    What they did before is included.  A rank's family is its process and what that started,
    data-loader workers above all.  More of them than cores means that one waits at every moment,
    and the rank itself is one of them.
    """

    def __init__(self):
        self.before = {}  # type: dict[int, tuple[float, float, int]]
        self.totals = {}  # type: dict[int, list[float]]

    def take(self, families):
        """{rank: what the scheduler counted of its processes}.

        It is [most processes at once, cores they may use, s run, s in a run queue, involuntary
        context switches].  `families` is {rank: its process, then all others}.  Of each process its
        main thread is counted, which is the one that loads data.  Ranks that the kernel shows
        nothing about are left out.
        """
        for rank, pids in families.items():
            counted = {pid: found for pid in pids if (found := _scheduling_counts(pid))}
            cores = _usable_cores(pids[0])
            if not counted or not cores:
                continue
            total = self.totals.setdefault(rank, [0, 0, 0.0, 0.0, 0])
            total[:2] = max(total[0], len(counted)), cores
            for pid, now in counted.items():
                for place, (new, old) in enumerate(
                    zip(now, self.before.get(pid, (0.0, 0.0, 0))), 2
                ):
                    total[place] += max(0, new - old)
            self.before.update(counted)
        return {rank: [most, cores, round(ran, 2), round(waited, 2), off]
                for rank, (most, cores, ran, waited, off) in self.totals.items()}  # fmt: skip


def _scheduling_counts(pid):
    """What a process's main thread did: (s run, s waited, times taken off).

    It waited for a core, and was taken off that.  None where it cannot be read.
    """
    times = processes.read_text("/proc/%d/schedstat" % pid).split()
    status = (
        processes.read_text("/proc/%d/status" % pid)
        .partition("nonvoluntary_ctxt_switches:")[2]
        .split()
    )
    if len(times) < 2 or not status:
        return None
    return int(times[0]) / SECOND, int(times[1]) / SECOND, int(status[0])


def _usable_cores(pid):
    """How many cores the process may use; 0 when it is gone."""
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return 0


# ---------------------------------------------------------------- sockets

SOCK_DIAG = 4
"""Netlink's family of socket statistics."""
DUMP, DONE = 0x301, 3
"""Flags of a request for all sockets; the kind of the message after the last one."""
INFO, ACKED = 2, 120
"""Attribute with the ``tcp_info``; where in it the bytes acknowledged stand, followed by those
received (Linux 4.1)."""
RECEIVED = 52
"""Where in it the milliseconds since the last received data stand."""
BODY = 72
"""Bytes of a socket's description (``inet_diag_msg``); it ends with the inode."""
OWN_END, OTHER_END, QUEUED = 8, 24, 60
"""Where in it the addresses of both ends stand, and the bytes in the send queue."""
PATIENCE = 0.5
"""Seconds that the kernel, which answers at once, may take."""


def traffic():
    """{inode of a TCP socket: (bytes sent, bytes received)}, by the kernel's count.

    None where the kernel does not count (sock_diag).  Only sockets of our own network namespace are
    seen, and RDMA passes by: what is not known is left out, never zero.
    """
    known = tcp_sockets()
    if known is None:
        return None
    moved = {}
    for inode, held in known.items():
        moved[inode] = _bytes_moved(held.info)
    return moved


def seconds_without_traffic(pids):
    """{process: seconds since its TCP connections last received anything}.

    Those to the job's store do not count.  A process without such a connection is left out, as is
    every one where the kernel does not tell.
    """
    known = tcp_sockets() or {}
    found = {}
    for pid in pids:
        store = whole_number(processes.environ(pid).get("MASTER_PORT", ""))
        ages = []
        for inode in inodes(pid):
            held = known.get(inode)
            # one that listens has no other end
            if held is not None and held.ports[1] and store not in held.ports:
                ages.append(_seconds_since(held.info))
        if ages:
            found[pid] = min(ages)
    return found


def inodes(pid):
    """Inodes of the sockets that a process holds.

    It is None where the process has ended, or belongs to somebody else.
    """
    return [
        int(target[8:-1])
        for target in processes.targets_of_descriptors(pid)
        if target.startswith("socket:[")
    ]


class TcpSocket(NamedTuple):
    """What the kernel tells of a TCP socket."""

    ports: tuple[int, int]
    """The own one, and the other end's; 0 where there is none."""
    info: bytes
    """Its ``tcp_info``."""
    local: str
    peer: str
    """Addresses of both ends."""
    queued: int
    """Bytes that wait to be sent, or for an answer."""


def tcp_sockets():
    """{inode: `TcpSocket`} of all connected TCP sockets.

    It is None where the kernel refuses, or is silent.
    """
    found = {}  # type: dict[int, TcpSocket]
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as link:
                link.settimeout(PATIENCE)
                found.update(_ask_kernel(link, family))
    except (OSError, struct.error):
        return None
    return found


def _ask_kernel(link, family):
    """Yield (inode, `TcpSocket`) of all connected sockets of one family.

    Raises OSError on a refusal.
    """
    query = struct.pack(
        "<BBBBI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, 0xFFFFFFFF
    ) + bytes(48)
    link.send(struct.pack("<IHHII", 16 + len(query), 20, DUMP, 1, 0) + query)
    while True:
        page = link.recv(1 << 18)
        while len(page) >= 16:
            length, kind = struct.unpack_from("<IH", page)
            if kind == DONE:
                return
            if length < 16 + BODY:
                raise OSError("the kernel's answer is an error")
            inode = struct.unpack_from("<I", page, 16 + BODY - 4)[0]
            info = _tcp_info(page[16 + BODY : length])
            if inode and info:
                yield inode, _described(page[16 : 16 + BODY], info, family)
            page = page[(length + 3) & ~3 :]


def _described(body, info, family):
    """A socket by its ``inet_diag_msg``."""
    length = 16
    if family == socket.AF_INET:
        length = 4
    local = ipaddress.ip_address(body[OWN_END : OWN_END + length])
    peer = ipaddress.ip_address(body[OTHER_END : OTHER_END + length])
    ports = struct.unpack_from(">HH", body, 4)
    (queued,) = struct.unpack_from("<I", body, QUEUED)
    return TcpSocket(ports, info, str(local), str(peer), queued)


def _tcp_info(attributes):
    """The ``tcp_info`` of a socket's attributes; None without one that is long enough."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("<HH", attributes)
        if kind == INFO and length >= 4 + ACKED + 16:
            return attributes[4:length]
        attributes = attributes[max(4, (length + 3) & ~3) :]
    return None


def _bytes_moved(info):
    """(bytes sent, bytes received)."""
    return struct.unpack_from("<QQ", info, ACKED)


def _seconds_since(info):
    """Seconds since the last data came."""
    return struct.unpack_from("<I", info, RECEIVED)[0] / 1000
