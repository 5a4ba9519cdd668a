"""Cases as tests make them: of a text that somebody pastes, of files, of events."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.evidence.logs import fill


def case_of(events: Iterable[Event], inputs: Iterable[Mapping[str, Any]] = ()) -> Case:
    """A case in memory that holds these events."""
    case = Case()
    case.events, case.inputs = list(events), [dict(row) for row in inputs]
    return case


def read_text(text: str) -> Case:
    """The case of a text from standard input."""
    return fill(Case(), evidence.read(["-"], stdin=io.BytesIO(text.encode())))


def read_files(*paths: Path | str) -> Case:
    """The case of these files and folders."""
    return fill(Case(), evidence.read([str(path) for path in paths]))


def written(folder: Path, text: str, name: str = "job.log") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def events_of(folder: Path, text: str, name: str = "job.log") -> list[Event]:
    """The events of a file with this text."""
    return list(evidence.read([written(folder, text, name)]).events)


def judged_text(text: str) -> Diagnosis:
    """The diagnosis of a text from standard input."""
    return diagnose(read_text(text))


def judged_files(*paths: Path | str) -> Diagnosis:
    """The diagnosis of these files and folders."""
    return diagnose(read_files(*paths))


def judged_log(folder: Path, text: str, name: str = "job.log") -> Diagnosis:
    """The diagnosis of a file with this text."""
    return judged_files(written(folder, text, name))
