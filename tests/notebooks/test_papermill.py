"""Every notebook, run headless by the command that users type, in a case folder of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from ncclkit.causes.engine import diagnose
from ncclkit.core.model import cite
from ncclkit.evidence.samples import open_sample
from ncclkit.report import report_file
from tests.reports import NOTEBOOKS, made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_in_order_and_the_report_is_written(path: Path) -> None:
    case, run = made(path)
    assert run.returncode == 0, run.stderr
    *verdict, report, folder = run.stdout.splitlines()
    assert (report, folder) == (f"Report: {report_file(case, path)}", f"Case folder: {case}")
    assert [line.startswith("Verdict: ") for line in verdict] == [True] * (case / "case.json").exists()
    cells = [cell for cell in nbformat.read(report_file(case, path).with_suffix(".ipynb"), as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_view_shows_its_static_face(path: Path) -> None:
    case, _ = made(path)
    page = report_file(case, path).read_text(encoding="utf-8")
    assert "An interactive control stands here" not in page
    assert "widget-state+json" not in page and "widget-view+json" not in page


@pytest.mark.timeout(300)
def test_the_guided_report_is_of_this_machine_alone_and_small() -> None:
    """No recording of somebody else's run, no form, nothing to click; the verdict first."""
    case, _ = made(next(path for path in NOTEBOOKS if path.stem == "guided"))
    html = (case / "report.html").read_text(encoding="utf-8")
    soup = BeautifulSoup(html, "html.parser")
    read = squeezed(soup.main.get_text(" "))
    curves = [script.text for script in soup.find_all("script", class_="figure-data")]
    expected = any("busbw" in curve and "expected" in curve for curve in curves)
    assert any("busbw" in curve for curve in curves)
    assert expected or "Noreference" in read  # beside other tests the host is busy
    recorded = diagnose(open_sample("rank_late")).findings[0]
    assert squeezed(recorded.say) not in read and "skip_batches" not in read
    assert [word for word in ("Cancel", "Changethevalues", "Checkthis", "Makethereport") if word in read] == []
    banner = soup.select_one("section.prose:first-child .nk-banner")
    assert banner and f"ncclkit report --notebook guided --case {case.name}" in banner.get_text()
    assert len(html) < 1_500_000
    assert list((case / "runs").glob("*/wire.jsonl")) and (case / "facts.jsonl").stat().st_size


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_report_is_small_and_begins_with_its_verdict(path: Path) -> None:
    """A story begins with guess and proof, folded while nobody has guessed; its verdict stands below the question."""
    case, _ = made(path)
    html = report_file(case, path).read_text(encoding="utf-8")
    soup = BeautifulSoup(html, "html.parser")
    first, question = soup.select_one("section.prose h1 + .out .nk-banner"), soup.select_one(".nk-guess")
    assert len(html) < 1_500_000 and (question is not None) == ("cases" in path.parts)
    if question:
        above = question.find_all_previous(class_="nk-banner")
        assert [banner for banner in above if not banner.has_attr("data-fold")] == [] and len(above) <= 1
        assert question.find_next(class_="nk-card")
    else:
        assert (first is None) == (path.stem in ("00_start_here", "04_tuning", "05_causes"))


@pytest.mark.timeout(300)
def test_a_reader_of_the_logs_finds_culprit_lines_and_advice() -> None:
    notebook = next(path for path in NOTEBOOKS if path.stem == "03_logs")
    case, _ = made(notebook)
    page = report_file(case, notebook)
    read = squeezed(BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").main.get_text(" "))
    root = diagnose(open_sample("eight_ranks_late")).findings[0]
    # as a title it has no full stop
    assert squeezed(root.say).rstrip(".") in read and "somebodyelse'sjob" in read
    assert squeezed(cite(root.evidence[0])["text"].splitlines()[0]) in read
    assert squeezed(root.advice[0].do) in read


def squeezed(text: str) -> str:
    """Text without its white space: markup splits words that belong together."""
    return "".join(text.split())
