"""A line that names no host learns it from what our own ranks and launchers said, where there are several hosts."""

from __future__ import annotations

import json
from pathlib import Path

from ncclkit import evidence

ERROR = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: boom\n'


def hosts(folder: Path, *records: dict[str, object]) -> dict[str, str]:
    """File → host of the exception in it, given these wire records."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"ncclkit": 1, "kind": "phase", "t": 1.0} | record) for record in records]
    (folder / "wire.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("rank0.log", "rank1.log", "launcher-b.log"):
        (folder / name).write_text(ERROR)
    events = [e for e in evidence.read([folder]).events if e.kind == "python.exception"]
    return {Path(event.path).name: event.host for event in events}


def hello(rank: int, host: str) -> dict[str, object]:
    return {"phase": "hello", "rank": rank, "host": host, "pid": 100 + rank}


def test_each_file_has_the_host_of_its_rank_or_launcher(tmp_path: Path) -> None:
    launch: dict[str, object] = {"kind": "launch", "host": "b", "log": "launcher-b.log"}
    found = hosts(tmp_path, hello(0, "a"), hello(1, "b"), launch)
    assert found == {"rank0.log": "a", "rank1.log": "b", "launcher-b.log": "b"}


def test_on_one_host_nothing_is_added(tmp_path: Path) -> None:
    assert set(hosts(tmp_path, hello(0, "a"), hello(1, "a")).values()) == {""}


def test_runs_of_other_folders_keep_their_own(tmp_path: Path) -> None:
    hosts(tmp_path / "runs" / "1-x", hello(0, "a"), hello(1, "b"))
    hosts(tmp_path / "runs" / "2-x", hello(0, "c"), hello(1, "d"))
    events = [e for e in evidence.read([tmp_path]).events if e.kind == "python.exception" and e.rank == 0]
    assert [event.host for event in events] == ["a", "c"]
