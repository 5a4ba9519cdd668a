"""A staged test on real gloo ranks: a narrow path between simulated hosts, and a rank that fails even alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit.analysis.stages import staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live import probe
from ncclkit.live.launch import simulated
from ncclkit.live.options import ProbeOptions
from tests import networks
from tests.namespaces import cannot_simulate
from tests.processes import leftovers

pytestmark = pytest.mark.usefixtures("warm_ranks")

WHY_NOT = cannot_simulate()


def run_stages(case: Case, ranks: int, fault: tuple[str, ...] = (), **net: Any) -> None:
    """A live test with stages, and what follows where it breaks off."""

    async def go() -> None:
        asked = ProbeOptions(ranks=ranks, backend="gloo", max_bytes=1 << 16, repeats=1, stages=True, timeout=300)
        plan = await probe.plan(case, asked)
        plan = replace(plan, argv=(*plan.argv, *fault), network=net)
        await probe.bisect(case, await probe.execute(case, plan), probe.launcher(plan))

    asyncio.run(go())


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "hosts can be simulated here")
def test_a_thin_path_between_two_hosts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(simulated.WRONG, "thin", networks.thin)
    case = Case.open(tmp_path)
    run_stages(case, 3, hosts=3, wrong="thin")
    found = staged_test(case)
    assert found.bad == ((0, 1),) and not found.suspects and not found.tried, found.summary
    every = diagnose(case).findings
    named = every[0].cause, every[0].culprits["hosts"]
    assert named == ("network_loss", ("node-1", "node-2")), [finding.say for finding in every]
    assert leftovers() == []


def test_a_rank_that_fails_alone_is_named_and_the_other_was_seen_to_work(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    run_stages(case, 2, ("--fault", "few_files", "--rank", "1"))
    assert staged_test(case).summary == "Rank 1 fails even alone; the other one works without it"
    assert {group.ranks: group.bad for group in staged_test(case).tried} == {(0, 1): True, (0,): False, (1,): True}
    assert leftovers() == []
