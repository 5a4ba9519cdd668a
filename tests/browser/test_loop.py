"""The closed loop as a student clicks it, in a real JupyterLab: Break it, read the finding, Check this, Try the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import opened, run_all, run_cell, state, wait_cells_done
from tests.browser.test_logs import VIEW, WIDER

NAME = "loop.ipynb"
CELLS = (
    "import ncclkit as nk",
    "case = nk.Case.open('loop_case')\nform = nk.form.lab(case, 'healthy', ranks=2, backend='gloo', timeout=6.0)\nform",
    "nk.show.findings(nk.diagnose(case))",
    "loop = nk.form.check(case)\nloop",
    "nk.show.quiz(case, 'wenet')",
)
FAULT, CAUSE = "uneven_data", "rank_divergence"
"""What is broken, and the cause that is found, at first without proof; it ends within seconds."""


@pytest.fixture(scope="module")
def loop(tab: Visit, lab: Lab) -> Iterator[Visit]:
    """A notebook with the two forms, all its cells run, in which nothing is broken yet."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab.root / NAME)
    with opened(tab, lab, NAME) as seen:
        run_all(seen.page)
        wait_cells_done(seen.page, 60)
        yield seen


def form(page: Any, button: str) -> Any:
    """The form that has this button."""
    return page.locator(f"{VIEW}.widget-vbox").filter(has=page.locator("button", has_text=button)).last


def press(page: Any, button: str) -> None:
    form(page, button).locator("button", has_text=button).click()


def waits(page: Any, button: str, words: str) -> str:
    """The text of that button's form once it holds these words and is at rest."""
    box = form(page, button)
    at_rest = box.locator("button:disabled", has_text="Cancel")
    until(lambda: words in box.inner_text() and at_rest.count(), 90, f"{words!r} after {button}")
    return str(box.inner_text())


def test_from_symptom_to_verified_fix(loop: Visit, lab: Lab) -> None:
    """Of one fault: what the buttons do is the same for all, and other faults go through it in tests/probe."""
    page = loop.page
    box = form(page, "Break it").get_by_label("Fault", exact=True)
    box.select_option(label=box.locator("option").filter(has_text=f"{FAULT}:").first.inner_text())
    press(page, "Break it")
    waits(page, "Break it", f"{FAULT} on 2 ranks over gloo failed after")

    assert "proven" not in finding(page, CAUSE)
    run_cell(page, 3)
    wait_cells_done(page, 30)
    press(page, "Check this")
    waits(page, "Check this", "What it says of each suspect")
    press(page, "Try the fix")
    told = waits(page, "Try the fix", "it works")
    assert "Before" in told and "After" in told and CAUSE in told and "Nothing found" in told
    assert "proven" in finding(page, CAUSE)
    assert lab.runs() == [] and state(page)["errors"] == []


def finding(page: Any, cause: str) -> str:
    """The card of the first finding, judged anew; it has a line of evidence and is about this cause."""
    run_cell(page, 2)
    wait_cells_done(page, 30)
    card = page.locator(".jp-OutputArea-output section.nk-card:has(h4:text-matches('^1[.] '))")
    assert card.locator(".nk-cite").count() and card.locator(".nk-card-head code").inner_text() == cause
    return str(card.locator(".nk-card-head").inner_text())


def test_a_question_of_the_quiz_is_answered(loop: Visit) -> None:
    page = loop.page
    page.get_by_text("Yes, as it trains", exact=True).last.click()
    page.get_by_role("status").filter(has_text="All GPUs idle").wait_for(timeout=20_000)


def test_on_a_narrow_screen_the_forms_fit(loop: Visit, lab: Lab) -> None:
    page = loop.page
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.set_viewport_size({"width": 560, "height": 1400})
    until(lambda: page.evaluate(WIDER) == [], 20, "the forms to become narrower")
    assert loop.errors == [] and loop.failed == []
    assert [url for url in loop.requests if not url.startswith((lab.url, "data:", "blob:"))] == []
