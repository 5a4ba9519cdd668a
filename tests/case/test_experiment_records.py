"""Experiments are kept in the case folder, read back the same, and move the verdicts only as far as they may."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core import experiment_records
from ncclkit.core.bandwidth import Expectation
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Experiment, Fact, Finding, Measurement, NcclkitError, clear, found
from ncclkit.core.runs import Plan, Run, changed
from ncclkit.experiments import comparison
from ncclkit.experiments.comparison import Arm

LINE = Event("nccl.warn", "Call to connect failed", "rank0.log", 7)
OLDER = {"hosts": 2, "wrong": "older"}
TRAIN = Plan(
    "x", ("train", "--backend", "gloo", "--timeout", "15.0", "--fault", "few_files"), 3, "gloo", "python3", 60.0
)
LIVE = replace(TRAIN, argv=("collective", "--backend", "gloo", "--timeout", "30"))


def risk(cause: str, strength: str = "likely") -> Finding:
    return found(cause, strength, f"{cause} it is.", [LINE])


def arm(*causes: str, reason: str = "failed", busbw: float = 0.0, strength: str = "proven") -> Arm:
    timed = Measurement("all_reduce", 8, "float32", 2, 1, "gloo", 1.0, 1.0, 0.0, 1.0, busbw, 0)
    run = Run(TRAIN, Path("runs/1-x"), reason, 3.0, (timed,) if busbw else ())
    return Arm(run, Diagnosis(tuple(risk(cause, strength) for cause in causes)))


def record(folder: Path, **values) -> experiment_records.ExperimentRecord:
    before, after = arm("shm_too_small").run, arm(reason="done", busbw=2.0).run
    runs = {"before": replace(before, folder=folder.parent.parent / "runs" / "1-x")}
    runs["after"] = replace(after, folder=folder / ".case" / "runs" / "1-x")
    usual = {"observed": "works", "verdicts": {"shm_too_small": "proven"}, "summary": "It works.", "seconds": 4.0}
    return experiment_records.ExperimentRecord(
        "check", "shm_too_small", "Does it?", {"env": {"A": "1"}}, folder=folder, **runs | usual | values
    )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = Case.open(tmp_path / "case")
    (case.path / "experiments" / "1-shm_too_small" / ".case" / "runs" / "1-x").mkdir(parents=True)
    return case


def test_an_experiment_is_read_back_as_it_was_kept(case: Case) -> None:
    folder = case.path / "experiments" / "1-shm_too_small"
    bound = {"all_reduce": Expectation(3.0, "loopback", "All copies go through memory.")}
    after = replace(arm(reason="done", busbw=2.0).run, folder=folder / ".case" / "runs" / "1-x", expectations=bound)
    made = experiment_records.keep(record(folder, after=after))
    assert experiment_records.experiments(case) == (made,)


def test_no_secret_of_a_plan_is_kept(case: Case) -> None:
    folder = case.path / "experiments" / "1-shm_too_small"
    plan = replace(TRAIN, env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx"})
    experiment_records.keep(record(folder, after=replace(arm().run, plan=plan, folder=folder)))
    assert "hf_abc" not in (folder / "experiment.json").read_text()


def test_a_case_may_be_moved(case: Case, tmp_path: Path) -> None:
    experiment_records.keep(record(case.path / "experiments" / "1-shm_too_small"))
    shutil.move(case.path, tmp_path / "moved")
    (moved,) = experiment_records.experiments(Case.open(tmp_path / "moved"))
    assert moved.before.folder == tmp_path / "moved" / "runs" / "1-x" and moved.after.folder.is_dir()


@pytest.mark.parametrize("text", ["{}", '{"experiment": "check"}', '{"experiment": [], "observed": {}}', "[]"])
def test_a_damaged_record_is_named_in_one_sentence(text: str, case: Case) -> None:
    path = case.path / "experiments" / "1-shm_too_small" / "experiment.json"
    path.write_text(text)
    with pytest.raises(NcclkitError, match=r"1-shm_too_small/experiment.json is .*move .* away"):
        experiment_records.experiments(case)


def test_the_runs_of_an_experiment_are_no_evidence_when_the_case_is_read(case: Case) -> None:
    made = experiment_records.keep(record(case.path / "experiments" / "1-shm_too_small"))
    (made.after.folder / "rank0.log").write_text("RuntimeError: unable to write to file </torch_1>: No space left\n")
    assert [event.kind for event in evidence.read([case.path]).events] == ["experiment.check"]


@pytest.mark.parametrize(
    "value",
    [
        {"experiment": "check", "verdicts": []},
        {"experiment": "rm", "verdicts": {}},
        {"experiment": ["check"], "verdicts": {"a": "proven"}},
    ],
)
def test_what_is_no_experiment_says_nothing(case: Case, value: dict) -> None:
    (case.path / "experiment.json").write_text(json.dumps(value))
    assert evidence.read([case.path]).events == []


def test_of_a_strange_experiment_only_known_words_count(case: Case) -> None:
    said = {
        "experiment": "fix",
        "verdicts": {"fd_limit": "certain", "p2p_broken": "open"},
        "summary": 3,
        "baseline": None,
    }
    (case.path / "experiment.json").write_text(json.dumps(said))
    (event,) = evidence.read([case.path]).events
    assert event.data.verdicts == {"p2p_broken": "open"} and event.data.baseline == "" and event.text == "3"


@pytest.mark.parametrize(
    ("move", "strength", "verdict", "then"),
    [
        ("proven", "likely", "found", "proven"),
        ("refuted", "likely", "clear", None),
        ("refuted", "proven", "found", "proven"),  # a line of the job itself weighs more than a run in its place
        ("supported", "possible", "found", "possible"),
        ("open", "likely", "found", "likely"),
    ],
)
def test_what_an_experiment_moves(move: str, strength: str, verdict: str, then: str | None) -> None:
    event = Event("experiment.check", "seen", data={"verdicts": {"fd_limit": move}})
    (moved,) = experiment_records.weigh([risk("fd_limit", strength)], [event])
    assert (moved.verdict, moved.strength) == (verdict, then)


def test_an_experiment_makes_no_suspects() -> None:
    event = Event("experiment.check", "seen", data={"verdicts": {"fd_limit": "proven"}})
    assert experiment_records.weigh([clear("fd_limit")], [event]) == [clear("fd_limit")]


def test_an_experiment_about_an_earlier_run_is_not_weighed(case: Case) -> None:
    for number in (1, 2):
        (case.path / "runs" / f"{number}-x").mkdir(parents=True)
    ends = [Event("run.end", "ended", str(case.path / "runs" / f"{n}-x" / "status.json")) for n in (1, 2)]
    told = [Event("experiment.check", s, data={"verdicts": {}, "baseline": s}) for s in ("1-x", "2-x", "")]
    case.add([*ends, *told])
    assert [event.text for event in case.latest().of("experiment.check")] == ["2-x", ""]


P2P = Experiment("Off?", {"env": {"NCCL_P2P_DISABLE": "1"}}, {}, {"p2p_broken": "works", "network_loss": "same"})
ASK = Experiment("Which?", {}, {}, {"shape_mismatch": "named", "slow_rank": "same"})
DETAIL = replace(ASK, plan={"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}})
SPEED = Experiment("Faster?", {"unset": ["NCCL_P2P_DISABLE"]}, {}, {"slow_transport": "faster", "p2p_broken": "other"})


@pytest.mark.parametrize(
    ("experiment", "before", "after", "seen", "moves"),
    [
        (P2P, arm("p2p_broken"), arm(reason="done"), "works", {"p2p_broken": "proven", "network_loss": "refuted"}),
        (P2P, arm("p2p_broken"), arm("p2p_broken"), "same", {"p2p_broken": "refuted", "network_loss": "proven"}),
        (P2P, arm("p2p_broken"), arm("gpu_oom"), "other", {"p2p_broken": "refuted", "network_loss": "refuted"}),
        (ASK, arm("slow_rank"), arm("shape_mismatch"), "named", {"shape_mismatch": "proven", "slow_rank": "refuted"}),
        (ASK, arm("slow_rank"), arm("slow_rank"), "same", {"shape_mismatch": "refuted", "slow_rank": "proven"}),
        (DETAIL, arm("slow_rank"), arm("rank_exception"), "other", {"shape_mismatch": "open", "slow_rank": "open"}),
        (
            SPEED,
            arm("slow_transport", reason="done", busbw=8.0),
            arm(reason="done", busbw=20.0),
            "faster",
            {"slow_transport": "proven", "p2p_broken": "refuted"},
        ),
        (
            SPEED,
            arm("slow_transport", reason="done", busbw=8.0),
            arm(reason="done", busbw=9.0),
            "works",
            {"slow_transport": "refuted", "p2p_broken": "refuted"},
        ),
    ],
)
def test_what_follows_from_two_runs(experiment: Experiment, before: Arm, after: Arm, seen: str, moves: dict) -> None:
    assert comparison.observed(before, after, experiment) == seen
    assert comparison.verdicts(experiment, before, after) == moves


def test_a_run_with_wrong_values_did_not_work() -> None:
    timed = Measurement("all_reduce", 8, "float32", 2, 1, "gloo", 1.0, 1.0, 0.0, 1.0, 1.0, 3)
    after = Arm(Run(TRAIN, Path("x"), "done", 1.0, (timed,)), Diagnosis())
    assert comparison.observed(arm("p2p_broken"), after, P2P) == "other"


def test_a_suspect_that_the_recorded_repetition_proves_is_shown() -> None:
    suspects = Diagnosis((risk("slow_rank", "possible"), risk("rank_divergence", "possible")))
    before = Arm(arm().run, suspects)
    assert comparison.newly_proven(suspects, before, arm("rank_divergence", "fd_limit")) == {
        "rank_divergence": "proven"
    }


@pytest.mark.parametrize(
    ("plan", "change", "argv", "rest"),
    [
        (TRAIN, {"timeout": 4}, {"--timeout": "60"}, {"deadline": 105.0}),
        (TRAIN, {"fix": "fd_limit"}, {"--fix": "fd_limit", "--fault": "few_files"}, {}),
        (LIVE, {"fix": "fd_limit"}, {}, {}),
        (TRAIN, {"minimal": True}, {"--sizes": "8,64,512,4096,32768,262144"}, {}),
        (replace(LIVE, argv=(*LIVE.argv, "--fault", "segfault")), {"minimal": True}, {"--backend": "gloo"}, {}),
        (replace(TRAIN, env={"A": "1", "B": "2"}), {"unset": ["A", "C"], "env": {"D": "3"}}, {},
         {"env": {"B": "2", "D": "3"}, "unset": ("A", "C")}),
        (TRAIN, {"ranks": 2, "restarts": 1}, {}, {"ranks": 2, "restarts": 1}),
        (TRAIN, {"hosts": 1}, {}, {"network": {}}),
        (replace(TRAIN, network=OLDER), {"hosts": 1}, {}, {"network": OLDER | {"hosts": 1}}),
    ],
)  # fmt: skip
def test_changes(plan: Plan, change: dict, argv: dict, rest: dict) -> None:
    new = changed(plan, change)
    options = dict(zip(new.argv[1::2], new.argv[2::2], strict=True))
    assert argv.items() <= options.items() and ("--fix" in options) == ("--fix" in argv)
    assert ("--fault" in options) == ("--fault" in plan.argv and "minimal" not in change)
    assert {name: getattr(new, name) for name in rest} == rest


def test_a_change_nobody_knows_is_refused() -> None:
    with pytest.raises(NcclkitError, match="'sweep'"):
        changed(TRAIN, {"sweep": True})


def test_a_proven_experiment_makes_the_verdict_on_the_folder_proven(case: Case) -> None:
    case.facts = [Fact("limits.shm.size", 4 << 20, "B", "/dev/shm", "node-1"), Fact("gpu.count", 8, host="node-1")]
    assert [(f.cause, f.strength) for f in diagnose(case).findings] == [("shm_too_small", "likely")]
    made = experiment_records.keep(record(case.path / "experiments" / "1-shm_too_small"))
    case.events = list(evidence.read([made.folder]).events)
    (finding,) = diagnose(case).findings
    assert (
        finding.strength == "proven"
        and finding.evidence[-1].text == f"{made.question} {made.summary}"
        and finding.next is None
    )
