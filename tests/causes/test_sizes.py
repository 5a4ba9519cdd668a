"""Jobs of any size: a healthy one is left alone, a broken one has its rank named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import judged_files
from tests.record import thousand


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, pytest.param(1024, marks=pytest.mark.slow)])
def test_nothing_is_found_in_a_healthy_job(ranks: int, tmp_path: Path) -> None:
    assert judged_files(thousand.healthy(tmp_path / "job", ranks)).findings == ()


@pytest.mark.parametrize("ranks", [8, 64])
def test_the_stuck_rank_is_named(ranks: int, tmp_path: Path) -> None:
    found = judged_files(thousand.write(tmp_path / "job", ranks, ranks // 2 + 1)).findings[0]
    assert (found.cause, found.strength, found.culprits["ranks"]) == ("slow_rank", "proven", (ranks // 2 + 1,))
