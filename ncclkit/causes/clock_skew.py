"""The clocks of the hosts are seconds or more apart

What you see
    torchrun on several nodes loses some of them at the start although every port answers: one node
    trains alone ("group_world_size=1" under --nnodes 2), the other ends with "has failed to send a
    keep-alive heartbeat" or RendezvousTimeoutError (seen with torch 2.13 and a clock 40 s behind).
    Or the job runs, but in its logs the consequence appears before the cause, and downloads end
    with "certificate is not yet valid".

Why it happens
    Each host has a clock of its own that gains or loses up to some seconds a day; a time service
    (chrony, NTP, PTP) corrects it.  A virtual machine that was paused, a host that was off, or one
    that may not reach the service is off by minutes.  torchrun's c10d rendezvous has every node
    write the time of its last heartbeat into the store, by its own clock, and the others read it by
    theirs: a node more than 15 s behind looks dead at once.

How to be sure
    `ncclkit connect` measures the offset between the clocks and its uncertainty.  `chronyc
    tracking` or `timedatectl` on each host says whether its clock is synchronised.

What to do
    Containers share the clock of their host: correct it there.

Read more
    https://github.com/pytorch/pytorch/tree/main/torch/distributed/elastic/rendezvous
    (_DistributedRendezvousStateHolder._sanitize, keep_alive_interval); man pages adjtimex(2),
    chronyc(1).
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.hosts import can_simulate_again
from ncclkit.analysis.picks import first_finding, pick
from ncclkit.causes import _tested
from ncclkit.causes._experiments import check_of, minimal
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath
from ncclkit.core.kinds import RendezvousError
from ncclkit.core.model import Advice, Experiment, Finding, Strength, found, unknown

ID = "clock_skew"
explains = ("rendezvous.error", "world_size_mismatch")
APART, DROPPED = 1.0, 15.0
"""Seconds of offset that matter when reading logs, and that drop a node.

torchrun drops a node after the second (3 heartbeats of 5 s).
"""


def diagnose(case: Case) -> Finding:
    """Found where a connection test measured an offset.

    Without one it is told by whether each kernel reports a synchronised clock.
    """
    equal = _tested.passed(case, lambda link: link.offset is not None and not _certain_offset(link))
    missing = "`ncclkit connect HOST HOST`, which measures the offset between the clocks"
    finding = first_finding(case, _measured_offset, CHECK.risk)
    if finding:
        return finding
    kept = case.facts_of("host.clock.synced")
    # a clock that nothing corrects may still be right: only a comparison of two hosts can tell
    if not equal and len(kept) > 1 and any(fact.value is False for fact in kept):
        return unknown(ID, missing)
    return CHECK.otherwise(
        case, equal, "The clocks of the tested hosts agree to a second.", missing
    )


def _certain_offset(link: NetworkPath) -> float:
    """Smallest offset in seconds between the clocks of both ends.

    It is 0 where it does not matter or is unknown.
    """
    # an offset counts only as far as it exceeds its own uncertainty
    least = abs(link.offset or 0.0) - (link.offset_error or 0.0)
    if least >= APART:
        return least
    return 0.0


def _measured_offset(case: Case) -> Finding | None:
    off = sorted(
        _tested.paths(case, lambda link: _certain_offset(link) > 0),
        key=_certain_offset,
        reverse=True,
    )
    if not off:
        return None
    worst = off[0]
    pairs = {frozenset((link.src, link.dst)) for link in off}
    # the offset is of the far clock against the near one
    if (worst.offset or 0) > 0:
        ahead, behind = worst.dst, worst.src
    else:
        ahead, behind = worst.src, worst.dst
    drops = _certain_offset(worst) >= DROPPED
    effect = "log lines of different hosts cannot be ordered by their time"
    if drops:
        effect = f"torchrun drops a node whose clock is more than {DROPPED:g} s behind"
    gap = abs(worst.offset or 0)
    more = _tested.plus([*pairs], "pair")
    say = f"The clock of {behind} is {gap:.3g} s behind that of {ahead}{more}; {effect}."
    refused = []
    if drops:
        refused = case.of(RendezvousError)
    if refused:
        strength: Strength = "likely"
    else:
        strength = _tested.risk(case)
    why = pick([link.event for link in off[:4]], refused[:2])
    measured_hosts: set[str] = set()
    for pair in pairs:
        measured_hosts.update(pair)
    hosts = tuple(sorted(measured_hosts))
    advice = (_advice(behind), STATIC)
    return found(ID, strength, say, why, hosts=hosts, advice=advice, next=experiment(case))


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts of a job with several hosts whose clock is not synchronised."""
    fact = host.fact("host.clock.synced")
    nodes = host.number("env.SLURM_NNODES") or 1
    # a clock that nobody corrects harms a job of one host in nothing
    if fact and fact.value is False and nodes > 1:
        say = (
            "no time service is known to synchronise the clock; at an offset of seconds the logs of"
            " this job's "
        )
        say += f"{nodes:g} nodes would not fit together, and torchrun would drop the node"
        yield Risk(say, [fact, host.fact("env.SLURM_NNODES")], _advice("this host"))


def _advice(host: str) -> Advice:
    return Advice(
        f"Synchronise the clocks with a time service, and step that of {host} to the right time"
        " once.",
        command="chronyc tracking; sudo systemctl enable --now chronyd; sudo chronyc makestep",
        why="Each host compares the others' heartbeats and time stamps with its own clock.",
        check="`ncclkit connect` measures less than a second between all hosts.",
        risk="A step makes time jump for programs that run on the host: do it between jobs.",
    )


STATIC = Advice(
    "Until then let the nodes meet without heartbeats: give torchrun --rdzv-backend static, with"
    " --node-rank, and --master-addr and --master-port of the first host.",
    command="date +%s.%N; timedatectl timesync-status",
    why=(
        "The static rendezvous only counts the nodes; heartbeats with the time of day belong to"
        " c10d and etcd."
    ),
    check="All workers start.",
    risk=(
        "A node that is lost later is not replaced, and --max-restarts no longer waits for a new"
        " one."
    ),
)


def experiment(case: Case) -> Experiment:
    """Measure the clocks again where the hosts can be reached.

    Elsewhere start without comparing clocks.
    """
    if can_simulate_again(case):
        return check_of(
            "connections",
            "How far apart are the clocks of the hosts, and do names and ports work as they"
            " should?",
            {
                ID: "names and ports are right, and the clocks are seconds apart",
                "store_unreachable": "the rendezvous port does not answer",
                "hostname_resolution": "a host resolves a name to nothing, or to 127.x",
            },
        )
    return minimal(
        "Do the same ranks meet where the rendezvous is a plain store, which compares no clocks?",
        {
            ID: "they do: only heartbeats are read by the clock",
            "slow_rank": "they do: a rank of the program was late",
        },
        {
            "store_unreachable": "they do not: no answer",
            "hostname_resolution": "they do not: no name resolves there",
        },
    )


CHECK = Preflight(
    ID,
    reads=("host.clock.synced",),
    risks=_host_risks,
    fine="A time service synchronises the clocks, or the job has one host.",
    also=("env.SLURM_NNODES",),
    next=experiment,
)
REMEDIES = (_advice("the host that is off"), STATIC)
