"""The closed loop on real gloo ranks: found, asked, fixed, shown; and what it does not claim."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ncclkit import evidence, experiment, faults, probe, subject
from ncclkit.case import Case
from ncclkit.diagnose import diagnose
from ncclkit.model import Event, NcclkitError
from ncclkit.runs import changed

FOREIGN = (
    "node-1:10:20 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth97\n"
    "node-1:10:20 [0] NCCL INFO NCCL_BUFFSIZE set to 4194304\n"
    "node-1:10:20 [0] NCCL WARN Bootstrap : no socket interface found\n"
)


def broken(folder: Path, fault: str) -> Case:
    case = Case.open(folder)
    asyncio.run(faults.break_it(case, fault, backend="gloo", ranks=2, culprit=1, timeout=8, deadline=60))
    return case


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return broken(tmp_path_factory.mktemp("raised"), "rank_raises")


def test_a_fix_is_shown_to_work(raised: Case) -> None:
    (trial,) = asyncio.run(experiment.close(raised))
    assert trial.kind == "fix" and trial.worked and trial.change == {"mend": "rank_exception"}
    assert (trial.before.reason, trial.after.reason) == ("failed", "done")
    assert (trial.cause_before, trial.cause_after) == ("rank_exception", "")
    assert experiment.trials(Case.open(raised.path))[0].say == trial.say
    assert [f.cause for f in diagnose(raised).findings] == ["rank_exception"]  # its runs do not speak into the case


def test_the_fix_of_another_cause_mends_nothing(raised: Case, tmp_path: Path) -> None:
    plan = changed(subject.last(raised).plan, {"mend": "slow_rank"})
    assert asyncio.run(probe.execute(Case.open(tmp_path / "wrong"), plan)).reason == "failed"


def test_what_the_evidence_leaves_open_is_asked_and_then_fixed(tmp_path: Path) -> None:
    case = broken(tmp_path / "case", "other_op")
    run = case.runs()[0]
    for lost in [*run.glob("fr_rank_*"), *run.glob("stacks_*"), run / "wire.jsonl"]:
        lost.unlink()  # as if somebody had kept the logs alone
    case.events = list(evidence.read([case.path]).events)
    assert "proven" not in {f.strength for f in diagnose(case).findings}
    made = asyncio.run(experiment.close(case))
    assert made[-1].worked and made[-1].cause == "rank_divergence"
    assert diagnose(case).findings[0].cause == "rank_divergence" and diagnose(case).findings[0].strength == "proven"


def test_a_stand_in_that_does_not_fail_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(FOREIGN)
    case = Case.open(tmp_path / "case")
    case.events = list(evidence.read([tmp_path / "rank0.log"]).events)
    first = diagnose(case).findings[0]
    trial = asyncio.run(experiment.fix(case, first.cause))  # gloo heeds none of NCCL's variables
    assert not trial.worked and trial.verdicts == {first.cause: "open"} and trial.subject == ""
    assert trial.before.plan.env == {"NCCL_SOCKET_IFNAME": "eth97", "NCCL_BUFFSIZE": "4194304"}  # the job's own
    assert trial.after.plan.env == {"NCCL_BUFFSIZE": "4194304"}


def test_what_cannot_be_asked_is_one_sentence(raised: Case, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="nothing to check: fd_limit "):
        asyncio.run(experiment.check(raised, "fd_limit"))
    with pytest.raises(NcclkitError, match="nothing to fix: fd_limit was found here"):
        asyncio.run(experiment.fix(raised, "fd_limit"))
    (tmp_path / "rank0.log").write_text(FOREIGN)
    loose = Case()
    loose.events = list(evidence.read([tmp_path / "rank0.log"]).events)
    with pytest.raises(NcclkitError, match="needs a case folder"):
        asyncio.run(experiment.fix(loose))
    loose.events = [Event("python.exception", "ValueError: x", "rank0.log", 3, rank=0, data={"type": "ValueError"})]
    with pytest.raises(NcclkitError, match="needs a person: Fix the error"):
        asyncio.run(experiment.fix(loose))
