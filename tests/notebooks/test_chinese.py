"""The notebooks and pages in Chinese: the code of their originals, prose that is translated, links that lead there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.filters import markdown2html_mistune
from nbformat import NotebookNode

from ncclkit.core.case import Case
from ncclkit.lab.course.questions import STORIES, Story
from ncclkit.lab.course.translation import pairs_by_section, texts_in
from ncclkit.views import ask
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.report.parameters import notebook
from ncclkit.views.report import ReportForm
from tests.notebooks.refresh import LANGUAGE, in_chinese, pair
from tests.reports import CHINESE, NOTEBOOKS, ROOT

CJK = "[\u4e00-\u9fff]"
PAGES = [(ROOT / "README.zh.md", ROOT / "README.md"), (ROOT / "docs" / "course.zh.md", ROOT / "docs" / "course.md")]
TOLD = [path for path in CHINESE if path.parent.name == "cases"]
TOUCHING = rf"{CJK}[A-Za-z0-9,;:?!]|[A-Za-z0-9,;?!]{CJK}"
"""Where Chinese touches a Latin word or a half-width mark."""

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
    """The parts that a translation keeps; a link to a notebook or page in Chinese counts as one to its original."""
    told = text.replace(".zh.", ".")
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
    for code in read.select("pre"):
        code.decompose()
    return re.findall(rf"{TOUCHING}|.{{0,9}}\*\*", read.get_text())


def dead(path: Path, text: str) -> list[str]:
    """Links that lead nowhere, or to the English notebook where there is one in Chinese."""
    ends = [path.parent / link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    return [str(end) for end in ends if not end.exists() or end.resolve() in CHINESE.values()]


def test_the_first_page_guided_and_every_story_is_there_in_chinese_too() -> None:
    wanted = {path for path in NOTEBOOKS if path.parent.name == "cases" or path.stem in ("00_start_here", "guided")}
    assert set(CHINESE.values()) == wanted


@pytest.mark.parametrize(("chinese", "original"), PAIRS)
def test_a_pair_differs_in_its_prose_and_the_language_of_its_questions_alone(chinese: Path, original: Path) -> None:
    both = [nbformat.read(path, as_version=4) for path in (chinese, original)]
    for book in both:
        for cell in book.cells:
            cell.source = in_chinese(cell.source) if cell.cell_type == "code" else ""
    assert both[0] == both[1]
    told = [cell.source for cell in cells(chinese, "code") if "language: str" in cell.source]
    assert len(told) == (chinese in TOLD) and all(LANGUAGE[1] in code for code in told)


@pytest.mark.parametrize(("chinese", "original"), PAIRS)
def test_every_cell_of_prose_is_translated_and_keeps_its_parts(chinese: Path, original: Path) -> None:
    for own, its in zip(cells(chinese, "markdown"), cells(original, "markdown"), strict=True):
        assert re.search(CJK, own.source), own.id
        assert same(own.source) == same(its.source), own.id
        assert badly_set(own.source) == [] and dead(chinese, own.source) == [], own.id


@pytest.mark.parametrize("chinese", TOLD, ids=lambda path: path.stem)
def test_each_question_stands_once(chinese: Path) -> None:
    """In the view that asks it, and not in the prose: neither in Chinese nor in English."""
    story = STORIES[CHINESE[chinese].stem.partition("_")[2]]
    prose = "\n".join(cell.source for cell in cells(chinese, "markdown"))
    for question in (story.guess, *story.quiz):
        phrases = [choice for choice in question.choices if choice.count(" ") > 1]
        told = [question.ask, texts_in("zh")[question.ask], *phrases]
        assert [text for text in told if text in prose] == []
    assert not re.search(r"^>", prose, re.M)


def texts_of(story: Story) -> set[str]:
    """Every English text of a story's questions."""
    texts = set(story.hints)
    for question in (story.guess, *story.quiz):
        texts |= {question.ask, *question.choices, *question.choices.values()}
    return texts


def texts_of_forms() -> set[str]:
    """Every text that the course's own code hands to a translator, as its source has it."""
    texts = set()
    for path in (ROOT / "ncclkit" / "lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and ast.unparse(node.func) in ("translate", "self._translate")
            if named and isinstance(node.args[0], ast.Constant):
                texts.add(node.args[0].value)
    return texts


def texts_of_ask() -> set[str]:
    """Every label of the form that asks: what it hands to `words`, and its constants."""
    texts = {ask.NO_COMMAND, ask.NO_ANSWERS}
    texts |= {getattr(ask.AskForm, name) for name in ("IDLE", "ASK", "BUSY", "CANCELLED")}
    for node in ast.walk(ast.parse(Path(ask.__file__).read_text(encoding="utf-8"))):
        named = isinstance(node, ast.Call) and ast.unparse(node.func) == "words"
        if named and isinstance(node.args[0], ast.Constant):
            texts.add(node.args[0].value)
    return texts


def test_each_text_of_the_course_has_its_pair_and_no_pair_is_left_over() -> None:
    wanted = {name: texts_of(story) for name, story in STORIES.items()}
    wanted["forms"] = texts_of_forms()
    wanted["ask"] = texts_of_ask()
    wanted["faults"] = {fault.says for fault in FAULTS.values()}
    assert {section: set(pairs) for section, pairs in pairs_by_section("zh").items()} == wanted
    assert len(wanted["forms"]) > 30


def test_a_text_of_two_sections_has_one_translation() -> None:
    for section, pairs in pairs_by_section("zh").items():
        for english, translated in pairs.items():
            assert texts_in("zh")[english] == translated, section


CODE_WORDS = re.compile(
    "|".join(
        (
            r"\{\w+\}",  # a place that is filled
            r"“[ -~]+”",  # quoted from a log
            r"[A-Za-z]\w*(?:[._][A-Za-z]\w*)+",  # all_reduce, torch.cuda.set_device
            r"[A-Z]{2,}\w*?(?=s?\b)",  # NCCL, NVLink, GPUs
            r"\w*[a-z][A-Z]\w*",  # ncclUniqueId, PyTorch, KiB
            r"\b(?i:gloo|torchrun|ping|iperf3|isend|irecv|docker0|eth0|eth97|ens3|io|libnccl)\b",
            r"\d+(?:[.,]\d+)*",
        )
    ),
    re.ASCII,
)
"""What a translation keeps to the letter."""


def code_words(text: str) -> set[str]:
    return {found.lower() for found in CODE_WORDS.findall(text)}


def test_each_pair_keeps_its_code_words_and_is_well_set() -> None:
    for english, translated in texts_in("zh").items():
        assert code_words(english) == code_words(translated), translated
        same_in_both = english.casefold() == translated.casefold() or not re.search("[a-z]", CODE_WORDS.sub("", english))
        assert re.search(CJK, translated) or same_in_both, english
        assert re.findall(TOUCHING, translated) == [], translated


def test_a_changed_code_word_is_seen() -> None:
    assert code_words("WORLD_SIZE is 8 for 2 GPUs") == code_words("2 块 GPU 的 WORLD_SIZE 是 8")
    for wrong in ("2 块 GPU 的 WORLD_SIZE 是 4", "2 块 GPU 的 LOCAL_RANK 是 8", "2 块显卡的 WORLD_SIZE 是 8", "{a} 块 GPU，2 和 8，WORLD_SIZE"):
        assert code_words("WORLD_SIZE is 8 for 2 GPUs") != code_words(wrong)


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
