"""The form of the first question: what it takes, marks and refuses; uploaded files stay in the case folder."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.views.start import StartForm, start_form
from tests.causes.specimens import FOLDERS
from tests.views.test_faces import Page

LOG = next(folder for folder in FOLDERS if folder.name == "found-said" and folder.parent.name == "duplicate_gpu")


@pytest.fixture
def form(tmp_path: Path) -> StartForm:
    return start_form(str(tmp_path / "case"), str(tmp_path / "logs"))


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
    now = datetime.datetime.now(datetime.UTC)
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
