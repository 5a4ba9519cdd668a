"""The button that keeps an open notebook as one HTML file.

It keeps the notebook as it stands, for the ticket.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as W
from ipykernel.zmqshell import ZMQInteractiveShell

from ncclkit import report
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.views._base import View
from ncclkit.views._form import Form
from ncclkit.views._html import code, el


class ReportForm(Form):
    """The button *Make the report*.

    It writes what the cells of this notebook show now, as its HTML file in the case folder.
    `notebook` is its name, as ``ncclkit report --notebook`` takes it; where its pair in Chinese is
    open, that one is taken.  Nothing is run again.
    """

    brings_evidence = False
    BUSY = "Writing …"
    CANCELLED = "Cancelled; no report was written"

    def __init__(self, case: Case, notebook: str) -> None:
        # before the form is shown, so that an unknown notebook is refused at once
        self._case, self._notebook = case, _opened(report.notebook(notebook))
        make = W.Button(description="Make the report", icon="file-text-o", button_style="primary")
        super().__init__(
            "One HTML file of what this page shows now, for the ticket; nothing is run again",
            [],
            make,
        )

    def blocked(self) -> Mapping[W.Button, str]:
        """The button, where there is no folder for the page."""
        if self._case.path:
            return {}
        return {self.start: "A report is kept in a case folder; open one with Case.open(path)."}

    async def prepare(self) -> View:
        """The report of the cells that were run in this kernel."""
        if ZMQInteractiveShell.initialized():
            shell: Any = ZMQInteractiveShell.instance()
        else:
            shell = None
        if shell is None or self._case.path is None:
            raise NcclkitError(
                "A report is made of a notebook that is open, and kept in a case folder."
            )
        values = dict(shell.user_ns["Out"])
        shown = {}
        for number, source in enumerate(shell.history_manager.input_hist_raw):
            # cells that were run twice are shown as they were last
            value = shown_by_now(values.get(number), values.values())
            shown[source] = {} if value is None else shell.display_formatter.format(value)[0]
        known = {name: shell.user_ns.get(name) for name in report.declared(self._notebook)}
        html = report.keep(self._notebook, self._case.path, known, shown)
        return _kept(html)


def shown_by_now(value: Any, all_values: Iterable[Any]) -> Any:
    """What a cell shows by now that returned `value`.

    It is None where another cell shows the same.  A click may have followed the cell that awaited a
    form: what came out last counts, and stands once, where it was awaited.
    """
    if isinstance(value, View) and value.place is not None:
        return value.place.newest
    if isinstance(value, View) and value.form is not None:
        return value.form.newest_answer or value
    if isinstance(value, Form) and any(getattr(one, "form", None) is value for one in all_values):
        return None
    return value


def _opened(notebook: Path) -> Path:
    """The notebook, or its pair in Chinese.

    Their code is equal, so only the name of the session tells them apart.
    """
    chinese = notebook.with_name(f"{notebook.stem}.zh{notebook.suffix}")
    # set by Jupyter for the kernel of an open notebook
    session = Path(os.environ.get("JPY_SESSION_NAME", ""))
    if session.name == chinese.name and chinese.exists():
        return chinese
    return notebook


def _kept(html: Path) -> View:
    """Where it is, and the file itself for whoever sits at another machine."""
    data = base64.b64encode(html.read_bytes()).decode()
    link = el("a", "Download it", href=f"data:text/html;base64,{data}", download=html.name)
    return View("The report is written", el("p", code(html), " ", link))
