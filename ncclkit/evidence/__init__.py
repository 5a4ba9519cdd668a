"""From what a job leaves behind to events.

In: logs, dumps, reports and stacks, as files, folders, archives or a Slurm job.  Out: a `Reading`
of events, facts and measurements; ``docs/events.md`` is the contract.  Files are other people's:
never run, never changed, read within limits.

Begin with `read`; `files.read_file` reads one file, `merge.Merger` makes events of floods.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ncclkit.core.kinds import KINDS
from ncclkit.core.model import Event, Fact, Measurement, NcclkitError
from ncclkit.core.summary import job
from ncclkit.evidence import abnormal, debug_server, files, processes
from ncclkit.evidence.files import Part
from ncclkit.evidence.flight import compare
from ncclkit.evidence.grammars import unknown_errors
from ncclkit.evidence.merge import Merger, assign_hosts, assign_ranks
from ncclkit.evidence.ras import changes
from ncclkit.evidence.scanner import pieces
from ncclkit.evidence.sources import inputs, slurm_end

__all__ = ["KINDS", "Reading", "job", "read"]

UNREADABLE = files.UNREAD | {"archive", "trace"}
"""Kinds of files that say nothing by themselves."""
OnBytes = Callable[[int, int], object]
"""Called while files are read: bytes done, and bytes of all of them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read.

    It holds events in the order of the files, one row per file, and one sentence per thing that
    went wrong.
    """

    events: list[Event]
    inputs: list[dict[str, Any]]
    problems: list[str]
    facts: list[Fact] = field(default_factory=list)
    """Of hosts, from what other tools printed (nvidia-smi, collect_env, ulimit, ibstat …)."""
    measurements: list[Measurement] = field(default_factory=list)
    """From tables of nccl-tests, and of a case."""
    named: dict[str, str] = field(default_factory=dict)
    """Path of what was read → the input that it was found by, as `inputs.find` names it."""
    requeued: tuple[str, ...] = ()
    """Jobs of Slurm that were named, and that it has put into the queue again by itself."""


def read(
    paths: Iterable[str | Path],
    *,
    stdin: BinaryIO | None = None,
    executor: Executor | None = None,
    starts_processes: bool = False,
    on_bytes: OnBytes = lambda done, total: None,
) -> Reading:
    """Read files and folders of any mixture; ``-`` is standard input (`stdin`).

    executor: any `concurrent.futures` executor that reads files, and pieces of large ones, side by
    side; starts_processes: start some for that, where much is to be read.  The result is the same.
    Raises NcclkitError in one sentence when nothing that was given can be read; a bad file among
    good ones is a problem.
    """
    given: list[str | Path] = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise NcclkitError(
            "No input was given; name a log file, a folder with logs, or '-' for standard input."
        )
    found, problems = inputs.find(given)
    pool: AbstractContextManager[Executor | None] = nullcontext(executor)
    if starts_processes and executor is None:
        pool = processes.process_pool(found)
    with pool as helpers:
        parts = _all_parts(found, stdin, helpers, on_bytes)
    answers, notes, requeued = _answers_of_slurm(found)
    problems += notes
    for part in parts:
        problems += part.problems
    named = set(map(str, given))
    problems += [
        f"{part.path} is a trace of PyTorch's profiler; `ncclkit step --traces {part.path}`"
        " reads it."
        for part in parts
        if part.kind == "trace" and part.path in named
    ]
    if not any(part.kind not in UNREADABLE for part in parts):
        raise NcclkitError(_why_nothing(given, parts, problems))
    problems += [
        f"{part.path} is empty." for part in parts if part.kind == "empty" and part.path in named
    ]
    parts += answers
    events = _merged_events(parts)
    known = Counter(event.path for event in events if event.kind != unknown_errors.KIND)
    unknown = Counter[str]()
    for event in events:
        unknown[event.path] += event.count if event.kind == unknown_errors.KIND else 0
    rows = [part.row(known[part.path], unknown[part.path]) for part in parts]
    if sum(part.kind in ("log", "dmesg") for part in parts) <= abnormal.FEW:
        for part, row in zip(parts, rows, strict=True):
            row["quiet"] = abnormal.other_lines(part.short, part.path, part.events, part.abnormal)
    facts: list[Fact] = []
    measurements: list[Measurement] = []
    for part in parts:
        facts += part.facts
        measurements += part.measurements
    named_by = _inputs_of_paths(parts, found)
    return Reading(events, rows, problems, facts, measurements, named_by, tuple(requeued))


def _all_parts(
    found: Mapping[str, str], stdin: BinaryIO | None, helpers: Executor | None, on_bytes: OnBytes
) -> list[Part]:
    """What all files gave, by these helpers."""
    try:
        return list(_share_dumps(_read_parts(found, stdin, helpers, on_bytes), {}))
    finally:
        processes.limited.stop_if_forked()


def _answers_of_slurm(found: Mapping[str, str]) -> tuple[list[Part], list[str], list[str]]:
    """How Slurm says that the jobs which were named by their ids ended, and what it did not say.

    The third list holds those that it has requeued.
    """
    parts: list[Part] = []
    notes: list[str] = []
    requeued: list[str] = []
    for name in dict.fromkeys(found.values()):
        job = inputs.JOB.fullmatch(name)
        if job is None or not name.startswith(inputs.ASKED):
            continue
        end = slurm_end.end_of_job(job[1], inputs.ask_slurm)
        notes += filter(None, (slurm_end.note_on_running(job[1], end), end.problem))
        if end.is_requeued:
            requeued.append(job[1])
        if end.lines:
            parts += files.read_answer(name, "\n".join([*end.lines, ""]))
    return parts, notes, requeued


def _inputs_of_paths(parts: Iterable[Part], found: Mapping[str, str]) -> dict[str, str]:
    """Path → the input that it was found by; what an archive holds follows it."""
    named: dict[str, str] = {}
    name = ""
    for part in parts:
        own = name
        # the answer of a scheduler is named by its job
        if part.path.startswith(inputs.ASKED):
            own = part.path
        named[part.path] = name = found.get(part.path, own)
    return named


def _read_parts(
    found: Mapping[str, str], stdin: BinaryIO | None, executor: Executor | None, on_bytes: OnBytes
) -> Iterator[Part]:
    """Read whole files in the executor.

    A file that is read in pieces is read here, its pieces there.
    """
    sizes = {path: os.path.getsize(path) for path in found if os.path.isfile(path)}
    done, total = 0, sum(sizes.values())

    def counted(
        task: Callable[[pieces.ByteRange], pieces.ScanResult], plan: Sequence[pieces.ByteRange]
    ) -> Iterator[pieces.ScanResult]:
        assert executor
        for piece, result in zip(plan, executor.map(task, plan), strict=True):
            on_bytes(done + piece.end, total)
            yield result

    on_bytes(done, total)
    here = {path for path in found if executor is None or path == "-" or pieces.divisible(path)}
    there: dict[str, tuple[Future[list[list[Part]]], int]] = {}
    for batch in _batches_of_files([path for path in found if path not in here], sizes):
        assert executor
        task = executor.submit(_read_batch, batch)
        there |= {path: (task, place) for place, path in enumerate(batch)}
    for path in found:
        if path in there:
            task, place = there.pop(path)  # what was read is in memory only as long as it is needed
            yield from task.result()[place]
        else:
            yield from files.read_file(path, stdin, counted if executor else map)
        done += sizes.get(path, 0)
        on_bytes(done, total)


BATCH, MANY = 8 << 20, 32
"""Bytes and files that another process is asked for at once: asking takes as long as reading a
small file."""


def _batches_of_files(paths: Iterable[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The files in their order, small ones together."""
    batch = list[str]()
    left = BATCH
    for path in paths:
        size = sizes.get(path, 0)
        if batch and (size > left or len(batch) == MANY):
            yield batch
            batch, left = [], BATCH
        batch.append(path)
        left -= size
    if batch:
        yield batch


def _read_batch(paths: Sequence[str]) -> list[list[Part]]:
    """What some files gave, in the process that reads them.

    What their dumps share travels once.  It is the first of two levels of a tree; the second is the
    process that asks.  More would not spare it anything, as every result of an executor comes to
    whoever asked.
    """
    found = [files.read_file(path) for path in paths]
    known = dict[Any, Any]()
    return [list(_share_dumps(parts, known)) for parts in found]


def _share_dumps(parts: Iterable[Part], known: dict[Any, Any]) -> Iterator[Part]:
    """The parts, with what the dumps of a thousand ranks share in memory once.

    `known` holds that.
    """
    for part in parts:
        if part.dump is not None:
            part.dump.share(known)
        yield part


def _merged_events(parts: list[Part]) -> list[Event]:
    """Events of all files together, then what only all ranks' dumps together tell."""
    merger = Merger()
    for part in parts:
        for event in part.events:
            merger.add_event(event)
    dumps = [part.dump for part in parts if part.dump is not None]
    events = assign_hosts(
        assign_ranks([*merger.events(), *(compare.dump_event(dump, len(dumps)) for dump in dumps)])
    )
    order = {part.path: number for number, part in enumerate(parts)}
    events += compare.analyse(dumps, job(events)["ranks"], events)
    events += changes(part.report for part in parts if part.report is not None)
    events += debug_server.events_of_dumps(part.debug for part in parts if part.debug is not None)
    return sorted(events, key=lambda event: (order.get(event.path, len(order)), event.line))


def _why_nothing(given: list[str | Path], parts: list[Part], problems: list[str]) -> str:
    """Why nothing could be read, in one sentence."""
    if len(parts) == 1 and problems:
        return problems[-1].rstrip(".") + (
            "." if "; " in problems[-1] else "; give a log file or a folder with logs."
        )
    names = ", ".join(str(name) for name in given[:3]) + (" …" if len(given) > 3 else "")
    if len(parts) == 1:
        return f"{parts[0].path} is empty; was the job's output sent somewhere else?"
    if not parts and problems:
        return (
            f"{names} cannot be read ({problems[-1].partition(';')[0].rstrip('.')}); ask its owner"
            " or copy it."
        )
    if not parts:
        return f"{names} holds no file; give the folder in which the job wrote its logs."
    return (
        f"None of the {len(parts)} files in {names} is a readable log; give the folder with the"
        " job's logs."
    )
