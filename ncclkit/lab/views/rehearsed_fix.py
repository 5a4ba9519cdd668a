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

    Raises NcclkitError where none was mended in this case.
    """

    def __init__(self, case: Case) -> None:
        plan = _mended_plan(case)
        if plan is None or case.path is None:
            raise NcclkitError("Nothing was mended in this case; run the cells of the fix first.")
        own = Case.open(case.path / "rehearsal")
        python = plan.python or sys.executable
        words = [python, "-m", "ncclkit.lab.programs", *plan.argv, "--folder", str(own.path)]
        super().__init__(own, shlex.join(words), plan.ranks, STEPS)


def _mended_plan(case: Case) -> Plan | None:
    """The plan of the last fix that was tried, as it ran."""
    for record in reversed(experiments(case)):
        if record.kind == "fix" and record.folder is not None:
            run = last(Case.open(record.folder / ".case", read_only=True))
            if run is not None:
                return run.plan
    return None
