"""The command as scripts and tickets use it: output, exit status, one sentence for bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclkit.causes import catalogue
from ncclkit.causes.engine import diagnose
from ncclkit.cli.verbs import VERBS
from ncclkit.core.case import Case
from ncclkit.evidence.samples import HERE
from ncclkit.lab.faults import recording
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.report.parameters import declared, own
from tests.cli.command import LATE, ROOT, WARM, Answer, Typed, run
from tests.processes import leftovers


def sentence(done: Answer) -> str:
    """The one line on stderr of a refusal; nothing on stdout, no traceback."""
    assert done.returncode == 2, done
    assert done.stdout == "" and done.stderr.startswith("ncclkit: ") and done.stderr.count("\n") == 1, done
    return done.stderr


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    done = run("diagnose", "--json", LATE)
    assert done.returncode == 1
    return dict(json.loads(done.stdout))


class TestContract:
    """``diagnose --json``, which others script against."""

    def test_top_level(self, answer: dict[str, Any]) -> None:
        assert list(answer) == ["schema", "verdict", "inputs", "job", "findings", "unknown", "errors", "risks", "action"]
        assert answer["schema"] == 1
        assert list(answer["job"]) == ["ranks", "hosts", "nccl", "torch", "cuda", "transports"]
        assert all(set(row) == {"path", "bytes", "lines"} for row in answer["inputs"])
        assert sum(row["bytes"] for row in answer["inputs"]) > 10_000

    def test_finding(self, answer: dict[str, Any]) -> None:
        first = answer["findings"][0]
        keys = {"cause", "verdict", "strength", "culprits", "say", "evidence", "advice", "next"}
        assert set(first) == keys
        assert (first["cause"], first["verdict"], first["strength"]) == ("slow_rank", "found", "proven")
        assert set(first["culprits"]) == {"ranks", "hosts", "gpus", "interfaces"} and first["culprits"]["ranks"] == [2]
        assert all(set(piece) == {"path", "line", "text"} for piece in first["evidence"])

    def test_evidence_is_the_raw_line(self, answer: dict[str, Any]) -> None:
        import gzip

        cited = next(p for p in answer["findings"][0]["evidence"] if p["path"].endswith("rank0.log.gz"))
        lines = gzip.open(cited["path"], "rt").read().split("\n")
        assert lines[cited["line"] - 1].strip() == cited["text"].split("\n")[0].strip()

    def test_every_cause_is_accounted_for(self, answer: dict[str, Any]) -> None:
        named = [f["cause"] for f in answer["findings"]] + [u["cause"] for u in answer["unknown"]]
        assert set(named) <= set(catalogue()) and len(named) == len(set(named))
        assert all(u["missing"] for u in answer["unknown"])
        assert {f["verdict"] for f in answer["findings"]} == {"found"}

    def test_a_healthy_job_has_none(self, typed: Typed) -> None:
        done = typed("diagnose", "--json", str(HERE / "healthy"))
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"], answer["findings"]) == (0, "healthy", [])

    @pytest.mark.parametrize(
        ("text", "verdict", "status"),
        [(b"lorem ipsum\ndolor\n", "no_job", 2), (b"RuntimeError: NCCL error\n", "unexplained", 1)],
    )
    def test_no_evidence_is_not_health(self, typed: Typed, text: bytes, verdict: str, status: int) -> None:
        done = typed("diagnose", "--json", "-", stdin=text)
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"]) == (status, verdict)
        told = typed("diagnose", "-", stdin=text)
        assert told.returncode == status and "Nothing found" not in told.stdout
        assert [row["text"] for row in answer["errors"]] == [text.decode().strip()] * (status == 1)


def test_standard_input_and_several_paths(tmp_path: Path, typed: Typed) -> None:
    line = b"RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9\n"
    assert "eth9" in run("diagnose", "-", stdin=line).stdout
    (tmp_path / "a.log").write_bytes(line)
    assert len(json.loads(typed("diagnose", "--json", str(tmp_path / "a.log"), LATE).stdout)["inputs"]) > 2


def test_logs_of_several_jobs_are_judged_each_alone(tmp_path: Path, typed: Typed) -> None:
    missing = "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9\n"
    logs = [tmp_path / "slurm-1.out", tmp_path / "slurm-2.out"]
    logs[0].write_text(missing)
    logs[1].write_text(
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'a.py', line 3\n[rank0]: KeyError: 'loss'\n"
    )
    done = typed("diagnose", *map(str, logs))
    first, second = done.stdout.split(f"Job 2 of 2: {logs[1]}\n")
    assert first.startswith(f"Job 1 of 2: {logs[0]}\n") and "eth9" in first and "KeyError" not in first
    assert done.returncode == 1 and "KeyError" in second and "eth9" not in second
    answer = json.loads(typed("diagnose", "--json", *map(str, logs)).stdout)
    (other,) = answer["other_jobs"]
    assert [row["path"] for row in answer["inputs"] + other["inputs"]] == list(map(str, logs))
    assert (answer["findings"][0]["cause"], other["logs"]) == ("ifname_not_found", str(logs[1]))
    assert other["findings"][0]["cause"] == "rank_exception" and answer.keys() - {"other_jobs"} == other.keys() - {
        "logs"
    }


def test_a_case_folder_brings_its_facts(typed: Typed) -> None:
    done = typed("diagnose", "--json", str(ROOT / "tests" / "specimens" / "ifname_not_found" / "found-facts"))
    assert [f["cause"] for f in json.loads(done.stdout)["findings"]] == ["ifname_not_found"], done.stdout


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A case folder with yesterday's run, in which rank 2 was late."""
    case = Case.open(tmp_path / "case")
    folder = recording.replay(case, HERE / "rank_late")
    os.utime(folder, (time.time() - 86400 * 3,) * 2)
    assert diagnose(case).findings[0].cause == "slow_rank"
    return tmp_path / "case"


def test_a_verb_judges_what_it_was_given_and_not_an_old_run(old: Path, typed: Typed) -> None:
    local = ("a", "b", "--remote-command", "sh -c 'echo {host}; exit 3'")
    for argv in (("inspect",), ("connect", *local)):
        done = typed(*argv, "--case", str(old), **WARM)
        assert "slow_rank (" not in done.stdout and "Rank 2" not in done.stdout, done
        assert "1-rank_late, 3 days ago" in done.stderr and "the new one alone" in done.stderr
        assert done.returncode == (2 if argv[0] == "connect" else done.returncode)
    facts = typed("inspect", "--json", "--case", str(old), **WARM).stdout.splitlines()
    assert {json.loads(line)["host"] for line in facts} <= {socket.gethostname(), ""}


def test_a_live_test_that_fails_says_why_and_is_not_judged_by_an_old_one(old: Path, typed: Typed) -> None:
    """And which variables it set; the facts, from which a bound would follow, were read without being asked for."""
    options = ("--backend", "gloo", "--max-bytes", "64", "--env", "GLOO_SOCKET_IFNAME=eth97")
    done = typed("probe", *options, "--case", str(old), **WARM)
    assert done.returncode == 1 and "GLOO_SOCKET_IFNAME=eth97 matches no network interface" in done.stdout
    assert "slow_rank" not in done.stdout
    assert "set for the ranks: TORCH_FR_BUFFER_SIZE=2000 " in done.stderr
    assert (old / "facts.jsonl").stat().st_size > 1000


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_experiments_write_nothing_into_the_evidence(tmp_path: Path, typed: Typed) -> None:
    """Though it is a case folder; its run is run again all the same, in the case that is named."""
    case = Case.open(tmp_path / "evidence")
    recording.replay(case, HERE / "ifname_missing")
    diagnose(case)
    before = contents(tmp_path / "evidence")
    assert "case.json" in {Path(path).name for path in before}
    own = str(tmp_path / "case")
    done = typed("diagnose", "--check", "evidence", "--case", own, cwd=tmp_path, **WARM)
    assert contents(tmp_path / "evidence") == before
    assert (tmp_path / "case" / "case.json").exists() and "ifname_not_found" in done.stdout, done
    assert [path.name for path in (tmp_path / "case" / "runs").iterdir()] == ["1-ifname_missing"]
    typed("diagnose", "--check", "evidence", "--case", own, cwd=tmp_path, **WARM)
    assert (tmp_path / "case" / ".checks" / "1" / "case.json").exists(), "what --check did before is another matter"
    typed("diagnose", "--check", own, "--case", own, cwd=tmp_path, **WARM)
    assert not (tmp_path / "case" / ".checks" / "2").exists(), "the folder of --case may be the one that is judged"
    assert leftovers() == []


def bad_paths(folder: Path) -> Iterable[tuple[str, str]]:
    """(path, what the sentence must say)."""
    (folder / "empty.log").write_bytes(b"")
    (folder / "binary").write_bytes(bytes(range(256)) * 64)
    (folder / "none").mkdir()
    yield str(folder / "missing.log"), "missing.log"
    yield str(folder / "empty.log"), "empty"
    yield str(folder / "binary"), "binary"
    yield str(folder / "none"), "none"


def test_bad_input_is_one_sentence(tmp_path: Path, typed: Typed) -> None:
    for path, says in bad_paths(tmp_path):
        assert says in sentence(typed("diagnose", path)), path


def test_no_permission(tmp_path: Path) -> None:
    """Where we are root, without root's right to read everything."""
    secret = tmp_path / "secret.log"
    secret.write_text("x\n")
    secret.chmod(0)
    (tmp_path / "logs").mkdir(mode=0)
    for path, says in ((secret, "ermission"), (tmp_path / "logs", "cannot be read")):
        command = [sys.executable, "-m", "ncclkit", "diagnose", str(path)]
        if os.geteuid() == 0:
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
        assert says in sentence(done) and "holds no file" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("lab", "nonsense"), "the lab knows"),
        (("probe", "--train-python", "/no/such/python"), "does not exist"),
        (("probe", "--ranks", "-3"), "--ranks must be a whole number between 0 and 100,000"),
        (("probe", "--env", "NOEQUALS"), "NAME=VALUE"),
        (("probe", "--backend", "nccl", "--ranks", "64"), "64 GPUs"),
        (("attach", "--pid", str(os.getpid())), "carry no RANK in the environment"),
        (("attach", "--pid", "4194999"), "There is no process 4194999"),
        (("attach", "--pid", "x=1"), "RANK=PID"),
        (("report", "-p", "ranks=many"), "int"),
        (("report", "-p", "rank=2"), "did you mean ranks"),
        (("report", "--notebook", "guide"), "guided"),
        (("tune", "NCCL_ALGO"), "NAME=VALUE"),
        (("lab", "rank_lat"), "did you mean rank_late?"),
        (("report", "--notebook", "03_log"), "did you mean 03_logs?"),
        (("report", "-p", "max_bytes=6QB"), "such as 4096, 64MB or 1GiB"),
        (("probe", "--timeout", "nan"), "must be a number between 1 and 86,400"),
        (("tune", "NCCL_ALGO=Ring", "--timeout", "inf"), "must be a number between 1 and 86,400"),
        (("attach", "--seconds", "nan"), "--seconds must be a number between 0.01 and 86,400"),
        (("probe", "--env", "=1"), "NAME=VALUE"),
        (("probe", "--max-bytes", "64XB"), "such as 4096, 64MB or 1GiB"),
        (("probe", "--backend", "gloo", "--ranks", "100000"), "allow it with --oversubscribe"),
        (("lab", "rank_late", "--record", "/proc/x"), "No recording can be kept in /proc/x"),
        (("lab", "rank_late", "--record", LATE), "holds a recording already"),
    ],
)
def test_bad_options_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed, argv: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in sentence(typed(*argv, "--case", str(tmp_path / "case")))


def test_a_refusal_is_one_sentence_in_a_shell(tmp_path: Path) -> None:
    assert "must be a whole number between 0 and 100,000" in sentence(run("probe", "--ranks", "-3", cwd=tmp_path))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("diagnos", "x"), "does not know 'diagnos'; did you mean diagnose?"),
        (("diagnose", "--jsn", "x"), "did you mean --json? See `ncclkit diagnose --help`"),
        (("probe", "--ranks", "x"), "but it is 'x'. See `ncclkit probe --help`"),
        (("diagnose",), "arguments are required: PATH"),
        (("inspect", "--case", ""), "The case folder has no name"),
        (("diagnose", ""), "A path is empty"),
        (("step", "--traces", ""), "A path is empty"),
        (("tune", "--sizes", "64,1XB"), "such as 4096, 64MB or 1GiB"),
        (("report", "-p", "timeout=1e999"), "must be float"),
        (("causes", "slow_ran"), "did you mean slow_rank?"),
        (("open", "3_logs"), "did you mean 03_logs?"),
        (("diagnose", "/proc/kmsg"), "dmesg > FILE"),
    ],
)
def test_what_was_meant(typed: Typed, argv: tuple[str, ...], says: str) -> None:
    assert says in sentence(typed(*argv))


def test_sizes_as_people_write_them() -> None:
    from ncclkit.report.parameters import literals, notebook

    typed = {"max_bytes": "64KiB", "ranks": "2", "timeout": "90.0", "variables": "A=1"}
    meant = {"max_bytes": 65536, "ranks": 2, "timeout": 90.0, "variables": "A=1"}
    assert (
        literals(typed, notebook("guided")) == meant
        and literals({"max_bytes": "1GB"}, notebook("guided"))["max_bytes"] == 10**9
    )


def test_help_begins_where_people_begin(typed: Typed) -> None:
    said = typed("--help").stdout
    assert said.startswith("Where to begin: name what your job left behind")
    assert said.index("\n    $ ncclkit diagnose logs/ --html report.html") < said.index("usage:")
    groups = [said.index(f"\n{group}\n    {first} ") for group, first in FIRST_OF_GROUP.items()]
    assert groups == sorted(groups) and max(map(len, said.splitlines())) <= 100


FIRST_OF_GROUP = {"My job": "diagnose", "This cluster": "inspect", "Learn": "lab"}


def test_no_option_means_two_things(typed: Typed) -> None:
    """Workers of a data loader in one verb, of Dask in the other."""
    assert "--workers" in typed("inspect", "--help").stdout and "--workers" not in typed("diagnose", "--help").stdout
    assert "--readers READERS" in typed("diagnose", "--help").stdout


def test_the_help_of_report_has_the_notebooks_and_their_parameters(typed: Typed) -> None:
    said = typed("report", "--help").stdout
    for name, path in own().items():
        assert re.search(rf"\b{re.escape(name)}\b", said), name
        assert [one for one in declared(path) if not re.search(rf"^  {one}=", said, re.MULTILINE)] == []
    assert "\n  logs=''\n        files, folders, globs, archives, Slurm job ids, space-separated" in said
    assert "guided (guided.zh: in Chinese): " in said


def test_every_verb_has_an_example(typed: Typed) -> None:
    verbs = re.findall(r"^    ([a-z]+)  ", typed("--help").stdout, re.MULTILINE)
    assert set(verbs) == {verb.name for verb in VERBS}
    for verb in verbs:
        assert f"Example: ncclkit {verb}" in typed(verb, "--help").stdout


def test_the_catalogue(typed: Typed) -> None:
    known = dict(line.split(None, 1) for line in typed("causes").stdout.splitlines())
    assert known.keys() == catalogue().keys() == json.loads(typed("causes", "--json").stdout).keys()
    page = typed("causes", "slow_rank").stdout
    assert page.startswith(f"slow_rank: {known['slow_rank']}\n\nWhat you see\n    ") and "\nWhat to do\n" in page
    assert "How to be sure" in json.loads(typed("causes", "--json", "slow_rank").stdout)["slow_rank"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dia",), {"diagnose"}),
        (("diagnose", "--ch"), {"--check"}),
        (("lab", "rank_l"), {"rank_late"}),
        (("causes", "slow_"), {"slow_rank", "slow_transport"}),
        (("open", "03"), {"03_logs"}),
        (("probe", "--backend", "g"), {"gloo"}),
    ],
)
def test_completion(completion: Path, words: tuple[str, ...], offered: set[str]) -> None:
    """What bash offers, once it has read what `ncclkit completion bash` prints."""
    code = f"""source {completion}; COMP_WORDS=(ncclkit "$@"); COMP_CWORD=$#; COMP_LINE="ncclkit $*"
    $(complete -p ncclkit | sed 's/.*-F \\([^ ]*\\).*/\\1/') ncclkit; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, timeout=30)
    assert {line.strip() for line in done.stdout.splitlines()} == offered, done.stderr


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("completion") / "ncclkit.bash"
    script.write_text(run("completion", "bash").stdout)
    assert run("completion", "zsh").stdout.startswith("#compdef ncclkit")
    return script


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of this size, which is soon full."""
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_full_disk(tmp_path: Path, typed: Typed) -> None:
    """A real full file system under the case: one sentence, and nothing is left running."""
    with small_disk(tmp_path / "disk", "40k") as disk:
        for verb in ("probe", "inspect"):
            assert "No space left on device" in sentence(typed(verb, "--case", str(disk / "case"), **WARM))
    assert leftovers() == []


def test_a_disk_that_a_script_fills(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "train.py").write_text("for _ in range(100):\n    print('x' * (1 << 14), flush=True)\n")
    with small_disk(tmp_path / "disk", "80k") as disk:
        words = ("--here", "--ranks", "1", "--case", str(disk / "case"), "--", sys.executable)
        done = typed("step", *words, str(tmp_path / "train.py"), **WARM)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr, done
    assert "Cannot write the run folder" in done.stderr and "No space left on device" in done.stderr, done
    assert leftovers() == []


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """An interpreter without torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return str(tmp_path / "bare" / "bin" / "python")


def test_interpreter_without_torch(tmp_path: Path, bare: str, typed: Typed) -> None:
    done = typed("probe", "--train-python", bare, "--case", str(tmp_path / "case"))
    assert "cannot import torch" in sentence(done) and "TRAIN_PYTHON" in done.stderr


def test_the_report_says_why_there_is_no_live_test(tmp_path: Path, bare: str) -> None:
    """An interpreter without torch: one sentence, exit 2, and the report of what was there, with the facts."""
    done = run("report", "--train-python", bare, "--case", str(tmp_path / "case"))
    assert done.returncode == 2 and "cannot import torch" in done.stderr
    page = (tmp_path / "case" / "report.html").read_text()
    assert "cannot import torch" in page
    assert "limits.nofile.soft" in (tmp_path / "case" / "facts.jsonl").read_text(), "what was read before is kept"
    assert (tmp_path / "case" / "facts.jsonl").stat().st_size > 1000


def test_a_case_folder_named_as_a_parameter_is_where_the_report_goes(tmp_path: Path) -> None:
    done = run("report", "--notebook", "03_logs", "-p", "case_dir=here", "-p", "logs=rank_late", cwd=tmp_path, **WARM)
    assert done.returncode == 0 and sorted(path.name for path in tmp_path.iterdir()) == ["here"]
    assert (tmp_path / "here" / "report-03_logs.html").exists() and (tmp_path / "here" / "findings.json").exists()


def test_inspect_and_probe(tmp_path: Path, typed: Typed) -> None:
    case = str(tmp_path / "case")
    folders = ("--data", str(tmp_path), "--checkpoints", str(tmp_path / "gone"))
    facts = [
        json.loads(line) for line in typed("inspect", "--json", "--case", case, *folders, **WARM).stdout.splitlines()
    ]
    known = {fact["name"]: fact for fact in facts}
    assert {"cpu.usable", "limits.nofile.soft", "software.torch", "storage.work.latency"} <= known.keys()
    assert known["storage.data.latency"]["value"] > 0 and "gone" in known["storage.checkpoints.latency"]["why"]
    done = typed("probe", "--json", "--backend", "gloo", "--max-bytes", "4096", "--case", case, **WARM)
    assert done.returncode == 0
    assert [json.loads(line)["bytes"] for line in done.stdout.splitlines()] == [8, 64, 512, 4096]
    done = typed("probe", "--backend", "gloo", "--op", "broadcast,reduce", "--max-bytes", "64", "--case", case, **WARM)
    lines = done.stdout.splitlines()
    assert [line.partition(" on ")[0] for line in lines[:4]] == [
        "broadcast of 8 B",
        "broadcast of 64 B",
        "reduce of 8 B",
        "reduce of 64 B",
    ]
    assert all(" µs (p99 " in line for line in lines[:4])
    judged = [line.partition(" of about")[0].rpartition(" ")[0] for line in lines[4:6]]
    assert judged == ["broadcast:", "reduce:"] or lines[4].startswith("No reference: this host")  # which is busy


def test_interrupt_ends_everything(tmp_path: Path, typed: Typed) -> None:
    """In a live test that is started as a user's is; the facts before it need not be."""
    typed("inspect", "--case", str(tmp_path / "case"), **WARM)
    command = [sys.executable, "-m", "ncclkit", "probe", "--backend", "gloo", "--max-bytes", str(1 << 26)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    probe = subprocess.Popen(
        [*command, "--case", str(tmp_path / "case")],
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
    )
    assert probe.stderr is not None
    assert any("size 8" in line for line in probe.stderr)
    probe.send_signal(signal.SIGINT)
    said = probe.communicate(timeout=60)[1]
    assert probe.returncode == 130 and "has been ended" in said
    assert leftovers() == []
    status = json.loads((tmp_path / "case" / "runs" / "2-all_reduce" / "status.json").read_text())
    assert status["reason"] == "cancelled"


def test_a_text_names_the_rank_and_its_lines_also_on_a_terminal_of_another_language(typed: Typed) -> None:
    done, usual = run("diagnose", LATE, PYTHONIOENCODING="ascii"), typed("diagnose", LATE)
    assert done.returncode == usual.returncode == 1 and done.stdout.isascii() and "Traceback" not in done.stderr
    assert usual.stdout.encode("ascii", "backslashreplace").decode() == done.stdout
    assert "Rank 2" in usual.stdout and "skip_batches" in usual.stdout and "Do:" in usual.stdout


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ncclkit", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("ncclkit ")


def test_the_list_says_what_each_fault_does_and_takes(typed: Typed) -> None:
    lines = typed("lab", "--list").stdout.splitlines()
    assert len({line.index(fault.says) for line, fault in zip(lines, FAULTS.values(), strict=True)}) == 1
    (small,) = (line for line in lines if line.startswith("small_shm "))
    assert small.endswith("(cause: shm_too_small; needs root)")


def test_lab_breaks_and_finds(tmp_path: Path, typed: Typed) -> None:
    done = typed("lab", "rank_raises", "--backend", "gloo", "--ranks", "2", "--case", str(tmp_path / "case"), **WARM)
    assert done.returncode == 1
    assert "Rank 1 raised ValueError" in done.stdout and "touches only" in done.stderr
    assert leftovers() == []


def test_attach_finds_the_rank_that_is_away(tmp_path: Path, typed: Typed) -> None:
    """A job of ours hangs; another process attaches to it, names the rank and leaves it running."""
    code = (
        "import asyncio,sys; from pathlib import Path; from ncclkit.live.launch import local;"
        "from ncclkit.core.runs import Plan;"
        "argv='train --backend gloo --timeout 300 --fault rank_late --seconds 300'.split();"
        "plan=Plan('late',tuple(argv),3,'gloo',sys.executable,100,{'TORCH_FR_BUFFER_SIZE':'100'});"
        "asyncio.run(local.run_locally(plan,Path(sys.argv[1]),"
        "lambda r: print(r.get('phase'),r.get('rank'),r.get('step',r.get('pid')),flush=True)))"
    )
    (tmp_path / "run").mkdir()
    environ = os.environ | WARM
    job = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert job.stdout is not None
        waited = {"step 0 3", "step 1 3", "step 2 3"}  # then rank 1 is away and the others wait for it
        pids = []
        while waited:
            said = job.stdout.readline().strip()
            pids += ["--pid", said.split()[-1]] if said.startswith("hello") else []
            waited.discard(said)
            assert job.poll() is None
        done = run("attach", "--case", str(tmp_path / "case"), *pids)
        told = typed("attach", "--json", "--seconds", "1", "--case", str(tmp_path / "again"), *pids)
        assert job.poll() is None, "attaching must not end the job"
    finally:
        job.kill()
        job.communicate()
    assert done.returncode == 1 and "Rank 1" in done.stdout and "skip_batches" in done.stdout
    (about,) = (line for line in done.stdout.splitlines() if line.startswith(f"ranks 0-2 on {socket.gethostname()}: "))
    assert re.search(r" train .*\(started by agent\.pyz launch, process \d+\)$", about), about
    whole = json.loads(told.stdout)
    assert whole["running"] == [about], "scripts are told command, host and launcher, too"
    assert "ranks 0-2 at step 3" in whole["progress"] and "ranks 0-2 at step 3\n" in done.stdout
    assert all(f"rank {rank}: " in done.stdout for rank in range(3)), "what each rank did meanwhile is told"
    assert len(list((tmp_path / "case" / "runs").glob("*attach/telemetry.jsonl"))) == 1
