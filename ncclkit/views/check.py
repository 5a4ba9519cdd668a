"""The closed loop as a form: Check this makes the experiment of a finding, Try the fix applies its advice."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets as W

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import ExperimentRecord
from ncclkit.core.model import Finding, NcclkitError
from ncclkit.experiments import fixes
from ncclkit.views._base import View
from ncclkit.views._form import Form
from ncclkit.views._html import Markup, el, join
from ncclkit.views.banner import banner_view
from ncclkit.views.cluster import login_card
from ncclkit.views.experiments import cards

ANY = "what tells the suspects apart best"
"""The choice that leaves the experiment to the kit, and the fix to the first finding."""


def check_form(case: Case, cause: str = "", python: str = "", deadline: float = 120.0) -> CheckForm:
    """The form that tells the suspects apart by experiments, and then tries the fix; nothing runs until it is asked to.

    ``await form.run()`` does all of it, as `ncclkit.experiments.fixes.close` does: experiments until the first cause is
    proven or nothing is left to ask, then its fix.  cause: whose experiment the buttons make (empty: the one that
    decides most); python: the training interpreter; deadline: seconds for each run.
    """
    return CheckForm(case, cause, python, deadline)


class Closed(View):
    """What came of one or more trials: before and after side by side, and the verdict as it is now."""

    def __init__(self, case: Case, made: Sequence[ExperimentRecord], problem: str = "") -> None:
        self.trials = tuple(made)
        """The trials that were made, the oldest first."""
        told = el("p", problem) if made and problem else ""
        now = join(el("h5", "The verdict now"), banner_view(case).body) if made else ""
        super().__init__(made[-1].summary if made else problem or CheckForm.IDLE, join(told, cards(made), now))


class CheckForm(Form):
    """See `check_form`."""

    IDLE = "No experiment was made"
    ASK = "There is nothing to check: nothing was found"
    BUSY = "Trying …"
    CANCELLED = "Cancelled; the verdicts stay as they were"

    def __init__(self, case: Case, cause: str, python: str, deadline: float) -> None:
        self._case = case
        self._card = [] if case.facts_of("scheduler.") else login_card(case, "diagnose --check")
        self._how: dict[str, Any] = {"python": python or None, "deadline": deadline, "on_record": self.observe}
        if not case.findings:
            diagnose(case)
        wide = W.Layout(width="auto", flex="1 1 20em", min_width="0", max_width="40em")
        self.suspect = W.Dropdown(description="Suspect", options=self._suspects(), layout=wide)
        check = W.Button(description="Check this", icon="flask", button_style="primary")
        self.fix = W.Button(description="Try the fix", icon="wrench")
        self.fix.on_click(lambda _button: self._post(partial(self.begin, self._fix)))
        super().__init__("", [self.suspect], check, self.fix)
        if cause and cause not in dict(self.suspect.options).values():
            raise NcclkitError(f"There is nothing to check: {cause} was not found here.")
        self.suspect.value = cause

    def layout(self) -> list[W.Widget]:
        """The fields; above them what runs on a login node, where the notebook has not said so."""
        return [*self._card, *super().layout()]

    @property
    def summary(self) -> str:
        """What would be asked, or what came out."""
        if self._seen is not None:
            return self._seen.summary
        found = _found(self._case)
        asked = next((f.next.question for f in found if f.next and f.next.expects), "")
        if asked:
            return f"Next experiment: {asked}"
        return f"{found[0].cause} is {found[0].strength}; what is advised can be tried" if found else self.ASK

    async def run(self, go: bool = True) -> View:
        """Experiments until the first cause is proven, then its fix; where `go` is False nothing is done."""
        return await self._act(self._close) if go else View(self.IDLE, Markup(""))

    def asks(self) -> bool:
        """Whether anything was found."""
        return bool(_found(self._case))

    def blocked(self) -> Mapping[W.Button, str]:
        """An experiment that there is none of or that was made, and a fix that needs a person."""
        if not self.asks():
            return dict.fromkeys((self.start, self.fix), self.ASK)
        reasons = fixes.unable(self._case, self.suspect.value)
        return {button: why for button, why in zip((self.start, self.fix), reasons, strict=True) if why}

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The experiment of the suspect that is chosen now."""
        return self._check()

    async def _close(self) -> View:
        """All of it; what a machine cannot do is said, and is no failure of the notebook."""
        before = len(fixes.experiments(self._case))
        try:
            await fixes.close(self._case, **self._how)
        except NcclkitError as error:
            if self._asked:
                raise
            return self._closed(fixes.experiments(self._case)[before:], str(error))
        return self._closed(fixes.experiments(self._case)[before:])

    async def _check(self) -> View:
        return self._closed([await fixes.check(self._case, self.suspect.value, **self._how)])

    async def _fix(self) -> View:
        return self._closed([await fixes.fix(self._case, self.suspect.value, **self._how)])

    def _closed(self, made: Sequence[ExperimentRecord], problem: str = "") -> Closed:
        self.suspect.options = self._suspects()
        return Closed(self._case, made, problem)

    def _suspects(self) -> list[tuple[str, str]]:
        return [(ANY, ""), *((f"{f.cause} ({f.strength})", f.cause) for f in _found(self._case))]


def _found(case: Case) -> list[Finding]:
    return [finding for finding in case.findings if finding.verdict == "found"]
