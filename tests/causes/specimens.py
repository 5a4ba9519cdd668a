"""The recorded runs under tests/specimens: ``<cause>/<found|clear|unknown>-<what>/`` with an ``expect.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Finding, from_dict

ROOT = Path(__file__).parents[1] / "specimens"
FOLDERS = sorted(path for path in ROOT.glob("*/*") if path.is_dir())


def name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expect.json").read_text(encoding="utf-8"))


def load(folder: Path) -> Case:
    """A case of one folder: logs and dumps through the readers, facts as they stand."""
    case, known = Case(), _read(folder)
    case.events, case.facts, case.inputs = list(known.events), list(known.facts), list(known.inputs)
    return case


@cache
def _read(folder: Path) -> Case:
    case = Case()
    logs = [path for path in sorted(folder.iterdir()) if path.name not in ("expect.json", "facts.jsonl")]
    if logs:
        reading = evidence.read(logs)
        case.add(reading.events)
        case.inputs = reading.inputs
    if (folder / "facts.jsonl").exists():
        lines = (folder / "facts.jsonl").read_text(encoding="utf-8").splitlines()
        case.add(from_dict(Fact, json.loads(line)) for line in lines)
    return case


@cache
def judged(folder: Path) -> tuple[Diagnosis, dict[str, Finding], Case]:
    """The diagnosis of one folder, every verdict by cause, and the case."""
    case = load(folder)
    result = diagnose(case)
    return result, {finding.cause: finding for finding in case.findings}, case


