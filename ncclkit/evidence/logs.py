"""What a job left behind, read into a case.

It is the door of `03_logs`.  It reads also facts of other hosts, and counts what was read.
"""

from __future__ import annotations

import glob
import io
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Measurement, NcclkitError
from ncclkit.evidence import samples
from ncclkit.evidence.files import UNREAD
from ncclkit.evidence.programs import add_program_lines

SLURM_JOB = re.compile(r"\bStepId=(\d+)|\bJOB (\d+)\b|\bSTEP (\d+)\.|(?:^|/)slurm-(\d+)[^/]*$")
"""Where a path or a line of Slurm names its job."""
ANSWER_KIND = "told.answer"
"""Kind of what a person answered to a question about the case."""
ASKED_JOB = re.compile(r"slurm:(\d+)")
"""A job that was named by its id."""


def read_logs(logs: str | Case, case_dir: str | Path = "", example: str = "") -> Case:
    """Read what `logs` names, and nothing else, into a case.

    With `case_dir` the case is kept in that folder.  `logs` are files, folders, globs, archives or
    Slurm job ids, separated by blanks as in a shell; the name of a bundled run; or lines of a log
    themselves; the case of a reading comes back as it is.  What an earlier reading left in the case
    gives way, so that two jobs are never judged as one.  Of several jobs in `logs` the case holds
    the first; ``case.about["other_jobs"]`` has the paths of each of the others.  One sentence for
    each thing that could not be read stands in ``case.about["problems"]``; raises NcclkitError
    where nothing could.

    Where `logs` is empty, the case comes back as an earlier reading left it; where nothing was
    read, with the bundled run `example`, if one is named.
    """
    if isinstance(logs, Case):
        return logs
    if isinstance(logs, str) and not logs.strip() and case_dir and example:
        case = Case.open(case_dir)
        if case.events and not is_example(case):
            return case
        logs = example
    pasted = _reading_of_pasted(logs)
    if pasted:
        given = ["-"]
    else:
        given = _single_inputs(logs)
    reading = add_program_lines(pasted or evidence.read(given, starts_processes=True))
    case, *others = fill_jobs(Case.open(case_dir) if case_dir else Case(), reading, given)
    case.about |= {
        "logs": "lines that were pasted" if pasted else case.about["logs"] if others else logs
    }
    case.about |= {"problems": list(reading.problems)}
    return case.save()


def fill_jobs(case: Case, reading: evidence.Reading, given: Sequence[str]) -> list[Case]:
    """A case for each job that the `given` logs are of.

    `case` is that of the first, the others are in memory.  In ``about`` of each ``logs`` names what
    is its own, and of the first ``other_jobs`` has the paths of the others.
    """
    first, *others = inputs_by_job(reading.named, reading.events)
    filled = [fill(case, reading)]
    case.about |= {"logs": shlex.join(first if others else given), "other_jobs": others}
    for names in others:
        other = fill(Case(), reading)
        other.about |= {"logs": shlex.join(names)}
        filled.append(other)
    for job, own in zip(filled, [set(first), *map(set, others)], strict=True) if others else ():
        job.events = [
            event for event in job.events if reading.named.get(event.path, first[0]) in own
        ]
        job.inputs = [row for row in job.inputs if reading.named[str(row["path"])] in own]
    return filled


def inputs_by_job(named: Mapping[str, str], events: Sequence[Event]) -> list[list[str]]:
    """The inputs that files were found by, those of one job together.

    They come in the order in which they were named.  Two of them are of two jobs where Slurm's
    numbers differ, or where NCCL ran a rank in another process.  One that shows neither is taken
    for a part of the first job.  `named` is path of a file → its input.
    """
    found: list[tuple[list[str], Marks]] = []
    for name, mine in _marks_of_inputs(named, events).items():
        alike = (job for job in found if not _different_jobs(mine, job[1]))
        job = next(alike, None)
        if job is None:
            found.append(job := ([], defaultdict(set)))
        job[0].append(name)
        for mark, numbers in mine.items():
            job[1][mark] |= numbers
    return [names for names, _ in found]


Marks = Mapping[str, set[int]]
"""``slurm`` → ids of jobs; host and rank → ids of processes."""


def _marks_of_inputs(named: Mapping[str, str], events: Iterable[Event]) -> Mapping[str, Marks]:
    """Input → what its own name and the events of its files say of their job."""
    marks: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in named.values()}
    for name, mine in marks.items():
        asked = ASKED_JOB.match(name)
        if asked:
            mine["slurm"].add(int(asked[1]))
    for event in events:
        home = named.get(event.path)
        if home is None:
            continue
        number = SLURM_JOB.search(event.text if event.kind == "slurm.event" else event.path)
        if number:
            marks[home]["slurm"].add(int(next(filter(None, number.groups()))))
        if event.kind.startswith("nccl.") and event.rank is not None and event.pid:
            marks[home][f"{event.host} {event.rank}"].add(event.pid)
    return marks


def _different_jobs(one: Marks, other: Marks) -> bool:
    """Whether two inputs are of two jobs; what Slurm says of that counts alone."""
    shared = one.keys() & other.keys()
    return any(not one[name] & other[name] for name in {"slurm"} & shared or shared)


def is_example(case: Case) -> bool:
    """Whether what a case holds was read from a recording of the kit.

    Such a recording is of somebody else's job.
    """
    paths = [str(row.get("path", "")) for row in case.inputs]
    return bool(paths) and all(Path(path).is_relative_to(samples.HERE) for path in paths)


def forget(case: Case) -> Case:
    """Take what an earlier reading left out of a case.

    Another job must not be judged with it.
    """
    case.events = []
    case.findings = []
    case.inputs = []
    return case


def fill(case: Case, reading: evidence.Reading) -> Case:
    """Put what was read in the place of what an earlier reading left.

    Facts and measurements are added.  Answers of a person stay where the same logs are read again.
    """
    answers = _answers_that_stay(case, reading)
    forget(case).replace_facts(reading.facts).add(reading.measurements)
    case.events, case.inputs = [*reading.events, *answers], list(reading.inputs)
    return case


def _answers_that_stay(case: Case, reading: evidence.Reading) -> list[Event]:
    """Answers about these very logs.

    What was answered about another job must not be judged with this one.
    """
    before = _first_lines(case.events, case.inputs)
    now = _first_lines(reading.events, reading.inputs)
    is_same = bool(before) and all(now.get(path) == first for path, first in before.items())
    if is_same:
        return case.of(ANSWER_KIND)
    return []


def _first_lines(
    events: Iterable[Event], inputs: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[int, str]]:
    """File → number and text of its first line that was kept.

    That line stays when a log grows, and differs where it is another one.
    """
    found: dict[str, tuple[int, str]] = {}
    for file in inputs:
        path = os.path.abspath(str(file.get("path", "")))
        for row in (*file.get("quiet", ()), *file.get("abnormal", ())):
            first = int(row["line"]), str(row["text"])
            found[path] = min(found.get(path, first), first)
    for event in events:
        # of progress the last line is kept, which goes on
        if event.kind in (ANSWER_KIND, "progress") or not event.line:
            continue
        path = os.path.abspath(event.path)
        first = event.line, event.text
        found[path] = min(found.get(path, first), first)
    return found


def read_facts(case: Case, others: str) -> Case:
    """Add the facts of other hosts to a case.

    They are what `ncclkit inspect --json` printed there, or their case folders.  `others` are
    files, folders or globs, separated by blanks as in a shell; where nothing is named nothing is
    done.  Raises NcclkitError where they hold no facts at all.
    """
    if not others.strip():
        return case
    facts = evidence.read(_single_inputs(others)).facts
    if not facts:
        raise NcclkitError(
            f"There are no facts in {others}; write them with `ncclkit inspect --json > FILE` on"
            " each host."
        )
    return case.replace_facts(facts).save()


def _reading_of_pasted(logs: str) -> evidence.Reading | None:
    """What lines of a log say that were given in place of its name.

    It is None where files are named.  One line alone is a log where it holds blanks, no word of it
    is a file, and something in it is known.
    """
    if not isinstance(logs, str) or len(logs.split()) < 2 or _path_exists(logs):
        return None
    alone = "\n" not in logs.strip()
    if alone and any(_path_exists(word) or glob.glob(word) for word in logs.split()):
        return None
    reading = evidence.read(
        ["-"], stdin=io.BytesIO(logs.encode("utf-8", "replace")), starts_processes=True
    )
    if alone and not reading.events:
        return None
    return reading


def _path_exists(logs: str) -> bool:
    try:
        return Path(logs).expanduser().exists()
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):
        # too long for a name, a NUL in it, or nobody's home
        return False


def _single_inputs(logs: str) -> list[str]:
    """The single inputs; a path that exists is one, whatever characters it has."""
    if not isinstance(logs, str) or not logs.strip():
        raise NcclkitError(
            "No logs were named; give a file, a folder, a glob, an archive or a Slurm job id in"
            " quotes."
        )
    if _path_exists(logs):
        return [logs]
    if logs in samples.list_samples():
        return [str(samples.HERE / logs)]
    try:
        return shlex.split(logs)
    except ValueError as error:
        raise NcclkitError(
            f"The logs {logs!r} cannot be read as a list ({error}); close the quotes."
        ) from error


NOT_READ = UNREAD | {"trace"}
"""Kinds of rows of ``inputs.json`` in which nothing is looked for."""


def reading_summary(
    inputs: Sequence[Mapping[str, Any]], facts: int, measured: Sequence[Measurement]
) -> str:
    """One sentence: files by kind, what came out, what was not understood."""
    kinds = Counter(str(row["kind"]) for row in inputs)
    read = []
    for kind, count in kinds.most_common():
        if kind not in NOT_READ:
            read.append(f"{count} × {kind}")
    events = sum(row["events"] for row in inputs)
    out = [f"{events:,} events"]
    if facts:
        out.append(f"{facts:,} facts")
    out += _measured_in_words(measured)
    left = []
    for kind in sorted(NOT_READ & kinds.keys()):
        left.append(f"{kinds[kind]} × {kind}")
    mute = sum(row["kind"] == "log" and not row["events"] for row in inputs)
    # a packed case holds such logs beside its facts and measurements
    if mute and not facts and not measured:
        left.append(f"{mute} × log in which no line is known")
    errors = sum(row.get("errors", 0) for row in inputs)
    if errors:
        left.append(f"{errors:,} × line that calls itself an error")
    said = f"Read {', '.join(read)}: {', '.join(out)}"
    if left:
        return f"{said}; not understood: {', '.join(left)}."
    return f"{said}."


def _measured_in_words(rows: Sequence[Measurement]) -> list[str]:
    """How many, the highest bandwidth, and the values that were wrong."""
    if not rows:
        return []
    best = max(rows, key=lambda m: m.busbw or m.algbw)
    kind = "algbw"
    if best.busbw is not None:
        kind = "busbw"
    speed = (
        f"{len(rows):,} measurements ({best.op} up to {best.busbw or best.algbw:.2f} GB/s {kind})"
    )
    wrong = sum(m.wrong or 0 for m in rows)
    if wrong:
        return [speed, f"{wrong:,} WRONG values"]
    return [speed]
