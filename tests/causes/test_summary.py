"""The verdict on a whole case, and the summary that report, terminal and scripts share."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import Summary, summarize
from ncclkit.cli import terminal
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event, Fact, found
from ncclkit.evidence import logs, samples
from ncclkit.views.facts import facts_view
from ncclkit.views.findings import findings_view
from tests.cases import read_files, written
from tests.causes.specimens import ROOT, load


def judged(*paths: Path | str) -> tuple[Diagnosis, Summary]:
    case = read_files(*paths)
    diagnosis = diagnose(case)
    return diagnosis, summarize(case, diagnosis)


def test_nonsense_is_no_job_and_exits_with_2(tmp_path: Path) -> None:
    diagnosis, summary = judged(written(tmp_path, "lorem ipsum\ndolor sit amet\n"))
    assert (summary.verdict, diagnosis.exit_code) == ("no_job", 2)
    assert "Nothing found" not in diagnosis.text() and summary.would_tell


def test_an_error_without_a_known_cause_is_unexplained_and_shown(tmp_path: Path) -> None:
    path = written(tmp_path, "epoch 1\nRuntimeError: NCCL error 99\n")
    diagnosis, summary = judged(path)
    assert (summary.verdict, diagnosis.exit_code) == ("unexplained", 1)
    assert [(e.place, e.text) for e in summary.errors] == [("job.log:2", "RuntimeError: NCCL error 99")]
    assert "RuntimeError: NCCL error 99" in summary.sentence and f"{path}:2" in diagnosis.text()
    assert any("NCCL_DEBUG=INFO" in piece for piece in summary.would_tell)
    assert summary.first_step.startswith(f"Collect: {summary.would_tell[0]}")
    assert diagnosis.to_dict()["errors"] == [{"path": str(path), "line": 2, "text": "RuntimeError: NCCL error 99"}]


def test_an_error_that_passes_on_what_it_does_not_say_names_nobody(tmp_path: Path) -> None:
    said = "NCCL error in: ProcessGroupNCCL.cpp:1191, unhandled cuda error, NCCL version 2.14.3"
    diagnosis, summary = judged(written(tmp_path, f"RuntimeError: {said}\n"))
    assert (summary.verdict, diagnosis.exit_code) == ("unexplained", 1)
    assert "unhandled cuda error" in summary.sentence and "not why" in summary.sentence
    assert "NCCL WARN" in summary.first_step
    reason = "n1:7:9 [0] transport/net.cc:9 NCCL WARN Cuda failure 'out of memory'\n"
    told, _ = judged(written(tmp_path, f"{reason}RuntimeError: {said}\n"))
    assert not told.says_no_reason


def test_steps_without_an_end_are_no_health(tmp_path: Path) -> None:
    """A job that hangs looks just so."""
    diagnosis, summary = judged(ROOT / "slow_rank" / "unknown-steps-only")
    assert (summary.verdict, diagnosis.exit_code, summary.errors) == ("running", 0, ())
    assert "ends before the job does" in summary.sentence and "ncclkit attach" in summary.first_step


def test_an_error_that_the_job_survived_is_none(tmp_path: Path) -> None:
    lines = [
        "RuntimeError: NCCL error",
        "I1121 [main.py:868] [default] worker group successfully finished. Waiting 300 seconds for other agents",
    ]
    assert judged(written(tmp_path, "\n".join(lines)))[0].verdict == "healthy"
    assert judged(written(tmp_path, "\n".join(reversed(lines))))[0].verdict == "unexplained"


@pytest.mark.parametrize(
    ("folder", "verdict"), [("clear-healthy", "healthy"), ("clear-ras-at-work", "running")]
)
def test_a_job_that_went_well_or_goes_on_has_status_0(folder: str, verdict: str) -> None:
    diagnosis = diagnose(load(ROOT / "slow_rank" / folder))
    assert (diagnosis.verdict, diagnosis.exit_code) == (verdict, 0)


def test_a_healthy_recording_cites_the_line_that_shows_it() -> None:
    _, summary = judged(samples.HERE / "healthy")
    assert summary.verdict == "healthy" and summary.line
    assert (summary.line.path, summary.line.text) == ("status.json", "the run ended: done")
    assert summary.job.ranks == 4 and summary.ranks == (0, 1, 2, 3)


def test_facts_of_a_machine_alone_are_no_job() -> None:
    assert diagnose(load(ROOT / "gpu_shared" / "clear-idle")).verdict == "no_job"


def test_a_test_of_connections_is_no_job() -> None:
    assert diagnose(load(ROOT / "clock_skew" / "clear-connect")).verdict == "no_job"


def test_a_found_cause_is_told_whole(tmp_path: Path) -> None:
    _, summary = judged(samples.HERE / "rank_late")
    assert (summary.verdict, summary.strength, summary.cause) == ("found", "proven", "slow_rank")
    assert summary.title.startswith("One rank was busy elsewhere")
    assert summary.culprit and summary.culprit.sentence == "Rank 2 on node-1 (GPU 2, bus 80)"
    assert summary.culprit.ranks[0].host == "node-1"
    assert summary.line and summary.line.path == "fr_rank_2" and summary.line.short.startswith("process group 0")
    assert summary.first_step and summary.job.nccl == "2.28.9" and summary.job.hosts == ("node-1",)
    assert summary.job.started and summary.job.ended and 60 < summary.job.ended - summary.job.started < 120
    assert summary.job.id == "1-rank_late"


def test_ranks_on_simulated_hosts_are_on_these_and_not_on_the_machine_that_was_watched() -> None:
    assert str(judged(samples.HERE / "lossy_link")[1].job).endswith("4 ranks on 2 hosts (node-[1-2])")


def test_the_job_of_a_slurm_log_has_its_number_and_its_script() -> None:
    assert judged(ROOT / "host_oom" / "found-slurm")[1].job.id == "4711"
    _, summary = judged(ROOT / "rank_exception" / "found-nccl")
    assert summary.job.command == "/home/user/train.py"
    assert summary.line and summary.line.short == "ValueError: sample 1207 has 0 frames after trimming"


def test_what_was_not_given_is_said(tmp_path: Path) -> None:
    log = ROOT / "rank_exception" / "found-nccl" / "rank0.log"
    _, summary = judged(log)
    assert summary.ranks == (0,) and summary.job.ranks == 4
    assert any("ranks 1-3" in piece for piece in summary.missing)


@pytest.mark.parametrize("one", [True, False])
def test_the_command_judges_the_same_inputs_again(tmp_path: Path, one: bool) -> None:
    paths = [written(tmp_path, "RuntimeError: NCCL error\n", f"rank{rank}.log") for rank in range(1 if one else 2)]
    assert judged(*paths)[1].reproduce == f"ncclkit diagnose {paths[0] if one else tmp_path}"


def test_a_case_folder_is_named_where_the_logs_lie_in_it(tmp_path: Path) -> None:
    source = written(tmp_path, "RuntimeError: NCCL error in a plugin\n")
    case = logs.read_logs(str(source), tmp_path / "a case")
    summary = summarize(case, diagnose(case))
    assert summary.reproduce == f"ncclkit diagnose {source}"
    empty = Case.open(tmp_path / "a case")
    empty.about.pop("logs")
    assert summarize(empty, diagnose(empty)).reproduce == f"ncclkit diagnose '{tmp_path / 'a case'}'"


class TestOneListOfRisks:
    """What the facts of a host warn of stays the same list before a run, beside it and after it."""

    @staticmethod
    def after_a_run() -> Case:
        """A host whose own name resolves to loopback, and a job on it that succeeded."""
        case = load(ROOT / "hostname_resolution" / "clear-joined")
        case.facts = [
            Fact("host.name", "vm", host="vm"),
            Fact("net.hostname.addresses", ["127.0.0.1"], "", "getaddrinfo", "vm"),
            Fact("net.gloo.interface", "lo", "", "", "vm"),
        ]
        return case

    def test_a_risk_that_the_job_did_not_suffer_is_still_told(self) -> None:
        case = self.after_a_run()
        diagnosis = diagnose(case)
        assert diagnosis.verdict == "healthy" and diagnosis.exit_code == 0
        assert [risk.cause for risk in diagnosis.risks] == ["hostname_resolution"]
        assert "; 1 risk." in diagnosis.headline and "hostname_resolution" in diagnosis.text()

    def test_the_cards_of_facts_and_of_findings_count_the_same_risks(self) -> None:
        case = self.after_a_run()
        before, after = facts_view(case), findings_view(diagnose(case))
        assert before.summary.startswith("1 risk ") and "; 1 risk" in after.summary
        said = "Hostname vm resolves to 127.0.0.1"
        assert said in before.static() and said in after.static()

    @pytest.mark.parametrize(("holder", "warned"), [(4711, []), (7, ["gpu_shared"])])
    def test_ranks_that_are_looked_at_share_their_gpu_with_nobody(self, holder: int, warned: list[str]) -> None:
        """Facts that were read while the job ran show its own ranks on its GPUs."""
        case = self.after_a_run()
        case.events = [*case.events, Event("attach.rank", "rank 0", "attached.json", rank=0, pid=4711)]
        holders = [{"pid": holder, "name": "python", "memory": "4000 MiB"}]
        case.facts = [
            Fact("gpu.0.busy", 100, "%", "nvidia-smi", "vm"),
            Fact("gpu.0.memory.holders", holders, "", "nvidia-smi", "vm"),
        ]
        assert [risk.cause for risk in diagnose(case).risks] == warned

    @pytest.mark.parametrize(("value", "brake"), [("Simple", True), ("", False)])
    def test_settings_in_a_log_are_named_as_a_possible_brake(self, tmp_path: Path, value: str, brake: bool) -> None:
        source = ROOT / "slow_rank" / "clear-healthy"
        text = "".join(path.read_text() for path in sorted(source.glob("*.log")))
        line = "node-1:7000:7000 [0] NCCL INFO {0} set by environment to {1}\n"
        text += (
            "".join(line.format(*row) for row in (("NCCL_PROTO", value), ("NCCL_P2P_DISABLE", "1"))) if brake else ""
        )
        text += line.format("NCCL_IB_DISABLE", "0")
        diagnosis, _ = judged(written(tmp_path, text))
        assert diagnosis.verdict == "healthy"
        assert [risk.cause for risk in diagnosis.risks] == ["slow_transport"] * brake
        if brake:
            (risk,) = diagnosis.risks
            assert "NCCL_PROTO=Simple and NCCL_P2P_DISABLE=1 are set by environment" in risk.say
            assert risk.advice[0].command == "unset NCCL_PROTO NCCL_P2P_DISABLE" and "brake" in diagnosis.text()
            assert diagnosis.to_dict()["risks"][0]["cause"] == "slow_transport"

    def test_a_machine_alone_has_findings_and_no_second_list(self) -> None:
        case = Case()
        case.facts = self.after_a_run().facts
        diagnosis = diagnose(case)
        assert [f.cause for f in diagnosis.findings] == ["hostname_resolution"] and diagnosis.risks == ()

    def test_a_page_says_what_is_unexplained_and_not_that_nothing_was_found(self, tmp_path: Path) -> None:
        diagnosis, _ = judged(written(tmp_path, "RuntimeError: NCCL error in a plugin\n"))
        page = findings_view(diagnosis)
        assert "No line proves why: RuntimeError: NCCL error" in page.summary
        assert "Nothing found" not in page.static()


def test_a_variable_that_is_advised_sets_what_it_says_and_runs_nothing() -> None:
    """As text and on a terminal: what somebody copies into a shell."""
    advice = (Advice("Choose them by collective.", {"NCCL_ALGO": "allreduce:tree;broadcast:ring"}),)
    quoted = "export NCCL_ALGO='allreduce:tree;broadcast:ring'"
    line = Event("nccl.env", path="job.log", line=1, text="NCCL_ALGO set by environment to rings")
    printed = Diagnosis((found("bad_env_value", "likely", "NCCL_ALGO is wrong", [line], advice=advice),)).text()
    shown = Console(width=200, file=io.StringIO(), record=True)
    shown.print(*terminal._advice(advice[0]))
    assert quoted in printed and quoted in shown.export_text()
