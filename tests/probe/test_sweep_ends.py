"""How a sweep begins and ends: its plan, its budget, what interrupts it, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.run import sweep as agent
from ncclkit.cli import main
from ncclkit.cli.verbs.tune import _sweep_parts
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.core.runs import Plan, Run
from ncclkit.core.tuning import Comparison, Sweep, setting
from ncclkit.live import probe, tune
from ncclkit.live.launch import local
from ncclkit.live.options import ProbeOptions

MIB = 1 << 20
GLOO = ProbeOptions(backend="gloo", ranks=2)
TWICE, LOOP = setting("GLOO_SOCKET_IFNAME=lo,lo"), setting("GLOO_SOCKET_IFNAME=lo")
OWN = setting("OMP_NUM_THREADS=1")


def records(order: Sequence[int], op: str, size: int, factor: float = 0.5) -> list[dict[str, Any]]:
    """What a job says of one collective and size: settings take this part of the time of the default."""
    made: list[dict[str, Any]] = []
    for phase in ("choose", "decide"):
        for place, number in enumerate(order):
            time = 1000.0 * (factor if number > 0 else 1.0)
            laps = [time + turn % 3 for turn in range(16)]
            record = {"kind": "sweep", "setting": place, "op": op, "bytes": size, "phase": phase, "wrong": 0}
            made.append(record | {"times_us": laps})
    return [*made, {"kind": "sweep.pair", "number": 1, "of": 2, "op": op, "bytes": size}]


Job = Any
"""A stand-in for `SweepJobs.job`."""


def stands_in(patch: pytest.MonkeyPatch, then: Job) -> list[list[str]]:
    """Jobs that measure the first of two sizes of all_reduce, then do what is given; returns their words."""
    asked: list[list[str]] = []

    async def job(self: Any, plan: Plan, words: Sequence[str], numbers: Sequence[int], within: float = 0.0) -> str:
        asked.append([*words])
        for record in records(numbers, "all_reduce", 8):
            self.made.take(record, numbers)
        self.changed()
        return str(await then(self, numbers) or "")

    patch.setattr(tune.SweepJobs, "job", job)
    return asked


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gloo takes by itself is no setting of these tests."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(tune, "gloo_default", lambda machine: "eth7")


pytestmark = pytest.mark.usefixtures("interface")


async def forever(*_: Any) -> None:
    await asyncio.sleep(600)


def test_the_plan_is_said_before_the_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    began: list[int] = []

    async def then(*_: Any) -> None:
        began.append(len(said))

    stands_in(monkeypatch, then)

    def heard(record: dict[str, Any]) -> None:
        if record["kind"] == "sweep.say":
            said.append(record["say"])

    options = replace(GLOO, op="all_reduce")
    asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE], options, [8, MIB], on_record=heard))
    assert began == [1] and said[0].startswith("To measure on 2 pairs of collective and size: 1 setting shares one job")


def test_a_cancelled_sweep_keeps_and_shows_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in(monkeypatch, forever)
    shown: list[Sweep] = []

    async def cancelled() -> None:
        options = replace(GLOO, op="all_reduce")
        case = Case.open(tmp_path)
        task = asyncio.ensure_future(tune.sweep(case, [TWICE, OWN], options, [8, MIB], on_sweep=shown.append))
        while not shown:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancelled())
    growing, last = shown
    assert growing.unfinished == "" and [str(row.setting) for row in growing.advantages] == [str(TWICE)]
    assert last.unfinished == (
        "Incomplete: it was interrupted. Not measured: 1 of 2 pairs of collective and size, and 1 setting"
        " (OMP_NUM_THREADS=1)."
    )
    (folder,) = Case.open(tmp_path).folders("sweeps")
    kept = json.loads((folder / "sweep.json").read_text())
    assert kept["unfinished"] == last.unfinished and len(kept["comparisons"]) == 1
    assert (folder / "nccl.env").read_text() == "export GLOO_SOCKET_IFNAME=lo,lo\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_its_table(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def then(*_: Any) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(600)

    stands_in(monkeypatch, then)
    before = signal.getsignal(signal.SIGTERM)
    words = ["--op", "all_reduce", "--sizes", "8,1MiB", "--backend", "gloo", "--ranks", "2"]
    assert main(["tune", str(TWICE), *words, "--case", str(tmp_path)]) == 130
    assert signal.getsignal(signal.SIGTERM) == before
    told = capsys.readouterr()
    first, second, third = told.out.splitlines()[:3]
    assert first.startswith("Set GLOO_SOCKET_IFNAME=lo,lo: 50 % of all_reduce")
    assert second.startswith("Incomplete: it was interrupted. Not measured: 1 of 2 pairs")
    assert third == f"In the job's script: . {tmp_path.resolve()}/sweeps/1-tune/nccl.env"
    assert "8 B" in told.err and "50 % less with GLOO_SOCKET_IFNAME=lo,lo" in told.err, "row by row"


def test_a_job_that_fails_later_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def then(*_: Any) -> str:
        return "rank 1 failed"

    stands_in(monkeypatch, then)
    found = asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE], replace(GLOO, op="all_reduce"), [8, MIB]))
    assert found.unfinished.startswith("Incomplete: The sweep stopped: rank 1 failed. Not measured: 1 of 2 pairs")
    assert len(found.comparisons) == 1


def test_a_setting_that_ends_the_shared_job_is_struck_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the others, behind the pairs that are known."""

    async def then(self: Any, numbers: Sequence[int]) -> str:
        if 2 not in numbers:
            return ""
        begun = records(numbers, "all_reduce", MIB)[0]
        self.made.take(begun, numbers)
        self.made.take({"kind": "sweep.trying", "setting": numbers.index(2)}, numbers)
        return "rank 0 died of signal 11 (SIGSEGV)."

    asked = stands_in(monkeypatch, then)
    bad = setting("GLOO_SOCKET_IFNAME=eth9")
    found = asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE, bad], replace(GLOO, op="all_reduce"), [8, MIB]))
    assert [words[words.index("--after") + 1] for words in asked] == ["0", "1"]
    assert found.refused[str(bad)].startswith("the job ended when it was first used: rank 0 died of signal 11")
    assert [str(row.setting) for row in found.advantages] == [str(TWICE)] and not found.unfinished


def test_a_default_that_ends_the_job_strikes_nothing_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def job(self: Any, plan: Plan, words: Sequence[str], numbers: Sequence[int], within: float) -> str:
        self.made.take({"kind": "sweep.trying", "setting": 0}, numbers)
        return "no GPU"

    monkeypatch.setattr(tune.SweepJobs, "job", job)
    with pytest.raises(NcclkitError, match="The sweep stopped: no GPU"):
        asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE], GLOO, [8]))


def test_an_interface_that_is_none_is_struck_off_by_the_job_itself(tmp_path: Path) -> None:
    """Gloo connects when the group is made, and raises there; the others are measured in the same job."""
    told = [{}, {"env": {"GLOO_SOCKET_IFNAME": "nope9"}}, {"env": {"UNREAD": "1"}}]
    words = ("--ops", "all_reduce", "--sizes", "8", "--repeats", "2", "--decide", "2", "--all")
    argv = ("sweep", "--backend", "gloo", *words, "--settings", json.dumps(told))
    heard = asyncio.run(local.run_locally(Plan("sweep", argv, 2, "gloo", sys.executable, 100.0), tmp_path))
    made = tune.Measured()
    for record in heard:
        made.take(record, [0, 1, 2])
    assert heard[-1]["reason"] == "done"
    assert made.refused == {1: "Unable to find address for: nope9"}
    assert {key[0] for key in made.times["decide"]} == {0, 2} and made.pairs == {("all_reduce", 8)}
    assert not made.trying


class LateClock:
    """A clock by which the time is over in the third round."""

    rounds = 0

    def raise_if_late(self) -> None:
        self.rounds += 1
        if self.rounds > 2:
            raise agent.TimeUp


def test_time_is_up_between_two_rounds_of_a_pair() -> None:
    """On a busy host a pair may take minutes."""
    calls: list[int] = []
    timer = agent.Timer.__new__(agent.Timer)
    timer.clock, timer.cuda = LateClock(), False
    timer._round = calls.append
    with pytest.raises(agent.TimeUp):
        timer.rounds([0, 1], 16)
    assert calls == [[0, 1]] * 2


def test_seconds_since_the_job_was_asked_for_count() -> None:
    """Starting took 20 s of the budget; a clock that is an hour off counts for nothing."""
    assert 19 < agent._seconds_since(time.time() - 20) < 25
    assert agent._seconds_since(time.time() - 3600) == agent._seconds_since(time.time() + 9) == 0.0


def test_a_job_is_ended_soon_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the load: the job has a deadline, and what it had measured counts."""
    plans: list[Plan] = []
    began = time.monotonic()

    async def execute(case: Case, plan: Plan, keep: Any) -> Run:
        plans.append(plan)
        order = tune._with_controls([1])
        for record in records(order, "all_reduce", 8):
            keep(record)
        monkeypatch.setattr(tune.time, "monotonic", lambda: began + 31)
        return Run(plan, tmp_path, "deadline", 31.0, (), {}, "", "")

    monkeypatch.setattr(probe, "execute", execute)
    found = asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE], replace(GLOO, op="all_reduce"), [8, MIB]))
    assert plans[0].deadline <= 30 + tune.GRACE
    words = plans[0].argv
    assert float(words[words.index("--within") + 1]) <= 30 - tune.ANSWER
    assert float(words[words.index("--timeout") + 1]) <= 10
    assert found.notes == ("Time was up before 1 of 2 pairs of collective and size; `--budget` gives more.",)
    assert not found.unfinished and found.partial and len(found.advantages) == 1


def test_settings_that_no_time_is_left_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stands_in(monkeypatch, forever)
    found = asyncio.run(tune.sweep(Case.open(tmp_path), [OWN], GLOO, [8], budget=10))
    assert asked == [] and found.headline.startswith("Nothing was measured")
    said = "No time was left for 1 setting that a process keeps for its life (OMP_NUM_THREADS=1); --budget 120 may"
    assert found.notes == (f"{said} suffice.",)


def test_settings_with_jobs_of_their_own_are_tried_where_time_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def then(*_: Any) -> None:
        return None

    asked = stands_in(monkeypatch, then)
    found = asyncio.run(tune.sweep(Case.open(tmp_path), [TWICE, OWN], replace(GLOO, op="all_reduce"), [8]))
    assert len(asked) == 1 + 2 * tune.JOBS
    assert {str(one.setting) for one in found.comparisons if one.better} == {str(TWICE), str(OWN)}


@pytest.mark.parametrize(("seconds", "turns", "said"), [(35.0, 3, True), (65.0, 6, False), (1000.0, 8, False)])
def test_a_turn_that_would_end_after_the_budget_is_not_begun(
    seconds: float, turns: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns take 10 s; six are needed for a verdict, and eight are enough."""
    now = [1000.0]
    done: list[str] = []

    async def turn(self: Any, settings: Any, phase: str, order: Any) -> None:
        now[0] += 10
        done.append(phase)

    monkeypatch.setattr(tune.SweepJobs, "_turn", turn)
    monkeypatch.setattr(tune.time, "monotonic", lambda: now[0])
    made = tune.Measured({1})
    jobs = tune.SweepJobs(Case(), Plan("tune", (), 2, "gloo", "python3", 60.0), made, print)
    asyncio.run(jobs.decide({1: OWN}, now[0] + seconds))
    assert len(done) == turns
    assert made.notes == ["Time was up after 3 of the 6 turns of jobs that a verdict needs; `--budget` gives more."] * said


def test_a_turn_that_ended_in_the_middle_counts_as_far_as_it_is_paired() -> None:
    made = tune.Measured({1})
    key = ("all_reduce", 8)
    made.times["decide"] = {(tune.ALONE, *key): [100.0] * 6, (1, *key): [80.0] * 7}
    (one,) = made.compared("decide", [OWN])
    assert len(one.default_us) == len(one.with_us) == 6 and one.better
    del made.times["decide"][(tune.ALONE, *key)]
    assert made.compared("decide", [OWN]) == ()


def test_what_protects_is_named_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL_NVLS_ENABLE=0 is never unset; NCCL_P2P_DISABLE=1 where somebody names it."""
    for name in [name for name in os.environ if tune.INHERITED.fullmatch(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    with pytest.raises(NcclkitError, match="NCCL_P2P_DISABLE=1; they protect or switch off hardware"):
        tune._inherited(Case(), Case())
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    assert tune._inherited(Case(), Case()) == {"NCCL_PROTO": "Simple"}
    assert tune._inherited(Case(), Case(), [setting("NCCL_P2P_DISABLE=")]) == {"NCCL_P2P_DISABLE": "1"}
    with pytest.raises(NcclkitError, match="NVLink multicast is switched off here"):
        tune._inherited(Case(), Case(), [setting("NCCL_NVLS_ENABLE=")])
    with pytest.raises(NcclkitError, match="no test switches it on"):
        asyncio.run(tune.sweep(Case.open(tmp_path), [setting("NCCL_ALGO=NVLS")], GLOO, [8]))


def test_a_sweep_names_what_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")

    async def then(*_: Any) -> None:
        return None

    stands_in(monkeypatch, then)
    case = Case.open(tmp_path)
    rows = [{"name": "eth0", "kind": "physical", "state": "up", "addresses": ["10.0.0.1/8"]}]
    case.facts = [Fact("net.interfaces", rows)]
    found = asyncio.run(tune.sweep(case, (), replace(GLOO, op="all_reduce"), [8]))
    said = "Set here: NCCL_NVLS_ENABLE=0; it protects or switches off hardware, so it is left."
    assert said in found.notes and said in found.text()


def test_no_candidate_touches_what_was_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    nvlink = {f"GPU{a}": {f"GPU{b}": "NV18" for b in range(8) if b != a} for a in range(8)}
    switch = [Fact("gpu.topology", nvlink), Fact("gpu.0.model", "NVIDIA H200"), Fact("gpu.count", 8)]
    plan = Plan("tune", (), 8, "nccl", "python3", 60.0)
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    assert "NCCL_ALGO=NVLS" in [*map(str, tune.candidates(switch, plan))]
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert "NVLS" not in str([*map(str, tune.candidates(switch, plan))])
    assert "P2P_LEVEL" in str([*map(str, tune.candidates([], plan))])
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert "P2P" not in str([*map(str, tune.candidates([], plan))])


def test_the_answer_of_the_command_is_one_line_one_file_then_details() -> None:
    rows = [Comparison(TWICE, "all_reduce", 8, (1000.0,) * 16, (500.0,) * 16, 1)]
    sweep = Sweep("gloo", 2, 1, tuple(rows), tuple(rows), {"NCCL_ALGO=NVLS": "no multicast"}, 12.0)
    answer, source, details, *_ = _sweep_parts(sweep, Path("/tmp/tuned files"))
    assert answer == "Set GLOO_SOCKET_IFNAME=lo,lo: 50 % of all_reduce at 8 B, not measured under computation."
    assert source == "In the job's script: . '/tmp/tuned files/nccl.env'"
    assert str(details).splitlines()[-1] == "NCCL_ALGO=NVLS was refused: no multicast"
    nothing = Sweep("gloo", 2, 1, (), (), {}, 12.0)
    assert [*_sweep_parts(nothing, None)] == [
        "Nothing was measured, so nothing is known to be better than the default."
    ]


