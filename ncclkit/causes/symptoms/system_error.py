"""NCCL reports an unhandled system error

What it means
    A call to the operating system, or to the network library, failed: a socket, shared memory,
    memory locking, a file.  NCCL passes on one word for all of them, and the reason is in a
    NCCL WARN line above it.  The GPUs are seldom at fault.

Whom not to believe
    The exception of PyTorch: it says the same for thirty reasons.  Other ranks that report a
    closed connection follow the first one.  "System call (e.g. socket, malloc) or external
    library call failed" is a list of examples.

What to get
    The run again with NCCL_DEBUG=WARN (INFO if there is no line): the last NCCL WARN before the
    error names the call.  Then what it names: `df -h /dev/shm`, `ulimit -l -n`, `ip addr`
    against NCCL_SOCKET_IFNAME, ibstat.  In a container compare the same outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "system_error"

WORDS: tuple[str, ...] = (
    r"\bunhandled system error\b",
    r"\bncclSystemError\b",
    r"NCCL_ERROR_SYSTEM_ERROR",
    r"\breported System error\b",
)

SUSPECTS: Mapping[str, str] = {
    "shm_too_small": "shared memory segments do not fit in /dev/shm, most often in a container",
    "wrong_interface": "the socket goes to an address that the other node does not reach",
    "ifname_not_found": "the named interface does not exist on this host",
    "ib_config": "setting up the queue pair over InfiniBand or RoCE fails",
    "memlock_limit": "the card may not register memory under this limit",
    "fd_limit": "no descriptor is left for a further socket or file",
    "version_mismatch": "the ranks' NCCL versions do not understand each other's messages",
    "bad_env_value": "a variable asks for buffers or a network that the system cannot give",
}
