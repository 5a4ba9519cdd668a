"""Settings that contradict or overrule each other, and those that forum answers recommend and that do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from . import names
from .checks import Problem, integer, problem

Values = Mapping[str, str]
LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")

TRUE, FALSE = "1|y|yes|t|true", "0|n|no|f|false"
DEBUGGING = "for debugging only: unset it in normal runs"
HARMFUL = {
    "NCCL_P2P_DISABLE": (
        "1",
        "it switches off NVLink and PCIe peer copies, so GPUs talk through host memory; "
        "unset it unless a test showed that peer copies are broken here",
    ),
    "NCCL_SHM_DISABLE": ("1", "GPUs of one host without peer copies then talk over the network; unset it"),
    "NCCL_IB_DISABLE": ("1", "this host has an active RDMA port, and NCCL will use TCP sockets instead; unset it"),
    "NCCL_NET_GDR_LEVEL": ("0|LOC", "RDMA then copies through host memory instead of out of the GPU; unset it"),
    "NCCL_ALGO": ("[^;:^]+", "it fixes for every size what NCCL chooses by size; unset it after the test"),
    "NCCL_PROTO": ("[^;:^]+", "it fixes for every size what NCCL chooses by size; unset it after the test"),
    "NCCL_IGNORE_DISABLED_P2P": ("1", "it hides the warning that NVLink peers cannot reach each other; unset it"),
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel launch then waits for the GPU; " + DEBUGGING),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is first compared between ranks; " + DEBUGGING),
    "TORCH_NCCL_BLOCKING_WAIT": (TRUE, "wait() then blocks Python and the watchdog ends no stuck job; unset it"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "after an error the job then hangs instead of ending; unset it"),
    "TORCH_NCCL_ENABLE_MONITORING": (FALSE, "a watchdog that is stuck itself is then never noticed; unset it"),
}
"""Name → (values, why): settings that forum answers recommend and that cost bandwidth, or hide faults."""

HARMFUL_WITH_RDMA = ("NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL")
"""Of these, what harms only where an RDMA port is active."""

RULES = (
    ("conflict", "NCCL_NET", "IB", "NCCL_IB_DISABLE", "1"),
    ("conflict", "NCCL_ALGO", "NVLS(TREE)?", "NCCL_NVLS_ENABLE", "0"),
    ("overruled", "NCCL_IB_HCA", ".+", "NCCL_IB_DISABLE", "1"),
    ("overruled", "NCCL_IB_HCA", ".+", "NCCL_NET", "Socket"),
    ("overruled", "NCCL_IB_GID_INDEX", ".+", "NCCL_IB_DISABLE", "1"),
    ("overruled", "NCCL_P2P_LEVEL", ".+", "NCCL_P2P_DISABLE", "1"),
    ("overruled", "NCCL_DEBUG_SUBSYS", ".+", "NCCL_DEBUG", ""),
    ("overruled", "NCCL_DEBUG_FILE", ".+", "NCCL_DEBUG", ""),
    ("overruled", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "[123]", "TORCH_NCCL_BLOCKING_WAIT", TRUE),
    ("overruled", "TORCH_NCCL_DUMP_ON_TIMEOUT", TRUE, "TORCH_NCCL_TRACE_BUFFER_SIZE", "0"),
)
"""(kind, name, its values, other name, its values or "" for unset): settings that exclude each other."""

BOUNDS = (
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)


def check(values: Values, rdma: bool) -> Iterator[Problem]:
    """Rows of every rule that these settings break; `rdma`: this host has an active RDMA port."""
    for kind, name, own, other, theirs in RULES:
        if _is(values, name, own) and re.fullmatch(theirs, values.get(other, "").strip(), re.I):
            against = "%s=%s" % (other, values[other]) if values.get(other) else "%s being unset" % other
            what = "impossible" if kind == "conflict" else "without effect"
            hint = "unset one of the two" if values.get(other) else "set %s too, or unset this" % other
            yield problem(kind, name, values[name], "%s with %s" % (what, against), hint)
    for name, (own, why) in HARMFUL.items():
        if _is(values, name, own) and (rdma or name not in HARMFUL_WITH_RDMA):
            yield problem("harmful", name, values[name], "costs speed or hides faults", why)
    yield from _numbers(values)
    yield from _several_hosts(values)


def _is(values: Values, name: str, pattern: str) -> bool:
    return name in values and bool(re.fullmatch(pattern, values[name].strip(), re.I))


def _numbers(values: Values) -> Iterator[Problem]:
    """RANK outside WORLD_SIZE, a minimum above its maximum, too many sockets."""
    known = {name: integer(value) for name, value in values.items() if name in names.NUMBERS}
    numbers = {name: value for name, value in known.items() if value is not None}
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if {rank, size} <= set(numbers) and numbers[rank] >= numbers[size]:
            what, hint = "not below %s=%d" % (size, numbers[size]), "ranks count from 0 to %s - 1" % size
            yield problem("value", rank, values[rank], what, hint)
    for low, high in BOUNDS:
        if {low, high} <= set(numbers) and numbers[low] > numbers[high]:
            what = "above %s=%d, so one of the two is ignored" % (high, numbers[high])
            yield problem("overruled", low, values[low], what, "set at most one of the two")
    threads, sockets = numbers.get("NCCL_SOCKET_NTHREADS", 1), numbers.get("NCCL_NSOCKS_PERTHREAD", 1)
    if threads * sockets > 64:
        what = "%d threads with %d sockets each: NCCL opens at most 64 and lowers it" % (threads, sockets)
        name = "NCCL_NSOCKS_PERTHREAD" if sockets > 1 else "NCCL_SOCKET_NTHREADS"
        yield problem("overruled", name, values[name], what, "keep their product at 64 or less")


def _several_hosts(values: Values) -> Iterator[Problem]:
    """Loopback where the job spans hosts."""
    nodes = integer(values.get("SLURM_NNODES", "1")) or 1
    ranks, here = (integer(values.get(name, "")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if nodes < 2 and not (ranks and here and ranks > here):
        return
    address = values.get("MASTER_ADDR", "").strip()
    if LOOPBACK.fullmatch(address):
        what = "the job spans several hosts, and each would look for rank 0 on itself"
        yield problem("conflict", "MASTER_ADDR", address, what, "set it to the name or address of rank 0's host")
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if values.get(name, "").lstrip("=") == "lo":
            what = "the job spans several hosts, and loopback reaches none of the others"
            yield problem("conflict", name, values[name], what, "name the interface that the hosts share, or unset it")
