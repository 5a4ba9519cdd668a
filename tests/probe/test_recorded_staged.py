"""Staged tests of real ranks (tests/record/staged_test.py): read today, they name whom they named then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.stages import staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.views.pairs import pairs_view

RECORDED = Path(__file__).parent / "staged"
ALONE = "the other 3 work without it"
SAYS = {
    "well": ("Every pair of the 4 ranks works", "", ()),
    "well_hosts": ("Every pair of the 4 ranks works", "", ()),
    "nccl_well": ("Every pair of the 4 ranks works", "", ()),
    "nccl_hosts": ("Every pair of the 4 ranks works", "", ()),
    "nccl_turns": ("Every pair of the 8 ranks works: ", "", ()),
    "nccl_slow": (
        "Rank 1 on simulated-0 is slow only with others, already with simulated-1 (ranks 2 and 3), and works alone; "
        + ALONE,
        "network_loss",
        (1,),
    ),
    "nccl_stuck": (
        "Rank 1 on simulated-0 fails only with others, already with simulated-1 (ranks 2 and 3), and works alone; "
        + ALONE,
        "network_loss",
        (1,),
    ),
    "stuck": ("Rank 1 fails only with others, already with ranks 2 and 3, and works alone; " + ALONE, "", (1,)),
    "slow": (
        "Rank 1 is slow only with others, already with ranks 2 and 3, and works alone; " + ALONE,
        "slow_transport",
        (1,),
    ),
    "slow_on_host": (
        "Rank 1 on node-1 is slow only with others, already with node-2 (ranks 2 and 3), and works alone; " + ALONE,
        "network_loss",
        (1,),
    ),
    "cut": ("node-2 (rank 1) and node-3 (rank 2) fail with each other, and each works", "network_loss", (1, 2)),
    "lossy": ("node-1 (ranks 0 and 1) and node-2 (ranks 2 and 3) fail with each", "network_loss", (0, 1, 2, 3)),
    "slow_host": ("node-4 (rank 3) is slow with most others", "network_loss", (3,)),
    "thin": ("The pair of node-2 (rank 1) and node-3 (rank 2) reaches 0.00", "network_loss", (1, 2)),
}
"""Recording → how its verdict begins, the cause that it leads to, and the ranks that are named."""


def case_of(name: str) -> Case:
    case = Case()
    case.events = evidence.read([RECORDED / name]).events
    return case


@pytest.mark.parametrize("name", SAYS)
def test_the_verdict_and_the_finding(name: str) -> None:
    case, (says, cause, ranks) = case_of(name), SAYS[name]
    assert staged_test(case).summary.startswith(says)
    named = [(f.cause, f.culprits["ranks"]) for f in diagnose(case).findings if f.culprits.get("ranks")]
    assert named[:1] == ([(cause, ranks)] if cause else [])


@pytest.mark.parametrize("name", SAYS)
def test_the_lights_and_the_tries_are_shown(name: str) -> None:
    found, page = staged_test(case_of(name)), str(pairs_view(case_of(name)).static())
    assert all(found.who(group.ranks) in page for group in found.tried)
    assert ("all ranks: not reached" in page) == (found.ended == "failed")
    assert ("Ranks started again" in page) == bool(found.tried) and "each rank alone" in page


def test_every_recording_is_judged() -> None:
    assert sorted(path.name for path in RECORDED.iterdir()) == sorted(SAYS)
