"""Who is at fault where a staged test broke off: fewer and fewer ranks are started, until it is known.

Each question is a job of its own on the same hosts, in which disjoint groups of ranks work at once and the others
stand aside: new processes, since a process whose communicator hangs, or whose GPU reported an error, says nothing
about the next group.  `narrow` says which groups; what they said is kept in ``bisection.jsonl`` of the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import wire
from ncclkit.agent.run.subgroup import spans
from ncclkit.analysis.stages import StagedTest, staged_test
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan, Run

KEPT, FOLDER = "bisection.jsonl", ".bisection"
"""What the groups said; and the runs themselves, hidden from whoever reads the run folder."""
LIMIT = {"nccl": 15.0, "gloo": 10.0}
"""Seconds for a group to get through, from when its ranks have found each other; of GPUs, with 20 ms more for each."""
LEAST, MOST = 8.0, 120.0
"""Seconds without which no question is worth asking, as ranks have to start and import torch; and for one at most."""
Group = tuple[int, ...]
OnRecord = Callable[[dict[str, Any]], None]
Launch = Callable[[Plan, Path, OnRecord], Awaitable[list[dict[str, Any]]]]


async def to_the_end(case: Case, run: Run, launch: Launch, on_record: OnRecord = lambda record: None) -> StagedTest:
    """Try groups of ranks until the fault of a staged test is located, or the run's deadline has passed.

    launch: as `ncclkit.live.launch.local.run`.  Every answer is in the case when this returns, is cancelled or raises.
    """
    until, alone = time.monotonic() + run.plan.deadline - run.seconds, False
    while (found := staged_test(case)).failing and (asked := found.bisected.ask):
        left = until - time.monotonic()
        if left < LEAST:
            break
        groups = at_once(asked)[: 1 if alone else None]
        number = len(list((run.folder / FOLDER).glob("*"))) + 1
        say = "; ".join(found.who(group) for group in groups)
        on_record({"kind": "stage", "number": number, "say": f"Narrowing down, try {number}: {say}"})
        folder = run.folder / FOLDER / str(number)
        folder.mkdir(parents=True)
        records, ended = await _tried(run.plan, groups, launch, min(left, MOST), folder, on_record)
        told = {str(record.get("ranks")) for record in records}
        silent = [group for group in groups if spans(group) not in told]
        alone = bool(silent) and len(groups) > 1  # one that died may have taken the others of its host along
        _keep(case, run.folder, [*records, *([] if alone or not ended else map(_silence, silent))])
        if silent and not ended:  # never started, that slow to start, or stuck beyond the reach of its own alarm
            break
    return found


def at_once(groups: Sequence[Group]) -> list[Group]:
    """As many of the groups, in their order, as can be tried at once."""
    taken: set[int] = set()
    chosen = []
    for group in groups:
        if not taken & set(group):
            chosen.append(group)
            taken |= set(group)
    return chosen


async def _tried(
    plan: Plan, groups: Sequence[Group], launch: Launch, deadline: float, folder: Path, on_record: OnRecord
) -> tuple[list[dict[str, Any]], bool]:
    """What the ranks of some groups said of them, and whether the job began, and came to an end before the deadline."""
    heard: list[dict[str, Any]] = []
    ending = False

    def keep(record: dict[str, Any]) -> None:
        nonlocal ending
        ending = ending or record["kind"] == "ending"
        if record["kind"] == "stage.group" and not ending:  # whoever is ended fails, and whoever waits for him
            heard.append(record)
        elif record["kind"] == "log":
            on_record(record)

    limit = LIMIT.get(plan.backend, LIMIT["nccl"]) + 0.02 * plan.ranks
    asked = (*plan.argv, "--timeout", f"{limit:g}", "--groups", "/".join(spans(group) for group in groups))
    records = await launch(replace(plan, argv=asked, deadline=deadline, restarts=0), folder, keep)
    began = any(record.get("phase") == "hello" for record in records)  # else srun, or a host, did not start it
    return heard, began and all(record.get("reason") != "deadline" for record in records if record["kind"] == "end")


def _silence(group: Group) -> dict[str, Any]:
    """What is kept of a group that had the job for itself, and of which no rank said anything."""
    told = {"stage": "bisect", "ranks": spans(group), "bytes": 0, "busbw": None, "latency_us": None, "wrong": 0}
    return {"kind": "stage.group", "rank": group[0], **told, "problem": "no rank of it came to an end"}


def _keep(case: Case, folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Add the answers to the run folder and to the case."""
    if not records:
        return
    lines = [json.dumps({"ncclkit": wire.VERSION, "t": time.time(), **record}) + "\n" for record in records]
    try:
        with open(folder / KEPT, "a", encoding="utf-8") as out:
            out.writelines(lines)
    except OSError as error:
        raise NcclkitError(f"Cannot write {folder / KEPT}: {error.strerror}; free space there.") from error
    case.add(evidence.read([folder / KEPT]).events)
    case.save()
