"""What came of the batch jobs of a case: one question for all of them, and none after the first silence."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkit.cli import main
from ncclkit.core.case import Case
from ncclkit.live import scheduler, submit
from ncclkit.live.job_outcomes import JobOutcome, job_outcomes
from ncclkit.live.submit import SILENT, BatchJob

HUNG = "sleep 60"
DISABLED = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
NOT_THERE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Cluster:
    """Commands that stand in for Slurm's, each a line of shell that writes down that it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.log = folder / "asked"
        self.log.touch()

    def says(self, **scripts: str) -> None:
        for name, line in scripts.items():
            (self.folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{line}\n')
            (self.folder / name).chmod(0o755)

    @property
    def asked(self) -> list[str]:
        """The commands that were called since the last look, without their arguments."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return [line.partition(" ")[0] for line in lines]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(scheduler, "DEADLINE", 2.0)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return made


def made_jobs(case: Case, count: int, *verb: str) -> list[BatchJob]:
    """Jobs of a case that were submitted, of which nothing is known; the first has the id 101."""
    assert case.path
    for number in range(1, count + 1):
        folder = case.path / "jobs" / f"{number}-probe"
        folder.mkdir(parents=True)
        kept = {"id": str(100 + number), "words": verb or ["probe"], "submitted": 0.0}
        (folder / "job.json").write_text(json.dumps(kept))
    return submit.submitted_jobs(case)


def ended(job: BatchJob, status: int, **outcome: Any) -> None:
    (job.folder / "exit").write_text(f"{status}\n")
    if outcome:
        (job.folder / "outcome.json").write_text(json.dumps(outcome))


def said_of(found: list[JobOutcome]) -> list[str]:
    return [outcome.state.sentence for outcome in found]


def test_two_hundred_jobs_with_a_hung_controller_cost_one_silence(slurm: Cluster, tmp_path: Path) -> None:
    """The deadline is the feature: 10 s for 200 jobs, which took a deadline each."""
    slurm.says(squeue=HUNG, scontrol=HUNG, sacct=HUNG, sinfo=HUNG)
    case = Case.open(tmp_path / "case")
    jobs = made_jobs(case, 200)
    ended(jobs[3], 1, verdict="found", say="Rank 2 raised.", cause="rank_exception", strength="proven")
    begun = time.monotonic()
    found = job_outcomes(jobs)
    assert time.monotonic() - begun < 10
    assert slurm.asked == ["squeue"]
    silent = [outcome for outcome in found if outcome.state.state == SILENT]
    assert len(silent) == 199 and not any(outcome.state.over for outcome in silent)
    assert "Slurm does not answer (squeue did not answer within 2 s); " in silent[0].state.sentence
    assert found[3].state.sentence == "Job 104 ended with exit status 1 (it found trouble, or failed)." and found[3].lines() == [
        "found (proven, rank_exception): Rank 2 raised."
    ]
    assert not list(tmp_path.glob("case/jobs/*/end.json")), "nobody has said that any of them ended"


def test_one_question_for_all_jobs_and_none_about_those_that_ended(slurm: Cluster, tmp_path: Path) -> None:
    rows = [
        "101|RUNNING|2026-11-23T14:05:00|n[1-2]|gpu|5:00|None",
        "102|PENDING|N/A||gpu|0:00|Priority",
        "103_7|RUNNING|2026-11-23T14:05:00|n3|gpu|5:00|None",
        "104|TIMEOUT|2026-11-23T14:05:00|n3|gpu|10:00|TimeLimit",
    ]
    lines = "\n".join(rows)
    pending = "echo '99|gpu\n102|gpu\n98|cpu'"
    slurm.says(
        squeue=f'case "$*" in *--states=all*) echo "{lines}";; *) {pending};; esac',
        sacct="echo '105|NODE_FAIL|0:0|00:03:00|n[4-5]\n105.batch|CANCELLED|0:15|00:03:00|n4'",
        scontrol="exit 1",
    )
    jobs = made_jobs(Case.open(tmp_path / "case"), 6)
    ended(jobs[5], 0, verdict="healthy", say="Nothing found.", report="/case/report.html")
    found = job_outcomes(jobs)
    assert said_of(found) == [
        "Job 101 runs on n[1-2] since 2026-11-23 14:05:00.",
        "Job 102 waits in partition gpu, place 2 of 2, jobs of higher priority go first (Priority).",
        "Job 103 runs on n3 since 2026-11-23 14:05:00.",
        "Job 104 reached Slurm's time limit; -t asks for more time.",
        "Job 105 lost a node, which failed; submit it again, and tell your administrators.",
        "Job 106 ended well (exit status 0).",
    ]
    assert found[5].lines() == ["healthy: Nothing found.", "Report: /case/report.html"]
    assert slurm.asked == ["squeue", "sacct", "squeue"]
    # what has ended is known for good
    assert said_of(job_outcomes(jobs[3:])) == said_of(found)[3:] and slurm.asked == []


def test_a_job_that_was_queued_again_has_not_ended(slurm: Cluster, tmp_path: Path) -> None:
    """Its first attempt, which was preempted, left an exit status; the queue knows better."""
    slurm.says(squeue="echo '101|PENDING|N/A||gpu|0:00|BeginTime'")
    (job,) = made_jobs(Case.open(tmp_path / "case"), 1)
    ended(job, 2)
    (found,) = job_outcomes([job])
    assert not found.state.over and not (job.folder / "end.json").exists()


@pytest.mark.parametrize(
    ("squeue", "sacct", "sentence"),
    [
        ("echo hello", "exit 1", "Slurm does not answer (squeue answered 'hello'"),
        (f"echo '{NOT_THERE}' >&2; exit 1", "exit 1", "Slurm does not answer (squeue: "),
        ("yes 0123456789", "exit 1", "Slurm does not answer (squeue"),
        (HUNG, "exit 1", "Slurm does not answer (squeue"),
        ("exit 0", DISABLED, "is not known to Slurm any more, and left no end"),
        ("exit 0", "echo", "is not known to Slurm any more, and left no end"),
        ("exit 0", HUNG, "how it ended is not known, as its accounting does not answer (sacct"),
        ("exit 0", "echo no route to slurmdbd >&2; exit 1", "how it ended is not known"),
        ("echo 'error: Invalid job id specified' >&2; exit 1", DISABLED, "is not known to Slurm any more"),
        ("exit 0", "echo '101|CANCELLED by 0|0:0|00:00:03|n1'", "Job 101 was cancelled."),
        ("echo '101|CD|x'", "exit 1", "Slurm does not answer (squeue answered '101|CD|x'"),
    ],
)
def test_a_question_that_failed_is_never_answered_as_no(
    slurm: Cluster, tmp_path: Path, squeue: str, sacct: str, sentence: str
) -> None:
    slurm.says(squeue=squeue, sacct=sacct, scontrol="exit 1")
    (job,) = made_jobs(Case.open(tmp_path / "case"), 1)
    (found,) = job_outcomes([job])
    assert sentence in found.state.sentence
    if "does not answer" in sentence or "not known" in sentence:
        assert found.state.status is None
    if "not answer" in found.state.sentence:
        assert not (job.folder / "end.json").exists(), "it may be known tomorrow"


def test_the_single_question_tells_an_accounting_that_is_down_from_one_that_is_not_there(
    slurm: Cluster, tmp_path: Path
) -> None:
    """As `follow` asks: the same two sentences."""
    slurm.says(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", sacct=HUNG)
    job = BatchJob(tmp_path, "7", ("probe",), 0.0)
    assert "its accounting does not answer (sacct" in submit.job_state(job).sentence
    slurm.says(sacct=DISABLED)
    assert "left no end; its node may have failed" in submit.job_state(job).sentence


def test_a_job_whose_node_saw_no_case_folder_says_so(slurm: Cluster, tmp_path: Path) -> None:
    slurm.says(
        squeue="echo '101|FAILED|2026-11-23T14:05:00|n3|gpu|0:10|NonZeroExitCode'",
        scontrol="echo 'JobId=101 JobState=FAILED ExitCode=66:0 RunTime=00:00:10'",
    )
    (job,) = made_jobs(Case.open(tmp_path / "case"), 1)
    (found,) = job_outcomes([job])
    assert "does not see the case folder" in found.state.sentence


def test_status_as_json_says_what_came_of_each_job(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.says(squeue=HUNG)
    case = Case.open(tmp_path / "case")
    first, last = made_jobs(case, 2, "report", "--case", "x")
    action = {"name": "restart", "reason": "rank_killed is proven", "exclude_hosts": ["n2"]}
    ended(first, 1, verdict="found", cause="rank_killed", strength="proven", say="Lost n2.", action=action)
    assert main(["status", "--json", "101", "--case", str(case.path)]) == 1
    told = json.loads(capsys.readouterr().out)
    done, silent = told["jobs"]
    assert told["job"] == done["id"] == "101" and done["over"] and done["exit_status"] == 1
    assert (done["verdict"], done["cause"], done["action"]) == ("found", "rank_killed", action)
    assert not silent["over"] and not silent["answered"] and silent["verdict"] is None
    assert main(["status", "--case", str(case.path)]) == 0
    shown = capsys.readouterr().err
    assert "ncclkit report: Job 101 ended with exit status 1 (it found trouble, or failed).\n  found (proven, rank_killed): Lost n2.\n" in shown
    assert "  Restart or stop: restart without n2: rank_killed is proven\n" in shown


def test_what_somebody_else_wrote_into_a_case_is_no_verdict(slurm: Cluster, tmp_path: Path) -> None:
    slurm.says(squeue=HUNG)
    first, second = made_jobs(Case.open(tmp_path / "case"), 2)
    ended(first, 0)
    (first.folder / "outcome.json").write_text('{"verdict": ["found"]}')
    (second.folder / "end.json").write_text('{"state": "RUNNING", "elapsed": "", "nodes": "", "status": 0}')
    found = job_outcomes([first, second])
    assert found[0].verdict == "" and "is not what is kept there" in found[0].sentence
    assert found[1].state.state == SILENT


def test_submit_as_json_names_the_job(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.says(sbatch="echo 4711", squeue="echo '4711|RUNNING|2026-11-23T14:05:00|n1|gpu|0:01|None'")
    slurm.says(scontrol="exit 1", sinfo="exit 1", sacctmgr="exit 1")
    case = str(tmp_path / "case")
    assert main(["submit", "--json", "--no-wait", "causes", "--case", case]) == 2, "a catalogue needs no node"
    assert main(["submit", "--json", "--no-wait", "inspect", "--case", case]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["job"]["id"] == "4711" and told["job"]["state"] == "RUNNING"
    assert main(["submit", "--json", "--dry-run", "inspect", "--case", case]) == 0
    assert "#SBATCH --job-name=ncclkit-inspect" in json.loads(capsys.readouterr().out)["script"]


def test_a_verb_keeps_what_came_of_it_where_the_batch_script_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ncclkit.evidence.samples import HERE

    script = submit.script(Case(), tmp_path / "job", ["diagnose", "log"], submit.JobOptions())
    assert f"export NCCLKIT_OUTCOME={tmp_path}/job/outcome.json\n" in script
    for words in (["diagnose"], ["diagnose", "--json"]):
        kept = tmp_path / "outcome.json"
        monkeypatch.setenv("NCCLKIT_OUTCOME", str(kept))
        main([*words, str(HERE / "rank_raises")])
        told = json.loads(kept.read_text())
        assert (told["verdict"], told["cause"], told["action"]["name"]) == ("found", "rank_exception", "fix_program")
        assert told["say"].startswith("Rank 2 raised ValueError")
        assert "NCCLKIT_OUTCOME" not in os.environ, "what the verb starts must not write there"
        kept.unlink()
    main(["diagnose", str(HERE / "rank_raises"), "--html", str(tmp_path / "page.html")])
    assert not kept.exists(), "nobody asked"


UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.mark.parametrize(
    ("scontrol", "sentence"),
    [
        (f"echo '{NOT_THERE}' >&2; exit 1", "Slurm did not say where job 4711 runs (scontrol: slurm_load_jobs"),
        ("kill -9 $$", "Slurm did not say where job 4711 runs (scontrol: no output)"),
        ("echo hello", "Slurm did not say where job 4711 runs (scontrol answered 'hello')"),
        ("echo 'JobId=4711 JobState=PENDING NumNodes=2'", "Slurm says of job 4711 PENDING, so none of its"),
        # the healthy twin: it answered
        (UNKNOWN, "Slurm job 4711 has no rank of this user on this host"),
    ],
)
def test_attach_tells_no_answer_from_no_rank(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], scontrol: str, sentence: str
) -> None:
    slurm.says(scontrol=scontrol, srun="exit 1")
    assert main(["attach", "--job", "4711", "--case", str(tmp_path / "case")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert ("no rank of this user" in said) == (scontrol == UNKNOWN)
