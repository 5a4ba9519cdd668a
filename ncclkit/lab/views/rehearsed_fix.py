"""The last step of a story: the mended program is rehearsed, before it takes GPUs again."""

from __future__ import annotations

import shlex
import sys

from ncclkit.core.case import Case
from ncclkit.core.experiment_records import experiments
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.experiments.baseline import last
from ncclkit.views.rehearsal import RehearsalForm

STEPS = 400
"""Steps of the optimizer, which the programs of the lab do not reach."""


class RehearseFixForm(RehearsalForm):
    """The form that rehearses the program which ``nk.form.check`` mended, all ranks here.

    It waits for the fix.  Raises NcclkitError for a case that is kept in no folder.
    """

    ASK = "Try the fix above first: what it mended is rehearsed here"

    def __init__(self, case: Case) -> None:
        if case.path is None:
            raise NcclkitError("A rehearsal needs a case folder; open one with Case.open(path).")
        self._mended = case
        self._own_folder = case.path / "rehearsal"
        ranks = 2
        plan = _mended_plan(case)
        if plan is not None:
            ranks = plan.ranks
        super().__init__(Case.open(self._own_folder), "", ranks, STEPS)

    def usual_command(self) -> str:
        """The command of the mended program; empty before anything was mended."""
        plan = _mended_plan(self._mended)
        if plan is None:
            return ""
        python = plan.python or sys.executable
        folder = str(self._own_folder)
        words = [python, "-m", "ncclkit.lab.programs", *plan.argv, "--folder", folder]
        return shlex.join(words)

    def asks(self) -> bool:
        """Whether a program was mended, maybe since this form was shown."""
        plan = _mended_plan(self._mended)
        if plan is not None and not self.command.value:
            self.command.value = self.usual_command()
            self.ranks.value = plan.ranks
        return super().asks()


def _mended_plan(case: Case) -> Plan | None:
    """The plan of the last fix that was tried, as it ran."""
    for record in reversed(experiments(case)):
        if record.kind == "fix" and record.folder is not None:
            run = last(Case.open(record.folder / ".case", read_only=True))
            if run is not None:
                return run.plan
    return None
