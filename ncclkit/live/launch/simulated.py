"""Ranks on simulated hosts of this machine: one torchrun per host, static rendezvous, all under one guard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.core.storage import write
from ncclkit.live import simulated_topology
from ncclkit.live.launch.local import OnRecord, Record, guarded
from ncclkit.live.launch.pack import packed


class Impossible(NcclkitError):
    """Hosts cannot be simulated on this machine."""


CANNOT, PREFIX = 2, "ncclkit: hosts cannot be simulated here: "
"""Exit status of `agent.run.simulated_hosts`, and how its reason begins."""
LAST_WORDS = 5.0
"""Seconds that hosts get beyond the timeout of collectives, once one host has failed."""


async def run(plan: Plan, folder: Path, on_record: OnRecord = lambda record: None) -> list[Record]:
    """As `local.run`, on the simulated hosts of the plan's network; each sends the facts of its network first.

    Its ranks are those of all hosts, a multiple of their number.  MASTER_ADDR and MASTER_PORT of its variables are what
    the launchers are told; without them it is the first host's name.  Raises NcclkitError where hosts cannot be
    simulated.
    """
    argv, env = plan.argv, plan.env
    fix = argv[argv.index("--fix") + 1] if "--fix" in argv else ""
    made = simulated_topology.hosts(plan.network, fix)
    if plan.ranks % len(made):
        raise NcclkitError(
            f"{plan.ranks} ranks do not divide over {len(made)} hosts; ask for a multiple of {len(made)}."
        )
    limit = float(argv[argv.index("--timeout") + 1]) if "--timeout" in argv else 30.0
    with packed(plan.lab) as agent:
        _commands(made, plan, agent, folder, limit)
        hosts = within(plan.python, agent, folder, made, limit + LAST_WORDS)
        records = await guarded(agent, hosts, env, plan.deadline, folder, plan.python, on_record, plan.unset)
    possible(records, folder)
    return records


def _commands(made: simulated_topology.Hosts, plan: Plan, agent: Path, folder: Path, limit: float) -> None:
    """Give each host its torchrun; limit: of collectives, in seconds."""
    for number, host in enumerate(made.values()):
        host["command"] = [
            *(plan.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(host.get("nnodes", len(made))), "--node-rank", str(number)),
            *("--nproc-per-node", str(plan.ranks // len(made)), "--max-restarts", str(plan.restarts)),
            *("--master-addr", plan.env.get("MASTER_ADDR") or next(iter(made))),
            *("--master-port", plan.env.get("MASTER_PORT") or str(simulated_topology.PORT)),
            *("--rdzv-backend", "static", "--rdzv-conf", f"timeout={limit:.0f}", str(agent), *plan.words(folder)),
        ]


def possible(records: Sequence[Record], folder: Path) -> None:
    """Raises `Impossible`, in one sentence, where a run ended because hosts cannot be simulated here."""
    log = folder / "launcher.log"
    said = log.read_text(errors="replace") if log.exists() else ""
    if PREFIX in said and any(record["kind"] == "end" and record.get("exitcode") == CANNOT for record in records):
        why = next(
            (line.partition(PREFIX)[2] for line in said.splitlines() if line.startswith(PREFIX)), "no reason given"
        )
        raise Impossible(
            f"Hosts cannot be simulated on this machine ({why}); try as root, with iproute2 and nftables installed."
        )


def within(python: str, agent: Path, folder: Path, made: simulated_topology.Hosts, wait: float = 0.0) -> list[str]:
    """The start of a command that makes the hosts; a further command runs beside them and may enter them.

    agent: as `packed` gives it; what the hosts execute and believe lies beside it, only their logs are in `folder`.
    """
    plan = {"folder": str(folder), "private": str(agent.parent), "wait": wait, "hosts": made}
    write(agent.parent / "hosts.json", json.dumps(plan, indent=1))
    return [python, str(agent), "hosts", str(agent.parent / "hosts.json")]
