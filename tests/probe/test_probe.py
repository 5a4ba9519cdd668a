"""The live test and the lab, with real gloo ranks: what was broken is named, what is healthy is left alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit.views.telemetry import telemetry_view
from ncclkit.agent.run.operations import NAMES
from ncclkit.analysis import stages
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.core.runs import Run
from ncclkit.lab.faults import injection, recording
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions
from tests.processes import leftovers

pytestmark = pytest.mark.usefixtures("warm_ranks")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Run, list[dict[str, Any]]]:
    """One case with the facts and one healthy live test."""
    case, records = Case.open(tmp_path_factory.mktemp("case")), []
    asyncio.run(probe.inspect_hosts(case))
    run = asyncio.run(probe.probe(case, ProbeOptions(backend="gloo", max_bytes=1 << 20, repeats=3), records.append))
    return case, run, records


def test_measures_and_checks(walked: tuple[Case, Run, list[dict[str, Any]]]) -> None:
    _, run, _ = walked
    assert run.reason == "done"
    assert [m.bytes for m in run.measurements] == list(probe.sizes(1 << 20))
    assert all(
        m.wrong == 0 and m.time_us > 0 and m.busbw == m.algbw and m.singles >= 10 and m.p99_us for m in run.measurements
    )  # factor 1 for two ranks
    assert run.expectation is not None  # tests beside this one may keep the cores busy
    assert run.expectation.value or run.expectation.words.startswith("No reference: this host")
    assert "every value was right" in run.summary and repr(run) == run.summary


def test_progress_arrives_before_the_end(walked: tuple[Case, Run, list[dict[str, Any]]]) -> None:
    records = walked[2]
    kinds = [r["kind"] for r in records]
    assert kinds[0] == "plan" and kinds.index("measure") < kinds.index("end")
    first = next(r for r in records if r["kind"] == "measure")
    assert first["algbw"] > 0 and first["busbw"] > 0


def test_every_variable_that_was_set_stands_in_the_plan(walked: tuple[Case, Run, list[dict[str, Any]]]) -> None:
    _, run, records = walked
    assert records[0]["env"]["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert records[0]["env"]["NCCLKIT_RUN"] == str(run.folder) and "NCCLKIT_PY_SPY" in records[0]["env"]
    assert json.loads((run.folder / "plan.json").read_text())["env"] == records[0]["env"]


def test_the_folder_is_the_case(walked: tuple[Case, Run, list[dict[str, Any]]]) -> None:
    case, run, _ = walked
    assert case.path is not None
    again = Case.open(case.path)
    assert again.measurements == list(run.measurements)
    assert {e.data.phase for e in again.of("worker.phase")} >= {"hello", "init", "done"}
    assert again.fact("cpu.usable") and again.fact("software.torch")


def test_the_telemetry_is_recorded_beside_the_run_and_not_beside_the_facts(
    walked: tuple[Case, Run, list[dict[str, Any]]],
) -> None:
    case, run, _ = walked
    assert [folder.name for folder in case.runs() if (folder / "telemetry.jsonl").exists()] == [run.name]
    assert telemetry_view(case).summary.split(" on ")[0].endswith(("second", "seconds"))


def test_a_healthy_run_has_no_culprit(walked: tuple[Case, Run, list[dict[str, Any]]]) -> None:
    """This host's own facts may deserve a remark; the run itself must not."""
    found = diagnose(walked[0]).findings
    assert [f for f in found if f.culprits.get("ranks")] == []


def test_every_collective_is_measured_and_checked(tmp_path: Path) -> None:
    case, options = (
        Case.open(tmp_path),
        ProbeOptions(backend="gloo", op="all", stages=True, ranks=3, max_bytes=64, repeats=2),
    )
    run = asyncio.run(probe.probe(case, options))
    assert run.reason == "done" and run.name == "1-collectives", run.problem
    staged = stages.staged_test(case)
    assert [(pair.a, pair.b, pair.wrong) for pair in staged.pairs] == [(0, 1, 0), (0, 2, 0), (1, 2, 0)]
    assert len(staged.alone) == 3 and staged.silent == ()
    assert {m.op for m in run.measurements} == set(NAMES) and {m.wrong for m in run.measurements} == {0}
    assert all(m.busbw and m.graph_us is None for m in run.measurements)
    assert run.summary.startswith("7 collectives on 3 ranks over gloo: all_reduce ") and {m.op for m in run.curve} == {
        "all_reduce"
    }


BROKEN = [
    fault.name
    for fault in FAULTS.values()  # the stories and simulated hosts have tests of their own
    if fault.cause and "gloo" in fault.backends and fault.job == "train" and not fault.net
    if not fault.root or os.geteuid() == 0
]


@pytest.mark.parametrize("name", BROKEN)
def test_the_lab_is_diagnosed(tmp_path: Path, name: str) -> None:
    """Break a real job, read what it left, name the cause and the rank: three ranks, rank 1 is faulty."""
    case = Case.open(tmp_path)
    asyncio.run(injection.inject(case, name, backend="gloo", ranks=3, culprit=1, timeout=5, deadline=90))
    first = diagnose(case).findings[0]
    assert first.cause == injection.fault(name).cause, first
    assert first.evidence and first.advice
    if injection.fault(name).one_rank:
        assert first.culprits["ranks"] == (1,), first
    assert leftovers() == []


def test_a_recording_is_clean_and_tells_its_truth(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    run = asyncio.run(injection.inject(case, "rank_raises", backend="gloo", ranks=2, timeout=8, deadline=90))
    row = Measurement("all_reduce", 8, "float32", 2, 1, "gloo", 9.0, None, None, 0.1, 0.1, 0, run=run.folder.name)
    row = replace(row, env={"NCCL_DEBUG_FILE": str(run.folder / "log")})
    kept = recording.bundle(replace(run, measurements=(row,)), tmp_path / "kept", {"hardware": "test"})
    (told,) = Case.open(kept, read_only=True).measurements
    assert (told.run, told.env) == ("1-rank_raises", {"NCCL_DEBUG_FILE": "/case/run/log"})
    text = "".join(p.read_bytes().decode("latin-1") for p in kept.rglob("*") if p.suffix != ".gz" and p.is_file())
    assert str(tmp_path) not in text
    assert '"cause": "rank_exception"' in (kept / "case.json").read_text()
    assert not (kept / "runs" / "1-rank_raises" / "truth.json").exists()


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"ranks": "abc"}, "whole number"),
        ({"ranks": -1}, "must lie between 0 and 100,000, but it is -1"),
        ({"ranks": True}, "whole number"),
        ({"backend": "mpi"}, "auto, nccl or gloo"),
        ({"timeout": 0}, "must lie between 1"),
        ({"timeout": "x"}, "must be a number"),
        ({"backend": "nccl", "ranks": 999}, "need 999 GPUs"),
        ({"python": "/no/such"}, "does not exist"),
        ({"python": 7}, "path in quotes"),
        ({"max_bytes": "big"}, "such as 4096, 64MB or 1GiB"),
        ({"repeats": 0}, "Batches per size"),
        ({"op": "all_reduce,gossip"}, "not 'gossip'"),
        ({"dtype": "float8"}, "must be one of float32"),
    ],
)
def test_bad_choices_are_one_sentence(tmp_path: Path, choices: dict[str, Any], says: str) -> None:
    with pytest.raises(NcclkitError, match=says) as error:
        asyncio.run(probe.plan_test(Case.open(tmp_path), ProbeOptions(**choices)))
    assert "\n" not in str(error.value)


def test_unknown_fault() -> None:
    with pytest.raises(NcclkitError, match="the lab knows healthy, rank_late"):
        injection.fault("nonsense")


def test_the_variable_names_the_training_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe.TRAIN_PYTHON, "/no/such/python")
    with pytest.raises(NcclkitError, match="/no/such/python"):
        asyncio.run(probe.plan_test(Case.open(tmp_path)))
    assert asyncio.run(probe.plan_test(Case.open(tmp_path), ProbeOptions(python=sys.executable))).python == sys.executable


def test_sizes_end_with_the_largest() -> None:
    assert probe.sizes(8) == (8,)
    assert probe.sizes(1000) == (8, 64, 1000)
    assert probe.sizes(2000) == (8, 64, 512, 2000)
    assert probe.sizes(4) == (4,)
