"""The first page in a real JupyterLab: a path, an upload, a running job or nothing yet; then the report by a click."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import READY, opened, run_all, state, wait_cells_done
from tests.browser.test_logs import VIEW, WIDER
from tests.reports import ROOT

SPECIMEN = ROOT / "tests" / "specimens" / "rank_killed" / "found-sigkill"


@pytest.fixture(scope="module")
def start(tab: Visit, lab: Lab) -> Iterator[Visit]:
    """Copies of the notebooks, the start page open and all its cells run."""
    for name in ("00_start_here", "03_logs"):
        shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", lab.root)
    with opened(tab, lab, "00_start_here.ipynb") as seen:
        run_all(seen.page)
        wait_cells_done(seen.page, 60)
        yield seen


def form(page: Any) -> Any:
    """The form that asks what there is."""
    return page.locator(f"{VIEW}.widget-vbox").filter(has=page.locator("button", has_text="Find out why")).last


def answer(page: Any, words: str, deadline: float = 60) -> str:
    """The banner under the form, once it holds these words."""
    banner = form(page).locator("section.nk-banner")
    said: list[str] = []

    def answered() -> bool:
        said[:] = banner.all_inner_texts()  # at once, also while the old answer gives way to the next
        return any(words in text for text in said)

    until(answered, deadline, f"{words!r} in the answer")
    return "\n".join(said)


def fill(page: Any, logs: str = "", running: str = "") -> None:
    form(page).get_by_label("Logs", exact=True).fill(logs)
    form(page).get_by_label("Running job", exact=True).fill(running)
    form(page).get_by_label("Running job", exact=True).press("Tab")


def press(page: Any, name: str) -> None:
    form(page).locator("button", has_text=name).click()


def test_what_is_missing_is_said_at_the_form(start: Visit) -> None:
    button = form(start.page).locator("button", has_text="Find out why")
    fill(start.page)
    until(lambda: button.is_disabled() and "Name logs" in form(start.page).inner_text(), 20, "why nothing can be asked")
    fill(start.page, logs="/some/folder", running="4711")
    until(lambda: "empty one of the two" in form(start.page).inner_text(), 20, "what is wrong with the fields")


def test_a_path_is_answered_under_the_form(start: Visit) -> None:
    fill(start.page, logs=str(SPECIMEN))
    press(start.page, "Find out why")
    said = answer(start.page, "rank_killed")
    assert "First:" in said and "Judged" in said and "Example" not in said
    form(start.page).get_by_role("link", name="03_logs").wait_for(timeout=20_000)


def test_an_upload_is_answered_and_kept_in_the_case_folder(start: Visit, lab: Lab, tmp_path: Path) -> None:
    log, before = tmp_path / "..job one.log", {*lab.root.rglob("uploaded/*/*")}
    log.write_text("epoch 1\nRuntimeError: NCCL odd\n")
    with start.page.expect_file_chooser() as chooser:
        press(start.page, "Upload logs")
    chooser.value.set_files(log)
    said = answer(start.page, "No known cause explains this error")
    assert "unexplained" in said
    assert [path.name for path in {*lab.root.rglob("uploaded/*/*")} - before] == ["job_one.log"]


def test_a_running_process_is_looked_at_and_goes_on(start: Visit, rank: subprocess.Popen[bytes]) -> None:
    fill(start.page, running=str(rank.pid))
    press(start.page, "Find out why")
    until(lambda: "wait_for_the_others" in form(start.page).inner_text(), 90, "the stack of the process")
    assert rank.poll() is None and form(start.page).locator("section.nk-banner").count()


def test_with_nothing_yet_this_machine_is_tested(start: Visit, lab: Lab) -> None:
    fill(start.page)
    press(start.page, "Test this machine")
    answer(start.page, "2 ranks on 1 host", 180)
    assert "all_reduce" in form(start.page).inner_text()
    until(lambda: not lab.runs(), 15, "every process of the test to end")
    assert state(start.page)["errors"] == start.complaints == []


def test_the_whole_answer_and_its_report_need_no_path(start: Visit, lab: Lab, tmp_path: Path) -> None:
    fill(start.page, logs=str(SPECIMEN))
    press(start.page, "Find out why")
    answer(start.page, "rank_killed")
    form(start.page).get_by_role("link", name="03_logs").click()
    page = start.page
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget?.context?.path === '03_logs.ipynb'")
    page.evaluate(READY)
    run_all(page)
    wait_cells_done(page, 120)
    page.locator(f"{VIEW}.widget-button", has_text="Make the report").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download it").click()
    kept = lab.root / "logs_case" / "report-03_logs.html"
    assert download.value.path().read_bytes() == kept.read_bytes()
    made = BeautifulSoup(kept.read_text(encoding="utf-8"), "html.parser")
    assert "rank_killed" in made.select_one(".nk-banner").get_text()
    assert "Make the report" not in made.main.get_text() and "Cancel" not in made.main.get_text()
    assert page.evaluate(WIDER) == start.complaints == []
