"""Every way to hang over gloo is looked at alive, and judged with its dumps and without them.

Without them the same look is what attach sees without ``--dump``.  ``tests/bench/attach.py`` looks
at these jobs side by side, and at those over NCCL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live.attach import AttachOptions, attach
from tests.live import hangs, healthy
from tests.live.test_attach_nccl import is_right, judged

ENOUGH_WAYS = 40
ENOUGH_HEALTHY = 12
SAYS = {
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
"""Way → what the first sentence holds without dumps: who or what does not come."""
RANKS = 2
EARLY_ENDS = ("gone",)
"""Ways in which a rank has ended before anybody looks."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", hangs.ways("gloo"))
def test_the_first_sentence_names_cause_and_rank(way: str, tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    with hangs.start(way, RANKS) as job:
        look = asyncio.run(attach(case, [str(job[0].pid)], None, AttachOptions(dump=True)))
        goes_on = way in EARLY_ENDS or all(process.poll() is None for process in job.values())
    assert goes_on, "looking ended a rank"
    with_dumps = diagnose(case).findings
    assert is_right(way, with_dumps), with_dumps
    for dump in look.folder.glob("fr_*"):
        dump.unlink()
    plain = judged(look.folder)
    assert is_right(way, plain), plain
    assert SAYS.get(way, "") in plain[0].say


def test_there_are_enough_ways_and_each_has_a_program() -> None:
    further = hangs.further_programs()
    names = {"subprocess": "subprocess_", "gone": "rank_gone"}
    for way in hangs.WAYS:
        assert hasattr(hangs, names.get(way, way)) or hasattr(further, way), way
    assert len(hangs.ways("gloo")) >= ENOUGH_WAYS
    assert len(healthy.PROGRAMS) >= ENOUGH_HEALTHY
