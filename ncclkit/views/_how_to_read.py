"""How to find out by hand what the agent could not read: one way for each family of facts."""

from __future__ import annotations

from functools import cache

from ncclkit.views._html import Markup, code, join

BY_HAND: dict[str, tuple[str, str]] = {
    "gpu": ("nvidia-smi -q", "on the host itself, outside the container; where it hangs, look for Xid in dmesg"),
    "gpu.topology": ("nvidia-smi topo -m", "on the host itself"),
    "gpu.p2p": ("nvidia-smi topo -p2p r", "on the host itself; w, n, a and p ask for the other capabilities"),
    "gpu.#.nvlink": ("nvidia-smi nvlink -s", "on the host itself"),
    "gpu.#.numa": ("cat /sys/bus/pci/devices/*/numa_node", "a container or a virtual machine may hide it"),
    "gpu.#.fabric": ("nvidia-smi -q | grep -A 3 Fabric", "only GPUs behind NVSwitches have one"),
    "gpu.#.ecc": ("nvidia-smi -q -d ECC", "N/A means that the GPU has none, or has it off"),
    "gpu.#.remapped_rows": ("nvidia-smi -q -d ROW_REMAPPER", "only since A100"),
    "gpu.peermem": ("lsmod | grep nvidia_peermem", "on the host itself"),
    "gpu.gdrcopy": ("lsmod | grep gdrdrv", "on the host itself"),
    "net": ("ip address; ip route", "on the host, in the container of the job"),
    "net.nccl": ("ip -brief address", "then name one that is up and has an address in NCCL_SOCKET_IFNAME"),
    "net.gloo": ("ip -brief address", "then name one that is up and has an address in GLOO_SOCKET_IFNAME"),
    "net.hostname": ("getent hosts $(hostname)", "no answer: the name is missing in DNS and in /etc/hosts"),
    "net.rdma": ("ibstat", "or: ls /sys/class/infiniband"),
    "limits": ("ulimit -a", "in the shell or the batch script that starts the job"),
    "limits.shm": ("df -h /dev/shm", "inside the container of the job"),
    "limits.cgroup": (
        "cat /proc/self/cgroup",
        "the limits are files below /sys/fs/cgroup; your scheduler knows them too",
    ),
    "limits.ptrace_scope": ("cat /proc/sys/kernel/yama/ptrace_scope", "no such file: the kernel does not restrict it"),
    "host": ("uname -a; cat /etc/os-release", "on the host"),
    "host.container": ("cat /proc/1/cgroup", "or ask who started the job"),
    "host.iommu": ("ls /sys/class/iommu", "on the host itself; dmesg says it too"),
    "cpu": ("lscpu; nproc", "inside the job: nproc says what the job may use"),
    "cpu.pressure": ("cat /proc/pressure/cpu", "no such file: the kernel was built or booted without PSI (psi=1)"),
    "memory": ("free -h", "on the host"),
    "memory.swap": ("swapon --show; findmnt -T FILE", "the second says what a swap file lies on"),
    "memory.oom_kills": ("dmesg | grep -i oom", "may need root"),
    "storage": ("df -hT FOLDER", "where it hangs, the file server does not answer: ask who runs it"),
    "software": ("python -m pip list", "with the training interpreter"),
    "software.torch": ("python -c 'import torch; print(torch.__version__)'", "with the training interpreter"),
    "software.cudnn": ("python -c 'import torch; print(torch.backends.cudnn.version())'", "as above"),
    "software.nccl": ("python -c 'import torch; print(torch.cuda.nccl.version())'", "and: ldconfig -p | grep nccl"),
    "env": ("env | sort", "in the shell or the batch script that starts the job"),
    "facts": ("ncclkit inspect --json", "a reader of the kit broke: please report its words"),
}
"""Beginning of a fact's name (``#`` is any number) → the command, and what else to know; the longest one holds."""


@cache
def by_hand(name: str) -> Markup:
    """How to find out the fact `name`; empty where no family of facts has that name."""
    parts = ["#" if part.isdigit() else part for part in name.split(".")]
    starts = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = next((BY_HAND[start] for start in starts if start in BY_HAND), None)
    return join(code(found[0]), f" {found[1]}") if found else Markup("")
