"""Variables that protect a job or switch hardware off; a sweep leaves them.

It names them, as somebody set them for a reason that a measurement cannot see: a driver whose
multicast hangs, a link that corrupts, a network that belongs to the storage.  In come variables of
an environment, out go those that no test may take away unasked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_OFF = re.compile(
    r"NCCL_(?:"
    # a transport, a network or a way between GPUs that is switched off
    r"\w*_DISABLE=(?!0+$).+"
    r"|\w*(?:NVLS|CUMEM|CUMEM_HOST|MNNVL|DMABUF|COLLNET)_ENABLE=0+"
    # how near two GPUs, or a GPU and a NIC, must be
    r"|(?:P2P|NET_GDR|SHM)_LEVEL=.+"
    # which NICs are used, and so which are not
    r"|(?:IB_HCA|SOCKET_IFNAME|NET)=.+"
    r")"
)
MULTICAST = "NCCL_NVLS_ENABLE"
"""NVLink multicast; where it was set off no test ever switches it on, as that can hang the host."""


def protects(name: str, value: str) -> bool:
    """Whether a variable with this value protects something, or switches hardware off."""
    return _OFF.fullmatch(f"{name}={value.strip()}") is not None


def protecting(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that protect something, or switch hardware off."""
    kept = {}
    for name, value in variables.items():
        if protects(name, value):
            kept[name] = value
    return kept


def multicast_is_off(variables: Mapping[str, str]) -> bool:
    """Whether NVLink multicast was switched off."""
    return protects(MULTICAST, variables.get(MULTICAST, ""))


def enables_multicast(env: Mapping[str, str], without: Iterable[str]) -> bool:
    """Whether a setting would switch NVLink multicast on, or use it."""
    if MULTICAST in without or not protects(MULTICAST, env.get(MULTICAST, "0")):
        return True
    algorithms = env.get("NCCL_ALGO", "").upper()
    # what follows a ^ is excluded
    return "NVLS" in algorithms and not algorithms.startswith("^")


def left_in_words(kept: Mapping[str, str]) -> str:
    """``Set here: NCCL_P2P_DISABLE=1; it protects or …, so it is left.``; empty for none."""
    if not kept:
        return ""
    named = ", ".join(f"{name}={value}" for name, value in sorted(kept.items()))
    if len(kept) == 1:
        return f"Set here: {named}; it protects or switches off hardware, so it is left."
    return f"Set here: {named}; they protect or switch off hardware, so they are left."
