"""The case folder: what goes in comes out, and nothing collected is ever lost."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ncclkit.core.kinds import C10dTimeout
from ncclkit.cli.judging import open_case
from ncclkit.core.case import SCHEMA, Case
from ncclkit.core.model import Advice, Event, Experiment, Fact, Measurement, NcclkitError, clear, found, unknown
from ncclkit.core.storage import write

EVENT = Event("c10d.timeout", "Watchdog caught …", "rank0.log", 7, 1.5, "n1", 42, 0, {"seq": 3, "op": "ALLREDUCE"})
FACT = Fact("net.interfaces", [{"name": "eth0"}], source="/sys/class/net", host="n1")
MEASURED = Measurement("all_reduce", 1024, "float32", 2, 1, "gloo", 10.0, 12.0, 0.1, 0.1, 0.1, 0, 10)
FINDING = found(
    "slow_rank",
    "likely",
    "Rank 1 is late.",
    [EVENT],
    ranks=(1,),
    advice=(Advice("Wait.", {"A": "1"}),),
    next=Experiment("Is it late?", {"env": {}}, {"slow_rank": "yes"}),
)


def test_round_trip(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "c").add([EVENT, FACT, MEASURED, FINDING, unknown("gpu_oom", "a log of rank 1")]).save()
    again = Case.open(tmp_path / "c")
    assert (again.events, again.facts, again.measurements) == (case.events, case.facts, case.measurements)
    assert again.findings[0].culprits["ranks"] == (1,)
    assert again.findings[0].evidence[0].line == 7
    assert again.findings[0].next == FINDING.next
    assert again.findings[1].missing == ("a log of rank 1",)


def test_equal_records_are_kept_once(tmp_path: Path) -> None:
    case = Case().add([EVENT, EVENT]).add([EVENT])
    assert len(case.events) == 1


def test_newer_facts_replace_older_ones() -> None:
    newer = Fact("net.interfaces", [], host="n1")
    other = Fact("net.interfaces", [], host="n2")
    assert Case().add([FACT, other]).replace_facts([newer]).facts == [other, newer]


def test_queries() -> None:
    case = Case().add([EVENT, FACT, clear("gpu_oom")])
    assert case.of("c10d.") == case.of("c10d.timeout") == case.on(0) == [EVENT]
    assert case.of("c10d.time") == []
    assert case.fact("net.interfaces") == [{"name": "eth0"}]
    assert case.fact("net.nothing", "none") == "none"


def test_latest_holds_the_last_run_and_everything_else() -> None:
    """Runs of two cases do not mix either: each tells its own last one from its folder."""
    ends = [Event("run.end", path=f"/c/runs/{n}-probe/status.json", data={"exitcode": n}) for n in (1, 2, 10)]
    others = [Event("nccl.warn", path="/logs/runs/1-mine/a.log"), Event("nccl.warn", path="/c/b.log")]
    latest = Case().add([*ends, *others, FACT]).latest()
    assert latest.events == [ends[2], *others] and latest.facts == [FACT]
    more = [Event("run.end", path=f"/d/runs/{n}-probe/status.json", data={"exitcode": n}) for n in (1, 2)]
    assert Case().add([*ends, *more]).latest().events == [ends[2], more[1]]


def test_run_folders_count_on(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    assert [case.new_run(n).name for n in ("a", "b c/../d", "")] == ["1-a", "2-b_c_d", "3-run"]
    assert [run.name for run in case.runs()] == ["1-a", "2-b_c_d", "3-run"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("case.json", "{", "is not JSON"),
        ("facts.jsonl", '{"name": "a"}\n{}\n', "facts.jsonl:2"),
        ("case.json", '{"schema": 99}', "written by another ncclkit"),
        ("case.json", '{"schema": 1}', r"written by ncclkit 0\.1\.0 \(schema 1, this one reads 2\); use that release"),
        ("events.jsonl", '{"kind": []}', "events.jsonl:1 is no Event record"),
        ("events.jsonl", '{"kind": "a", "rank": "0"}', "events.jsonl:1 is no Event record"),
        ("facts.jsonl", f'{{"name": "a", "value": {"[" * 900}{"]" * 900}}}', "facts.jsonl:1"),
        ("facts.jsonl", f'{{"name": "a", "value": {"[" * 9999}{"]" * 9999}}}', "facts.jsonl:1"),
        ("measurements.jsonl", f'{{"op": "a", "bytes": 1{"0" * 5000}}}', "measurements.jsonl:1"),
        ("case.json", "[]", "case.json is not what is kept there"),
        ("case.json", '{"asked": 5}', "case.json is not what is kept there"),
        ("findings.json", '[{"cause": "a", "evidence": [{"path": {}}]}]', "holds something else than findings"),
        ("findings.json", "{}", "findings.json is not what is kept there"),
        ("inputs.json", '[{"path": "a"}]', "inputs.json is not what is kept there"),
        ("inputs.json", f"{'[' * 9999}{']' * 9999}", "inputs.json is not JSON"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(NcclkitError, match=says):
        Case.open(tmp_path)


@pytest.mark.parametrize("name", ["case.json", "facts.jsonl", "events.jsonl", "findings.json", "inputs.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](path)
    with pytest.raises(NcclkitError, match=f"{name} is not a regular file|Is a directory"):
        Case.open(tmp_path)


def test_a_name_that_is_no_utf_8_is_kept_as_its_code(tmp_path: Path) -> None:
    """A byte of a file name, as Python reads it: a lone surrogate, which no file in UTF-8 can hold."""
    fact = Fact("env.A", {"\udcff": ["\udcfe"]}, source="é\udcff")
    event = Event("c10d.timeout", "x\udcff", "rank\udcff.log", data={"op": "\udcff"})
    case = Case.open(tmp_path).add([event, fact, found("slow_rank", "likely", "\udcff", [event])])
    case.inputs = [{"path": "rank\udcff.log", "bytes": 1, "lines": 1, "kind": "log", "events": 1, "errors": 0}]
    again = Case.open(case.save().path or "")
    assert (again.events[0].path, again.events[0].data) == (r"rank\udcff.log", C10dTimeout(op=r"\udcff"))
    assert (again.facts[0].value, again.facts[0].source) == ({r"\udcff": [r"\udcfe"]}, r"é\udcff")
    assert Case.open(again.save().path or "").events == again.events


@pytest.mark.parametrize("path", [None, 7, 0.5])
def test_path_of_the_wrong_type(path: object) -> None:
    with pytest.raises(NcclkitError, match="must be a path"):
        Case.open(path)  # type: ignore[arg-type]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(NcclkitError, match="Cannot open the case folder"):
        Case.open(tmp_path / "f")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "old")
    with pytest.raises(TypeError):
        write(tmp_path / "a.json", 7)  # type: ignore[arg-type]
    assert (tmp_path / "a.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_full_disk(tmp_path: Path) -> None:
    """A real full file system: one sentence, and the case still opens with what it had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        case = Case.open(disk / "c").add([EVENT, FACT]).save()
        case.add([Fact(f"fact.{n}", "x" * 100) for n in range(2000)])
        with pytest.raises(NcclkitError, match="No space left on device.*untouched"):
            case.save()
        assert Case.open(disk / "c").facts == [FACT]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_about_says_when_and_which_schema(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    case.new_run("probe")
    case.save()
    about = json.loads((tmp_path / "case.json").read_text())
    assert about["schema"] == SCHEMA and about["host"] and about["ncclkit"] and about["created"]
    assert [asked["run"] for asked in about["asked"]] == ["1-probe"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_the_users_umask_holds(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "new", "1")
        write(tmp_path / "new", "2")
        Case.open(tmp_path / "case").add([EVENT, FACT, MEASURED, FINDING]).save()
    finally:
        os.umask(before)
    files = [tmp_path / "new", *(path for path in (tmp_path / "case").iterdir() if path.is_file())]
    assert len(files) > 5 and {path.stat().st_mode & 0o777 for path in files} == {mode}


@pytest.mark.parametrize(("place", "made"), [(0o755, 0o755), (0o1777, 0o700), (0o2775, 0o700), (0o777, 0o700)])
def test_a_new_case_where_others_may_write_is_its_users_alone(place: int, made: int, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "place").mkdir()
        (tmp_path / "place").chmod(place)
        case = Case.open(tmp_path / "place" / "case")
    finally:
        os.umask(before)
    assert (tmp_path / "place" / "case").stat().st_mode & 0o777 == made
    assert case.warning_of_other_writers() == ""


@pytest.mark.parametrize(
    ("mode", "who"), [(0o775, "The group can write "), (0o757, "Everybody can write "), (0o750, "")]
)
def test_a_case_that_others_can_write_is_told_and_keeps_its_mode(
    mode: int, who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case").chmod(mode)
    open_case(tmp_path / "case")
    told = [line for line in capsys.readouterr().err.splitlines() if "can write" in line]
    assert (tmp_path / "case").stat().st_mode & 0o777 == mode
    assert len(told) == bool(who) and all(line.startswith(f"ncclkit: {who}") for line in told)


def test_records_are_data_frames_for_questions_of_ones_own() -> None:
    case = Case()
    case.facts = [Fact("cpu.cores", 8, host="a"), Fact("cpu.cores", 4, host="b")]
    frame = case.to_frame("facts")
    assert list(frame.columns[:2]) == ["name", "value"] and frame.loc[frame.value < 8, "host"].tolist() == ["b"]
    assert case.to_frame("measurements").empty and "busbw" in case.to_frame("measurements").columns
    with pytest.raises(AttributeError):
        case.to_frame("words")  # type: ignore[arg-type]
