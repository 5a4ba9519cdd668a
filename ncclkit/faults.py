"""The lab: break a small honest job on purpose, in one way at a time.

The job trains a real model with DDP (`ncclkit.agent.train`), or is the live test itself.  A fault changes
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
from ncclkit.runs import SMALL, Plan, Run
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
    job: str = "train"
    """The agent's verb for the job that is broken."""
    partners: tuple[int, ...] = ()
    """Ranks that are as much part of it as the chosen one, as nothing can tell which of them is wrong."""


MISSING = "eth97"
"""An interface name that no machine of the lab has."""
LONG = ("--seconds", "90")
"""Longer than any timeout that the lab gives a collective."""

_NCCL = ("nccl",)


def _on_one(name: str, says: str, cause: str, *more: str, backends: tuple[str, ...] = ("nccl", "gloo")) -> Fault:
    """A fault of one rank, which the agent knows by the same name."""
    return Fault(name, says, cause, ("--fault", name, *more), backends=backends)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("healthy", "trains and ends well", "", one_rank=False),
        _on_one("rank_late", "one rank replays data for longer than the collective timeout", "slow_rank", *LONG),
        _on_one("rank_raises", "one rank meets a sample that its preprocessing rejects", "rank_exception"),
        _on_one("rank_killed", "one rank is killed with SIGKILL", "rank_killed"),
        _on_one("segfault", "one rank reads address 0 in native code", "rank_exception"),
        _on_one("gil_held", "one rank sits in native code that keeps Python's global lock", "gil_hold", *LONG),
        _on_one("other_size", "one rank reduces a tensor of another size", "shape_mismatch"),
        _on_one("other_dtype", "one rank reduces a tensor of another type", "shape_mismatch"),
        _on_one("other_op", "one rank calls all_gather where the others call all_reduce", "rank_divergence"),
        _on_one("uneven_data", "one rank has half the data and leaves the loop early", "rank_divergence"),
        _on_one("groups_swapped", "one rank uses two groups in the other order", "concurrent_comms", backends=_NCCL),
        _on_one("unpaired_recv", "one rank waits for a message that nobody sends", "send_recv_mismatch"),
        _on_one("exchange_uneven", "one rank has other all_to_all split sizes", "send_recv_mismatch"),
        _on_one("few_files", "one rank may open three more files (RLIMIT_NOFILE)", "fd_limit"),
        _on_one("little_memory", "one rank loads more than its memory limit allows (RLIMIT_AS)", "host_oom"),
        _on_one("gpu_memory_full", "one rank asks for 64 TiB of GPU memory", "gpu_oom", backends=_NCCL),
        _on_one(
            "cuda_assert", "one rank looks up a class that does not exist, in a kernel", "cuda_error", backends=_NCCL
        ),
        _on_one("world_larger", "one rank is told a WORLD_SIZE that is one too many", "world_size_mismatch"),
        _on_one("flood", "one rank prints 100 MB; the job ends well all the same", ""),
        _on_one("mute", "one rank closes its output; the job ends well all the same", ""),
        Fault(
            "ifname_missing",
            f"the interface variables name {MISSING}, which does not exist",
            "ifname_not_found",
            env={"NCCL_SOCKET_IFNAME": MISSING, "GLOO_SOCKET_IFNAME": MISSING},
            one_rank=False,
        ),
        Fault(
            "duplicate_gpu", "every rank uses GPU 0", "duplicate_gpu", ("--one-gpu",), one_rank=False, backends=_NCCL
        ),
        Fault(
            "wrong_device",
            "one rank uses GPU 0, which is rank 0's",
            "duplicate_gpu",
            ("--one-gpu",),
            backends=_NCCL,
            partners=(0,),
        ),
        Fault(
            "bad_value",
            "NCCL_ALGO names an algorithm that does not exist",
            "bad_env_value",
            env={"NCCL_ALGO": "Rnig"},
            one_rank=False,
            backends=_NCCL,
        ),
        Fault(
            "p2p_off",
            "NCCL_P2P_DISABLE=1 takes NVLink away; the job trains, slowly",
            "slow_transport",
            env={"NCCL_P2P_DISABLE": "1"},
            one_rank=False,
            backends=_NCCL,
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
    live: bool = False,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Run:
    """Run the job with one fault.

    culprit: the rank that the fault changes (default: the last); timeout: of the process group, seconds; deadline: of
    the whole run, seconds; live: break the live test instead of the training job.  The truth is kept in the run folder
    as ``truth.json``, out of the diagnosis' sight.
    """
    chosen = fault(name)
    base = await probe.plan(case, python=python, ranks=ranks, backend=backend, deadline=deadline)
    if base.backend not in chosen.backends:
        raise NcclkitError(f"The fault {name} needs {' or '.join(chosen.backends)}; this run would use {base.backend}.")
    count = max(2, base.ranks) if base.backend == "gloo" else base.ranks
    guilty = count - 1 if culprit is None else culprit
    job = ("collective", "--sizes", SMALL) if live else (chosen.job,)
    argv = (*job, "--backend", base.backend, "--timeout", str(timeout), *chosen.argv)
    if chosen.one_rank:
        argv += ("--rank", str(guilty))
    plan = Plan(name, argv, count, base.backend, base.python, deadline, dict(chosen.env))
    run = await probe.execute(case, plan, on_record)
    truth = {
        "fault": name,
        "cause": chosen.cause,
        "ranks": sorted({guilty, *chosen.partners}) if chosen.one_rank else [],
    }
    write(run.folder / "truth.json", json.dumps(truth))
    return run
