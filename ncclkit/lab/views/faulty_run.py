"""The lab as a form: choose a fault and break a job.

It shows how the job ended, not yet why.
"""

from __future__ import annotations

import inspect
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Run
from ncclkit.lab.course.translation import Translator
from ncclkit.lab.faults import injection
from ncclkit.views._base import View, page_frame
from ncclkit.views._form import Form, Progress, trail, wide
from ncclkit.views._html import code, el, escaped_text, fold, join, value

TAKEN = {"case", "name", "ranks", "on_record"}
"""What the form itself hands to `ncclkit.lab.faults.injection.inject`."""


class FaultyRun(View):
    """How the broken job ended.

    It is told in words, rank by rank, with where all of it is kept.
    """

    def __init__(self, run: Run, progress: Progress, translate: Translator) -> None:
        self.run = run
        """The run itself."""
        where = escaped_text(translate("What it left behind is in {folder} of the case folder."))
        kept = el("p", where.format(folder=code(f"runs/{run.name}/")), cls="nk-dim")
        variables = dict(run.plan.env)
        asked = {
            translate("job"): " ".join(run.plan.argv),
            translate("variables"): variables or translate("none"),
        }
        shown = fold(translate("What was run"), value(asked))
        body = join(trail(progress), kept, shown)
        super().__init__(run.summary, body)


class LabForm(Form):
    """The form that breaks a small honest job on purpose.

    ``await form.run()`` does what its Break it button does.  `fault` is a name of ``ncclkit lab
    --list``; `ranks` is how many (0: by what the host has); `choices` are the others of
    `lab.faults.injection.inject`, such as ``culprit=1``; `language` is that of its labels.  Raises
    NcclkitError for a fault, a choice or a language that does not exist.
    """

    def __init__(
        self, case: Case, fault: str, ranks: int = 0, *, language: str = "en", **choices: Any
    ) -> None:
        known = inspect.signature(injection.inject).parameters.keys() - TAKEN
        strange = sorted(choices.keys() - known)
        if strange:
            raise NcclkitError(
                f"The lab has no choice {strange[0]!r}; it takes {', '.join(sorted(known))}."
            )
        translate = Translator(language)
        self._case = case
        self._choices = choices
        self._translate = translate
        self.BUSY = translate("Breaking it …")
        self.CANCELLED = translate(
            "Cancelled; what the job left until then stays in the case folder"
        )
        names = []
        for name, each in injection.FAULTS.items():
            label = f"{name}: {translate(each.says)}"
            names.append((label, name))
        self.fault = W.Dropdown(
            options=names,
            value=injection.fault(fault).name,
            description=translate("Fault"),
            layout=wide(),
        )
        self.ranks = W.BoundedIntText(
            value=ranks,
            min=0,
            max=64,
            description=translate("Ranks"),
            layout=W.Layout(width="10em"),
        )
        start = W.Button(description=translate("Break it"), icon="bolt", button_style="warning")
        super().__init__("", [self.fault, self.ranks], start)
        self.cancel.description = translate("Cancel")
        self.fault.observe(lambda _change: self._show(page_frame(self.summary)), "value")

    @property
    def summary(self) -> str:
        """What the button will do, said before it does it."""
        chosen = injection.fault(self.fault.value)
        words = self._translate(chosen.says)
        return self._translate(
            "This run: {fault}; it touches only its own processes and its own folder",
            fault=words,
        )

    async def prepare(self) -> FaultyRun:
        """The run with the fault that is chosen now."""
        asked = {"ranks": self.ranks.value, "on_record": self.observe, **self._choices}
        run = await injection.inject(self._case, self.fault.value, **asked)
        return FaultyRun(run, self.progress, self._translate)
