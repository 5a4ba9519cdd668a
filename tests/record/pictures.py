"""Pictures of the reports as a reader meets them: wide, narrow, dark and printed, for docs/first-sight.md.

    python tests/record/pictures.py WHEN [--python INTERPRETER]

WHEN (before or after) begins each file's name; INTERPRETER is that of another version of ncclkit, whose reports are
then made.  Each report is made by ``ncclkit report`` on this machine, in a folder that is gone afterwards.
Prints for each one its size and how many pages of paper it takes.  Needs Chromium.
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
VIEWS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1280},
    "narrow": {"width": 390},
    "dark": {"width": 1280, "color_scheme": "dark"},
    "printed": {"width": 703},
}
"""A sheet of A4 has 703 CSS pixels between the margins of the page."""
TALL = {"wide": 1800, "narrow": 1800, "dark": 1800, "printed": 2030}
"""Of each page that many pixels: two screens of a laptop, two of a telephone, two sheets."""
QUALITY = 45


def main() -> None:
    """Make each report, then its pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("when", choices=["before", "after"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", choices=PAGES, nargs="*", default=PAGES)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        for name in options.only:
            html = report(options.python, name, Path(scratch) / Path(name).stem)
            print(f"{name}: {html.stat().st_size / 1e6:.1f} MB, {sheets(browser, html)} pages of A4", flush=True)
            for view in VIEWS:
                picture(browser, html, view, OUT / f"{options.when}-{html.parent.name}-{view}.webp")
        browser.close()


def report(python: str, name: str, case: Path) -> Path:
    """The report of this notebook, made by that interpreter's ncclkit."""
    case.mkdir()
    command = [python, "-m", "ncclkit", "report", "--notebook", name, "--case", "."]
    subprocess.run(command, cwd=case, stdout=subprocess.DEVNULL, timeout=540, check=True)
    return report_file(case, Path(name))


def opened(browser: Any, html: Path, view: str) -> Any:
    """The report in a window of that view, all figures drawn."""
    options = {"color_scheme": "light", **VIEWS[view]}
    size = {"width": options.pop("width"), "height": 900}
    page = browser.new_context(viewport=size, offline=True, **options).new_page()
    page.goto(html.as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
    if view == "printed":
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
    return page


def picture(browser: Any, html: Path, view: str, out: Path) -> None:
    """The upper part of the page as WebP, which only the browser's own protocol writes."""
    page = opened(browser, html, view)
    height = min(TALL[view], page.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": VIEWS[view]["width"], "height": height, "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    out.write_bytes(base64.b64decode(shot["data"]))
    page.context.close()


def sheets(browser: Any, html: Path) -> int:
    """How many pages of paper it takes."""
    page = opened(browser, html, "wide")
    pages = page.pdf(format="A4").count(b"/Type /Page\n")
    page.context.close()
    return int(pages)


if __name__ == "__main__":
    main()
