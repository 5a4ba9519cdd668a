"""Data-loader workers measured and planned: the sweep really runs, the knee is arithmetic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.analysis.loader_sweeps import FIELDS, measured_sweep
from ncclkit.lab.course import runs
from ncclkit.lab.views.course import loader_sweep_view
from ncclkit.live import probe
from tests.processes import leftovers

pytestmark = pytest.mark.usefixtures("warm_ranks")


def row(workers: int, step_ms: float, **more: float) -> dict[str, float]:
    steps = {"step_ms": step_ms, "low_ms": 0.95 * step_ms, "high_ms": 1.05 * step_ms}
    return dict.fromkeys(FIELDS, 1.0) | {"workers": workers, "prefetch": 2 * (workers > 0)} | steps | more


def case_of(*rows: object, **more: Any) -> Case:
    """A case with what a sweep would have told."""
    data = {"phase": "loader_sweep", "cores": 2, "ranks": 2, "rows": list(rows)} | more
    return Case().add([Event("worker.phase", "loader_sweep", "wire.jsonl", 1, rank=0, data=data)])


def test_the_sweep_measures_each_choice_and_leaves_nothing(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    run = asyncio.run(runs.sweep_loaders(case, choices=((0, 2), (2, 1)), steps=2, repeats=2, backend="gloo"))
    assert run.reason == "done", run.summary
    found = measured_sweep(Case.open(tmp_path, read_only=True))
    assert found is not None and found.ranks == 2
    assert [(one["workers"], one["prefetch"]) for one in found.rows] == [(0, 0), (2, 1)]
    assert all(0 < one["low_ms"] <= one["high_ms"] for one in found.rows)
    assert all(one["step_ms"] > 0 and one["first_ms"] >= 20 for one in found.rows)  # 20 ms of CPU for a batch
    assert "nk-figure" in (html := loader_sweep_view(case).html) and "First batch" in html
    assert leftovers() == []


@pytest.mark.parametrize(
    ("times", "knee"),
    [
        ({0: (48.0, 52.0)}, 0),
        ({0: (39.0, 41.0), 1: (38.0, 44.0), 2: (19.5, 23.0), 4: (19.0, 21.0), 8: (18.0, 20.0)}, 2),
        ({0: (39.0, 41.0), 2: (20.5, 23.0), 4: (19.0, 21.0), 8: (18.0, 20.0)}, 4),
        ({0: (9.0, 11.0), 8: (25.0, 35.0)}, 0),
        ({1: (8.0, 9.0), 8: (3.0, 3.0)}, 8),
    ],
)
def test_the_knee_is_the_fewest_workers_that_are_as_good_as_any(
    times: dict[int, tuple[float, float]], knee: int
) -> None:
    budget = budgets.knee(times)
    assert budget.value == knee and f"as the fastest: {knee} (" in budget.words


def test_choices_whose_intervals_overlap_cannot_be_told_apart() -> None:
    """Three runs gave knees of 4, 8 and 4."""
    budget = budgets.knee({0: (40, 42), 2: (29, 31), 4: (19, 24), 8: (20, 20.5)})
    assert budget.value == 4 and "Which of 4, 8 is fastest these steps cannot tell" in budget.words
    assert "cannot tell" not in budgets.knee({0: (40, 42), 4: (19, 21)}).words


def test_repeats_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    async def execute(case: Case, plan: Plan) -> None:
        plans.append(plan)

    monkeypatch.setattr(probe, "execute", execute)
    asyncio.run(runs.sweep_loaders(Case(), choices=((0, 2), (2, 1)), backend="gloo"))
    assert plans[0].argv[plans[0].argv.index("--choices") + 1] == "0:2,2:1,0:2,2:1,0:2,2:1"


def test_repeats_of_a_choice_share_a_row() -> None:
    found = measured_sweep(case_of(row(0, 40.0), row(2, 20.0), row(0, 50.0), row(2, 22.0), row(0, 41.0), row(2, 21.0)))
    assert found is not None and [one["step_ms"] for one in found.rows] == [41.0, 21.0]
    assert (found.rows[1]["low_ms"], found.rows[1]["high_ms"]) == pytest.approx((19.0, 23.1))
    assert found.knee.value == 2


def test_the_knee_compares_choices_that_prepare_as_much_ahead() -> None:
    found = measured_sweep(case_of(row(0, 40.0), row(2, 20.0), row(8, 20.0), row(8, 10.0, prefetch=8)))
    assert found is not None and found.knee.value == 2 and found.rule.value == 0


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (case_of(row(0, 40.0), row(2, 20.0), row(8, 19.0, first_ms=450.0)), "2 workers per rank are enough"),
        (case_of(row(0, 40.0), row(2, 20.0)), "2 workers per rank are not yet too many"),
        (
            case_of(row(0, 41.0), row(1, 40.0), row(2, 60.0)),
            "no knee, the workers per rank cannot be told apart: half of the steps take 38.9 to 43.1 ms with 0, ",
        ),
        (case_of({"workers": 1}), "Nothing was measured yet"),
        (case_of(row(0, 40.0), cores="2"), "Nothing was measured yet"),
        (Case(), "Nothing was measured yet"),
    ],
)
def test_the_view_says_what_follows(case: Case, says: str) -> None:
    assert says in loader_sweep_view(case).summary


@pytest.mark.parametrize("choices", [(), ((-1, 2),), ((1, 0),), ((1,),)])
def test_a_sweep_that_cannot_be_run_is_refused_in_one_sentence(tmp_path: Path, choices: Any) -> None:
    with pytest.raises(NcclkitError, match=r"choice"):
        asyncio.run(runs.sweep_loaders(Case.open(tmp_path), choices=choices))
