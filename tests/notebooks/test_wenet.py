"""Story 4, run headless: the culprit is named from what the job left, and the fix and the measurement work."""

from __future__ import annotations

import json

import pytest

from ncclkit.core.case import Case
from ncclkit.experiments import baseline, fixes
from ncclkit.analysis.loader_sweeps import measured_sweep
from ncclkit.lab.course import runs
from ncclkit.report import report_file
from tests.reports import NOTEBOOKS, made


@pytest.mark.timeout(300)
def test_the_starved_rank_is_found_fixed_and_planned() -> None:
    story = next(path for path in NOTEBOOKS if path.stem == "4_wenet")
    folder, run = made(story)
    assert run.returncode == 0, run.stderr
    first = json.loads((folder / "findings.json").read_text(encoding="utf-8"))[0]
    assert (first["cause"], first["strength"], first["culprits"]["ranks"]) == ("cpu_contention", "proven", [1, 2, 3])
    (fix,) = fixes.experiments(Case.open(folder, read_only=True))
    assert (fix.kind, fix.observed, fix.verdicts) == ("fix", "works", {"cpu_contention": "proven"})
    sweep = measured_sweep(Case.open(folder / "loader_sweep", read_only=True))
    assert sweep is not None and len(sweep.rows) == len(runs.CHOICES)
    assert baseline.last(Case.open(folder / "works", read_only=True)).reason == "done"  # two ranks on the same cores
    page = report_file(folder, story).read_text(encoding="utf-8")
    assert "so ranks of different hosts talk over plain sockets" in page  # what the posted lines prove
    assert "What holds: CPU time for its workers" in page
