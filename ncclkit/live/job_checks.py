"""What of a batch job can be judged before it waits in the queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import plural
from ncclkit.live import node_kinds, scheduler
from ncclkit.live.options import JobOptions

TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<rest>\d{1,9}(?::\d{1,2}){0,2})")
ELSEWHERE = re.compile(r"(?:^|\s)(?:-M|--clusters?\b)")
"""sbatch options by which a job goes to a cluster that the case does not know."""


def seconds_of(time: str) -> int | None:
    """The seconds of a time limit in Slurm's words; None for UNLIMITED and for anything else."""
    match = TIME.fullmatch(time.strip())
    if match is None:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    days = int(match["days"] or 0)
    if match["days"] is not None:
        # days-hours, days-hours:minutes, days-hours:minutes:seconds
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        # minutes, minutes:seconds
        hours = 0
        minutes, seconds = (*parts, 0)[:2]
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def refuse_misfit(case: Case, options: JobOptions) -> None:
    """Raise NcclkitError for a job that its partition can never start, as far as the case knows."""
    row = scheduler.partition(scheduler.known(case).get("partitions", []), options.partition)
    if not row or ELSEWHERE.search(options.sbatch_options):
        return
    name = f"Partition {row['name']}"
    limit = seconds_of(row["time_limit"])
    asked = seconds_of(str(options.time))
    # a QoS may allow more time and nodes than its partition
    if not options.qos:
        if limit is not None and asked is not None and asked > limit:
            raise NcclkitError(
                f"{name} allows {row['time_limit']}, and -t {options.time} asks for more; ask for"
                " less (minutes, or [days-]hours:minutes:seconds), or name another with -p."
            )
        most = scheduler.number_in(row["max_nodes"])
        if most and options.nodes > most:
            raise NcclkitError(
                f"{name} allows {plural(most, 'node')} for one job, and -N {options.nodes} asks for"
                " more; ask for less, or name another partition with -p."
            )
    if row["nodes"] and options.nodes > row["nodes"]:
        raise NcclkitError(
            f"{name} has {plural(row['nodes'], 'node')}, and -N {options.nodes} asks for more; ask"
            " for less, or name another partition with -p."
        )
    _refuse_gpus(row, name, options)


def _refuse_gpus(row: Mapping[str, Any], name: str, options: JobOptions) -> None:
    """Raise NcclkitError where too few nodes have as many GPUs as the job names."""
    kinds = row.get("kinds", ())
    if not kinds or options.gpus_per_node < 1:
        return
    fitting = 0
    for kind in kinds:
        if kind["gpus"] >= options.gpus_per_node:
            fitting += kind["nodes"]
    if fitting >= options.nodes:
        return
    nodes = "node"
    if options.nodes > 1:
        nodes = f"{options.nodes:,} nodes"
    wanted = f"{nodes} with {plural(options.gpus_per_node, 'GPU')}"
    other = "name another partition with -p (`sinfo -o '%P %G'` lists their GPUs)"
    if fitting:
        other = f"-N {fitting} takes those that have, or {other}"
    raise NcclkitError(
        f"{name} has no {wanted}: its nodes (how many × GPUs of each)"
        f" are {node_kinds.mixed_words(row, with_idle=False)}; {other}, or take any nodes with"
        " --gpus-per-node 0."
    )
