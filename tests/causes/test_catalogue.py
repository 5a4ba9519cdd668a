"""Pages, code and specimens of the catalogue stay in step."""

from __future__ import annotations

import difflib
import inspect
import re
import sys

import pytest

from ncclkit.causes import HEADINGS, catalogue, page, remedies_of, what_to_do
from ncclkit.causes.engine import diagnose
from ncclkit.causes.order import USUAL
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence import KINDS
from tests.causes.specimens import FOLDERS, ROOT, load

EACH = pytest.mark.parametrize("cause", catalogue())


@EACH
def test_a_page_has_a_title_and_the_five_headings_with_text(cause: str) -> None:
    sections = page(cause)
    assert list(sections) == ["", *HEADINGS]
    assert sections[""] and "\n" not in sections[""]
    assert all(len(sections[heading].split()) >= 4 for heading in HEADINGS)
    assert len(sections["Why it happens"].split()) >= 40, "the paragraph that teaches"


BY_TABLE = {"nccl_bug"}
"""Causes whose advice stands in a table, a row for each known defect."""


@EACH
def test_a_page_prints_every_remedy_with_what_can_be_copied(cause: str) -> None:
    printed = " ".join(page(cause)["What to do"].split())
    assert remedies_of(cause)
    for advice in remedies_of(cause):
        assert " ".join(advice.do.split()) in printed
        assert all(" ".join(line.split()) in printed for line in advice.to_copy)
        assert advice.do.rstrip(".") in what_to_do(cause)


def first_part(sentence: str) -> str:
    """A remedy without the options of the launcher that started the job."""
    return sentence.partition(": ")[0]


@EACH
def test_what_a_finding_advises_stands_on_its_page(cause: str) -> None:
    known = [advice.do for advice in remedies_of(cause)]
    known += [first_part(sentence) for sentence in known]
    for folder in FOLDERS:
        if folder.parent.name == cause and folder.name.startswith("found") and cause not in BY_TABLE:
            for advice in catalogue()[cause].diagnose(load(folder)).advice:
                said = (advice.do, first_part(advice.do))
                near = [difflib.get_close_matches(part, known, cutoff=0.5) for part in said]
                assert any(near), f"{folder.name}: {advice.do}"


@EACH
def test_a_module_offers_what_a_cause_is(cause: str) -> None:
    module = catalogue()[cause]
    assert module.ID == cause
    known = {*catalogue(), *KINDS}
    assert set(module.explains) <= known and cause not in module.explains


@EACH
def test_specimens_show_the_cause_found_clear_and_unknown(cause: str) -> None:
    verdicts = {folder.name.partition("-")[0] for folder in FOLDERS if folder.parent.name == cause}
    assert verdicts == {"found", "clear", "unknown"}


def test_no_specimen_belongs_to_an_unknown_cause() -> None:
    assert {path.name for path in ROOT.iterdir()} == set(catalogue())


@EACH
def test_without_any_evidence_the_verdict_is_unknown_and_says_what_is_missing(cause: str) -> None:
    verdict = catalogue()[cause].diagnose(Case())
    assert verdict.verdict == "unknown" and verdict.missing and all(verdict.missing)


def test_the_order_of_possible_causes_names_causes() -> None:
    assert set(USUAL) <= set(catalogue())


def test_no_text_of_the_catalogue_names_a_kind_that_does_not_exist() -> None:
    sources = [inspect.getsource(sys.modules[f"ncclkit.causes.{cause}"]) for cause in catalogue()]
    used = {kind for source in sources for kind in re.findall(r'case\.of\("([\w.]+)"', source)}
    assert {kind for kind in used if not kind.endswith(".")} <= set(KINDS)


def test_a_page_of_a_cause_that_does_not_exist() -> None:
    with pytest.raises(NcclkitError, match="no cause 'gremlins'"):
        page("gremlins")


def test_an_empty_case_has_no_finding() -> None:
    assert diagnose(Case()).findings == ()
