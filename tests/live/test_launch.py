"""Real ranks under the guard: they pass, fail, hang and are cancelled, and nothing is ever left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.live import probe
from ncclkit.live.launch import local
from ncclkit.live.launch.pack import packed
from tests.processes import leftovers, warm

COLLECTIVE = ("collective", "--backend", "gloo", "--sizes", "8,65536", "--repeats", "3", "--timeout", "30")
ENDLESS = ("collective", "--backend", "gloo", "--sizes", ",".join(["16777216"] * 2000), "--timeout", "60")


def start(
    folder: Path, argv: tuple[str, ...], deadline: float = 90, on_record: Callable[[dict[str, Any]], None] = print
) -> Any:
    plan = Plan("job", argv, 2, "gloo", sys.executable, deadline, {"TORCH_FR_BUFFER_SIZE": "100"})
    return local.run_locally(plan, folder, on_record)


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    assert leftovers() == []


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have torch from the beginning; in the other tests of this file all is started as it is for users."""
    for name, value in warm(os.environ).items():
        monkeypatch.setenv(name, value)


def test_passes(tmp_path: Path) -> None:
    records = asyncio.run(start(tmp_path, COLLECTIVE))
    measured = [r for r in records if r["kind"] == "measure"]
    assert [(m["bytes"], m["wrong"], m["ranks"]) for m in measured] == [(8, 0, 2), (65536, 0, 2)]
    assert records[-1]["kind"] == "end"
    assert status(tmp_path)["reason"] == "done"
    assert (tmp_path / "rank0.log").exists()
    assert len((tmp_path / "wire.jsonl").read_bytes().splitlines()) == len(records)


@pytest.mark.usefixtures("forked")
def test_a_rank_that_raises(tmp_path: Path) -> None:
    records = asyncio.run(start(tmp_path, ("train", "--backend", "gloo", "--fault", "rank_raises", "--timeout", "20")))
    assert status(tmp_path)["reason"] == "failed"
    assert "ValueError" in (tmp_path / "rank1.log").read_text()
    assert [r["rank"] for r in records if r.get("phase") == "error"][0] == 1


BANNER = '#!/bin/sh\necho "module python/3.12 loaded"\nsleep 600\n'
"""A training interpreter behind a script, which never answers; whoever kills the script alone leaves it behind."""


@pytest.mark.parametrize("asks", ["check", "facts", "run"])
def test_an_interpreter_that_never_answers_is_a_sentence(
    asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, folder = tmp_path / "python", tmp_path / "run"
    python.write_text(BANNER)
    python.chmod(0o755)
    folder.mkdir()
    monkeypatch.setattr(local, "START", 1.0)
    monkeypatch.setenv(local.TAG, "here")  # by which what is left is found
    questions = {
        "check": lambda: local.check_interpreter(str(python), 1.0),
        "facts": lambda: local.read_facts_here(str(python), folder),
        "run": lambda: local.run_locally(Plan("job", COLLECTIVE, 2, "gloo", str(python), 90.0), folder),
    }
    with pytest.raises(NcclkitError, match=r"python did not (import torch|start) within 1 s; check its file system"):
        asyncio.run(asyncio.wait_for(questions[asks](), 20))


def on_size(act: Callable[[int], None]) -> Callable[[dict[str, Any]], None]:
    """Call `act` with the pid of rank 1 as soon as rank 1 works on a size."""
    pids: dict[int, int] = {}

    def see(record: dict[str, Any]) -> None:
        if record.get("phase") == "hello":
            pids[record["rank"]] = record["pid"]
        elif record.get("phase") == "size" and record["rank"] == 1 and 1 in pids:
            act(pids.pop(1))

    return see


@pytest.mark.usefixtures("forked")
def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    asyncio.run(start(tmp_path, ENDLESS, on_record=on_size(lambda pid: os.kill(pid, signal.SIGKILL))))
    assert status(tmp_path)["reason"] == "failed"
    assert "exitcode: -9" in (tmp_path / "launcher.log").read_text().replace("exitcode  :", "exitcode:")


@pytest.mark.usefixtures("forked")
def test_a_hang_ends_at_the_deadline_with_evidence(tmp_path: Path) -> None:
    """Rank 1 stops (SIGSTOP); rank 0 waits in C++; the deadline comes first, but long after the forked ranks."""
    (tmp_path / "plan.json").write_text("{}")  # by which the guard knows that the run is watched
    asyncio.run(start(tmp_path, ENDLESS, deadline=14, on_record=on_size(lambda pid: os.kill(pid, signal.SIGSTOP))))
    assert status(tmp_path)["reason"] == "deadline"
    last = json.loads((tmp_path / "telemetry.jsonl").read_text().splitlines()[-1])
    assert last["utilization"]["1"]["state"] == "T"
    assert "all_reduce" in (tmp_path / "stacks_rank0.txt").read_text()
    assert (tmp_path / "fr_rank_0").stat().st_size > 0


@pytest.mark.usefixtures("forked")
def test_cancel(tmp_path: Path) -> None:
    async def main() -> None:
        running = asyncio.Event()
        task = asyncio.create_task(start(tmp_path, ENDLESS, on_record=on_size(lambda pid: running.set())))
        await asyncio.wait_for(running.wait(), 80)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert status(tmp_path)["reason"] == "cancelled"


def test_a_guard_that_is_killed_is_no_end_that_anybody_asked_for(tmp_path: Path) -> None:
    """Its ranks end with it, and the run says what happened; it neither succeeded nor was it cancelled."""
    case = Case.open(tmp_path / "case")
    plan = Plan("all_reduce", ENDLESS, 2, "gloo", sys.executable, 60.0)

    def kill(pid: int) -> None:
        launcher = psutil.Process(pid)
        while "guard" not in launcher.cmdline():
            launcher = launcher.parent() or pytest.fail("no guard above the rank")
        launcher.kill()

    run = asyncio.run(probe.execute(case, plan, on_size(kill)))
    assert run.reason == "lost" and "SIGKILL" in run.summary and "without a message" in run.summary
    assert [event.data.reason for event in case.of("run.end")] == ["lost"]
    until = time.monotonic() + 20
    while leftovers() and time.monotonic() < until:
        time.sleep(0.1)
    assert leftovers() == []


SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.live.test_launch import ENDLESS, start
asyncio.run(start(Path(sys.argv[1]), ENDLESS, on_record=lambda r: print(r.get("phase"), flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_kernel_is_killed(tmp_path: Path, number: int) -> None:
    env = warm(os.environ) if number == signal.SIGTERM else None
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    parent = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert any("size" in line for line in parent.stdout)
    parent.send_signal(number)
    parent.communicate(timeout=20)
    until = time.monotonic() + 30
    while leftovers() and time.monotonic() < until:
        time.sleep(0.1)
    assert leftovers() == []
    assert status(tmp_path)["reason"] == "orphaned"


def test_a_guard_to_which_nobody_listens_keeps_its_exit_status(tmp_path: Path) -> None:
    """As after the end of the program that asked for the run: its pipe is closed."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "ncclkit.agent", "guard", str(tmp_path), "20", "true"]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE)
    os.close(reader)
    os.close(writer)
    assert guard.wait(20) == 0 and status(tmp_path)["reason"] == "done"
    assert b"Traceback" not in guard.communicate()[1]


def test_interpreter_without_torch(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(NcclkitError, match="cannot import torch"):
        asyncio.run(local.check_interpreter(str(bare / "bin" / "python")))


@pytest.mark.parametrize("python", ["/no/such/python", "", 3])
def test_interpreter_that_does_not_exist(python: Any) -> None:
    with pytest.raises(NcclkitError, match="training interpreter"):
        asyncio.run(local.check_interpreter(python))


def test_an_interpreter_is_asked_again_only_where_its_answer_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.run(local.check_interpreter(sys.executable))
    monkeypatch.setattr(local, "_ask", None)  # whoever asks again fails
    assert asyncio.run(local.check_interpreter(sys.executable)) == first
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(TypeError):
        asyncio.run(local.check_interpreter(sys.executable))


def test_no_variable_is_set_but_those_that_were_asked_for_and_the_run(tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps({'ncclkit': 1, 'kind': 'environ', **os.environ}))"
    command, env = [sys.executable, "-c", code], {"NCCL_DEBUG": "INFO"}
    with packed() as agent:
        said, _ = asyncio.run(local.run_under_guard(agent, command, env, 30, tmp_path, sys.executable, print))
    new = {name: value for name, value in said.items() if os.environ.get(name) != value}
    shell = {"ncclkit": 1, "kind": "environ", "LC_CTYPE": said.get("LC_CTYPE")}  # Python sets the last where LANG is C
    assert {name: value for name, value in new.items() if name not in shell} == env | {local.TAG: str(tmp_path)}


def test_records_survive_floods_and_torn_lines(tmp_path: Path) -> None:
    """A command that writes megabytes without a newline around its record."""
    flood, torn = "x" * 3_000_000, '{"ncclkit":1,broken'
    first, last = '{"ncclkit":1,"kind":"a"}', '{"ncclkit":1,"kind":"b"}'
    (tmp_path / "flood.txt").write_text("\n".join([flood, first, torn, last]))  # no newline at the end
    code = f"import sys; sys.stdout.write(open({str(tmp_path / 'flood.txt')!r}).read())"
    command = [sys.executable, "-c", code]
    with packed() as agent:
        records = asyncio.run(local.run_under_guard(agent, command, {}, 30, tmp_path, sys.executable, lambda r: None))
    assert [r["kind"] for r in records] == ["a", "b", "end"]
    assert b"x" * 1000 in (tmp_path / "launcher.log").read_bytes()


def test_what_another_python_has_compiled_is_passed_over(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from ncclkit.agent import wire; print(wire.__file__)"
    other, said = tmp_path / "agent.pyz", {}
    with packed(compiled=True) as agent:
        with zipfile.ZipFile(agent) as own, zipfile.ZipFile(other, "w") as made:
            for name in own.namelist():
                made.writestr(name, own.read(name) if name.endswith(".py") else bytes(4) + own.read(name)[4:])
        for path in (agent, other):
            done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
            said[path] = done.stdout.strip().removeprefix(f"{path}/ncclkit/agent/")
    assert said == {agent: "wire.pyc", other: "wire.py"}
