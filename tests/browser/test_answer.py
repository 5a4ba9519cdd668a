"""The last cell of 03_logs in a real JupyterLab: the answer in one line, and the way back up to it."""

from __future__ import annotations

import shutil

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import opened, run_all, wait_cells_done
from tests.reports import ROOT

NAME = "03_logs.ipynb"
SEEN = """() => {
  const box = document.querySelector('.nk-banner').getBoundingClientRect();
  return box.top >= 0 && box.top < window.innerHeight;
}"""


def test_run_all_ends_with_the_answer_and_its_link_leads_up_to_it(tab: Visit, lab: Lab) -> None:
    shutil.copy(ROOT / "notebooks" / NAME, lab.root)
    with opened(tab, lab, NAME) as seen:
        page = seen.page
        run_all(page)
        wait_cells_done(page, 120)
        link = page.get_by_text("↑ to the answer")
        link.scroll_into_view_if_needed()
        assert not page.evaluate(SEEN), "five screens up"
        link.click()
        until(lambda: page.evaluate(SEEN), 20, "the banner to be seen")
        assert page.locator(".nk-banner").first.is_visible() and seen.complaints == []
