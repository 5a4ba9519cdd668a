"""Some of the ways to hang, one step further; ``tests/bench/attach.py`` looks at all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live.attach import attach
from tests.live import hangs, healthy

FURTHER = {
    "full_pipe": "Rank 1 waits for a pipe (its output is not read by process ",
    "thread_left": "Rank 1 has ended the program (thread uploader in `link.recv(1)` at more_hangs.py:",
    "forked_lock": ": `GUARD`, held since it was forked; its program takes it at more_hangs.py:",
    "forked_child": ": `GUARD`, held since it was forked inside `with GUARD` at more_hangs.py:",
    "semaphore_of_dead": "(`guard`, one that processes share, and no other living process has it: ",
    "soft_lock": "/model.lock, a lock file that is not removed)",
    "pool_worker_killed": "waits for a result of its pool (its workers are idle: process ",
    "stopped": " and has not reached the collective inside it; ",
    "producer_died": " of ValueError: no such shard)",
    "lock_of_peer": "dataset.lock, held by rank 0)",
}
"""Way → what the first sentence holds."""


@pytest.mark.slow
@pytest.mark.parametrize("way", FURTHER)
def test_the_first_sentence_says_who_or_what_does_not_come(way: str, tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    with hangs.start(way, 2) as job:
        asyncio.run(attach(case, [str(job[0].pid)]))
        assert all(process.poll() is None for process in job.values())
    first = diagnose(case).findings[0]
    assert first.cause in hangs.WAYS[way].causes and first.culprits["ranks"] == hangs.WAYS[way].at_fault(2)
    assert FURTHER[way] in first.say


def test_there_are_enough_ways_and_each_has_a_program() -> None:
    further = hangs.further_programs()
    names = {"subprocess": "subprocess_", "gone": "rank_gone"}
    for way in hangs.WAYS:
        assert hasattr(hangs, names.get(way, way)) or hasattr(further, way), way
    assert len(hangs.WAYS) >= 40 and len(healthy.PROGRAMS) >= 12
