"""The job may not lock enough memory for InfiniBand

What you see
    "Call to ibv_create_cq failed", "ibv_reg_mr ... Cannot allocate memory" (errno 12) at the first
    connection, on a machine with plenty of free memory, often only under Slurm or in a container.

Why it happens
    The card reads and writes host memory by itself, so those pages must be locked and may not be
    swapped.  Linux limits locked memory per process (RLIMIT_MEMLOCK, often 64 KiB or 8 MiB);
    services such as slurmd and container engines pass their own limit to the job.

How to be sure
    `ulimit -l` inside the job must print "unlimited".

What to do
    docker run --ulimit memlock=-1 --cap-add=IPC_LOCK; for Slurm LimitMEMLOCK=infinity in slurmd's
    unit; on bare metal "* soft memlock unlimited" (and hard) in /etc/security/limits.conf.

Read more
    NCCL user guide: Troubleshooting, InfiniBand.  getrlimit(2).
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.picks import (
    failed,
    family,
    matching,
    messages,
    name_hosts,
    of_job_hosts,
    over_infiniband,
    over_sockets,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.causes._experiments import experiment_of, limits, unasked
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclDestroy, NcclWarn, SystemFault
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, found
from ncclkit.core.text import format_bytes

ID = "memlock_limit"
explains = (
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "ib_not_used",
    "ib_config",
    "c10d.timeout",
    "host_oom",
    "net_plugin",
    "shm_too_small",
)
ENOUGH = 1 << 30
"""Bytes of locked memory that a card's buffers and queues need."""
CALLS = (
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_reg_mr",
    "ibv_create_comp_channel",
    "ibv_alloc_pd",
    "ibv_open_device",
)


def diagnose(case: Case) -> Finding:
    """Found where a verbs call was refused memory; proven with the limit among the facts."""
    refused = []
    for e in [*family(case, "ib_setup"), *matching(messages(case), "ibv_")]:
        if matching([e], *CALLS):
            refused.append(e)
    memory = matching(
        refused,
        "Cannot allocate memory",
        "errno 12",
        "failed with 12",
        "Resource temporarily unavailable",
    )
    memory += without([e for e in refused if _error_number(e) == 12], memory)
    # of libfabric, UCX and others
    other = case.of(SystemFault, what="rdma_memory")
    memory += without(other, memory)
    low = []
    for fact in of_job_hosts(case, case.facts_of("limits.memlock")):
        if isinstance(fact.value, (int, float)) and 0 <= fact.value < ENOUGH:
            low.append(fact)
    unnumbered = [e for e in without(refused, memory) if not _error_number(e)]
    plain = [e for e in unnumbered if "ibv_reg_mr" not in e.text]
    warned = case.of(SystemFault, what="memlock")
    lines = (
        memory
        or (plain if low or warned else [])
        or (warned if failed(case) else matching(warned, "too low", "Please set"))
    )
    if not lines:
        risk = CHECK.risk(case)
        if risk:
            return risk
        went_well: list[Evidence] = [
            *case.of(NcclDestroy),
            *over_sockets(case),
            *over_infiniband(case),
        ]
        say = "Memory could be registered, or no card needed it."
        return CHECK.otherwise(case, went_well, say, "`ulimit -l` inside the job")
    limit = ""
    if low:
        limit = f" (its limit is {format_bytes(low[0].value)})"
    say = (
        f"{who_of(lines, lines[0].host)} was refused locked memory for the InfiniBand card{limit}."
    )
    return found(
        ID,
        "proven" if low or (warned and refused) else "likely",
        say,
        pick(lines, warned, low),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(),
        next=None if low else experiment(case),
    )


def _error_number(event: Event) -> int | None:
    if isinstance(event.data, NcclWarn):
        return event.data.errno
    return None


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    limit = host.number("limits.memlock")
    if limit is not None and 0 <= limit < ENOUGH and host.value("net.rdma"):
        say = (
            f"a process may lock {format_bytes(limit)} of memory; NCCL would be refused its buffers"
            " on the RDMA cards, unless the ranks run with CAP_IPC_LOCK"
        )
        yield Risk(say, [host.fact("limits.memlock")], _advice()[0], "likely")


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Lift the limit of locked memory in the environment that starts the ranks.",
            command=(
                "ulimit -l   # docker run --ulimit memlock=-1 --cap-add=IPC_LOCK …; slurmd.service:"
                " LimitMEMLOCK=infinity"
            ),
            why="The card needs pages that cannot be swapped out.",
            check="`ulimit -l` inside the job prints unlimited, and NCCL connects.",
            risk="Locked memory cannot be swapped; on shared machines the administrator decides.",
        ),
        Advice(
            "Until then keep NCCL on sockets.",
            env={"NCCL_IB_DISABLE": "1"},
            why="Sockets need no locked memory.",
            check="'Using network Socket' on all ranks, and the first collective completes.",
            risk="Many times slower between nodes.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Try how much memory may be locked, then run the job over sockets.

    Those need none.
    """
    tried = limits("May a process here lock the memory that a network card needs?", ID, "fd_limit")
    sockets = experiment_of(
        "Does the job that InfiniBand was refused to start over sockets?",
        {"env": {"NCCL_IB_DISABLE": "1"}},
        {
            ID: ("works", "it starts: no card asks for locked memory"),
            "ib_config": ("works", "it starts: the addresses of the cards do not matter"),
            "network_loss": ("same", "it fails in the same way"),
            "host_oom": ("same", "it fails in the same way: memory itself is short"),
        },
    )
    return unasked(case, tried, sockets)


CHECK = Preflight(
    ID,
    reads=("limits.memlock", "net.rdma"),
    risks=_host_risks,
    fine="This host has no RDMA card, or memory can be locked for it.",
    next=experiment,
)
