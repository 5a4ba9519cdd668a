"""Pictures of the reports as a reader meets them: wide, narrow, dark and on paper, for docs/first-sight.md.

    python tests/record/pictures.py WHEN [--python INTERPRETER]

WHEN (before or after) begins each file's name; INTERPRETER is that of another version of ncclkit, whose reports are
then made.  Each report is made by ``ncclkit report`` on this machine, in a folder that is gone afterwards.
Prints for each one its size and how many pages of paper it takes.  Needs Chromium, and pdftoppm of poppler-utils.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ncclkit.report import report_file  # noqa: E402
from tests.browser.conftest import FLAGS  # noqa: E402

OUT = ROOT / "docs" / "pictures"
PAGES = ("guided", "01_environment", "02_all_reduce", "03_logs", "04_tuning", "cases/1_recbole")
MORE = {"04_tuning": ["-p", "budget=120"]}
"""Parameters beside the defaults: where others use the cores, half a minute is too short for a sweep."""
VIEWS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1280},
    "narrow": {"width": 390},
    "dark": {"width": 1280, "color_scheme": "dark"},
}
TALL = 1800
"""Of each page that many pixels: two screens of a laptop, two of a telephone."""
SHEETS, DOTS = 2, 96
"""Sheets of A4 that the picture of the printed page shows, and their dots an inch."""
SHEET_WIDTH, GAP = 794, 8
"""Pixels of a sheet, and between two of them."""
QUALITY = 45
WAIT = 300_000
"""Milliseconds that a page may take to draw where others use the cores."""


def main() -> None:
    """Make each report, then its pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("when", choices=["before", "after"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", choices=PAGES, nargs="*", default=PAGES)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = started(playwright)
        for name in options.only:
            html = report(options.python, name, Path(scratch) / Path(name).stem)
            pages = pictures_of(browser, html, OUT / f"{options.when}-{html.parent.name}")
            print(f"{name}: {html.stat().st_size / 1e6:.1f} MB, {pages} pages of A4", flush=True)
        browser.close()


def started(playwright: Any) -> Any:
    """The browser that draws."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return playwright.chromium.launch(executable_path=program, args=FLAGS)


def report(python: str, name: str, case: Path) -> Path:
    """The report of this notebook, made by that interpreter's ncclkit."""
    case.mkdir()
    command = [python, "-m", "ncclkit", "report", "--notebook", name, "--case", ".", *MORE.get(name, [])]
    subprocess.run(command, cwd=case, stdout=subprocess.DEVNULL, timeout=540, check=True)
    return report_file(case, Path(name))


def pictures_of(browser: Any, html: Path, begin: Path) -> int:
    """All pictures of a report, whose names begin so, and how many pages of paper it takes."""
    for view in VIEWS:
        page = opened(browser, html, view)
        height = min(TALL, page.evaluate("document.documentElement.scrollHeight"))
        keep_picture(page, VIEWS[view]["width"], height, Path(f"{begin}-{view}.webp"))
    page = opened(browser, html, "wide")
    pdf = html.with_suffix(".pdf")
    pdf.write_bytes(page.pdf(format="A4"))
    page.context.close()
    picture_of_sheets(browser, pdf, Path(f"{begin}-printed.webp"))
    return pdf.read_bytes().count(b"/Type /Page\n")


def opened(browser: Any, html: Path, view: str) -> Any:
    """The report in a window of that view, all figures drawn."""
    options = {"color_scheme": "light", **VIEWS[view]}
    size = {"width": options.pop("width"), "height": 900}
    page = browser.new_context(viewport=size, offline=True, **options).new_page()
    page.set_default_timeout(WAIT)
    page.goto(html.as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
    return page


def picture_of_sheets(browser: Any, pdf: Path, out: Path) -> None:
    """The first sheets of paper one below the other, with their margins and where they break."""
    drawn = pdf.with_suffix("")
    subprocess.run(
        ["pdftoppm", "-r", str(DOTS), "-l", str(SHEETS), "-png", str(pdf), str(drawn)], timeout=60, check=True
    )
    sheets = ""
    for sheet in sorted(pdf.parent.glob(f"{drawn.name}-*.png")):
        data = base64.b64encode(sheet.read_bytes()).decode()
        sheets += f'<img src="data:image/png;base64,{data}" style="display:block;margin:{GAP}px">'
    width = SHEET_WIDTH + 2 * GAP
    page = browser.new_context(viewport={"width": width, "height": 900}, offline=True).new_page()
    page.set_default_timeout(WAIT)
    page.set_content(f'<body style="margin:0;background:#888">{sheets}</body>')
    keep_picture(page, width, page.evaluate("document.documentElement.scrollHeight"), out)


def keep_picture(page: Any, width: int, height: int, out: Path) -> None:
    """The upper part of a window as WebP, which only the browser's own protocol writes; closes it."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    out.write_bytes(base64.b64decode(shot["data"]))
    page.context.close()


if __name__ == "__main__":
    main()
