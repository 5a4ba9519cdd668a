"""The start form without a browser: what is named is answered, in its own case folder; the report of an open page."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import nbformat
import pytest

import ncclkit as nk
from ncclkit import report
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import read_logs
from ncclkit.views.start import StartForm
from tests.causes.specimens import FOLDERS
from tests.views.test_faces import Page

LOG = next(folder for folder in FOLDERS if folder.name == "found-said" and folder.parent.name == "duplicate_gpu")
KILLED = Path(__file__).parents[1] / "specimens" / "rank_killed" / "found-sigkill"


def asked(folder: Path, logs: str = "", running: str = "") -> nk.views.View:
    return asyncio.run(nk.form.start(str(folder / "case"), str(folder / "logs"), logs, running).run())


def test_logs_are_answered_and_03_logs_finds_them(tmp_path: Path) -> None:
    view = asked(tmp_path, str(KILLED))
    assert "nk-banner" in view.static() and not (tmp_path / "case").exists()
    again = read_logs("", tmp_path / "logs", "eight_ranks_late")
    assert again.findings[0].cause == "rank_killed" and again.about["logs"] == str(KILLED)
    assert nk.show.banner(again).summary == view.summary


def test_nothing_named_does_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path).summary.startswith("No logs and no running job")
    assert list(tmp_path.iterdir()) == []


def test_logs_and_a_running_job_are_two_questions(tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="empty one of the two"):
        asked(tmp_path, str(KILLED), "4711")


@pytest.mark.parametrize("running", ["train.py", "node-3", "pid", "4711; rm"])
def test_a_job_that_nobody_named_is_not_attached_to(form: StartForm, tmp_path: Path, running: str) -> None:
    form.job.value = running
    assert form._buttons[0].disabled and marked(form) == ["job"]
    with pytest.raises(NcclkitError, match="Cannot attach to"):
        asked(tmp_path, running=running)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_no_process_is_a_slurm_job(tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="job 4999999"):
        asked(tmp_path, running="4999999")


def test_an_example_gives_way_and_is_never_judged_with_something_else(tmp_path: Path) -> None:
    shown = read_logs("", tmp_path, "rank_late")
    assert "nk-example" in nk.show.banner(shown).static()
    assert read_logs("", tmp_path, "eight_ranks_late").about["logs"] == "eight_ranks_late"
    read_logs(str(KILLED), tmp_path)
    assert read_logs("", tmp_path, "rank_late").about["logs"] == str(KILLED)


def test_the_report_of_an_open_notebook_holds_what_its_cells_show(tmp_path: Path) -> None:
    case = read_logs(str(KILLED), tmp_path)
    cells = nbformat.read(report.notebook("03_logs"), as_version=4).cells
    source = next(cell.source for cell in cells if "nk.show.banner" in cell.source)
    shown = {source: nk.show.banner(case)._repr_mimebundle_(), "nk.show.job(case)": {"text/plain": "a job"}}
    html = report.keep(report.notebook("03_logs"), tmp_path, {"logs": str(KILLED), "redact": False}, shown).read_text()
    assert html.count('class="nk-card nk-banner') == 1 and "a job" in html
    assert f"--notebook 03_logs --case {tmp_path.name} -p logs={KILLED}" in html and "redact=" not in html
    assert Case.open(tmp_path, read_only=True).findings


@pytest.fixture
def form(tmp_path: Path) -> StartForm:
    return StartForm(str(tmp_path / "case"), str(tmp_path / "logs"))


def marked(form: StartForm) -> list[str]:
    fields = {"logs": form.logs, "job": form.job}
    return [name for name, field in fields.items() if "nk-wrong" in field._dom_classes]


def test_with_nothing_named_only_the_test_of_this_machine_can_start(form: StartForm) -> None:
    find, test = form._buttons
    assert find.disabled and find.tooltip == form.ASK and form.ASK in form.notice.value and not test.disabled
    form.logs.value = "x"
    assert not find.disabled and form.notice.value == ""
    form.job.value = "4711"
    assert find.disabled and "empty one of the two fields" in form.notice.value and not test.disabled


def test_logs_are_answered(form: StartForm) -> None:
    form.logs.value = str(LOG)
    view = asyncio.run(form.run())
    assert "duplicate_gpu" in Page(view.static()).words and marked(form) == []


def test_logs_that_are_not_there_are_marked_at_the_field_until_it_is_changed(form: StartForm, tmp_path: Path) -> None:
    form.logs.value = str(tmp_path / "nowhere" / "job.log")
    with pytest.raises(NcclkitError):
        asyncio.run(form.run())
    assert marked(form) == ["logs"] and form.logs.tooltip in form.result.value.unescape()
    form.logs.value = str(LOG)
    assert marked(form) == []


@pytest.mark.parametrize("name", ["rank1.log", "../../rank1.log", "/etc/rank1.log", "..", ".hidden", "a b;c$(d).log"])
def test_an_uploaded_file_is_read_and_stays_in_the_case_folder(form: StartForm, tmp_path: Path, name: str) -> None:
    before = sorted(path for path in tmp_path.parent.rglob("*.log") if tmp_path not in path.parents)
    now = datetime.datetime.now(datetime.timezone.utc)
    file = {"name": name, "type": "", "size": 1, "last_modified": now, "content": (LOG / "rank1.log").read_bytes()}

    async def upload() -> str:
        form.widget()
        form.upload.value = (file,)
        while not form.running:
            await asyncio.sleep(0)
        while form.running:
            await asyncio.sleep(0.01)
        return form.static()

    answer = asyncio.run(asyncio.wait_for(upload(), 60))
    assert "duplicate_gpu" in Page(answer).words
    assert [path.parent.parent.name for path in tmp_path.rglob("*") if path.is_file() and path.parent.name == "1"] == [
        "uploaded"
    ]
    assert sorted(path for path in tmp_path.parent.rglob("*.log") if tmp_path not in path.parents) == before
