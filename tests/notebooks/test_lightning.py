"""Story 2, run headless: the rank that replays is named, its loader restored, the three starts compared."""

from __future__ import annotations

import re

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.experiments import fixes
from ncclkit.analysis.resumes import resumes
from ncclkit.report import report_file
from tests.reports import ROOT, made

STORY = ROOT / "notebooks" / "cases" / "2_lightning.ipynb"


@pytest.mark.timeout(300)
def test_the_rank_that_replays_is_found_and_its_loader_restored() -> None:
    folder, run = made(STORY)
    assert run.returncode == 0, run.stderr
    # the newest verdict of the folder is on the run with the stop-gap, which goes well
    hung = Case.open(folder, read_only=True).run_alone(folder / "runs" / "1-resume_replays")
    first = diagnose(hung).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "proven", (1,))
    (fix,) = fixes.experiments(Case.open(folder, read_only=True))
    assert (fix.kind, fix.observed, fix.verdicts) == ("fix", "works", {"slow_rank": "proven"})


@pytest.mark.timeout(300)
def test_replay_stop_gap_and_restored_loader_are_compared_by_their_first_step() -> None:
    folder, _ = made(STORY)
    replayed, stopgap, early, restored = resumes(Case.open(folder, read_only=True))
    assert early.first is not None and early.first < stopgap.first and {s.of for s in early.starts} == {24}
    assert replayed.first is None and replayed.last.rank == 1 and 0 < replayed.last.read < replayed.last.of
    assert stopgap.first is not None and stopgap.first >= 20 and stopgap.limit > stopgap.first
    assert restored.first is not None and restored.limit == replayed.limit and {s.of for s in restored.starts} == {0}
    page = report_file(folder, STORY).read_text(encoding="utf-8")
    assert "1 of 4 files that can be read say where the loaders stood" in page
    # the last step: the mended program, before it takes GPUs again
    assert re.search(r"Rehearsal of \d ranks: all ranks agree", page)
