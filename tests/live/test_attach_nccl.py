"""What attach kept of real jobs that hung over NCCL is judged again: no GPU is needed for that.

``nccl/WAY.tar.xz`` is what `tests.bench.attach` left of each: two ranks on one H200, each as a node of its own, four
jobs of one user side by side, torch 2.11, NCCL 2.28.9, 2026-11-23; without dumps, which cuda-gdb gave of few ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.waits import blockages
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from tests.live.hangs import WAYS

KEPT = {path.name.partition(".")[0]: path for path in (Path(__file__).parent / "nccl").glob("*.tar.xz")}
UNTOLD = {"two_groups", "endless_kernel"}
"""All ranks wait for their GPU in one line there: it takes a dump, or the kernels."""


def test_enough_ways_are_kept() -> None:
    assert len(KEPT) >= 15 and KEPT.keys() <= WAYS.keys()


@pytest.mark.parametrize("way", KEPT)
def test_the_first_sentence_names_cause_and_rank(way: str) -> None:
    case, events = Case(), evidence.read([KEPT[way]]).events
    case.events = [*events, *blockages(events)]
    found, wanted = diagnose(case).findings, WAYS[way]
    assert all(one.strength != "proven" or one.cause in wanted.causes for one in found)
    if way in UNTOLD:
        assert all(one.strength == "possible" for one in found)
        return
    assert found[0].cause in wanted.causes, found[0].say
    assert not wanted.ranks or found[0].culprits["ranks"] == wanted.at_fault(2)
