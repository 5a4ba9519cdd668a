"""A job that is followed for hours: what is no hang is let go, a hang is kept, and a command is run for it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.monitor import snapshots
from ncclkit.cli import following, main
from ncclkit.cli.following import JobEnded, OnHang, follow_until_hang
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live.attach import Attached, AttachOptions, NoRank, read_look
from tests.live.hangs import start

SHOT = {"state": "S", "cpu": 0.0, "main": 0.0, "switches": 5, "waits_in": "", "file": ""}
PEERS = "    all_reduce (/x/torch/distributed/distributed_c10d.py:3)\n    step (/app/train.py:33)"
ASLEEP = "    step (/app/train.py:9)"


def look(folder: Path, hangs: bool) -> None:
    """What attach would have written of a job that goes on, or that hangs."""
    ranks = {}
    for rank, stack in ((0, PEERS), (1, ASLEEP)):
        text = f'Process {rank + 7}: python train.py\n\nThread 7 (idle): "MainThread"\n{stack}\n'
        (folder / f"stacks_rank{rank}.txt").write_text(text)
        later = stack if hangs else stack.replace("step", "load")
        shots = [SHOT | {"t": 0.0, "stack": stack}, SHOT | {"t": 3.0, "stack": later}]
        ranks[str(rank)] = {"pid": rank + 7, "snapshots": shots, "command": "python train.py"}
    report = {"attached": 1, "host": "node-1", "expected": [0, 1], "ranks": ranks}
    (folder / "attached.json").write_text(json.dumps(report))


class Looks:
    """Stands for `attach`: looks that find nothing, then the last one."""

    def __init__(self, quiet: int, last: str = "hang") -> None:
        self.quiet, self.last, self.patience = quiet, last, []  # type: ignore[var-annotated]
        self.cases = 0

    async def __call__(self, case: Case, pids: Any, job: Any, options: AttachOptions, on_record: Any) -> Attached:
        self.patience.append(options.follow)
        gc.collect()
        self.cases = max(self.cases, sum(isinstance(one, Case) for one in gc.get_objects()))
        if len(self.patience) > self.quiet and self.last == "end":
            raise NoRank("nobody")
        folder = case.new_run("attach")
        look(folder, len(self.patience) > self.quiet)
        return read_look(case, folder, [])


def test_looks_that_find_nothing_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many looks neither memory nor disk keeps more than of one; the hang is in the case."""
    looks, said = Looks(12), []  # type: ignore[var-annotated]
    monkeypatch.setattr(following, "attach", looks)
    before = sum(isinstance(one, Case) for one in gc.get_objects())
    case = Case.open(tmp_path / "case")
    found = follow_until_hang(case, [], None, AttachOptions(follow=30.0), said.append)
    assert found.folder.parent == tmp_path / "case" / "runs" and len(list(found.folder.parent.iterdir())) == 1
    assert looks.cases <= before + 4
    assert len(said) == 12 and "The job goes on" in said[0]["say"]
    assert looks.patience[:3] == [30.0, 60.0, 120.0] and looks.patience[-1] == 600.0


def test_a_job_that_ends_well_was_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "attach", Looks(1, "end"))
    with pytest.raises(JobEnded, match="nothing of it hung"):
        follow_until_hang(Case.open(tmp_path), [], None, AttachOptions(follow=30.0), print)
    monkeypatch.setattr(following, "attach", Looks(0, "end"))
    with pytest.raises(NoRank):  # there was none from the start
        follow_until_hang(Case.open(tmp_path), [], None, AttachOptions(follow=30.0), print)


def test_following_keeps_two_snapshots_and_tells_who_stands_still_and_who_moves_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A place that lasts is told once; afterwards, that it was left."""
    places = iter(["a", "b", *"c" * 3, "d", "e", *"f" * 9])
    taken, said = snapshots.Snapshots({0: os.getpid()}), []  # type: ignore[var-annotated]
    most = []

    def take(until: float) -> None:
        taken.rows[0].append({"stack": f"step ({next(places)}.py:1)", "switches": 1, "state": "S"})
        taken.numbers[0].append([])
        most.append(len(taken.rows[0]))

    monkeypatch.setattr(taken, "take", take)
    taken.follow(0.03, said.append)
    assert max(most) == 3
    assert said == ["rank 0 stands still for 0 s: step (c.py:1)", "rank 0 moves again",
                    "rank 0 stands still for 0 s: step (f.py:1)"]  # fmt: skip


PRINT = "import os; print(os.environ['NCCLKIT_CAUSE'], os.environ['NCCLKIT_RANKS'], '$HOME; x')"


def diagnosed(tmp_path: Path) -> tuple[Case, Any]:
    from ncclkit.causes.engine import diagnose

    case = Case.open(tmp_path / "case")
    folder = case.new_run("attach")
    look(folder, True)
    read_look(case, folder, [])
    return case, diagnose(case)


def test_a_command_for_a_hang_learns_of_it_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found = diagnosed(tmp_path)
    said = OnHang((sys.executable, "-c", PRINT)).run_for(case, found)
    assert said == f"--on-hang: {sys.executable} ended with status 0.\n  slow_rank 1 $HOME; x"
    assert "as it printed too much" in OnHang(("yes",)).run_for(case, found)
    monkeypatch.setattr(following, "ON_HANG_SECONDS", 0.5)
    assert "was ended after 0 s" in OnHang(("sleep", "60")).run_for(case, found)
    assert "cannot be started" in OnHang(("/nowhere/ticket",)).run_for(case, found)
    assert OnHang.from_command_line("scontrol requeue '4 7'").words == ("scontrol", "requeue", "4 7")
    for wrong in ("'", " "):
        with pytest.raises(NcclkitError, match="--on-hang"):
            OnHang.from_command_line(wrong)


def test_on_hang_needs_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", "--on-hang", "true"]) == 2
    assert "--on-hang takes --follow" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_that_begins_to_hang_is_found_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start("sleeping", 2) as job:
        words = ["attach", "--pid", str(job[0].pid), "--follow", "3", "--on-hang", "sh -c 'echo $NCCLKIT_RANKS'"]
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "ncclkit", *words], capture_output=True, text=True, timeout=200)
        assert all(process.poll() is None for process in job.values())
    assert done.returncode == 1 and time.monotonic() - begun < 200
    assert done.stdout.startswith("Rank 0 waits for a timer"), done.stdout + done.stderr
    assert "--on-hang: sh ended with status 0.\n  0\n" in done.stdout
    assert "stands still" in done.stderr
