"""Story 1 by its notebook, headless: the lateness has a proven reason, and the job works once that is mended."""

from __future__ import annotations

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import experiments
from ncclkit.report import report_file
from tests.reports import ROOT, made

STORY = ROOT / "notebooks" / "cases" / "1_recbole.ipynb"


@pytest.mark.timeout(300)
def test_the_experiment_proves_the_reason_and_the_fix_removes_it() -> None:
    folder, run = made(STORY)
    assert run.returncode == 0, run.stderr
    check, fix = experiments(Case.open(folder))
    assert check.kind == "check" and check.verdicts == {"host_oom": "proven", "disk_or_io": "refuted"}
    assert fix.worked and fix.cause == "host_oom" and not fix.cause_after
    first = diagnose(Case.open(folder)).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("host_oom", "proven", (0,))


@pytest.mark.timeout(300)
def test_the_page_shows_equal_losses_and_what_the_host_lacks() -> None:
    folder, _ = made(STORY)
    page = report_file(folder, STORY).read_text(encoding="utf-8")
    assert "equal batches gave equal losses" in page and "of 11.4 MiB in 14.9 GiB: 2 micro-batches" in page
    assert "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]" in page  # as GPUs recorded it
    assert {run.name for run in Case.open(folder / "stages").runs()} == {f"{n}-interactions" for n in (1, 2, 3)}
