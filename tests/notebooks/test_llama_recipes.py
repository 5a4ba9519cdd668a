"""Story 3, run headless on two simulated hosts: the host at fault is named, and a silent loss is told by packets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.experiments import fixes
from ncclkit.report import report_file
from tests.namespaces import cannot_simulate
from tests.reports import ROOT, made

STORY = ROOT / "notebooks" / "cases" / "3_llama_recipes.ipynb"
WHY_NOT = cannot_simulate()
possible = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "hosts can be simulated here")


def first(folder: Path) -> tuple[str, str | None, tuple[str, ...]]:
    """Cause, strength and hosts of what is found first."""
    found = diagnose(Case.open(folder, read_only=True)).findings[0]
    return found.cause, found.strength, found.culprits["hosts"]


@pytest.mark.timeout(300)
def test_the_host_without_that_card_is_named() -> None:
    folder, run = made(STORY)  # from the recording, where hosts cannot be simulated
    assert run.returncode == 0, run.stderr
    assert first(folder) == ("ifname_not_found", "proven", ("node-2",))
    page = report_file(folder, STORY).read_text(encoding="utf-8")
    assert "NCCL_SOCKET_IFNAME=eth97 matches no network interface" in page  # as GPUs recorded it


@possible
@pytest.mark.timeout(300)
def test_the_card_is_fixed_and_lost_packets_are_proven_before_they_are() -> None:
    folder, _ = made(STORY)
    (fix,) = fixes.experiments(Case.open(folder, read_only=True))
    assert (fix.kind, fix.cause, fix.observed, fix.worked) == ("fix", "ifname_not_found", "works", True), fix.summary
    assert first(folder / "silent") == ("network_loss", "proven", ("node-1", "node-2"))
    look, smaller = fixes.experiments(Case.open(folder / "silent", read_only=True))
    assert look.kind == "check" and look.verdicts["network_loss"] == "proven"
    assert "wrong_interface" in look.verdicts and smaller.cause == "network_loss" and smaller.worked
