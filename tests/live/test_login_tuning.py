"""04_tuning on a login node: the page goes on, and its form submits; which interfaces gloo may take."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.agent.run import sweep as ranks
from ncclkit.cli.parser import command_parser
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.core.tuning import Comparison, Setting, Sweep
from ncclkit.live import submit, tune
from ncclkit.views.tune import SweepView
from tests.live.test_submit import commands, fake

__all__ = ["fake"]


@pytest.fixture
def login(fake: Path) -> Path:
    commands(fake, sbatch="echo 7", sinfo="echo gpu", scontrol="exit 1", squeue="exit 1", sacctmgr="exit 1")
    return fake


def test_the_page_goes_on_without_a_sweep(login: Path, tmp_path: Path) -> None:
    """What follows the form in 04: carriers, apply, the steps of a script, a planner."""
    case = Case.open(tmp_path / "case")
    form: Any = nk.form.tune(case)
    assert form.start.description == "Submit" and "ncclkit submit -N 2 tune" in form.layout()[0].value
    tuned = asyncio.run(form.run())
    assert "`ncclkit submit tune`" in tuned.summary and "login node" in tuned.summary
    assert nk.show.carriers(tuned).summary == "Nothing is to be set: no setting was measured"
    assert asyncio.run(nk.form.apply(case, tuned).run()).summary == "Nothing is applied: no setting was measured"
    step: Any = nk.form.step(case, "python train.py")
    assert "ncclkit submit step" in asyncio.run(step.run()).summary
    assert nk.show.planner(case, "timeout").summary
    assert not (tmp_path / "case" / "jobs").exists(), "nothing is submitted unasked"


def test_submit_sends_what_the_fields_say(login: Path, tmp_path: Path) -> None:
    case = Case.open(tmp_path / "a case")
    form: Any = nk.form.tune(case, "NCCL_PROTO=LL channels=32", "8,64KiB", "", True, 60.0, ranks=4, timeout=90.0)
    form.job["partition"].value, form.job["nodes"].value = "gpu", 2
    parsed = command_parser().parse_args(form.command())
    assert parsed.settings == ["NCCL_PROTO=LL", "channels=32"] and parsed.sizes == [8, 65536]
    assert (parsed.inherited, parsed.budget, parsed.ranks, parsed.timeout) == (True, 60.0, 4, 90.0)
    assert (parsed.op, parsed.case) == ("all", str(tmp_path / "a case"))
    job = form._submit()
    text = (job.folder / "job.sbatch").read_text()
    assert "--partition=gpu" in text and "#SBATCH --nodes=2" in text and " -m ncclkit tune " in text
    form.job["time"].value = "soon"
    assert form.start.disabled


def kept(case: Case) -> Sweep:
    one = Comparison(Setting({"NCCL_PROTO": "LL"}), "all_reduce", 8, (10.0,) * 8, (5.0,) * 8)
    return tune._keep_sweep(case, Sweep("nccl", 4, 2, (one,), (one,)))


def test_the_sweep_of_a_job_comes_back_and_an_older_one_does_not(
    login: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.open(tmp_path / "case")
    found = kept(case)
    assert tune.last_sweep(case, time.time()) == found
    assert tune.last_sweep(case, time.time() + 3600) is None
    submit.submit(case, ["tune"], submit.JobOptions())
    monkeypatch.setattr(submit, "job_state", lambda job, **_: submit.JobState("7", "COMPLETED", status=0))
    monkeypatch.setattr(submit, "SEEN", 0.0)
    tuned = asyncio.run(nk.form.tune(case).run())
    assert isinstance(tuned, SweepView) and tuned.sweep == found
    applied: Any = nk.form.apply(case, tuned)
    assert "`ncclkit submit tune` measures NCCL_PROTO=LL on nodes" in asyncio.run(applied.run()).summary
    for folder in case.folders("sweeps"):
        (folder / "sweep.json").write_text("{}")
    with pytest.raises(NcclkitError, match="holds no sweep"):
        tune.last_sweep(case, 0.0)


# ---------------------------------------------------------------- interfaces of gloo


def interface(name: str, kind: str, *addresses: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "state": "up", "addresses": list(addresses), "mtu": 1500, "speed": None}


def offered(monkeypatch: pytest.MonkeyPatch, *hosts: list[dict[str, Any]]) -> list[str]:
    """The interfaces that a sweep over gloo would compare on these hosts."""
    monkeypatch.setattr(tune.launchers, "node_count", lambda: len(hosts))
    facts = [Fact("net.interfaces", rows, host=f"n{number}") for number, rows in enumerate(hosts)]
    plan = Plan("tune", (), 2 * len(hosts), "gloo", "python", 60.0)
    found = [one.env["GLOO_SOCKET_IFNAME"] for one in tune.candidates(facts, plan)]
    return [name for name in found if "," not in name]


LO = interface("lo", "loopback", "127.0.0.1/8")


def test_an_interface_that_all_hosts_have_is_offered_and_never_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [LO, interface("eth0", "veth", "10.0.0.1/24"), interface("ib0", "physical", "10.1.0.1/24")]
    second = [LO, interface("eth0", "veth", "10.0.0.2/24"), interface("br0", "bridge", "10.2.0.2/24")]
    assert offered(monkeypatch, first, second) == ["eth0"]
    assert offered(monkeypatch, [LO], [LO]) == []
    assert offered(monkeypatch, first) == ["lo", "ib0", "eth0"]
    assert offered(monkeypatch, []) == ["lo"]


def test_a_bridge_of_each_host_for_itself_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    own = interface("virbr0", "bridge", "192.168.122.1/24")
    joined = [interface("br0", "bridge", "10.0.0.1/24"), interface("br0", "bridge", "10.0.0.2/24")]
    assert offered(monkeypatch, [own, joined[0]], [own, joined[1]]) == ["br0"]


@pytest.mark.parametrize(("backend", "seconds"), [("gloo", 20), ("nccl", 120)])
def test_a_setting_that_cannot_connect_costs_seconds_and_is_struck_off(
    monkeypatch: pytest.MonkeyPatch, backend: str, seconds: int
) -> None:
    limits: list[timedelta] = []

    def refuse(timeout: timedelta, **_: Any) -> None:
        limits.append(timeout)
        raise RuntimeError("Gloo connectFullMesh failed")

    job = SimpleNamespace(
        timeout=timedelta(seconds=120), options=SimpleNamespace(backend=backend), rank=0, device="cpu",
        dist=SimpleNamespace(new_group=refuse),
    )  # fmt: skip
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(ranks.wire, "send", lambda *_, **__: None)
    monkeypatch.setattr(ranks.Groups, "all_succeeded", lambda self, number, problem: bool(told.append((number, problem))))
    groups = ranks.Groups(None, job, [{}, {"env": {"GLOO_SOCKET_IFNAME": "eth9"}}])
    assert groups.usable == [] and told[1] == (1, "Gloo connectFullMesh failed")
    assert limits == [timedelta(seconds=seconds)] * 2
