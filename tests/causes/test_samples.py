"""The bundled recordings of real runs: the first verdict is the truth, whatever part of the evidence is left."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Measurement, cite
from ncclkit.evidence.samples import HERE, list_samples, open_sample
from tests.recordings import RECORDINGS, TWO_HOSTS, recorded, title

pytestmark = pytest.mark.slow
BROKEN = [folder for folder in RECORDINGS if folder.name != "healthy"]


def judged(folder: Path, *gone: str) -> tuple[Diagnosis, dict[str, Any]]:
    """The diagnosis of a recording without the files of these patterns, and its truth."""
    return diagnose(recorded(folder, *gone)), json.loads((folder / "case.json").read_text())["truth"]


def test_what_the_issue_asks_for_is_there() -> None:
    assert {"healthy", "rank_late", "ifname_missing", "rank_raises"} <= set(list_samples())


@pytest.mark.parametrize("name", list_samples())
def test_each_says_where_it_was_recorded(name: str) -> None:
    about = Case.open(HERE / name, read_only=True).about
    assert (
        about["ranks"] >= 2
        and ("NVIDIA" in about["hardware"] or "+cpu" in about["torch"])
        and about["torch"]
        and about["recorded"]
        and about["truth"]
    )
    # where the launchers did not meet, or could not begin, no rank was started
    logs = sorted(path.name for path in (HERE / name).rglob("*.log.gz"))
    assert any(log.startswith("rank") for log in logs) or logs[0].startswith("launcher")


def test_a_healthy_run_gives_nothing() -> None:
    assert judged(TWO_HOSTS / "healthy")[0].findings == ()
    found = diagnose(open_sample("healthy"))
    assert found.findings == () and found.exit_code == 0
    assert found.job["ranks"] == 4 and found.job["nccl"] == "2.28.9" and found.job["transports"] == {"P2P": 4}


@pytest.mark.parametrize("folder", BROKEN, ids=title)
def test_cause_and_culprit(folder: Path) -> None:
    found, truth = judged(folder)
    first = found.findings[0]
    assert first.cause == truth["cause"]
    if truth["ranks"]:
        assert list(first.culprits["ranks"]) == truth["ranks"]
    if truth.get("hosts"):
        assert list(first.culprits["hosts"]) == truth["hosts"]
    for piece in first.evidence:
        place = folder / "runs" if isinstance(piece, Measurement) else Path()
        assert cite(piece)["text"] and (isinstance(piece, Fact) or (place / cite(piece)["path"]).exists())


GONE = (("fr_rank_*",), ("stacks_*",), ("wire.jsonl*", "plan.json"), ("launcher.log*",))
"""Files that a real case often lacks."""
LESS = [(folder, gone) for folder in BROKEN for gone in GONE if any(any(folder.rglob(one)) for one in gone)]
"""Recordings, and what of each can be taken away."""


@pytest.mark.parametrize(("folder", "gone"), LESS, ids=lambda value: value[0] if value in GONE else title(value))
def test_no_wrong_proof_where_evidence_is_missing(folder: Path, gone: tuple[str, ...]) -> None:
    """With less to look at the answer may be less certain, but never certain and wrong."""
    found, truth = judged(folder, *gone)
    for finding in found.findings:
        if finding.strength == "proven":
            assert finding.cause == truth["cause"]
            assert not truth["ranks"] or list(finding.culprits["ranks"]) == truth["ranks"]


@pytest.mark.parametrize("gone", GONE)
def test_the_late_rank_is_named_all_the_same_in_a_copy_without_them(gone: tuple[str, ...], tmp_path: Path) -> None:
    kept, copy = HERE / "rank_late", tmp_path / "rank_late"
    shutil.copytree(kept, copy)
    for path in [path for pattern in gone for path in copy.rglob(pattern)]:
        path.unlink()
    case, reading = Case.open(copy, read_only=True), evidence.read([copy])
    case.events, case.inputs = list(reading.events), list(reading.inputs)
    first = diagnose(case).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("slow_rank", (2,))
    left = [replace(event, path=event.path.replace(str(kept), str(copy))) for event in recorded(kept, *gone).events]
    assert left == case.events
