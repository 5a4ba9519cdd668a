"""Attach on real jobs that nobody prepared, over gloo; ``tests/bench/attach.py`` does it with all ways to hang."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ncclkit.agent.monitor import attach as collect
from ncclkit.agent.monitor import as_owner, flight_dump, kernels, remote_thread, snapshots
from ncclkit.agent.run import processes
from ncclkit.analysis.motion import headline
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live import attach as live
from ncclkit.live.attach import Attached, AttachOptions, attach
from tests.live.hangs import WAYS, start

pytestmark = pytest.mark.slow
Job = Mapping[int, "subprocess.Popen[str]"]


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can be begun without a debugger."""

    def refuse(pid: int, line: str) -> None:
        raise remote_thread.ThreadRefused("Operation not permitted")

    monkeypatch.setattr(remote_thread, "begin", refuse)


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A stand-in for a rank over NCCL whose Flight Recorder has an entry; it must end well."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STAND_IN, "2.13.0", "entries"], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process
        process.communicate(timeout=60)
        assert process.returncode == 0


def attached(folder: Path, job: Job, **options: object) -> tuple[Case, Attached]:
    """What is seen of the job of which one process is named."""
    case = Case.open(folder)
    return case, asyncio.run(attach(case, [str(job[0].pid)], None, AttachOptions(**options)))


def test_two_jobs_side_by_side_are_not_mixed(tmp_path: Path) -> None:
    """The rank and the reason of each, in its deadline; nothing of the other job in what is kept or said."""
    with ExitStack() as both:
        names = ("barrier_in_branch", "storage")
        jobs = {name: both.enter_context(start(name)) for name in names}
        for name, other in (names, names[::-1]):
            begun = time.monotonic()
            case, made = attached(tmp_path / name, jobs[name])
            first = diagnose(case).findings[0]
            assert (first.cause, first.culprits["ranks"]) == (WAYS[name].causes[0], WAYS[name].ranks), first.say
            assert first.strength == "likely" and time.monotonic() - begun < 3 + 20 + 15
            kept = "".join(path.read_text() for path in made.folder.glob("*") if path.suffix in (".txt", ".json"))
            kept += "".join((*made.jobs, *made.progress, *made.problems, *(event.text for event in case.events)))
            assert other not in kept.replace(f"def {other}", "")
            assert not any(f'"pid": {process.pid}' in kept for process in jobs[other].values())
            assert all(process.poll() is None for process in jobs[name].values())


@pytest.mark.usefixtures("tracing")
def test_a_healthy_job_goes_on_as_before_and_gives_its_dump_on_request(tmp_path: Path) -> None:
    """No signal reaches it and nothing pauses it, and after a dump it ends well.

    ``tests/bench/attach_cost.py`` measures its steps.
    """
    with start("healthy", 2, STEPS=str(tmp_path / "steps")) as job:
        steps = [tmp_path / f"steps{rank}" for rank in job]
        before = _more_steps(steps, 40)
        case, made = attached(tmp_path / "case", job)
        during = _more_steps(steps, 40)
        assert statistics.median(during) < 3 * statistics.median(before) + 0.05
        assert [Path(f"{file}.signals").read_bytes() for file in steps] == [b"", b""]
        assert "(C) File" not in "".join(path.read_text() for path in made.folder.glob("stacks_rank*"))
        assert all(processes.process_state(process.pid) in "SR" for process in job.values())
        _goes_on(case, made)
        dumped_case, dumped = attached(tmp_path / "dumped", job, dump=True)
        _goes_on(dumped_case, dumped)
        assert sorted(path.name for path in dumped.folder.glob("fr_rank_*")) == ["fr_rank_0", "fr_rank_1"]
        assert len([event for event in dumped.events if event.kind == "flight.dump"]) == 2
        _more_steps(steps, 5)
        folder = processes.environ(job[0].pid)["HANGS"]
        Path(folder, "end").touch()
        ends = [process.wait(60) for process in job.values()]
        assert 0 in ends  # the other one may wait for a step that its peer no longer makes


def _goes_on(case: Case, made: Attached) -> None:
    """Nobody is accused of anything, and the exit status says so."""
    found = diagnose(case)
    assert (found.findings, found.exit_code) == ((), 0), [finding.say for finding in found.findings]
    assert headline(made.events).startswith("The job goes on: ")


def _more_steps(files: list[Path], count: int) -> list[float]:
    """The times of the next steps of the first rank."""
    known, until = len(files[0].read_text().split()), time.monotonic() + 60
    while time.monotonic() < until:
        times = files[0].read_text().split()[known:-1]
        if len(times) >= count:
            return [float(one) for one in times]
        time.sleep(0.1)
    raise AssertionError("the job makes no steps any more")


def test_nothing_is_injected_into_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_dump.os, "geteuid", lambda: 4711)
    said = flight_dump.dump(str(tmp_path), {0: os.getpid()}, time.monotonic() + 5, {})
    assert said == ["rank 0 belongs to another user, so nothing is asked of its process", flight_dump.NEXT_TIME]
    assert "export TORCH_FR_BUFFER_SIZE=2000" in said[1] and list(tmp_path.iterdir()) == []


def test_a_debugger_does_not_call_where_the_lock_is_held(tmp_path: Path) -> None:
    """By a thread that stands, or by one that runs Python whenever one looks; most give it away now and then."""
    for program, text in (("input()", "[Has the GIL]"), ("while True: pass", "(active+gil)")):
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
            (said, _) = flight_dump.dump(str(tmp_path), {0: child.pid}, time.monotonic() + 20, {0: text})
            child.kill()
        assert "a thread holds the GIL" in said or "cuda-gdb is installed" in said
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not flight_dump._holds_gil(0, child.pid, "(active+gil)", time.monotonic() + 20)


STAND_IN = """
import sys, types
torch, distributed = types.ModuleType("torch"), types.ModuleType("torch.distributed")
torch.__version__ = sys.argv[1]
distributed.is_initialized, distributed.get_backend = lambda: True, lambda: "nccl"
inner = torch._C = types.SimpleNamespace(_distributed_c10d=types.SimpleNamespace())
if sys.argv[2]:
    inner._distributed_c10d._dump_nccl_trace = lambda: sys.argv[2].encode()
sys.modules.update({"torch": torch, "torch.distributed": distributed})
print("up", flush=True)
sys.stdin.read()
"""
"""A stand-in for a torch of another release, and for what its recorder has."""


RECORDERS = [
    ("2.1.2", "", "torch 2.1.2 has no Flight Recorder for nccl"),
    ("2.6.0+cu124", "entries", "the Flight Recorder of torch 2.6.0+cu124 is off unless it is asked for"),
    ("2.6.0+cu124", "entries profiling_name", ""),
    ("2.13.0", "entries", ""),
]
"""Release of torch, what its recorder has, and why that is no dump."""


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(("version", "recorded", "problem"), RECORDERS)
def test_of_a_torch_that_records_nothing_is_said_what_to_set_next_time(
    tmp_path: Path, version: str, recorded: str, problem: str
) -> None:
    """From torch 2.11 on an empty recorder says that the rank has called nothing; before, that it is off."""
    assert _dumped(tmp_path, version, recorded, problem) == (f"ptrace: {problem}" if problem else "")


@pytest.mark.usefixtures("debugger", "untraced")
@pytest.mark.parametrize(("version", "recorded", "problem"), [RECORDERS[0], RECORDERS[-1]])
def test_a_debugger_gets_the_dump_where_no_thread_can_be_begun(
    tmp_path: Path, version: str, recorded: str, problem: str
) -> None:
    assert _dumped(tmp_path, version, recorded, problem) == (
        f"ptrace: Operation not permitted; gdb: {problem}" if problem else ""
    )


def _dumped(folder: Path, version: str, recorded: str, problem: str) -> str:
    """Why a rank of this torch gives no dump; it goes on, and there is a dump only where there is no problem."""
    command = [sys.executable, "-c", STAND_IN, version, recorded]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    with subprocess.Popen(command, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
        said = flight_dump.dump(str(folder), {0: rank.pid}, time.monotonic() + 60, {})
        assert rank.poll() is None
        rank.communicate(timeout=60)
        assert rank.returncode == 0
    assert [path.read_text() for path in folder.glob("fr_rank_0")] == ([] if problem else [recorded])
    if not said:
        return ""
    assert said[1:] == [flight_dump.NEXT_TIME]
    return said[0].removeprefix("rank 0 gave no Flight Recorder dump (").removesuffix(")")


@pytest.mark.usefixtures("tracing")
def test_a_hung_job_gives_its_dumps_and_comes_to_its_end_when_what_it_waits_for_comes(tmp_path: Path) -> None:
    """The sum is right as well, in whose call the main thread of one rank stands meanwhile."""
    with start("released", 2) as job:
        said = flight_dump.dump(str(tmp_path), {rank: one.pid for rank, one in job.items()}, time.monotonic() + 60, {})
        assert said == [] and sorted(path.name for path in tmp_path.iterdir()) == ["fr_rank_0", "fr_rank_1"]
        assert all(b"entries" in path.read_bytes() for path in tmp_path.iterdir())
        assert all(process.poll() is None for process in job.values())
        Path(processes.environ(job[0].pid)["HANGS"], "go").touch()
        assert [process.wait(60) for process in job.values()] == [0, 0]


@pytest.mark.usefixtures("debugger", "untraced")
def test_a_gdb_that_cannot_write_registers_calls_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: subprocess.Popen[bytes]
) -> None:
    """As gdb 13 on a processor with AMX: "Couldn't write extended state status" in a call, and the rank died of it."""
    monkeypatch.setattr(flight_dump, "WRITE_CHECK", ("set $xmm15.no_such_field = 1",))
    monkeypatch.setattr(flight_dump.platform, "machine", lambda: "x86_64")
    (said, _) = flight_dump.dump(str(tmp_path), {0: rank.pid}, time.monotonic() + 60, {})
    assert "There is no member named no_such_field" in said
    assert list(tmp_path.iterdir()) == []


WITHOUT_AMX = """#!/bin/sh
echo "$@" >>"{words}"
echo "Program stopped."
echo "Couldn't write extended state status: Bad address." >&2
"""
"""gdb 13 on a processor with AMX."""


@pytest.mark.parametrize("ptrace", [True, False], ids=["by ptrace", "none works"])
def test_a_gdb_that_cannot_call_on_this_host_is_not_attached_to_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: subprocess.Popen[bytes], ptrace: bool,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """It is asked once, of a program of its own; its sentence is handed on with the line for the job script."""
    tool, words, out = tmp_path / "gdb", tmp_path / "words", tmp_path / "out"
    tool.write_text(WITHOUT_AMX.format(words=words))
    tool.chmod(0o755)
    out.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(flight_dump, "cuda_gdb", lambda: None)
    if ptrace:
        request.getfixturevalue("tracing")
        assert flight_dump.dump(str(out), {0: rank.pid}, time.monotonic() + 60, {}) == []
        assert (out / "fr_rank_0").read_bytes() == b"entries" and not words.exists()
        return

    request.getfixturevalue("untraced")
    for _ in range(2):
        said, then = flight_dump.dump(str(out), {0: rank.pid}, time.monotonic() + 60, {})
        amx = f"gdb: {tool} says: Couldn't write extended state status: Bad address. Its release 14 can write them"
        assert said == f"rank 0 gave no Flight Recorder dump (ptrace: Operation not permitted; {amx})"
        assert then.startswith("For a dump without a debugger set next time: export TORCH_FR_BUFFER_SIZE=2000")
    (asked,) = words.read_text().splitlines()
    assert "starti" in asked and "-p" not in asked.split() and str(rank.pid) not in asked.split()


SAFE_POINT = """
import signal
signal.signal(signal.SIGUSR1, lambda *ignored: exec(open(open(sys.argv[3]).read()).read(), {}))
"""
"""What Python 3.14 does at the next safe point of a main thread, here at a signal."""


@pytest.mark.parametrize("comes", [True, False], ids=["safe point", "none"])
def test_the_door_of_python_314_is_used_where_the_interpreter_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """By an interpreter of that name; a thread that comes too late finds a script that does nothing."""
    monkeypatch.setattr(flight_dump, "METHODS", {"remote_exec": flight_dump._remote_exec})
    monkeypatch.setitem(flight_dump.PATIENCE, "remote_exec", 60.0 if comes else 0.3)
    python = shutil.copy(os.path.realpath(sys.executable), tmp_path / "python3.14")
    asked: list[str] = []

    def run(command: list[str], **ignored: object) -> subprocess.CompletedProcess[str]:
        assert "sys.remote_exec(int(sys.argv[1]), sys.argv[2])" in command[4] and command[0] == str(python)
        asked.append(command[6])
        (tmp_path / "script").write_text(command[6])
        if comes:
            os.kill(int(command[5]), signal.SIGUSR1)
        return subprocess.CompletedProcess(command, 0, "", "")

    program = STAND_IN.replace('print("up"', SAFE_POINT + 'print("up"')
    command = [str(python), "-c", program, "2.13.0", "entries", str(tmp_path / "script")]
    environ = os.environ | {"PYTHONHOME": sys.base_prefix}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
        monkeypatch.setattr(flight_dump.subprocess, "run", run)
        said = flight_dump.dump(str(tmp_path), {0: rank.pid}, time.monotonic() + 60, {})
        rank.communicate(timeout=60)
        assert rank.returncode == 0
    left = Path(asked[0])
    if comes:
        assert said == [] and (tmp_path / "fr_rank_0").read_bytes() == b"entries" and not left.parent.exists()
    else:
        assert "its main thread came to no safe point" in said[0] and left.read_text() == ""
        shutil.rmtree(left.parent)


WATCHDOG = """
import os, sys, time
pipe = os.open(sys.argv[1], os.O_RDWR)
print("up", flush=True)
os.read(pipe, 1)
with open(sys.argv[2], "wb") as out:
    time.sleep(0.7)  # as on a loaded machine: there is a file, and nothing in it
    out.write(b"trace")
sys.stdin.read()
"""
"""A stand-in for torch's watchdog, which reads the pipe and writes the dump; the rank lives on."""


def test_a_pipe_that_the_job_has_set_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flight_dump.PATIENCE, "pipe", 60.0)
    os.mkfifo(tmp_path / "pipe_0.pipe")
    variables = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
    command = [sys.executable, "-c", WATCHDOG, str(tmp_path / "pipe_0.pipe"), str(tmp_path / "fr_0")]
    pipe = subprocess.PIPE
    (tmp_path / "out").mkdir()
    with subprocess.Popen(command, env=os.environ | variables, stdin=pipe, stdout=pipe) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        assert flight_dump.dump(str(tmp_path / "out"), {0: rank.pid}, time.monotonic() + 60, {}) == []
        rank.communicate(timeout=60)
    assert (tmp_path / "out" / "fr_rank_0").read_bytes() == b"trace"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_nothing_is_written_to_what_is_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A file that stands where torch would have made its pipe stays as it is, and so does what a link leads to."""
    monkeypatch.setattr(flight_dump, "METHODS", {"pipe": flight_dump._pipe})
    place, target = tmp_path / "pipe_0.pipe", tmp_path / "target"
    target.write_bytes(b"weights")
    if kind == "link":
        place.symlink_to(target)
    else:
        place = target.rename(place)
    variables = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_"}
    with subprocess.Popen(["cat"], env=os.environ | variables, stdin=subprocess.PIPE) as rank:
        (said, _) = flight_dump.dump(str(tmp_path), {0: rank.pid}, time.monotonic() + 60, {})
        rank.communicate(timeout=60)
    assert place.read_bytes() == b"weights"
    why = (
        "Too many levels of symbolic links"
        if kind == "link"
        else f"{place} is not a pipe, so nothing was written to it"
    )
    assert said == f"rank 0 gave no Flight Recorder dump (pipe: {why})"


def test_a_reader_that_takes_too_long_leaves_no_process_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stops its process, as ptrace does, and hears no request to end."""
    tool = tmp_path / "pystack"
    tool.write_text('#!/bin/sh\ntrap "" INT\nfor pid; do :; done\nkill -STOP "$pid"\nexec sleep 60\n')
    tool.chmod(0o755)
    monkeypatch.setenv(snapshots.TOOLS["pystack"], str(tool))
    monkeypatch.setattr(snapshots.sys, "executable", "/nowhere/python")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as rank:
        assert snapshots.native_stack(0, rank.pid, 1.0) == ("", "pystack on rank 0: took more than 1 s")
        until = time.monotonic() + 30
        while processes.process_state(rank.pid) != "S" and time.monotonic() < until:
            time.sleep(0.05)  # it may wait for a core first
        assert processes.process_state(rank.pid) == "S"
        rank.send_signal(signal.SIGTERM)


def test_ranks_that_make_steps_are_not_paused_for_native_frames() -> None:
    """Two snapshots may meet them in one call; of a job that hangs the ranks that did not move are read."""
    taken = snapshots.Snapshots({0: 1, 1: 2, 2: 3})

    def stationary(*ranks: tuple[str, int]) -> list[int]:
        for number, (place, switches) in enumerate(ranks):
            first, last = {"t": 0.0, "switches": 0, "stack": "all_reduce"}, {"t": 3.0, "stack": place}
            taken.rows[number] = [first, last | {"switches": switches}]
        return taken.stationary()

    assert stationary(("all_reduce", 300), ("all_reduce", 300), ("all_reduce", 0)) == []
    assert stationary(("forward", 0), ("backward", 0), ("all_reduce", 0)) == []
    assert stationary(("all_reduce", 1), ("all_reduce", 0), ("forward", 900)) == [0, 1]


def test_a_debugger_that_is_a_script_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda-gdb is one: what it started holds the pipe open, and may hear no request to end."""
    for name in ("SIGINT_GRACE", "UNWIND_GRACE"):
        monkeypatch.setattr(flight_dump, name, 0.3)
    (tmp_path / "debugger").write_text("import signal, sys, time\nsignal.signal(2, signal.SIG_IGN)\nsignal.signal(15, "
                                       "signal.SIG_IGN)\nprint('attached', flush=True)\ntime.sleep(300)\n")  # fmt: skip
    begun = time.monotonic()
    command = ["sh", "-c", '"$0" "$1"; true', sys.executable, str(tmp_path / "debugger")]
    assert flight_dump.debugged(command, begun + 6.0) in ("attached\n", "")
    assert time.monotonic() - begun < 20
    left = [pid for pid in processes.parents() if str(tmp_path) in processes.read_text(f"/proc/{pid}/cmdline")]
    assert [pid for pid in left if processes.is_alive(pid)] == []


def test_no_call_of_a_rank_begins_that_could_not_end_in_time(tmp_path: Path) -> None:
    """A debugger that is slow to load finds no orders any more, and detaches."""
    orders, begun = tmp_path / "calls", time.monotonic()
    orders.write_text("call")
    code = f"import os, time\nwhile os.path.exists({str(orders)!r}): time.sleep(0.05)\nprint('detached')"
    until = begun + flight_dump.CALL_NEEDS + 1.0
    assert flight_dump.debugged([sys.executable, "-c", code], until, script=str(orders)) == "detached\n"
    assert 0.9 < time.monotonic() - begun < flight_dump.CALL_NEEDS - flight_dump.STOP_BEFORE


def test_following_ends_when_a_rank_stalls() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as rank:
        begun = time.monotonic()
        snapshots.Snapshots({0: rank.pid}).follow(3.0)
        assert 2.5 < time.monotonic() - begun < 30
        rank.kill()
        snapshots.Snapshots({0: rank.pid}).follow(3600.0)  # it has ended: that is seen at once


@pytest.mark.parametrize(
    ("handed", "mode", "used"), [("{}/py-spy", 0o755, True), ("{}/py-spy", 0o644, False), ("py-spy", 0o755, False)]
)
def test_a_py_spy_that_was_handed_over_is_used_where_it_is_a_program_with_a_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed: str, mode: int, used: bool
) -> None:
    """As where the workbook's environment has one, and the training interpreter's has none."""
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho Thread 1 of $5\n")
    (tmp_path / "py-spy").chmod(mode)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(snapshots.sys, "executable", "/nowhere/python")
    monkeypatch.setenv(snapshots.TOOLS["py-spy"], handed.format(tmp_path))
    text, problem = snapshots.python_stack(0, os.getpid(), time.monotonic() + 2.0)
    assert (text == f"Thread 1 of {os.getpid()}\n", problem == "") == (used, used)
    assert used or problem.startswith("py-spy is neither at /nowhere/py-spy")


def test_no_reader_prints_colours_where_a_kernel_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter's kernels set both; file names between escape sequences name no file."""
    (tmp_path / "py-spy").write_text('#!/bin/sh\necho "Thread $NO_COLOR${FORCE_COLOR-plain}${CLICOLOR_FORCE-plain}"\n')
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.setenv(snapshots.TOOLS["py-spy"], str(tmp_path / "py-spy"))
    monkeypatch.setattr(snapshots.sys, "executable", "/nowhere/python")
    assert snapshots.python_stack(0, os.getpid(), time.monotonic() + 20.0) == ("Thread 1plainplain\n", "")


SLOW = """#!{python}
import tempfile
import time
time.sleep(300)
"""
"""A debugger that does not come to the rank, and ends at an interrupt."""


@pytest.mark.usefixtures("untraced")
def test_everything_ends_at_the_deadline_and_what_was_collected_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gdb").write_text(SLOW.format(python=sys.executable))
    (tmp_path / "gdb").chmod(0o755)
    monkeypatch.setattr(flight_dump.shutil, "which", lambda name, path=None: str(tmp_path / "gdb"))
    monkeypatch.setattr(collect, "DEBUGGER_MINIMUM", 6.0)
    for module, name in ((flight_dump, "CALL_NEEDS"), (flight_dump, "ATTACH_NEEDS"), (kernels, "ATTACH_NEEDS")):
        monkeypatch.setattr(module, name, 5.0)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STAND_IN, "2.13.0", ""], stdin=pipe, stdout=pipe) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
        begun = time.monotonic()
        more = {"seconds": 0.2, "kernels": True, "dump": True, "timeout": 12.0}
        problems = collect.collect_and_sample(str(tmp_path), {0: rank.pid}, **more)
        assert time.monotonic() - begun < 12.0
        rank.communicate(timeout=60)
        assert rank.returncode == 0
    assert json.loads((tmp_path / "attached.json").read_text())["ranks"]["0"]["snapshots"]
    assert any("rank 0" in one and "--timeout 180 gives it more" in one for one in problems), problems
    left = [pid for pid in processes.parents() if str(tmp_path) in processes.read_text(f"/proc/{pid}/cmdline")]
    assert [pid for pid in left if processes.is_alive(pid)] == []


FATAL = """#!{python}
import os, sys, time
rank = int(sys.argv[sys.argv.index("-p") + 1])
os.kill(rank, 9)
until = time.monotonic() + 20
while open("/proc/%d/stat" % rank).read().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < until:
    time.sleep(0.01)
"""
"""A debugger of which the rank dies, and which ends after it."""


@pytest.mark.usefixtures("untraced")
def test_a_rank_that_ends_under_a_debugger_counts_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gdb").write_text(FATAL.format(python=sys.executable))
    (tmp_path / "gdb").chmod(0o755)
    monkeypatch.setattr(flight_dump.shutil, "which", lambda name, path=None: str(tmp_path / "gdb"))
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **told: made.append(mkdtemp(**told)) or made[-1])
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STAND_IN, "2.13.0", ""], stdin=pipe, stdout=pipe) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
        problems = collect.collect_and_sample(str(tmp_path), {0: rank.pid}, seconds=0.2, dump=True, timeout=60.0)
        assert rank.wait(60) == -9
    assert json.loads((tmp_path / "attached.json").read_text())["ranks"]["0"]["snapshots"]
    assert "rank 0 ended while a debugger was attached to it; what it did before counts" in problems
    assert any("gdb: it called nothing (it printed nothing)" in problem for problem in problems), problems
    assert made and not any(map(os.path.exists, made))


def test_a_child_that_does_not_end_is_ended_and_said(tmp_path: Path) -> None:
    said: list[dict[str, object]] = []
    begun = time.monotonic()
    (tmp_path / "gpus.xml.part").write_text("<pid>of another job</pid>")
    asyncio.run(live._child(["sleep", "300"], tmp_path, 0.5, said.append))
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - begun < 20 and "was ended after 0 s; what it had collected" in str(said[0]["say"])


def test_a_file_server_that_is_away_does_not_hold_attach_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, taken = time.monotonic(), snapshots.Snapshots({0: os.getpid()})
    monkeypatch.setattr(snapshots, "sources", lambda *_: threading.Event().wait())
    row, problem = taken.row(0, begun + 0.6)
    assert "a file server may be away" in problem and "output" not in row and time.monotonic() - begun < 10
    monkeypatch.setattr(snapshots, "sources", lambda *_: {"program": [], "branches": []})
    assert taken.row(0, begun)[0]["program"] == []


STEPS = """
import sys
def train_step(batch, secret):
    sys.stdin.read()
def fit(epochs):
    for epoch in range(3, epochs):
        for number, batch in enumerate([None] * 9, 117):
            global_step, lr, token = 2117, 10, "hunt" + str(epoch)
            train_step(batch, token)
print("step 116: loss 0.5\\nEpoch 3:  45%| 450/1000 [01:02<01:10]\\rnothing", flush=True)
fit(5)
"""


def test_steps_are_read_without_the_values_of_other_variables(tmp_path: Path) -> None:
    """Variables of the loops around its lines, and such as have the name of a counter; never a text."""
    (tmp_path / "train.py").write_text(STEPS)
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen([sys.executable, tmp_path / "train.py"], stdin=subprocess.PIPE, stdout=log) as rank,
    ):
        until = time.monotonic() + 60
        while "nothing" not in (tmp_path / "log").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        taken = snapshots.Snapshots({0: rank.pid})
        while "train_step" not in str(taken.texts) and time.monotonic() < until:
            taken.take(until)
        row, problem = taken.row(0, until)
        rank.communicate(timeout=60)
    assert problem == "" and row["snapshots"][-1]["steps"] == {"epoch": 3, "number": 117, "global_step": 2117}
    assert row["output"]["line"] == "Epoch 3:  45%| 450/1000 [01:02<01:10]" and row["output"]["file"].endswith("/log")
    assert "hunt3" not in json.dumps(row) + str(taken.texts) + str(taken.numbers)


def test_a_variable_is_not_taken_for_a_frame() -> None:
    said = 'Thread 7 (idle): "MainThread"\n    step (train.py:3)\n        Locals:\n            a: "\\n    f (b.py:1)"\n'
    assert snapshots.without_locals(said + "            step: 4\n    <module> (train.py:9)\n") == (
        'Thread 7 (idle): "MainThread"\n    step (train.py:3)\n    <module> (train.py:9)\n',
        [
            ({"func": "step", "file": "train.py", "line": "3"}, {"step": 4}),
            ({"func": "<module>", "file": "train.py", "line": "9"}, {}),
        ],
    )


def test_what_a_pipe_holds_stays_for_its_reader() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as rank:
        assert as_owner.read_named_files(rank.pid, [], 20) == ({}, {}, "")
        assert rank.communicate(b"step 3\n", timeout=60)[0] == b"step 3\n"


def test_a_gpu_is_asked_twice_where_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda-gdb").write_text("#!/bin/sh\necho '[Switching focus to CUDA kernel 0, grid 7]'\n"
                                       "echo 'spin(long)<<<(1,1,1),(1,1,1)>>> ()'\n")  # fmt: skip
    (tmp_path / "cuda-gdb").chmod(0o755)
    monkeypatch.setattr(kernels, "cuda_gdb", lambda: str(tmp_path / "cuda-gdb"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as rank:
        gpus = kernels.Kernels({3: rank.pid})
        assert gpus.ask(time.monotonic() + 60) == []
        (late,) = gpus.ask_again(time.monotonic() + 1)
        assert late.startswith("GPUs were asked once") and len(gpus.rows[3]) == 1
        assert gpus.ask_again(time.monotonic() + 60) == []
        rank.communicate()
    assert [(one["name"], one["grid"]) for one in gpus.rows[3]] == [("spin", "7")] * 2


GPUS = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>580.1</driver_version>
<gpu id="0"><processes><process_info><pid>11</pid><process_name>python train.py</process_name></process_info>
<process_info><pid>12</pid><process_name>secret.py</process_name></process_info></processes></gpu>
<gpu id="1"><processes>
<process_info><pid>13</pid><process_name>secret.py</process_name></process_info></processes></gpu>
</nvidia_smi_log>
"""


def test_of_the_gpus_of_others_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "gpus.xml"
    path.write_text(GPUS)
    collect._own_gpus(str(path), {11})
    kept = path.read_text()
    assert (
        "train.py" in kept and "another job's" in kept and not any(word in kept for word in ("secret", "13", 'id="1"'))
    )


class WorkerServer(BaseHTTPRequestHandler):
    """A stand-in for the server of ``torch.distributed.debug`` in a rank."""

    def do_GET(self) -> None:
        self._answer(b"<h1>torch.distributed.WorkerServer</h1>")

    def do_POST(self) -> None:
        self._answer(b'{"entries": [], "handler": "%s"}' % self.path.encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Nothing: this is a test's own log."""


class AnyAddress(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def test_the_debug_server_of_a_job_is_asked_before_anything_is_injected(tmp_path: Path) -> None:
    with AnyAddress(("::", 0), WorkerServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert flight_dump.dump(str(tmp_path), {3: os.getpid()}, time.monotonic() + 20, {3: "[Has the GIL]"}) == []
        server.shutdown()
    assert b"dump_nccl_trace_pickle" in (tmp_path / "fr_rank_3").read_bytes()
