"""Bytes that processes sent and received over TCP: what the kernel counts of each of their sockets (sock_diag).

Only sockets of our own network namespace are seen, and RDMA passes by: what is not known is left out, never zero.
"""

import socket
import struct

from ..run import processes

SOCK_DIAG = 4
"""Netlink's family of socket statistics."""
DUMP, DONE = 0x301, 3
"""Flags of a request for all sockets; the kind of the message after the last one."""
INFO, ACKED = 2, 120
"""Attribute with the ``tcp_info``; where in it the bytes acknowledged stand, followed by those received (Linux 4.1)."""
BODY = 72
"""Bytes of a socket's description (``inet_diag_msg``); its last word is the inode."""
PATIENCE = 0.5
"""Seconds that the kernel, which answers at once, may take."""


def counts():
    """{inode of a TCP socket: (bytes sent, bytes received)}; None where the kernel does not tell."""
    found = {}  # type: dict[int, tuple[int, int]]
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as link:
                link.settimeout(PATIENCE)
                _ask(link, family, found)
    except (OSError, struct.error):
        return None
    return found


def inodes(pid):
    """Inodes of the sockets that a process holds; none where it has ended, or belongs to somebody else."""
    return [int(target[8:-1]) for target in processes.open_files(pid) if target.startswith("socket:[")]


def _ask(link, family, found):
    """All connected sockets of one family; raises OSError where the kernel refuses, or is silent."""
    query = struct.pack("<BBBBI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, 0xFFFFFFFF) + bytes(48)
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
            moved = _moved(page[16 + BODY : length])
            if inode and moved:
                found[inode] = moved
            page = page[(length + 3) & ~3 :]


def _moved(attributes):
    """(bytes sent, bytes received) of a socket's attributes; None without them."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("<HH", attributes)
        if kind == INFO and length >= 4 + ACKED + 16:
            return struct.unpack_from("<QQ", attributes, 4 + ACKED)
        attributes = attributes[max(4, (length + 3) & ~3) :]
    return None
