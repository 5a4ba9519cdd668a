"""Staged runs, and the recommender of story 1: however a step is divided, it learns from the same samples."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkit.agent.run import processes
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement
from ncclkit.core.runs import Plan, Run
from ncclkit.lab.course import runs
from ncclkit.lab.course.runs import Stage, run_stages
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.lab.programs.inject import program
from ncclkit.lab.programs.stories import interactions
from ncclkit.lab.views.course import backend_view, loss_difference, stages_view
from tests.reports import ENV

pytestmark = pytest.mark.usefixtures("warm_ranks")

torch = pytest.importorskip("torch")
OPTIONS = SimpleNamespace(rows=500, users=16, items=64, batch=96)


def samples(ranks: int, accumulate: int) -> list[list[tuple[int, int]]]:
    """What all ranks together see in each of seven steps, which is more than one epoch."""
    options = SimpleNamespace(**vars(OPTIONS), accumulate=accumulate)
    told: list[list[tuple[int, int]]] = [[] for _ in range(7)]
    for rank in range(ranks):
        job = SimpleNamespace(torch=torch, options=options, rank=rank, ranks=ranks)
        for seen, batches in zip(told, islice(interactions.steps(job, interactions.interactions(job)), 7), strict=True):
            assert len(batches) == accumulate
            seen += [pair for users, items in batches for pair in zip(users.tolist(), items.tolist(), strict=True)]
    return [sorted(seen) for seen in told]


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 3), (2, 1), (2, 4), (4, 2)])
def test_a_step_sees_the_same_samples_however_it_is_divided(ranks: int, accumulate: int) -> None:
    assert samples(ranks, accumulate) == samples(1, 1)


def test_no_step_is_like_the_one_before() -> None:
    seen = samples(1, 1)
    assert all(len(step) == OPTIONS.batch for step in seen) and len({tuple(step) for step in seen}) == len(seen)


def test_a_staged_run_stops_at_the_first_stage_that_fails(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    stages = asyncio.run(
        run_stages(case, "stories.interactions", {"ranks": 1, "nonsense": 1}, {"ranks": 1}, backend="gloo")
    )
    assert [stage.run.reason for stage in stages] == ["failed"] and stages[0].losses == ()
    assert case.runs() == [] and list((tmp_path / "stages" / "runs").iterdir())
    assert stages_view(stages).summary.startswith("Stop here")


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting a FUSE disk needs root")
def test_a_reader_of_the_dead_disk_waits_in_state_d_until_it_is_killed(tmp_path: Path) -> None:
    code = "import pathlib, sys; from ncclkit.lab.programs.inject import program\n"
    code += "path = pathlib.Path(sys.argv[1]); program.stalled_file(path, 60); path.read_bytes()"
    reader = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "shared")], env=ENV)
    try:
        end = time.monotonic() + 60
        looks: list[str] = []  # importing reads files, too, and may be seen in state D for a moment
        while looks[-5:] != ["D"] * 5 and reader.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            looks.append(processes.process_state(reader.pid))
        disk = processes.descendants(reader.pid)
        assert looks[-5:] == ["D"] * 5 and len(disk) == 1 and str(tmp_path) not in Path("/proc/mounts").read_text()
    finally:
        reader.kill()
    assert reader.wait(20) == -signal.SIGKILL
    while any(processes.is_alive(pid) for pid in disk) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(processes.is_alive(pid) for pid in disk), "who serves the disk goes with its reader"


def test_where_no_disk_can_be_mounted_a_fifo_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(kind: str, place: str, options: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(program, "_mount_here", refused)
    program.stalled_file(tmp_path / "shared", 60)
    assert stat.S_ISFIFO((tmp_path / "shared").stat().st_mode)


@pytest.mark.parametrize(("gpus", "hosts"), [(2, 2), (1, 4)])
def test_four_ranks_on_fewer_gpus_are_those_of_simulated_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, hosts: int
) -> None:
    """Each of the runs of the course uses NCCL then, and the ranks are told which host they stand for."""
    plans: list[Plan] = []

    async def execute(case: Case, plan: Plan, on_record: object = None) -> Run:
        plans.append(plan)
        return Run(plan, Path("1-run"), "done", 5.0)

    monkeypatch.setattr(runs.probe, "_gpus", lambda case, python: asyncio.sleep(0, gpus))
    monkeypatch.setattr(runs.probe, "execute", execute)
    case = Case.open(tmp_path)
    asyncio.run(run_stages(case, "stories.interactions", {"ranks": 2}, {"ranks": 4}, simulate_hosts=hosts))
    asyncio.run(runs.run_backends(case, 4, simulate_hosts=hosts))
    asyncio.run(runs.run_scaling(case, "2 4", simulate_hosts=hosts))
    nccl = [plan for plan in plans if plan.backend == "nccl"]
    assert [(plan.ranks, plan.simulate_hosts) for plan in nccl] == [
        (2, min(hosts, 2)), (4, hosts), (4, hosts), (2, min(hosts, 2)), (4, hosts)
    ]  # fmt: skip
    told = [plan.argv[plan.argv.index("--simulate-hosts") + 1] for plan in nccl]
    assert told == [str(plan.simulate_hosts) for plan in nccl]
    assert [(plan.backend, plan.simulate_hosts) for plan in plans if plan not in nccl] == [("gloo", 1)]


def stage(ranks: int, options: Mapping[str, Any], *losses: float) -> Stage:
    plan = Plan("interactions", (), ranks, "gloo", "python", 60.0)
    return Stage(Run(plan, Path("1-interactions"), "done", 5.0), options, losses, 2.5, 64 << 20)


SMALL = stage(1, {"rows": 4096}, 8.4, 8.3)
ONE, FOUR = stage(2, {"rows": 40000}, 8.45, 8.41), stage(4, {"rows": 40000, "accumulate": 4}, 8.45, 8.410001)
OTHER = stage(4, {"rows": 40000, "accumulate": 8}, 8.45, 8.40)


@pytest.mark.parametrize(
    ("stages", "apart", "says"),
    [
        ([SMALL], None, "The stage succeeded"),
        ([SMALL, ONE], None, "All 2 stages succeeded"),
        ([SMALL, ONE, FOUR], 1.2e-7, "All 3 stages succeeded, and equal batches gave equal losses"),
        ([ONE, OTHER], 1.2e-3, "All 2 stages succeeded, and equal batches gave DIFFERENT losses"),
        ([], None, "No stage was run yet"),
    ],
)
def test_equal_batches_must_give_equal_losses(stages: list[Stage], apart: float | None, says: str) -> None:
    assert loss_difference(stages) == (apart if apart is None else pytest.approx(apart, rel=0.05))
    assert stages_view(stages).summary == says


def test_micro_batches() -> None:
    assert budgets.micro_batches(2048, 12e6, 16e9).value == 2
    assert budgets.micro_batches(10, 0, 1).value == budgets.micro_batches(10, 1, 10).value == 1
    assert budgets.micro_batches(10, 3, 9).words == "10 samples of 3 B in 9 B: 4 micro-batches of 3."
    with pytest.raises(ValueError, match="not even one"):
        budgets.micro_batches(10, 3, 2)
    assert repr(budgets.host_memory(200 << 30, 8, 4, 2, 0)).endswith("= 1.56 TiB.")


def test_the_stand_in_for_a_full_gpu_tries_again_and_its_right_way_takes_less(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(job: Any, size: int) -> float:
        if size > interactions.PIECE:
            raise RuntimeError("can't allocate memory")
        return 1.0

    monkeypatch.setattr(interactions, "join", refused)
    monkeypatch.setattr(interactions, "_share_of_the_host", nullcontext)
    job = SimpleNamespace(faulty_here=True, seconds=1, fixed=lambda cause: False)
    with pytest.raises(RuntimeError, match="can't allocate"):
        interactions.rank_0_full(job)
    monkeypatch.setattr(interactions.time, "sleep", lambda seconds: None)
    job.seconds = 3
    with pytest.raises(RuntimeError, match="can't allocate"):
        interactions.rank_0_full(job)
    assert capsys.readouterr().out.count("trying again") == 2
    job.fixed = lambda cause: cause == "host_oom"
    assert interactions.rank_0_full(job) == 1.0
    assert FAULTS["rank_0_full"].says.startswith("a stand-in for a full GPU 0")


def test_both_backends_are_shown_and_what_was_not_measured_is_said() -> None:
    def measured(backend: str, *busbw: float) -> Run:
        rows = tuple(
            Measurement("all_reduce", 64 * 1024**n, "float32", 2, 1, backend, 40.0, 50.0, 0.1, 1.0, speed, 0)
            for n, speed in enumerate(busbw)
        )
        return Run(Plan("all_reduce", (), 2, backend, "python", 60.0), Path("run"), "done", 5.0, rows)

    alone, both = (
        backend_view([measured("gloo", 0.1, 0.4)]),
        backend_view([measured("gloo", 0.1, 0.4), measured("nccl", 2.0, 300.0)]),
    )
    assert alone.summary == "all_reduce on 2 ranks: gloo 0.400 GB/s" and "was not measured here" in alone.html
    assert both.summary.endswith("gloo 0.400 GB/s; nccl 300 GB/s") and "was not measured here" not in both.html
    assert backend_view([]).summary.startswith("No backend was measured")
