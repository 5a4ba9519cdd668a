"""A live test that is slower than it should be says so everywhere, with what else used its host; others are silent."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ncclkit as nk
from ncclkit import evidence
from ncclkit.analysis.speed import MeasuredSpeed, busy_cores, disturbing, measured_speed
from ncclkit.cli import main
from ncclkit.cli.verbs import probe
from ncclkit.causes import cpu_contention
from ncclkit.causes.engine import diagnose
from ncclkit.core import bandwidth
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Measurement
from ncclkit.core.runs import Plan, Run
from ncclkit.live import tune
from tests.views.test_faces import Page

RECORDED = Path(__file__).parent / "recorded" / "bfloat16"
RUN = "2-collectives"
SAID = "slower than it should be"


def recorded(tmp_path: Path, share: float = 1.0, busy: float = 0.0) -> Case:
    """The live test recorded on four H200, at this share of its speed, with this load on GPU 1 before it began."""
    folder = tmp_path / "case"
    shutil.copytree(RECORDED, folder)
    rows = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    for row in rows:
        large = row["bytes"] >= 1 << 26
        row.update(busbw=row["busbw"] * share, time_us=row["time_us"] / share) if large else None
    (folder / "measurements.jsonl").write_text("\n".join(map(json.dumps, rows)))
    packed = folder / "runs" / RUN / "telemetry.jsonl.gz"
    samples = [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    for sample in samples:
        if not sample["ranks"]:
            sample["gpus"][1][1] = busy
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, samples)).encode()))
    case = Case.open(folder)
    case.add(evidence.read([folder / "runs"]).events)
    return case


def speed_of(case: Case) -> MeasuredSpeed:
    speed = measured_speed(case.latest())
    assert speed is not None
    return speed


@pytest.mark.parametrize("share", [0.09, 0.19, 0.45])
def test_below_half_of_nvlink_is_amber_in_every_face(tmp_path: Path, share: float) -> None:
    case = recorded(tmp_path, share)
    found = diagnose(case)
    assert (found.verdict, found.exit_code) == ("slow", 1)
    assert SAID in found.headline and SAID in found.text()
    assert found.to_dict()["verdict"] == "slow" and SAID in found.to_dict()["measured"]
    banner = nk.show.banner(case, found)
    assert "nk-edge-slow" in banner.static() and "▲ slower than it should be" in words(banner)
    assert "Nothing needs to be done" not in words(banner)


def test_the_speed_that_was_recorded_is_healthy(tmp_path: Path) -> None:
    case = recorded(tmp_path)
    found = diagnose(case)
    assert (found.verdict, found.exit_code, found.slow) == ("healthy", 0, "")
    assert speed_of(case).warning == "" and "measured" not in found.to_dict()


def test_a_fast_small_message_hides_no_slow_large_one(tmp_path: Path) -> None:
    """Where others take turns on the GPUs the fastest message is none of the large ones."""
    case = recorded(tmp_path, 0.09)
    best = max((row for row in case.measurements if row.op == "all_reduce"), key=lambda row: row.busbw or 0.0)
    assert best.bytes < 1 << 26 and speed_of(case).judgement.best.bytes >= 1 << 26 and speed_of(case).slow


def test_a_gpu_that_was_busy_before_the_ranks_came_is_named(tmp_path: Path) -> None:
    case = recorded(tmp_path, 0.12, busy=97.0)
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["gpus"]) == ("gpu_shared", "likely", ("1",))
    assert SAID in first.say and "GPU 1 was busy 97 % of the time before a rank came" in first.say


def test_a_busy_gpu_beside_a_good_speed_accuses_nobody(tmp_path: Path) -> None:
    found = diagnose(recorded(tmp_path, busy=97.0))
    assert found.verdict == "healthy" and found.findings == ()


NVLINK = bandwidth.Expectation(370.8, "nvlink", "18 links.")
LOOPBACK = bandwidth.Expectation(1.27, "loopback", "TCP.", usual=0.4)
ROW = Measurement("all_reduce", 1 << 28, "float32", 4, 1, "nccl", 1.0, None, None, 1.0, 1.0, 0, run="1-a")


def run_of(busbw: float, bound: bandwidth.Expectation = NVLINK, others: str = "", **more: Any) -> Run:
    row = replace(ROW, busbw=busbw, expected=bound.value, **more)
    return Run(
        Plan("a", ("collective",), 4, "nccl", "", 9.0), Path("1-a"), "done", 1.0, (row,), {ROW.op: bound}, "", others
    )


def test_a_bandwidth_has_its_message_size_its_hosts_and_the_interface_that_was_named() -> None:
    said = run_of(40.0, hosts=2).summary
    assert said.startswith("all_reduce on 4 ranks over nccl on 2 hosts: 40.00 GB/s busbw with 256 MiB messages at best")
    one = run_of(40.0)
    assert one.summary.startswith("all_reduce on 4 ranks over nccl: 40.00 GB/s busbw with 256 MiB messages")
    named = replace(one, plan=replace(one.plan, env={"NCCL_SOCKET_IFNAME": "eth0"}))
    assert "over nccl, interface eth0: " in named.summary
    simulated = replace(one.plan, network={"hosts": 2})
    assert " hosts" not in replace(run_of(40.0, hosts=2), plan=simulated).summary


def test_the_run_itself_says_it_with_what_others_used() -> None:
    slow = run_of(40.0, others=" GPU 1 was busy.")
    assert f"11 % of the 371 GB/s that NVLink allows: {SAID}. GPU 1 was busy." in slow.summary
    assert run_of(340.0).warning == run_of(200.0).warning == ""
    assert run_of(40.0, wrong=3).warning == "" and "WRONG" in run_of(40.0, wrong=3).summary
    assert run_of(40.0, bytes=1 << 20).warning == "", "a small message says nothing of a link"


@pytest.mark.parametrize(("busbw", "status"), [(40.0, 1), (340.0, 0)])
def test_the_exit_status_of_probe_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, busbw: float, status: int
) -> None:
    async def measured(case: Case, *_: Any) -> Run:
        run = replace(run_of(busbw), folder=tmp_path / "runs" / "1-a")
        end = Event("run.end", "done", f"{run.folder}/status.json", data={"reason": "done"})
        case.add([*run.measurements, end, Fact("gpu.count", 4)])
        return run

    monkeypatch.setattr(probe, "run_live_test", measured)
    assert main(["probe", "--case", str(tmp_path)]) == status
    said = capsys.readouterr().out
    assert (SAID in said) == bool(status)
    assert main(["probe", "--json", "--case", str(tmp_path)]) == status
    assert (SAID in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("busbw", "bound", "said"),
    [
        (340.0, NVLINK, "the path is used well"),
        (280.0, NVLINK, "76 % is a little less than the usual 80 % or more"),
        (40.0, NVLINK, "clearly less than it should"),
        (0.60, LOOPBACK, "the path is used well"),
        (1.50, LOOPBACK, "there is no reference for this figure"),
    ],
)
def test_a_path_is_used_well_only_by_its_ratio(busbw: float, bound: bandwidth.Expectation, said: str) -> None:
    advice = tune.advise([replace(ROW, busbw=busbw, bytes=1 << 28)], bound)
    assert any(said in one.do for one in advice), advice
    assert sum("used well" in one.do for one in advice) == ("used well" in said)


def test_small_messages_do_not_show_that_a_path_is_used_well() -> None:
    (advice,) = tune.advise([replace(ROW, busbw=40.0, bytes=1 << 24)], NVLINK)
    assert advice.do.startswith("Measure larger messages")


def test_what_is_exceeded_was_no_maximum() -> None:
    """Measured 1.50 GB/s beside 1.27 GB/s "at most"."""
    run = run_of(1.50, LOOPBACK, bytes=1 << 24, backend="gloo")
    (judged,) = bandwidth.judgements(run.measurements, run.expectations)
    faces = [judged.summary, str(run.measurements[0]), nk.show.curve(run).summary, words(nk.show.measurements(run))]
    assert not [face for face in faces if "118" in face or "normal" in face], faces
    assert "no maximum" in judged.summary and "no maximum" in nk.show.curve(run).summary
    assert not (judged.normal or judged.used_well or judged.low)
    assert "of about 1.27 GB/s busbw = 47 %" in bandwidth.judge_curve([replace(ROW, busbw=0.6)], LOOPBACK).summary  # type: ignore[union-attr]


def words(view: nk.views.View) -> str:
    return " ".join(Page(view.static()).words.split())


def facts(**more: Any) -> list[Fact]:
    known = {"net.loopback.bandwidth": 3.0, "net.loopback.cost": 0.3, "cpu.usable": 2, **more}
    return [Fact(name, value) for name, value in known.items()]


def test_a_measured_reference_has_an_interval() -> None:
    bound = bandwidth.expect("all_reduce", "gloo", 2, facts(**{"net.loopback.interval": [1.5, 3.0]}))
    assert (bound.least, bound.value) == (1.5, 3.0) and "1.50 to 3.00 GB/s" in bound.words
    low, high = (bandwidth.judge_curve([replace(ROW, busbw=speed)], bound) for speed in (0.6, 0.4))
    assert low and high and not low.low and high.low, "what is low is so at the lower end"


@pytest.mark.parametrize("interval", [None, [1], [3.0, 1.0], "ab", [None, 2], [0, 1]])
def test_an_interval_that_is_none_is_left_alone(interval: Any) -> None:
    bound = bandwidth.expect("all_reduce", "gloo", 2, facts(**{"net.loopback.interval": interval}))
    assert bound.least == bound.value == 3.0


BUSY = "no reference: this host is busy (load 13.6 on 2 cores)"


def test_on_a_busy_host_there_is_no_reference() -> None:
    known = [Fact("net.loopback.bandwidth", None, why=BUSY), Fact("cpu.usable", 2)]
    bound = bandwidth.expect("all_reduce", "gloo", 2, known)
    assert (bound.value, bound.words) == (None, "No reference: this host is busy (load 13.6 on 2 cores).")


def used(cores_used: float | None, **more: Any) -> Event:
    data: Mapping[str, Any] = {"cores": 2, "load": 13.6, "ranks": 2, "gpus": {}, "holders": [], **more}
    return Event("telemetry.others", "others", "/c/runs/1-a/t", 9, data={"cores_used": cores_used, **data})


@pytest.mark.parametrize(
    ("event", "busy"),
    [
        (used(1.7), True),
        (used(0.4), False),
        (used(None), False),
        (used(40.0, cores=64), False),  # the ranks have cores enough beside that
        (used(63.5, cores=64), True),
        (used(0.2, ranks=8), False),
    ],
)
def test_who_left_the_ranks_too_few_cores_leaves_no_reference(event: Event, busy: bool) -> None:
    said = busy_cores(disturbing([event]))
    assert bool(said) == busy
    assert (bandwidth.without_reference(LOOPBACK, said).value is None) == busy
    assert bandwidth.without_reference(NVLINK, said) == NVLINK, "which follows from the links"


def test_load_is_a_risk_of_the_host_and_of_a_test_beside_it() -> None:
    loaded = Case()
    loaded.facts = [
        Fact("cpu.usable", 2),
        Fact("cpu.total", 2),
        Fact("cpu.load", [13.6, 9.0, 4.0]),
        Fact("cpu.pressure", 99.0),
    ]
    finding = cpu_contention.diagnose(loaded)
    assert finding.verdict == "found" and "13.6 processes on average want its 2 CPU cores" in finding.say
    loaded.facts[2:] = [Fact("cpu.load", [0.6, 0.9, 4.0]), Fact("cpu.pressure", 2.0)]
    assert cpu_contention.diagnose(loaded).verdict == "clear"
    loaded.events = [used(1.7), Event("run.end", "done", "/c/runs/1-a/status.json", data={"reason": "done"})]
    found = diagnose(loaded)
    assert found.verdict == "healthy" and [risk.cause for risk in found.risks] == ["cpu_contention"]
    assert "others used 1.7 of its 2 cores (load 13.6)" in found.risks[0].say
    loaded.events[0] = used(0.1)
    assert diagnose(loaded).risks == ()


def test_a_load_that_leaves_cores_free_is_no_risk() -> None:
    many = Case()
    many.facts = [
        Fact("cpu.usable", 2),
        Fact("cpu.total", 64),
        Fact("cpu.load", [13.6, 9.0, 4.0]),
        Fact("cpu.pressure", 99.0),
    ]
    assert cpu_contention.diagnose(many).verdict == "clear"
