"""A table of the kernel's network is too small for the number of ranks or hosts

What you see
    Jobs up to a certain size start, larger ones do not: connections to the store or to a peer time
    out or are reset for some ranks, others each time, and a retry may work.  PyTorch warns
    "Starting store with 4096 workers but somaxconn is 128"; dmesg says "neighbour: arp_cache:
    neighbor table overflow!" or "nf_conntrack: table full, dropping packet".

Why it happens
    The kernel keeps tables of fixed size with an entry for every connection.  Connections that the
    server has not accepted yet wait in a queue (net.core.somaxconn).  When all ranks connect to the
    store at once and the queue is full, the kernel drops the newest, and its sender retries after
    1, 3, 7 s.  Each host of the same network needs an entry in the neighbour table (gc_thresh3,
    1024 by default); hosts without one cannot be reached.  A firewall with connection tracking
    keeps entries for days and drops packets above nf_conntrack_max.  It looks like a bad network.

How to be sure
    `nstat -az TcpExtListenOverflows`, the column table_fulls of /proc/net/stat/arp_cache, and
    nf_conntrack_count beside nf_conntrack_max in /proc/sys/net/netfilter, before and after a start
    that fails.

What to do
    Take the ports of the job out of connection tracking.

Read more
    https://docs.kernel.org/networking/ip-sysctl.html (neigh/default/gc_thresh3, somaxconn)
    https://docs.kernel.org/networking/nf_conntrack-sysctl.html
    https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp
    (somaxconn)
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.picks import family, first_finding, name_hosts, on, pick
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes._experiments import minimal
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import KernelTable, RendezvousError
from ncclkit.core.model import Advice, Experiment, Finding, Strength, found

ID = "net_limit"
explains = (
    "store_unreachable",
    "wrong_interface",
    "network_loss",
    "rank_exception",
    "world_size_mismatch",
)
FULL = 0.9
"""Share of the connection tracking table in use that is too much.

From there on a job would fill it.
"""


def diagnose(case: Case) -> Finding:
    """Found where a host's kernel has dropped connections, or would.

    They are those of a job of this size.
    """
    missing = (
        "net.backlog, net.neighbours.max and net.conntrack of the job's hosts (`ncclkit inspect`)"
    )
    return first_finding(case, _dropped_connection, CHECK.risk) or CHECK.otherwise(
        case, (), "", missing
    )


def _dropped_connection(case: Case) -> Finding | None:
    """The kernel says that a table was full, and a connection between ranks failed."""
    full = case.of(KernelTable)
    failures = [
        *family(case, "socket_connect"),
        *case.of("store.connect_timeout", "store.retry", "gloo.connect"),
    ]
    failures += case.of(RendezvousError)
    # the counters rise on every busy host; it takes connections of a job that failed
    if not full or not failures or rank_states(case).ended:
        return None
    name = full[0].data.name
    where = on(full[0].host)
    say = (
        f"The kernel's {name}{where} was full and dropped what did not fit, and connections between"
        " ranks failed."
    )
    advice = _advice(*RAISED[name])
    why = pick(full, failures[:3], limit=5)
    return found(
        ID, "likely", say, why, hosts=name_hosts(full), advice=(advice,), next=experiment(case)
    )


RAISED = {
    "neighbour table": ("net.ipv4.neigh.default.gc_thresh3", 8192),
    "connection tracking table": ("net.netfilter.nf_conntrack_max", 1048576),
    "accept queue": ("net.core.somaxconn", 4096),
}
"""Table → its limit, and a value with room for a large job."""


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts whose accept queue, neighbour table or connection tracking table is too small."""
    yield from _queue_risks(host)
    yield from _neighbour_risks(host)
    used = host.number("net.conntrack") or 0
    most = host.number("net.conntrack.max") or 0
    # entries stay for days: what is nearly full now will not be empty when a job starts
    if used > FULL * most > 0:
        say = (
            f"the firewall tracks {used:.0f} of at most {most:.0f} connections; it would drop those"
            " of a job"
        )
        facts = [host.fact("net.conntrack"), host.fact("net.conntrack.max")]
        yield Risk(say, facts, _advice("net.netfilter.nf_conntrack_max", 2 * most), "likely")


def _queue_risks(host: HostFacts) -> Iterator[Risk]:
    """An accept queue that is shorter than the number of ranks.

    They connect to the store at once.
    """
    ranks = max(host.number("env.WORLD_SIZE") or 0, host.number("env.SLURM_NTASKS") or 0)
    most = host.number("net.backlog")
    lost = host.number("net.backlog.overflows") or 0
    # all ranks connect to rank 0's port at once
    if most is not None and ranks > most:
        seen = ""
        if lost:
            seen = f" ({lost:g} were dropped so far)"
        say = (
            f"{most:.0f} connections may wait at a port{seen} and {ranks:.0f} ranks would connect"
            " at once, if "
        )
        facts = [
            host.fact("net.backlog"),
            host.fact("env.WORLD_SIZE") or host.fact("env.SLURM_NTASKS"),
        ]
        strength: Strength = "possible"
        if lost:
            strength = "likely"
        yield Risk(
            say + "it is here", facts, _advice("net.core.somaxconn", max(4096, 2 * ranks)), strength
        )


def _neighbour_risks(host: HostFacts) -> Iterator[Risk]:
    """A neighbour table that is too small for the hosts of the network."""
    most = host.number("net.neighbours.max")
    lost = host.number("net.neighbours.overflows") or 0
    nodes = host.number("env.SLURM_NNODES") or 0
    if lost:
        size = ""
        if most:
            size = f" ({most:.0f} entries)"
        say = (
            f"the neighbour table{size} was full {lost:g} times since boot; a job would not reach"
            " some of its hosts"
        )
        facts = [host.fact("net.neighbours.overflows"), host.fact("net.neighbours.max")]
    # each host of the network needs an entry of its own
    elif most is not None and nodes >= most:
        say = (
            f"the neighbour table has {most:.0f} entries and the job {nodes:.0f} nodes; some would"
            " not be reached"
        )
        facts = [host.fact("net.neighbours.max"), host.fact("env.SLURM_NNODES")]
    else:
        return
    yield Risk(
        say, facts, _advice("net.ipv4.neigh.default.gc_thresh3", max(8192, 4 * nodes)), "likely"
    )


def _advice(name: str, value: float) -> Advice:
    return Advice(
        f"Raise {name} to {value:.0f} on every host, now and for the next boot.",
        command=(
            f"sudo sysctl -w {name}={value:.0f} && sysctl {name} | sudo tee -a"
            " /etc/sysctl.d/90-cluster.conf"
        ),
        why="The kernel drops what does not fit into the table and reports nothing to the program.",
        check=(
            "The counters of `nstat -az TcpExtListenOverflows` and /proc/net/stat/arp_cache do not"
            " rise at a start."
        ),
        risk="A larger table takes a little kernel memory; containers need it set on their host.",
    )


def experiment(case: Case) -> Experiment:
    """Run two ranks only: they need few table entries."""
    return minimal(
        "Do two ranks meet where all together do not?",
        {ID: "they do: few connections fit", "world_size_mismatch": "they do: no rank is missing"},
        {
            "store_unreachable": "they do not: no answer",
            "hostname_resolution": "they do not: no name resolves there",
        },
        ranks=2,
    )


CHECK = Preflight(
    ID,
    reads=("net.backlog",),
    risks=_host_risks,
    fine="The kernel's tables have room for the connections of a job.",
    also=(
        *(
            "net.backlog.overflows",
            "net.neighbours.max",
            "net.neighbours.overflows",
            "net.conntrack",
        ),
        *("net.conntrack.max", "env.WORLD_SIZE", "env.SLURM_NTASKS", "env.SLURM_NNODES"),
    ),
    next=experiment,
)
REMEDIES = tuple(_advice(*limit) for limit in RAISED.values())
