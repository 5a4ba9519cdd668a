"""00_start_here in a real JupyterLab: a wrong path, then an upload, then the report; each by a click."""

from __future__ import annotations

import shutil
from typing import Any

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import open_notebook, run_all, shut_down, state, wait_cells_done
from tests.browser.test_logs import VIEW
from tests.reports import ROOT
from tests.views.test_start import LOG

NAME = "00_start_here.ipynb"


def test_a_wrong_path_is_marked_and_an_upload_is_answered(chromium: Any, lab: Lab) -> None:
    shutil.copy(ROOT / "notebooks" / NAME, lab.root)
    context = chromium.new_context(viewport={"width": 1280, "height": 1400})
    seen = Visit(context.new_page())
    page = seen.page
    open_notebook(page, lab, NAME)
    run_all(page)
    wait_cells_done(page, 60)
    form = page.locator(f"{VIEW}.widget-vbox").filter(has=page.get_by_label("Running job", exact=True)).last
    find = form.locator("button", has_text="Find out why")
    assert find.is_disabled() and form.get_by_text("Name logs, upload them").count()

    form.get_by_label("Logs", exact=True).fill("/nowhere/job.log")
    until(find.is_enabled, 20, "the path to be taken")
    find.click()
    until(lambda: form.locator(".nk-wrong").count() == 1, 30, "the path to be marked")
    form.get_by_label("Logs", exact=True).fill("")
    until(lambda: form.locator(".nk-wrong").count() == 0, 20, "the mark to go with what it was about")
    with page.expect_file_chooser() as chooser:
        form.locator("button", has_text="Upload logs").click()
    chooser.value.set_files(LOG / "rank1.log")
    until(lambda: "duplicate_gpu" in form.inner_text(), 60, "the answer to the upload")
    assert state(page)["errors"] == [] and seen.errors == [] and seen.failed == []
    shut_down(page)
    until(lambda: not lab.kernels(), 30, "the kernel to end")
    context.close()
