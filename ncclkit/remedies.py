"""What a fix changes: the first advice on a finding that a machine can follow, as a change of the small job."""

from __future__ import annotations

from typing import Any

from ncclkit import outcomes
from ncclkit.model import Advice, Finding, NcclkitError
from ncclkit.runs import Plan, breakable


def cure(finding: Finding) -> Advice | None:
    """The first advice that a machine can follow and that mends; variables that only make a job say more do not."""
    mends = (a for a in finding.advice if a.change or any(not name.startswith(outcomes.TELLING) for name in a.env))
    return next(mends, None)


def change_of(finding: Finding, plan: Plan) -> dict[str, Any]:
    """The change that the advice asks for; of a job of the lab also the cause, whose bug it shall do right."""
    advice = cure(finding)
    change: dict[str, Any] = {}
    if advice is not None:
        env = dict(advice.env) | dict(advice.change.get("env", {}))
        change = dict(advice.change) | ({"env": env} if env else {})
    if breakable(plan.argv, plan.net):
        change["mend"] = finding.cause
    if not change:
        raise by_hand(finding)
    return change


def by_hand(finding: Finding) -> NcclkitError:
    """The error of advice that no machine can follow, with what a person is to do."""
    do = f": {finding.advice[0].do}" if finding.advice else "."
    return NcclkitError(f"What helps against {finding.cause} needs a person{do}")


def words_of(finding: Finding) -> str:
    """What was changed, in the words of the advice that asks for it."""
    advice = cure(finding) or next(iter(finding.advice), None)
    return advice.do if advice else f"the job does right what {finding.cause} names"
