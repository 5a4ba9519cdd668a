"""The earlier attempts of a job, as ``ncclkit decide --history FILE`` keeps them.

A line of JSON stands for each attempt that failed: its root, the hosts to blame, and how far it
came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from ncclkit.core.model import NcclkitError

MOST_BYTES = 1 << 20
"""Bytes of a history that are read, its last ones."""


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt that failed."""

    cause: str
    """Of its first finding; empty where none was firm."""
    blamed: tuple[str, ...] = ()
    """Hosts that the finding blames."""
    exclude: tuple[str, ...] = ()
    """Hosts that its decision left out."""
    step: int | None = None
    """The last step that it logged."""
    action: str = ""
    logs: str = ""
    """What was read, as a short sum: the same logs are one attempt, however often asked about."""


def read_attempts(file: Path) -> tuple[list[JobAttempt], int]:
    """The attempts that a file keeps, oldest first, and how many lines are none.

    A file that is not there holds none.  Raises NcclkitError where it cannot be read.
    """
    if file.exists() and not file.is_file():
        # a pipe would let us wait for ever
        raise NcclkitError(f"The history {file} is not a regular file; name another.")
    try:
        with open(file, "rb") as source:
            left_out = max(0, os.fstat(source.fileno()).st_size - MOST_BYTES)
            source.seek(left_out)
            lines = source.read(MOST_BYTES).splitlines()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        why = error.strerror or error
        raise NcclkitError(f"The history {file} cannot be read: {why}.") from error
    if left_out:
        # the first of the last ones is cut
        lines = lines[1:]
    attempts = []
    strange = 0
    for line in lines:
        try:
            attempts.append(msgspec.json.decode(line, type=JobAttempt))
        except (msgspec.DecodeError, UnicodeDecodeError):
            # a job that was killed may have written half a line
            strange += 1
    return attempts, strange


def keep_attempt(file: Path, attempt: JobAttempt) -> None:
    """Add an attempt to a history; raises NcclkitError where it cannot be written."""
    line = json.dumps(asdict(attempt)) + "\n"
    try:
        with open(file, "a", encoding="utf-8") as target:
            target.write(line)
    except OSError as error:
        why = error.strerror or error
        raise NcclkitError(f"The history {file} cannot be written: {why}.") from error


def attempts_without_progress(attempts: Sequence[JobAttempt], step: int | None) -> list[JobAttempt]:
    """The latest attempts since which no step was won, newest first.

    `step` is how far the present one came.  Where a step is unknown nothing shows progress.
    """
    stuck = []
    reached = step
    for attempt in reversed(attempts):
        if reached is not None and attempt.step is not None and reached > attempt.step:
            break
        stuck.append(attempt)
        if attempt.step is not None:
            reached = attempt.step
    return stuck
