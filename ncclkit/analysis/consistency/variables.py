"""Which variables must agree between the hosts of a job."""

from __future__ import annotations

import re

from ncclkit.analysis.consistency import normalizers
from ncclkit.analysis.consistency.rules import ANY, ConsistencyRule, fatal, differs, slows

OWN = re.compile(
    r"SLURM_|(?:LOCAL_|GROUP_|ROLE_)?RANK$|TORCHELASTIC_|(?:CUDA|NVIDIA)_VISIBLE_DEVICES$|NCCL_(?:DEBUG_FILE|TOPO_FILE)$"
)
"""Variables of one process or one host; GPUs are compared as torch sees them."""

MUST = re.compile(
    r"NCCL_(?:ALGO|PROTO|NTHREADS|(?:MIN|MAX)_(?:CTAS|(?:P2P_)?NCHANNELS|NRINGS)|(?:LL\w*_)?BUFFSIZE|P2P_NET_CHUNKSIZE|NET|NET_PLUGIN"
    r"|P2P_(?:LEVEL|DISABLE)|SHM_DISABLE|(?:NVLS|MNNVL|COLLNET|CUMEM)_ENABLE|CROSS_NIC|IB_(?:DISABLE|QPS_PER_CONNECTION"
    r"|SPLIT_DATA_ON_QPS)|SOCKET_FAMILY|COMM_ID|LAUNCH_\w+)$|MASTER_(?:ADDR|PORT)$|WORLD_SIZE$"
)
"""Variables that all ranks must have in common (REFERENCE of NCCL's variables; torch's rendezvous)."""

NAMES = re.compile(r"NCCL_IB_(?:HCA|GID_INDEX|PKEY|SL|TC|ADDR_\w+)$|(?:NCCL|GLOO|TP)_SOCKET_IFNAME$")
"""Variables that name or number devices, which hosts may name differently."""

PACE = re.compile(
    r"NCCL_(?:IB|NET|SOCKET|NSOCKS|BUFFSIZE|P2P|SHM|DMABUF|NVB)_|OMP_NUM_THREADS$|UCX_|FI_|CUDA_DEVICE_MAX_CONNECTIONS$"
)
"""Variables that set the pace of one host."""


def variable(name: str) -> ConsistencyRule | None:
    """The rule for one variable; None for what is each host's own."""
    if OWN.match(name):
        return None
    if MUST.match(name):
        return fatal(ANY, name, "All ranks must have the same value, or they make different plans and hang.")
    if NAMES.match(name):
        return differs(ANY, name, "Right where the hosts name or number their devices differently, else a slip.")
    if PACE.match(name):
        return slows(ANY, name, "It sets the pace of this host, and the slowest rank that of a collective.")
    if name.startswith("LD_"):
        return differs(ANY, name, "Another NCCL or plug-in can be found first.", normalizers.parts)
    return differs(ANY, name, "A setting that one host has alone is rarely meant.")
