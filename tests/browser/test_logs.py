"""03_logs in a real JupyterLab: Run All on a narrow screen, then somebody looks around in the evidence browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import opened, run_all, state, wait_cells_done
from tests.reports import ROOT

NAME = "03_logs.ipynb"
VIEW = ".jp-OutputArea .jupyter-widgets"
WIDER = """() => [...document.querySelectorAll('.jp-OutputArea-output')]
  .filter(area => area.scrollWidth > area.clientWidth + 1).map(area => area.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def logs(tab: Visit, lab: Lab) -> Iterator[Visit]:
    """A copy of the notebook, all its cells run on the bundled run and on a narrow screen."""
    shutil.copy(ROOT / "notebooks" / NAME, lab.root)
    with opened(tab, lab, NAME) as seen:
        seen.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        seen.page.set_viewport_size({"width": 560, "height": 1400})
        run_all(seen.page)
        wait_cells_done(seen.page, 120)
        yield seen


def browser(page: Any) -> Any:
    """The evidence browser: the only view with a filter for kinds."""
    return page.locator(f"{VIEW}.widget-vbox").filter(has=page.get_by_text("± lines")).last


def choose(page: Any, label: str, option: str) -> None:
    """Pick the option that begins with these words."""
    box = browser(page).get_by_label(label, exact=True)
    words = box.locator("option").filter(has_text=option).first.inner_text()
    box.select_option(label=words)


def test_on_a_narrow_screen_the_views_fit_and_the_form_answers(logs: Visit) -> None:
    page = logs.page
    assert page.evaluate(WIDER) == []
    form = page.locator(f"{VIEW}.widget-vbox").filter(has=page.get_by_text("Attach to", exact=True)).last
    attach, target = form.locator(".widget-button", has_text="Attach"), form.get_by_label("Attach to", exact=True)
    assert attach.is_disabled() and form.get_by_text("Say what to attach to").count()
    target.fill("4194304999")
    until(lambda: form.get_by_text("There is no process 4194304999").count(), 20, "the form's answer")
    assert attach.is_disabled() and form.locator(".nk-wrong").count() == 1
    target.fill("all")
    until(lambda: attach.is_enabled() and not form.locator(".nk-wrong").count(), 20, "the button to be of use")


def test_filter_and_open_a_line(logs: Visit, lab: Lab) -> None:
    page = logs.page
    page.set_viewport_size({"width": 1280, "height": 1400})
    assert page.locator(
        f"{VIEW} .js-plotly-plot .heatmaplayer image, {VIEW} .js-plotly-plot .heatmaplayer path"
    ).count()

    choose(page, "Kind", "gloo.timeout")
    table = browser(page).locator("table.nk-events tbody tr")
    until(lambda: table.count() == 7, 20, "the seven timeouts")
    browser(page).get_by_label("Rank", exact=True).fill("0-2")
    until(lambda: table.count() == 3, 20, "the timeouts of three ranks")
    browser(page).get_by_label("Text", exact=True).fill("recv")
    until(lambda: table.count() == 2, 20, "those that waited to receive")
    hit = browser(page).locator("pre .nk-hit")
    recv = hit.filter(has_text="Timed out waiting 20000ms for recv operation to complete")
    until(lambda: hit.count() == recv.count() == 1, 20, "the raw line in its context, after that of the rows before")
    near = browser(page).locator("pre .nk-near")
    before = near.count()
    browser(page).get_by_label("± lines", exact=True).fill("2")
    browser(page).get_by_label("± lines", exact=True).press("Enter")
    until(lambda: 0 < near.count() < before, 20, "fewer lines around it")

    assert state(page)["errors"] == [] and logs.complaints == []
    assert logs.elsewhere(lab.url) == []
