"""Which facts and variables must agree between the hosts of a job.

It tells how they are compared, and what a difference means.

A normalizer takes the value and all facts of its host, and gives what is equal on hosts that are
equal; None where this host has nothing to compare.  Names, addresses and order of one host are left
behind.  A set stands for things; only those that not all hosts have need to be named.  It may raise
on values of an unexpected shape, as facts can come from a file.  A fact that stands neither in
`RULES` nor in `NOT_COMPARED` would be compared by nobody, so a test holds both against
docs/facts.md; variables have rules of their own.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Literal

from ncclkit.agent.digits import is_whole
from ncclkit.core.model import Fact

Host = Mapping[str, Fact]
"""The facts of one host by name."""
Form = Callable[[Any, Host], Any]


def unchanged(value: Any, host: Host) -> Any:
    """The value as it is."""
    return value


def count(value: Any, host: Host) -> int:
    """The number of members."""
    return len(value)


def parts(value: Any, host: Host) -> frozenset[str]:
    """The members of a list as the loader takes it, in any order."""
    return frozenset(filter(None, re.split(r"[: ]", value)))


def file_names(value: Any, host: Host) -> frozenset[str]:
    """Names of files, without their folders."""
    return frozenset(PurePosixPath(path).name for path in value)


def versions(value: Any, host: Host) -> frozenset[str]:
    """Packages with their versions."""
    return frozenset(f"{name} {version}" for name, version in value.items())


def has_any(value: Any, host: Host) -> bool:
    """Whether the number is above zero."""
    return bool(value > 0)


def first_and_last(value: Any, host: Host) -> str:
    """First and last of a range."""
    return f"{value[0]}–{value[1]}"


def swap(value: Any, host: Host) -> tuple[str, ...]:
    """What the swap areas lie on."""
    return tuple(sorted({str(row["storage"]) for row in value}))


def libraries(value: Any, host: Host) -> frozenset[str]:
    """Version of every NCCL library, and how it was found.

    The folder of the library is left out.
    """
    return frozenset(f"{row['version'] or 'of unknown version'} ({row['how']})" for row in value)


def hardware_clock_reasons(value: Any, host: Host) -> tuple[str, ...]:
    """Reasons for lower clocks that come from heat or hardware.

    A power cap is part of normal work.
    """
    reasons = []
    for reason in value:
        if "thermal" in reason or reason.startswith("hw"):
            reasons.append(reason)
    return tuple(sorted(reasons))


def remapped(value: Any, host: Host) -> str:
    """State of the row remapping, without its counts."""
    return next((word for word in ("failure", "pending") if value[word]), "in order")


def paths_between_gpus(value: Any, host: Host) -> tuple[str, ...] | None:
    """The kinds of paths that join GPUs."""
    gpus = [name for name in value if name.startswith("GPU")]
    values = set()
    for a in gpus:
        for b in value[a]:
            if b in gpus and a != b:
                values.add(value[a][b])
    return tuple(sorted(values)) or None


def paths_to_nics(value: Any, host: Host) -> tuple[str, ...] | None:
    """The kinds of path from a GPU to the NIC nearest to it."""
    rows = []
    for name, row in value.items():
        if name[:3] == "GPU":
            rows.append([path for to, path in row.items() if to.startswith("NIC")])
    nearest_paths = set()
    for paths in rows:
        if paths:
            nearest_paths.add(min(paths, key=_distance))
    return tuple(sorted(nearest_paths)) or None


def _distance(path: str) -> int:
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    if path in order:
        return order.index(path)
    return len(order)


def interface_row(value: Any, host: Host) -> Mapping[str, Any]:
    """The interface of that name."""
    return next(row for row in host["net.interfaces"].value if row["name"] == value)


def interface_kind(value: Any, host: Host) -> Any:
    """What the named interface is: physical, loopback, docker …"""
    return interface_row(value, host)["kind"]


def interface_mtu(value: Any, host: Host) -> Any:
    """The largest packet of the named interface."""
    return interface_row(value, host)["mtu"]


def interface_speed(value: Any, host: Host) -> str | None:
    """Speed of the named interface in Gb/s; None where its driver does not say."""
    rate = interface_row(value, host)["speed"]
    if rate:
        return f"{rate / 1000:g} Gb/s"
    return None


def address_family(value: Any, host: Host) -> str:
    """The kind of address that NCCL finds first on the named interface."""
    versions = set()
    for address in interface_row(value, host)["addresses"]:
        versions.add(ipaddress.ip_interface(address).version)
    if 4 in versions:
        return "IPv4"
    return "IPv6"


def resolved(value: Any, host: Host) -> str:
    """What the own host name resolves to."""
    inward = [ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in value]
    if inward and inward[0]:
        return "127.x"
    return "an address that others can reach"


def cards(value: Any, host: Host) -> tuple[str, ...]:
    """Physical interfaces that are up, by speed."""
    up = []
    for row in value:
        if row["kind"] == "physical" and row["state"] == "up":
            up.append(row["speed"])
    lines = []
    for rate, many in _counted(up):
        lines.append(f"{many} × {f'{rate / 1000:g} Gb/s' if rate else 'unknown speed'}")
    return tuple(lines)


def virtual(value: Any, host: Host) -> frozenset[str]:
    """Kinds of interface that are up and lead to no card, but for the loopback."""
    kinds = []
    for row in value:
        if row["state"] == "up":
            kinds.append(row["kind"])
    return frozenset(kinds) - {
        "physical",
        "loopback",
    }


def active_rdma_ports(value: Any, host: Host) -> list[Mapping[str, Any]]:
    """RDMA ports that carry data."""
    return [row for row in value if row["state"] == "ACTIVE"]


def has_rdma(value: Any, host: Host) -> bool:
    """Whether any RDMA port carries data."""
    return bool(active_rdma_ports(value, host))


def ports(value: Any, host: Host) -> tuple[str, ...] | None:
    """Active RDMA ports by link layer and rate."""
    known = _counted((row["link_layer"], row["rate"]) for row in active_rdma_ports(value, host))
    return tuple(f"{many} × {layer} {rate:g} Gb/s" for (layer, rate), many in known) or None


def devices(value: Any, host: Host) -> tuple[str, ...] | None:
    """Names of the RDMA devices with an active port."""
    return tuple(sorted({row["device"] for row in active_rdma_ports(value, host)})) or None


def gids(value: Any, host: Host) -> tuple[int, ...] | None:
    """Indexes of the RoCE v2 entries with an IPv4 address, over all ports."""
    found = set()
    for row in active_rdma_ports(value, host):
        for gid in row["gids"]:
            if "v2" in gid["type"] and ":ffff:" in gid["gid"]:
                found.add(gid["index"])
    return tuple(sorted(found)) or None


def _counted(items: Any) -> list[tuple[Any, int]]:
    return sorted(Counter(items).items(), key=str)


Reach = tuple[str, Mapping[str, frozenset[str]]]
"""The interface that NCCL picks, and each network of the host with the interfaces in it."""


def interface_networks(value: Any, host: Host) -> Reach:
    """The networks of NCCL's interface and of the others.

    Link-local ones are left out.
    """
    found: dict[str, frozenset[str]] = {}
    for row in host["net.interfaces"].value:
        if row["state"] != "up":
            continue
        for address in row["addresses"]:
            # IPv6 writes the interface behind a percent sign
            plain = address.partition("%")[0]
            network = ipaddress.ip_interface(plain).network
            # every host has these, so they join no two
            if network.is_loopback or network.is_link_local:
                continue
            others = found.get(str(network), frozenset())
            found[str(network)] = others | {row["name"]}
    return str(value), found


def subnets(column: Mapping[str, Reach]) -> dict[str, str | None]:
    """host → ``10.0.0.0/16``, or that NCCL picks another interface.

    It may do so although one lies in most others' network.  Hosts in networks of their own (one a
    rack) are joined by routers, and have nothing to compare.
    """
    own: Counter[str] = Counter()
    for chosen, nets in column.values():
        own.update(net for net, names in nets.items() if chosen in names)
    network, many = max(own.items(), key=lambda item: item[1], default=("", 0))
    if 2 * many <= len(column):
        return dict.fromkeys(column)
    networks = {}
    for host, (chosen, nets) in column.items():
        networks[host] = _side(network, chosen, nets.get(network))
    return networks


def _side(network: str, chosen: str, inside: frozenset[str] | None) -> str | None:
    if inside is None:
        return None
    if chosen in inside:
        return network
    return f"not {network}, where its {min(inside)} is"


Effect = Literal["breaks", "slows", "differs"]
"""A difference can break a job, can slow it down, or is only worth knowing."""

ANY = "env.<NAME>"
"""The general name of the facts that are variables."""


@dataclass(frozen=True, slots=True)
class ConsistencyRule:
    """How one fact is compared."""

    effect: Effect
    fact: str
    """General name, as in docs/facts.md."""
    title: str
    why: str
    """Why a difference matters, one sentence."""
    form: Form = unchanged
    tolerance: tuple[float, float] | None = None
    """By how many times numbers differ that are not about equal.

    Numbers differ where the next larger one is that many times as large, and larger by that much.
    """
    among: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Host → form becomes host → what is compared, where that depends on the other hosts."""


fatal, slows, differs = (
    partial(ConsistencyRule, effect) for effect in ("breaks", "slows", "differs")
)

LIBRARY = (
    "The ranks exchange structs whose layout changes between releases: they fail at the start, or"
    " hang."
)
SLOWEST = (
    "A collective goes at the pace of its slowest rank, so this host sets the speed of the whole"
    " job."
)
PROGRAM = (
    "Ranks may build different models or call other collectives, and then wait for each other"
    " forever."
)
START = "Ranks on this host fail when the job starts, and all others then wait for them."
MEASURED = "Measured while the facts were read: look again when the host is idle."

TABLE = (
    fatal("software.nccl", "NCCL", LIBRARY),
    fatal("software.torch", "torch", PROGRAM),
    fatal("software.torch.gpus", "GPUs that torch sees", START),
    fatal("software.torch.cuda", "CUDA of torch", LIBRARY),
    fatal("software.torch.backends", "backends of torch", START),
    fatal("software.frameworks", "frameworks", PROGRAM, versions),
    fatal(
        "software.nccl.plugins",
        "NCCL plug-ins",
        "A plug-in replaces the transport, and both ends must speak the same.",
        file_names,
    ),
    fatal(
        "gpu.nvidia_smi",
        "nvidia-smi",
        "Where the driver does not answer, CUDA does not start either.",
    ),
    fatal("gpu.count", "number of GPUs", "A rank without a GPU fails, and the job with it."),
    differs(
        "gpu.driver",
        "GPU driver",
        "It mostly works; NVLink SHARP and fabric features need one release.",
    ),
    differs(
        "gpu.library",
        "library of the driver",
        "Where it is of another version than the driver, CUDA does not start.",
    ),
    differs(
        "gpu.cuda",
        "CUDA of the driver",
        "A program for a newer CUDA starts on some of the hosts only.",
    ),
    slows("gpu.topology", "path from GPU to GPU", SLOWEST, paths_between_gpus),
    slows("gpu.topology", "way from GPU to NIC", SLOWEST, paths_to_nics),
    slows("gpu.p2p.read", "reading from a peer GPU", SLOWEST, paths_between_gpus),
    slows("gpu.p2p.write", "writing to a peer GPU", SLOWEST, paths_between_gpus),
    slows("gpu.p2p.nvlink", "P2P over NVLink", SLOWEST, paths_between_gpus),
    slows("gpu.p2p.pcie", "P2P over PCIe", SLOWEST, paths_between_gpus),
    differs(
        "gpu.p2p.atomics",
        "atomics on a peer GPU",
        "Symmetric-memory kernels need them.",
        paths_between_gpus,
    ),
    slows(
        "gpu.peermem",
        "nvidia_peermem",
        "Without it, GPUDirect RDMA needs DMA-BUF, or goes through memory.",
    ),
    slows("gpu.gdrcopy", "GDRCopy", "Small messages take longer where it is missing."),
    slows("gpu.<i>.model", "GPU model", SLOWEST),
    fatal(
        "gpu.<i>.memory.total",
        "GPU memory",
        "What fits on the larger GPUs runs out of memory on the smaller.",
        tolerance=(1.02, 256),
    ),
    fatal(
        "gpu.<i>.compute_mode",
        "compute mode",
        "In an exclusive mode a second process gets no context.",
    ),
    differs(
        "gpu.<i>.persistence",
        "persistence mode",
        "Without it the first CUDA call takes seconds longer.",
    ),
    fatal(
        "gpu.<i>.mig",
        "MIG",
        "NCCL ranks on MIG slices have neither NVLink nor P2P, nor the whole memory.",
    ),
    fatal(
        "gpu.<i>.ecc.uncorrected",
        "uncorrectable ECC errors",
        "The process that meets such an error is ended.",
        has_any,
    ),
    fatal(
        "gpu.<i>.remapped_rows",
        "row remapping",
        "Memory waits for a GPU reset, or cannot be repaired any more.",
        remapped,
    ),
    fatal(
        "gpu.<i>.recovery",
        "recovery that the driver asks for",
        "Until then, programs on that GPU fail.",
    ),
    differs(
        "gpu.<i>.ecc.mode", "ECC", "Without it, errors in memory become wrong values in silence."
    ),
    slows("gpu.<i>.power.limit", "power limit", SLOWEST, tolerance=(1.02, 5)),
    slows("gpu.<i>.clock.sm.max", "highest GPU clock", SLOWEST),
    slows("gpu.<i>.clock.memory.max", "highest memory clock", SLOWEST),
    slows("gpu.<i>.throttle", "lowered clocks", SLOWEST, hardware_clock_reasons),
    fatal(
        "gpu.<i>.fabric.state",
        "NVLink fabric",
        "Until its registration is completed, CUDA does not start.",
    ),
    fatal(
        "gpu.<i>.fabric.status",
        "NVLink fabric status",
        "GPUs that failed to register cannot use NVLink.",
    ),
    slows("gpu.<i>.pcie.gen.max", "PCIe generation", SLOWEST),
    slows("gpu.<i>.pcie.width", "PCIe lanes", SLOWEST),
    slows("gpu.<i>.pcie.width.max", "PCIe lanes at most", SLOWEST),
    slows(
        "gpu.<i>.numa",
        "NUMA nodes of the GPUs",
        "Pinning by number binds ranks to the wrong socket.",
    ),
    slows("gpu.<i>.nvlink.links", "active NVLinks", SLOWEST),
    slows("gpu.<i>.nvlink.speed", "NVLink speed", SLOWEST, tolerance=(1.02, 0)),
    slows(
        "net.interfaces",
        "network cards that are up",
        "A card that is down takes its share of the bandwidth.",
        cards,
    ),
    differs(
        "net.interfaces",
        "virtual interfaces",
        "NCCL or gloo may pick one of them, which leads nowhere.",
        virtual,
    ),
    fatal(
        "net.nccl.interface",
        "kind of NCCL's interface",
        "A loopback, docker or bridge interface mostly reaches no other host.",
        interface_kind,
    ),
    fatal(
        "net.nccl.interface",
        "network of NCCL's interface",
        "The hosts answer each other over different networks: the start hangs unless they are"
        " routed.",
        interface_networks,
        among=subnets,
    ),
    fatal(
        "net.nccl.interface",
        "MTU of NCCL's interface",
        "Where something between them carries the smaller size only, small messages pass and large"
        " ones hang.",
        interface_mtu,
    ),
    fatal(
        "net.nccl.interface",
        "address family of NCCL's interface",
        "One side cannot connect to the other's kind.",
        address_family,
    ),
    slows("net.nccl.interface", "speed of NCCL's interface", SLOWEST, interface_speed),
    differs(
        "net.nccl.interface",
        "name of NCCL's interface",
        "One NCCL_SOCKET_IFNAME must then match all of the names.",
    ),
    slows("net.nccl.interfaces", "interfaces that NCCL uses", SLOWEST, count),
    fatal(
        "net.gloo.interface",
        "kind of gloo's interface",
        "A loopback, docker or bridge interface mostly reaches no other host.",
        interface_kind,
    ),
    differs(
        "net.gloo.interface",
        "name of gloo's interface",
        "One GLOO_SOCKET_IFNAME must then name all of them.",
    ),
    fatal(
        "net.hostname.addresses",
        "own host name",
        "gloo and the rendezvous announce an address that only leads home.",
        resolved,
    ),
    fatal(
        "net.rdma",
        "RDMA",
        "One side falls back to sockets while the other waits on InfiniBand.",
        has_rdma,
    ),
    slows("net.rdma", "active RDMA ports", SLOWEST, ports),
    fatal(
        "net.rdma",
        "RoCE v2 GID index",
        "One NCCL_IB_GID_INDEX then means different addresses.",
        gids,
    ),
    differs(
        "net.rdma",
        "active RDMA devices",
        "One NCCL_IB_HCA must then match all of the names.",
        devices,
    ),
    slows("net.nccl.hcas", "RDMA ports that NCCL takes", SLOWEST, count),
    slows(
        "net.backlog",
        "connections that may wait",
        "Where few may, ranks that start together come late.",
    ),
    fatal(
        "net.neighbours.max",
        "remembered neighbours",
        "Where the table is smaller, hosts lose each other.",
    ),
    fatal(
        "net.conntrack.max", "followed connections", "The firewall drops what is above its limit."
    ),
    slows("net.loopback.bandwidth", "loopback speed", MEASURED, tolerance=(2, 1)),
    fatal(
        "limits.nofile.soft",
        "open files",
        "Ranks run out of sockets on the host with the lower limit.",
    ),
    differs(
        "limits.nofile.hard",
        "open files, hard limit",
        "A program can raise its limit up to here only.",
    ),
    fatal(
        "limits.memlock",
        "locked memory",
        "RDMA cannot register its buffers where the limit is low.",
    ),
    differs(
        "limits.nproc",
        "processes",
        "Data loaders and threads count against it.",
        tolerance=(1.25, 1000),
    ),
    differs(
        "limits.stack", "stack size", "Unlimited stacks make NCCL's threads take too much memory."
    ),
    fatal(
        "limits.shm.size",
        "size of /dev/shm",
        "NCCL and data loaders keep their buffers there.",
        tolerance=(1.1, 0),
    ),
    fatal(
        "limits.cgroup.memory",
        "memory limit",
        "Ranks are killed where the limit is lower.",
        tolerance=(1.02, 0),
    ),
    slows("limits.cgroup.cpus", "CPU limit", SLOWEST),
    fatal(
        "limits.cgroup.pids",
        "limit of threads",
        "NCCL and data loaders cannot start their threads above it.",
    ),
    differs(
        "limits.ptrace_scope", "ptrace", "Stacks of a hang can be read on some of the hosts only."
    ),
    differs(
        "limits.ports",
        "ephemeral ports",
        "A firewall that opens one range shuts the other out.",
        first_and_last,
    ),
    slows("cpu.total", "CPUs", SLOWEST),
    slows("cpu.usable", "usable CPUs", SLOWEST),
    slows("cpu.affinity", "CPUs of a process", SLOWEST),
    slows("cpu.model", "CPU model", SLOWEST),
    slows("cpu.numa", "NUMA nodes", "Pinning by number binds ranks to the wrong socket.", count),
    fatal(
        "memory.total",
        "memory",
        "What fits into the larger memory is killed in the smaller.",
        tolerance=(1.05, 0),
    ),
    slows(
        "memory.swap", "storage of the swap", "A rank whose memory is swapped holds up all.", swap
    ),
    differs(
        "storage.<label>.type",
        "file system",
        "Where only some hosts mount the shared storage, the others see other files.",
    ),
    slows("storage.<label>.latency", "small writes", MEASURED, tolerance=(5, 10)),
    differs(
        "software.python", "Python", "Objects that ranks send each other are pickled by version."
    ),
    differs("software.executable", "interpreter", "Another environment can hold other packages."),
    differs("software.cudnn", "cuDNN", "Ranks may compute slightly different values."),
    differs(
        "software.nccl.libraries",
        "every NCCL",
        "A second library wins as soon as the order of loading changes.",
        libraries,
    ),
    differs(
        "software.nccl.built",
        "NCCL that torch was built with",
        "torch uses what it was built with.",
    ),
    differs(
        "host.os",
        "operating system",
        "Other defaults for limits, network and drivers come with it.",
    ),
    differs(
        "host.kernel", "kernel", "Drivers and network behave differently from kernel to kernel."
    ),
    differs(
        "host.clock.synced",
        "time service",
        "Where none keeps the clock, lines cannot be put in order.",
    ),
    differs(
        "host.glibc",
        "C library",
        "A program built on the newer one does not start on the older one.",
    ),
    differs("host.container", "container", "A container has limits and a network of its own."),
    differs("host.image", "container image", "Another image brings other versions along."),
    slows(
        "host.acs", "PCI bridges with ACS", "ACS sends traffic between GPUs through the CPU.", count
    ),
    slows(
        "host.iommu", "IOMMU", "With an IOMMU, PCIe traffic between GPUs can go through the CPU."
    ),
)
"""What decides most often stands first."""

RULES = {rule.fact: tuple(other for other in TABLE if other.fact == rule.fact) for rule in TABLE}
"""General name of docs/facts.md → how it is compared."""

NOT_COMPARED = frozenset(
    {
        # its own
        *(
            "host.name",
            "gpu.<i>.uuid",
            "gpu.<i>.bus",
            "storage.<label>.path",
            "gpu.topology.nics",
        ),
        # of the moment
        *(
            "gpu.<i>.memory.free",
            "gpu.<i>.memory.holders",
            "gpu.<i>.temperature",
            "gpu.<i>.power",
        ),
        *(
            "gpu.<i>.pcie.gen",
            "limits.shm.free",
            "cpu.load",
            "cpu.pressure",
            "memory.available",
            "memory.pressure",
        ),
        *(
            "gpu.<i>.clock.sm",
            "gpu.<i>.clock.memory",
            "gpu.<i>.busy",
            "net.conntrack",
            "software.torch.locks",
        ),
        *("net.backlog.overflows", "net.neighbours.overflows"),
        *("memory.oom_kills", "storage.<label>.free", "net.loopback.cost", "net.loopback.interval"),
        "net.default",  # what matters are the interfaces that NCCL and gloo pick
        # said by the NUMA nodes, and by number and slowest of the links
        *(
            "gpu.<i>.cpus",
            "gpu.<i>.nvlink.speeds",
        ),
        "software.nccl.image",  # changes nothing
        "gpu.<i>.fabric.clique",  # hosts of other racks are in other cliques
        # judged by the causes; the variables themselves are compared
        *(
            "env.problems",
            "env.notes",
        ),
    }
)
"""Facts that differ between good hosts, or say nothing beside another one."""


def pattern_of(name: str) -> str:
    """``gpu.3.model`` → ``gpu.<i>.model``, as docs/facts.md has it."""
    first, _, rest = name.partition(".")
    if first == "gpu":
        if is_whole(rest[:1]):
            return re.sub(r"^\d+\.", "gpu.<i>.", rest)
        return name
    if first == "storage":
        return f"storage.<label>.{rest.partition('.')[2]}"
    if first == "env" and name not in ("env.problems", "env.notes"):
        return ANY
    return name


OWN = re.compile(
    r"SLURM_|(?:LOCAL_|GROUP_|ROLE_)?RANK$|TORCHELASTIC_|(?:CUDA|NVIDIA)_VISIBLE_DEVICES$"
    r"|NCCL_(?:DEBUG_FILE|TOPO_FILE)$"
)
"""Variables of one process or one host; GPUs are compared as torch sees them."""

MUST = re.compile(
    r"NCCL_(?:ALGO|PROTO|NTHREADS|(?:MIN|MAX)_(?:CTAS|(?:P2P_)?NCHANNELS|NRINGS)"
    r"|(?:LL\w*_)?BUFFSIZE|P2P_NET_CHUNKSIZE|NET|NET_PLUGIN"
    r"|P2P_(?:LEVEL|DISABLE)|SHM_DISABLE|(?:NVLS|MNNVL|COLLNET|CUMEM)_ENABLE|CROSS_NIC"
    r"|IB_(?:DISABLE|QPS_PER_CONNECTION"
    r"|SPLIT_DATA_ON_QPS)|SOCKET_FAMILY|COMM_ID|LAUNCH_\w+)$|MASTER_(?:ADDR|PORT)$|WORLD_SIZE$"
)
"""Variables that all ranks must share, by NCCL's documentation and torch's rendezvous."""

NAMES = re.compile(
    r"NCCL_IB_(?:HCA|GID_INDEX|PKEY|SL|TC|ADDR_\w+)$|(?:NCCL|GLOO|TP)_SOCKET_IFNAME$"
)
"""Variables that name or number devices, which hosts may name differently."""

PACE = re.compile(
    r"NCCL_(?:IB|NET|SOCKET|NSOCKS|BUFFSIZE|P2P|SHM|DMABUF|NVB)_|OMP_NUM_THREADS$|UCX_|FI_"
    r"|CUDA_DEVICE_MAX_CONNECTIONS$"
)
"""Variables that set the pace of one host."""


def variable(name: str) -> ConsistencyRule | None:
    """The rule for one variable; None for what is each host's own."""
    if OWN.match(name):
        return None
    if MUST.match(name):
        return fatal(
            ANY, name, "All ranks must have the same value, or they make different plans and hang."
        )
    if NAMES.match(name):
        return differs(
            ANY,
            name,
            "Right where the hosts name or number their devices differently, else a slip.",
        )
    if PACE.match(name):
        return slows(
            ANY, name, "It sets the pace of this host, and the slowest rank that of a collective."
        )
    if name.startswith("LD_"):
        return differs(ANY, name, "Another NCCL or plug-in can be found first.", parts)
    return differs(ANY, name, "A setting that one host has alone is rarely meant.")
