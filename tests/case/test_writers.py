"""Programs that write one case at the same time: nothing of either is lost, and none waits for ever."""

import errno
import fcntl
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Measurement, NcclkitError, clear

WRITERS, ROUNDS = 8, 10


def measured(run: str) -> Measurement:
    return Measurement("all_reduce", 1024, "float32", 2, 1, "gloo", 1.0, None, None, 0.1, 0.1, 0, run=run)


def write(folder: Path, writer: int, has_flock: bool, failed: "multiprocessing.Queue[str]") -> None:
    """What a live test does to its case, as fast as it can."""
    if not has_flock:
        fcntl.flock = refuse  # type: ignore[assignment]
    try:
        case = Case.open(folder)
        for number in range(ROUNDS):
            name = f"{writer}-{number}"
            run = case.new_run(f"w{writer}").name
            case.replace_facts([Fact("host.load", number, host=f"n{writer}"), Fact(f"once.{name}", 1)])
            case.add([Event("run.end", path=name), measured(run)])
            case.inputs = [*case.inputs, row(name)]
            case.save()
    except BaseException as error:
        failed.put(repr(error))
        raise


def row(name: str) -> dict[str, object]:
    return {"path": name, "bytes": 1, "lines": 1, "kind": "log", "events": 1, "errors": 0}


def refuse(*given: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.slow
@pytest.mark.parametrize("has_flock", [True, False], ids=["flock", "no flock"])
def test_eight_writers_lose_nothing(tmp_path: Path, has_flock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the disk's time is not what is looked at
    start = multiprocessing.get_context("fork")
    failed = start.Queue()
    writers = [start.Process(target=write, args=(tmp_path, n, has_flock, failed), daemon=True) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS, failed.get(timeout=1)
    case = Case.open(tmp_path)
    names = {f"{writer}-{number}" for writer in range(WRITERS) for number in range(ROUNDS)}
    assert {event.path for event in case.events} == names == {row["path"] for row in case.inputs}
    assert {fact.name for fact in case.facts_of("once.")} == {f"once.{name}" for name in names}
    load = {fact.host: fact.value for fact in case.facts_of("host.load")}
    assert load == {f"n{writer}": ROUNDS - 1 for writer in range(WRITERS)}
    asked = Counter(asked["run"] for asked in case.about["asked"])
    assert {run.name for run in case.runs()} == set(asked) == {m.run for m in case.measurements}
    assert sorted(int(run.name.split("-")[0]) for run in case.runs()) == list(range(1, WRITERS * ROUNDS + 1))


def test_what_another_wrote_stays_in_the_folder_and_out_of_this_case(tmp_path: Path) -> None:
    """The verdict of a program is about what it read itself; what it took away stays away."""
    first = Case.open(tmp_path).add([Event("a"), Event("b"), Fact("x", 1, host="n")]).save()
    second = Case.open(tmp_path)
    first.events = [Event("b"), Event("c")]
    first.findings = [clear("gpu_oom")]
    first.replace_facts([Fact("x", 2, host="n")]).save()
    second.add([Event("d"), Fact("y", 3)]).save()
    assert [event.kind for event in second.events] == ["a", "b", "d"]
    whole = Case.open(tmp_path)
    assert [event.kind for event in whole.events] == ["b", "c", "d"]
    assert whole.facts == [Fact("x", 2, host="n"), Fact("y", 3)]
    assert [finding.cause for finding in whole.findings] == ["gpu_oom"]


def test_a_writer_that_does_not_end_is_named_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "WAIT", 0.2)
    case = Case.open(tmp_path).add([Event("a")])
    with storage.locked(tmp_path), pytest.raises(NcclkitError, match="Another ncclkit has been writing"):
        case.save()
    assert Case.open(tmp_path).events == []
    assert Case.open(case.save().path or "").events == [Event("a")]


def test_the_lock_file_of_a_writer_that_was_killed_counts_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no flock, no kernel gives the lock back."""
    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(storage, "WAIT", 0.1)
    left = tmp_path / f"{storage.LOCK}.held"
    left.touch()
    with pytest.raises(NcclkitError, match="Another ncclkit"):
        Case.open(tmp_path).save()
    os.utime(left, (0, time.time() - storage.STALE - 1))
    Case.open(tmp_path).add([Event("a")]).save()
    assert [event.kind for event in Case.open(tmp_path).events] == ["a"]
    assert not left.exists()


def test_the_lock_file_of_another_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes longer than a minute has lost the lock, and must not give back that of the next one."""
    monkeypatch.setattr(fcntl, "flock", refuse)
    left = tmp_path / f"{storage.LOCK}.held"
    with storage.locked(tmp_path):
        left.rename(tmp_path / "aside")
        left.touch()
    assert left.exists()


def test_the_lock_file_of_another_user_locks_a_shared_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may open any file, so the refusal is played."""
    Case.open(tmp_path).save()
    opened = os.open

    def refused(path: str, flags: int, *mode: int) -> int:
        if str(path).endswith(storage.LOCK) and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refused)
    with storage.locked(tmp_path):
        assert storage._taken_lock(opened(tmp_path / storage.LOCK, os.O_RDONLY), tmp_path / "held") is None
