"""attach on actors of Ray itself, where it is installed (``pip install ray``); elsewhere `test_engines` has their layout."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ncclkit.analysis.motion import headline
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live.attach import AttachOptions, attach
from tests.live import ray_job

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", ["hangs", "works", "idle"])
def test_actors_of_ray_are_found_and_judged(name: str, tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    with ray_job.start(name) as actors:
        made = asyncio.run(attach(case, [str(actors[0])], None, AttachOptions()))
        found = diagnose(case)
    seen = {event.rank: event.pid for event in made.events if event.kind == "attach.rank"}
    says = headline(made.events)
    if name == "hangs":
        assert seen == actors, "numbered by a variable of their stacks"
        first = found.findings[0]
        assert (first.cause, first.culprits["ranks"]) == ("slow_rank", (ray_job.LATE,)), first.say
    else:
        assert set(seen.values()) == set(actors.values())
        assert (found.verdict, found.exit_code, found.findings) == ("running", 0, ()), says
        assert ("is idle and" in says) == (name == "idle")
