"""01_environment in a real JupyterLab: Run All, the same conclusions as headless, no line too wide, Test once more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import opened, run_all, state, wait_cells_done
from tests.browser.test_logs import VIEW, WIDER
from tests.reports import ROOT
from tests.views.machines import CONCLUSIONS, given

NAME = "01_environment.ipynb"


@pytest.fixture
def environment(tab: Visit, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """A copy of the notebook with other parameters, open, with a kernel that takes cells."""
    chosen = given(tmp_path_factory.mktemp("others"))
    notebook = json.loads((ROOT / "notebooks" / NAME).read_text())
    notebook["cells"][1]["source"] = _lines(notebook["cells"][1]["source"], chosen)
    (lab.root / NAME).write_text(json.dumps(notebook))
    with opened(tab, lab, NAME) as seen:
        yield seen


def _lines(source: list[str], chosen: dict[str, str]) -> list[str]:
    names = [line.partition(":")[0] for line in source]
    assert set(chosen) <= set(names)
    return [
        f"{name} = {chosen[name]!r}\n" if name in chosen else line for name, line in zip(names, source, strict=True)
    ]


def form(page: Any) -> Any:
    """The form of the connection test."""
    return page.locator(f"{VIEW}.widget-vbox").filter(has=page.get_by_label("Hosts", exact=True)).last


def test_run_all_then_look_narrowly_and_test_again(environment: Visit, lab: Lab) -> None:
    page = environment.page
    run_all(page)
    wait_cells_done(page, 120)
    read = " ".join(page.locator(".jp-OutputArea-output").all_text_contents())
    assert [said for said in CONCLUSIONS if said not in read] == []
    assert page.locator(f"{VIEW} .js-plotly-plot .scatterlayer path.js-line").count() > 3

    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.set_viewport_size({"width": 800, "height": 1400})
    until(lambda: page.evaluate(WIDER) == [], 20, "the figures to become narrower")

    test = form(page).locator(".widget-button", has_text="Test")
    form(page).get_by_label("Hosts", exact=True).fill("127.0.0.2")
    until(lambda: test.is_disabled() and form(page).locator(".nk-wrong").count(), 20, "one host to be refused")
    assert form(page).get_by_text("One host has no path to test").count()
    form(page).get_by_label("Hosts", exact=True).fill("127.0.0.2 127.0.0.3")
    until(test.is_enabled, 20, "two hosts to be taken")
    test.click()
    until(lambda: "127.0.0.2 → 127.0.0.3" in form(page).inner_text(), 60, "the answer of the second test")
    assert lab.runs() == [] and state(page)["errors"] == [] and environment.complaints == []
    assert environment.elsewhere(lab.url) == []
