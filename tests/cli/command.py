"""The command in a process of its own, as scripts start it; `typed` of conftest.py does without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ncclkit.evidence.samples import HERE
from tests.processes import warm

ROOT = Path(__file__).parents[2]
LATE = str(HERE / "rank_late")
WARM = warm({"PYTHONPATH": str(ROOT)})

Answer = subprocess.CompletedProcess[str]
Typed = Callable[..., Answer]


def run(*argv: str, stdin: bytes | None = None, cwd: Path | None = None, **env: str) -> Answer:
    """What ``python -m ncclkit`` answers."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)} | env
    done = subprocess.run(
        [sys.executable, "-m", "ncclkit", *argv], input=stdin, capture_output=True, timeout=110, cwd=cwd, env=environ
    )
    return Answer(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
