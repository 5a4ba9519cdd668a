"""What a teacher prints and hands out: a worksheet for each story, and on request the reports of all five.

    python tests/record/classroom.py DIR [--reports] [--chinese]

DIR gets ``worksheet-STORY.html`` and ``answers-STORY.html``, which print on A4 without a network.  With ``--reports``
every story runs (a minute or two each), and ``report-STORY.html`` is its report, for a room without machines; with
``--chinese`` the reports of their pairs come, too.  ``DIR.zip`` holds all of it: the artefact of a release.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert.filters import markdown2html_mistune

from ncclkit.core.case import Case
from ncclkit.lab.course.questions import Answers
from ncclkit.report import report_file
from ncclkit.views._html import Markup, el, join

ROOT = Path(__file__).parents[2]
STORIES = sorted(path for path in (ROOT / "notebooks" / "cases").glob("*.ipynb") if path.stem.count(".") == 0)
STYLE = """@page { size: A4; margin: 16mm }
body { font: 11pt/1.45 sans-serif; max-width: 180mm; margin: 8mm auto; color: #111 }
h1 { font-size: 17pt } h2 { font-size: 13pt; margin: 7mm 0 2mm } pre { white-space: pre-wrap; font-size: 9pt }
table { border-collapse: collapse; width: 100% }
td, th { border: 1px solid #888; padding: 1.5mm 2mm; text-align: left }
td:empty { min-width: 24mm; height: 9mm } .line { border-bottom: 1px solid #888; height: 9mm }
ul { list-style: none; padding: 0 } section { break-inside: avoid }
.right { font-weight: bold } .said { color: #444; margin-left: 6mm; font-weight: normal }"""
LINES = (
    "The ranks that report an error, and what they waited in",
    "The rank (or host) that they waited for, and the line that shows it",
    "The experiment: what would each suspect predict?",
    "The fix, and how I know that it worked",
)


def worksheet(story: Path, answers: bool) -> str:
    """A story on paper: what the user saw, the guess, lines to fill in, the suspects, three questions."""
    cells = nbformat.read(story, as_version=4).cells
    words = [cell.source for cell in cells if cell.cell_type == "markdown"]
    title = words[0].splitlines()[0].removeprefix("# ")
    told = next(text for text in words if text.startswith("## 1")).partition("\n## 2")[0]
    known = Answers(Case(), story.stem.partition("_")[2])
    parts = [
        el("h1", title),
        "" if answers else el("p", "Name: ______________________________   Date: ______________"),
        _markdown(told),
        el("h2", "Your guess first"),
        _question(known, 0, answers),
        el("h2", "What it left"),
        *(el("section", el("p", line), el("div", cls="line"), el("div", cls="line")) for line in LINES),
        *_suspects(words, answers),
        el("h2", "Three questions"),
        *(_question(known, number, answers) for number in range(1, len(known.story.quiz) + 1)),
    ]
    head = join(el("meta", charset="utf-8"), el("title", title), el("style", Markup(STYLE)))
    return Markup("<!DOCTYPE html>\n") + el("html", el("head", head), el("body", *parts), lang="en")


def _markdown(text: str) -> Markup:
    """Our own Markdown as HTML, without the links to headings."""
    return Markup(re.sub(r'<a class="anchor-link".*?</a>', "", markdown2html_mistune(text)))


def _question(known: Answers, number: int, answers: bool) -> Markup:
    question = known.question(number)
    rows = []
    for choice in known.shuffled(number):
        right = choice == question.right
        said = el("div", question.choices[choice], cls="said") if answers else ""
        rows.append(
            el("li", "☒ " if answers and right else "☐ ", choice, said, cls="right" if answers and right else "")
        )
    asked = f"{number}. {question.ask}" if number else question.ask
    why = "" if answers else join(el("p", "Because"), el("div", cls="line"))
    return el("section", el("p", el("b", asked)), el("ul", *rows), why)


def _suspects(words: list[str], answers: bool) -> Iterator[Markup]:
    """The table of suspects, whose cells beside the first column students fill in."""
    table = re.search(r"^\| Suspect \|.*\n(?:\|.*\n?)+", "\n".join(words), re.MULTILINE)
    if table is None:
        return
    rows = table[0].strip().splitlines()
    if not answers:
        rows[2:] = [f"|{row.split('|')[1]}|" + " |" * (row.count("|") - 2) for row in rows[2:]]
    yield el("h2", "The suspects")
    yield _markdown("\n".join(rows))


def handed_out(reports: bool, chinese: bool) -> list[Path]:
    """The notebooks whose reports are made."""
    pairs = [story.with_name(f"{story.stem}.zh.ipynb") for story in STORIES]
    return [*(STORIES if reports else ()), *(pairs if chinese else ())]


def report(story: Path, folder: Path) -> None:
    """Run a story and keep its report."""
    with tempfile.TemporaryDirectory() as case:
        command = [sys.executable, "-m", "ncclkit", "report", "--redact", "--notebook", str(story), "--case", case]
        subprocess.run(command, check=True, cwd=ROOT, timeout=600)
        shutil.copy(report_file(Path(case), story), folder / f"report-{story.stem}.html")


def main(argv: list[str] | None = None) -> None:
    """Write the worksheets, and the reports where they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--reports", action="store_true", help="run all five stories, too")
    parser.add_argument("--chinese", action="store_true", help="run their pairs in Chinese, too")
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    for story in STORIES:
        for name, answers in (("worksheet", False), ("answers", True)):
            page = options.folder / f"{name}-{story.stem}.html"
            page.write_text(worksheet(story, answers), encoding="utf-8")
            print(page)
    for notebook in handed_out(options.reports, options.chinese):
        report(notebook, options.folder)
    print(shutil.make_archive(str(options.folder), "zip", options.folder))


if __name__ == "__main__":
    main()
