"""A staged test on real gloo ranks: a narrow path between simulated hosts, and a rank that fails even alone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit.analysis.stages import SLOW_HOST, Pair, StagedTest, staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live import probe
from ncclkit.live.launch.launchers import launcher_of_plan
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
        plan = await probe.plan_test(case, asked)
        plan = replace(plan, argv=(*plan.argv, *fault), network=net)
        await probe.bisect(case, await probe.execute(case, plan), launcher_of_plan(plan).run)

    asyncio.run(go())


THIN = (0, 1)
"""The pair whose path is thin; nothing holds the others back."""
LEAST = 0.08
"""GB/s of such a pair: 0.15 to 0.41 on two cores, with six busy programs beside as well, and 0.006 of a thin one."""
ONCE_MORE = 45.0
"""Seconds after which nothing is measured again."""


def host_gave(found: StagedTest) -> str:
    """What the host gave to the pairs that nothing holds back, where no thin one stands out among them; else ""."""
    wide = sorted(pair.bandwidth for pair in found.pairs if (pair.a, pair.b) != THIN)
    if len(wide) < 2 or wide[0] >= max(LEAST, SLOW_HOST * wide[-1]):
        return ""
    speeds = f"{wide[0]:.3f} and {wide[-1]:.3f} GB/s"
    return f"this host is too busy: pairs that nothing holds back reached {speeds}, less than {LEAST} or unlike"


@pytest.mark.parametrize(
    ("speeds", "enough"), [((0.15, 0.41), True), ((0.05, 0.06), False), ((0.1, 0.41), False), ((0.05,), True)]
)
def test_a_busy_host_is_told_by_the_pairs_that_nothing_holds_back(speeds: tuple[float, ...], enough: bool) -> None:
    """A thin pair changes nothing, and one that was never measured is no excuse."""
    others = zip(((0, 2), (1, 2)), speeds, strict=False)
    pairs = [Pair(*ranks, "network", speed, 50.0, 0) for ranks, speed in others]
    for thin in (0.001, 0.4):
        found = StagedTest(3, pairs=(Pair(*THIN, "network", thin, 50.0, 0), *pairs))
        assert (host_gave(found) == "") == enough


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "hosts can be simulated here")
def test_a_thin_path_between_two_hosts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host lets it: before the thin pair is looked at, the same run says what other pairs got."""
    monkeypatch.setitem(simulated.WRONG, "thin", networks.thin)
    case, begun = Case.open(tmp_path), time.monotonic()
    run_stages(case, 3, hosts=3, wrong="thin")
    found = staged_test(case)
    if host_gave(found) and time.monotonic() - begun < ONCE_MORE:
        run_stages(case, 3, hosts=3, wrong="thin")
        found = staged_test(case)
    if host_gave(found):
        pytest.skip(host_gave(found))
    assert found.bad == (THIN,) and not found.suspects and not found.tried, found.summary
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
