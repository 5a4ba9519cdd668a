"""It is slower or worse than before

What it means
    The same job was faster on another day, version or set of hosts, so the hardware can do it
    and something changed: driver, kernel module, container, NCCL, a variable, a host of the
    allocation, a neighbour on the machine.  This is a comparison, the easiest kind of search.

Whom not to believe
    Memory: get both numbers by the same command.  The change that everybody remembers is not
    the only one; an upgrade of the system also replaces driver and modules.  One slow host
    makes the whole job slow.

What to get
    The two logs with NCCL_DEBUG=INFO side by side: version, network, GDRDMA, algorithm,
    channels.  all_reduce_perf today on the hosts of then, and the old version on the hosts of
    today.  Per host: lsmod | grep peermem, driver, link rate, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "slower_than_before"

WORDS: tuple[str, ...] = (
    r"\b(?:slower|worse|lower|less)\b.{0,40}\bthan (?:before|last|previous|earlier"
    r"|v?\d{1,3}\.\d|with (?:the )?(?:old|previous))",
    r"\b(?:used to (?:work|run|be)|worked)\b.{0,60}\b(?:last (?:week|month|time)|yesterday"
    r"|before the|previously|older version|until)\b",
    r"\b(?:drop(?:s|ped)?|fell|degraded|decreased|went|down) from\b.{0,30}\bto\b.{0,20}\d",
    r"\b(?:perf(?:ormance)?|bandwidth|throughput|speed|busbw) (?:regress|degrad|drop|decreas)",
    r"\b(?:after|since)\b.{0,20}\b(?:upgrad|updat|downgrad|switching to"
    r"|moving to)\w{0,4}\b.{0,80}\b(?:slow|drop|worse|degrad|regress|lower)",
    r"\b(?:slow|drop|worse|degrad|regress|lower)\w{0,5}\b.{0,80}\b(?:after"
    r"|since)\b.{0,20}\b(?:upgrad|updat|downgrad|switching to|moving to)",
)

SUSPECTS: Mapping[str, str] = {
    "ib_config": "an upgrade took away GPU Direct RDMA or changed card or GID",
    "nccl_bug": "this version has a known regression",
    "ib_not_used": "after the change NCCL no longer finds InfiniBand and uses sockets",
    "net_plugin": "the plugin is missing, or does not fit the new version",
    "gpu_clock_limit": "a GPU is limited in power or clock since then",
    "ib_link_error": "a link came up at a lower rate, or has errors",
    "gpu_shared": "another job shares the GPUs now",
    "cpu_contention": "more processes share the cores than before",
}
