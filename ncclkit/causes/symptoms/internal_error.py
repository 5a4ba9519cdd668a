"""NCCL reports an internal error

What it means
    A check inside NCCL failed, most often while it connects the ranks: no usable interface, an
    answer that does not fit, a topology it cannot read.  Despite its name and its request to
    report it, the reason is usually in the machine's settings, not in NCCL.

Whom not to believe
    "please report this issue to the NCCL developers" does not prove a bug.  Ranks whose last
    error is a closed connection only follow.  A hint to set NCCL_DEBUG is meant: without it the
    line says nothing.

What to get
    The first NCCL WARN over all ranks with NCCL_DEBUG=INFO, and the "-> 3" lines after it,
    which name file and line.  NCCL_SOCKET_IFNAME against `ip -br addr` on every host.  The line
    "NCCL version" of every rank: it must be the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "internal_error"

WORDS: tuple[str, ...] = (
    r"\bncclInternalError\b",
    r"NCCL_ERROR_INTERNAL",
    r"\binternal error - please report\b",
    r"\b[NR]CCL\b.{0,160}\binternal error\b",
)

SUSPECTS: Mapping[str, str] = {
    "ifname_not_found": "the filter leaves no interface, so the bootstrap has no address",
    "wrong_interface": "the bootstrap goes over an interface that the others do not reach",
    "version_mismatch": "the ranks speak different versions of NCCL's messages",
    "nccl_bug": "a defect of this version, such as a foreign connection on its port",
    "cumem_container": "handles of memory cannot be shared between these containers",
    "net_plugin": "the plugin answers wrongly, or only some hosts load it",
    "bad_env_value": "a forced algorithm or graph leaves nothing that NCCL could use",
}
