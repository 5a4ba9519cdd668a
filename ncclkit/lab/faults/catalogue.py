"""A way to break a job, and what a diagnosis must find.

What it must find is the truth of the broken job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ncclkit.core.runs import SMALL
from ncclkit.live.launch import simulated


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that the lab can inject.

    It names the cause that a diagnosis has to find.
    """

    name: str
    says: str
    """What it will do, said before it does it."""
    cause: str
    """Id of the cause, "" for the healthy job."""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    one_rank: bool = True
    """True: the culprit is the chosen rank; False: every rank has the fault."""
    backends: tuple[str, ...] = ("nccl", "gloo")
    job: str = "train"
    """The agent's verb for the job that is broken."""
    partner: bool = False
    """Of the chosen rank and the first one of its host nothing can tell which is wrong."""
    net: str = ""
    """What is wrong with the network of its two simulated hosts.

    It is a name of `live.launch.simulated.WRONG`; empty: one host.
    """
    hosts: tuple[str, ...] = ()
    """The culprits among them."""
    culprit: int | None = None
    """The rank that it changes where nobody names one; None: the last."""
    root: bool = False
    """Only root can do it."""
    needs: str = ""
    """An environment variable that has to name a file; empty: none."""
    get: str = ""
    """Where such a file comes from, one clause."""


CRAWL = ("--sizes", f"{SMALL},1048576,4194304")
"""Many sizes, as packets get lost at random.

The largest tell what each further byte costs.
"""


def _on_hosts(name: str, says: str, cause: str, wrong: str, *hosts: str, **more: Any) -> Fault:
    """A fault of two simulated hosts, or of the path between them.

    The hosts share the GPUs of this machine.
    """
    return Fault(name, says, cause, one_rank=False, net=wrong, hosts=hosts, **more)


HOSTS = (
    _on_hosts(
        "ifname_missing_on_one",
        "two hosts: the variables name eth0, and the second host's interface is called ens3",
        "ifname_not_found",
        "other_name",
        "node-2",
        env={"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"},
    ),
    _on_hosts(
        "bridge_first",
        "two hosts: both use a bridge of virtual machines, which has the same address on each",
        "wrong_interface",
        "bridge",
        "node-1",
        "node-2",
        env={"NCCL_SOCKET_IFNAME": "br-lab", "GLOO_SOCKET_IFNAME": "br-lab"},
    ),
    _on_hosts(
        "management_nic",
        "two hosts: the first has a management network that the second is not part of, and NCCL"
        " uses that, too",
        "wrong_interface",
        "astray",
        "node-1",
        # which sends over all that it finds; gloo takes what the host's name resolves to
        backends=("nccl",),
    ),
    _on_hosts(
        "master_unreachable",
        "two hosts: MASTER_ADDR is an address of the first that the second has no way to",
        "store_unreachable",
        "astray",
        "node-1",
        env={"MASTER_ADDR": simulated.ASTRAY},
    ),
    _on_hosts(
        "port_blocked",
        "two hosts: a firewall on the first swallows what arrives at the rendezvous port",
        "store_unreachable",
        "blocked",
        "node-1",
    ),
    _on_hosts(
        "world_disagree",
        "two hosts: the launcher of the first is told that there are three",
        "world_size_mismatch",
        "count",
        "node-1",
    ),
    _on_hosts(
        "lossy_link",
        "two hosts: the switch between them drops packets above 1400 bytes, without a message",
        "network_loss",
        "narrow",
        "node-1",
        "node-2",
    ),
    _on_hosts(
        "slow_link",
        "two hosts: what the second sends is held back to 200 Mbit/s; the live test works, and"
        " crawls",
        "network_loss",
        "slow",
        "node-1",
        "node-2",
        job="collective",
        argv=CRAWL,
    ),
    _on_hosts(
        "lost_packets",
        "two hosts: one packet in twenty that the second sends gets lost; the live test works, and"
        " crawls",
        "network_loss",
        "drops",
        "node-1",
        "node-2",
        job="collective",
        argv=CRAWL,
    ),
    _on_hosts(
        "mixed_versions",
        "two hosts: the second has an older release of the package that the model is built with",
        "version_mismatch",
        "older",
        "node-2",
        job="stories.finetune",
    ),
    _on_hosts(
        "own_name_loopback",
        "two hosts: the name of the second resolves to 127.0.1.1 on itself",
        "hostname_resolution",
        "own_name",
        "node-2",
        backends=("gloo",),  # which asks for the host's own name; NCCL looks at its interfaces
    ),
)


MISSING = "eth97"
"""An interface name that no machine of the lab has."""
LONG = ("--seconds", "90")
"""Longer than any timeout that the lab gives a collective."""

_NCCL = ("nccl",)


def _on_one(
    name: str, says: str, cause: str, *more: str, backends: tuple[str, ...] = ("nccl", "gloo")
) -> Fault:
    """A fault of one rank, which the agent knows by the same name."""
    return Fault(name, says, cause, ("--fault", name, *more), backends=backends)


def _fault_without_paths(name: str, does: str, *variables: str) -> Fault:
    """NCCL may not use the paths inside a host that these variables switch off."""
    says = f"{'=1 and '.join(variables)}=1 {does}; the job trains, slowly"
    return Fault(
        name,
        says,
        "slow_transport",
        env=dict.fromkeys(variables, "1"),
        one_rank=False,
        backends=_NCCL,
    )


EXCHANGE = tuple(
    replace(fault, job="stories.exchange")
    for fault in (
        _on_one(
            "a2a_unpaired",
            "in an all-to-all written by hand one rank waits for rows of a neighbour who has none"
            " for it",
            "send_recv_mismatch",
        ),
        Fault(
            "a2a_order",
            "in an all-to-all written by hand every rank receives before it sends",
            "send_recv_mismatch",
            ("--fault", "a2a_order"),
            one_rank=False,
        ),
        _on_one(
            "a2a_files",
            "a communicator for each pair; one rank lacks open files for its last peer",
            "fd_limit",
        ),
        Fault(
            "a2a_late",
            "one rank is late for an exchange; the others give up early, abort and say who is"
            " missing",
            "slow_rank",
            ("--fault", "rank_late", *LONG),
        ),
        Fault(
            "a2a_reused",
            "one rank writes into a buffer whose send is still under way; who receives compares the"
            " sums",
            "rank_exception",
            ("--fault", "a2a_reused"),
            one_rank=False,
        ),
        _on_one("a2a_leaves", "one rank ends while the others still exchange", "rank_divergence"),
        Fault(
            "a2a_device",
            "every rank exchanges on GPU 0",
            "duplicate_gpu",
            ("--one-gpu",),
            {},
            False,
            _NCCL,
        ),
    )
)
"""The faults of story 5."""

INTERACTIONS = tuple(
    Fault(
        name,
        says,
        cause,
        ("--fault", name, *LONG),
        {},
        True,
        backends,
        "stories.interactions",
        culprit=0,
    )
    for name, says, cause, backends in (
        (
            "dataset_too_large",
            (
                "one rank joins a table larger than its share of host memory (RLIMIT_AS), then goes"
                " on with it on disk"
            ),
            "host_oom",
            ("nccl", "gloo"),
        ),
        (
            "cache_stalled",
            (
                "one rank reads its dataset from a dead disk (root can mount one; else a FIFO"
                " stands in); the others wait"
            ),
            "disk_or_io",
            ("nccl", "gloo"),
        ),
        (
            "tables_on_gpu_0",
            "all ranks fill GPU 0 with their tables, and one finds no room there",
            "gpu_oom",
            _NCCL,
        ),
        (
            "rank_0_full",
            (
                "a stand-in for a full GPU 0: one rank finds no room in its share of memory"
                " (RLIMIT_AS), and tries again"
            ),
            "host_oom",
            ("gloo",),
        ),
    )
)
"""The faults of story 1."""

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("healthy", "trains and succeeds", "", one_rank=False),
        _on_one(
            "rank_late",
            "one rank replays data for longer than the collective timeout",
            "slow_rank",
            *LONG,
        ),
        _on_one(
            "rank_raises",
            "one rank meets a sample that its preprocessing rejects",
            "rank_exception",
        ),
        _on_one("rank_killed", "one rank is killed with SIGKILL", "rank_killed"),
        _on_one("segfault", "one rank reads address 0 in native code", "rank_exception"),
        _on_one("gil_held", "one rank sits in native code that keeps the GIL", "gil_hold", *LONG),
        _on_one("other_size", "one rank reduces a tensor of another size", "shape_mismatch"),
        _on_one("other_dtype", "one rank reduces a tensor of another type", "shape_mismatch"),
        _on_one(
            "other_op",
            "one rank calls all_gather where the others call all_reduce",
            "rank_divergence",
        ),
        _on_one(
            "uneven_data", "one rank has half the data and leaves the loop early", "rank_divergence"
        ),
        _on_one(
            "groups_swapped",
            "one rank uses two groups in the other order",
            "concurrent_comms",
            backends=_NCCL,
        ),
        _on_one(
            "unpaired_recv", "one rank waits for a message that nobody sends", "send_recv_mismatch"
        ),
        _on_one(
            "exchange_uneven", "one rank has other all_to_all split sizes", "send_recv_mismatch"
        ),
        _on_one("few_files", "one rank may open three more files (RLIMIT_NOFILE)", "fd_limit"),
        _on_one(
            "little_memory",
            "one rank loads more than its memory limit allows (RLIMIT_AS)",
            "host_oom",
        ),
        _on_one(
            "gpu_memory_full",
            "one rank asks for twice the memory of its GPU",
            "gpu_oom",
            backends=_NCCL,
        ),
        _on_one(
            "cuda_assert",
            "one rank looks up a class that does not exist, in a kernel",
            "cuda_error",
            backends=_NCCL,
        ),
        _on_one(
            "world_larger",
            "one rank is told a WORLD_SIZE that is one too many",
            "world_size_mismatch",
        ),
        _on_one(
            "other_card",
            f"one rank's configuration names the interface {MISSING}, which its host does not have",
            "ifname_not_found",
            backends=_NCCL,
        ),
        replace(
            _on_one(
                "mixed_nccl",
                "one rank loads another release of libnccl before torch's own (LD_PRELOAD)",
                "version_mismatch",
                backends=_NCCL,
            ),
            needs="NCCLKIT_OTHER_NCCL",
            get=(
                "`pip download --no-deps nvidia-nccl-cu13==2.27.7` and unzip the wheel:"
                " nvidia/nccl/lib/libnccl.so.2"
            ),
        ),
        _on_one(
            "port_busy",
            "one rank opens a store on the port where the launcher's already listens",
            "port_in_use",
        ),
        _on_one("slow_disk", "one rank writes its checkpoint to storage that stalls", "disk_or_io"),
        Fault(
            "small_shm",
            "one rank has a /dev/shm of 2 MiB, and its loader hands over more through it",
            "shm_too_small",
            ("--fault", "small_shm"),
            root=True,
        ),
        _on_one(
            "forked_cuda",
            "one rank's loader worker uses CUDA after a fork",
            "fork_or_init_order",
            backends=_NCCL,
        ),
        Fault(
            "long_first_step",
            "every rank's GPU computes for 30 s before the collective behind it, whose limit is"
            " shorter",
            "timeout_too_short",
            ("--fault", "long_first_step", "--seconds", "30"),
            one_rank=False,
            backends=_NCCL,
        ),
        Fault(
            "bad_debug",
            "TORCH_DISTRIBUTED_DEBUG has a value that torch does not know",
            "bad_env_value",
            env={"TORCH_DISTRIBUTED_DEBUG": "VERBOSE"},
            one_rank=False,
        ),
        _on_one("flood", "one rank prints 100 MB; the job succeeds all the same", ""),
        _on_one("mute", "one rank's output leads nowhere; the job succeeds all the same", ""),
        Fault(
            "ifname_missing",
            f"the interface variables name {MISSING}, which does not exist",
            "ifname_not_found",
            env={"NCCL_SOCKET_IFNAME": MISSING, "GLOO_SOCKET_IFNAME": MISSING},
            one_rank=False,
        ),
        Fault(
            "duplicate_gpu",
            "every rank uses GPU 0",
            "duplicate_gpu",
            ("--one-gpu",),
            one_rank=False,
            backends=_NCCL,
        ),
        Fault(
            "wrong_device",
            "one rank uses the GPU of its host's first rank",
            "duplicate_gpu",
            ("--one-gpu",),
            backends=_NCCL,
            partner=True,
        ),
        Fault(
            "bad_value",
            "NCCL_ALGO names an algorithm that does not exist",
            "bad_env_value",
            env={"NCCL_ALGO": "Rnig"},
            one_rank=False,
            backends=_NCCL,
        ),
        _fault_without_paths("p2p_off", "takes NVLink away", "NCCL_P2P_DISABLE"),
        _fault_without_paths(
            "sockets_only",
            "leave sockets in place of NVLink",
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
        ),
        *INTERACTIONS,
        Fault(
            "resume_replays",
            "the job resumes from a checkpoint by reading its data once more, which takes one rank"
            " 20 s",
            "slow_rank",
            ("--seconds", "20"),
            # hundreds of steps came before
            {"TORCH_FR_BUFFER_SIZE": "24", "TORCH_NCCL_TRACE_BUFFER_SIZE": "24"},
            job="stories.resume",
            culprit=1,
        ),
        Fault(
            "loader_starved",
            "one rank starts 32 data-loader workers on the one core that it may use",
            "cpu_contention",
            ("--fault", "loader_starved", "--workers", "32", "--cost", "1"),
            job="stories.speech",
        ),
        Fault(
            "loader_crowded",
            "each rank starts 20 data-loader workers; ranks are bound to two cores, all but the"
            " first to the second",
            "cpu_contention",
            ("--fault", "loader_crowded", "--workers", "20", "--cost", "0.4", "--steps", "2"),
            one_rank=False,
            job="stories.speech",
        ),
        *EXCHANGE,
        *HOSTS,
    )
}
"""Those of the training job first, then the stories', then those of two hosts."""
