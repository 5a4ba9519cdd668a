"""Tables of the kernel that many connections fill: at a port, of neighbours, of the firewall; and its clock."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial

from .fact import Fact, attempt
from .machine import Machine, Unread

BACKLOG, NETSTAT = "/proc/sys/net/core/somaxconn", "/proc/net/netstat"
NEIGHBOURS, ARP = "/proc/sys/net/ipv4/neigh/default/gc_thresh3", "/proc/net/stat/arp_cache"
TRACKED, MOST = "/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/net/netfilter/nf_conntrack_max"
UNSYNCED, ROOM = 0x40, 256
"""STA_UNSYNC of <sys/timex.h>, and more integers than its struct has on any architecture."""


def facts(machine: Machine) -> Iterator[Fact]:
    """``net.backlog``, ``net.neighbours`` and ``net.conntrack`` with what bounds them, and ``host.clock.synced``."""
    for name, file, unit in (
        ("net.backlog", BACKLOG, "connections"),
        ("net.neighbours.max", NEIGHBOURS, "hosts"),
        ("net.conntrack", TRACKED, "connections"),
        ("net.conntrack.max", MOST, "connections"),
    ):
        yield attempt(name, partial(_number, machine, file), unit, file)
    yield attempt("net.backlog.overflows", lambda: _overflows(machine), "connections", NETSTAT + " ListenOverflows")
    yield attempt("net.neighbours.overflows", lambda: _refused(machine), "hosts", ARP + " table_fulls")
    yield attempt("host.clock.synced", lambda: not machine.call("adjtimex", _status) & UNSYNCED, source="adjtimex(2)")


def _number(machine: Machine, file: str) -> int:
    return int(machine.read(file))


def _overflows(machine: Machine) -> int:
    """Connections that came while a listening socket's queue was full, since boot."""
    rows = [line.split() for line in machine.read(NETSTAT).splitlines() if line.startswith("TcpExt:")]
    return int(dict(zip(*rows))["ListenOverflows"])


def _refused(machine: Machine) -> int:
    """Neighbours that found no place in the table since boot: one hexadecimal number for each CPU."""
    head, *rows = [line.split() for line in machine.read(ARP).splitlines()]
    return sum(int(dict(zip(head, row))["table_fulls"], 16) for row in rows)


def _status() -> int:
    """The status bits of the kernel's clock; with nothing to set, any user may ask."""
    timex = (ctypes.c_int * ROOM)()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise Unread("adjtimex is not allowed here")
    # struct timex: unsigned modes; long offset, freq, maxerror, esterror; int status
    return timex[5 * ctypes.sizeof(ctypes.c_long) // ctypes.sizeof(ctypes.c_int)]
