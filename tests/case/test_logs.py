"""What is read with a case folder: its logs, the facts of its hosts, and what was measured there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ncclkit import cli, evidence
from ncclkit.case import Case
from ncclkit.logs import fill, read_logs
from ncclkit.recording import replay
from ncclkit.samples import HERE

CRAWLS = Path(__file__).parents[1] / "two_hosts" / "slow_link"
"""A live test that ended well, so that what it measured alone tells."""


def told(case: Case) -> tuple[int, int]:
    return len(case.measurements), len(case.facts_of("net.interfaces"))


def test_the_command_judges_what_a_case_folder_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(CRAWLS)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("1. network_loss (possible)") and "further bytes pass at 0.0239 GB/s" in shown


def test_a_folder_that_is_read_twice_measured_once(tmp_path: Path) -> None:
    assert told(read_logs(str(CRAWLS), tmp_path)) == (8, 2)
    assert told(read_logs(str(CRAWLS), tmp_path)) == (8, 2)


def test_what_a_case_measured_before_is_not_lost(tmp_path: Path) -> None:
    """An experiment on the logs of a case saves it: what a live test measured there must still be in it."""
    shutil.copytree(CRAWLS, kept := tmp_path / "case")
    case = fill(Case.open(kept), evidence.read([HERE / "rank_late"]), [HERE / "rank_late"]).save()
    assert told(case) == (8, 2) and told(Case.open(kept)) == (8, 2)
    assert {Path(event.path).parent.name for event in case.events} == {"1-rank_late"}


def test_a_replayed_recording_measured_in_its_new_place(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    case.new_run("earlier")
    folder = replay(case, CRAWLS)
    assert {row.run for row in case.measurements} == {folder.name} == {"2-slow_link"}
