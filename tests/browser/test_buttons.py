"""Every notebook clicked through in a real JupyterLab: each of its buttons is pressed, and answers.

One page and one kernel serve all of them, small and over gloo.  A job is broken once; the other notebooks find it in
their case folder.  What takes longer than a click is cancelled there: `test_loop` waits for it, and so does
``tests/record/clicks.py``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup

from ncclkit.report import report_file
from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import execute, open_notebook, opened, run_all, state, wait_cells_done
from tests.browser.test_logs import browser
from tests.browser.test_loop import form, press, waits
from tests.reports import NOTEBOOKS

KEPT = re.compile(
    r"^import ncclkit"
    r"|nk\.(Case\.open|read_logs|diagnose|show\.(banner|events|catalogue)|form\.\w+)\("
)
"""Cells with a form, and those that they need."""
ELSEWHERE = re.compile(
    r"^(stopgap|silent|late|practice|sweep|before|check|hung|example|stages) = "
    r"|nk\.open_sample\(|show\.\w+\((nk\.|hung)|form\.(?:story_)?ask\(saw|case_dir \+"
)
"""Cells of further cases."""
SMALL = {"timeout": 10.0, "max_bytes": 4096, "ranks": 2, "logs_dir": "clicked"}
BROKEN = "rank_killed"
"""The fault that the first story injects, and the folder that keeps what its job left."""
STORIES = ("2_lightning", "3_llama_recipes", "4_wenet", "5_all_to_all")
"""The other ones, whose verdict follows from the cell that Run All awaits."""
KERNEL = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.model"


@pytest.fixture(scope="module")
def clicks(tab: Visit, lab: Lab) -> Iterator[Visit]:
    """A page whose kernel all notebooks share; each gets the case folder that the first story has broken."""
    for path in NOTEBOOKS:
        nbformat.write(_clickable(path), lab.root / f"clicked_{path.name}")
    with opened(tab, lab, "clicked_1_recbole.ipynb") as seen:
        yield seen


def _clickable(path: Any) -> Any:
    """The notebook of somebody who clicks where Run All awaits: its forms, and what they need."""
    book = nbformat.read(path, as_version=4)
    cells = []
    for cell in book.cells:
        given = "parameters" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or not (given or KEPT.search(cell.source)) or ELSEWHERE.search(cell.source):
            continue
        lines = cell.source.splitlines()
        if given:
            chosen = SMALL | {"case_dir": f"clicked_{path.stem}"}
            lines += [f"{name} = {value!r}" for name, value in chosen.items() if f"\n{name}: " in f"\n{cell.source}"]
        judged = ["nk.diagnose(case)"] * ("nk.form.check(case)" in cell.source)
        cells.append(nbformat.v4.new_code_cell("\n".join(judged + lines)))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def show(clicks: Visit, lab: Lab, name: str) -> Any:
    """Open a notebook on the shared kernel, with the broken job in its case folder, and run its cells."""
    page, own = clicks.page, f"clicked_{name}.ipynb"
    if (lab.root / BROKEN).exists() and not (lab.root / f"clicked_{name}").exists():
        shutil.copytree(lab.root / BROKEN, lab.root / f"clicked_{name}")
    if name != "1_recbole":
        open_notebook(page, lab, own, page.evaluate(KERNEL))
        # behind what JupyterLab asks it about its widgets; a list shown meanwhile once changed nothing
        until(lambda: execute(page, "") == "ok", 30, "the kernel to have answered")
    run_all(page)
    wait_cells_done(page, 60)
    return page


def start_and_cancel(page: Any, lab: Lab, button: str) -> None:
    """Press a button, see that it works, and stop it."""
    press(page, button)
    cancel = form(page, button).locator("button", has_text="Cancel")
    until(cancel.is_enabled, 30, f"{button} to start")
    cancel.click()
    until(cancel.is_disabled, 120, f"{button} to end after Cancel")
    assert "ancelled" in form(page, button).inner_text()
    until(lambda: not lab.runs(), 30, f"every process of {button} to end")


def make_the_report(page: Any, lab: Lab, name: str) -> None:
    """Press the button, and see that the file begins with the verdict and holds nothing to click."""
    press(page, "Make the report")
    page.get_by_role("link", name="Download it").wait_for(timeout=60_000)
    made = BeautifulSoup(report_file(lab.root / f"clicked_{name}", Path(name)).read_text(encoding="utf-8"), "html.parser")
    banner = made.select_one("section.prose h1 + .out .nk-banner")
    assert not re.search(r"\bCancel\b", made.main.get_text()) and (banner or name in ("1_recbole", *STORIES))


def test_the_first_story_breaks_a_job_and_fixes_it(clicks: Visit, lab: Lab) -> None:
    page = show(clicks, lab, "1_recbole")
    box = form(page, "Break it").get_by_label("Fault", exact=True)
    box.select_option(label=box.locator("option").filter(has_text=f"{BROKEN}:").first.inner_text())
    press(page, "Break it")
    waits(page, "Break it", "failed after")
    # the page may still be writing: what it writes has a name of its own until it is whole
    whole = shutil.ignore_patterns(".case.json.*")
    shutil.copytree(lab.root / "clicked_1_recbole", lab.root / BROKEN, ignore=whole)
    run_all(page)
    wait_cells_done(page, 60)
    start_and_cancel(page, lab, "Check this")
    press(page, "Try the fix")
    assert "proven" in waits(page, "Try the fix", "it works").partition("The verdict now")[2]
    make_the_report(page, lab, "1_recbole")


@pytest.mark.parametrize("name", ["guided", "02_all_reduce", *STORIES])
def test_each_button_starts_and_cancel_ends_it(clicks: Visit, lab: Lab, name: str) -> None:
    page = show(clicks, lab, name)
    for button in ("Check this", "Try the fix", "Break it" if name in STORIES else "Run"):
        start_and_cancel(page, lab, button)
    make_the_report(page, lab, name)
    assert state(page)["errors"] == clicks.complaints == []


def test_the_page_of_a_machine(clicks: Visit, lab: Lab) -> None:
    page = show(clicks, lab, "01_environment")
    form(page, "Test").get_by_label("Hosts", exact=True).fill("127.0.0.2 127.0.0.3")
    # no ssh, as a host without its server refuses at once
    form(page, "Test").get_by_label("Remote command", exact=True).fill("sh -c 'sleep 60' {host}")
    start_and_cancel(page, lab, "Test")
    make_the_report(page, lab, "01_environment")


def test_the_page_of_logs(clicks: Visit, lab: Lab, rank: subprocess.Popen[bytes]) -> None:
    page = show(clicks, lab, "03_logs")
    box = browser(page).get_by_label("Kind", exact=True)
    box.select_option(label=box.locator("option").filter(has_text="run.end").first.inner_text())
    rows = browser(page).locator("table.nk-events tbody tr")
    until(lambda: rows.count() == 1, 20, "the one line of this kind")
    for button in ("Check this", "Try the fix"):
        start_and_cancel(page, lab, button)
    form(page, "Attach").get_by_label("Attach to", exact=True).fill(str(rank.pid))
    start_and_cancel(page, lab, "Attach")
    make_the_report(page, lab, "03_logs")


def test_the_first_page(clicks: Visit, lab: Lab, tmp_path: Path) -> None:
    page = show(clicks, lab, "00_start_here")
    log = tmp_path / "job.log"
    log.write_text("epoch 1\nRuntimeError: NCCL odd\n")
    with page.expect_file_chooser() as chooser:
        press(page, "Upload logs")
    chooser.value.set_files(log)
    until(lambda: "No known cause explains" in form(page, "Find out why").inner_text(), 60, "the answer on the upload")
    form(page, "Find out why").get_by_label("Logs", exact=True).fill(str(lab.root / "clicked_1_recbole"))
    press(page, "Find out why")
    until(lambda: BROKEN in form(page, "Find out why").inner_text(), 60, "the answer on the path")
    start_and_cancel(page, lab, "Test this machine")


def test_the_catalogue(clicks: Visit, lab: Lab) -> None:
    page = show(clicks, lab, "05_causes")
    what = page.get_by_text("What you see").first
    assert what.is_hidden()
    page.locator(".jp-OutputArea summary", has_text=BROKEN).first.click()
    until(lambda: page.get_by_text("What you see").locator("visible=true").count() == 1, 20, "the page of one cause")
    assert state(page)["errors"] == clicks.complaints == []
    assert clicks.elsewhere(lab.url) == []
