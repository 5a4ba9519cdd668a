"""A script of `scripts/` under `ncclkit rehearse`, as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"


def rehearse(folder: Path, script: str, *options: str) -> dict[str, Any]:
    """The answer of ``ncclkit rehearse --json`` in a folder, with its exit status as ``exit``."""
    own = [sys.executable, "-m", "ncclkit", "rehearse", "--json", *options]
    command = [*own, "--", sys.executable, str(SCRIPTS / script)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.stdout, ended.stderr
    return {**json.loads(ended.stdout), "exit": ended.returncode}


def lines_of(script: str, words: str) -> list[int]:
    """The numbers of the lines of a script that hold these words."""
    lines = (SCRIPTS / script).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if words in line]


def printed(answer: dict[str, Any], start: str = "loss") -> list[str]:
    """Lines that ranks printed, sorted: ranks print in no order."""
    lines = (Path(answer["folder"]) / "launcher.log").read_text().splitlines()
    return sorted(line for line in lines if line.startswith(start))
