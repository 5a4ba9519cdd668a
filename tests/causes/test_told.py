"""What people say that they tried moves a verdict that is not proven, and only that of the cause it is the test of."""

from __future__ import annotations

import pytest

from ncclkit.causes._user_notes import Toggle
from ncclkit.core.experiment_records import weigh_user_notes
from ncclkit.core.model import Event, Experiment, Finding, found

PLAN = Experiment("?", {"env": {"NCCL_P2P_DISABLE": "1"}}, {}, {"p2p_broken": "works", "slow_rank": "same"})


def finding(strength: str = "possible", cause: str = "p2p_broken") -> Finding:
    line = Event("c10d.timeout", "a timeout")
    return found(cause, strength, "It hangs.", [line], next=None if strength == "proven" else PLAN)


def trial(works: bool, name: str = "NCCL_P2P_DISABLE", value: str = "1") -> Event:
    row = {"name": name, "value": value, "works": works}
    return Event("told.trial", "what was tried", data={"trials": [row], "message": "what was tried"})


@pytest.mark.parametrize(
    ("before", "event", "verdict", "strength"),
    [
        (finding(), trial(True), "found", "likely"),
        (finding(), trial(False), "clear", None),
        (finding("likely"), trial(False), "clear", None),
        (finding("proven"), trial(False), "found", "proven"),
        (finding(), trial(True, value="0"), "found", "possible"),
        (finding(), trial(True, name="NCCL_IB_DISABLE"), "found", "possible"),
        (finding(cause="slow_rank"), trial(True), "clear", None),
        (finding(cause="slow_rank"), trial(False), "found", "possible"),
        (finding(cause="nccl_bug"), trial(True), "found", "possible"),
    ],
)
def test_a_told_trial_moves_its_own_cause(before: Finding, event: Event, verdict: str, strength: str | None) -> None:
    (after,) = weigh_user_notes([before], [event])
    assert (after.verdict, after.strength) == (verdict, strength)


@pytest.mark.parametrize(
    ("works", "fails", "remedy"),
    [
        (["2.18.6", "2.19.4", "2.20.5"], ["2.20.3"], "2.20.5"),
        (["2.9.1", "2.10.2"], ["2.20.3"], "2.10.2"),
        (["2.20.3", "2.21.5"], ["2.20.3"], "2.21.5"),
    ],
)
def test_the_remedy_is_the_next_release_that_works(works: list[str], fails: list[str], remedy: str) -> None:
    assert Toggle(fails=fails, works=works).fixed_in == remedy
