"""The lab as a form: choose a fault, break a job, and see how the job ended, not yet why."""

from __future__ import annotations

import inspect
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Run
from ncclkit.lab.faults import injection
from ncclkit.views._base import View, page_frame
from ncclkit.views._form import Form, Progress, trail, wide
from ncclkit.views._html import code, el, fold, join, value

TAKEN = {"case", "name", "ranks", "on_record"}
"""What the form itself hands to `ncclkit.lab.faults.injection.inject`."""


class FaultyRun(View):
    """How the broken job ended.

    In words, rank by rank, and where all of it is kept.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run = run
        """The run itself."""
        kept = el(
            "p",
            "What it left behind is in ",
            code(f"runs/{run.name}/"),
            " of the case folder.",
            cls="nk-dim",
        )
        asked = {"job": " ".join(run.plan.argv), "variables": dict(run.plan.env) or "none"}
        super().__init__(
            run.summary, join(trail(progress), kept, fold("What was run", value(asked)))
        )


class LabForm(Form):
    """The form that breaks a small honest job on purpose.

    ``await form.run()`` does what its Break it button does.

    fault: a name of ``ncclkit lab --list``; ranks: how many (0: by what the host has); choices: the
    others of `lab.faults.injection.inject`, such as ``culprit=1``.

    Raises NcclkitError for a fault or a choice that does not exist.
    """

    BUSY = "Breaking it …"
    CANCELLED = "Cancelled; what the job left until then stays in the case folder"

    def __init__(self, case: Case, fault: str, ranks: int = 0, **choices: Any) -> None:
        known = inspect.signature(injection.inject).parameters.keys() - TAKEN
        strange = sorted(choices.keys() - known)
        if strange:
            raise NcclkitError(
                f"The lab has no choice {strange[0]!r}; it takes {', '.join(sorted(known))}."
            )
        self._case = case
        self._choices = choices
        names = [(f"{name}: {each.says}", name) for name, each in injection.FAULTS.items()]
        self.fault = W.Dropdown(
            options=names, value=injection.fault(fault).name, description="Fault", layout=wide()
        )
        self.ranks = W.BoundedIntText(
            value=ranks, min=0, max=64, description="Ranks", layout=W.Layout(width="10em")
        )
        start = W.Button(description="Break it", icon="bolt", button_style="warning")
        super().__init__("", [self.fault, self.ranks], start)
        self.fault.observe(lambda _change: self._show(page_frame(self.summary)), "value")

    @property
    def summary(self) -> str:
        """What the button will do, said before it does it."""
        chosen = injection.fault(self.fault.value)
        return f"This run: {chosen.says}; it touches only its own processes and its own folder"

    async def prepare(self) -> FaultyRun:
        """The run with the fault that is chosen now."""
        asked = {"ranks": self.ranks.value, "on_record": self.observe, **self._choices}
        return FaultyRun(
            await injection.inject(self._case, self.fault.value, **asked), self.progress
        )
