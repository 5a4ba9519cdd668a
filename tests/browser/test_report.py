"""The report as a reader meets it: a file, a browser, no network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from ncclkit.lab.course.questions import STORIES
from ncclkit.report import page, report_file
from tests.browser.conftest import Visit
from tests.record import classroom
from tests.reports import CHINESE, DATA, HOSTILE, NOTEBOOKS, made

Open = Callable[..., Visit]
PARAMETERS = (("name", HOSTILE),)
COLOURS = """() => {
  const title = document.querySelector('.js-plotly-plot .xtitle');
  return {paper: getComputedStyle(document.body).backgroundColor, title: getComputedStyle(title).fill};
}"""

ALIKE = """() => {
  const drawn = letter => {
    const canvas = document.createElement('canvas'), paper = canvas.getContext('2d');
    paper.font = '40px ' + getComputedStyle(document.body).fontFamily;
    paper.fillText(letter, 10, 60);
    return canvas.toDataURL();
  };
  return drawn('\u6d4b') === drawn('\u8bd5');
}"""
"""Whether two Chinese letters look the same: without a font that has them, both are the box for a missing glyph."""


@pytest.fixture(scope="session")
def report() -> Path:
    case, run = made(DATA / "good.ipynb", PARAMETERS)
    assert run.returncode == 0, run.stderr
    return report_file(case, DATA / "good.ipynb")


def width(visit: Visit) -> int:
    return int(visit.page.evaluate("document.documentElement.scrollWidth"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("pixels", [1280, 390])
def test_opens_without_network(report: Path, offline_page: Open, pixels: int, dark: bool) -> None:
    visit = offline_page(report, pixels, dark)
    assert visit.requests == [report.as_uri()]
    assert visit.failed == [] and visit.errors == []
    assert visit.page.locator(".js-plotly-plot .scatterlayer path.js-line").count() == 1
    assert width(visit) == pixels


def test_figures_follow_the_scheme_and_the_switch(report: Path, offline_page: Open) -> None:
    light, dark = (offline_page(report, dark=choice).page.evaluate(COLOURS) for choice in (False, True))
    assert light["paper"] != dark["paper"] and light["title"] != dark["title"]
    page = offline_page(report, dark=False).page
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(COLOURS) == dark
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(COLOURS) == light


def test_paper_is_light(report: Path, offline_page: Open) -> None:
    light = offline_page(report).page.evaluate(COLOURS)
    page = offline_page(report, dark=True).page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(COLOURS) == light
    assert page.locator("nav").is_hidden()


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
def test_code_is_hidden_behind_a_switch(report: Path, offline_page: Open, script: bool) -> None:
    page = offline_page(report, script=script).page
    code = page.get_by_text("share = 100 // ranks")
    assert code.is_hidden()
    page.get_by_text("Show the code").click()
    assert code.is_visible()


def test_text_from_outside_stays_text(report: Path, offline_page: Open) -> None:
    visit = offline_page(report)
    assert visit.page.get_by_text(HOSTILE).count() >= 2
    assert visit.page.locator("main img, main script:not(.figure-data)").count() == 0


def test_each_output_has_its_static_face(report: Path, offline_page: Open) -> None:
    page = offline_page(report).page
    assert page.locator("p.face").is_visible() and page.locator("pre.text", has_text="twin").count() == 0
    assert page.get_by_text("An interactive control stands here").count() == 1
    warning = page.locator("details pre", has_text="a warning nobody asked for")
    assert warning.is_hidden()
    page.get_by_text("Messages on standard error (1)").click()
    assert warning.is_visible()


def test_contents_lead_to_the_headings(report: Path, offline_page: Open) -> None:
    page = offline_page(report).page
    assert page.title() == "Does the report show what a cell shows?"
    links = page.locator("nav a")
    targets = [link.get_attribute("href") for link in links.all()]
    assert targets[:3] == ["#a-figure", "#a-table", "#a-control-with-two-faces"]
    assert all(page.locator(target).count() == 1 for target in targets)


def test_a_notebook_that_stopped_says_so_first(offline_page: Open) -> None:
    case, run = made(DATA / "good.ipynb", (("ranks", "0"),))
    assert run.returncode == 2 and "ZeroDivisionError" in run.stderr
    visit = offline_page(report_file(case, DATA / "good.ipynb"))
    assert visit.errors == [] and "ZeroDivisionError" in visit.page.get_by_role("alert").inner_text()
    visit.page.get_by_text("Go to where it stopped").click()
    assert visit.page.locator("#stopped details.error").is_visible()
    assert visit.page.get_by_text("2 later cells of the notebook were not run").is_visible()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_kits_own_reports(path: Path, offline_page: Open) -> None:
    """As a telephone loads it, then on a wide screen; `test_opens_without_network` loads the figure at both widths."""
    case, run = made(path)
    assert run.returncode == 0, run.stderr
    visit = offline_page(report_file(case, path), 390)
    assert width(visit) == 390
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.page.wait_for_function("document.documentElement.clientWidth === 1280")
    assert width(visit) == 1280
    assert visit.requests == [report_file(case, path).as_uri()]
    assert visit.failed == [] and visit.errors == []
    drawn = visit.page.locator(".js-plotly-plot").count()
    assert drawn == visit.page.locator("script.figure-data").count()
    assert drawn or path.stem != "guided"
    story = STORIES.get(path.stem.partition("_")[2])
    asked = [said for question in story.quiz for said in question.choices.values()] if story else []
    for said in asked:
        told = visit.page.locator("details p", has_text=said)
        assert told.count() == 1 and not told.is_visible()


@pytest.mark.parametrize("story", classroom.STORIES, ids=lambda path: path.stem)
def test_a_worksheet_fits_on_paper(story: Path, offline: Visit) -> None:
    """The printable width of A4 within margins of 16 mm, at 96 dots an inch."""
    page = offline.page
    page.set_viewport_size({"width": 673, "height": 1000})
    page.emulate_media(media="print")
    page.set_content(classroom.worksheet(story, answers=False))
    assert page.evaluate("document.documentElement.scrollWidth") == 673


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_chinese_is_drawn_and_fits(path: Path, offline_page: Open, tmp_path: Path) -> None:
    """Not run: what its code shows is in the report of its original."""
    html = page.render(nbformat.read(path, as_version=4), name=path.name, folder=path.parent)
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    visit = offline_page(tmp_path / "report.html", 390)
    if visit.page.evaluate(ALIKE) and not os.environ.get("CI"):
        pytest.skip("no font here has Chinese letters; CI has one")
    assert not visit.page.evaluate(ALIKE)
    assert width(visit) == 390
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.page.wait_for_function("document.documentElement.clientWidth === 1280")
    assert width(visit) == 1280 and visit.errors == []
    assert visit.page.evaluate("document.documentElement.lang") == "zh-CN"


STORY = next(path for path in NOTEBOOKS if path.stem == "1_recbole")


def test_on_paper_what_solves_a_story_stands_on_its_last_sheet(offline_page: Open) -> None:
    case, run = made(STORY)
    assert run.returncode == 0, run.stderr
    page = offline_page(report_file(case, STORY)).page
    known = STORIES["recbole"]
    solved = [reason for question in (known.guess, *known.quiz) for reason in question.choices.values()]
    on_screen = page.inner_text("main")
    assert page.locator(".answers").is_hidden()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.inner_text("main")
    before, _, last = printed.partition("\nAnswers\n")
    assert [reason for reason in solved if reason in before] == []
    assert [reason for reason in solved if reason not in last] == []
    assert all(question.ask in last for question in known.quiz) and "What the story proves" in last
    turn = before.index("Choose before you turn the page.")
    assert before.index(known.guess.ask) < turn < before.index("This is usually one of these")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.inner_text("main") == on_screen
