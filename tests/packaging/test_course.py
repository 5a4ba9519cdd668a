"""The teacher's page: its links lead somewhere, and every fault and command that it names exists."""

import re

import pytest

from ncclkit.lab.faults.catalogue import FAULTS
from tests.packaging.project import ROOT

PAGE = ROOT / "docs" / "course.md"
TEXT = PAGE.read_text()
TABLE = [name for row in re.findall(r"^\| \[\d.*", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+_\w+)`", row)]
SUGGESTED = re.findall(r"`(\w+)`", TEXT.partition("Suggested:")[2].partition("##")[0])


def test_every_story_has_a_row_and_every_link_leads_somewhere():
    stories = sorted((ROOT / "notebooks" / "cases").glob("*.ipynb"))
    assert [path.name for path in stories if f"cases/{path.name}" not in TEXT] == []
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if not (PAGE.parent / link).exists()] == []


@pytest.mark.parametrize("name", [*TABLE, *SUGGESTED])
def test_every_fault_exists(name):
    assert name in FAULTS


def test_the_page_names_faults_of_its_own_and_of_the_stories():
    assert {"a2a_unpaired", "resume_replays"} <= set(TABLE) and "gil_held" in SUGGESTED
