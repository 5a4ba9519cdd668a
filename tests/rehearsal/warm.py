"""Rehearses one script in many ways from a process that has loaded torch: a second each, and no page.

    python -m tests.rehearsal.warm OPTIONS SCRIPT CASE …

Each case is the script's argument; OPTIONS is JSON, with the folder for the verdicts as ``folder``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ncclkit.agent.rehearsal import ranks
from ncclkit.agent.run import processes
from tests.rehearsal.rehearsed import PYTHON, RANKS, ROOT, SCRIPTS

USUAL = {
    "ranks": RANKS,
    "host_ranks": RANKS,
    "steps": 20,
    "timeout": 60.0,
    "job_timeout": 0.0,
    "shown_gpus": "all",
    "fake": False,
    "gpu": False,
}


def verdicts_of(folder: Path, script: str, cases: list[str], **options: Any) -> dict[str, Any]:
    """Case → what ranks answer; options: those of `RankOptions` that differ from the usual ones."""
    given = {**USUAL, **options, "folder": str(folder)}
    words = [PYTHON, "-m", "tests.rehearsal.warm", json.dumps(given), str(SCRIPTS / script), *cases]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    limit = 60 + 60 * len(cases)
    with open(folder / "printed", "wb") as printed:
        subprocess.run(words, cwd=folder, env=env, stdout=printed, stderr=printed, timeout=limit)
    answers = {}
    for case in cases:
        path = folder / f"{case}.json"
        assert path.exists(), (folder / "printed").read_text()
        answers[case] = json.loads(path.read_text())
    return answers


def main(argv: list[str]) -> None:
    """Rehearse the cases one after the other, each in a fork."""
    options = json.loads(argv[0])
    folder = Path(options.pop("folder"))
    ranks._load_torch(is_fake=False)
    parent = os.getpid()
    for case in argv[2:]:
        pid = os.fork()
        if pid == 0:
            processes.die_with_parent(parent)
            answer = str(folder / f"{case}.json")
            ranks.main([json.dumps({**options, "answer": answer}), argv[1], case])
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
