"""`ncclkit diagnose PATH --html FILE`: the page of 03_logs about what was read, without a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ncclkit.evidence.samples import HERE
from ncclkit.report import report_file
from tests.cli.command import LATE, ROOT, Typed
from tests.reports import HOSTILE, NOTEBOOKS, made

LOGS = next(path for path in NOTEBOOKS if path.stem == "03_logs")


def main_of(page: Path) -> BeautifulSoup:
    main = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").main
    assert main is not None
    return BeautifulSoup(str(main), "html.parser")


def answer_of(page: Path) -> str:
    """The words of a page, less those about how it was made."""
    main = main_of(page)
    for made_by in main.select(".nk-reproduce, .code, footer"):
        made_by.decompose()
    return " ".join(main.get_text(" ").split())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_is_the_report_of_03_logs(tmp_path: Path, typed: Typed) -> None:
    page = tmp_path / "page.html"
    done = typed("diagnose", LATE, "--html", str(page))
    assert done.returncode == 1 and done.stdout.startswith("proven: Rank 2, busy in train.py:19")
    assert done.stdout.endswith(f"\nReport: {page}\n")
    case, run = made(LOGS, (("logs", LATE),))
    assert run.returncode == 0 and answer_of(page) == answer_of(report_file(case, LOGS))
    text = page.read_text(encoding="utf-8")
    assert (
        text.count('class="figure-data"')
        == report_file(case, LOGS).read_text(encoding="utf-8").count('class="figure-data"')
        > 1
    )
    assert (
        f"ncclkit diagnose {LATE} --html {page}" in main_of(page).select(".nk-banner")[0].get_text()
    )


def test_a_page_of_pasted_text_is_about_that_text(tmp_path: Path) -> None:
    """Nothing is written but the page, and text of a log is text."""
    said = f"[rank3]: RuntimeError: CUDA error: an illegal memory access {HOSTILE}\n"
    done = subprocess.run(
        [sys.executable, "-m", "ncclkit", "diagnose", "-", "--html", "page.html"],
        input=said,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1 and "Report: " in done.stdout, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    page = BeautifulSoup((tmp_path / "page.html").read_text(encoding="utf-8"), "html.parser")
    assert "alert(1)" in page.main.get_text() and not page.select(
        "img, script:not([nonce]):not(.figure-data)"
    )
    assert "skip_batches" not in page.get_text(), "an example stands in place of the text"


def test_a_page_of_no_job_shows_no_example(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "job.log").write_text("good morning\n")
    done = typed("diagnose", str(tmp_path / "job.log"), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 2 and "Nothing in this is of a training job" in answer_of(
        tmp_path / "page.html"
    )
    assert "Example:" not in answer_of(tmp_path / "page.html")


def test_a_page_without_names(tmp_path: Path, typed: Typed) -> None:
    page = tmp_path / "page.html"
    done = typed("diagnose", LATE, "--html", str(page), "--redact", "--redact-name", "skip_batches")
    assert done.returncode == 1 and f"Replaced names: {tmp_path / 'page.names.txt'}" in done.stdout
    words = page.read_text(encoding="utf-8")
    assert "node-1" in (tmp_path / "page.names.txt").read_text() and "skip_batches" not in words
    assert "node-1<" not in words and "had not entered collective 12" in words


def test_a_page_of_two_jobs_reads_standard_input_once(tmp_path: Path, typed: Typed) -> None:
    ended = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    (tmp_path / "slurm-99.out").write_text(ended.format(99))
    page = tmp_path / "page.html"
    paths = (str(tmp_path / "slurm-99.out"), "-")
    done = typed("diagnose", *paths, "--html", str(page), stdin=ended.format(98).encode())
    assert done.returncode == 1 and "Job 2 of 2: -" in done.stdout, done.stderr
    assert "It came by standard input" in answer_of(page)


def test_with_json_nothing_else_is_printed(tmp_path: Path, typed: Typed) -> None:
    page = tmp_path / "page.html"
    done = typed("diagnose", str(HERE / "healthy"), "--json", "--html", str(page))
    assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "healthy"
    assert f"ncclkit: the page is {page}" in done.stderr and page.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--html", "."), "it is a folder; name a file"),
        (("--html", "gone/page.html"), "is not a folder you may write to"),
        (("--html", "/dev/null"), "it is not a file but a device or a pipe"),
        (("--html", "-"), "name one, such as report.html"),
        (("--html", "job.log"), "it is one of the logs; name another file"),
        (("--redact",), "name its file, as in --html FILE"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "job.log").write_text("RuntimeError: CUDA error: boom\n")
    monkeypatch.chdir(tmp_path)
    done = typed("diagnose", "job.log", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and says in done.stderr, (
        done.stderr
    )
    assert done.stdout == "" and [file.name for file in tmp_path.iterdir()] == ["job.log"]
    assert (tmp_path / "job.log").read_text() == "RuntimeError: CUDA error: boom\n"
