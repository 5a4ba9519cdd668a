"""Every cause meets every specimen, and only the named ones may be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.core.model import cite
from tests.causes.specimens import FOLDERS, expected, judged, name

EACH = pytest.mark.parametrize("folder", FOLDERS, ids=name)


@EACH
def test_only_the_named_causes_are_found(folder: Path) -> None:
    result, _ = judged(folder)
    want = expected(folder)
    found = {finding.cause for finding in result.findings}
    assert set(want["found"]) <= found <= {*want["found"], *want.get("also", ())}


@EACH
def test_the_folder_states_the_verdict_of_its_cause(folder: Path) -> None:
    _, verdicts = judged(folder)
    assert verdicts[folder.parent.name].verdict == folder.name.partition("-")[0]


@EACH
def test_the_named_cause_stands_first_or_among_three_possible_ones(folder: Path) -> None:
    result, _ = judged(folder)
    want = expected(folder)
    best = [finding.cause for finding in result.findings if finding.strength != "possible"][:1]
    best = best or [finding.cause for finding in result.findings[:3]]
    assert not want["found"] or set(best) & set(want["found"])


@EACH
def test_nothing_else_is_proven(folder: Path) -> None:
    result, _ = judged(folder)
    proven = [finding.cause for finding in result.findings if finding.strength == "proven"]
    assert proven == expected(folder).get("proven", proven)


@EACH
def test_culprits_and_lines(folder: Path) -> None:
    result, _ = judged(folder)
    want = expected(folder)
    if "culprit_ranks" in want:
        assert list(result.findings[0].culprits["ranks"]) == want["culprit_ranks"]
    cited = "\n".join(cite(piece)["text"] for finding in result.findings for piece in finding.evidence)
    assert all(line in cited for line in want.get("lines", ()))


@EACH
def test_no_cause_fails_itself(folder: Path) -> None:
    _, verdicts = judged(folder)
    assert not [v for v in verdicts.values() if any("check itself failed" in missing for missing in v.missing)]


@EACH
def test_every_finding_can_be_shown(folder: Path) -> None:
    result, _ = judged(folder)
    for finding in result.findings:
        assert finding.evidence and finding.advice and finding.strength
        assert all(cite(piece)["text"] for piece in finding.evidence)
        assert finding.say.endswith(".") and "\n" not in finding.say and len(finding.say) < 600
        assert all(advice.do and advice.check and advice.risk for advice in finding.advice)
