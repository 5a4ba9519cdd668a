"""Dead jobs that nobody prepared: the ways to hang of `tests.live.hangs`, judged by what they leave behind.

    python tests/bench/dead.py [--keep DIR] [--judge DIR] [--out OUT.json] [--side-by-side N]
                               [--backend nccl] [WAY ...]

Each job is two ranks under torchrun, over gloo or on two GPUs (``--backend nccl``), with a short timeout: it dies of
its hang, and leaves torchrun's log and the Flight Recorder's dumps of its ranks.  Both are judged together, and the log
alone.  A cause counts where the first finding is one of those that the way lists; a culprit where it names exactly the
ranks at fault.  ``--keep`` keeps what they left in a folder for each way; ``--judge`` judges such folders again, and
starts nothing; ``--source`` names the programs' folder, where the jobs ran elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit import evidence  # noqa: E402
from ncclkit.agent.run.processes import die_with_parent  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.evidence.logs import fill  # noqa: E402
from ncclkit.evidence.programs import add_program_lines  # noqa: E402
from tests.live.hangs import FORBIDDEN, WAYS, ways  # noqa: E402

RANKS = 2
TIMEOUT = 20.0
"""Seconds for which a call waits."""
DEADLINE = 240.0
"""Seconds in which a job has to die."""
PROGRAM = Path(__file__).parents[1] / "live" / "dying.py"
LOG = "job.log"
DUMP_FILES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
"""Variables, old and new, that name the files of torch's dumps."""
CLEAN = ("TORCH", "NCCL", "SLURM", "GLOO")
"""Beginnings of variables that a job does not inherit."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=[], help="these only")
    parser.add_argument("--keep", type=Path, help="a folder for what each job leaves")
    parser.add_argument("--judge", type=Path, help="a folder of --keep, judged again")
    parser.add_argument("--source", default="", help="as of diagnose")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.judge or options.keep or Path(temporary)
        names = options.ways or ways(options.backend)
        if options.judge is None:
            with ThreadPoolExecutor(options.side_by_side) as pool:
                list(pool.map(lambda name: let_die(name, folder / name, options.backend), names))
        left = [name for name in names if (folder / name / LOG).exists()]
        rows = [judged_row(name, folder / name, options.source) for name in left]
    result = summary(rows)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print_table(result)
    return int(result["wrong_proven"] > 0)


def let_die(name: str, place: Path, backend: str) -> None:
    """Start a job, wait until it is dead, and keep its log and its dumps."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    clean = {key: value for key, value in os.environ.items() if key in FORBIDDEN or not key.startswith(CLEAN)}
    common = {"HANGS_BACKEND": backend, "HANGS_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1"}
    if backend == "gloo":
        common |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with tempfile.TemporaryDirectory() as folder, open(place / LOG, "w") as log:
        dumps = Path(folder, "dumps")
        if backend == "nccl":  # jobs side by side would write over each other's in /tmp
            dumps.mkdir()
            common |= dict.fromkeys(DUMP_FILES, str(dumps / "nccl_trace_rank_"))
        job = subprocess.Popen(
            [*command, str(PROGRAM), name],
            env={**clean, **common, "HANGS": folder},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            job.wait(DEADLINE)
        except subprocess.TimeoutExpired:  # as a person or a scheduler would end it
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        if dumps.exists():
            shutil.copytree(dumps, place / "dumps", ignore=shutil.ignore_patterns(".*"))


def judged_row(name: str, place: Path, source: str) -> dict[str, Any]:
    """What is said of one dead job, by all that it left and by its log alone."""
    return {
        "way": name,
        "framework": WAYS[name].framework,
        "dumps": len(list(place.glob("dumps/nccl_trace_rank_*"))),
        "whole": judgement(name, place, source),
        "log": judgement(name, place / LOG, source),
    }


def judgement(name: str, path: Path, source: str) -> dict[str, Any]:
    """The first finding, and whether it is right."""
    wanted = WAYS[name]
    found = diagnose(fill(Case(), add_program_lines(evidence.read([str(path)]), source)))
    first = found.findings[0] if found.findings else None
    ranks = tuple(first.culprits["ranks"]) if first else ()
    wrong = [one.cause for one in found.findings if one.strength == "proven" and one.cause not in wanted.causes]
    return {
        "cause": first is not None and first.cause in wanted.causes,
        "rank": not wanted.ranks or ranks == wanted.at_fault(RANKS),
        "found": first.cause if first else "",
        "strength": first.strength if first else "",
        "ranks": ranks,
        "says": first.say if first else found.headline,
        "wrong_proven": wrong,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much of it is right."""
    counts: dict[str, Any] = {"jobs": len(rows)}
    for part in ("whole", "log"):
        counts[f"{part}_cause"] = sum(row[part]["cause"] for row in rows)
        counts[f"{part}_rank"] = sum(row[part]["rank"] for row in rows)
    wrong = [row for row in rows if row["whole"]["wrong_proven"] or row["log"]["wrong_proven"]]
    return counts | {"wrong_proven": len(wrong), "rows": rows}


def print_table(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        print(f"{row['way']} ({row['dumps']} dumps)")
        for part in ("whole", "log"):
            said = row[part]
            marks = f"{'cause' if said['cause'] else '-----'} {'rank' if said['rank'] else '----'}"
            print(f"  {part:5} {marks} {said['found']} {said['strength']} {said['ranks']} {said['says'][:400]}")
            if said["wrong_proven"]:
                print(f"        WRONG AT PROVEN: {said['wrong_proven']}")
    print({key: value for key, value in result.items() if key != "rows"})


if __name__ == "__main__":
    sys.exit(main())
