"""A script in which the file of `ncclkit step` cannot load: the run ends soon and says why; a good one goes on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclkit.agent.monitor import step_hook
from ncclkit.agent.run import processes
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import hook_watch, step
from ncclkit.live.hook_watch import HookWatch
from tests.processes import leftovers

HOOK_FOLDER = Path("/tmp/ncclkit-hook")
KEPT = {"PYTHONPATH": f"{HOOK_FOLDER}:/home/me", step_hook.OPTIONS: "{}"}


def test_a_run_whose_python_ignores_the_file_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script would sleep until its deadline; it is ended because of what its process has mapped."""
    monkeypatch.setattr(hook_watch, "PATIENCE", 0.1)
    script = tmp_path / "train.py"
    script.write_text("import time, torch\ntime.sleep(600)\n")
    command = ["bash", "-c", f"{sys.executable} -I {script}; true"]
    options = step.StepOptions(timeout=500, here=True)
    with pytest.raises(NcclkitError, match=r"imported torch without ncclkit's file: its option -I ignores PYTHONPATH"):
        asyncio.run(step.measure_steps(Case.open(tmp_path / "case"), command, options))
    assert leftovers() == []


def test_a_script_that_ends_without_torch_says_so(tmp_path: Path) -> None:
    options = step.StepOptions(timeout=60, here=True)
    run = asyncio.run(step.measure_steps(Case.open(tmp_path / "case"), ["bash", "-c", "echo hi"], options))
    assert run.times is None and "no Python with ncclkit's file imported torch" in run.summary


def test_the_file_reports_itself(tmp_path: Path) -> None:
    """In each process that loads it, and where torch is imported; a folder that is gone leaves the script alone."""
    hook = tmp_path / "hook"
    (tmp_path / "other").mkdir()
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(Path(step_hook.__file__).read_text())
    environ = os.environ | {"PYTHONPATH": str(hook), step_hook.OPTIONS: json.dumps({"folder": str(tmp_path)})}
    code = "import os; print(os.getpid())"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert (hook / f"{step_hook.LOADED}{done.stdout.strip()}").exists() and done.stderr == ""
    watch = HookWatch(hook, tmp_path)
    assert watch._marked(step_hook.LOADED) == {int(done.stdout)} and watch._marked(step_hook.WITH_TORCH) == set()
    assert "imported torch" in watch.why_no_step()
    (hook / f"{step_hook.WITH_TORCH}7").touch()
    assert watch.why_no_step() == ""
    environ.pop("PYTHONPATH")
    unable = f"import sys; sys.path.insert(0, {str(hook)!r}); import sitecustomize as s; s.HERE = '/gone/x'; s.begin()"
    done = subprocess.run([sys.executable, "-S", "-c", unable], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "cannot report itself" in done.stderr


class Table:
    """Processes as the watch sees them: pid → (parent, RANK, command)."""

    def __init__(self, rows: dict[int, tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.parents = {pid: parent for pid, (parent, _, _) in rows.items()}
        ranks = {pid: {"RANK": rank} if rank else {} for pid, (_, rank, _) in rows.items()}
        monkeypatch.setattr(processes, "environ", lambda pid: ranks.get(pid, {}))
        monkeypatch.setattr(hook_watch, "_command_of", lambda pid: (rows[pid][2],) if pid in rows else ())
        monkeypatch.setattr(hook_watch, "_numbers_of", lambda pid: {pid})

    def is_measured(self, pid: int, loaded: set[int], armed: set[int]) -> bool:
        return HookWatch(HOOK_FOLDER, HOOK_FOLDER)._is_measured(pid, self.parents, loaded, armed)


def test_who_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 is a launcher with torch, 3 a rank of it, 4 what that has forked, 5 a tool that it has started."""
    rows = {2: (1, "", "torchrun"), 3: (2, "0", "train"), 4: (3, "0", "train"), 5: (3, "0", "tool")}
    table = Table(rows, monkeypatch)
    assert table.is_measured(3, {2, 3}, {2}), "it has the file"
    assert not table.is_measured(3, {2}, {2}), "the file in a launcher measures no rank"
    assert table.is_measured(4, {2, 3}, {2}), "a fork has what its parent has, before torch is imported as after"
    assert table.is_measured(5, {2, 3}, {2, 3}), "a tool of a rank that is measured may be started by python -I"
    assert not table.is_measured(5, {2, 3}, {2}), "a wrapper in Python that starts another one"


@pytest.mark.parametrize(
    ("command", "environ", "why"),
    [
        (("python", "-I", "t.py"), KEPT, "its option -I "),
        (("python", "-uE", "t.py"), KEPT, "its option -uE "),
        (("python", "-W", "Error", "-S", "t.py"), KEPT, "its option -S "),
        (("python", "-WError", "-Xfrozen_modules=off", "t.py", "-I"), KEPT, "another sitecustomize.py"),
        (("python", "-m", "train", "-E"), KEPT, "another sitecustomize.py"),
        (("python", "t.py"), {**KEPT, "PYTHONPATH": "/opt"}, "its PYTHONPATH was reset"),
        (("python", "t.py"), {"PYTHONPATH": KEPT["PYTHONPATH"]}, "let the wrapper keep NCCLKIT_STEP"),
    ],
)
def test_what_keeps_the_file_out(command: tuple[str, ...], environ: dict[str, str], why: str) -> None:
    assert why in hook_watch._why(command, environ, HOOK_FOLDER)


def test_steps_that_cannot_be_written_leave_the_script_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = step_hook.Steps({"folder": str(tmp_path / "gone"), "steps": 1, "warmup": 1})
    alone = SimpleNamespace(is_available=lambda: False)
    cuda = SimpleNamespace(is_initialized=lambda: False)
    steps.torch = SimpleNamespace(distributed=alone, cuda=cuda, get_num_threads=lambda: 1)
    steps.process, steps.done, steps.rows = os.getpid(), 1, [{"on": False}]
    steps.write("the script ended")
    assert "the steps of rank 0 cannot be written: " in capsys.readouterr().err
