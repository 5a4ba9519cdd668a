"""attach on servers and actors: workers that carry no RANK, in the layouts of vLLM, SGLang, Ray and verl, over gloo.

Each is one of the programs of `hangs` and `healthy`, of `servers` (a front end, its engine, and that its workers), or of
`weights` (a trainer beside an engine).  Actors of Ray itself are looked at by `test_ray`.

vLLM, SGLang and verl themselves were not run here: on 2026-11-27 the wheels of vLLM 0.33.0, SGLang 0.5.23 and verl 0.9.1
could be had, but vLLM's libraries need libcuda.so.1 and, as SGLang, it pins a torch of its own and kernels of CUDA 13;
verl takes one of the two.  On a host with GPUs: ``pip install vllm``, ``vllm serve MODEL -tp 2``, then
``ncclkit attach --pid`` the server's, idle and under load.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclkit.agent.monitor import engines as monitored
from ncclkit.agent.monitor import workers
from ncclkit.analysis.motion import headline
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live.attach import AttachOptions, attach, ranks_of_target
from tests.live import servers, weights
from tests.live.engines import start
from tests.live.hangs import WAYS

pytestmark = pytest.mark.timeout(400)
Titles = dict[int, str]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[[Titles, dict[int, str]], None]:
    """Processes of the kernel's table: {number: title}, all children of process 1 but for vLLM's, and their stacks."""

    def fill(titles: Titles, stacks: dict[int, str] | None = None, parents: dict[int, int] | None = None) -> None:
        told = stacks or {}
        monkeypatch.setattr(workers, "title_of", lambda pid: titles.get(pid, ""))
        monkeypatch.setattr(workers.processes, "parents", lambda: {pid: (parents or {}).get(pid, 50) for pid in titles})
        monkeypatch.setattr(workers, "has_torch", lambda pid: True)
        monkeypatch.setattr(workers, "_age", lambda pid: (pid, pid))
        monkeypatch.setattr(workers.snapshots, "python_stack", lambda rank, pid, until, numbers: (told.get(pid, ""), ""))

    return fill


def grouped(titles: Titles) -> list[tuple[dict[int, int], str]]:
    return [(group.ranks, group.named) for group in workers.worker_groups(titles)]


def test_titles_of_vllm_and_sglang_count_as_their_ranks_do(table) -> None:
    titles = {70: "VLLM::EngineCore", 71: "VLLM::Worker_PP1_TP0", 72: "VLLM::Worker_PP0_TP1", 73: "VLLM::Worker_PP0_TP0"}
    table(titles)
    assert grouped(titles) == [({0: 73, 1: 72, 2: 71}, "title")]
    titles = {80: "sglang::scheduler_TP1", 81: "sglang::scheduler_TP0", 82: "sglang::detokenizer"}
    table(titles)
    assert grouped(titles) == [({0: 81, 1: 80}, "title")]


def test_two_engines_on_a_host_are_two_groups(table) -> None:
    titles = {pid: f"VLLM::Worker_TP{pid % 2}" for pid in (10, 11, 20, 21)}
    table(titles, parents={10: 1, 11: 1, 20: 2, 21: 2})
    assert grouped(titles) == [({0: 10, 1: 11}, "title"), ({0: 20, 1: 21}, "title")]


def stack(name: str, value: int) -> str:
    return f'Thread 1 (idle): "MainThread"\n    run (/app/w.py:9)\n        Arguments:\n            {name}: {value}\n'


def test_actors_of_ray_are_numbered_by_a_variable_of_their_stacks(table) -> None:
    titles = {31: "ray::WorkerDict.update_actor", 32: "ray::WorkerDict", 33: "ray::IDLE", 34: "ray::RewardLoop"}
    table(titles, {31: stack("rank", 1), 32: stack("rank", 0)})
    assert grouped(titles) == [({0: 32, 1: 31}, "variable")]


@pytest.mark.parametrize("stacks", [{}, {31: stack("rank", 0), 32: stack("rank", 0)}, {31: stack("rank", 1)}])
def test_workers_of_which_nothing_tells_the_number_are_counted_and_that_is_said(table, stacks) -> None:
    titles = {31: "ray::WorkerDict", 32: "ray::WorkerDict"}
    table(titles, stacks)
    (group,) = workers.worker_groups(titles)
    assert group.ranks == {0: 31, 1: 32} and "rank 0 is process 31" in workers.note_on(group)


DRIVER = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"


@pytest.mark.parametrize(
    ("driver", "above"),
    [
        ("python serve.py", [41]),
        # a driver that a front end has started has that above it
        (DRIVER, [41, 40]),
        # a node of a cluster that stands: who uses it does not show
        ("python /usr/local/bin/ray start --head --block", []),
        ("python -m ray.scripts.scripts start --address=node-1:6379 --block", []),
        # a program of the user may be called so
        ("python train_ray.py start", [41]),
    ],
)
def test_the_driver_of_an_actor_is_above_it_where_that_began_the_cluster(driver, above, monkeypatch) -> None:
    titles = {40: "python front.py", 41: driver, 42: "raylet --node", 43: "ray::Worker.read_shared"}
    parents = {43: 42, 42: 41, 41: 40, 40: 1}
    monkeypatch.setattr(monitored, "title_of", lambda pid: titles.get(pid, ""))
    monkeypatch.setattr(monitored.processes, "environ", lambda pid: {})
    monkeypatch.setattr(monitored.processes, "parents", lambda: parents)
    monkeypatch.setattr(monitored.processes, "program_of", lambda pid: titles.get(pid, "init").split(" ")[0])
    assert monitored.engines_above(43) == above


def test_workers_of_a_data_loader_and_a_worker_alone_are_no_group(table) -> None:
    spawned = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"
    loader = 'Thread 1 (idle): "MainThread"\n    _worker_loop (torch/utils/data/_utils/worker.py:9)\n'
    titles = {41: spawned, 42: spawned}
    table(titles, {41: loader, 42: loader})
    assert grouped(titles) == []
    table({41: spawned})
    assert grouped({41: spawned}) == []


def attached(folder: Path, pid: int) -> tuple[Case, dict[int, int]]:
    case = Case.open(folder)
    made = asyncio.run(attach(case, [str(pid)], None, AttachOptions()))
    return case, {event.rank: event.pid for event in made.events if event.kind == "attach.rank"}


@pytest.mark.slow
def test_a_spawned_engine_that_hangs_names_the_rank_and_the_reason(tmp_path: Path) -> None:
    with start("barrier_in_branch") as (engine, ranks):
        case, seen = attached(tmp_path, engine)
        first = diagnose(case).findings[0]
    assert seen == ranks
    assert (first.cause, first.culprits["ranks"]) == (WAYS["barrier_in_branch"].causes[0], (0,)), first.say


@pytest.mark.slow
def test_a_busy_engine_goes_on_and_any_of_its_workers_stands_for_it(tmp_path: Path) -> None:
    with start("batching_server") as (_, ranks):
        case, seen = attached(tmp_path, ranks[1])
        found = diagnose(case)
    assert seen == ranks and (found.findings, found.exit_code) == ((), 0)


@pytest.mark.slow
def test_a_single_program_with_a_loader_is_not_taken_for_a_job(tmp_path: Path) -> None:
    program = "import torch.utils.data as d, time\n"
    program += "class D(d.Dataset):\n    __len__ = lambda s: 9\n    __getitem__ = lambda s, i: (time.sleep(60), i)[1]\n"
    program += "it = iter(d.DataLoader(D(), num_workers=2)); print('up', flush=True); next(it)\n"
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=clean) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        family = [child.pid, *workers.processes.descendants(child.pid)]
        try:
            assert workers.worker_groups(family) == []
        finally:
            for pid in family:
                os.kill(pid, 9)


def looked_at(folder: Path, pid: int) -> tuple[str, Diagnosis]:
    """The first sentence of a look, and the verdict."""
    case = Case.open(folder)
    made = asyncio.run(attach(case, [str(pid)], None, AttachOptions()))
    return headline(made.events), diagnose(case)


@pytest.mark.slow
def test_an_idle_server_goes_on_and_one_whose_front_end_died_does_not(tmp_path: Path) -> None:
    with servers.start("each_has_a_queue") as pids:
        says, found = looked_at(tmp_path / "idle", pids["front"])
        assert "is idle and waits for a request (ranks 0 and 1 " in says
        assert (found.verdict, found.exit_code, found.findings) == ("running", 0, ())
        os.kill(pids["front"], signal.SIGKILL)
        says, found = looked_at(tmp_path / "died", pids["engine"])
    assert servers.NOT_IDLE["front_died"] in says and found.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", servers.IDLE[1:])
def test_idle_servers_of_other_layouts_go_on(name: str, tmp_path: Path) -> None:
    with servers.start(name) as pids:
        says, found = looked_at(tmp_path, pids["front"])
    assert "is idle and waits for a request" in says and found.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*servers.NOT_IDLE} - {"front_died"}))
def test_a_server_that_only_looks_idle_is_not_called_so(name: str, tmp_path: Path) -> None:
    with servers.start(name) as pids:
        says, found = looked_at(tmp_path, pids["worker.0" if name == "engine_died" else "front"])
    assert servers.NOT_IDLE[name] in says and found.exit_code == 1


@pytest.mark.slow
def test_orphans_of_two_engines_are_two_groups() -> None:
    with servers.start("engine_died") as one, servers.start("engine_died") as other:
        orphans = [{0: pids["worker.0"], 1: pids["worker.1"]} for pids in (one, other)]
        found = workers.worker_groups([pid for ranks in orphans for pid in ranks.values()])
        assert sorted(group.ranks[0] for group in found) == sorted(ranks[0] for ranks in orphans)
        for ranks in orphans:
            assert ranks_of_target([str(ranks[1])]) == ranks


@pytest.mark.slow
@pytest.mark.parametrize("name", weights.HUNG)
def test_the_side_that_does_not_come_when_weights_are_handed_on_is_named(name: str, tmp_path: Path) -> None:
    missing, call = weights.HUNG[name]
    with weights.start(name) as (driver, ranks):
        case, seen = attached(tmp_path, driver)
        first = diagnose(case).findings[0]
    assert seen == ranks and (first.cause, first.culprits["ranks"]) == ("slow_rank", missing)
    assert f"not entered {call} at weights.py:" in first.say


@pytest.mark.slow
@pytest.mark.parametrize("name", weights.HEALTHY)
def test_of_sides_that_wait_for_nobody_none_is_accused(name: str, tmp_path: Path) -> None:
    with weights.start(name) as (driver, ranks):
        says, found = looked_at(tmp_path, driver)
    assert found.findings == () and says.startswith("The job goes on") == (name == "sync_loop")
