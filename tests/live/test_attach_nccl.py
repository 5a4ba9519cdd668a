"""What attach kept of real jobs that hung over NCCL is judged again: no GPU is needed for that.

``nccl/WAY.tar.xz`` is what `tests.bench.attach` left of each: two ranks on one H200, each as a node of its own, four
jobs of one user side by side, torch 2.11, NCCL 2.28.9, 2026-11-23; ``nccl/dump`` is the same with ``--dump``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.waits import blockages
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Finding
from tests.live.hangs import WAYS

FOLDER = Path(__file__).parent / "nccl"
KEPT = {path.name.partition(".")[0]: path for path in FOLDER.glob("*.tar.xz")}
DUMPED = {path.name.partition(".")[0]: path for path in FOLDER.glob("dump/*.tar.xz")}
UNTOLD = {"two_groups", "endless_kernel"}
"""All ranks wait for their GPU in one line there: it takes a dump, or the kernels."""


def test_enough_ways_are_kept() -> None:
    assert len(KEPT) >= 15 and KEPT.keys() <= WAYS.keys()


def judged(path: Path) -> tuple[Finding, ...]:
    case, events = Case(), evidence.read([path]).events
    case.events = [*events, *blockages(events)]
    return tuple(diagnose(case).findings)


def is_right(way: str, found: Sequence[Finding]) -> bool:
    """Whether the first finding names the cause and exactly the ranks at fault; nothing wrong may be proven."""
    wanted = WAYS[way]
    assert all(one.strength != "proven" or one.cause in wanted.causes for one in found), way
    ranks = found[0].culprits["ranks"] if found else ()
    return bool(found) and found[0].cause in wanted.causes and (not wanted.ranks or ranks == wanted.at_fault(2))


@pytest.mark.parametrize("way", KEPT)
def test_the_first_sentence_names_cause_and_rank(way: str) -> None:
    found = judged(KEPT[way])
    assert is_right(way, found) == (way not in UNTOLD), found
    assert way not in UNTOLD or all(one.strength == "possible" for one in found)


def test_with_dumps_at_least_14_of_15_are_right() -> None:
    wrong = [way for way, path in DUMPED.items() if not is_right(way, judged(path))]
    assert len(DUMPED) == 22 and len(wrong) <= len(DUMPED) / 15 and wrong == ["endless_kernel"]
