"""Faults of one rank before the process group is made: what the process may use, and what it was told.

Each has its right way, taken where the job is started with ``--fix CAUSE`` for the cause of that bug.
"""

import os
import resource

from ncclkit.agent.run import crash_handler

OTHER_NCCL = "NCCLKIT_OTHER_NCCL"
"""Variable that names the library of `other_nccl`."""
LARGE, PIECE = 512 << 20, 16 << 20
"""Bytes of the dataset of `little_memory`, and of the pieces in which a careful loader reads it."""


def uneven_data(job):
    """This rank's data ends before the others' does; `equal_steps` is the right way."""
    job.steps //= 2


def equal_steps(job):
    """All ranks, once the group exists: train as many steps as the rank with the least data has."""
    if job.mended("rank_divergence"):
        fewest = job.torch.tensor([job.steps], device=job.device)
        job.dist.all_reduce(fewest, op=job.dist.ReduceOp.MIN)
        job.steps = int(fewest.item())


def few_files(job):
    """This rank's shell allows it three files more; the right way raises that to the hard limit, as a program may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    if job.mended("fd_limit"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def little_memory(job):
    """This rank may use little more host memory while it loads; the right way loads its data in pieces."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + LARGE // 2, before[1]))
    size = PIECE if job.mended("host_oom") else LARGE
    try:
        for _ in range(LARGE // size):
            job.torch.empty(size, dtype=job.torch.uint8).fill_(1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def world_larger(job):
    """This rank's own configuration says that the job has one rank more than the launcher started."""
    configured = job.ranks + 1
    os.environ["WORLD_SIZE"] = str(job.ranks if job.mended("world_size_mismatch") else configured)


def other_card(job):
    """This rank's host has no network interface of the name that the job's configuration gives to all."""
    if not job.mended("ifname_not_found"):
        os.environ["%s_SOCKET_IFNAME" % job.options.backend.upper()] = "eth97"


def port_busy(job):
    """This rank opens a store of its own on MASTER_PORT, where the launcher's store already listens."""
    port = 0 if job.mended("port_in_use") else int(os.environ["MASTER_PORT"])
    told = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", "")  # with it, torch would not mind that the port is taken
    job.store = job.dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = told


def mixed_nccl(job):
    """This rank's host loads another libnccl before torch's own; the right way leaves that out of its environment."""
    library = os.environ[OTHER_NCCL]
    if job.mended("version_mismatch") or os.environ.get("LD_PRELOAD") == library:
        return
    os.environ["LD_PRELOAD"] = library
    crash_handler.again()  # the loader looks at the variable only when a program starts
