"""The notebooks and pages in Chinese: the code of their originals, prose that is translated, links that lead there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.filters import markdown2html_mistune
from nbformat import NotebookNode

from ncclkit.core.case import Case
from ncclkit.lab.course.questions import STORIES
from ncclkit.report.parameters import notebook
from ncclkit.views.report import ReportForm
from tests.notebooks.refresh import pair
from tests.reports import CHINESE, NOTEBOOKS, ROOT

CJK = "[\u4e00-\u9fff]"
PAGES = [(ROOT / "README.zh.md", ROOT / "README.md"), (ROOT / "docs" / "course.zh.md", ROOT / "docs" / "course.md")]
TOLD = [path for path in CHINESE if path.parent.name == "cases"]
ASKING = ("nk.show.guess(", "nk.show.quiz(")
GLOSSARY = ROOT / "docs" / "glossary.zh.md"
PAIRS = [pytest.param(chinese, original, id=chinese.stem) for chinese, original in CHINESE.items()]
PARTS = {
    "headings": r"^#+ ",
    "table rows": r"^\|",
    "items of lists": r"^(?:-|\d+\.) ",
    "quoted lines": r"^    [^#\n]*",
    "code": r"`[^`]+`",
    "links": r"\]\(([^)]+)\)",
    "numbers": r"\d+(?:[.,]\d+)*",
}
"""What a cell or page and its translation have in common, in any order of words."""


def same(text: str) -> dict[str, list[str]]:
    """The parts that a translation keeps; a link to a notebook or page in Chinese counts as one to its original.

    What is quoted translates what a view asks in English, and has no original in the prose.
    """
    told = re.sub(r"^>.*\n?", "", text.replace(".zh.", "."), flags=re.M)
    found = {name: re.findall(part, told, re.M) for name, part in PARTS.items()}
    return {
        name: sorted(set(parts) if name == "numbers" else (" ".join(part.split()) for part in parts))
        for name, parts in found.items()
    }


def cells(path: Path, kind: str) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def badly_set(text: str) -> list[str]:
    """Places where Chinese touches a Latin word or a half-width mark, or where Markdown leaves its own stars."""
    read = BeautifulSoup(markdown2html_mistune(text), "html.parser")
    touching = rf"{CJK}[A-Za-z0-9,;:?!]|[A-Za-z0-9,;?!]{CJK}|.{{0,9}}\*\*"
    for code in read.select("pre"):
        code.decompose()
    return re.findall(touching, read.get_text())


def dead(path: Path, text: str) -> list[str]:
    """Links that lead nowhere, or to the English notebook where there is one in Chinese."""
    ends = [path.parent / link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    return [str(end) for end in ends if not end.exists() or end.resolve() in CHINESE.values()]


def test_the_first_page_guided_and_every_story_is_there_in_chinese_too() -> None:
    wanted = {path for path in NOTEBOOKS if path.parent.name == "cases" or path.stem in ("00_start_here", "guided")}
    assert set(CHINESE.values()) == wanted


@pytest.mark.parametrize(("chinese", "original"), PAIRS)
def test_a_pair_differs_in_its_prose_alone(chinese: Path, original: Path) -> None:
    both = [nbformat.read(path, as_version=4) for path in (chinese, original)]
    for book in both:
        for cell in book.cells:
            cell.source = cell.source if cell.cell_type == "code" else ""
    assert both[0] == both[1]


@pytest.mark.parametrize(("chinese", "original"), PAIRS)
def test_every_cell_of_prose_is_translated_and_keeps_its_parts(chinese: Path, original: Path) -> None:
    for own, its in zip(cells(chinese, "markdown"), cells(original, "markdown"), strict=True):
        assert re.search(CJK, own.source), own.id
        assert same(own.source) == same(its.source), own.id
        assert badly_set(own.source) == [] and dead(chinese, own.source) == [], own.id


@pytest.mark.parametrize("chinese", TOLD, ids=lambda path: path.stem)
def test_every_choice_is_translated_above_its_question_and_none_is_marked(chinese: Path) -> None:
    story, book = STORIES[CHINESE[chinese].stem.partition("_")[2]], nbformat.read(chinese, as_version=4)
    above = {view: cell.source for cell, after in pairwise(book.cells) for view in ASKING if view in after.source}
    for questions, view in (([story.guess], "nk.show.guess("), (story.quiz, "nk.show.quiz(")):
        quoted = re.findall(r"^> \*\*(.*)\*\*\n>\n((?:> - .*\n?)+)", above[view], re.M)
        for question, (asked, rows) in zip(questions, quoted, strict=True):
            choices = [row.removeprefix("> - ").rpartition("：")[0].partition("：")[0] for row in rows.splitlines()]
            assert re.search(CJK, asked) and choices == sorted(question.choices), "an order that tells nothing"
            assert not re.search(r"[*`✓☒]", rows)


def test_the_report_of_a_chinese_notebook_that_is_open_is_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    chinese, original = next((own, its) for own, its in CHINESE.items() if its.stem == "1_recbole")
    for session, shown in ((chinese, chinese), (original, original), (Path("elsewhere.zh.ipynb"), original)):
        monkeypatch.setenv("JPY_SESSION_NAME", str(session))
        assert ReportForm(Case(), "cases/1_recbole")._notebook == shown


def test_what_is_badly_set_is_found() -> None:
    assert badly_set("用GPU") and badly_set("先猜,再读") and badly_set("**四个（rank）**是")
    assert badly_set("用 `x` 和 **GPU**，不是 CPU。") == []


def test_changed_code_is_carried_over_and_prose_is_kept(tmp_path: Path) -> None:
    chinese, original = next(iter(CHINESE.items()))
    book = nbformat.read(original, as_version=4)
    next(cell for cell in book.cells if cell.cell_type == "code").source += "\nnew: int = 1  # one more parameter"
    for path, content in (("a.ipynb", book), ("a.zh.ipynb", nbformat.read(chinese, as_version=4))):
        nbformat.write(content, tmp_path / path)
    pair(tmp_path / "a.zh.ipynb", tmp_path / "a.ipynb")
    assert cells(tmp_path / "a.zh.ipynb", "code") == cells(tmp_path / "a.ipynb", "code")
    assert cells(tmp_path / "a.zh.ipynb", "markdown") == cells(chinese, "markdown")


def test_a_chinese_notebook_opens_by_its_name() -> None:
    assert notebook("guided.zh") in CHINESE and notebook("cases/1_recbole.zh") in CHINESE
    assert notebook("guided") in NOTEBOOKS


@pytest.mark.parametrize(("chinese", "original"), PAGES, ids=lambda path: path.name)
def test_a_page_and_its_original_lead_to_each_other_and_say_the_same(chinese: Path, original: Path) -> None:
    own, its = (path.read_text(encoding="utf-8") for path in (chinese, original))
    assert f"]({chinese.name})" in its and f"]({original.name})" in own
    assert same(own) == same(its)
    assert badly_set(own) == [] and dead(chinese, own) == []


def test_the_glossary_has_sixty_terms_both_ways() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    rows = [[word.strip() for word in row.split("|")[1:-1]] for row in re.findall(r"^\|(?!-).*", text, re.M)]
    there = [(row[0], row[1]) for row in rows if len(row) == 4][1:]
    back = [(row[1], row[0]) for row in rows if len(row) == 2][1:]
    assert len(there) == 60 and sorted(there) == sorted(back)
    assert there == sorted(there, key=lambda row: row[0].casefold())
    assert back == sorted(back, key=lambda row: row[1].encode("gb2312")), "by pinyin, as GB 2312 has it"
    assert badly_set(text) == [] and dead(GLOSSARY, text) == []
