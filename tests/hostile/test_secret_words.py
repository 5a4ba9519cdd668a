"""Wherever a list of words is kept, a flag and its value are seen together."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import redact
from ncclkit.agent.monitor import snapshots
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import connect, scheduler, step, submit
from ncclkit.live.options import JobOptions, StepOptions

SECRET = "it's hunter2 Zq9vX"
"""With blanks and a quote, as a shell would write it in several pieces."""


def kept(folder: Path) -> str:
    """Everything that stands in the files of a folder."""
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--hf-token", SECRET, "--lr", "0.1"],
        ["train.py", f"--hf-token={SECRET}", "--lr", "0.1"],
        ["env", f"WANDB_API_KEY={SECRET}", "python"],
        ["curl", "-u", "alice:hunter2"],
        ["sshpass", "-p", "hunter2", "ssh", "node-1"],
        ["--otp", "123456 hunter2"],
        ["--passphrase", "hunter2\nhunter2", "x"],
        ["--token", "hunter2\0hunter2", "x"],
    ],
)
def test_a_flag_and_its_value_are_seen_together(words: list[str]) -> None:
    for cleaned in (redact.words(words), redact.clean({"argv": words})["argv"]):
        assert len(cleaned) == len(words) and "hunter2" not in str(cleaned)
        assert redact.words(cleaned) == cleaned
        for word, now in zip(words, cleaned, strict=True):
            assert word == now or redact.REDACTED in now
            assert word.count("\0") == now.count("\0") and word.count("\n") == now.count("\n")


def test_other_words_stay() -> None:
    plain = ["torchrun", "--max-token", "4096", "--sort-key", "loss", "-p", "gpu", "a\0b", ""]
    plain += ["--pass-rate", "0.5"]
    assert redact.words(plain) == plain and redact.clean(plain) == plain


@pytest.mark.slow
def test_a_script_for_its_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(3)")
    case = Case.open(tmp_path / "case")
    words = [sys.executable, str(script), "--hf-token", SECRET]
    run = asyncio.run(step.measure_steps(case, words, StepOptions(here=True, ranks=1)))
    shown = json.dumps(run.to_dict()) + run.text() + repr(run)
    assert run.command[:3] == tuple(words[:3])
    assert "hunter2" not in shown and "hunter2" not in kept(tmp_path / "case")


def test_a_batch_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm gets the command as it is; what stays in the case does not hold it."""
    given: list[str] = []
    shown: list[dict[str, Any]] = []

    def sbatch(*words: str, **_: Any) -> str:
        given.append(Path(words[-1]).read_text())
        return "7"

    monkeypatch.setattr(scheduler, "ask_slurm", sbatch)
    verb = ["step", "--", "python", "train.py", "--hf-token", SECRET]
    options = JobOptions(setup="export WANDB_API_KEY=hunter2Zq9vX")
    job = submit.submit(Case.open(tmp_path), verb, options, shown.append)
    assert "hunter2 Zq9vX" in given[0] and "hunter2Zq9vX" in given[0]
    (again,) = submit.submitted_jobs(Case.open(tmp_path))
    assert job.words[:5] == again.words[:5] == tuple(verb[:5])
    assert "hunter2" not in f"{job} {again} {shown}" and "hunter2" not in kept(tmp_path)


def test_a_process_that_is_looked_at() -> None:
    code = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", code, "--hf-token", SECRET]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ)
    try:
        about = snapshots.process_details(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert "--hf-token" in about["command"] and "hunter2" not in str(about)


def test_what_reaches_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own plan starts the workers; the plan of the run has no secret."""
    started: list[str] = []

    async def never(agent: Path, *_: Any) -> None:
        started.append((agent.parent / "plan.json").read_text())
        raise NcclkitError("enough")

    monkeypatch.setattr(connect.local, "run_under_guard", never)
    chosen = {"remote_command": "sshpass -p hunter2Zq9vX ssh {host}"}
    with pytest.raises(NcclkitError, match="enough"):
        asyncio.run(connect.connectivity(Case.open(tmp_path), ["node-1", "node-2"], **chosen))
    assert "hunter2Zq9vX" in started[0]
    assert "node-2" in kept(tmp_path) and "hunter2" not in kept(tmp_path)
