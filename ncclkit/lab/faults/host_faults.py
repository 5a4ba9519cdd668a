"""The faults of two pretended hosts, or of the way between them: a table, as in `broken`."""

from __future__ import annotations

from typing import Any

from ncclkit.core.runs import SMALL
from ncclkit.lab.faults.fault import Fault
from ncclkit.live import simulated_networks

CRAWL = ("--sizes", f"{SMALL},1048576,4194304")
"""Many sizes, as packets get lost at random; the largest tell what each further byte costs."""


def _on_hosts(name: str, says: str, cause: str, wrong: str, *hosts: str, **more: Any) -> Fault:
    """A fault of two pretended hosts, which share the GPUs of this machine, or of the way between them."""
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
        "two hosts: the first has a management network that the second is not part of, and NCCL uses that, too",
        "wrong_interface",
        "astray",
        "node-1",
        backends=("nccl",),  # which sends over all that it finds; gloo takes what the host's name leads to
    ),
    _on_hosts(
        "master_unreachable",
        "two hosts: MASTER_ADDR is an address of the first that the second has no way to",
        "store_unreachable",
        "astray",
        "node-1",
        env={"MASTER_ADDR": simulated_networks.ASTRAY},
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
        "two hosts: the switch between them drops packets above 1400 bytes, and tells nobody",
        "network_loss",
        "narrow",
        "node-1",
        "node-2",
    ),
    _on_hosts(
        "slow_link",
        "two hosts: what the second sends is held back to 200 Mbit/s; the live test works, and crawls",
        "network_loss",
        "slow",
        "node-1",
        "node-2",
        job="collective",
        argv=CRAWL,
    ),
    _on_hosts(
        "lost_packets",
        "two hosts: one packet in twenty that the second sends gets lost; the live test works, and crawls",
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
        "two hosts: the hostname of the second resolves to 127.0.1.1 on itself",
        "hostname_resolution",
        "own_name",
        "node-2",
        backends=("gloo",),  # which asks for the host's own name; NCCL looks at its interfaces
    ),
)
