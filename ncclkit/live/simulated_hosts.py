"""Tests between simulated hosts.

The network of a run of the lab is made once more, looked at, or crossed by ranks.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Run
from ncclkit.live import connect, probe
from ncclkit.live.launch import simulated
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.pack import packed
from ncclkit.live.options import ProbeOptions


async def connectivity(
    case: Case,
    net: Mapping[str, Any],
    on_record: OnRecord = lambda record: None,
    *,
    fix: str = "",
    env: Mapping[str, str] | None = None,
    seconds: float = 0.1,
) -> connect.Connectivity:
    """Test the connections between the hosts of a simulated network.

    It is one of `live.launch.simulated`; results go into the case.  `fix` is the cause whose fault
    is put right; `env` are variables of the job that decide which interface and port is used;
    `seconds` those of each stream.  Raises NcclkitError where hosts cannot be simulated.
    """
    with packed() as agent:
        made = simulated.network_of(net, fix)
        remote_command = shlex.join([sys.executable, str(agent), "hosts", "--enter"]) + " {host}"
        within = simulated.hosts_command(sys.executable, agent, agent.parent, made)
        given = dict(env or {})
        port = int(given.get("MASTER_PORT") or simulated.PORT)
        choices = {
            "remote_command": remote_command,
            "port": port,
            "seconds": seconds,
            "python": sys.executable,
        }
        return await connect.connectivity(
            case, list(made), on_record, within=within, env=given, **choices
        )


async def again(case: Case, room: Case) -> connect.Connectivity:
    """Test the connections between the hosts of the last run of `case`.

    It is done with the run's variables; results go to `room`.
    """
    plans = (storage.read_json(folder / "plan.json", {}) for folder in reversed(case.runs()))
    plan: dict[str, Any] = next((plan for plan in plans if plan.get("argv")), {})
    if not plan.get("network"):
        raise NcclkitError(
            "The hosts of this job are not ours to enter: test them with `ncclkit connect HOST"
            " HOST`."
        )
    return await connectivity(room, plan["network"], env=plan.get("env"))


async def connection_test(case: Case, wrong: str = "") -> Case:
    """A connection test between two hosts, with something wrong or nothing.

    Where no hosts can be simulated, none is made.  `case` takes what is found; `wrong` is a name of
    `live.launch.simulated.WRONG`.  Returns the case.
    """
    try:
        await connectivity(case, {"wrong": wrong})
    except simulated.Impossible as error:
        case.about["problems"] = [*case.about.get("problems", ()), str(error)]
    return case


async def minimal(case: Case, wrong: str = "") -> Run:
    """The smallest all_reduce over gloo between two hosts, a rank on each.

    With them something is wrong or nothing: `wrong` is a name of `live.launch.simulated.WRONG`.
    Where no hosts can be simulated, the run says so and measures nothing.
    """
    net = {"hosts": 2, "wrong": wrong}
    plan = await probe.plan_test(
        case,
        ProbeOptions(
            ranks=2, backend="gloo", max_bytes=probe.MIB, repeats=3, timeout=60, network=net
        ),
    )
    try:
        return await probe.execute(case, plan)
    except simulated.Impossible as error:
        return Run(plan, case.runs()[-1], "failed", 0.0, problem=str(error).rstrip("."))
