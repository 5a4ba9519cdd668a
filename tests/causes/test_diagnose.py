"""Ordering, the JSON contract of `diagnose --json`, the terminal report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ncclkit import causes
from ncclkit.causes.engine import diagnose, judge
from ncclkit.causes.order import rank_findings
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding, Strength, found
from ncclkit.evidence.samples import open_sample
from tests.causes.specimens import ROOT, judged, load


def finding(cause: str, strength: Strength, text: str = "") -> Finding:
    return found(cause, strength, "Because.", [Event("x", text or cause, "job.log", 1)])


def test_the_root_stands_above_what_it_explains() -> None:
    order = rank_findings([finding("slow_rank", "likely"), finding("rank_exception", "likely")])
    assert [f.cause for f in order] == ["rank_exception", "slow_rank"]


def test_a_weak_root_does_not_push_a_proven_finding_down() -> None:
    order = rank_findings([finding("slow_rank", "proven"), finding("rank_exception", "likely")])
    assert [f.cause for f in order] == ["slow_rank", "rank_exception"]


def test_two_that_explain_each_other_are_ordered_by_strength() -> None:
    order = rank_findings([finding("rank_divergence", "possible"), finding("shape_mismatch", "proven")])
    assert [f.cause for f in order] == ["shape_mismatch", "rank_divergence"]


def test_what_rests_on_the_line_of_a_stronger_root_is_left_out() -> None:
    line = "OSError: [Errno 28] No space left on device"
    order = rank_findings([finding("rank_exception", "likely", f"Traceback\n{line}"), finding("disk_or_io", "proven", line)])
    assert [f.cause for f in order] == ["disk_or_io"]


def test_a_message_that_speaks_like_a_person_proves_as_much_as_any_other() -> None:
    error = {"type": "ValueError", "message": "we have no shard left", "frames": [], "victim": False}
    case = Case()
    case.add([Event("python.exception", "ValueError: we have no shard left", "job.log", 4, rank=1, data=error)])
    case.add([Event("gloo.closed", "Connection closed by peer", "job.log", 9, rank=rank) for rank in (0, 2)])
    (first, *_) = diagnose(case).findings
    assert (first.cause, first.strength) == ("rank_exception", "proven")


def test_a_rank_that_left_the_group_had_finished_though_it_was_ended_before_it_was_done() -> None:
    """The launcher ends it as soon as the others have died of its absence."""
    case = Case()
    case.add([Event("worker.phase", "{}", "wire.jsonl", 7, rank=1, data={"phase": "leave"})])
    case.add([Event("gloo.closed", "Connection closed by peer", "job.log", 9, rank=rank) for rank in (0, 2)])
    (first, *_) = diagnose(case).findings
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "likely", (1,))


def test_a_cause_that_fails_is_unknown_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        ID = "slow_rank"
        explains = ()

        def diagnose(self, case: Case) -> Finding:
            raise KeyError("seq")

    monkeypatch.setattr("ncclkit.causes.engine.catalogue", lambda: {**causes.catalogue(), "slow_rank": Broken()})
    result = diagnose(load(ROOT / "gpu_oom" / "found-torch"))
    assert result.findings[0].cause == "gpu_oom"
    assert "KeyError" in next(f for f in result.unknown if f.cause == "slow_rank").missing[0]
    assert judge("slow_rank", Broken(), Case()).verdict == "unknown"


def test_json_has_exactly_the_fields_of_the_contract() -> None:
    case = load(ROOT / "slow_rank" / "found-stack")
    row = json.loads(json.dumps(diagnose(case).to_dict(case.inputs)))
    assert list(row) == ["schema", "verdict", "inputs", "job", "findings", "unknown", "errors", "risks", "action"]
    assert (row["verdict"], row["errors"]) == ("found", [])
    assert {"ranks", "hosts", "nccl", "torch", "cuda", "transports"} <= set(row["job"])
    assert all(set(one) == {"path", "bytes", "lines"} for one in row["inputs"]) and row["inputs"]
    first = row["findings"][0]
    assert list(first) == ["cause", "verdict", "strength", "culprits", "say", "evidence", "advice", "next"]
    assert first["culprits"] == {"ranks": [1], "hosts": [], "gpus": [], "interfaces": []}
    assert all(set(line) == {"path", "line", "text"} for line in first["evidence"])
    assert all(f["verdict"] == "found" for f in row["findings"])
    assert all(set(one) == {"cause", "missing"} for one in row["unknown"])


def test_the_report_shows_culprit_lines_with_their_place_and_what_to_do() -> None:
    result, *_ = judged(ROOT / "rank_exception" / "found-nccl")
    text = result.text()
    assert "Rank 2 raised ValueError" in text and "rank2.log:" in text and "Do: Fix the error at" in text
    assert result.exit_code == 1


def test_a_healthy_job_has_no_finding_and_exit_code_0() -> None:
    result, *_ = judged(ROOT / "slow_rank" / "clear-healthy")
    assert (result.findings, result.exit_code) == ((), 0)
    assert result.text().startswith("Nothing found")


def test_the_case_keeps_every_verdict(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    case.add(load(ROOT / "gpu_oom" / "found-torch").events)
    result = diagnose(case)
    case.save()
    kept = [f.cause for f in Case.open(tmp_path / "case", read_only=True).findings]
    assert kept[0] == "gpu_oom" == result.findings[0].cause
    assert set(kept) >= {f.cause for f in result.clear} | {f.cause for f in result.unknown}


def test_models_that_differ_are_not_answered_with_the_lengths_of_batches() -> None:
    """DDP compares the models in its constructor, before any batch is read."""
    found = next(f for f in diagnose(open_sample("mixed_versions")).findings if f.cause == "shape_mismatch")
    said = " ".join(f"{advice.do} {advice.code} {advice.risk}" for advice in found.advice)
    assert "same model on all ranks" in said and not re.search(r"drop_last|pad|lengths", said)
