"""The closed loop on real gloo ranks: found, asked, fixed, shown; and what it does not claim."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.causes import nccl_bug
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event, Fact, NcclkitError, found
from ncclkit.core.runs import LARGEST, ON_GPUS, Plan, Run, changed
from ncclkit.experiments import baseline, comparison, fixes
from ncclkit.experiments.comparison import Arm
from ncclkit.lab.faults import injection
from ncclkit.lab.programs.__main__ import JOBS
from ncclkit.live import probe
from ncclkit.live.launch import slurm

pytestmark = pytest.mark.usefixtures("warm_ranks")

FOREIGN = (
    "node-1:10:20 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth97\n"
    "node-1:10:20 [0] NCCL INFO NCCL_BUFFSIZE set to 4194304\n"
    "node-1:10:20 [0] NCCL WARN Bootstrap : no socket interface found\n"
)


def broken(folder: Path, fault: str, timeout: float = 8) -> Case:
    case = Case.open(folder)
    asyncio.run(injection.inject(case, fault, backend="gloo", ranks=2, culprit=1, timeout=timeout, deadline=60))
    return case


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return broken(tmp_path_factory.mktemp("raised"), "rank_raises")


def test_a_fix_is_shown_to_work(raised: Case) -> None:
    (trial,) = asyncio.run(fixes.close(raised))
    assert trial.kind == "fix" and trial.worked and trial.change == {"fix": "rank_exception"}
    assert (trial.before.reason, trial.after.reason) == ("failed", "done")
    assert (trial.cause_before, trial.cause_after) == ("rank_exception", "")
    assert fixes.experiments(Case.open(raised.path))[0].summary == trial.summary
    assert [f.cause for f in diagnose(raised).findings] == ["rank_exception"]  # its runs do not speak into the case


def test_what_the_evidence_leaves_open_is_asked_and_then_fixed(tmp_path: Path) -> None:
    case = broken(tmp_path / "case", "other_op", 4)  # the experiment waits four times as long
    run = case.runs()[0]
    for lost in [*run.glob("fr_rank_*"), *run.glob("stacks_*"), run / "wire.jsonl"]:
        lost.unlink()  # as if somebody had kept the logs alone
    case.events = list(evidence.read([case.path]).events)
    assert "proven" not in {f.strength for f in diagnose(case).findings}
    made = asyncio.run(fixes.close(case))
    assert made[-1].worked and made[-1].cause == "rank_divergence"
    assert diagnose(case).findings[0].cause == "rank_divergence" and diagnose(case).findings[0].strength == "proven"


def test_a_stand_in_that_does_not_fail_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(FOREIGN)
    case = Case.open(tmp_path / "case")
    case.events = list(evidence.read([tmp_path / "rank0.log"]).events)
    first = diagnose(case).findings[0]
    trial = asyncio.run(fixes.fix(case, first.cause))  # gloo heeds none of NCCL's variables
    assert not trial.worked and trial.verdicts == {first.cause: "open"} and trial.baseline == ""
    assert trial.before.plan.env == {"NCCL_SOCKET_IFNAME": "eth97", "NCCL_BUFFSIZE": "4194304"}  # the job's own
    assert trial.after is None and f"does not show {first.cause} (it works here)" in trial.summary


def test_what_cannot_be_asked_is_one_sentence(raised: Case, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="nothing to check: fd_limit "):
        asyncio.run(fixes.check(raised, "fd_limit"))
    with pytest.raises(NcclkitError, match="nothing to fix: fd_limit was found here"):
        asyncio.run(fixes.fix(raised, "fd_limit"))
    (tmp_path / "rank0.log").write_text(FOREIGN)
    loose = Case()
    loose.events = list(evidence.read([tmp_path / "rank0.log"]).events)
    with pytest.raises(NcclkitError, match="needs a writable case folder"):
        asyncio.run(fixes.fix(loose))
    loose.events = [Event("python.exception", "ValueError: x", "rank0.log", 3, rank=0, data={"type": "ValueError"})]
    with pytest.raises(NcclkitError, match="needs a person: Fix the error"):
        asyncio.run(fixes.fix(loose))


NCCL = Plan("train", ("train", "--backend", "nccl", "--timeout", "8"), 2, "nccl", sys.executable, 60.0)
GID = "node-1:7000:7040 [0] transport/net_ib.cc:300 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid"


def over_nccl(folder: Path, fault: str) -> Case:
    """A case whose last run was over NCCL, and failed as it does where NCCL 2.23 meets a GID table with holes."""
    case = Case.open(folder)
    run = case.new_run("train")
    plan = replace(NCCL, argv=(*NCCL.argv, "--fault", fault, "--at", "0"))
    told = {"plan.json": json.dumps(asdict(plan)), "status.json": '{"reason": "failed", "exitcode": 1}'}
    for name, text in (told | {"rank0.log": f"NCCL version 2.23.4+cuda12.6\n{GID} argument\n"}).items():
        (run / name).write_text(text)
    return case.add(evidence.read([run]).events).save()


def test_a_case_of_another_machine_is_run_again_only_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, gpus = over_nccl(tmp_path / "case", "rank_raises"), [1]

    async def seen(_case: Case, _python: str) -> int:
        return gpus[0]

    monkeypatch.setattr(probe, "_gpus", seen)
    with pytest.raises(NcclkitError) as error:
        asyncio.run(fixes.fix(case, "nccl_bug"))
    assert str(error.value) == (
        "train cannot be run again here: its 2 NCCL ranks need 2 GPUs, but the training interpreter sees 1; "
        "try this on the machine that it ran on."
    )
    assert fixes.experiments(case) == ()
    shared = replace(NCCL, network={"hosts": 2})
    asyncio.run(probe.plan_here(case, shared))
    asyncio.run(probe.plan_here(case, replace(NCCL, simulate_hosts=2)))
    gpus[0] = 0
    with pytest.raises(NcclkitError, match="2 NCCL ranks need 1 GPU, but the training interpreter sees none"):
        asyncio.run(probe.plan_here(case, shared))


def test_facts_of_another_machine_do_not_count_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.open(tmp_path)
    told = {"software.executable": sys.executable, "software.torch.gpus": 64}
    case.facts = [Fact(name, value, host="elsewhere") for name, value in told.items()]
    assert asyncio.run(probe._gpus(case, sys.executable)) < 64

    async def names() -> list[str]:
        return ["elsewhere"]

    monkeypatch.setattr(slurm, "nodes", lambda: 2)  # a login node has none itself
    monkeypatch.setattr(slurm, "node_names", names)
    assert asyncio.run(probe._gpus(case, sys.executable)) == 64
    monkeypatch.undo()
    case.facts = [Fact(name, value, host=socket.gethostname()) for name, value in told.items()]
    assert asyncio.run(probe._gpus(case, sys.executable)) == 64


def test_an_interpreter_that_is_not_here_gives_way_to_ours(raised: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = raised.runs()
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps(plan | {"python": "/gone/bin/python"}))
    monkeypatch.setenv(probe.TRAIN_PYTHON, "/ours/python")
    assert baseline.last(raised).plan.python == "/ours/python"
    assert baseline.last(raised, "/named/python").plan.python == "/named/python"
    (run / "plan.json").write_text(json.dumps(plan))
    assert baseline.last(raised).plan.python == plan["python"]


def test_what_fails_over_gloo_too_is_not_the_fault_of_nccl(tmp_path: Path) -> None:
    case = over_nccl(tmp_path / "case", "rank_raises")
    trial = asyncio.run(fixes.check(case, "nccl_bug"))
    assert trial.change == {"backend": "gloo"} and trial.after is not None
    assert trial.after.plan.backend == "gloo" and trial.cause_after == "rank_exception"
    assert trial.verdicts["nccl_bug"] == trial.verdicts["p2p_broken"] == "refuted"
    assert trial.verdicts["rank_exception"] == trial.verdicts["framework_bug"] == "supported"
    asked = nccl_bug.experiment(case.latest())
    assert asked.plan == {"minimal": True}  # the next question is another one


def arm(cause: str, reason: str = "failed") -> Arm:
    findings = (found(cause, "likely", "so", [Event("x", "y")]),) if cause else ()
    return Arm(Run(NCCL, Path("1-train"), reason, 1.0), Diagnosis(findings))


@pytest.mark.parametrize(
    ("after", "moves"),
    [
        (arm("", "done"), ("supported", "supported", "refuted", "refuted")),
        (arm("rank_exception"), ("refuted", "refuted", "supported", "supported")),
        (arm("nccl_bug"), ("refuted", "refuted", "supported", "supported")),
        (arm("timeout_too_short"), ("open",) * 4),  # a trouble of gloo's own says nothing
        (arm(""), ("open",) * 4),
    ],
)
def test_what_a_run_over_gloo_says(after: Arm, moves: tuple[str, ...]) -> None:
    asked = nccl_bug.experiment(Case())
    assert tuple(comparison.verdicts(asked, arm("nccl_bug"), after).values()) == moves


@pytest.mark.parametrize("job", ["collective", *JOBS])
def test_every_job_runs_over_gloo_or_says_why_not(job: str) -> None:
    plan = replace(NCCL, argv=(job, *NCCL.argv[1:]), env={"NCCL_ALGO": "Ring"})
    if job in ON_GPUS:
        with pytest.raises(NcclkitError, match=r"cannot be repeated over gloo: \w"):
            changed(plan, {"backend": "gloo"})
    else:
        argv = (job, "--timeout", "8", "--backend", "gloo")
        assert changed(plan, {"backend": "gloo"}) == replace(plan, argv=argv, backend="gloo")


def test_over_gloo_large_messages_are_left_out_and_the_rest_stays() -> None:
    live = replace(
        NCCL, argv=("collective", "--backend", "nccl", "--sizes", "8,33554432,268435456"), sizes=(8, 1 << 28)
    )
    new = changed(live, {"backend": "gloo", "ranks": 4})
    assert new.argv[-2:] == ("--sizes", f"8,{LARGEST}") and new.sizes == (8, LARGEST) and new.ranks == 4
    for plan, backend in ((new, "gloo"), (live, "mpi")):
        with pytest.raises(NcclkitError, match=f"over gloo, but not one over {plan.backend} over {backend}"):
            changed(plan, {"backend": backend})


FEWER = Advice("Let NCCL open fewer sockets.", env={"NCCL_MAX_NCHANNELS": "2"})
LAB, OWN = ("train", "--fault", "few_files"), ("collective",)


@pytest.mark.parametrize(
    ("advice", "argv", "change", "words"),
    [
        ((Advice("Raise the limit."), FEWER), LAB, {"fix": "fd_limit"}, "Raise the limit."),
        ((Advice("Raise the limit."), FEWER), OWN, {"env": FEWER.env}, FEWER.do),
        ((FEWER,), LAB, {"env": FEWER.env, "fix": "fd_limit"}, FEWER.do),
        (
            (Advice("Ask who it was."), Advice("Start again.", change={"restarts": 1})),
            LAB,
            {"restarts": 1, "fix": "fd_limit"},
            "Start again.",
        ),
        (
            (Advice("See the line.", env={"PYTHONFAULTHANDLER": "1"}),),
            LAB,
            {"fix": "fd_limit"},
            "the job does right what fd_limit names",
        ),
    ],
    ids=("a lab's own", "the way around", "variables", "a change", "only told"),
)
def test_a_fix_is_told_as_what_was_changed(
    advice: tuple[Advice, ...], argv: tuple[str, ...], change: dict[str, Any], words: str
) -> None:
    """Variables that a later advice offers as a way around are not set where the job does what the first one asks."""
    finding, plan = found("fd_limit", "likely", "It is.", (Event("run.end"),), advice=advice), replace(NCCL, argv=argv)
    assert fixes.change_of(finding, plan) == change and fixes.words_of(finding, plan) == words
