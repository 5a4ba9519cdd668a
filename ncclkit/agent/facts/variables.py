"""Variables: what is set, where (environment or nccl.conf), and what is wrong with it.

A setting may name what this host does not have, contradict another one, or do harm though forum
answers recommend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import redact
from ..digits import is_whole
from . import network, settings
from .machine import Absent, Fact, Machine, Unread, attempt, known
from .settings import Problem, integer, problem

Ports = list[dict[str, Any]]

FILES = {
    "NCCL_CONF_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_NET_PLUGIN",
    "NCCL_TOPO_FILE",
    "NCCL_TUNER_PLUGIN",
    "LD_PRELOAD",
}
"""Variables that name a file which must be there, if they hold a path."""

WRITTEN = set(
    """
NCCL_DEBUG_FILE NCCL_GRAPH_DUMP_FILE NCCL_TOPO_DUMP_FILE TORCH_FR_DUMP_TEMP_FILE
TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_FR_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE
""".split()
)
"""Variables that name a file, or the beginning of one, that is written to."""


def socket_interfaces(values: Mapping[str, str], entries: network.Entries) -> Iterator[Problem]:
    """Variables that name interfaces which this host does not have."""
    checks = (
        ("NCCL_SOCKET_IFNAME", lambda: network.nccl_picks(entries, values)),
        (
            "GLOO_SOCKET_IFNAME",
            lambda: network.gloo_picks_named(entries, values["GLOO_SOCKET_IFNAME"]),
        ),
    )
    for name, choice in checks:
        if values.get(name):
            try:
                choice()
            except Unread as why:
                yield problem(
                    "device",
                    name,
                    values[name],
                    str(why),
                    "name an interface that has this host's address",
                )


def rdma_devices(values: Mapping[str, str], ports: Ports) -> Iterator[Problem]:
    """RDMA devices that are missing or down, and rows of GIDs that are empty.

    A device is down where its ports are.
    """
    having = sorted({port["device"] for port in ports})
    if values.get("NCCL_NET", "").upper() == "IB" and not having:
        yield problem(
            "device",
            "NCCL_NET",
            "IB",
            "this host has no RDMA device",
            "unset it, or load the driver",
        )
    wanted = values.get("NCCL_IB_HCA", "")
    if wanted:
        yield from _hca_problems(wanted, ports, having)
    index = values.get("NCCL_IB_GID_INDEX", "").strip()
    if is_whole(index):
        yield from _gid_problems(
            index, [port for port in ports if network.accepts(wanted, port["device"], port["port"])]
        )


def _hca_problems(wanted: str, ports: Ports, having: list[str]) -> Iterator[Problem]:
    items = [item.split(":")[0] for item in wanted.lstrip("^=").split(",") if item]
    absent = [item for item in items if not any(device.startswith(item) for device in having)]
    taken = [port for port in ports if network.accepts(wanted, port["device"], port["port"])]
    hint = "name devices that /sys/class/infiniband lists"
    if absent and not wanted.startswith("^"):
        what = "%s not among the RDMA devices here: %s" % (
            ", ".join(absent),
            ", ".join(having) or "none",
        )
        yield problem("device", "NCCL_IB_HCA", wanted, what, hint)
    elif having and not taken:
        what = "it takes none of the RDMA devices here: %s" % ", ".join(having)
        yield problem("device", "NCCL_IB_HCA", wanted, what, hint)
    elif taken and not any(port["state"] == "ACTIVE" for port in taken):
        states = ", ".join(
            "%s:%d is %s" % (port["device"], port["port"], port["state"] or "unknown")
            for port in taken
        )
        yield problem(
            "device",
            "NCCL_IB_HCA",
            wanted,
            "no active port is left: %s" % states,
            "fix the link, or unset it",
        )


def _gid_problems(index: str, ports: Ports) -> Iterator[Problem]:
    """Empty rows of GIDs, of RoCE only: InfiniBand does well with row 0."""
    for port in ports:
        if port["state"] != "ACTIVE" or port["link_layer"] != "Ethernet":
            continue
        kinds = {row["index"]: row["type"] for row in port["gids"]}
        kind = kinds.get(int(index))
        where = "row %s of the GID table of %s" % (index, port["device"])
        if kind is None:
            hint = "unset it: since 2.21 NCCL finds the row itself; filled are %s" % (
                sorted(kinds) or "none"
            )
            yield problem("device", "NCCL_IB_GID_INDEX", index, where + " is empty", hint)
        elif kind.endswith("v1"):
            hint = "unset it, or choose a row of RoCE v2"
            yield problem(
                "harmful",
                "NCCL_IB_GID_INDEX",
                index,
                where + " is RoCE v1, which no router carries",
                hint,
            )


def visible_gpus(values: Mapping[str, str], machine: Machine) -> Iterator[Problem]:
    """CUDA_VISIBLE_DEVICES beyond the GPUs of this host."""
    wanted = values.get("CUDA_VISIBLE_DEVICES", "")
    try:
        count = len(machine.names("/dev", r"nvidia\d+"))
    except Unread:
        return  # the GPUs could not be counted, which gpu.count says
    absent = [
        item for item in re.findall(r"(?:^|,)\s*(\d+)\s*(?=,|$)", wanted) if int(item) >= count
    ]
    if absent:
        what = "this host has %d GPUs, so %s does not exist and ends the list for CUDA" % (
            count,
            absent[0],
        )
        yield problem(
            "device", "CUDA_VISIBLE_DEVICES", wanted, what, "name indices below %d" % count
        )


def named_files(values: Mapping[str, str], machine: Machine) -> Iterator[Problem]:
    """Files that must exist, and folders that something is to be written to."""
    for name in sorted(FILES & set(values)):
        # LD_PRELOAD may name several
        for path in re.split(r"[:\s]+", values[name]) if name == "LD_PRELOAD" else [values[name]]:
            folder, _, file = path.rpartition("/")
            if path.startswith("/") and _is_absent(machine, folder or "/", file):
                what = (
                    "there is no file %s, which is ignored without a warning or ends the job" % path
                )
                yield problem("path", name, values[name], what, "correct the path, or unset it")
    for name in sorted(WRITTEN & set(values)):
        folder = values[name].rpartition("/")[0]
        parent, _, last = folder.rpartition("/")
        # NCCL puts host and pid in the place of %h and %p
        if (
            folder.startswith("/")
            and "%" not in folder
            and _is_absent(machine, parent or "/", last)
        ):
            what = "there is no folder %s, so nothing can be written there" % folder
            yield problem(
                "path", name, values[name], what, "make the folder on every host, or choose another"
            )


def _is_absent(machine: Machine, folder: str, name: str) -> bool:
    """Whether a folder certainly has no such file.

    What may not be looked at counts as there.
    """
    try:
        return not machine.names(folder, re.escape(name))
    except Unread as why:
        return isinstance(why, Absent)


Values = Mapping[str, str]
LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")

TRUE, FALSE = "1|y|yes|t|true", "0|n|no|f|false"
DEBUGGING = "for debugging only: unset it in normal runs"
HARMFUL = {
    "NCCL_P2P_DISABLE": (
        "1",
        (
            "it switches off NVLink and PCIe peer copies, so GPUs talk through host memory; "
            "unset it unless a test showed that peer copies are broken here"
        ),
    ),
    "NCCL_SHM_DISABLE": (
        "1",
        "GPUs of one host without peer copies then talk over the network; unset it",
    ),
    "NCCL_IB_DISABLE": (
        "1",
        "this host has an active RDMA port, and NCCL will use TCP sockets instead; unset it",
    ),
    "NCCL_NET_GDR_LEVEL": (
        "0|LOC",
        "RDMA then copies through host memory instead of out of the GPU; unset it",
    ),
    "NCCL_ALGO": (
        "[^;:^]+",
        "it fixes for every size what NCCL chooses by size; unset it after the test",
    ),
    "NCCL_PROTO": (
        "[^;:^]+",
        "it fixes for every size what NCCL chooses by size; unset it after the test",
    ),
    "NCCL_IGNORE_DISABLED_P2P": (
        "1",
        "it hides the warning that NVLink peers cannot reach each other; unset it",
    ),
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel launch then waits for the GPU; " + DEBUGGING),
    "TORCH_DISTRIBUTED_DEBUG": (
        "DETAIL",
        "every collective is first compared between ranks; " + DEBUGGING,
    ),
    "TORCH_NCCL_BLOCKING_WAIT": (
        TRUE,
        "wait() then blocks Python and the watchdog ends no stuck job; unset it",
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        "0",
        "after an error the job then hangs instead of ending; unset it",
    ),
    "TORCH_NCCL_ENABLE_MONITORING": (
        FALSE,
        "a watchdog that is stuck itself is then never noticed; unset it",
    ),
}
"""Name → (values, why): settings that forum answers recommend and that cost bandwidth, or hide
faults."""

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
"""(kind, name, its values, other name, its values or "" for unset): settings that exclude each
other."""

BOUNDS = (
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)


def check_together(values: Values, rdma: bool) -> Iterator[Problem]:
    """Rows of every rule that these settings break.

    `rdma`: this host has an active RDMA port.
    """
    for kind, name, own, other, theirs in RULES:
        if _value_is(values, name, own) and re.fullmatch(
            theirs, values.get(other, "").strip(), re.I
        ):
            if values.get(other):
                against = "%s=%s" % (other, values[other])
            else:
                against = "%s being unset" % other
            what = "without effect"
            if kind == "conflict":
                what = "impossible"
            if values.get(other):
                hint = "unset one of the two"
            else:
                hint = "set %s too, or unset this" % other
            yield problem(kind, name, values[name], "%s with %s" % (what, against), hint)
    for name, (own, why) in HARMFUL.items():
        if _value_is(values, name, own) and (rdma or name not in HARMFUL_WITH_RDMA):
            yield problem("harmful", name, values[name], "costs speed or hides faults", why)
    yield from _number_problems(values)
    yield from _several_hosts(values)


def _value_is(values: Values, name: str, pattern: str) -> bool:
    return name in values and bool(re.fullmatch(pattern, values[name].strip(), re.I))


def _number_problems(values: Values) -> Iterator[Problem]:
    """RANK outside WORLD_SIZE, a minimum above its maximum, too many sockets."""
    known = {name: integer(value) for name, value in values.items() if name in settings.NUMBERS}
    numbers = {name: value for name, value in known.items() if value is not None}
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if {rank, size} <= set(numbers) and numbers[rank] >= numbers[size]:
            what = "not below %s=%d" % (size, numbers[size])
            hint = "ranks count from 0 to %s - 1" % size
            yield problem("value", rank, values[rank], what, hint)
    for low, high in BOUNDS:
        if {low, high} <= set(numbers) and numbers[low] > numbers[high]:
            what = "above %s=%d, so one of the two is ignored" % (high, numbers[high])
            yield problem("overruled", low, values[low], what, "set at most one of the two")
    threads = numbers.get("NCCL_SOCKET_NTHREADS", 1)
    sockets = numbers.get("NCCL_NSOCKS_PERTHREAD", 1)
    if threads * sockets > 64:
        what = "%d threads with %d sockets each: NCCL opens at most 64 and lowers it" % (
            threads,
            sockets,
        )
        name = "NCCL_SOCKET_NTHREADS"
        if sockets > 1:
            name = "NCCL_NSOCKS_PERTHREAD"
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
        yield problem(
            "conflict",
            "MASTER_ADDR",
            address,
            what,
            "set it to the name or address of rank 0's host",
        )
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        # a leading = asks for just this name
        if values.get(name, "").lstrip("=") == "lo":
            what = "the job spans several hosts, and loopback reaches none of the others"
            yield problem(
                "conflict",
                name,
                values[name],
                what,
                "name the interface that the hosts share, or unset it",
            )


PROBLEMS = ("misspelt", "value", "device", "path", "conflict")
"""Kinds of ``env.problems``: the setting has no effect, or something fails because of it."""

NOTES = ("unknown", "renamed", "shadowed", "overruled", "harmful", "unchecked")
"""Kinds of ``env.notes``: worth knowing, but not an error by themselves."""


def variable_facts(machine: Machine) -> Iterator[Fact]:
    """``env.<NAME>`` of every variable in scope.

    Settings in ``env.problems`` have no effect or fail, those in ``env.notes`` are legal.
    """
    set_here, rows = settings.in_force(machine)
    for name, (value, source) in sorted(set_here.items()):
        yield known("env." + name, redact.clean(value, name), source=source)
    found = attempt(
        "env.problems",
        lambda: rows + problems(machine, set_here),
        source="ncclkit's variable tables",
    )
    for name, kinds in (("env.problems", PROBLEMS), ("env.notes", NOTES)):
        if found["value"] is None:
            mine = None
        else:
            mine = [row for row in found["value"] if row["kind"] in kinds]
        yield {**found, "name": name, "value": mine}


def problems(machine: Machine, set_here: settings.Settings) -> list[Problem]:
    """What is wrong with the settings.

    It comes as rows ``{kind, name, value, problem, hint}``, whose hint names a file at fault.
    """
    values = {name: value for name, (value, _) in set_here.items()}
    rows = [
        row for name, value in sorted(values.items()) for row in settings.check_value(name, value)
    ]
    ports: list[dict[str, Any]] = []
    try:
        ports = network.rdma_ports(machine)
        rows += rdma_devices(values, ports)
    except Unread as why:
        rows += _unchecked_problems(
            values,
            ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
            "the RDMA devices could not be read: %s" % why,
        )
    rows += visible_gpus(values, machine)
    rows += named_files(values, machine)
    rows += check_together(values, any(port["state"] == "ACTIVE" for port in ports))
    try:
        rows += socket_interfaces(values, network.addresses(machine))
    except Unread as why:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        rows += _unchecked_problems(values, names, "the interfaces could not be read: %s" % why)
    return [_placed_problem(row, set_here[row["name"]][1]) for row in rows]


def _unchecked_problems(values: Mapping[str, str], names: Iterable[str], why: str) -> list[Problem]:
    return [
        settings.problem("unchecked", name, values[name], why, "")
        for name in names
        if name in values
    ]


def _placed_problem(row: Problem, source: str) -> Problem:
    """The row without secrets; one about a file's line says which file."""
    if source == "environment":
        hint = row["hint"]
    else:
        hint = "%s (set in %s)" % (row["hint"], source)
    return {**row, "value": redact.clean(row["value"], row["name"]), "hint": hint}
