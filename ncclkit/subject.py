"""What a trial is made on: the last run of a case that was ours, or the variables of a job that was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit import probe, storage
from ncclkit.agent.facts import redact
from ncclkit.case import Case
from ncclkit.model import from_dict
from ncclkit.runs import Plan, Run


def last(case: Case, python: str | None = None) -> Run | None:
    """The last run of the lab or the live test in this case, ready to be run again; None where there is none.

    python: another training interpreter than it had.
    """
    for folder in reversed(case.runs()):
        plan = storage.read_json(folder / "plan.json", {})
        if plan.get("argv"):
            return probe.reread(case, folder, _replanned(plan, python))
    return None


def variables(case: Case) -> dict[str, str]:
    """What the logs of a job say that was set for NCCL, but for files and where to write."""
    told = {str(e.data.get("name")): str(e.data.get("value")) for e in case.of("nccl.env")}
    return {name: value for name, value in told.items() if "FILE" not in name and not name.startswith("NCCL_DEBUG")}


def _replanned(value: Mapping[str, Any], python: str | None) -> Plan:
    """The plan of a run folder, without what belongs to that folder and what was redacted in it."""
    lists = {name: tuple(value.get(name, ())) for name in ("argv", "sizes", "ops", "unset")}
    own = probe.recording_env(Path(), "nccl").keys()
    env = {name: text for name, text in value["env"].items() if name not in own and redact.REDACTED not in text}
    plan = from_dict(Plan, dict(value) | lists | {"env": env})
    return replace(plan, python=python) if python else plan
