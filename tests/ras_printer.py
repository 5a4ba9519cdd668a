"""What NCCL's RAS prints of a job, as text of each version and as JSON.

Written after the format tables of the printer (2.24 to 2.32): the order of blocks, which sets are listed, and how the
versions differ.  Numbers are made up; nothing here ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

VERSIONS = ("2.24.3", "2.25.1", "2.26.2", "2.27.7", "2.28.3", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
JSON_FROM = (2, 28, 7)
OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HASH = "07a079b828ff1a75"


@dataclass
class Job:
    """One communicator of all ranks, each a process with one GPU."""

    ranks: int = 16
    per_node: int = 8
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """operation → {rank: launched}, of ranks that differ from `usual`."""
    usual: dict[str, int] = field(default_factory=lambda: {"AllReduce": 641, "AllGather": 12})
    statuses: dict[int, str] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    init_errors: dict[int, str] = field(default_factory=dict)
    async_errors: dict[int, str] = field(default_factory=dict)
    timeouts: int = 0
    pid: int = 4000
    host: str = ""
    """Of all ranks; else one address a node."""

    def node(self, rank: int) -> str:
        return self.host or f"192.0.2.{10 + rank // self.per_node}"

    def launched(self, op: str) -> dict[int, int]:
        if op == "collective":
            return {rank: sum(self.launched(op)[rank] for op in OPS) for rank in self.present()}
        own = self.counts.get(op, {})
        return {rank: own.get(rank, self.usual.get(op, 0)) for rank in self.present()}

    def present(self) -> list[int]:
        return [rank for rank in range(self.ranks) if rank not in self.missing + self.dead]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def behind(op: str, ranks: Iterable[int], count: int = 640) -> dict[str, dict[int, int]]:
    return {op: dict.fromkeys(ranks, count)}


def text(version: str, job: Job, verbose: bool = False) -> str:
    """The report of `ncclras`, of one version."""
    blocks = [*_head(version, job), *_errors(version, job), *_warnings(version, job, verbose)]
    return "\n".join(blocks) + "\n"


def as_json(job: Job, version: str = "2.28.9") -> str:
    ranks = [_json_rank(job, rank) for rank in job.present()]
    lost = []
    for rank in sorted(job.missing + job.dead):
        status = {"unresponsive": True, "considered_dead": rank in job.dead}
        lost.append({**_json_place(job, rank), "status": status})
    comm = {"hash": f"0x{int(HASH, 16):x}", "size": job.ranks, "ranks_count": len(ranks)}
    comm |= {"missing_ranks_count": len(lost), "ranks": ranks, "missing_ranks": lost}
    value = {"nccl_version": version, "timestamp": "2026-11-21 04:35:08", "communicators_count": 1}
    return json.dumps({**value, "communicators": [comm], "ras": {"timeouts_count": job.timeouts}}, indent=2)


CODES = {"Unhandled CUDA error": 1, "System error": 2, "Internal error": 3, "Remote process error": 6}


def _json_place(job: Job, rank: int) -> dict[str, object]:
    gpu = rank % job.per_node
    return {"rank": rank, "host": job.node(rank), "pid": job.pid + rank, "cuda_dev": gpu, "nvml_dev": gpu}


def _json_rank(job: Job, rank: int) -> dict[str, object]:
    status = job.statuses.get(rank, "RUNNING")
    state = {"init_state": 7 if status == "INIT" else CODES.get(job.init_errors.get(rank, ""), 0)}
    state |= {"async_error": CODES.get(job.async_errors.get(rank, ""), 0), "finalize_called": status == "FINALIZE"}
    state |= {"destroy_flag": False, "abort_flag": status == "ABORT"}
    counts = {op: job.launched(op)[rank] for op in OPS}
    return {**_json_place(job, rank), "status": state, "collective_counts": counts}


def _head(version: str, job: Job) -> Iterator[str]:
    nodes = -(-job.ranks // job.per_node)
    yield f"NCCL version {version} compiled with CUDA 12.9"
    yield "CUDA runtime version 12090, driver version 12080\n\nJob summary\n===========\n"
    yield "  Nodes  Processes         GPUs  Processes     GPUs"
    yield "(total)   per node  per process    (total)  (total)"
    yield f"{nodes:7} {job.per_node:10} {1:12} {job.ranks:10} {job.ranks:8}\n"
    yield f"Communicators... ({'0.00' if numbers(version) < JSON_FROM else '0.000'}s)\n=============\n"
    yield "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"
    yield "    #  in group  per comm  per node  per comm  in group"
    words = _table_words(version, job)
    yield f"{0:5} {1:9} {nodes:9} {job.per_node:9} {job.ranks:9} {job.ranks:9} {'RUNNING':>9}  {words}\n"


def _table_words(version: str, job: Job) -> str:
    uneven = any(len(set(job.launched(op).values())) > 1 for op in OPS) or len(_status_sets(version, job)) > 1
    words = [("INCOMPLETE", job.missing + job.dead), ("ERROR", {**job.init_errors, **job.async_errors})]
    said = [word for word, held in words if held] + ["MISMATCH"] * uneven
    return ",".join(said) or "OK"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}" if count != 1 else f"1 {noun}"


def _processes(job: Job, ranks: Iterable[int]) -> list[str]:
    return [f"  Process {job.pid + r} on node {job.node(r)} managing GPU {r % job.per_node}" for r in ranks]


def _place(job: Job, rank: int) -> str:
    return f"GPU {rank % job.per_node} managed by process {job.pid + rank} on node {job.node(rank)}"


def _errors(version: str, job: Job) -> Iterator[str]:
    yield "Errors\n======\n"
    if job.missing:
        yield f"INCOMPLETE\n  Missing communicator data from {_plural(len(job.missing), 'job process')}"
        yield from _processes(job, job.missing if len(job.missing) <= 10 else ())
        yield ""
    if job.dead:
        many = _plural(len(job.dead), "job process")
        yield f"DEAD\n  {many} {'is' if len(job.dead) == 1 else 'are'} considered dead (unreachable via the RAS network)"
        yield from _processes(job, job.dead if len(job.dead) <= 10 else ())
        yield ""
    lost = sorted(job.missing + job.dead)
    if lost:
        yield f"#0-0 ({HASH}) INCOMPLETE\n  Missing communicator data from {_plural(len(lost), 'rank')}"
        if len(lost) <= 10 and numbers(version) >= (2, 26):
            yield from (f"  Rank {rank} -- {_place(job, rank)}" for rank in lost)
        elif len(lost) <= 10:
            yield f"  The missing rank{'s' if len(lost) > 1 else ''}: {','.join(map(str, lost))}"
        yield ""
    if job.init_errors or job.async_errors:
        yield f"#0-0 ({HASH}) ERROR"
        yield from _reported(job, "Initialization", job.init_errors)
        yield from _reported(job, "Asynchronous", job.async_errors)
        yield ""


def _reported(job: Job, kind: str, errors: Mapping[int, str]) -> Iterator[str]:
    if not errors:
        return
    yield f"  {kind} error{'s' if len(errors) > 1 else ''} on {_plural(len(errors), 'rank')}"
    for error in dict.fromkeys(errors.values()):
        held = [rank for rank in errors if errors[rank] == error]
        if error == "timeout":  # NCCL counts it, and lists nobody
            continue
        if len(held) == 1:
            yield f"  Rank {held[0]} reported {error} -- {_place(job, held[0])}"
            continue
        yield f"  {len(held)} ranks reported {error}"
        yield from (f"  Rank {rank} -- {_place(job, rank)}" for rank in (held if len(held) <= 10 else ()))


def _status_sets(version: str, job: Job) -> dict[str, list[int]]:
    sets: dict[str, list[int]] = {}
    for rank in job.present():
        sets.setdefault(job.statuses.get(rank, "RUNNING"), []).append(rank)
    return sets


def _is_listed(size: int, of: int, verbose: bool) -> bool:
    return 2 * size < of if verbose else size <= 10 and 4 * size <= of


def _warnings(version: str, job: Job, verbose: bool) -> Iterator[str]:
    yield "Warnings\n========\n"
    if job.timeouts:
        plural = "s" if job.timeouts > 1 else ""
        yield f"TIMEOUT\n  Encountered {job.timeouts} communication timeout{plural} while gathering communicator data\n"
    parts = []
    sets = _status_sets(version, job)
    if len(sets) > 1:
        parts.append([*_status_part(version, job, sets, verbose)])
    for op in OPS if numbers(version) >= (2, 26) else ("collective",):
        if len(set(job.launched(op).values())) > 1:
            parts.append([*_count_part(version, job, op, verbose)])
    if parts:
        yield f"#0-0 ({HASH}) MISMATCH"
        for part in parts:
            yield "\n".join(part) + ("\n" if numbers(version) >= (2, 26) else "")


def _status_part(version: str, job: Job, sets: dict[str, list[int]], verbose: bool) -> Iterator[str]:
    yield "  Communicator ranks have different status"
    for status, held in sorted(sets.items(), key=lambda item: -len(item[1])):
        old = status == "NOCOMM" and numbers(version) < (2, 26)
        name = "UNKNOWN" if old else status
        if len(held) == 1:
            yield f"  Rank {held[0]} has status {name}" + ("" if old else f" -- {_place(job, held[0])}")
            continue
        yield f"  {len(held)} ranks have status {name}"
        if _is_listed(len(held), job.ranks, verbose):
            if old:
                yield f"  The unknown ranks: {','.join(map(str, held))}"
            else:
                yield from (f"  Rank {rank} -- {_place(job, rank)}" for rank in held)


def _count_part(version: str, job: Job, op: str, verbose: bool) -> Iterator[str]:
    old = numbers(version) < (2, 26)
    yield f"  Communicator ranks have different {op} operation counts"
    sets: dict[int, list[int]] = {}
    for rank, count in job.launched(op).items():
        sets.setdefault(count, []).append(rank)
    for count, held in sorted(sets.items(), key=lambda item: (-len(item[1]), -item[0])):
        does = f"launched up to operation {count}" if count or old else "not launched any operations"
        if len(held) == 1:
            yield f"  Rank {held[0]} has {does} -- {_place(job, held[0])}"
            continue
        yield f"  {len(held)} ranks have {does}"
        if _is_listed(len(held), job.ranks, verbose):
            yield from (f"  Rank {rank} -- {_place(job, rank)}" for rank in held)
