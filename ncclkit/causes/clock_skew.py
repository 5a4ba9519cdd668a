"""The clocks of the hosts are seconds or more apart

What you see
    torchrun on several nodes loses some of them at the start although every port answers: one node trains alone
    ("group_world_size=1" under --nnodes 2), the other ends with "has failed to send a keep-alive heartbeat" or
    RendezvousTimeoutError (seen with torch 2.13 and a clock 40 s behind).  Or the job runs, but in its logs the
    consequence stands before the cause, and downloads end with "certificate is not yet valid".

Why it happens
    Each host counts time by a quartz of its own that gains or loses up to some seconds a day; a time service (chrony,
    NTP, PTP) keeps it right.  A virtual machine that was paused, a host that was off, or one that may not reach the
    service is off by minutes.  torchrun's c10d rendezvous has every node write the time of its last heartbeat into
    the store, by its own clock, and the others read it by theirs: a node more than 15 s behind looks dead at once.

How to be sure
    `ncclkit connect` measures how far the clocks are apart, with the uncertainty of the way; `chronyc tracking` or
    `timedatectl` on each host says whether it is kept in time.

What to do
    Let one time service keep all hosts, and step the clock of the one that is off once.  Containers share the clock
    of their host: it is put right there.

Read more
    https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
    (_DistributedRendezvousStateHolder._sanitize, keep_alive_interval); man pages adjtimex(2), chronyc(1).
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.hosts import enterable
from ncclkit.analysis.picks import ask, pick
from ncclkit.causes import _tested
from ncclkit.causes._experiments import minimal
from ncclkit.causes._preflight import Check, Host, Risk
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath
from ncclkit.core.model import Advice, Experiment, Finding, Strength, found, unknown

ID = "clock_skew"
explains = ("rendezvous.error", "world_size_mismatch")
APART, DROPPED = 1.0, 15.0
"""Seconds apart that matter to who reads logs, and from which torchrun takes a node for dead (3 heartbeats of 5 s)."""


def diagnose(case: Case) -> Finding:
    """The offsets that a connection test measured; else whether the kernel of each host knows of a time service."""
    equal = _tested.sound(case, lambda link: link.offset is not None and not _apart(link))
    missing = "`ncclkit connect HOST HOST`, which measures how far the clocks are apart"
    if verdict := ask(case, _measured, CHECK.risk):
        return verdict
    kept = case.facts_of("host.clock.synced")
    if not equal and len(kept) > 1 and any(fact.value is False for fact in kept):
        return unknown(ID, missing)
    return CHECK.otherwise(case, equal, "The clocks of the tested hosts agree to a second.", missing)


def _apart(link: NetworkPath) -> float:
    """Seconds that the clocks of both ends are apart at least; 0 where that does not matter or is not known."""
    least = abs(link.offset or 0.0) - (link.offset_error or 0.0)
    return least if least >= APART else 0.0


def _measured(case: Case) -> Finding | None:
    off = sorted(_tested.paths(case, lambda link: _apart(link) > 0), key=_apart, reverse=True)
    if not off:
        return None
    worst, pairs = off[0], {frozenset((link.src, link.dst)) for link in off}
    ahead, behind = (worst.dst, worst.src) if (worst.offset or 0) > 0 else (worst.src, worst.dst)
    drops = _apart(worst) >= DROPPED
    effect = "lines of different hosts cannot be put in order by their time"
    if drops:
        effect = f"torchrun's other nodes take one that is more than {DROPPED:g} s behind for dead"
    gap, more = abs(worst.offset or 0), _tested.more([*pairs], "pair")
    say = f"The clock of {behind} is {gap:.3g} s behind that of {ahead}{more}; {effect}."
    refused = case.of("rendezvous.error") if drops else []
    strength: Strength = "likely" if refused else _tested.risk(case)
    why, hosts = pick([link.event for link in off[:4]], refused[:2]), tuple(sorted({h for pair in pairs for h in pair}))
    advice = (_advice(behind), STATIC)
    return found(ID, strength, say, why, hosts=hosts, advice=advice, next=experiment(case))


def _look(host: Host) -> Iterator[Risk]:
    """A host of a job with several of them whose clock nobody keeps."""
    fact, nodes = host.fact("host.clock.synced"), host.number("env.SLURM_NNODES") or 1
    if fact and fact.value is False and nodes > 1:
        say = "no time service is known to keep the clock; once it is seconds off, the logs of this job's "
        say += f"{nodes:g} nodes would not fit together, and torchrun would drop the node"
        yield Risk(say, [fact, host.fact("env.SLURM_NNODES")], _advice("this host"))


def _advice(host: str) -> Advice:
    return Advice(
        f"Let a time service keep the clocks, and step that of {host} to the right time once.",
        command="chronyc tracking; sudo systemctl enable --now chronyd; sudo chronyc makestep",
        why="Each host compares the others' heartbeats and time stamps with its own clock.",
        check="`ncclkit connect` measures less than a second between all hosts.",
        risk="A step makes time jump for programs that run on the host: do it between jobs.",
    )


STATIC = Advice(
    "Until then let the nodes meet without heartbeats.",
    command="torchrun --rdzv-backend static --node-rank $SLURM_NODEID --master-addr <first host> --master-port 29500 …",
    why="The static rendezvous only counts the nodes; heartbeats with the time of day belong to c10d and etcd.",
    check="All workers start.",
    risk="A node that is lost later is not replaced, and --max-restarts no longer waits for a new one.",
)


def experiment(case: Case) -> Experiment:
    """The clocks measured again where the hosts are ours to enter; elsewhere a start that compares no clocks."""
    if enterable(case):
        predicts = {
            ID: "the names and ports are right, and the clocks are seconds apart",
            "store_unreachable": "the rendezvous port does not answer",
            "hostname_resolution": "a host finds no address for a name, or one of 127.x",
        }
        question = "How far are the clocks of the hosts apart, and do names and ports lead where they should?"
        return Experiment(question, {"check": "connections"}, predicts, dict.fromkeys(predicts, "found"))
    return minimal(
        "Do the same ranks meet where the rendezvous is a plain store, which compares no clocks?",
        {ID: "they do: only heartbeats are read by the clock", "slow_rank": "they do: a rank of the program was late"},
        {"store_unreachable": "they do not: no answer", "hostname_resolution": "they do not: no name leads there"},
    )


CHECK = Check(
    ID,
    reads=("host.clock.synced",),
    look=_look,
    fine="A time service keeps the clocks, or one host has only its own to go by.",
    also=("env.SLURM_NNODES",),
    next=experiment,
)
