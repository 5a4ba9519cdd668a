"""What a job left behind, read into a case: the door of `03_logs`; and what other hosts say of themselves."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence import samples


def read_logs(logs: str, case_dir: str | Path = "") -> Case:
    """Read what `logs` names, and nothing else, into a case; with `case_dir` the case is kept in that folder.

    logs: files, folders, globs, archives or Slurm job ids, separated by blanks as in a shell; the name of a bundled
    run; or lines of a log themselves, two or more.  What an earlier reading left in the case gives way, so that two
    jobs are never judged as one.  One sentence for each thing that could not be read stands in
    ``case.about["problems"]``; raises NcclkitError where nothing could.
    """
    pasted = isinstance(logs, str) and "\n" in logs.strip() and not _exists(logs)
    given = ["-"] if pasted else _given(logs)
    reading = evidence.read(given, stdin=io.BytesIO(logs.encode("utf-8", "replace")) if pasted else None, helped=True)
    case = fill(Case.open(case_dir) if case_dir else Case(), reading)
    case.about |= {"logs": "lines that were pasted" if pasted else logs, "problems": list(reading.problems)}
    return case.save()


def fill(case: Case, reading: evidence.Reading) -> Case:
    """Put what was read in the place of what an earlier reading left; facts and measurements are added."""
    case.events, case.findings = [], []
    case.replace_facts(reading.facts).add(reading.measurements)
    case.events, case.inputs = list(reading.events), list(reading.inputs)
    return case


def read_facts(case: Case, others: str) -> Case:
    """Add the facts of other hosts to a case: what `ncclkit inspect --json` printed there, or their case folders.

    others: files, folders or globs, separated by blanks as in a shell; nothing named is nothing done.  Raises
    NcclkitError where they hold no facts at all.
    """
    if not others.strip():
        return case
    facts = evidence.read(_given(others)).facts
    if not facts:
        raise NcclkitError(
            f"There are no facts in {others}; write them with `ncclkit inspect --json > FILE` on each host."
        )
    return case.replace_facts(facts).save()


def _exists(logs: str) -> bool:
    try:
        return Path(logs).expanduser().exists()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False


def _given(logs: str) -> list[str]:
    """The single inputs; a path that exists is one, whatever characters it has."""
    if not isinstance(logs, str) or not logs.strip():
        raise NcclkitError("No logs were named; give a file, a folder, a glob, an archive or a Slurm job id in quotes.")
    if _exists(logs):
        return [logs]
    if logs in samples.names():
        return [str(samples.HERE / logs)]
    try:
        return shlex.split(logs)
    except ValueError as error:
        raise NcclkitError(f"The logs {logs!r} cannot be read as a list ({error}); close the quotes.") from error
