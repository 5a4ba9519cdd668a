"""The report recorded on four H100: its case folder opens, and today's code says of it what it said then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core import bandwidth
from ncclkit.core.case import Case

FOLDER = Path(__file__).parents[2] / "docs" / "gpu" / "4xh100"


@pytest.fixture(scope="module")
def recorded() -> Case:
    return Case.open(FOLDER, read_only=True)


def test_the_expectation_follows_from_the_facts(recorded: Case) -> None:
    expected = bandwidth.expect("all_reduce", "nccl", 4, recorded.facts)
    assert expected.limit == "nvlink" and expected.value == pytest.approx(18 * 20.6)


def test_the_measured_curve_reaches_it(recorded: Case) -> None:
    largest = max(recorded.measurements, key=lambda m: m.bytes)
    assert largest.bytes == 256 << 20 and largest.ranks == 4 and largest.backend == "nccl"
    assert largest.ratio is not None and 0.9 < largest.ratio < 1
    assert sum(m.wrong for m in recorded.measurements) == 0


def test_nothing_is_found_in_its_logs(recorded: Case) -> None:
    case = Case()
    case.facts, case.events = recorded.facts, evidence.read([FOLDER]).events
    found = diagnose(case)
    assert found.findings == ()
    assert (found.job["nccl"], found.job["ranks"]) == ("2.28.9", 4)


def test_no_name_or_address_of_the_machine_is_in_it() -> None:
    for path in FOLDER.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".log", ".ipynb"):
            text = path.read_text()
            assert "/root/" not in text and "/opt/torch" not in text and "/tmp/" not in text, path
