"""What a fix changes: the first advice on a finding that a machine can follow, as a change of the small job."""

from __future__ import annotations

from typing import Any

from ncclkit.core.model import Advice, Finding, NcclkitError
from ncclkit.core.runs import Plan, breakable
from ncclkit.experiments import comparison


def cure(finding: Finding, plan: Plan | None = None) -> Advice | None:
    """The first advice that a machine can follow and that mends; variables that only make a job say more do not.

    A job of the lab (`plan`) does by itself what its finding's first advice asks of a person, so it needs no variables
    that are a later one's way around it.
    """
    first = next((advice for advice in finding.advice if advice.change or (advice.env and not _tells(advice))), None)
    around = first is not None and first is not finding.advice[0] and not first.change
    return None if around and plan is not None and breakable(plan.argv, plan.network) else first


def _tells(advice: Advice) -> bool:
    """Whether all that it sets makes a job say more and changes nothing else."""
    return bool(advice.env) and not advice.change and comparison.only_tell(advice.env)


def change_of(finding: Finding, plan: Plan) -> dict[str, Any]:
    """The change that the advice asks for; of a job of the lab also the cause, whose bug it shall do right."""
    advice = cure(finding, plan)
    change: dict[str, Any] = {}
    if advice is not None:
        env = dict(advice.env) | dict(advice.change.get("env", {}))
        change = dict(advice.change) | ({"env": env} if env else {})
    if breakable(plan.argv, plan.network):
        change["fix"] = finding.cause
    if not change:
        raise by_hand(finding)
    return change


def by_hand(finding: Finding) -> NcclkitError:
    """The error of advice that no machine can follow, with what a person is to do."""
    do = f": {finding.advice[0].do}" if finding.advice else "."
    return NcclkitError(f"What helps against {finding.cause} needs a person{do}")


def words_of(finding: Finding, plan: Plan) -> str:
    """What was changed, in the words of the advice that asks for it."""
    mends = (advice for advice in finding.advice if not _tells(advice))
    advice = cure(finding, plan) or next(mends, None)
    return advice.do if advice else f"the job does right what {finding.cause} names"
