"""A message that refers to another one speaks of that, too."""

from __future__ import annotations

import pytest

from tests.cases import judged_text

RECOVERY = "[  100.5] NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)"


@pytest.mark.parametrize(
    ("previous", "cause", "word"),
    [(149, "nvswitch_fabric", "Xid 149"), (79, "gpu_hardware_error", "Xid 79")],
)
def test_the_xid_that_a_line_calls_its_cause_is_taken(previous: int, cause: str, word: str) -> None:
    result = judged_text(f"{RECOVERY}, caused by previous Xid {previous}\n")
    assert [finding.cause for finding in result.findings if word in finding.say] == [cause]


def test_a_recovery_without_a_cause_names_none() -> None:
    findings = judged_text(f"{RECOVERY}\n").findings
    assert [finding for finding in findings if finding.verdict == "found" and finding.strength != "possible"] == []
