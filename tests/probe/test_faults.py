"""The right way of every bug of the lab, on real gloo ranks; and a job that is killed, started again, and goes on."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ncclkit.agent import wire
from ncclkit.analysis.stages import sharing
from ncclkit.causes import rank_killed
from ncclkit.causes.engine import diagnose
from ncclkit.core import runs
from ncclkit.core.case import Case
from ncclkit.core.kinds import WorkerPhase
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.lab.faults import catalogue, injection
from ncclkit.lab.programs import inject
from ncclkit.live import probe
from ncclkit.live.launch import local
from ncclkit.live.launch.pack import packed
from ncclkit.live.options import ProbeOptions
from tests.processes import warm

pytestmark = pytest.mark.usefixtures("warm_ranks")

ROOT = Path(__file__).parents[2]
MENDED = [
    (fault.name, fault.cause)
    for fault in catalogue.FAULTS.values()
    if fault.job == "train" and "--fault" in fault.argv and fault.cause and "gloo" in fault.backends
    if fault.cause != "rank_killed" and (not fault.root or os.geteuid() == 0)
]
RANK = """
import argparse, json, os, sys, torch, torch.distributed as dist
from datetime import timedelta
from ncclkit.lab.programs import inject

def job(name, cause):
    parser = argparse.ArgumentParser()
    inject.add_options(parser)
    asked = ["--folder", sys.argv[1], "--backend", "gloo", "--rank", "1", "--at", "0", "--seconds", "1"]
    return inject.LabJob(torch, parser.parse_args([*asked, "--fault", name, "--fix", cause]), 4)

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank = dist.get_rank()
for name, cause in json.loads(sys.argv[2]):
    one = job(name, cause)
    if rank == 1:
        inject.BEFORE.get(name, lambda job: None)(one)
    inject.BEGUN.get(name, lambda job: None)(one)
    one.before_step(0)
    total = torch.tensor([one.steps, int(os.environ["WORLD_SIZE"])])
    dist.all_reduce(total)
    if rank == 0:
        with open(sys.argv[1] + "/fixed.jsonl", "a") as kept:  # ranks that print together share lines
            print(json.dumps([name, *total.tolist()]), file=kept)
if rank == 1:
    try:
        job("rank_raises", "slow_rank").before_step(0)
    except ValueError as error:
        open(sys.argv[1] + "/error", "w").write(str(error))
dist.barrier()
dist.destroy_process_group()
"""


def test_every_bug_has_a_right_way_and_a_wrong_diagnosis_fixes_nothing(tmp_path: Path) -> None:
    """In one job, one after the other: all ranks meet after each, with the same number of steps to go."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(program)]
    command, env = [*torchrun, str(tmp_path), json.dumps(MENDED)], warm({"PYTHONPATH": str(ROOT)})
    with packed() as agent:
        records = asyncio.run(
            local.run_under_guard(agent, command, env, 90, tmp_path, sys.executable, lambda record: None)
        )
    assert records[-1]["reason"] == "done", (tmp_path / "launcher.log").read_text()[-3000:]
    told = [json.loads(line) for line in (tmp_path / "fixed.jsonl").read_text().splitlines()]
    assert told == [[name, 3 * (2 if name == "uneven_data" else 4), 9] for name, _ in MENDED]
    assert (tmp_path / "error").read_text().startswith("sample 1207 has 0 frames")


def test_a_killed_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Changed as the cause advises; of what the two attempts left, the last one counts."""
    case, argv = Case.open(tmp_path / "case"), ("train", "--backend", "gloo", *catalogue.FAULTS["rank_killed"].argv)
    plan = Plan("rank_killed", argv, 2, "gloo", sys.executable, 90)
    again = asyncio.run(probe.execute(case, runs.changed(plan, {**rank_killed.RESTART.change, "fix": rank_killed.ID})))
    records = [json.loads(line) for line in (again.folder / "wire.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record.get("phase") == "step" and record["rank"] == 1]
    assert again.reason == "done" and steps[:4] == [0, 1, 2, 3]
    assert steps[4] > 0 and steps[4:] == [*range(steps[4], 6)]  # rank 0 may have been ended before it kept the last one
    assert [finding for finding in diagnose(case).findings if finding.culprits["ranks"]] == []


def test_ranks_of_one_host_are_split_into_several(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    inject.add_options(parser)
    options = parser.parse_args(["--folder", "", "--backend", "gloo", "--simulate-hosts", "2"])
    hosts = []
    for rank in range(4):
        told = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 4, "NCCL_HOSTID": ""}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        inject.LabJob(torch, options, 1)
        hosts.append(os.environ["NCCL_HOSTID"])
    assert hosts == ["simulated-0", "simulated-0", "simulated-1", "simulated-1"]
    plan = Plan(
        "rank_late",
        ("train", "--backend", "nccl", "--simulate-hosts", "2"),
        4,
        "nccl",
        sys.executable,
        60,
        simulate_hosts=2,
    )
    assert "--simulate-hosts" in runs.changed(plan, {"minimal": True}).argv
    over = runs.changed(plan, {"backend": "gloo"})
    assert "--simulate-hosts" not in over.argv and over.simulate_hosts == 1


@pytest.mark.parametrize(("split", "here"), [(2, 2), (2, 3), (2, 4), (3, 3), (3, 5), (4, 8)])
def test_simulated_hosts_share_the_gpus_and_no_two_ranks_of_one_do(
    monkeypatch: pytest.MonkeyPatch, split: int, here: int
) -> None:
    parser = argparse.ArgumentParser()
    inject.add_options(parser)
    options = parser.parse_args(["--folder", "", "--backend", "nccl", "--simulate-hosts", str(split)])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    places = []
    for rank in range(2 * here):  # on two real hosts, whose simulated ones must not bear the same names
        told = {"RANK": rank, "WORLD_SIZE": 2 * here, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here}
        for name, value in {**told, "NCCL_HOSTID": ""}.items():  # set, as what only the job sets would stay
            monkeypatch.setenv(name, str(value))
        index = inject.LabJob(torch, options, 1).device.index
        places.append((rank // here, os.environ["NCCL_HOSTID"], index))
    assert len(set(places)) == 2 * here and {index for *_, index in places} <= {0, 1}
    assert len({host for _, host, _ in places}) == 2 * min(split, here)


@pytest.mark.parametrize(("gpus", "split", "ranks"), [(4, 1, 4), (2, 2, 4), (4, 2, 4), (4, 2, 8), (2, 3, 6)])
def test_the_wrong_device_is_that_of_the_first_rank_of_its_host(
    monkeypatch: pytest.MonkeyPatch, gpus: int, split: int, ranks: int
) -> None:
    parser, fault = argparse.ArgumentParser(), injection.fault("wrong_device")
    inject.add_options(parser)
    words = ["--folder", "", "--backend", "nccl", "--simulate-hosts", str(split), "--rank", str(ranks - 1)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    places: dict[tuple[str, int], list[int]] = {}
    for rank in range(ranks):
        told = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "NCCL_HOSTID": ""}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        index = inject.LabJob(torch, parser.parse_args([*words, *fault.argv]), 1).device.index
        places.setdefault((os.environ["NCCL_HOSTID"], index), []).append(rank)
    assert [found for found in places.values() if len(found) > 1] == [
        injection.culprits(fault, ranks - 1, ranks, split)
    ]


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [({}, 2), ({"simulate_hosts": 3}, 3), ({"simulate_hosts": 2}, 2), ({"ranks": 8, "simulate_hosts": 4}, 8)],
)
def test_every_simulated_host_has_a_rank(monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], ranks: int) -> None:
    monkeypatch.setattr(probe, "_gpus", lambda case, python: asyncio.sleep(0, 2))
    assert asyncio.run(probe.plan_test(Case(), ProbeOptions(backend="nccl", **asked))).ranks == ranks


@pytest.mark.parametrize(
    ("fault", "asked", "backend"),
    [
        ("rank_late", {"ranks": 4}, "gloo"),
        ("rank_late", {"ranks": 4, "simulate_hosts": 2}, "nccl"),
        ("rank_late", {"ranks": 2}, "nccl"),
        ("rank_late", {}, "nccl"),
        ("lossy_link", {}, "nccl"),
        ("lossy_link", {"ranks": 4}, "nccl"),  # two hosts share the two GPUs
        ("lossy_link", {"ranks": 6}, "gloo"),
        ("own_name_loopback", {}, "gloo"),
    ],
)
def test_with_too_few_gpus_the_lab_breaks_the_job_over_gloo(
    monkeypatch: pytest.MonkeyPatch, fault: str, asked: dict[str, int], backend: str
) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    async def started(case: Case, plan: Plan, on_record: object) -> None:
        raise Stop(plan.backend)

    monkeypatch.setattr(probe, "_gpus", lambda case, python: asyncio.sleep(0, 2))
    monkeypatch.setattr(probe, "execute", started)
    with pytest.raises(Stop, match=backend):
        asyncio.run(injection.inject(Case(), fault, **asked))


@pytest.mark.parametrize(("gpus", "ranks"), [(2, 2), (2, 4), (1, 2), (3, 2), (4, 4), (4, 8)])
def test_hosts_with_networks_of_their_own_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int
) -> None:
    """Each begins behind those of the host before it, so that nobody shares one where there are enough."""
    parser, here, said = argparse.ArgumentParser(), ranks // 2, list[dict[str, Any]]()
    inject.add_options(parser)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(wire, "send", lambda kind, **record: said.append({"kind": kind, **record}))
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    places = set()
    for rank in range(ranks):
        told = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here}
        for name, value in {**told, "NCCLKIT_HOST": f"node-{rank // here + 1}"}.items():
            monkeypatch.setenv(name, str(value))
        options = parser.parse_args(["--folder", "", "--backend", "nccl"])
        places.add((rank // here, inject.LabJob(torch, options, 1).device.index))
    assert len(places) == ranks and len({index for _, index in places}) == min(gpus, ranks)
    assert "NCCL_HOSTID" not in os.environ  # they have host names of their own
    phases = [phase_event(row) for row in said]
    assert sharing(phases, {event.rank: event.host for event in phases}) == (gpus < ranks)


def phase_event(row: dict[str, Any]) -> Event:
    """The event of a record, as its reader makes it: fields of others are dropped."""
    fields = {name: row[name] for name in WorkerPhase.__struct_fields__ if name in row}
    return Event("worker.phase", host=row["hostid"], rank=row["rank"], data=fields)


@pytest.mark.parametrize(("asked", "ranks"), [({}, 2), ({"ranks": 3}, 4), ({"ranks": 4}, 4)])
def test_as_many_ranks_on_each_host(monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], ranks: int) -> None:
    monkeypatch.setattr(probe, "_gpus", lambda case, python: asyncio.sleep(0, 2))
    plan = asyncio.run(probe.plan_test(Case(), ProbeOptions(backend="nccl", network={"hosts": 2}, **asked)))
    assert plan.ranks == ranks and plan.network == {"hosts": 2} and "--simulate-hosts" not in plan.argv
    with pytest.raises(NcclkitError, match=r"6 NCCL ranks need 3 GPUs.*at most 4 ranks, or use gloo"):
        asyncio.run(probe.plan_test(Case(), ProbeOptions(backend="nccl", network={"hosts": 2}, ranks=5)))


def test_hosts_of_their_own_are_not_split_once_more() -> None:
    with pytest.raises(NcclkitError, match="leave --simulate-hosts out"):
        asyncio.run(injection.inject(Case(), "lossy_link", simulate_hosts=2))


def test_a_fault_of_gpus_says_how_few_can_carry_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_gpus", lambda case, python: asyncio.sleep(0, 1))
    with pytest.raises(NcclkitError, match="--simulate-hosts 4"):
        asyncio.run(injection.inject(Case(), "gpu_memory_full", ranks=4))


def test_more_ranks_than_gpus_are_told_of_simulated_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_gpus", lambda case, python: asyncio.sleep(0, 2))
    with pytest.raises(
        NcclkitError, match=r"5 NCCL ranks need 5 GPUs.* sees 2; ask for at most 2 .*--simulate-hosts 3"
    ):
        asyncio.run(probe.plan_test(Case(), ProbeOptions(backend="nccl", ranks=5)))


def test_gloo_cannot_be_told_of_several_hosts() -> None:
    with pytest.raises(NcclkitError, match="for NCCL only"):
        asyncio.run(injection.inject(Case(), "healthy", backend="gloo", simulate_hosts=2))


def test_a_job_reads_its_data_in_order_and_goes_on_where_a_checkpoint_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    inject.add_options(parser)
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    job, again = (inject.LabJob(torch, parser.parse_args(["--folder", "", "--backend", "gloo"]), 6) for _ in range(2))
    batches = [job.next_batch() for _ in range(11)]
    assert torch.equal(torch.cat(batches[:8]), job.data) and torch.equal(batches[8], job.data[:32])
    again.position = 5 * 32
    assert all(torch.equal(again.next_batch(), batch) for batch in batches[5:]) and again.position == job.position


@pytest.mark.parametrize("fault", catalogue.FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_says_what_it_does_and_is_known_to_its_job(fault: catalogue.Fault) -> None:
    net = {"hosts": 2, "wrong": fault.net} if fault.net else {}
    plan = Plan(fault.name, (fault.job, "--backend", "gloo"), 2, "gloo", sys.executable, 60, network=net)
    assert runs.changed(plan, {"fix": fault.cause}).argv[-2:] == ("--fix", fault.cause)
    assert fault.says and not fault.says.endswith(".") and len(fault.says) < 120
    assert not fault.cause or (ROOT / "ncclkit" / "causes" / f"{fault.cause}.py").exists()
