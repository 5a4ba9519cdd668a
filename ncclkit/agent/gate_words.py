"""What is unlike the baseline, in words: what a fact is, what it is here, and what was expected."""

from __future__ import annotations

import re
from typing import Any

MEANINGS = (
    (r"cpu\.total", "CPUs online"),
    (r"memory\.total", "bytes of memory"),
    (r"gpu\.count", "GPUs"),
    (r"gpu\.driver", "version of the NVIDIA driver"),
    (r"gpu\.library", "version of the driver's library"),
    (r"gpu\.peermem", "the module by which RDMA reaches GPUs"),
    (r"gpu\.\d+\.power\.limit", "its power limit"),
    (r"gpu\.\d+\.clock\.sm\.max", "its highest clock"),
    (r"gpu\.\d+\.nvlink\.links", "its NVLinks"),
    (r"gpu\.\d+\.memory\.total", "its memory"),
    (r"gpu\.\d+\.numa", "the NUMA node that it is at"),
    (r"host\.kernel", "release of the kernel"),
    (r"host\.iommu", "whether the IOMMU is on"),
    (r"limits\.ports", "first and last port of outgoing connections"),
    (r"limits\.memlock", "bytes of locked memory that are allowed"),
    (r"limits\.nofile\.hard", "open files that are allowed"),
    (r"limits\.nproc", "processes that a user may have"),
    (r"limits\.shm\.size", "size of /dev/shm in bytes"),
    (r"limits\.cgroup\.memory", "bytes of memory that its control group allows"),
)
"""What a fact is that its name does not tell everybody."""


def unlike_baseline(name: str, value: Any, expected: Any, at_least: bool = False) -> str:
    """``cpu.total (CPUs online) is 2 here, but the baseline expects 64``."""
    least = ""
    if at_least and expected != -1:
        least = "at least "
    return "%s is %s here, but the baseline expects %s%s" % (
        _fact_in_words(name),
        _value_in_words(value),
        least,
        _value_in_words(expected),
    )


def _fact_in_words(name: str) -> str:
    for pattern, meaning in MEANINGS:
        if re.fullmatch(pattern, name):
            return "%s (%s)" % (name, meaning)
    return name


def _value_in_words(value: Any) -> str:
    # as limits say it
    if value == -1:
        return "unlimited"
    return str(value)
