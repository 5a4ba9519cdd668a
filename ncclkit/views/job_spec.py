"""The form of what only a person knows of the job that is to run: its workers, its data, its nodes.

In: a case with facts.  Out: the same case judged for these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.resources import set_job_spec
from ncclkit.core.text import format_bytes, parse_size, plural
from ncclkit.live import scheduler, submit
from ncclkit.views._base import View
from ncclkit.views._form import Form, complaints, text_field
from ncclkit.views._html import Markup

Known = tuple[int, str, str]


class JobSpecForm(Form):
    """The form that judges these hosts for the numbers of a job.

    ``await form.run()`` does what its button does; nothing where nothing was changed.

    case, machines: the facts, and the case without any job that is judged; workers, dataset: of
    each rank, 0 is not known; job: options of ``ncclkit submit`` whose nodes are read, too; python,
    paths: as `ncclkit.inspect` takes them.
    """

    IDLE = "The page below is judged for these numbers already"
    ASK = "Change a number, and the page below is judged for it"
    BUSY = "Judging …"
    CANCELLED = "Cancelled; the page below is as it was"

    def __init__(
        self,
        case: Case,
        machines: Case,
        workers: int = 0,
        dataset: int = 0,
        job: str = "",
        python: str = "",
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self._case, self._machines = case, machines
        self._python, self._paths = python, paths
        look: dict[str, Any] = {"style": {"description_width": "11em"}}
        self.workers = W.BoundedIntText(workers, 0, 4096, description="Workers of a rank", **look)
        size = ""
        if dataset:
            size = str(dataset)
        self.dataset = text_field(
            "Dataset of a rank",
            size,
            "bytes, such as 40GB; empty is none",
            **look,
        )
        self.job = text_field(
            "Nodes to read",
            job,
            "-N 2 -p gpu, by a small batch job",
            **look,
        )
        self.job.disabled = not scheduler.is_login_node()
        self._judged = self._named()
        start = W.Button(description="Judge for these", icon="check", button_style="primary")
        super().__init__("What only you know", [self.workers, self.dataset, self.job], start)

    def wrong(self) -> Mapping[W.Widget, str]:
        """A dataset that is no size, and options that Slurm would not understand."""
        return complaints(
            {self.dataset: self._size, self.job: lambda: submit.parse_options(self._nodes())}
        )

    def asks(self) -> bool:
        """Whether a field holds something else than what was judged."""
        return self._named() != self._judged

    async def prepare(self) -> View:
        """The facts of the nodes that are named, and the numbers kept for the verdict."""
        named = self._named()
        size = self._size()
        if self._nodes() and self._nodes() != self._judged[2]:
            await submit.inspect(self._case, self._python, self._paths, self._nodes())
        spec = {"workers": self.workers.value, "dataset": size}
        # the cells below hold this very case
        facts = set_job_spec(self._case, spec)
        self._machines.become(facts.hosts_only())
        self._judged = named
        data = "no data kept in memory"
        if size:
            data = f"{format_bytes(size)} of data"
        workers = plural(self.workers.value, "worker")
        return View(f"Judged for {workers} and {data} in each rank", Markup(""))

    def _named(self) -> Known:
        return self.workers.value, self.dataset.value.strip(), self._nodes()

    def _nodes(self) -> str:
        return str(self.job.value).strip()

    def _size(self) -> int:
        words = self.dataset.value.replace(" ", "")
        if words:
            return parse_size(words, "The dataset")
        return 0

    def _lock(self, running: bool) -> None:
        super()._lock(running)
        # on any other host there is no batch job that could read them
        self.job.disabled = running or not scheduler.is_login_node()
