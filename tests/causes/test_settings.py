"""Advice names what this case has: its limit, its framework, its entry of the GID table, its script, its disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ncclkit.analysis.frames import FRAMEWORKS
from ncclkit.causes import catalogue
from ncclkit.causes._settings import BATCHES, TIMEOUTS, compare_calls, raise_timeout, script, smaller_batch
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, fields_of
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
        ("", 30_000, "timeout=timedelta(seconds=600)"),
        ("", None, "timeout=timedelta(seconds=1800)"),
        ("lightning", 600_000, "DDPStrategy(timeout=timedelta(seconds=1800))"),
        ("transformers", 900_000, "ddp_timeout=1800"),
        ("megatron", 10_000, "--distributed-timeout-minutes 10"),
        ("wenet", 30_000, "train.py --timeout 600"),
        ("recbole", 600_000, "timeout=timedelta(seconds=1800)"),
    ],
)
def test_a_limit_is_raised_from_what_it_is(package: str, limit: int | None, line: str) -> None:
    wait = Event("c10d.timeout", "", rank=0, data={"timeout_ms": limit})
    job = case(wait, stack(f"/v/site-packages/{package or 'torch'}/loop.py", "/home/me/fit.py"))
    assert line in raise_timeout(job, "")[0].code and smaller_batch(job) == BATCHES[package]


HOUR = Event("c10d.timeout", "", "a.log", 5, rank=0, data={"timeout_ms": 3_600_000, "op": "ALLREDUCE", "seq": 7})
LATE = {"seconds": {"3": 4000.0}, "worst": 3}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ((), ""),  # nothing is known of the phase: no number is better than another
        ((Event("progress", "step 9", "a.log", 2, rank=1, data={"step": 9}),), ""),
        ((Event("progress", "step 9", "a.log", 9, rank=1, data={"step": 9}),), "seconds=7200"),
        ((Event("progress", "Evaluating:  40%|##  | 4/10 [1:20:00<2:00:00]", "b.log", 2, rank=1),), "seconds=9600"),
        ((Event("flight.late", "", "fr", 0, data=LATE),), "seconds=8000"),
    ],
    ids=["nothing known", "a step before", "it went on", "a measured loop", "a measured lag"],
)
def test_above_half_an_hour_only_what_was_measured_or_seen_is_advised(more: tuple[Event, ...], line: str) -> None:
    """A log with 3,600 s was told 14,400 s, twice."""
    codes = [advice.code for advice in raise_timeout(case(HOUR, *more), "")]
    assert len(codes) == bool(line) and all(line in code for code in codes)


@pytest.mark.parametrize("cause", ["slow_rank", "timeout_too_short"])
@pytest.mark.parametrize("limit", [30_000, 600_000, 3_600_000])
def test_a_longer_timeout_is_never_the_only_advice(cause: str, limit: int) -> None:
    waits = [replace(HOUR, rank=rank, data={**fields_of(HOUR), "timeout_ms": limit}) for rank in range(3)]
    finding = catalogue()[cause].diagnose(case(*waits))
    told = [advice for advice in finding.advice if "Raise the timeout" in advice.do]
    assert finding.verdict == "found" and len(finding.advice) > len(told) == (limit < 3_600_000)
    assert not any("14" in advice.code for advice in told)


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
    ("kind", "free", "place"), [("xfs", GIB * 9, "/scratch"), ("nfs4", GIB * 9, ""), ("xfs", 9, "")]
)
def test_caches_go_to_a_local_disk_that_has_room(kind: str, free: int, place: str) -> None:
    full = Event("system.error", "No space left on device: '/data/ck.pt'", rank=0, data={"what": "no_space"})
    disk = {"storage__tmp__type": kind, "storage__tmp__free": free, "storage__tmp__path": "/scratch"}
    advice = catalogue()["disk_or_io"].diagnose(case(full, **disk)).advice[0]
    # a folder that nobody knows is no part of a command
    assert ("export TMPDIR=" in advice.command) == bool(place) and place in advice.command


def test_all_switches_that_are_set_are_taken_away_together() -> None:
    (advice,) = judged(ROOT / "slow_transport" / "found-sockets")[0].findings[0].advice
    assert advice.change == {"unset": ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]}


def test_a_dataset_larger_than_the_memory_is_mapped_or_sharded_before_anything_else() -> None:
    """186 GiB in 23 GiB was answered with fewer workers, with which it does not fit either."""
    host = {"memory__total": 23 * GIB, "memory__swap": [], "limits__cgroup__memory": -1, "gpu__count": 0}
    large = catalogue()["host_oom"].diagnose(case(**host, job__dataset=186 * GIB, job__ranks=2))
    assert [advice.do.partition(" ")[0] for advice in large.advice[:2]] == ["Memory-map", "Halve"]
    assert "shard" in large.advice[0].do and "186 GiB" in large.advice[0].do
    small = catalogue()["host_oom"].diagnose(case(**host, job__dataset=GIB, job__batch=GIB, job__workers=8))
    assert small.verdict == "found" and small.advice[0].do.startswith("Halve")


def test_a_crash_whose_stack_is_known_is_not_told_to_get_that_stack() -> None:
    crash = Event("elastic.exit", "exitcode: -11", rank=1, data={"exitcode": -11, "signal": 11, "local_rank": 1})
    blind = catalogue()["rank_exception"].diagnose(case(crash))
    assert "PYTHONFAULTHANDLER" in blind.advice[0].env
    for where in (replace(stack("/home/me/ops.py"), rank=1), stack("/home/me/ops.py")):
        seen = catalogue()["rank_exception"].diagnose(case(replace(crash, rank=where.rank), where))
        assert not seen.advice[0].env and "FAULTHANDLER" not in str(seen.advice)
        assert "native call under ops.py:9" in seen.advice[0].do


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ((), True),
        ((Event("worker.phase", data={"phase": "plan", "ranks": 2, "backend": "gloo"}),), False),
        ((Event("gloo.closed", "Connection closed by peer", data={"address": "", "how": ""}),), False),
        ((Event("gloo.closed", "x", data={}), Event("nccl.version", data={"version": "2.28", "cuda": "13"})), True),
    ],
    ids=["not known", "gloo planned", "gloo speaks", "both speak"],
)
def test_torchs_own_check_of_calls_is_not_advised_over_gloo(more: tuple[Event, ...], asked: bool) -> None:
    """It crashes there."""
    advice = compare_calls(case(*more))
    assert ("DETAIL" in str(advice.env)) == asked and bool(advice.code) != asked


@pytest.mark.parametrize(
    "event",
    [
        Event("gloo.size_mismatch", "4 vs 8", rank=0, data={"a": 4, "b": 8}),
        Event("gloo.timeout", "Timed out", rank=0, data={"timeout_ms": 600_000, "what": "recv"}),
    ],
    ids=["shape_mismatch", "rank_divergence"],
)
def test_no_cause_advises_it_over_gloo(event: Event) -> None:
    told = [verdict for cause in catalogue().values() if (verdict := cause.diagnose(case(event))).verdict == "found"]
    assert told and not [f.cause for f in told for advice in f.advice if "DETAIL" in str((advice.env, advice.check))]
