"""The five stories as a student clicks through them, in a real JupyterLab and Chromium; minutes, so not in CI.

    PICTURES=DIR python -m pytest -p no:cacheprovider -q tests/record/clicks.py [-k wenet]

Each story: Shift+Enter from cell to cell, a guess, every choice of the three questions, the report.  DIR gets
a picture of each section.  A story that passes leaves its row in the table of docs/course.md.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup

from ncclkit.lab.course.translation import Translator
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.report import declared, literals, report_file
from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import open_notebook, shut_down, state
from tests.browser.test_logs import WIDER
from tests.reports import CHINESE, NOTEBOOKS, ROOT

pytest_plugins = ["tests.browser.conftest"]

STORIES = [path for path in [*NOTEBOOKS, *CHINESE] if path.parent.name == "cases"]
COURSE = [ROOT / "docs" / name for name in ("course.md", "course.zh.md")]
PICTURES = Path(os.environ.get("PICTURES") or "/nonexistent")
CELL, REACT = 150.0, 30.0
"""Seconds that a cell, and any click, may take."""
KEPT = "Kept. Choose another whenever you learn more; the proof below meets your first guess again."
SELECT = """place => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.mode = 'command'; notebook.activeCellIndex = place; notebook.activate(); notebook.node.focus();
}"""
EMPTY = """place => {
  const cell = window.jupyterapp.shell.currentWidget.content.widgets[place];
  const areas = [...cell.node.querySelectorAll('.jp-OutputArea-output')];
  return areas.filter(a => !a.innerText.trim() && !a.querySelector('svg, img, canvas, input, select')).length;
}"""
BOX = """([first, last]) => {
  const widgets = window.jupyterapp.shell.currentWidget.content.widgets;
  widgets[first].node.scrollIntoView();
  const [top, end] = [widgets[first].node.getBoundingClientRect(), widgets[last].node.getBoundingClientRect()];
  return {x: top.x, y: top.y, width: top.width, height: end.bottom - top.y};
}"""


@pytest.fixture
def visit(request: pytest.FixtureRequest, chromium: Any, lab: Lab) -> Iterator[Visit]:
    """A copy of the story, open, with a kernel that takes cells."""
    shutil.copy(request.param, lab.root)
    context = chromium.new_context(viewport={"width": 1280, "height": 3600})
    seen = Visit(context.new_page())
    open_notebook(seen.page, lab, request.param.name)
    yield seen
    shut_down(seen.page)
    until(lambda: not lab.kernels(), REACT, "the kernel to end")
    context.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("visit", STORIES, ids=lambda path: path.stem, indirect=True)
def test_story(visit: Visit, lab: Lab, request: pytest.FixtureRequest, chromium: Any) -> None:
    story: Path = request.node.callspec.params["visit"]
    page, cells, begun = visit.page, nbformat.read(story, as_version=4).cells, time.monotonic()
    translate = Translator("zh" if story in CHINESE else "en")
    for place, cell in enumerate(cells):
        page.evaluate(SELECT, place)
        page.keyboard.press("Shift+Enter")
        if cell.cell_type == "code":
            _done(page, place)
            _act(page, place, cell.source, translate)
    _reported(lab, story)
    _proven(page, "\n".join(cell.source for cell in cells))
    _pictures(page, story.stem, [cell.source for cell in cells])
    seconds = time.monotonic() - begun
    assert lab.runs() == [] and state(page)["errors"] == []
    assert page.evaluate(WIDER) == [] and [n for n in range(len(cells)) if page.evaluate(EMPTY, n)] == []
    assert visit.errors == [] and visit.failed == []
    assert [url for url in visit.requests if not url.startswith((lab.url, "data:", "blob:"))] == []
    _write(story, seconds, chromium.version)


def _done(page: Any, place: int) -> None:
    """Wait until the cell was executed; an error of its own is told at once."""
    js = f"""() => {{ const panel = window.jupyterapp.shell.currentWidget, w = panel.content.widgets[{place}];
      return w.model.executionCount !== null && !w.promptNode.textContent.includes('*'); }}"""
    until(lambda: page.evaluate(js), CELL, f"cell {place} to be executed")
    assert state(page)["errors"] == []


def _act(page: Any, place: int, source: str, translate: Translator) -> None:
    """What a student does with the widgets that a cell has put there."""
    cell = page.locator(".jp-Notebook .jp-Cell").nth(place)
    if "nk.show.guess(" in source:
        cell.locator("input[type=radio]").first.click()
        cell.get_by_role("status").filter(has_text=translate(KEPT)).wait_for()
    if "nk.show.proof(" in source:
        cell.get_by_text(translate("your first guess")).wait_for()
    if "nk.show.quiz(" in source:
        _quiz(cell, translate)
    if "nk.form.report(" in source:
        cell.locator("button", has_text="Make the report").click()
        cell.get_by_role("link", name="Download it").wait_for(timeout=2000 * REACT)
    if source == "await loop.run()":
        shown = page.locator(".jp-Notebook .jp-Cell").nth(place - 1).inner_text()
        assert "Before" in shown and "After" in shown


def _reported(lab: Lab, story: Path) -> None:
    """The report that the button has made speaks the language of the notebook that was open."""
    folder = literals({name: one.default for name, one in declared(story).items()})["case_dir"]
    page = BeautifulSoup(report_file(lab.root / folder, story).read_text(encoding="utf-8"), "html.parser")
    assert page.html is not None and page.html["lang"] == ("zh-CN" if story in CHINESE else "en")
    assert page.h1 is not None and bool(re.search("[\u4e00-\u9fff]", page.h1.text)) == (story in CHINESE)


def _quiz(cell: Any, translate: Translator) -> None:
    """Every choice says why; one of each question is right, and at the end stands how the student fared."""
    choices, told = cell.locator("input[type=radio]"), cell.get_by_role("status")
    choices.first.wait_for()
    right = 0
    for number in range(choices.count()):
        before = told.all_inner_texts()
        choices.nth(number).click()
        until(partial(_differs, told, before), REACT, "an answer")
        changed = [said for said in told.all_inner_texts() if said not in before]
        assert len(changed[0]) > 15
        right += "✓" in changed[0]
    assert right == 3 and translate("How you fared: ").strip() in cell.inner_text()


def _differs(told: Any, before: list[str]) -> bool:
    return bool(told.all_inner_texts() != before)


def _proven(page: Any, sources: str) -> None:
    """The page names the cause of the fault that was broken first, and says that it is gone after the fix."""
    name = re.search(r'form\.lab\(case, "(\w+)"', sources)
    assert name is not None
    said = page.locator(".jp-Notebook").inner_text()
    assert re.search(rf"succeeds after \d+ s, and {FAULTS[name[1]].cause} is gone", said)


def _pictures(page: Any, story: str, sources: list[str]) -> None:
    """One picture for each section, if somebody wants to look."""
    starts = [0, *(n for n, source in enumerate(sources) if re.search(r"^## ", source, re.M))]
    if not PICTURES.is_absolute() or not PICTURES.parent.is_dir():
        return
    PICTURES.mkdir(exist_ok=True)
    page.add_style_tag(content=".jp-Notebook .jp-Cell.jp-mod-selected { outline: none }")
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], len(sources)], strict=True)):
        box = page.evaluate(BOX, [first, end - 1])
        page.wait_for_timeout(300)  # figures draw themselves anew when they come into sight
        height = min(box["height"], 3600 - box["y"])
        page.screenshot(path=str(PICTURES / f"{story}-{number}.png"), clip={**box, "height": height})


def _write(story: Path, seconds: float, chromium: str) -> None:
    """This story's row of the table in docs/course.md."""
    with_what = f"JupyterLab {version('jupyterlab')}, Chromium {chromium}, torch {version('torch')}"
    row = f"| {story.stem.replace('.zh', ' (zh)')} | {time.strftime('%Y-%m-%d')} | {with_what} | {seconds:.0f} |"
    for page in COURSE:
        name = re.escape(row.split("|")[1])
        new, count = re.subn(rf"^\|{name}\|.*$", row, page.read_text(encoding="utf-8"), flags=re.M)
        assert count == 1
        page.write_text(new, encoding="utf-8")
