"""The benches of hangs keep to the time of a lent machine: what was not begun, or was cut, is no failure."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import attach, dead


def options_of(out: Path, **more: Any) -> argparse.Namespace:
    common = {"backend": "gloo", "side_by_side": 1, "timeout": 5.0, "seconds": 100.0, "out": out, "judge": None}
    return argparse.Namespace(**{**common, "source": "", "leave": False, "ways": [], **more})


def test_what_died_is_written_at_once_and_what_was_cut_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    bench = dead.DeadBench(options_of(out), tmp_path)

    statuses: dict[str, int | None] = {"stopped": 1, "sleeping": None, "soft_lock": 0}

    def let_die(name: str, place: Path, *_: object) -> int | None:
        place.mkdir()
        (place / dead.LOG).write_text("")
        return statuses[name]

    monkeypatch.setattr(dead, "let_die", let_die)
    monkeypatch.setattr(dead, "judgement", lambda *_: dict.fromkeys(("cause", "rank", "wrong_proven"), 0))
    bench.run("stopped")
    written = json.loads(out.read_text())
    assert (written["jobs"], written["backend"]) == (1, "gloo")
    bench.run("sleeping")
    bench.run("soft_lock")
    bench.until = 0.0
    bench.run("gone")
    written = json.loads(out.read_text()) | {"not_begun": bench.not_begun}
    assert (written["jobs"], written["cut"], written["not_begun"]) == (1, ["sleeping"], ["gone"])
    assert written["not_hung"] == ["soft_lock"]  # it ended well
    again = dead.DeadBench(options_of(out, judge=tmp_path), tmp_path)
    assert again.head["date"] == written["date"] and again.cut == ["sleeping"]


def test_a_way_that_was_not_begun_is_no_failure(tmp_path: Path) -> None:
    bench = attach.Bench(options_of(tmp_path / "out.json", seconds=-1.0))
    bench.measure(["stopped"], lambda: None)
    assert bench.not_begun == ["stopped"] and bench.rows == {}
