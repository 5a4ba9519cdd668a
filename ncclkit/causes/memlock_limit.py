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
    On bare metal write "* soft memlock unlimited", and the same for hard, into
    /etc/security/limits.conf.

Read more
    NCCL user guide: Troubleshooting, InfiniBand.  getrlimit(2).
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.picks import (
    facts_below,
    failed,
    family,
    first_finding,
    matching,
    messages,
    name_hosts,
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
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found
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
    """Found where a verbs call was refused memory.

    It is proven with the limit among the facts.
    """
    went_well: list[Evidence] = [
        *case.of(NcclDestroy),
        *over_sockets(case),
        *over_infiniband(case),
    ]
    say = "Memory could be registered, or no card needed it."
    return first_finding(
        case, _refused_memory, _failed_at_low_limit, _warned_of_limit, CHECK.risk
    ) or CHECK.otherwise(case, went_well, say, "`ulimit -l` inside the job")


def _refused_calls(case: Case) -> list[Event]:
    """Verbs calls that lock memory and failed."""
    refused = []
    for event in [*family(case, "ib_setup"), *matching(messages(case), "ibv_")]:
        if matching([event], *CALLS):
            refused.append(event)
    return refused


def _lacking_memory(case: Case) -> list[Event]:
    """Failures whose error says that memory was refused."""
    refused = _refused_calls(case)
    lines = matching(
        refused,
        "Cannot allocate memory",
        "errno 12",
        "failed with 12",
        "Resource temporarily unavailable",
    )
    lines += without([event for event in refused if _error_number(event) == 12], lines)
    # of libfabric, UCX and others
    other = case.of(SystemFault, what="rdma_memory")
    return lines + without(other, lines)


def _low_limits(case: Case) -> list[Fact]:
    return facts_below(case, "limits.memlock", ENOUGH)


def _warnings(case: Case) -> list[Event]:
    """Warnings of libraries that little memory may be locked."""
    return case.of(SystemFault, what="memlock")


def _refused_memory(case: Case) -> Finding | None:
    """A verbs call failed with the error of refused memory."""
    return _finding(case, _lacking_memory(case))


def _failed_at_low_limit(case: Case) -> Finding | None:
    """A verbs call failed without a number, where the limit is known to be low."""
    if not _low_limits(case) and not _warnings(case):
        return None
    lines = []
    for event in _refused_calls(case):
        # GPU memory cannot be registered for other reasons, too (ib_config)
        if not _error_number(event) and "ibv_reg_mr" not in event.text:
            lines.append(event)
    return _finding(case, lines)


def _warned_of_limit(case: Case) -> Finding | None:
    """Nothing but a warning.

    Of a job that did not fail, it is only one that asks for a change.
    """
    warned = _warnings(case)
    if not failed(case):
        warned = matching(warned, "too low", "Please set")
    return _finding(case, warned)


def _finding(case: Case, lines: list[Event]) -> Finding | None:
    if not lines:
        return None
    low, warned = _low_limits(case), _warnings(case)
    limit = ""
    if low:
        limit = f" (its limit is {format_bytes(low[0].value)})"
    say = (
        f"{who_of(lines, lines[0].host)} was refused locked memory for the InfiniBand card{limit}."
    )
    strength: Strength = "likely"
    if low or (warned and _refused_calls(case)):
        strength = "proven"
    # where the limit is known nothing is left to ask
    ask_it = None
    if not low:
        ask_it = experiment(case)
    return found(
        ID,
        strength,
        say,
        pick(lines, warned, low),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(),
        next=ask_it,
    )


def _error_number(event: Event) -> int | None:
    if isinstance(event.data, NcclWarn):
        return event.data.errno
    return None


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    limit = host.number("limits.memlock")
    # without an RDMA card nobody needs locked memory
    if limit is not None and 0 <= limit < ENOUGH and host.value("net.rdma"):
        say = (
            f"a process may lock {format_bytes(limit)} of memory; NCCL would be refused its buffers"
            " on the RDMA cards, unless the ranks run with CAP_IPC_LOCK"
        )
        yield Risk(say, [host.fact("limits.memlock")], _advice()[0], "likely")


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Lift the limit of locked memory in the environment that starts the ranks: --ulimit"
            " memlock=-1 --cap-add=IPC_LOCK of docker run, LimitMEMLOCK=infinity in slurmd's (or"
            " the container daemon's) unit, limits.conf for logins.",
            command="ulimit -l",
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

    Sockets need none.
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
REMEDIES = _advice()
