"""The first question: what do you have?

It may be logs, a running job, or nothing yet.  The answer stands under the form.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.agent.digits import is_whole
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import forget, read_logs
from ncclkit.experiments.questions import suspects_of
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions
from ncclkit.views._base import View
from ncclkit.views._form import Form, complaints, row, text_field
from ncclkit.views._html import el, fold, join
from ncclkit.views.ask import AskForm
from ncclkit.views.attach import attached_view, check_target
from ncclkit.views.banner import banner_view
from ncclkit.views.findings import findings_view
from ncclkit.views.logs import HINT, keep_uploaded
from ncclkit.views.runs import measurements_view

RUNNING = "a process id, the id of a running Slurm job, or all"
BOTH = "Logs and a running job are named; empty one of the two fields."
AFTER_LOGS = (
    "**[03_logs](03_logs.ipynb)** shows the same job in full: timeline, progress of each rank,"
    " every line."
)
AFTER_TEST = (
    "**[01_environment](01_environment.ipynb)** shows all facts of this machine, "
    "**[02_all_reduce](02_all_reduce.ipynb)** tests pairs, links and nodes."
)


class StartForm(Form):
    """The form that asks what there is, and answers.

    ``await form.run()`` does what its first button does.  `case_dir` and `logs_dir` are the case
    folders of a test of this machine, and of a job's evidence; `logs` are as `ncclkit.read_logs`
    takes them; `running` is a process id, a Slurm job id or ``all``.  With neither nothing is done.
    """

    IDLE = "No logs and no running job are named: fill in a field above, or test this machine"
    ASK = "Name logs, upload them, or name a running job; with nothing yet, test this machine"
    BUSY = "Reading …"
    CANCELLED = "Cancelled; what was collected until then stays in the case folder"

    def __init__(self, case_dir: str, logs_dir: str, logs: str = "", running: str = "") -> None:
        self._case_dir = case_dir
        self._logs_dir = logs_dir
        self._machine = False
        self._asked: AskForm | None = None
        self.question = W.VBox([], layout=W.Layout(width="100%"))
        self.logs = text_field("Logs", logs, HINT)
        self.upload = W.FileUpload(multiple=True, description="Upload logs")
        self.job = text_field("Running job", running, RUNNING)
        start = W.Button(description="Find out why", icon="search", button_style="primary")
        test = W.Button(
            description="Test this machine", icon="heartbeat", layout=W.Layout(width="auto")
        )
        test.on_click(lambda _button: self._call_on_main_loop(self._begin_test))
        # an upload is an answer by itself, so it is read without another click
        self.upload.observe(lambda _change: self._call_on_main_loop(self._begin_upload), "value")
        super().__init__("What do you have?", [self.logs, self.upload, self.job], start, test)

    def layout(self) -> list[W.Widget]:
        """One row for each answer to the question."""
        start, test = self._buttons
        words = el("p", "Nothing yet?  One minute shows what this machine can do.", cls="nk-dim")
        return [
            row(self.logs, self.upload),
            row(self.job, start, self.cancel),
            row(test, W.HTML(el("div", words, cls="nk"))),
            *(self.notice, self.result, self.question, self.drawing),
        ]

    def wrong(self) -> Mapping[W.Widget, str]:
        """A running job beside logs, and a job that nobody can mean.

        A job and logs are two questions.
        """
        if self.logs.value.strip() and self.job.value.strip():
            return {self.job: BOTH}
        # the logs are looked at when they are read: a path on a file server may take long
        return complaints({self.job: lambda: check_target(self.job.value)})

    def asks(self) -> bool:
        """Whether anything is named."""
        wrong = self.wrong()
        if wrong:
            raise NcclkitError(wrong[self.job])
        named = bool(self.logs.value.strip() or self.job.value.strip())
        return self._machine or named or bool(self.upload.value)

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The answer to what is named."""
        if self.job.value.strip():
            return self._attach(self.job.value)
        return self._read(self.logs.value)

    def started(self) -> None:
        """Show that it begins.

        A question about another job is gone.
        """
        super().started()
        self._asked = None
        self.question.children = ()

    def finished(self, outcome: Any) -> None:
        """Show the answer, the question that is left, and where it goes on."""
        super().finished(outcome)
        if self._asked is not None:
            self.question.children = (self._asked.widget(),)
        link, self._machine = AFTER_TEST if self._machine else AFTER_LOGS, False
        data = {"text/markdown": link, "text/plain": link}
        self.drawing.outputs = ({"output_type": "display_data", "metadata": {}, "data": data},)

    def _begin_test(self) -> None:
        self._machine = True
        self.begin(self._test)

    def _begin_upload(self) -> None:
        if self.upload.value:
            self.begin(partial(self._read_uploaded, self.upload.value))

    async def _read(self, logs: str) -> View:
        case = read_logs(logs, self._logs_dir)
        diagnosis = diagnose(case)
        if suspects_of(diagnosis):
            self._asked = AskForm(case, diagnosis)
        return _answer_of(case, diagnosis)

    async def _read_uploaded(self, files: Sequence[Mapping[str, Any]]) -> View:
        """Keep the files in the case folder, under names that lead nowhere else, and read them."""
        folder = keep_uploaded(Case.open(self._logs_dir).path or Path(), files)
        self.logs.value = str(folder)
        return await self._read(self.logs.value)

    async def _attach(self, running: str) -> View:
        case = forget(Case.open(self._logs_dir))  # another job's logs must not count here
        number = running.strip()
        # a number that is no process here may still be a job of Slurm
        if is_whole(number) and not Path(f"/proc/{number}").exists():
            number = f"job {number}"
        seen = await attached_view(case, number)
        return answer(case, seen)

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why there is no answer, and mark the field that led to none."""
        if not cancelled and not self._machine:
            self.mark(self.job if self.job.value.strip() else self.logs, why)
        # the fields are marked for what they hold, which a test of this machine did not ask
        self._machine = False
        self.drawing.outputs = ()
        super().failed(why, cancelled)

    async def _test(self) -> View:
        case = Case.open(self._case_dir)
        # facts first: the test is judged by what its links allow
        await probe.inspect_hosts(case)
        run = await probe.probe(case, ProbeOptions(), self.observe)
        return answer(case, measurements_view(run))


def answer(case: Case, *more: View) -> View:
    """The verdict on a case, its cards, and what else was seen."""
    return _answer_of(case, diagnose(case), *more)


def _answer_of(case: Case, diagnosis: Diagnosis, *more: View) -> View:
    cards = fold("Every finding with its lines", findings_view(diagnosis).static())
    parts = banner_view(case, diagnosis), View("", cards, titled=False), *more
    return View(parts[0].summary, join(*(part.static() for part in parts)), titled=False)
