"""The form that reads logs into a case: a field for what lies here, an upload for what does not."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import read_logs
from ncclkit.views._base import View
from ncclkit.views._form import Form, text_field
from ncclkit.views.evidence import inputs_view

STRANGE = re.compile(r"[^\w.+-]+")
"""What an uploaded file's name may not bring into a path."""
HINT = "a file, a folder, logs/*.out, an archive, or the id of a Slurm job that ended"


class LogsForm(Form):
    """The form that reads other logs into a case that a page is about.

    ``await form.run()`` reads what the field names by then; nothing where that was read already.

    case: what `ncclkit.read_logs` gave; it then holds what this form read. logs: what was read.
    """

    IDLE = "The logs that the field names were read; name others, or upload them"
    ASK = IDLE
    BUSY = "Reading …"
    CANCELLED = "Cancelled; what was read before stands below"

    def __init__(self, case: Case, logs: str | Case = "") -> None:
        self._case = case
        # without a kernel a page is made of what was read already
        if isinstance(logs, Case):
            logs = str(case.about.get("logs", ""))
        self._was_read = logs.strip()
        self.logs = text_field("Logs", logs, HINT)
        self.upload = W.FileUpload(multiple=True, description="Upload logs")
        start = W.Button(description="Read", icon="file-text-o", button_style="primary")
        # an upload is an answer by itself, so it is read without another click
        self.upload.observe(lambda _change: self._call_on_main_loop(self._begin_upload), "value")
        super().__init__("Which logs?", [self.logs, self.upload], start)

    def asks(self) -> bool:
        """Whether something is named, or uploaded, that was not read yet."""
        return bool(self.upload.value) or self.logs.value.strip() not in ("", self._was_read)

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The files that the field names."""
        return self._read(self.logs.value)

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why nothing was read, and mark the field that led to that."""
        if not cancelled:
            self.mark(self.logs, why)
        super().failed(why, cancelled)

    def _begin_upload(self) -> None:
        if self.upload.value:
            self.begin(partial(self._read_uploaded, self.upload.value))

    async def _read(self, logs: str) -> View:
        # the cells below hold this very case
        self._case.become(read_logs(logs, self._case.path or ""))
        self._was_read = self.logs.value.strip()
        return inputs_view(self._case)

    async def _read_uploaded(self, files: Sequence[Mapping[str, Any]]) -> View:
        if self._case.path is None:
            raise NcclkitError("Uploaded logs are kept in a case folder; give case_dir a name.")
        folder = keep_uploaded(self._case.path, files)
        self.upload.value = ()
        self.logs.value = str(folder)
        return await self._read(self.logs.value)


def keep_uploaded(case_folder: Path, files: Sequence[Mapping[str, Any]]) -> Path:
    """Keep uploaded files in a case folder, under names that lead nowhere else.

    The folder that holds them.
    """
    room = case_folder / "uploaded"
    earlier = list(room.glob("*"))
    # in a folder of its own: a second upload of the same name is another log
    folder = room / str(len(earlier) + 1)
    folder.mkdir(parents=True)
    for number, file in enumerate(files, 1):
        # a browser sends whatever name it likes: no folders, no hidden files
        given = Path(str(file["name"])).name
        name = STRANGE.sub("_", given).lstrip(".") or f"log{number}"
        (folder / name).write_bytes(file["content"])
    return folder
