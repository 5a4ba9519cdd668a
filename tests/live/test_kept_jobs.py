"""Jobs that hung on two H200, looked at alive or judged dead, are judged again: no GPU is needed.

``kept/attach-nccl-*.tar.xz`` is what `tests.bench.attach` left of 54 ways to hang over NCCL (torch
2.11, NCCL 2.28.9, 2026-11-28), and ``kept/dead-*.tar.xz`` what `tests.bench.dead` did of as many
that died there over NCCL and over gloo, with the programs as they were.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.bench.dead import LOG, judged_row, summary
from tests.live.test_attach_nccl import is_right, judged

pytestmark = pytest.mark.timeout(600)  # 54 jobs each
KEPT = Path(__file__).parent / "kept"
WAYS_KEPT = 54


def unpacked(name: str, folder: Path) -> list[Path]:
    """A folder for each way."""
    with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    ways = [path for path in sorted(folder.iterdir()) if path.name != "programs"]
    assert len(ways) == WAYS_KEPT
    return ways


@pytest.mark.parametrize(
    ("look", "untold"),
    [
        # all ranks wait for their GPU in one line, and nothing counts sends and receives
        ("attach-nccl-plain", ["crossed_stages", "endless_kernel", "two_groups"]),
        ("attach-nccl-dump", ["endless_kernel"]),
    ],
)
def test_a_look_names_cause_and_rank(look: str, untold: list[str], tmp_path: Path) -> None:
    ways = unpacked(look, tmp_path)
    assert [way.name for way in ways if not is_right(way.name, judged(way))] == untold


@pytest.mark.parametrize(
    ("backend", "whole_cause", "whole_rank", "log_cause"), [("nccl", 49, 48, 46), ("gloo", 50, 52, 49)]
)
def test_of_the_dead_as_many_are_told_as_before(
    backend: str, whole_cause: int, whole_rank: int, log_cause: int, tmp_path: Path
) -> None:
    rows = []
    for way in unpacked(f"dead-{backend}", tmp_path):
        assert (way / LOG).exists()
        rows.append(judged_row(way.name, way, str(tmp_path / "programs")))
    told = summary(rows)
    assert told["wrong_proven"] == 0
    assert told["whole_cause"] >= whole_cause and told["whole_rank"] >= whole_rank
    assert told["log_cause"] >= log_cause
