"""The sockets that a process can see, by ``/proc``: addresses, state, and who holds them."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from ..run import processes

LISTENS, SYN_SENT, ESTABLISHED = "0A", "02", "01"
"""States of a TCP socket in the kernel's numbers."""
ANY_ADDRESS = ("0.0.0.0", "::")
LARGEST_TABLE = 8 << 20
TAKES_CONNECTIONS = 1 << 16
"""Flag of a Unix socket that listens."""


class SocketRow(NamedTuple):
    """One row of the kernel's table."""

    local: str
    remote: str
    """Empty where there is no other end."""
    state: str
    inode: str

    @property
    def target(self) -> str:
        """What the link of a descriptor of it shows."""
        return "socket:[%s]" % self.inode

    def listens_at(self, host: str, port: str) -> bool:
        """Whether it takes connections to an address."""
        if self.state != LISTENS:
            return False
        if port_of(self.local) != port:
            return False
        own = host_of(self.local)
        return own in ANY_ADDRESS or own == host


def host_of(address: str) -> str:
    """``10.0.0.1`` of ``10.0.0.1:80``."""
    return address.rpartition(":")[0]


def port_of(address: str) -> str:
    """``80`` of ``10.0.0.1:80``."""
    return address.rpartition(":")[2]


def tcp_sockets(pid: int) -> list[SocketRow]:
    """All TCP sockets in the network of a process."""
    found = []
    for name in ("tcp", "tcp6"):
        text = processes.read_text("/proc/%d/net/%s" % (pid, name), LARGEST_TABLE)
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) < 10:
                continue
            local = address_of_hex(words[1])
            remote = address_of_hex(words[2])
            state = words[3]
            inode = words[9]
            found.append(SocketRow(local, remote, state, inode))
    return found


def own_tcp_sockets(pid: int) -> list[SocketRow]:
    """The TCP sockets that a process holds itself."""
    targets = set(processes.targets_of_descriptors(pid))
    found = []
    for one in tcp_sockets(pid):
        if one.target in targets:
            found.append(one)
    return found


def address_of_hex(text: str) -> str:
    """``127.0.0.1:4444`` of the kernel's hexadecimal; "" where there is no other end."""
    host, _, port = text.partition(":")
    try:
        data = bytes.fromhex(host)
        number = int(port, 16)
    except ValueError:
        return ""
    if number == 0 or len(data) not in (4, 16):
        return ""
    # the kernel prints each word of four bytes as a number of this host, which has it turned
    turned = b""
    for at in range(0, len(data), 4):
        turned += data[at : at + 4][::-1]
    if turned.startswith(bytes(10) + b"\xff\xff"):
        turned = turned[12:]
    family = socket.AF_INET6
    if len(turned) == 4:
        family = socket.AF_INET
    return "%s:%d" % (socket.inet_ntop(family, turned), number)


def is_unix_pair(pid: int, inode: str) -> bool:
    """Whether a socket is a local one without a name, by which a program wakes itself."""
    text = processes.read_text("/proc/%d/net/unix" % pid, LARGEST_TABLE)
    for line in text.splitlines():
        words = line.split()
        if len(words) < 7 or words[6] != inode:
            continue
        flags = int(words[3], 16)
        has_name = len(words) > 7
        return not has_name and not flags & TAKES_CONNECTIONS
    return False


def network_of(pid: int) -> str:
    """The name of the network namespace of a process; "" where it cannot be known."""
    try:
        return os.readlink("/proc/%d/ns/net" % pid)
    except OSError:
        return ""
