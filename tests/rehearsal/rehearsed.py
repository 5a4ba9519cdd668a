"""A script of `scripts/` under `ncclkit rehearse`, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ncclkit.agent.run import processes

PYTHON = os.environ.get("REHEARSAL_PYTHON", sys.executable)
"""The interpreter of the scripts: one with another torch shows whether they pass there, too."""
SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
IN_TURN = Path(__file__).parent / "in_turn.py"
RANKS = 4
DEADLINE = 250
"""Seconds; before it pytest's own would come, which tells less."""


def rehearse(folder: Path, script: str, *options: str) -> dict[str, Any]:
    """The answer of ``ncclkit rehearse --json`` in a folder, with its exit status as ``exit``."""
    return rehearse_words(folder, [str(SCRIPTS / script)], *options)


def rehearse_words(folder: Path, words: list[str], *options: str) -> dict[str, Any]:
    """The same for whatever words follow ``python``."""
    own = [sys.executable, "-m", "ncclkit", "rehearse", "--json", "--timeout", str(DEADLINE)]
    command = [*own, *options, "--", PYTHON, *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert ended.stdout, ended.stderr
    return {**json.loads(ended.stdout), "exit": ended.returncode}


def lines_of(script: str, words: str) -> list[int]:
    """The numbers of the lines of a script that hold these words."""
    lines = (SCRIPTS / script).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if words in line]


def marked_line(script: str, mark: str) -> str:
    """file:line that a script marks as ``# LINE: culprit`` or ``# LINE: others``."""
    numbers = lines_of(script, f"# LINE: {mark}")
    assert len(numbers) == 1, f"{script} marks {len(numbers)} lines as {mark}"
    return f"{script}:{numbers[0]}"


def places_of(answer: dict[str, Any]) -> dict[int, str]:
    """Rank → file:line at which it stands, without the folder."""
    places: dict[int, str] = {}
    for stand in [*answer["waiting"], *answer["ended"]]:
        for rank in stand["ranks"]:
            places[rank] = Path(stand["place"]).name
    return places


def printed(answer: dict[str, Any], start: str = "loss") -> list[str]:
    """Lines that ranks printed, sorted: ranks print in no order."""
    return _lines_in(Path(answer["folder"]) / "launcher.log", start)


def printed_by_torchrun(folder: Path, scripts: list[str]) -> dict[str, list[str]]:
    """Script → lines that its ranks print under torchrun, over gloo and without us."""
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone"]
    paths = [str(SCRIPTS / script) for script in scripts]
    command = [*torchrun, "--nproc-per-node", str(RANKS), str(IN_TURN), str(folder), *paths]
    # its ranks end with it, for which they take a function of ours
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        preexec_fn=processes.die_with_parent,
    )
    assert ended.returncode == 0, ended.stderr
    lines: dict[str, list[str]] = {}
    for script in scripts:
        lines[script] = []
        for rank in range(RANKS):
            lines[script] += _lines_in(folder / f"{script}.{rank}", "loss")
    return {script: sorted(found) for script, found in lines.items()}


def _lines_in(path: Path, start: str) -> list[str]:
    found = []
    for line in path.read_text().splitlines():
        # a bar of another rank may stand before it, without an end of line
        place = line.find(start + " [")
        if line.startswith(start):
            place = 0
        if place >= 0:
            found.append(line[place:])
    return sorted(found)
