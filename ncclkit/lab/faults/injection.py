"""The lab: break a small honest job on purpose, in one way at a time.

The job trains a real model with DDP (`ncclkit.lab.programs.train`), or is the live test itself.  A
fault changes one rank at one step, or one variable of all ranks; it never leaves the run's own
processes and folder, and it ends with the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ncclkit.agent.run.stages import ranks_by_node
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import SMALL, Run
from ncclkit.core.storage import write
from ncclkit.core.text import did_you_mean
from ncclkit.evidence import samples
from ncclkit.experiments import baseline
from ncclkit.lab.faults import recording
from ncclkit.lab.faults.catalogue import FAULTS, Fault
from ncclkit.live import probe
from ncclkit.live.launch.simulated import Impossible
from ncclkit.live.options import ProbeOptions

__all__ = ["FAULTS", "Fault", "inject", "fault"]


def fault(name: str) -> Fault:
    """The fault of that name.

    Raises NcclkitError, with the names that exist, for another.
    """
    if name not in FAULTS:
        known = f"the lab knows {', '.join(FAULTS)}."
        raise NcclkitError(f"There is no fault {name!r}; {did_you_mean(name, FAULTS, known)}")
    return FAULTS[name]


def fault_row(chosen: Fault) -> str:
    """One row for a list of faults.

    It says what the fault does, its cause, and what it needs.
    """
    takes = (
        "NCCL" if chosen.backends == ("nccl",) else "",
        "root" if chosen.root else "",
        chosen.needs,
    )
    needs = " and ".join(filter(None, takes))
    return f"{chosen.says} (cause: {chosen.cause or 'none'}{needs and f'; needs {needs}'})"


def _possible_fault(chosen: Fault) -> Fault:
    """The fault, where this process has what it takes.

    Raises NcclkitError, which says what is missing.
    """
    if chosen.root and os.geteuid() != 0:
        raise NcclkitError(
            f"The fault {chosen.name} mounts a file system for one rank alone, which needs root."
        )
    if chosen.needs and not os.path.isfile(os.environ.get(chosen.needs, "")):
        raise NcclkitError(
            f"The fault {chosen.name} needs a file, named by {chosen.needs}; get one by"
            f" {chosen.get}."
        )
    return chosen


async def inject(
    case: Case,
    name: str,
    *,
    python: str | None = None,
    ranks: int | None = None,
    culprit: int | None = None,
    backend: str = "auto",
    timeout: float = 15.0,
    deadline: float = 120.0,
    live: bool = False,
    simulate_hosts: int = 1,
    oversubscribe: bool = False,
    here: bool = False,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Run:
    """Run the job with one fault.

    `backend`: ``auto`` is gloo where there are fewer GPUs than `ranks`, as on a laptop, if the
    fault can be had there; `culprit` is the rank that the fault changes (default: the fault's own,
    mostly the last); `timeout` that of the process group, in seconds; `deadline` that of the whole
    run, in seconds; `live`: break the live test instead of the training job; `simulate_hosts`: NCCL
    takes the ranks for those of so many hosts; `oversubscribe`: start more ranks than this host
    carries; `here`: on a login node, too.  ``truth.json`` of the run folder keeps the truth, for no
    diagnosis.
    """
    chosen = _possible_fault(fault(name))
    if backend == "auto" and "gloo" in chosen.backends:
        backend = "gloo"
        if "nccl" in chosen.backends:
            backend = "any"
    network = {"hosts": 2, "wrong": chosen.net} if chosen.net else {}
    asked: dict[str, Any] = {
        "python": python or "",
        "ranks": ranks or 0,
        "backend": backend,
        "timeout": deadline,
        "simulate_hosts": simulate_hosts,
        "network": network,
        "oversubscribe": oversubscribe,
        "here": here,
    }
    base = await probe.plan_test(case, ProbeOptions(**asked), "lab")
    if base.backend not in chosen.backends:
        raise NcclkitError(
            f"The fault {name} needs {' or '.join(chosen.backends)}; this run would use"
            f" {base.backend}."
        )
    count = max(2, base.ranks) if base.backend == "gloo" else base.ranks
    faulty = next((rank for rank in (culprit, chosen.culprit) if rank is not None), count - 1)
    job = ("collective", "--sizes", SMALL) if live else (chosen.job,)
    argv = (*job, "--backend", base.backend, "--timeout", str(timeout))
    argv += _fault_argv(chosen, faulty, simulate_hosts)
    plan = replace(base, name=name, argv=argv, ranks=count, env=dict(chosen.env), sizes=(), ops=())
    try:
        run = await probe.execute(case, plan, on_record)
    except Impossible as error:
        run = _recorded_run(case, name, error)
    _keep_truth(run, chosen, culprits(chosen, faulty, count, simulate_hosts))
    return run


def _fault_argv(chosen: Fault, faulty: int, simulate_hosts: int) -> tuple[str, ...]:
    """The words by which the job has the fault."""
    rank = ("--rank", str(faulty)) if chosen.one_rank else ()
    hosts = ("--simulate-hosts", str(simulate_hosts)) if simulate_hosts > 1 else ()
    return (*chosen.argv, *rank, *hosts)


def _keep_truth(run: Run, chosen: Fault, ranks: list[int]) -> None:
    truth = {
        "fault": chosen.name,
        "cause": chosen.cause,
        "ranks": ranks,
        "hosts": list(chosen.hosts),
    }
    write(run.folder / "truth.json", json.dumps(truth))


def culprits(chosen: Fault, faulty: int, count: int, simulate_hosts: int) -> list[int]:
    """The ranks that a diagnosis of this fault may name; empty: all.

    Rank `faulty` of `count` has the fault; they are empty where all have it.
    """
    if not chosen.one_rank:
        return []
    first = next(host[0] for host in ranks_by_node(count, count, simulate_hosts) if faulty in host)
    return sorted({faulty, first} if chosen.partner else {faulty})


def _recorded_run(case: Case, name: str, error: Impossible) -> Run:
    """The bundled recording of a fault, where this machine cannot make it.

    The run says so.
    """
    if name not in samples.list_samples():
        raise error
    recording.replay(case, samples.HERE / name)
    run = baseline.last(case)
    assert run is not None
    return replace(run, problem=f"{str(error).rstrip('.')}: this is the bundled recording of it")
