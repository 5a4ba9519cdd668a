"""The same test at several times, and the baseline of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.analysis.history import baseline, beside_baseline, compare_cases, history, save_baseline
from ncclkit.cli import main
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Measurement, NcclkitError
from ncclkit.core.runs import Plan, Run

ROW = Measurement("all_reduce", 1 << 20, "float32", 2, 1, "gloo", 1000.0, 1100.0, 0.02, 1.05, 1.05, 0, 20, "1-probe")


def measured(path: Path, factor: float = 1.0, nccl: str = "2.26.2", **env: str) -> Case:
    """A case whose calls take `factor` times as long as usual."""
    case = Case.open(path)
    sizes = [(1 << 10, 20.0), (1 << 20, 1000.0), (1 << 24, 16000.0)]
    case.measurements = [
        replace(ROW, bytes=size, time_us=factor * us, busbw=size / (factor * us) / 1e3, env=env) for size, us in sizes
    ]
    case.facts = [Fact("software.nccl", nccl, source="torch", host="n1"), Fact("host.kernel", "6.1", host="n1")]
    return case.save()


def test_a_slower_test_is_said_with_what_changed_between(tmp_path: Path) -> None:
    old, new = measured(tmp_path / "october"), measured(tmp_path / "november", 1.5, "2.27.5", NCCL_PROTO="Simple")
    found = compare_cases([old, new])
    assert found.summary == (
        "Against october: all_reduce of 16 MiB: 50 % slower, 16.0 ms → 24.0 ms a call, and so on 2 more of 3 sizes; "
        "between them changed NCCL: 2.26.2 → 2.27.5, NCCL_PROTO: not set → Simple."
    )
    assert found.differences == ("NCCL: 2.26.2 → 2.27.5", "NCCL_PROTO: not set → Simple")
    assert list(found.curves) == ["october", "november"]
    assert json.loads(json.dumps(found.to_dict()))["changes"][0]["matters"] is True


def test_what_lies_within_the_spread_is_no_difference(tmp_path: Path) -> None:
    old, new = measured(tmp_path / "a"), measured(tmp_path / "b", 1.15)
    new.measurements = [replace(row, spread=0.2) for row in new.measurements]
    found = history({"a": old, "b": new})
    assert found.worst is None
    assert found.summary == "As fast as a: no difference beyond the spread on 3 sizes; nothing else changed."
    new.facts = []
    assert history({"a": old, "b": new}).summary == (
        "As fast as a: no difference beyond the spread on 3 sizes; what else changed is unknown: no facts of b."
    )


def test_cases_without_a_common_test_and_one_case_alone_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKIT_BASELINE", str(tmp_path / "none.json"))
    old, new = measured(tmp_path / "a"), measured(tmp_path / "b")
    new.measurements = [replace(row, ranks=8) for row in new.measurements]
    assert "hold no test that both made" in history({"a": old, "b": new}).summary
    with pytest.raises(NcclkitError, match="no baseline"):
        compare_cases([old])


def test_a_live_test_is_compared_with_the_saved_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKIT_BASELINE", str(tmp_path / "deep" / "baseline.json"))
    assert beside_baseline(measured(tmp_path / "a").measurements) == ("", ())
    saved = save_baseline(Case.open(tmp_path / "a", read_only=True))
    assert saved == tmp_path / "deep" / "baseline.json"
    rows = tuple(measured(tmp_path / "b", 1.4).measurements)
    told, curve = beside_baseline(rows)
    assert told.startswith("Against the baseline of 20") and "slower on 3 of 3 sizes, most all_reduce of" in told
    assert "40 % slower" in told and len(curve) == 3 and curve[0].run.startswith("baseline of")
    assert "no difference beyond the spread on 3 sizes" in beside_baseline(measured(tmp_path / "c").measurements)[0]
    plan = Plan("probe", ("collective",), 2, "gloo", "python", 9.0)
    figure = nk.show.curve(Run(plan, tmp_path, "done", 1.0, rows)).figure
    assert figure is not None and [str(line.name).startswith("baseline of") for line in figure.data].count(True) == 1
    assert figure.layout.yaxis.range[1] > max(curve[-1].busbw or 0.0, 1.04)
    mixed = [replace(row, time_us=row.time_us * factor) for row, factor in zip(rows, (1.0, 0.5, 0.5), strict=True)]
    assert (
        ": faster on 2 and slower on 1 of 3 sizes, most all_reduce of 1 KiB: 40 % slower" in beside_baseline(mixed)[0]
    )
    other = [replace(row, ranks=4) for row in measured(tmp_path / "d").measurements]
    assert beside_baseline(other) == ("", ())
    saved.write_text('{"ncclkit_baseline": 1}')
    with pytest.raises(NcclkitError, match="not what is kept there"):
        baseline()


def test_the_command_saves_compares_and_exits_by_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCLKIT_BASELINE", str(tmp_path / "baseline.json"))
    measured(tmp_path / "a"), measured(tmp_path / "b", 2.0)
    assert main(["compare", str(tmp_path / "a"), "--save-baseline"]) == 0
    assert main(["compare", str(tmp_path / "b"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert told["changes"][0]["slower"] == pytest.approx(1.0) and len(told["cases"]) == 2
    assert main(["compare", str(tmp_path / "b"), str(tmp_path / "a")]) == 0
    assert "50 % faster" in capsys.readouterr().out


def test_the_picture_has_a_curve_for_each_case_and_the_baseline_a_line(tmp_path: Path) -> None:
    old, new = measured(tmp_path / "october"), measured(tmp_path / "november", 1.5, "2.27.5")
    view = nk.show.compare(old, new)
    assert {"october", "november"} <= {str(trace.name) for trace in view.figure.data}  # type: ignore[attr-defined]
    assert "2.26.2 → 2.27.5" in view.static() and "50 % slower" in view.static()
