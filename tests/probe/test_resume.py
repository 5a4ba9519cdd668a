"""The story of the resumed job, with real ranks: what its checkpoint must hold, with Lightning and without."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.lab.views.course import checkpoints_view, resume_view
from ncclkit.agent import wire
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.runs import Plan
from ncclkit.analysis.resumes import Resume, resumes
from ncclkit.lab.course.checkpoints import read_checkpoints
from ncclkit.lab.programs.stories import resume
from ncclkit.live import probe
from tests.processes import WARM

pytestmark = pytest.mark.usefixtures("warm_ranks")

HIDING = """
import sys
hidden = ("lightning", "lightning_fabric", "torchdata")
sys.modules.update(dict.fromkeys([*hidden, *(name for name in sys.modules if name.partition(".")[0] in hidden)]))
"""
"""Makes importing them fail, as where they are not installed."""


def start(path: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[Case, list[float], Resume]:
    """Resume on two ranks, rank 1 with slow storage: the case, the losses of rank 0 after it, how it came back."""
    case = Case.open(path)
    words = ("stories.resume", "--backend", "gloo", "--timeout", "60", "--steps", "40", "--rank", "1", *argv)
    run = asyncio.run(probe.execute(case, Plan("resume", words, 2, "gloo", sys.executable, 120.0, env or {})))
    assert run.reason == "done", run.summary
    records: list[Any] = [wire.parse_record(line) for line in (run.folder / "wire.jsonl").read_bytes().splitlines()]
    losses = [r["loss"] for r in records if r and r.get("phase") == "step" and r["rank"] == 0]
    return case, losses, resumes(case)[0]


def test_a_restored_loader_goes_on_where_a_replay_would_and_reads_nothing_again(tmp_path: Path) -> None:
    _, replayed, slow = start(tmp_path / "replay", "--seconds", "1")
    case, restored, quick = start(tmp_path / "state", "--seconds", "1", "--fix", "slow_rank")
    assert restored == pytest.approx(replayed, abs=2e-3) and len(restored) == 12
    assert (slow.last.rank, slow.last.read, slow.last.of) == (1, 40, 40) and slow.last.whole >= 1
    assert slow.first is not None and slow.first >= 1 and {start.of for start in quick.starts} == {0}
    assert [file.position for file in read_checkpoints(tmp_path)] == [False, True]
    assert "loaders' state restored: after" in resume_view(case).summary
    assert checkpoints_view(tmp_path).summary.startswith("1 of 2 files")


def test_without_lightning_and_torchdata_the_same_job_runs_in_plain_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    hidden = {"PYTHONPATH": f"{WARM}{os.pathsep}{tmp_path}"}
    case, losses, run = start(tmp_path / "case", "--seconds", "1", "--fix", "slow_rank", env=hidden)
    assert run.lightning == "" and {start.of for start in run.starts} == {0} and len(losses) == 12
    log = next((tmp_path / "case").glob("runs/*/rank0.log")).read_text()
    assert "Lightning is not installed here" in log
    assert "plain torch" in resume_view(case).html


def test_a_damaged_checkpoint_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"weights" * 100)
    resume.check(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"weights", b"WEIGHTS", 1))
    with pytest.raises(RuntimeError, match="damaged: model/data.pkl"):
        resume.check(str(path))
    path.write_bytes(whole[:-30])
    with pytest.raises(RuntimeError, match=r"damaged: .*model\.ckpt"):
        resume.check(str(path))


def test_a_phase_is_planned_by_its_pace() -> None:
    replay = budgets.phase(96, 240, 8.1)
    assert replay.value == pytest.approx(20.25) and replay.words == "96 of 240 in 8.1 s: all of it takes 20.2 s."
    with pytest.raises(ValueError, match="no pace"):
        budgets.phase(0, 240, 8.1)


def test_records_of_others_are_no_resume(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    folder = case.new_run("other")
    said: list[dict[str, Any]] = [
        {"phase": "start", "limit": "8"},
        {"phase": "replay", "done": None},
        {"phase": "step", "step": 1},
    ]
    lines = [{"ncclkit": 1, "kind": "phase", "t": 1.0, "rank": 0} | row for row in said]
    (folder / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    case.add(evidence.read([folder]).events)
    assert resumes(case) == () and resume_view(case).summary == "No run of this case was resumed from a checkpoint"
