"""The rendezvous port is already taken

What you see
    At once after the start: "The server socket has failed to listen on any local network address",
    "Address already in use" (EADDRINUSE, errno 98), from torchrun or from rank 0 in
    init_process_group.

Why it happens
    One process of the job, the agent of the first node or rank 0, opens the store on MASTER_PORT
    (29500 unless set otherwise; 29400 for torchrun's c10d rendezvous).  A second job on the same
    machine with the same number, or a process that survived the last run, already holds it.  The
    kernel gives a port to one listener only.

How to be sure
    `ss -ltnp 'sport = :29500'` on that machine shows who listens.

What to do
    torchrun on one node also takes --rdzv-endpoint=localhost:0, which chooses a free port.

Read more
    PyTorch docs: torchrun (--standalone, --rdzv-endpoint, --master-port).
"""

from __future__ import annotations

import re

from ncclkit.analysis.frames import frames_of
from ncclkit.analysis.picks import (
    first_finding,
    foreign_address,
    matching,
    messages,
    name_hosts,
    on,
    otherwise,
    pick,
    ranks_in,
)
from ncclkit.causes import _tested
from ncclkit.causes._experiments import limits, minimal, unasked
from ncclkit.causes._launchers import options_of
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import Endpoint, RendezvousError, StoreBind
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, Strength, found

ID = "port_in_use"
explains = (
    "store.connect_timeout",
    "store_unreachable",
    "rank_exception",
    "rendezvous.error",
    "world_size_mismatch",
    "slow_rank",
)


def diagnose(case: Case) -> Finding:
    """Found where a bind was refused with EADDRINUSE."""
    went_well: list[Evidence] = [
        *case.of("nccl.init", "nccl.bootstrap", "c10d.timeout", "progress", "worker.phase"),
        *_tested.passed(case, lambda link: link.rendezvous == "open"),
    ]
    return first_finding(case, _refused_bind, _port_refused) or otherwise(
        ID, went_well, "The store's port was opened.", "the launcher's output on the first node"
    )


def _bind_errors(case: Case) -> list[Event]:
    """Refused binds.

    There are none where the address was refused and not the port.
    """
    reported = matching(
        [*case.of(StoreBind), *messages(case), *case.of(RendezvousError)],
        "EADDRINUSE",
        "Address already in use",
        "errno: 98",
        "another process is utilizing it",
        "is already in use",
        "failed to listen on any local network address",
    )
    lines = []
    for event in reported:
        # NCCL's sockets but the bootstrap's take any free port
        if event.kind != "nccl.warn" or "Bootstrap" in event.text:
            lines.append(event)
    # torch says "failed to listen" also of an address that the host does not have
    in_use = matching(lines, "EADDRINUSE", "already in use", "errno: 98")
    if foreign_address(case) and not in_use:
        return []
    return lines


def _refused_bind(case: Case) -> Finding | None:
    """torchrun or rank 0 was refused the store's port."""
    lines = _bind_errors(case)
    if not lines:
        return None
    final = matching(
        lines,
        "failed to listen on any",
        "EADDRINUSE",
        "RuntimeError",
        "DistNetworkError",
        "OSError",
    )
    final += [event for event in lines if event.kind in ("python.exception", "rendezvous.error")]
    final = [event for event in final if not _any_server(event)]
    port = None
    for event in final + lines:
        port = port or _port_number(_named_port(event), event.text)
    say = (
        f"Port {port or 'of the rendezvous'}{on(first_host(lines))} is already taken by another"
        " process, so the job's store cannot open it."
    )
    # a warning of one family of addresses is no end: the store may listen at the other
    strength: Strength = "likely"
    if final:
        strength = "proven"
    return found(
        ID,
        strength,
        say,
        pick(final, lines, limit=5),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(port, case),
        next=experiment(case),
    )


def _named_port(event: Event) -> int | None:
    if isinstance(event.data, (StoreBind, Endpoint)):
        return event.data.port
    return None


def _any_server(event: Event) -> bool:
    """True for a Python error outside of torch's start.

    A program may open a port for metrics or a dashboard.
    """
    frames = [str(frame.get("file")) for frame in frames_of(event)]
    # a program may open a port for metrics or a dashboard
    own = event.kind in ("python.exception", "system.error") and "OSError:" in event.text
    return own and not any("torch/distributed" in file for file in frames)


def _port_refused(case: Case) -> Finding | None:
    """A connection test could not open the rendezvous port on a host."""
    # the test opens the port itself, so a listener there is somebody else's
    held = []
    for host in _tested.hosts(case).values():
        if "in use" in host.refused:
            held.append(host)
    if not held:
        return None
    port = next(
        (link.port for link in _tested.paths(case, lambda link: link.dst == held[0].name)), None
    )
    say = (
        f"Port {port or 'of the rendezvous'} on {held[0].name}{_tested.plus(held, 'host')} is"
        " already taken, so a job that opens its store there would fail."
    )
    why = tuple(host.event for host in held[:5])
    names = tuple(host.name for host in held)
    advice = _advice(port, case)
    return found(
        ID, _tested.risk(case), say, why, hosts=names, advice=advice, next=experiment(case)
    )


def _port_number(value: object, text: str) -> int | None:
    if isinstance(value, int) and value > 0:
        return value
    match = re.search(r"port: (\d+)|\]:(\d{2,5})\b|0\.0\.0\.0:(\d+)", text)
    if match:
        return int(next(g for g in match.groups() if g))
    return None


RENDEZVOUS = 29400
"""The port at which torchrun's own rendezvous listens unless told otherwise."""


def _advice(port: int | None, case: Case) -> tuple[Advice, ...]:
    asked = "ss -ltnp"
    if port:
        asked = f"ss -ltnp 'sport = :{port}'"
    option = options_of(case).port
    if port == RENDEZVOUS:
        option = (
            "`--rdzv-endpoint` of torchrun, which MASTER_PORT does not move (`--standalone` takes"
            " a free one on a single host)"
        )
    return (
        Advice(
            "See which process holds the port: end it if it is a left-over of your own, else give"
            f" this job another port: {option}. A program that writes its port into its own code"
            " has to be changed there.",
            command=asked,
            why="Two jobs on one machine must not share the number, and a killed launcher can"
            " leave rank 0 alive.",
            check="The command prints no listener, or the job starts while the other one runs.",
            risk="The process may be someone's running job; all hosts must get the same number.",
        ),
        Advice(
            "On a cluster compute the port from the job's id, in the script that starts all ranks.",
            command="export MASTER_PORT=$((20000 + SLURM_JOB_ID % 40000))",
            why="Jobs that share a machine then have different ports.",
            check="The job passes init_process_group while another one runs.",
            risk="All nodes must compute the same number.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Check whether the port can be opened, then run on another one.

    The same ranks run there, on a port that the system chooses.
    """
    question = (
        "Can the rendezvous port be opened on this machine, and does a second process reach it?"
    )
    other = minimal(
        "Do the same ranks start an all_reduce on a port that the system chooses?",
        {ID: "it starts"},
        {
            "store_unreachable": "the other ranks still cannot connect",
            "hostname_resolution": "the other ranks still do not find the host",
        },
    )
    return unasked(case, limits(question, ID, "hostname_resolution"), other)


REMEDIES = _advice(None, Case())
