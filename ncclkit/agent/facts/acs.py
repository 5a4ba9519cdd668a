"""PCIe Access Control Services: bridges that send traffic between GPUs up to the CPU and back."""

from __future__ import annotations

import os
import struct

from .machine import Unread

FOLDER = "sys/bus/pci/devices"
BRIDGE = "0x0604"
ACS = 0x000D
REDIRECT = 0x0C
"""Bits of the ACS control register: P2P Request Redirect and P2P Completion Redirect (PCIe 5.0, 7.7.8.3)."""


def bridges(root: str) -> list[str]:
    """The PCI addresses of all bridges below `root` on which ACS redirects; raises Unread or OSError."""
    folder = os.path.join(root, FOLDER)
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name, "class"), encoding="ascii") as file:
            if not file.read().startswith(BRIDGE):
                continue
        with open(os.path.join(folder, name, "config"), "rb") as file:
            if redirects(file.read(4096)):
                found.append(name)
    return found


def redirects(config: bytes) -> bool:
    """Whether the 4 KiB of a bridge's configuration space switch redirection on; raises Unread."""
    if len(config) <= 64:
        raise Unread("the kernel shows a bridge's ACS register to root only: run as root, or ask for lspci -vvv")
    offset = 0x100
    while 0x100 <= offset <= len(config) - 8:
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS:
            return bool(struct.unpack_from("<H", config, offset + 6)[0] & REDIRECT)
        following = header >> 20
        offset = following if following > offset else 0  # a broken list must not go round for ever
    return False
