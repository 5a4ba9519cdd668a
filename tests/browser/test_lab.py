"""The guided notebook in a real JupyterLab: Run All, then the buttons; whatever is stopped leaves no process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import execute, opened, run_all, state, wait_cells_done
from tests.reports import ROOT

FORM = ".jp-OutputArea .jupyter-widgets"


@pytest.fixture(scope="module")
def guided(tab: Visit, lab: Lab) -> Iterator[Visit]:
    """A copy of the guided notebook, open, with a kernel that takes cells; the last test kills it."""
    shutil.copy(ROOT / "notebooks" / "guided.ipynb", lab.root)
    with opened(tab, lab, "guided.ipynb") as seen:
        yield seen


def button(page: Any, name: str) -> Any:
    return page.locator(f"{FORM}.widget-button", has_text=name).first


def badge(page: Any, state: str) -> Any:
    """The badge of the live test's state, inside the form."""
    return page.locator(f"{FORM} .nk-badge.nk-state-{state}").first


def test_the_kernels_interrupt_stops_the_awaiting_cell(guided: Visit, lab: Lab) -> None:
    page = guided.page
    run_all(page)
    until(lambda: lab.runs() and badge(page, "running").count(), 120, "the live test to run")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:interrupt-kernel'); }")
    until(lambda: not lab.runs(), 30, "every process of the interrupted run to end")
    until(lambda: state(page)["errors"], 30, "the cell to end with the interrupt")
    # for a moment after an error a kernel aborts what it is asked for
    until(lambda: execute(page, "") == "ok", 30, "the kernel to take cells again")


def test_run_all_then_run_then_cancel(guided: Visit, lab: Lab) -> None:
    page = guided.page
    run_all(page)
    wait_cells_done(page, 180)
    assert "succeeded" in badge(page, "done").inner_text()
    assert page.locator(f"{FORM} .js-plotly-plot .scatterlayer path").count()
    assert lab.runs() == []
    form = page.locator(f"{FORM}.widget-vbox").filter(has=page.locator("button", has_text="Run")).last
    curve = form.locator(".js-plotly-plot .point")
    whole = curve.count()
    assert whole > 4

    button(page, "Run").click()
    page.locator(f"{FORM} .nk-old .point").first.wait_for(timeout=30_000)
    badge(page, "running").wait_for(timeout=30_000)
    page.locator(f"{FORM} :is(.nk-stage-import, .nk-stage-init, .nk-stage-size)").first.wait_for(timeout=60_000)
    assert lab.runs()
    button(page, "Cancel").click()
    badge(page, "cancelled").wait_for(timeout=30_000)
    assert "cancelled" in badge(page, "cancelled").inner_text()
    until(lambda: not lab.runs(), 15, "every process of the cancelled run to end")
    # views below the form stay grey: the cancelled run brought nothing newer
    until(lambda: curve.count() < whole and not form.locator(".nk-old").count(), 15, "the old curve to be gone")
    assert state(page)["errors"] == []
    assert guided.complaints == [] and guided.elsewhere(lab.url) == []


def test_a_killed_kernel_leaves_no_run_behind(guided: Visit, lab: Lab) -> None:
    page = guided.page
    button(page, "Run").click()
    until(lambda: lab.runs() and badge(page, "running").count(), 120, "the live test to run")
    [kernel] = lab.kernels()
    os.kill(kernel, signal.SIGKILL)
    until(lambda: not lab.runs(), 30, "every process of the orphaned run to end")
    page.locator(".jp-Dialog").get_by_text("died").wait_for(timeout=30_000)
    page.locator(".jp-Dialog button").first.click()
