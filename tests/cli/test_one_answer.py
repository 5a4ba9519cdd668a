"""Terminal, JSON, notebook and report say one thing of a case: badge, sentence and exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import ncclkit as nk
from ncclkit.causes.diagnosis import EXIT_STATUS, Diagnosis
from ncclkit.causes.summary import Summary, summarize
from ncclkit.cli.terminal import _plain_verdict
from ncclkit.core.case import Case
from ncclkit.report import page
from ncclkit.views._base import View
from ncclkit.views.banner import VERDICTS, WELL, WENT
from tests.cases import read_files, read_text
from tests.recordings import RECORDINGS

POSTED = sorted((Path(__file__).parents[1] / "exam").glob("*/*.json"))
HEALTHY = sorted((Path(__file__).parents[1] / "healthy").glob("*.json"))
TEXTS = 60


def texts() -> Iterator[Case]:
    """As many posted texts as healthy ones, spread over all sets."""
    for files in (POSTED, HEALTHY):
        for file in files[:: len(files) // (TEXTS // 2)][: TEXTS // 2]:
            yield read_text(json.loads(file.read_text(encoding="utf-8"))["log"])


def words_of_verdict(known: Summary) -> set[str]:
    """What a badge must say: how sure the first cause is and which, else the verdict."""
    if known.cause and known.verdict == "found":
        return {known.strength, known.cause}
    return {VERDICTS[known.verdict][1]}


def must_agree(case: Case) -> None:
    found: Diagnosis = nk.diagnose(case)
    known = summarize(case, found)
    shown = nk.show.banner(case, found)
    head = words_at(shown.html, ".nk-banner .nk-card-head")
    text = _plain_verdict(found, known)
    answer = found.to_dict(case.inputs)
    for word in words_of_verdict(known):
        assert word in head
    assert answer["verdict"] == known.verdict == found.verdict
    assert found.exit_code == EXIT_STATUS[answer["verdict"]]
    if known.verdict == "found":
        assert answer["findings"][0]["cause"] == known.cause
        assert answer["findings"][0]["say"] == known.sentence
    first_line = text.splitlines()[0]
    assert known.sentence.splitlines()[0][:60] in first_line
    sentence = " ".join(known.sentence.split())
    assert shown.summary == known.sentence
    # the page counts the checks in the strip below, and says the speed of a test that went well
    title = sentence.replace(f" ({found.checks})", "").rstrip(".")
    start, well, rest = title.partition(WELL)
    said = words_at(shown.html, ".nk-banner .nk-say")
    begins = [start + well]
    if well:
        begins.append(start + WENT)
    assert said.startswith(tuple(begins)) and said.rstrip(".").endswith(rest)
    assert title_of_report(shown) == said.rstrip(".")


def words_at(html: str, selector: str) -> str:
    """The words of the first element that the selector names."""
    (place, *_) = BeautifulSoup(html, "html.parser").select(selector)
    return " ".join(place.get_text().split())


def title_of_report(shown: View) -> str:
    """The title of the report of a notebook whose only cell shows this banner."""
    html = shown._repr_mimebundle_()["text/html"]
    cell = new_code_cell("", outputs=[new_output("display_data", data={"text/html": html})])
    made = page.render(new_notebook(cells=[new_markdown_cell("# Why?"), cell]))
    return words_at(made, "main h1")


@pytest.mark.slow
@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_of_every_recording(folder: Path) -> None:
    must_agree(read_files(folder))


@pytest.mark.slow
def test_of_sixty_texts() -> None:
    for case in texts():
        must_agree(case)
