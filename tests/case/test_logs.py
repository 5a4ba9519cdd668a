"""What is read with a case folder: its logs, the facts of its hosts, and what was measured there."""

from __future__ import annotations

import json
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ncclkit import cli, evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill, read_logs
from ncclkit.evidence.samples import HERE
from ncclkit.lab.faults.recording import replay

CRAWLS = Path(__file__).parents[1] / "two_hosts" / "slow_link"
"""A live test that ended well, so that what it measured alone tells."""


def counts(case: Case) -> tuple[int, int]:
    return len(case.measurements), len(case.facts_of("net.interfaces"))


def test_the_command_judges_what_a_case_folder_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(CRAWLS)]) == 1
    shown = capsys.readouterr().out
    assert "\n1. network_loss (possible)" in shown and "further bytes pass at 0.0239 GB/s" in shown


def test_a_folder_that_is_read_twice_measured_once(tmp_path: Path) -> None:
    assert counts(read_logs(str(CRAWLS), tmp_path)) == (8, 2)
    assert counts(read_logs(str(CRAWLS), tmp_path)) == (8, 2)


def test_what_a_case_measured_before_is_not_lost(tmp_path: Path) -> None:
    """An experiment on the logs of a case saves it: what a live test measured there must still be in it."""
    shutil.copytree(CRAWLS, kept := tmp_path / "case")
    case = fill(Case.open(kept), evidence.read([HERE / "rank_late"])).save()
    assert counts(case) == (8, 2) and counts(Case.open(kept)) == (8, 2)
    assert {Path(event.path).parent.name for event in case.events} == {"1-rank_late"}


def test_a_replayed_recording_measured_in_its_new_place(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    case.new_run("earlier")
    folder = replay(case, CRAWLS)
    assert {row.run for row in case.measurements} == {folder.name} == {"2-slow_link"}


@pytest.mark.parametrize("inside", ["", "slow_link/"])
def test_a_case_that_was_packed_says_what_its_folder_says(tmp_path: Path, inside: str) -> None:
    """As it is attached to a ticket: by its folder, or by what is in it."""
    with tarfile.open(packed := tmp_path / "case.tar.gz", "w:gz") as archive:
        archive.add(CRAWLS, inside or ".")
    case = read_logs(str(packed))
    assert counts(case) == (8, 2) and diagnose(case).findings[0].say == diagnose(read_logs(str(CRAWLS))).findings[0].say
    assert {row["kind"] for row in case.inputs} >= {"facts", "measurements"}


def test_a_case_among_logs_may_be_of_another_job(tmp_path: Path) -> None:
    shutil.copytree(CRAWLS, tmp_path / "logs" / "case")
    (tmp_path / "logs" / "rank0.log").write_text("RuntimeError: x\n")
    assert counts(read_logs(str(tmp_path / "logs"))) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": "8"},
        {"bytes": -8},
        {"busbw": "fast"},
        {"env": {"A": 1}},
        {"time_us": None},
        {"time_us": float("nan")},
        {"time_us": 0},
        {"graph_us": 0.0},
        {"op": []},
    ],
    ids=str,
)
def test_what_only_looks_like_measurements_is_not_taken(tmp_path: Path, wrong: dict[str, Any]) -> None:
    rows = [json.loads(line) for line in (CRAWLS / "measurements.jsonl").read_text().splitlines()]
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "rank0.log").write_text("RuntimeError: x\n")
    for place in (0, -1):
        spoiled = list(rows)
        spoiled[place] = rows[place] | wrong
        (folder / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoiled))
        assert read_logs(str(folder)).measurements == []
    (folder / "measurements.jsonl").write_text(json.dumps(rows[0]))
    assert [m.bytes for m in read_logs(str(folder)).measurements] == [8]


@pytest.mark.parametrize("named", ["~/1/slurm-1.out ~/2/slurm-2.out", "~/**/slurm-*.out", "~/1 ~/2", "~ ~/2/*.out"])
def test_jobs_are_told_apart_however_their_logs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / f"slurm-{number}.out").write_text("RuntimeError: CUDA error: boom\n")
    case = read_logs(named)
    (other,) = case.about["other_jobs"]
    assert {Path(event.path).name for event in case.events} == {"slurm-1.out"}
    assert {Path(event.path).name for event in read_logs(shlex.join(other)).events} == {"slurm-2.out"}
