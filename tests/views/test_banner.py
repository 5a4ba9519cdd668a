"""The banner, and the cards below it: each thing once, examples and recordings under their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding, found
from ncclkit.evidence.logs import read_logs
from ncclkit.views._html import SHORT, common, place
from tests.views.records import HOSTILE, case, findings
from tests.views.test_faces import Page

SPECIMENS = Path(__file__).parents[1] / "specimens"
TRACE = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File 'a.py', line 3\n[rank{0}]: KeyError: 'x'"


def words(view: nk.views.View) -> str:
    return " ".join(Page(view.static()).words.split())


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("slow_rank/found-desync", ["likely", "slow_rank", "At fault: Rank 3", "First:", "Judged", "Reproduce"]),
        ("slow_rank/clear-healthy", ["healthy", "the job was seen to go well"]),
        ("slow_rank/unknown-steps-only", ["unexplained", "There is no error", "Collect:"]),
    ],
)
def test_the_banner_answers_what_who_and_what_first(folder: str, said: list[str]) -> None:
    read = words(nk.banner_view(read_logs(str(SPECIMENS / folder))))
    assert [word for word in said if word not in read] == [] and "Example" not in read


def test_an_example_says_that_it_is_one() -> None:
    view = nk.banner_view(nk.sample("rank_late"))
    assert words(view).startswith("Example: a recording") and "nk-example" in view.static()


def test_facts_of_a_machine_without_a_job_are_no_nonsense() -> None:
    machine = Case()
    machine.facts = [nk.core.model.Fact("limits.shm.free", 1 << 34, "bytes", "statvfs", "n1")]
    assert nk.banner_view(machine).summary.startswith("No job ran here: ")


def test_whatever_stands_in_a_log_stays_text(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"RuntimeError: NCCL error {HOSTILE}".replace("\udcff", "").replace("\x00", ""))
    page = Page(nk.banner_view(read_logs(str(tmp_path))).html)
    assert not {"script", "img"} & set(page.tags) and "alert(1)" in page.words


def test_the_first_card_is_open_and_the_others_are_one_line_each() -> None:
    page = nk.findings_view(findings()).static()
    assert page.count('<section class="nk-card') == 1 and page.count('<details class="nk-card') == 1
    assert "Nothing found" not in page and page.count("Rank 5") == 1  # the verdict stands there once


def test_a_traceback_that_every_rank_printed_stands_once() -> None:
    lines = [Event("python.exception", TRACE.format(rank), f"/logs/rank{rank}.log", 7, rank=rank) for rank in (0, 1, 2)]
    again = [*lines[:1], Event("python.exception", "[rank0]: KeyError: 'y'", "/logs/rank0.log", 9, rank=0)]
    page = nk.findings_view([_found("rank_exception", lines), _found("rank_killed", again)]).static()
    assert page.count("Traceback") == 1 and page.count("KeyError") == 2
    read = " ".join(Page(page).words.split())
    assert "The same at 2 other places rank1.log:7 rank 1 rank2.log:7 rank 2" in read
    assert "as at rank0.log:7" in read


def _found(cause: str, lines: list[Event]) -> Finding:
    return found(cause, "proven", f"{cause} it is", lines, ranks=(0,))


def test_several_recordings_stand_under_their_names() -> None:
    two = {name: nk.diagnosis(nk.sample(name)).findings[:1] for name in ("rank_late", "a2a_unpaired")}
    page = nk.findings_view(two).static()
    assert page.count("<h4>1. ") == 2 and "further" not in page
    assert page.index("Recording <code>rank_late") < page.index("Recording <code>a2a_unpaired")


@pytest.mark.parametrize(
    ("path", "base", "shown"),
    [
        ("/a/case/logs/rank0.log", "/a/case", "logs/rank0.log:3"),
        ("/a/caseB/rank0.log", "/a/case", "/a/caseB/rank0.log:3"),
        (f"/home/{'long/' * 20}rank0.log", "", "rank0.log:3"),
        (f"/home/user/{'x' * 90}.log", "", f"{'x' * 90}.log:3"),
    ],
)
def test_places_begin_at_the_case_and_are_short_in_the_middle(path: str, base: str, shown: str) -> None:
    said = place(path, 3, base)
    read = said.striptags()
    assert read.endswith(shown) and f'title="{path}:3"' in said
    assert len(read) <= max(SHORT + 2, len(shown) + len("/home/…/"))


def test_the_common_folder_needs_absolute_paths() -> None:
    assert common(["/a/b/one", "/a/c/two"]) == "/a" and common(["/a/b/one", "two"]) == common([]) == ""


def test_cards_of_facts_name_the_risks_that_the_findings_name() -> None:
    """Cards of facts and findings say the same of one machine."""
    known = case()
    shown = nk.facts_view(known)
    risks = [f for f in nk.diagnosis(known).findings if all(hasattr(piece, "source") for piece in f.evidence)]
    assert (f"{len(risks)} risk" in shown.summary) == bool(risks)
