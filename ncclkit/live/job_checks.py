"""What of a batch job can be judged before it waits in the queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import plural, some
from ncclkit.live import node_kinds, partition_choice, scheduler
from ncclkit.live.options import JobOptions

TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<rest>\d{1,9}(?::\d{1,2}){0,2})")
ELSEWHERE = re.compile(r"(?:^|\s)(?:-M|--clusters?\b)")
"""sbatch options by which a job goes to a cluster that the case does not know."""
ONE_FEATURE = re.compile(r"[\w.+:-]{1,100}")
"""A constraint that is one feature."""


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


@dataclass(frozen=True, slots=True)
class JobMisfit:
    """Why a partition can never start a job, and how the job would fit it."""

    why: str
    instead: str


def refuse_misfit(case: Case, options: JobOptions) -> None:
    """Raise NcclkitError for a job that its partition can never start, as far as the case knows."""
    rows = scheduler.known(case).get("partitions", [])
    row = scheduler.partition(rows, options.partition)
    if not row or ELSEWHERE.search(options.sbatch_options):
        return
    misfit = misfit_of_job(row, options)
    if misfit is None:
        return
    accounts = [options.account]
    if not options.account:
        accounts = scheduler.choices(case)["account"]
    fitting = _other_partitions(rows, row, options, accounts)
    other = "no other partition that you may use fits it, either"
    if fitting:
        other = f"-p names another that it fits ({some(fitting)})"
    raise NcclkitError(f"{misfit.why}; {misfit.instead}; {other}.")


def _other_partitions(
    rows: Sequence[Mapping[str, Any]],
    row: Mapping[str, Any],
    options: JobOptions,
    accounts: Iterable[str],
) -> list[str]:
    """The other partitions that may take this job, by what Slurm says of them."""
    found = []
    for other in partition_choice.open_partitions(rows, accounts):
        lacks = options.gpu_type and options.gpu_type not in node_kinds.types_of([other])
        # of ``a&b`` and its like nothing is judged
        feature = options.constraint
        if ONE_FEATURE.fullmatch(feature) and feature not in node_kinds.features_of([other]):
            lacks = True
        if other["name"] != row["name"] and not lacks and misfit_of_job(other, options) is None:
            found.append(other["name"])
    return found


def misfit_of_job(row: Mapping[str, Any], options: JobOptions) -> JobMisfit | None:
    """Why a partition can never start a job; None where it may."""
    # a QoS may allow more time and nodes than its partition
    limits = None
    if not options.qos:
        limits = _beyond_limits(row, options)
    return limits or _too_many_nodes(row, options) or _too_few_gpus(row, options)


def _beyond_limits(row: Mapping[str, Any], options: JobOptions) -> JobMisfit | None:
    """More time or nodes than the partition allows one job."""
    limit = seconds_of(row["time_limit"])
    asked = seconds_of(str(options.time))
    if limit is not None and asked is not None and asked > limit:
        return JobMisfit(
            f"Partition {row['name']} allows {row['time_limit']}, and -t {options.time} asks for"
            " more",
            "ask for less (minutes, or [days-]hours:minutes:seconds)",
        )
    most = scheduler.number_in(row["max_nodes"])
    if most and options.nodes > most:
        return JobMisfit(
            f"Partition {row['name']} allows {plural(most, 'node')} for one job, and"
            f" -N {options.nodes} asks for more",
            f"-N {most} is the most there",
        )
    return None


def _too_many_nodes(row: Mapping[str, Any], options: JobOptions) -> JobMisfit | None:
    """More nodes than the partition has."""
    count = row["nodes"]
    if not count or options.nodes <= count:
        return None
    return JobMisfit(
        f"Partition {row['name']} has {plural(count, 'node')}, and -N {options.nodes} asks for"
        " more",
        f"-N {count} is the most there",
    )


def _too_few_gpus(row: Mapping[str, Any], options: JobOptions) -> JobMisfit | None:
    """Too few nodes that have as many GPUs as the job names."""
    kinds = row.get("kinds", ())
    if not kinds or options.gpus_per_node < 1:
        return None
    fitting = node_kinds.nodes_with_gpus(row, options.gpus_per_node)
    if fitting >= options.nodes:
        return None
    nodes = "node"
    if options.nodes > 1:
        nodes = f"{options.nodes:,} nodes"
    wanted = f"{nodes} with {plural(options.gpus_per_node, 'GPU')}"
    instead = "--gpus-per-node 0 takes any nodes"
    if fitting:
        instead = f"-N {fitting} takes those that have, {instead}"
    return JobMisfit(
        f"Partition {row['name']} has no {wanted}: its nodes (how many × GPUs of each)"
        f" are {node_kinds.mixed_words(row, with_idle=False)}",
        instead,
    )
