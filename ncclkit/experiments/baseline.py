"""What an experiment repeats.

It is the last run that ncclkit started in a case, or a test with the variables of another job.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit.agent import redact
from ncclkit.agent.digits import whole_number
from ncclkit.causes import host_oom
from ncclkit.core import budgets, storage
from ncclkit.core.case import Case
from ncclkit.core.model import Finding, NcclkitError
from ncclkit.core.resources import THINGS
from ncclkit.core.runs import Plan, Run, read_plan
from ncclkit.live import connect, probe
from ncclkit.live.launch import launchers

MOST = 64 << 20
"""Bytes of the records of a run that are taken over.

They say how long it took and what went wrong first.
"""


def last(case: Case, python: str | None = None) -> Run | None:
    """The last run in this case, ready to be run again.

    It is one of the lab or the live test; None where there is none.  `python` is another training
    interpreter than it had.
    """
    for folder in reversed(case.runs()):
        plan = storage.read_json(folder / "plan.json", {})
        if plan.get("argv"):
            return probe.reread(case, folder, _replanned(plan, python))
    return None


def take_over(case: Case, source: Case) -> None:
    """Copy into `case` what is needed to repeat the last run of `source`.

    `source` is only read.  Somebody may have mailed it, so nothing of it says what is executed: the
    interpreter is ours, the job is one of ours, and variables that name a file are left out.
    """
    for folder in reversed(source.runs()):
        plan = storage.read_json(folder / "plan.json", {})
        if plan.get("argv"):
            target = (case.path or Path()) / "runs" / folder.name
            target.mkdir(parents=True, exist_ok=True)
            storage.write(target / "plan.json", json.dumps(_disarmed(plan, folder)))
            for wired in sorted(folder.glob("wire.jsonl*")):
                with gzip.open(wired) if wired.suffix == ".gz" else wired.open("rb") as file:
                    storage.write(target / "wire.jsonl", file.read(MOST))
            return


OUR_JOBS = re.compile(r"collective|sweep|train|stories\.[a-z0-9_]+")
"""First words of a plan: the live test, a sweep, and the jobs of the lab."""
HEEDED = ("NCCL_", "TORCH_", "GLOO_", "OMP_", "MKL_", "UCX_", "FI_", "CUDA_", "MASTER_")
"""How variables of a job begin that are taken over from others."""
FILES = ("_FILE", "_DIR", "_PATH")
"""How variables end that name a file, whatever they hold."""


def _disarmed(plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The plan without what would start, or load, a program of whoever wrote it."""
    argv = plan["argv"]
    env = plan.get("env", {})
    has_form = isinstance(argv, list) and isinstance(env, dict)
    if not has_form or not OUR_JOBS.fullmatch(str(argv[0])):
        raise NcclkitError(f"{folder}/plan.json is of no run that can be repeated; omit --check.")
    return plan | {"python": "", "env": harmless(env)}


def harmless(env: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a job that name no file.

    A library or a script there would be loaded.
    """
    heeded = {}
    for name, value in env.items():
        if name.startswith(HEEDED) and not name.endswith(FILES) and "/" not in str(value):
            heeded[name] = str(value)
    return heeded


def nccl_variables(case: Case) -> dict[str, str]:
    """The NCCL variables of a job by its logs, without names of files."""
    env = {str(e.data.name): str(e.data.value) for e in case.of("nccl.env")}
    variables = {}
    for name, value in env.items():
        if "FILE" not in name:
            variables[name] = value
    env = variables
    heeded = {}
    for name, value in harmless(env).items():
        # a run of ours sets its own logging
        if not name.startswith("NCCL_DEBUG"):
            heeded[name] = value
    return heeded


def is_local(case: Case, run: Run | None, finding: Finding) -> bool | None:
    """Whether a finding is about this machine or allocation.

    It is None where no evidence says.  `run` is the last run of the case that was ours.
    """
    if run and (run.plan.network or launchers.node_count() > 1):
        return True
    hosts = {
        *finding.culprits.get("hosts", ()),
        *(getattr(piece, "host", "") for piece in finding.evidence),
    } - {""}
    named = {str(host).partition(".")[0] for host in hosts}
    if named:
        return socket.gethostname().partition(".")[0] in named
    if run:
        return True
    return None


def needs(
    case: Case, run: Run | None, job: Mapping[str, Any], causes: Container[str]
) -> dict[str, Any]:
    """What the job needs of each machine for these causes.

    It is resource → amount that the agent shall try, and ``hosts``.  `run` is the last run of the
    case that was ours; `job` is what the evidence says of any other (`core.summary.job`).
    """
    gpus = case.fact("gpu.count")
    ranks = max(
        2, run.plan.ranks if run else job.get("ranks") or (gpus if isinstance(gpus, int) else 2)
    )
    hosts = max(
        1,
        launchers.node_count(),
        int(run.plan.network.get("hosts", 1)) if run else len(job.get("hosts") or ()),
    )
    local = -(-ranks // hosts)
    env = {**os.environ, **(run.plan.env if run else {})}
    port = env.get("MASTER_PORT", "")
    name = env.get("MASTER_ADDR", "")
    bound = [event.data.port for event in case.latest().of("store.bind")]
    lost = [str(event.data.host or "") for event in case.latest().of("store.resolve")]
    every = {
        "descriptors": int(budgets.descriptors(ranks).value),
        "threads": int(budgets.threads(local).value),
        "shm": int(budgets.shared_memory(local).value),
        "memlock": int(budgets.locked_memory().value),
        "memory": _memory(case, local),
        "port": next(
            (one for one in bound if isinstance(one, int)), whole_number(port) or connect.PORT
        ),
        "names": list(dict.fromkeys(["", *filter(None, [name, *lost[:1]])])),
    }
    needs_of_causes = {}
    for what, need in every.items():
        if THINGS[what][0] in causes:
            needs_of_causes[what] = need
    return needs_of_causes | {"hosts": hosts}


def _memory(case: Case, ranks: int) -> int:
    """Bytes that so many ranks of one host take, with their data.

    They take some to start, and their data what the user named of it.
    """
    workers, prefetch, dataset, batch = (
        case.fact(f"job.{name}") or 0 for name in ("workers", "prefetch", "dataset", "batch")
    )
    # 2 is what torch's DataLoader takes by itself
    ahead = prefetch or 2
    data = budgets.host_memory(dataset, ranks, workers, ahead, batch).value + ranks * ahead * batch
    return int(
        max(ranks * (host_oom.PER_RANK if case.fact("gpu.count") else host_oom.PER_CPU_RANK), data)
    )


def _replanned(value: Mapping[str, Any], python: str | None) -> Plan:
    """The plan of a run folder, to be run again.

    It is without what belongs to that folder and what was redacted in it.
    """
    own = probe.recording_env(Path(), "nccl").keys()
    env = {}
    for name, text in value["env"].items():
        # a value that was hidden is none
        if name not in own and redact.REDACTED not in text:
            env[name] = text
    plan = read_plan(dict(value) | {"env": env})
    gone = shutil.which(plan.python) is None  # another machine made the case
    if python or gone:
        return replace(plan, python=probe.interpreter(python))
    return plan
