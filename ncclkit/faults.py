"""The lab: break a small honest training job on purpose, in one way at a time.

The job (`ncclkit.agent.train`) trains a real model with DDP.  A fault changes
one rank at one step, or one variable of all ranks; it never leaves the run's
own processes and folder, and it ends with the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ncclkit import probe
from ncclkit.case import Case
from ncclkit.model import NcclkitError
from ncclkit.storage import write


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break the job, and the truth that a diagnosis has to find."""

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


MISSING = "eth97"
"""An interface name that no machine of the lab has."""

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("healthy", "trains and ends well", "", one_rank=False),
        Fault(
            "rank_late",
            "one rank replays data for longer than the others' collective timeout",
            "slow_rank",
            ("--fault", "rank_late", "--seconds", "90"),
        ),
        Fault(
            "rank_raises",
            "one rank meets a sample that its preprocessing rejects",
            "rank_exception",
            ("--fault", "rank_raises"),
        ),
        Fault("rank_killed", "one rank is killed with SIGKILL", "rank_killed", ("--fault", "rank_killed")),
        Fault("segfault", "one rank reads address 0 in native code", "rank_exception", ("--fault", "segfault")),
        Fault("other_size", "one rank reduces a tensor of another size", "shape_mismatch", ("--fault", "other_size")),
        Fault(
            "other_op",
            "one rank calls all_gather where the others call all_reduce",
            "rank_divergence",
            ("--fault", "other_op"),
        ),
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
            backends=("nccl",),
        ),
    )
}


def fault(name: str) -> Fault:
    """The fault of that name; NcclkitError lists the names that exist."""
    if name not in FAULTS:
        raise NcclkitError(f"There is no fault {name!r}; the lab knows {', '.join(FAULTS)}.")
    return FAULTS[name]


async def break_it(
    case: Case,
    name: str,
    *,
    python: str | None = None,
    ranks: int | None = None,
    culprit: int | None = None,
    backend: str = "auto",
    timeout: float = 15.0,
    deadline: float = 120.0,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> probe.Run:
    """Run the job with one fault.

    culprit: the rank that the fault changes (default: the last); timeout: of the process group, seconds; deadline: of
    the whole run, seconds.  The truth is kept in the run folder as ``truth.json``, out of the diagnosis' sight.
    """
    chosen = fault(name)
    base = await probe.plan(case, python=python, ranks=ranks, backend=backend, deadline=deadline)
    if base.backend not in chosen.backends:
        raise NcclkitError(f"The fault {name} needs {' or '.join(chosen.backends)}; this run would use {base.backend}.")
    count = max(2, base.ranks) if base.backend == "gloo" else base.ranks
    guilty = count - 1 if culprit is None else culprit
    argv = ("train", "--backend", base.backend, "--timeout", str(timeout), *chosen.argv)
    if chosen.one_rank:
        argv += ("--rank", str(guilty))
    plan = probe.Plan(name, argv, count, base.backend, base.python, deadline, dict(chosen.env))
    run = await probe.execute(case, plan, on_record)
    truth = {"fault": name, "cause": chosen.cause, "ranks": [guilty] if chosen.one_rank else []}
    write(run.folder / "truth.json", json.dumps(truth))
    return run
