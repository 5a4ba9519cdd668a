"""The pages of the course and for its teacher: their links lead somewhere, and every fault that they name exists."""

import json
import re
import zipfile

import pytest
from bs4 import BeautifulSoup

from ncclkit.lab.course.questions import STORIES
from ncclkit.lab.faults.catalogue import FAULTS
from tests.packaging.project import ROOT
from tests.record import classroom

PAGE = ROOT / "docs" / "course.md"
TEXT = PAGE.read_text()
TABLE = [name for row in re.findall(r"^\| \[\d.*", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+_\w+)`", row)]
TEACHING = PAGE.with_name("teaching.md").read_text()
SUGGESTED = re.findall(r"`(\w+)`", TEACHING.partition("Suggested:")[2].partition("##")[0])


def test_every_story_has_a_row_and_every_link_leads_somewhere():
    assert [path.name for path in classroom.STORIES if f"cases/{path.name}" not in TEXT] == []
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT + TEACHING) if not (PAGE.parent / link).exists()] == []


@pytest.mark.parametrize("name", [*TABLE, *SUGGESTED])
def test_every_fault_exists(name):
    assert name in FAULTS


def test_the_page_names_faults_of_its_own_and_of_the_stories():
    assert {"a2a_unpaired", "resume_replays"} <= set(TABLE) and "gil_held" in SUGGESTED


def test_the_worksheet_asks_and_its_answer_page_tells():
    for story in classroom.STORIES:
        asked, told = (classroom.worksheet(story, answers) for answers in (False, True))
        known = STORIES[story.stem.partition("_")[2]]
        for page in (asked, told):
            read = BeautifulSoup(page, "html.parser")
            words = " ".join(read.get_text(" ").split())
            assert (
                read.h1 is not None and not read.select("script, img, link, details") and page.startswith("<!DOCTYPE")
            )
            assert all(question.ask in words for question in (known.guess, *known.quiz))
            answers = [said in words for question in (known.guess, *known.quiz) for said in question.choices.values()]
            assert all(answers) if page is told else not any(answers)
        assert asked.count("☒") == 0 and told.count("☒") == 4 and "The suspects" in asked
        assert asked.count('<div class="line">') >= 8


def test_a_release_is_one_archive_of_all_that_is_handed_out(tmp_path):
    classroom.main([str(tmp_path / "handout")])
    packed = zipfile.ZipFile(tmp_path / "handout.zip").namelist()
    assert sorted(packed) == sorted(
        f"{what}-{story.stem}.html" for what in ("answers", "worksheet") for story in classroom.STORIES
    )
    both = classroom.handed_out(True, True)
    assert len(both) == 10 and all(notebook.exists() for notebook in both) and classroom.handed_out(False, False) == []


def test_the_container_takes_all_from_package_registries():
    steps = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    runs = re.findall(r"^RUN (.*)", steps, re.MULTILINE)
    pinned = r"sed [^&]*constraints\.txt > /tmp/pinned\.txt\s+&&\s+"
    allowed = rf"apt-get update && apt-get install|useradd|{pinned}python -m pip install --no-cache-dir"
    assert "-c constraints.txt" not in steps, "its hashes would be asked of the checkout, too"
    assert len(runs) == 3 and all(re.match(allowed, line) for line in runs)
    assert not re.search(r"curl|wget|git clone|https?://", steps)
    (base,) = re.findall(r"^FROM python:(3\.\d+)-slim-bookworm$", steps, re.MULTILINE)
    assert f'"{base}"' in (ROOT / ".github" / "workflows" / "ci.yml").read_text(), "a Python that CI tests"
    (started,) = re.findall(r"^CMD (.*)$", steps, re.MULTILINE)
    assert json.loads(started)[:2] == ["jupyter", "lab"] and "--port=8888" in started and "EXPOSE 8888" in steps
    assert steps.index("USER student") > steps.index("pip install") and "--allow-root" not in started
    copied = [
        word for line in re.findall(r"^COPY --chown=student (.*)", steps, re.MULTILINE) for word in line.split()[:-1]
    ]
    assert copied and all((ROOT / word).exists() for word in copied)
    editor = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / editor["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert editor["remoteUser"] == "student" and f"WORKDIR {editor['workspaceFolder']}" in steps
