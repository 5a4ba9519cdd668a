"""Which facts must agree between the hosts of a job, and what follows where they do not.

A fact that stands neither in `RULES` nor in `APART` would be compared by nobody, so a test holds both against
docs/facts.md; variables have rules of their own.
"""

from __future__ import annotations

from ncclkit.consistency import forms
from ncclkit.consistency.rules import Rule

LIBRARY = "The ranks exchange structs whose layout changes between releases: they fail at the start, or hang."
SLOWEST = "A collective goes at the pace of its slowest rank, so this host sets the speed of the whole job."
PROGRAM = "Ranks may build different models or call other collectives, and then wait for each other forever."
START = "Ranks on this host fail when the job starts, and all others then wait for them."
MEASURED = "Measured while the facts were read: look again when the host is idle."

TABLE = (
    Rule("software.nccl", "NCCL", "breaks", LIBRARY),
    Rule("software.torch", "torch", "breaks", PROGRAM),
    Rule("software.torch.gpus", "GPUs that torch sees", "breaks", START),
    Rule("software.torch.cuda", "CUDA of torch", "breaks", LIBRARY),
    Rule("software.torch.backends", "backends of torch", "breaks", START),
    Rule("software.frameworks", "frameworks", "breaks", PROGRAM, forms.versions),
    Rule(
        "software.nccl.plugins",
        "NCCL plug-ins",
        "breaks",
        "A plug-in replaces the transport, and both ends must speak the same.",
        forms.file_names,
    ),
    Rule("gpu.nvidia_smi", "nvidia-smi", "breaks", "Where the driver does not answer, CUDA does not start either."),
    Rule("gpu.count", "number of GPUs", "breaks", "A rank without a GPU fails, and the job with it."),
    Rule("gpu.driver", "GPU driver", "differs", "It mostly works; NVLink SHARP and fabric features need one release."),
    Rule(
        "gpu.library",
        "library of the driver",
        "differs",
        "Where it is of another version than the driver, CUDA does not start.",
    ),
    Rule("gpu.cuda", "CUDA of the driver", "differs", "A program for a newer CUDA starts on some of the hosts only."),
    Rule("gpu.topology", "way between GPUs", "slows", SLOWEST, forms.between_gpus),
    Rule("gpu.topology", "way from GPU to NIC", "slows", SLOWEST, forms.to_nics),
    Rule("gpu.p2p.read", "reading from a peer GPU", "slows", SLOWEST, forms.between_gpus),
    Rule("gpu.p2p.write", "writing to a peer GPU", "slows", SLOWEST, forms.between_gpus),
    Rule("gpu.p2p.nvlink", "P2P over NVLink", "slows", SLOWEST, forms.between_gpus),
    Rule("gpu.p2p.pcie", "P2P over PCIe", "slows", SLOWEST, forms.between_gpus),
    Rule(
        "gpu.p2p.atomics", "atomics on a peer GPU", "differs", "Symmetric-memory kernels need them.", forms.between_gpus
    ),
    Rule("gpu.peermem", "nvidia_peermem", "slows", "Without it, GPUDirect RDMA needs DMA-BUF, or goes through memory."),
    Rule("gpu.gdrcopy", "GDRCopy", "slows", "Small messages take longer where it is missing."),
    Rule("gpu.<i>.model", "GPU model", "slows", SLOWEST),
    Rule(
        "gpu.<i>.memory.total",
        "GPU memory",
        "breaks",
        "What fits on the larger GPUs runs out of memory on the smaller.",
        apart=(1.02, 256),
    ),
    Rule("gpu.<i>.compute_mode", "compute mode", "breaks", "In an exclusive mode a second process gets no context."),
    Rule("gpu.<i>.persistence", "persistence mode", "differs", "Without it the first CUDA call takes seconds longer."),
    Rule("gpu.<i>.mig", "MIG", "breaks", "NCCL ranks on MIG slices have neither NVLink nor P2P, nor the whole memory."),
    Rule(
        "gpu.<i>.ecc.uncorrected",
        "uncorrectable ECC errors",
        "breaks",
        "The process that meets such an error is ended.",
        forms.some,
    ),
    Rule(
        "gpu.<i>.remapped_rows",
        "row remapping",
        "breaks",
        "Memory waits for a GPU reset, or cannot be repaired any more.",
        forms.remapped,
    ),
    Rule("gpu.<i>.recovery", "recovery that the driver asks for", "breaks", "Until then, programs on that GPU fail."),
    Rule("gpu.<i>.ecc.mode", "ECC", "differs", "Without it, errors in memory become wrong values in silence."),
    Rule("gpu.<i>.power.limit", "power limit", "slows", SLOWEST, apart=(1.02, 5)),
    Rule("gpu.<i>.clock.sm.max", "highest GPU clock", "slows", SLOWEST),
    Rule("gpu.<i>.clock.memory.max", "highest memory clock", "slows", SLOWEST),
    Rule("gpu.<i>.throttle", "lowered clocks", "slows", SLOWEST, forms.worrying),
    Rule(
        "gpu.<i>.fabric.state", "NVLink fabric", "breaks", "Until its registration is completed, CUDA does not start."
    ),
    Rule("gpu.<i>.fabric.status", "NVLink fabric status", "breaks", "GPUs that failed to register cannot use NVLink."),
    Rule("gpu.<i>.pcie.gen.max", "PCIe generation", "slows", SLOWEST),
    Rule("gpu.<i>.pcie.width", "PCIe lanes", "slows", SLOWEST),
    Rule("gpu.<i>.pcie.width.max", "PCIe lanes at most", "slows", SLOWEST),
    Rule("gpu.<i>.numa", "NUMA nodes of the GPUs", "slows", "Pinning by number binds ranks to the wrong socket."),
    Rule("gpu.<i>.nvlink.links", "active NVLinks", "slows", SLOWEST),
    Rule("gpu.<i>.nvlink.speed", "NVLink speed", "slows", SLOWEST, apart=(1.02, 0)),
    Rule(
        "net.interfaces",
        "network cards that are up",
        "slows",
        "A card that is down takes its share of the bandwidth.",
        forms.cards,
    ),
    Rule(
        "net.interfaces",
        "virtual interfaces",
        "differs",
        "NCCL or gloo may pick one of them, which leads nowhere.",
        forms.virtual,
    ),
    Rule(
        "net.nccl.interface",
        "kind of NCCL's interface",
        "breaks",
        "A loopback, docker or bridge interface mostly reaches no other host.",
        forms.kind,
    ),
    Rule(
        "net.nccl.interface",
        "network of NCCL's interface",
        "breaks",
        "The hosts answer each other over different networks: the start hangs unless they are routed.",
        forms.reach,
        among=forms.networks,
    ),
    Rule(
        "net.nccl.interface",
        "MTU of NCCL's interface",
        "breaks",
        "Where something between them carries the smaller size only, small messages pass and large ones hang.",
        forms.mtu,
    ),
    Rule(
        "net.nccl.interface",
        "address family of NCCL's interface",
        "breaks",
        "One side cannot connect to the other's kind.",
        forms.family,
    ),
    Rule("net.nccl.interface", "speed of NCCL's interface", "slows", SLOWEST, forms.speed),
    Rule(
        "net.nccl.interface",
        "name of NCCL's interface",
        "differs",
        "One NCCL_SOCKET_IFNAME must then match all of the names.",
    ),
    Rule("net.nccl.interfaces", "interfaces that NCCL uses", "slows", SLOWEST, forms.count),
    Rule(
        "net.gloo.interface",
        "kind of gloo's interface",
        "breaks",
        "A loopback, docker or bridge interface mostly reaches no other host.",
        forms.kind,
    ),
    Rule(
        "net.gloo.interface",
        "name of gloo's interface",
        "differs",
        "One GLOO_SOCKET_IFNAME must then name all of them.",
    ),
    Rule(
        "net.hostname.addresses",
        "own host name",
        "breaks",
        "gloo and the rendezvous announce an address that only leads home.",
        forms.resolved,
    ),
    Rule(
        "net.rdma",
        "RDMA",
        "breaks",
        "One side falls back to sockets while the other waits on InfiniBand.",
        forms.has_rdma,
    ),
    Rule("net.rdma", "active RDMA ports", "slows", SLOWEST, forms.ports),
    Rule(
        "net.rdma", "RoCE v2 GID index", "breaks", "One NCCL_IB_GID_INDEX then means different addresses.", forms.gids
    ),
    Rule(
        "net.rdma", "active RDMA devices", "differs", "One NCCL_IB_HCA must then match all of the names.", forms.devices
    ),
    Rule("net.nccl.hcas", "RDMA ports that NCCL takes", "slows", SLOWEST, forms.count),
    Rule("net.loopback.bandwidth", "loopback speed", "slows", MEASURED, apart=(2, 1)),
    Rule("limits.nofile.soft", "open files", "breaks", "Ranks run out of sockets on the host with the lower limit."),
    Rule("limits.nofile.hard", "open files, hard limit", "differs", "A program can raise its limit up to here only."),
    Rule("limits.memlock", "locked memory", "breaks", "RDMA cannot register its buffers where the limit is low."),
    Rule("limits.nproc", "processes", "differs", "Data loaders and threads count against it.", apart=(1.25, 1000)),
    Rule("limits.stack", "stack size", "differs", "Unlimited stacks make NCCL's threads take too much memory."),
    Rule(
        "limits.shm.size",
        "size of /dev/shm",
        "breaks",
        "NCCL and data loaders keep their buffers there.",
        apart=(1.1, 0),
    ),
    Rule(
        "limits.cgroup.memory", "memory limit", "breaks", "Ranks are killed where the limit is lower.", apart=(1.02, 0)
    ),
    Rule("limits.cgroup.cpus", "CPU limit", "slows", SLOWEST),
    Rule(
        "limits.cgroup.pids", "limit of threads", "breaks", "NCCL and data loaders cannot start their threads above it."
    ),
    Rule("limits.ptrace_scope", "ptrace", "differs", "Stacks of a hang can be read on some of the hosts only."),
    Rule(
        "limits.ports", "ephemeral ports", "differs", "A firewall that opens one range shuts the other out.", forms.span
    ),
    Rule("cpu.total", "CPUs", "slows", SLOWEST),
    Rule("cpu.usable", "usable CPUs", "slows", SLOWEST),
    Rule("cpu.model", "CPU model", "slows", SLOWEST),
    Rule("cpu.numa", "NUMA nodes", "slows", "Pinning by number binds ranks to the wrong socket.", forms.count),
    Rule(
        "memory.total",
        "memory",
        "breaks",
        "What fits into the larger memory is killed in the smaller.",
        apart=(1.05, 0),
    ),
    Rule("memory.swap", "storage of the swap", "slows", "A rank whose memory is swapped holds up all.", forms.swap),
    Rule(
        "storage.<label>.type",
        "file system",
        "differs",
        "Where only some hosts mount the shared storage, the others see other files.",
    ),
    Rule("storage.<label>.latency", "small writes", "slows", MEASURED, apart=(5, 10)),
    Rule("software.python", "Python", "differs", "Objects that ranks send each other are pickled by version."),
    Rule("software.executable", "interpreter", "differs", "Another environment can hold other packages."),
    Rule("software.cudnn", "cuDNN", "differs", "Ranks may compute slightly different values."),
    Rule(
        "software.nccl.libraries",
        "every NCCL",
        "differs",
        "A second library wins as soon as the order of loading changes.",
        forms.libraries,
    ),
    Rule("software.nccl.built", "NCCL that torch was built with", "differs", "torch uses what it was built with."),
    Rule("host.os", "operating system", "differs", "Other defaults for limits, network and drivers come with it."),
    Rule("host.kernel", "kernel", "differs", "Drivers and network behave differently from kernel to kernel."),
    Rule("host.glibc", "C library", "differs", "A program built on the newer one does not start on the older one."),
    Rule("host.container", "container", "differs", "A container has limits and a network of its own."),
    Rule("host.image", "container image", "differs", "Another image brings other versions along."),
    Rule("host.acs", "PCI bridges with ACS", "slows", "ACS sends traffic between GPUs through the CPU.", forms.count),
    Rule("host.iommu", "IOMMU", "slows", "With an IOMMU, PCIe traffic between GPUs can go through the CPU."),
)
"""What decides most often stands first."""

RULES = {rule.fact: tuple(other for other in TABLE if other.fact == rule.fact) for rule in TABLE}
"""General name of docs/facts.md → how it is compared."""

APART = frozenset(
    {
        *("host.name", "gpu.<i>.uuid", "gpu.<i>.bus", "storage.<label>.path", "gpu.topology.nics"),  # its own
        *("gpu.<i>.memory.free", "gpu.<i>.memory.holders", "gpu.<i>.temperature", "gpu.<i>.power"),  # of the moment
        *("gpu.<i>.pcie.gen", "limits.shm.free", "cpu.load", "cpu.pressure", "memory.available", "memory.pressure"),
        *("gpu.<i>.clock.sm", "gpu.<i>.clock.memory"),
        *("memory.oom_kills", "storage.<label>.free", "net.loopback.cost"),
        "net.default",  # what matters are the interfaces that NCCL and gloo pick
        *("gpu.<i>.cpus", "gpu.<i>.nvlink.speeds"),  # said by the NUMA nodes, and by number and slowest of the links
        "gpu.<i>.fabric.clique",  # hosts of other racks are in other cliques
        *("env.problems", "env.notes"),  # judged by the causes; the variables themselves are compared
    }
)
"""Facts that differ between good hosts, or say nothing beside another one."""
