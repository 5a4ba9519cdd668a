"""getifaddrs(3): the call that NCCL and gloo themselves use, so with their order."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

_SIOCGIFMTU = 0x8921


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def entries() -> list[dict[str, Any]]:
    """Every interface address in the kernel's order: name, index, flags, mtu, family (4, 6, 0), address with prefix."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return list(_walk(head))
    finally:
        libc.freeifaddrs(head)


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    index = {name: number for number, name in socket.if_nameindex()}
    while node:
        entry = node.contents
        name = os.fsdecode(entry.name)
        family, address = _address(entry.address)
        yield {
            "name": name,
            "index": index.get(name),
            "flags": entry.flags,
            "mtu": _mtu(name),
            "family": family,
            "address": "%s/%d" % (address, _prefix(entry.netmask)) if address else "",
        }
        node = entry.next


def _address(pointer: int | None) -> tuple[int, str]:
    """(4 or 6, text) of a sockaddr, (0, "") for other families."""
    if not pointer:
        return 0, ""
    family = ctypes.c_ushort.from_address(pointer).value
    if family == socket.AF_INET:
        return 4, socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return 6, socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return 0, ""


def _prefix(netmask: int | None) -> int:
    text = _address(netmask)[1]
    return bin(int(ipaddress.ip_address(text))).count("1") if text else 0


def _mtu(name: str) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFMTU, struct.pack("16si", os.fsencode(name), 0) + bytes(12))
        except OSError:
            return None
    return int(struct.unpack_from("i", answer, 16)[0])
