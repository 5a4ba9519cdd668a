"""Words of a case folder and of Slurm's answers: none becomes an option, a second command or a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.run import processes
from ncclkit.cli import main
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.experiments import baseline
from ncclkit.live import probe, scheduler, submit
from ncclkit.live.job_outcomes import job_outcomes
from ncclkit.live.launch import slurm, slurm_beside
from ncclkit.live.options import JobOptions
from tests.processes import leftovers

ROOT = Path(__file__).parents[2]
TOOLS = ("sbatch", "scancel", "squeue", "sinfo", "sacct", "sacctmgr", "scontrol", "srun")


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """Slurm's commands print nothing and keep their words, which this function returns."""
    folder, log = tmp_path / "bin", tmp_path / "called"
    folder.mkdir()
    for name in TOOLS:
        program(folder / name, f"printf '%s\\037' {name} \"$@\" >> '{log}'; echo >> '{log}'")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(scheduler, "_submits", lambda conf: True)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return lambda: [line.split("\037")[:-1] for line in log.read_text().splitlines()] if log.exists() else []


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def says(folder: Path, name: str, answer: str) -> None:
    """Let a command of Slurm print an answer after it has kept its words."""
    kept = (folder / "bin" / name).read_text()
    (folder / "answer").write_text(answer)
    (folder / "bin" / name).write_text(f"{kept}cat '{folder}/answer'\n")


def submitted(case: Path, number: Any, words: Any = ("probe",)) -> Path:
    """A case folder with one job, as somebody may have mailed it."""
    folder = case / "jobs" / "1-probe"
    folder.mkdir(parents=True)
    kept = {"id": number, "words": list(words), "submitted": 0.0}
    (folder / "job.json").write_text(json.dumps(kept))
    return case


# ---------------------------------------------------------------- ids

STRANGE = (
    *("--user=ann", "-u", "--me", "--state=RUNNING", "-t", "--", "-7", "+7", "", "0", "00", "07", " 7", "7 ", "7 8"),
    *("7\n", "7\n8", "7;8", "7,8", "7_1", "7_[0-9]", "7+1", "7.0", "7.batch", "1e3", "0x7", "1_0", "²", "٣", "７"),
    *("$(id)", "7|8", "%j", "7\0", "\ud800", "9" * 21, "9" * 5000),
)


def mutated(seed: int = 41, count: int = 60) -> Iterator[str]:
    """Ids in which one sign was put, or replaced, that no number has."""
    draw = random.Random(seed)
    for _ in range(count):
        number = str(draw.randrange(1, 10**7))
        at, sign = draw.randrange(len(number) + 1), draw.choice("-+=,;_. \t\n\r%\\'\"²٣a\x00\u2028[]{}()*?$`|&<>")
        yield number[:at] + sign + number[at + draw.randrange(2) :]


def test_an_id_that_is_no_number_is_one_sentence_and_no_word_of_a_command(
    tmp_path: Path, called: Callable[[], list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, strange in enumerate((*STRANGE, *mutated())):
        case = str(submitted(tmp_path / str(number), strange))
        for more in (["--cancel"], ["--follow"], []):
            assert main(["status", *more, "--case", case]) == 2, strange
            (sentence,) = capsys.readouterr().err.splitlines()
            assert "job.json" in sentence and len(sentence) < 500, sentence
    assert called() == []


@pytest.mark.parametrize("kept", [{"id": 7}, {"id": ["7"]}, {"words": "x"}, [], 7, None])
def test_a_job_file_of_another_form_is_one_sentence(
    tmp_path: Path, called: Callable[[], list[list[str]]], capsys: pytest.CaptureFixture[str], kept: Any
) -> None:
    case = submitted(tmp_path / "case", "7")
    form = {"id": "7", "words": ["probe"], "submitted": 0.0} | kept if isinstance(kept, dict) else kept
    (case / "jobs" / "1-probe" / "job.json").write_text(json.dumps(form))
    assert main(["status", "--cancel", "--case", str(case)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "job.json" in sentence and called() == []


SHOWN = "JobId=7 JobName=x JobState=RUNNING Reason=None ExitCode=0:0 Partition=gpu Command={} WorkDir=/ StdIn=/dev/null"


@pytest.mark.parametrize(
    ("command", "cancelled"),
    [
        ("/home/ann/train.sbatch", False),
        ("(null)", False),
        ("/x/jobs/2-probe/job.sbatch", False),
        ("/x/jobs/1-probe/job.sbatch.bak", False),
        ("/elsewhere/a Case=1/jobs/1-probe/job.sbatch", True),  # a case folder may have moved
    ],
)
def test_a_number_of_another_job_of_this_user_cancels_nothing(
    tmp_path: Path,
    called: Callable[[], list[list[str]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    cancelled: bool,
) -> None:
    """Ids of other jobs can be seen in the queue by whoever mails a case."""
    cancel = submit.cancel
    monkeypatch.setattr(submit, "cancel", lambda job: cancel(job, patience=0.0))
    case = submitted(tmp_path / "case", "7")
    says(tmp_path, "scontrol", SHOWN.format(command))
    main(["status", "--cancel", "--case", str(case)])
    assert (["scancel", "--", "7"] in called()) is cancelled
    assert ("this case did not submit" in capsys.readouterr().err) is not cancelled


# ---------------------------------------------------------------- folders

CONTROLS = [chr(code) for code in (*range(1, 32), *range(127, 160))]
REFUSED = [
    *(f"a{sign}b" for sign in CONTROLS),
    *("a\n#SBATCH --wrap=id", "\n", "a\\b", "a\\", "\\%j", os.fsdecode(b"lat\xe9"), os.fsdecode(b"\xff\n")),
]
TAKEN = [
    "a b",
    "it's",
    'q"q',
    '"',
    "50%",
    "%j%%N",
    "a #b",
    "$HOME",
    "`id`",
    "$(id)",
    "é中",
    "-x",
    "a=b;c",
    "*?[a]",
    "~",
]


def test_a_folder_that_cannot_stand_in_a_batch_script_is_refused_before_anything_is_written(
    tmp_path: Path, called: Callable[[], list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in REFUSED:
        place = tmp_path / "home"
        case = place / name / "case"
        assert main(["submit", "probe", "--case", str(case)]) == 2, name
        (sentence,) = capsys.readouterr().err.splitlines()
        assert "name another" in sentence, sentence
        assert not place.exists()
        case.mkdir(parents=True)
        with pytest.raises(NcclkitError, match="name another"):
            submit.submit(Case.open(case), ["probe"], JobOptions())
        assert not list(case.glob("jobs/*"))
        shutil.rmtree(place)
    assert called() == []


def parsed_by_slurm(line: bytes) -> bytes:
    """The value of ``#SBATCH --output=…``, as the parser of Slurm 22.05 and its patterns for names read it."""
    value = re.fullmatch(rb'#SBATCH --output="((?:\\.|[^"\\])*)"', line)
    assert value, line
    name = re.sub(rb"\\(.)", rb"\1", value[1])
    assert b"\\" not in name and not re.search(rb"%[^%]", name.replace(b"%%", b""))
    return name.replace(b"%%", b"%")


def test_any_other_folder_is_written_so_that_slurm_reads_it_back(
    tmp_path: Path, called: Callable[[], list[list[str]]]
) -> None:
    for name in TAKEN:
        case = Case.open(tmp_path / "home" / name)
        says(tmp_path, "sbatch", "7\n")
        job = submit.submit(case, ["probe"], JobOptions())
        text = (job.folder / "job.sbatch").read_bytes()
        output = next(line for line in text.splitlines() if line.startswith(b"#SBATCH --output="))
        assert parsed_by_slurm(output) == os.fsencode(job.folder / "job.out")
        assert subprocess.run(["bash", "-n"], input=text, timeout=20).returncode == 0
        assert called()[-1] == ["sbatch", "--parsable", "--", str(job.folder / "job.sbatch")]


def test_a_working_folder_that_is_not_utf8_arrives_as_its_bytes(
    tmp_path: Path, called: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the script ends with 66, and status blames the case folder."""
    here = tmp_path / os.fsdecode(b"lat\xe9")
    here.mkdir()
    monkeypatch.chdir(here)
    says(tmp_path, "sbatch", "7\n")
    job = submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions())
    line = next(line for line in (job.folder / "job.sbatch").read_bytes().splitlines() if line.startswith(b"cd "))
    done = subprocess.run(["bash", "-c", line + b"; pwd"], cwd="/", capture_output=True, timeout=20)
    assert done.stdout.strip() == os.fsencode(here)


def test_an_option_of_sbatch_with_a_line_break_is_refused(
    tmp_path: Path, called: Callable[[], list[list[str]]]
) -> None:
    case = Case.open(tmp_path / "case")
    with pytest.raises(NcclkitError, match="which no #SBATCH line can hold"):
        submit.submit(case, ["probe"], JobOptions(sbatch_options="'--comment=a\nid'"))
    text = submit.script(case, tmp_path, ["probe"], JobOptions(sbatch_options="""--comment='a "b" \\c'"""))
    assert '#SBATCH "--comment=a \\"b\\" \\\\c"\n' in text
    assert called() == [] and not list(tmp_path.glob("case/jobs/*"))


def test_nothing_is_left_where_the_user_says_no(tmp_path: Path, called: Callable[[], list[list[str]]]) -> None:
    def no(record: dict[str, Any]) -> None:
        raise NcclkitError("Nothing was submitted.")

    with pytest.raises(NcclkitError, match="^Nothing was submitted"):
        submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions(), no)
    assert called() == [] and not list(tmp_path.glob("case/jobs/*"))


@pytest.mark.parametrize("job", ["-5", "--user=ann", "²", "7 8", "0"])
def test_a_job_to_attach_to_is_a_number(tmp_path: Path, called: Callable[[], list[list[str]]], job: Any) -> None:
    with pytest.raises(NcclkitError, match="in place of a Slurm job id"):
        asyncio.run(slurm_beside.running_parts(str(job)))
    with pytest.raises(NcclkitError, match="in place of a Slurm job id"):
        slurm_beside.command_beside(slurm_beside.RunningParts(job, (1,)), tmp_path / "agent", tmp_path)
    assert called() == []


def test_files_that_srun_opens_are_these_files(tmp_path: Path) -> None:
    parts = slurm_beside.RunningParts("7", (1,))
    words = slurm_beside.command_beside(parts, tmp_path / "50%N" / "agent", tmp_path / "%j")
    assert f"--input={tmp_path}/50%%N/agent" in words and f"--output={tmp_path}/%%j/attach-node%n-%N.jsonl" in words
    with pytest.raises(NcclkitError, match="backslash"):
        slurm_beside.command_beside(parts, tmp_path / "agent", tmp_path / "a\\b")
    with pytest.raises(NcclkitError, match="begins with a dash"):
        slurm.checked_program("--wrap")


# ---------------------------------------------------------------- experiments

EVIL = {"LD_PRELOAD": "/x.so", "PYTHONPATH": "/x", "NCCL_NET_PLUGIN": "/x.so", "TORCH_EXTENSIONS_DIR": "x", "PATH": "x"}


def planned(case: Path, **more: Any) -> Case:
    """A case with one run, as somebody may have mailed it."""
    plan = Plan("all_reduce", ("collective", "--backend", "gloo"), 2, "gloo", sys.executable, 60.0)
    (case / "runs" / "1-all_reduce").mkdir(parents=True)
    value = json.dumps(asdict(plan) | {"env": {"NCCL_ALGO": "Ring"}} | more)
    (case / "runs" / "1-all_reduce" / "plan.json").write_text(value)
    return Case.open(case)


def test_a_run_of_somebody_else_is_repeated_with_programs_of_ours(tmp_path: Path) -> None:
    program(tmp_path / "python3", "touch /tmp/executed")
    source = planned(tmp_path / "mailed", python=str(tmp_path / "python3"), env={"NCCL_ALGO": "Ring"} | EVIL)
    own = Case.open(tmp_path / "own")
    baseline.take_over(own, source)
    run = baseline.last(own)
    assert run and run.plan.python == probe.interpreter() and run.plan.env == {"NCCL_ALGO": "Ring"}
    assert run.plan.argv == ("collective", "--backend", "gloo")


@pytest.mark.parametrize("argv", [["guard", "id"], ["node"], ["--own"], [["collective"]], "collective", [7]])
def test_a_run_of_somebody_else_that_is_none_of_ours_is_not_repeated(tmp_path: Path, argv: Any) -> None:
    source = planned(tmp_path / "mailed", argv=argv)
    with pytest.raises(NcclkitError, match="no run that can be repeated"):
        baseline.take_over(Case.open(tmp_path / "own"), source)


def test_variables_of_a_log_load_nothing() -> None:
    case = Case()
    given = {"NCCL_ALGO": "Ring"} | EVIL
    case.events = [Event("nccl.env", "", data={"name": name, "value": value}) for name, value in given.items()]
    assert baseline.nccl_variables(case) == {"NCCL_ALGO": "Ring"}


# ---------------------------------------------------------------- answers

FIELDS = "JobState Restarts ExitCode NodeList Partition RunTime StartTime Reason JobId NumNodes".split()
VALUES = ("", "²", "٣", "9" * 5000, "-1", "1:2:3", ":", "0:", ":9", "x:y", "(null)", "N/A", "Unknown", "--", "\0", "=")
ROWS = (
    "",
    "|",
    "||||||||",
    "gpu",
    "gpu|idle",
    "gpu|idle|²|gpu:²|²",
    f"gpu|idle|{'9' * 5000}|gpu:{'9' * 5000}|{'9' * 5000}",
)
TEXTS = (
    "PartitionName=gpu Default=YES\ngpu|idle|²|gpu:٣|²",
    "",
    "\n",
    "\n\n",
    " ",
    "\0",
    "<html>",
    "{}",
    "JobState",
    "=",
    "JobState=",
    "\ufffd" * 9,
    "CANCELLED",
    "|||",
    " | ",
)


def odd_answers() -> Iterator[str]:
    """What a command of Slurm, a wrapper around it or a broken plugin may print."""
    yield from TEXTS
    yield from ROWS
    for state in ("PENDING", "RUNNING", "COMPLETED", "FAILED"):
        for field in FIELDS:
            for value in VALUES:
                given = {"JobId": "7", "JobState": state, "Partition": "gpu"} | {field: value}
                yield " ".join(f"{name}={text}" for name, text in given.items())
    for word in ("", "²", "CANCELLED by", " ", "FAILED"):
        for code in VALUES:
            yield f"{word}|{code}|1|n1"


def test_no_answer_of_slurm_is_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a job said to have ended by an answer that tells no state."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    job = submit.BatchJob(tmp_path, "7", ("probe",), 0.0)
    for said in odd_answers():
        monkeypatch.setattr(scheduler, "ask_slurm", lambda *words, said=said, **more: said)
        now = submit.job_state(job)
        assert now.sentence.startswith("Job 7"), (said, now)
        if "JobState=" not in said:
            assert not now.over, (said, now)
        case = Case()
        case.facts = scheduler.read_facts()
        assert {"partition", "account", "qos"} <= scheduler.choices(case).keys()
        assert all(map(scheduler.partition_words, scheduler.known(case).get("partitions", [])))
        assert scheduler.scheduler_sentence(case)
        (outcome,) = job_outcomes([job])
        assert outcome.state.sentence.startswith("Job 7"), (said, outcome)
        (tmp_path / "end.json").unlink(missing_ok=True)
        if "JobState=RUNNING" in said:
            with suppress(NcclkitError):
                assert asyncio.run(slurm_beside.running_parts("7"))
            continue
        with pytest.raises(NcclkitError, match="Slurm (did not say where|says of) job 7 "):
            asyncio.run(slurm_beside.running_parts("7"))


def test_the_accounting_is_asked_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit.BatchJob(tmp_path, "7", ("probe",), 0.0)

    def ask(*words: str, **more: Any) -> str:
        if words[0] == "scontrol":
            raise NcclkitError("scontrol: Invalid job id specified.")
        return said

    monkeypatch.setattr(scheduler, "ask_slurm", ask)
    for said in odd_answers():
        assert submit.job_state(job).sentence.startswith("Job 7"), said


def test_a_partition_from_slurm_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def ask(*words: str, **more: Any) -> str:
        asked.append(words)
        return "JobId=7 JobState=PENDING Reason=NodeDown Partition=--me" if words[0] == "scontrol" else ""

    monkeypatch.setattr(scheduler, "ask_slurm", ask)
    submit.job_state(submit.BatchJob(tmp_path, "7", ("probe",), 0.0))
    assert {words[0] for words in asked} == {"scontrol", "squeue", "sinfo"}
    assert not [words for words in asked if "--me" in words]


@pytest.mark.parametrize("name", ["-x", "--all", "n1;id", "$(id)", "²"])
def test_names_of_nodes_are_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(scheduler, "ask_slurm", lambda *words, **more: f"{name}\nn2\n")
    with pytest.raises(NcclkitError, match="does not know the nodes"):
        asyncio.run(slurm.node_names())


@pytest.mark.parametrize("value", [7, "x", [7], [{}], [{"name": "gpu"}], [[]], {"a": 1}, [{"account": 7, "qos": None}]])
def test_facts_of_a_case_that_have_another_form_are_left_out(value: Any) -> None:
    case = Case()
    case.facts = [Fact(f"scheduler.{name}", value) for name in ("partitions", "accounts", "jobs", "version")]
    assert not any(scheduler.choices(case).values())
    assert scheduler.scheduler_sentence(case) and submit.script(case, Path("/case/jobs/1-probe"), ["probe"], JobOptions())


@pytest.mark.parametrize("long", ["A=" + " " * (1 << 20) + "x", "StdOut=" + " " * (1 << 20) + "x", " A" * (1 << 19)])
def test_a_long_answer_takes_no_square_of_its_length(long: str) -> None:
    """A megabyte; quadratic readers need hours for it."""
    from ncclkit.evidence.sources import inputs

    assert isinstance(scheduler.fields(long), dict)
    assert isinstance(inputs.RUNNING.findall(long), list)


@pytest.mark.parametrize("value", ["", "abc", "²", "-1", "9" * 5000])
def test_variables_of_slurm_that_are_no_numbers_are_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NTASKS"):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", value)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm.nodes() == 0 and scheduler.scheduler_sentence(Case()).startswith("Inside job 7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert "--nodes 2" in " ".join(slurm.srun_once_per_node())


# ---------------------------------------------------------------- endless answers

ENDLESS = """trap '' TERM
(trap '' TERM; sleep 300) &
echo "$! $$" > {pids}
{what}
"""
ASKED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # an unbounded reader must not eat the machine
from pathlib import Path
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import scheduler, submit
from ncclkit.live.options import JobOptions
submit.SUBMITS = scheduler.DEADLINE = float(sys.argv[1])
job = submit.BatchJob(Path("case"), "7", ("probe",), 0.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(submit.submit(Case.open("case"), ["probe"], JobOptions()))
except NcclkitError as error:
    print(error)
print(submit.job_state(job).sentence)
print(scheduler.read_facts()[-1].why)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("what", ["yes", "yes >&2", "exec sleep 300", "exec >&- 2>&-; sleep 300"])
def test_an_endless_command_of_slurm_ends_with_all_it_started(tmp_path: Path, what: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        program(tmp_path / "bin" / name, ENDLESS.format(pids=tmp_path / f"{name}.pids", what=what))
    env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, "0.7"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, state, fact, grown = done.stdout.splitlines()
    assert refused.startswith("It is not known whether Slurm took the job: sbatch"), refused
    assert "Slurm does not answer" in state and fact.startswith("squeue"), done.stdout
    assert int(grown) < 200 << 10, f"{grown} KiB"
    started = [int(pid) for file in tmp_path.glob("*.pids") for pid in file.read_text().split()]
    assert started and not [pid for pid in started if processes.is_alive(pid)]
    assert leftovers() == []
