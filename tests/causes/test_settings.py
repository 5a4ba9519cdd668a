"""Advice names what this case has: its limit, its framework, its entry of the GID table, its script, its disk."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis.frames import FRAMEWORKS
from ncclkit.causes import catalogue
from ncclkit.causes._settings import BATCHES, TIMEOUTS, raise_timeout, script, smaller_batch
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact
from tests.causes.hosts import GIB, PORT
from tests.causes.specimens import ROOT, judged


def case(*events: Event, **facts: Any) -> Case:
    made = Case()
    made.events = list(events)
    made.facts = [Fact(name.replace("__", "."), value, host="node-1") for name, value in facts.items()]
    return made


def stack(*files: str) -> Event:
    """The innermost frame first."""
    frames = [{"file": file, "line": 9, "func": "f"} for file in files]
    return Event("stack", "", rank=0, data={"frames": frames})


def test_every_framework_takes_both_settings() -> None:
    assert {*TIMEOUTS} == {*BATCHES} == {*FRAMEWORKS, ""}


@pytest.mark.parametrize(
    ("package", "limit", "line"),
    [
        ("", 30_000, "timeout=timedelta(seconds=120)"),
        ("", None, "timeout=timedelta(seconds=7200)"),
        ("lightning", 600_000, "DDPStrategy(timeout=timedelta(seconds=2400))"),
        ("transformers", 1_800_000, "ddp_timeout=7200"),
        ("megatron", 10_000, "--distributed-timeout-minutes 1"),
        ("wenet", 30_000, "train.py --timeout 120"),
        ("recbole", 600_000, "timeout=timedelta(seconds=2400)"),
    ],
)
def test_a_limit_is_raised_from_what_it_is(package: str, limit: int | None, line: str) -> None:
    wait = Event("c10d.timeout", "", rank=0, data={"timeout_ms": limit})
    job = case(wait, stack(f"/v/site-packages/{package or 'torch'}/loop.py", "/home/me/fit.py"))
    assert line in raise_timeout(job, "").code and smaller_batch(job) == BATCHES[package]


def test_the_script_is_the_outermost_file_of_the_user() -> None:
    assert script(case(stack("/v/site-packages/torch/x.py", "/home/me/data.py", "/home/me/fit.py"))) == "fit.py"
    assert script(Case()) == "train.py"


REFUSED = Event(
    "nccl.warn", "Call to ibv_modify_qp failed: errno 22", rank=0, data={"family": "ib_setup", "call": "x", "errno": 22}
)


@pytest.mark.parametrize(
    ("ports", "index"), [([PORT], {"NCCL_IB_GID_INDEX": "3"}), ([PORT | {"gids": []}], {}), ([], {})]
)
def test_the_entry_of_the_gid_table_is_one_that_is_there(ports: list[Any], index: dict[str, str]) -> None:
    first, second = catalogue()["ib_config"].diagnose(case(REFUSED, net__rdma=ports)).advice
    assert first.env == index and second.env.get("NCCL_IB_HCA") == ("mlx5_0" if ports else None)


def test_the_limit_of_files_is_what_the_ranks_need() -> None:
    full = Event("system.error", "Too many open files", rank=511, data={"what": "too_many_files"})
    assert "ulimit -n 65536" in catalogue()["fd_limit"].diagnose(case(full)).advice[0].command
    last = Event("system.error", "Too many open files", rank=4095, data={"what": "too_many_files"})
    assert "ulimit -n 262144" in catalogue()["fd_limit"].diagnose(case(last)).advice[0].command


@pytest.mark.parametrize(
    ("kind", "free", "place"), [("xfs", GIB * 9, "/scratch"), ("nfs4", GIB * 9, "<"), ("xfs", 9, "<")]
)
def test_caches_go_to_a_local_disk_that_has_room(kind: str, free: int, place: str) -> None:
    full = Event("system.error", "No space left on device: '/data/ck.pt'", rank=0, data={"what": "no_space"})
    disk = {"storage__tmp__type": kind, "storage__tmp__free": free, "storage__tmp__path": "/scratch"}
    advice = catalogue()["disk_or_io"].diagnose(case(full, **disk)).advice[0]
    assert f"export TMPDIR={place}" in advice.command


def test_all_switches_that_are_set_are_taken_away_together() -> None:
    (advice,) = judged(ROOT / "slow_transport" / "found-sockets")[0].findings[0].advice
    assert advice.change == {"unset": ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]}
