"""Every cause meets every specimen, and only the named ones may be found by rules; what it resembles is possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclkit.causes import resemblance
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.core.model import cite
from tests.causes.specimens import FOLDERS, expected, judged, name


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_specimen(folder: Path) -> None:
    result, verdicts, _ = judged(folder)
    want = expected(folder)
    judged_so = verdicts[folder.parent.name]
    by_rule = "unknown" if judged_so.say.startswith(resemblance.SAYS) else judged_so.verdict
    assert by_rule == folder.name.partition("-")[0], "its folder says the verdict"
    failed = [v for v in verdicts.values() if any("check itself failed" in missing for missing in v.missing)]
    assert not failed, "no cause fails itself"
    only_the_named_causes_are_found(result, want)
    culprits_and_lines(result, want)
    every_finding_can_be_shown(result)


def only_the_named_causes_are_found(result: Diagnosis, want: dict[str, Any]) -> None:
    """The named one stands first or among three possible ones, and nothing else is proven."""
    found = {finding.cause for finding in result.findings if not finding.say.startswith(resemblance.SAYS)}
    assert set(want["found"]) <= found <= {*want["found"], *want.get("also", ())}
    best = [finding.cause for finding in result.findings if finding.strength != "possible"][:1]
    best = best or [finding.cause for finding in result.findings[:3]]
    assert not want["found"] or set(best) & set(want["found"])
    assert all(f.strength == "possible" for f in result.findings if f.say.startswith(resemblance.SAYS))
    proven = [finding.cause for finding in result.findings if finding.strength == "proven"]
    assert proven == want.get("proven", proven)


def culprits_and_lines(result: Diagnosis, want: dict[str, Any]) -> None:
    if "culprit_ranks" in want:
        assert list(result.findings[0].culprits["ranks"]) == want["culprit_ranks"]
    cited = "\n".join(cite(piece)["text"] for finding in result.findings for piece in finding.evidence)
    assert all(line in cited for line in want.get("lines", ()))


def every_finding_can_be_shown(result: Diagnosis) -> None:
    for finding in result.findings:
        assert finding.evidence and finding.advice and finding.strength
        assert all(cite(piece)["text"] for piece in finding.evidence)
        assert finding.say.endswith(".") and "\n" not in finding.say and len(finding.say) < 600
        assert all(advice.do and advice.check and advice.risk for advice in finding.advice)
