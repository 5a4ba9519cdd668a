"""Trials side by side: what was changed, both ends, bars of one scale, and what it says of each suspect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.agent import wire
from ncclkit.core import experiment_records
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import ExperimentRecord
from ncclkit.core.runs import Plan, Run
from ncclkit.views.experiments import RunProgress, cards, run_progress
from tests.views.records import HOSTILE, measurement
from tests.views.test_faces import Page


def run(folder: Path, reason: str = "done", speed: float = 0.0) -> Run:
    measured = (replace(measurement(1 << 20), busbw=speed), replace(measurement(8), busbw=0.1)) if speed else ()
    plan = Plan("rank_late", ("train",), 4, "gloo", "python", 60.0)
    return Run(plan, folder, reason, 12.0, measured, problem=HOSTILE if reason == "failed" else "")


def record(folder: Path, **given: Any) -> ExperimentRecord:
    known: dict[str, Any] = {"kind": "check", "cause": "slow_rank", "question": "Does it go on?", "change": {}}
    known |= {"before": run(folder / "a", "failed"), "after": run(folder / "b"), "observed": "works", "seconds": 9.4}
    known |= {
        "verdicts": {"slow_rank": "proven"},
        "summary": "It goes on.",
        "folder": folder,
        "cause_before": "slow_rank",
    }
    return ExperimentRecord(**known | {"said": (f"Rank 3 is late {HOSTILE}", "Nothing found.")} | given)


def words(*made: ExperimentRecord) -> str:
    return " ".join(Page(cards(made)).words.split())


def run_folder(folder: Path, *starts: tuple[int, str, float]) -> Path:
    """A run folder with wire records of (rank, ``hello`` or the number of a step, time)."""
    folder.mkdir()
    phases = [
        (rank, {"phase": "step", "step": int(what)} if what.isdigit() else {"phase": what}, t)
        for rank, what, t in starts
    ]
    record = {"ncclkit": wire.VERSION, "kind": "phase"}
    lines = [json.dumps(record | {"rank": rank, "t": t} | phase) for rank, phase, t in phases]
    (folder / "wire.jsonl").write_text("\n".join(["torn {", *lines, json.dumps(record | {"rank": "x", "t": 1})]))
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env": {"NCCL_P2P_DISABLE": "1", "X": HOSTILE}}, "NCCL_P2P_DISABLE=1 ; X="),
        ({"unset": ["NCCL_SOCKET_IFNAME"]}, "NCCL_SOCKET_IFNAME is not set"),
        ({"ranks": 2, "timeout": 4}, "2 ranks; collectives may take 4 times as long"),
        ({"restarts": 1, "stages": True, "minimal": False}, "again 1 time; a staged test: each rank alone"),
        ({"fix": "slow_rank"}, "the job itself, at the place that slow_rank blames"),
        ({"check": "facts"}, "nothing; facts are looked at again"),
        ({}, "What was changed: nothing"),
    ],
)
def test_the_change_is_said_as_a_person_would_make_it(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert said in words(record(tmp_path, change=change))


def test_both_ends_stand_side_by_side_with_their_first_cause(tmp_path: Path) -> None:
    read = words(record(tmp_path))
    before, _, after = read.partition("After")
    assert "✕ failed rank_late on 4 ranks over gloo failed after 12 s" in before
    assert "slow_rank Rank 3 is late <script>" in before and "slow_rank Rank" not in after
    assert "✓ succeeded" in after and "Nothing found." in after


@pytest.mark.parametrize(
    ("given", "sign"),
    [
        ({"kind": "fix"}, "✓ it works"),
        ({"kind": "fix", "verdicts": {"slow_rank": "open"}}, "✕ it did not help"),
        ({"verdicts": {"slow_rank": "proven", "nccl_bug": "refuted"}}, "● proven"),
        ({"verdicts": {"slow_rank": "supported"}}, "◐ fits"),
        ({"verdicts": {"slow_rank": "refuted"}}, "✓ cleared"),
        ({"verdicts": {}}, "○ open"),
    ],
)
def test_the_first_word_of_a_card_is_what_came_out(tmp_path: Path, given: dict[str, Any], sign: str) -> None:
    assert words(record(tmp_path, **given)).startswith(sign)


def test_an_experiment_says_what_it_tells_of_each_suspect_the_one_that_fits_first(tmp_path: Path) -> None:
    read = words(record(tmp_path, verdicts={"nccl_bug": "refuted", "slow_rank": "proven", "p2p_broken": "open"}))
    table = read.partition("What it says of each suspect")[2]
    order = ("slow_rank ● proven", "it alone fits", "nccl_bug ✓ cleared", "it does not fit", "p2p_broken ○ open")
    assert sorted(map(table.index, order)) == list(map(table.index, order))


def test_one_that_only_looked_has_no_sides(tmp_path: Path) -> None:
    read = words(record(tmp_path, before=None, after=None, observed="found", change={"check": "facts"}))
    assert "What came out: the look shows it" in read and "Before" not in read


def test_bandwidth_is_drawn_on_one_scale(tmp_path: Path) -> None:
    made = record(tmp_path, before=run(tmp_path / "a", speed=2.0), after=run(tmp_path / "b", speed=8.0))
    page = cards([made])
    assert "width:25.0%" in page and "width:100.0%" in page
    assert "all_reduce: busbw before 2.00 GB/s after 8.00 GB/s" in words(made)


def test_steps_and_times_that_are_far_apart_are_drawn(tmp_path: Path) -> None:
    starts = [(rank, phase, t) for rank in (0, 1) for phase, t in (("hello", 0.0), ("0", 30.0), ("1", 31.0))]
    late = run_folder(tmp_path / "a", *starts)
    early = run_folder(tmp_path / "b", *((rank, phase, t / 10) for rank, phase, t in starts), (1, "2", 3.2))
    assert run_progress(late) == RunProgress(2, 30.0, 1.0) and run_progress(tmp_path) == RunProgress()
    read = words(record(tmp_path, before=run(late, "failed"), after=run(early)))
    assert "Steps that every rank came to before 2 steps after 2 steps" in read
    assert "its first step before 30.0 s after 3.00 s" in read and "before 1.00 s after 100 ms" in read
    assert "first step" not in words(record(tmp_path, before=run(late), after=run(late)))


def test_a_restart_goes_on_with_the_steps_and_begins_the_time_anew(tmp_path: Path) -> None:
    again = run_folder(tmp_path / "a", (0, "hello", 0.0), (0, "0", 1.0), (0, "hello", 5.0), (0, "1", 7.0))
    assert run_progress(again) == RunProgress(2, 2.0, None)


def test_a_rank_that_never_began_counts_as_none(tmp_path: Path) -> None:
    assert run_progress(run_folder(tmp_path / "a", (0, "hello", 0.0), (0, "0", 2.0), (1, "hello", 0.0))).steps == 0


def test_kept_experiments_come_back_the_last_one_first_and_run_nothing_of_what_they_hold(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    for number, say in enumerate(("first", f"second {HOSTILE}"), 1):
        folder = case.path / "experiments" / f"{number}-slow_rank"
        folder.mkdir(parents=True)
        hostile = dict.fromkeys(("question", "cause", "cause_before"), HOSTILE) | {"said": (HOSTILE, HOSTILE)}
        hostile |= {"change": {"env": {HOSTILE: HOSTILE}}, "verdicts": {HOSTILE: "proven"}, "summary": say}
        experiment_records.keep(record(folder, **hostile))
    page = Page(nk.show.case(Case.open(case.path)).static())
    assert page.words.rindex("second") < page.words.rindex("first")
    assert not {"script", "img"} & set(page.tags)
    assert "experiments/2-slow_rank/" in page.words
