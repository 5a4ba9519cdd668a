"""NCCL's start that never ends is recognised whatever the framework printed before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.picks import OWN_TESTS, of_job
from ncclkit.causes import _starting
from ncclkit.analysis.trouble import NO_JOB
from ncclkit.core.model import Event
from ncclkit.core.kinds import KINDS
from tests.cases import case_of

STALLED = Path(__file__).parents[1] / "specimens" / "network_loss" / "found-nccl-start"
RANKS = sorted(STALLED.glob("rank*.log"))
BEFORE = {
    "Lightning": "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16\n",
    "accelerate": "Num processes: 2\nProcess index: 0\n",
    "C++ INFO": "ProcessGroupNCCL initialization options: size: 2, global rank: 0, TIMEOUT(ms): 7200000\n",
    "a store for many": "Starting store with 4096 workers but somaxconn is 128.\n",
    "nvidia-smi -L": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n",
    "set -x": "+ export NCCL_IB_HCA=mlx5_0\n",
}


def hung(folder: Path, before: str = "", after: str = "") -> list[Event]:
    for log in RANKS:
        (folder / log.name).write_text(before + log.read_text() + after)
    return _starting.hung_starts(case_of(evidence.read([folder]).events))


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_is_said_before_a_start_does_not_hide_that_it_hangs(tmp_path: Path, before: str) -> None:
    assert hung(tmp_path, before)


def test_what_is_said_after_a_start_shows_that_it_ended(tmp_path: Path) -> None:
    assert hung(tmp_path)
    assert not hung(tmp_path, after="step 10/100 loss 2.31\n")
    assert not hung(tmp_path, after="Warning: process group has NOT been destroyed before we destruct it\n")


def test_tests_of_the_kit_are_no_word_of_a_job(tmp_path: Path) -> None:
    tried = Event("resources.tried", "files: 1024 of 4096", "1-resources/wire.jsonl", 1)
    assert not of_job(case_of([tried]))
    start = evidence.read(RANKS).events
    assert _starting.hung_starts(case_of([*start, tried]))
    for prefix in (*OWN_TESTS, *_starting.WATCHED, *NO_JOB):
        assert any(kind.startswith(prefix) for kind in KINDS), f"no kind of event begins with {prefix}"
