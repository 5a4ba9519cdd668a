"""attach on actors of Ray itself, where it is installed (``pip install ray``); elsewhere `test_engines` has their layout.

`tests/bench/engines.py --ray` plays all ways to hang and all servers that go on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ncclkit.analysis.motion import headline
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live.attach import AttachOptions, attach
from tests.live import engines, servers

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def looked_at(folder: Path, pid: int) -> tuple[dict[int, int], str, Diagnosis]:
    """{rank: process}, the first sentence, and the verdict."""
    case = Case.open(folder)
    made = asyncio.run(attach(case, [str(pid)], None, AttachOptions()))
    seen = {event.rank: event.pid for event in made.events if event.kind == "attach.rank"}
    return seen, headline(made.events), diagnose(case)


def test_of_actors_that_hang_the_one_in_its_own_code_is_named(tmp_path: Path) -> None:
    with engines.start("sleeping", "ray") as (_, actors):
        # any of them stands for all
        seen, _, found = looked_at(tmp_path, actors[1])
    assert seen == actors, "numbered by a variable of their stacks"
    first = found.findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("slow_rank", (0,)), first.say


def test_actors_that_work_go_on(tmp_path: Path) -> None:
    with engines.start("tensor_parallel", "ray") as (driver, actors):
        seen, says, found = looked_at(tmp_path, driver)
    assert seen == actors and says.startswith("The job goes on")
    assert (found.verdict, found.exit_code, found.findings) == ("running", 0, ()), says


@pytest.mark.parametrize("name", servers.IDLE)
def test_actors_without_a_task_and_those_that_wait_for_a_request_in_one_are_idle(name: str, tmp_path: Path) -> None:
    with servers.start(name, "ray") as pids:
        seen, says, found = looked_at(tmp_path, pids["front"])
    assert set(seen.values()) == {pids["worker.0"], pids["worker.1"]}
    assert "is idle and waits for a request" in says and found.exit_code == 0
