"""The live test from a login node in a real JupyterLab: submitted, left alone, found again, and cancelled.

``PICTURES=docs/pictures python -m pytest tests/browser/test_submit.py`` takes the picture of docs/login-node.md.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import Lab, Visit, until
from tests.browser.notebook import open_notebook, opened, run_all, shut_down, wait_cells_done
from tests.browser.test_logs import VIEW, WIDER
from tests.live.slurm_cluster import available, cluster
from tests.reports import ROOT

pytestmark = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")
NAME = "submit.ipynb"
KEPT = (
    "parameters",
    "import ncclkit",
    "nk.form.live_test(",
    "nk.show.cluster(",
    "live.run()",
    "nk.show.banner(",
    "nk.form.report(",
)


PICTURES = os.environ.get("PICTURES")


@pytest.fixture(scope="module")
def login(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The login node of a cluster of one node: among the server's files the cells of 02_all_reduce around its form."""
    with cluster(tmp_path_factory.mktemp("slurm") / "slurm", 1) as env:
        book = nbformat.read(ROOT / "notebooks" / "02_all_reduce.ipynb", as_version=4)
        book.cells = [c for c in book.cells if any(w in c.source or w in c.metadata.get("tags", []) for w in KEPT)]
        book.cells = [cell for cell in book.cells if cell.cell_type == "code"]
        small = book.cells[0].source.replace("max_bytes: int = 0", "max_bytes: int = 64")
        small = small.replace('case_dir: str = "case"', 'case_dir: str = "submitted"')  # runs of others stay out
        told = {"SLURM_CONF": env["SLURM_CONF"], "GLOO_SOCKET_IFNAME": "lo"}
        book.cells[0].source = f"import os\nos.environ.update({told!r})\n{small}"
        nbformat.write(book, lab.root / NAME)
        yield env


def form(page: Any) -> Any:
    """The form that submits."""
    return page.locator(f"{VIEW}.widget-vbox").filter(has=page.locator("button", has_text="Submit")).last


def shown(page: Any, words: str, deadline: float = 60) -> None:
    """Wait for words in the form."""
    until(lambda: words in form(page).inner_text(), deadline, f"{words!r} in the form")


def pictured(page: Any) -> None:
    """A picture of the notebook as it is now, where somebody asked for it."""
    if PICTURES:
        clip = page.locator(".jp-Notebook").first.bounding_box() | {"scale": 1}
        asked = {"format": "webp", "quality": 50, "clip": clip}
        shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
        Path(PICTURES, "login-form-card.webp").write_bytes(base64.b64decode(shot["data"]))


def queue(env: dict[str, str]) -> str:
    return subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, timeout=20).stdout


def test_a_closed_tab_costs_nothing(login: dict[str, str], tab: Visit, lab: Lab) -> None:
    """Submit, watch, close the tab, reopen: the same kernel shows how it ended, and a new one finds the job again."""
    first = tab.page.context.new_page()
    open_notebook(first, lab, NAME)
    run_all(first)
    wait_cells_done(first, 120)
    shown(first, "ncclkit submit probe")  # nothing ran here unasked
    said = "This is a login node of a Slurm cluster (4 partitions, no GPUs, up to 1 node idle in one of them)"
    card = first.locator(".jp-OutputArea-output").filter(has_text=said).filter(has_text="closed").first
    card.scroll_into_view_if_needed()
    pictured(first)
    first.get_by_text("The text that sbatch gets").click()
    shown(first, "#SBATCH --nodes=1")
    form(first).locator("button", has_text="Submit").click()
    shown(first, "Job 1 ")
    first.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    first.close()
    with opened(tab, lab, NAME) as again:
        shown(again.page, "every value was right", 120)
        assert again.page.evaluate(WIDER) == [] and not queue(login)
    page = tab.page
    open_notebook(page, lab, NAME)
    run_all(page)
    wait_cells_done(page, 120)
    shown(page, "every value was right")
    page.locator(f"{VIEW}.widget-button", has_text="Make the report").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download it").click()
    assert "every value was right" in download.value.path().read_text(encoding="utf-8")
    # what the file shows complains that its kernel is gone, each cell once it is drawn
    assert [said for said in tab.complaints if "widget model not found" not in said] == []


def test_a_job_whose_kernel_is_gone_is_followed_and_cancelled(login: dict[str, str], tab: Visit, lab: Lab) -> None:
    """Submitted where the test before has left off."""
    page = tab.page
    form(page).get_by_label("Set-up lines").fill("sleep 300")
    form(page).locator("button", has_text="Submit").click()
    shown(page, "Job 2 runs on n1")
    shut_down(page)
    until(lambda: not lab.kernels(), 30, "the kernel to end")
    assert queue(login).split()[0] == "2"
    with opened(tab, lab, NAME):
        run_all(page)
        shown(page, "Job 2 runs on n1")
        form(page).locator("button", has_text="Cancel").click()
        shown(page, "cancelled")
        until(lambda: not queue(login), 30, "the job to end")
        assert not lab.runs()
