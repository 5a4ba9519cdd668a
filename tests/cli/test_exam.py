"""The examination: drawn by seed, solved by its key and by the diagnosis, and given away by no name."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.cli import main
from ncclkit.evidence.logs import read_logs
from ncclkit.lab import exam
from ncclkit.lab.exam import KEY, POINTS, SHEET, STUDENT, AnswerSheet
from ncclkit.lab.faults.catalogue import FAULTS

pytestmark = pytest.mark.usefixtures("warm_ranks")

SECRET = b"of the teacher"
FULL = {name: POINTS[name] for name in ("ranks", "cause", "line")}


@pytest.fixture(scope="module", params=range(10))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exam") / "drawn"
    return asyncio.run(exam.make(request.param, folder, SECRET, from_recording=True))


def test_the_key_solves_it_and_so_does_what_is_handed_out(made: Path) -> None:
    key = json.loads((made / KEY).read_text())
    sheet = AnswerSheet(key["cause"], key["ranks"], key["hosts"], key["lines"][0].splitlines()[-1])
    (made / "mine.json").write_text(json.dumps(asdict(sheet)))
    assert exam.grade(made / "mine.json", made / KEY) == FULL and sum(POINTS.values()) == 10
    assert exam.grade(made / STUDENT / SHEET, made / KEY) == dict.fromkeys(FULL, 0)
    first = diagnose(read_logs(str(made / STUDENT / "job"))).findings[0]
    assert first.cause == key["cause"] and set(key["ranks"]) <= set(first.culprits["ranks"] or key["ranks"])
    assert key["fix"] and key["experiment"]


def test_no_file_that_is_handed_out_names_the_fault(made: Path) -> None:
    fault = json.loads((made / KEY).read_text())["fault"].encode()
    files = [path for path in (made / STUDENT).rglob("*") if path.is_file()]
    assert len(files) > 2 and not any(path.suffix == ".gz" for path in files)
    assert [path for path in files if fault in path.read_bytes() or fault.decode() in path.name] == []


def test_a_seed_draws_the_same_and_seeds_differ() -> None:
    names = exam.recorded()
    assert exam.drawn(3, names, SECRET) == exam.drawn(3, list(reversed(names)), SECRET)
    assert len({exam.drawn(seed, names, SECRET) for seed in range(30)}) > 10
    assert all(FAULTS[name].cause or name in ("healthy", "flood", "mute") for name in exam.runnable())


@pytest.mark.parametrize("name", [name for name in FAULTS if not re.search("healthy|mute|flood", name)])
def test_every_name_is_taken_out_of_a_text(name: str) -> None:
    said = f'File "agent.pyz/ncclkit/lab/programs/inject/program.py", line 4, in {name}; {name}: --fault {name}'
    assert name not in exam.neutral(said) and "inject" not in exam.neutral(said)


def test_a_job_that_looks_broken_and_is_not_has_a_key_of_its_own(tmp_path: Path) -> None:
    """`flood` and `mute` make a rank odd, which is no fault: nobody is guilty, and the last word of a rank shows it."""
    done = [{"ncclkit": 1, "kind": "phase", "t": 10.0 + rank, "phase": "done", "rank": rank} for rank in range(2)]
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "wire.jsonl").write_text("".join(json.dumps(record) + "\n" for record in done))
    key = exam._exam_key(8, {"fault": "flood", "cause": "", "ranks": [1]}, tmp_path / "job")
    assert (key["cause"], key["ranks"], key["fix"]) == ("healthy", [], []) and len(key["lines"]) == 2
    (tmp_path / KEY).write_text(json.dumps(key))
    (tmp_path / "mine.json").write_text(json.dumps(asdict(AnswerSheet("healthy", line=key["lines"][1]))))
    assert exam.grade(tmp_path / "mine.json", tmp_path / KEY) == FULL


def test_a_seed_tells_a_student_nothing() -> None:
    """Who has the same program, and another secret, draws the same fault as often as by chance."""
    names, seeds = exam.runnable(), range(200)
    same = sum(exam.drawn(seed, names, SECRET) == exam.drawn(seed, names, b"of a student") for seed in seeds)
    assert same < 40


def test_the_command_makes_one_and_gives_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "teacher"))
    folder = str(tmp_path / "exam")
    assert main(["exam", "--seed", "4", "--to", folder, "--recorded"]) == 0
    assert "Hand out:" in capsys.readouterr().out
    assert main(["exam", "--grade", f"{folder}/{STUDENT}/{SHEET}", "--to", folder]) == 0
    assert re.search(r"cause +0 of 3", capsys.readouterr().out)
    assert main(["exam", "--to", folder, "--recorded"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["exam", "--grade", "", "--to", folder]) == 2
    assert "is not a file" in capsys.readouterr().err


def test_the_teacher_makes_a_key_again_and_a_student_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["exam", "--recorded", "--to"]
    for who in ("teacher", "student"):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / who))
        for number in range(4):
            assert main([*words, str(tmp_path / f"{who}{number}"), "--seed", str(number)]) == 0
    file = tmp_path / "teacher" / "ncclkit" / "exam-secret"
    for number in range(4):
        again = tmp_path / f"again{number}"
        assert main([*words, str(again), "--seed", str(number), "--secret", str(file)]) == 0
    keys = {
        who: [json.loads((tmp_path / f"{who}{number}" / KEY).read_text()) for number in range(4)]
        for who in ("teacher", "again", "student")
    }
    assert keys["teacher"] == keys["again"] != keys["student"]
    kept = [file, tmp_path / "teacher0" / KEY]
    assert [path.stat().st_mode & 0o077 for path in kept] == [0, 0]
    secret = file.read_text()
    assert not any(secret in path.read_text() for path in (tmp_path / "teacher0").rglob("*.json"))


@pytest.mark.parametrize(
    ("text", "mode", "says"), [("a" * 64, 0o644, "chmod 600"), ("no secret", 0o600, "holds no secret")]
)
def test_a_secret_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, mode: int, says: str
) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(mode)
    words = ["exam", "--recorded", "--to", str(tmp_path / "exam"), "--secret", str(tmp_path / "secret")]
    assert main(words) == 2 and says in capsys.readouterr().err
    assert not (tmp_path / "exam").exists()


def test_a_job_broken_now_is_handed_out_without_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exam, "runnable", lambda: ["rank_raises"])
    made = asyncio.run(exam.make(1, tmp_path / "exam", SECRET, ranks=2))
    key = json.loads((made / KEY).read_text())
    assert (key["fault"], key["cause"], len(key["ranks"])) == ("rank_raises", "rank_exception", 1)
    first = diagnose(read_logs(str(made / STUDENT / "job"))).findings[0]
    assert (first.cause, list(first.culprits["ranks"])) == (key["cause"], key["ranks"])
    assert not any(b"rank_raises" in path.read_bytes() for path in (made / STUDENT).rglob("*") if path.is_file())
