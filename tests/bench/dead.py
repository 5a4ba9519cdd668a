"""Dead jobs that nobody prepared: the ways to hang of `tests.live.hangs`, judged by what they leave behind.

    python tests/bench/dead.py [--keep DIR] [--judge DIR] [--out OUT.json] [--side-by-side N]
                               [--backend nccl] [--timeout N] [--seconds N] [--leave] [WAY ...]

Each job is two ranks under torchrun, over gloo or on two GPUs (``--backend nccl``), with a short timeout: it dies of
its hang, and leaves torchrun's log and the Flight Recorder's dumps of its ranks.  Both are judged together, and the log
alone.  A cause counts where the first finding is one of those that the way lists; a culprit where it names exactly the
ranks at fault.  ``--keep`` keeps what they left in a folder for each way; ``--judge`` judges such folders again, and
starts nothing; ``--source`` names the programs' folder, where the jobs ran elsewhere.

OUT.json is written after each job; of ``--judge`` it keeps where and when the jobs ran.  After ``--seconds`` no job is begun that could not die in time, and those that still
live are ended: neither are counted, and both stand in ``not_begun`` and ``cut``, and jobs that
ended with status 0 in ``not_hung``.  ``--leave`` judges nothing: what ``--keep`` has is judged
elsewhere, with ``--judge``.
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
import threading
import time
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
from tests.bench.attach import machine  # noqa: E402
from tests.live.hangs import FORBIDDEN, WAYS, ways  # noqa: E402

RANKS = 2
TIMEOUT = 20.0
"""Seconds for which a call waits."""
DEADLINE = 240.0
"""Seconds in which a job has to die."""
LEAST = 25.0
"""Seconds that a job takes beside its timeout: to start, to write its dumps, and to end."""
SHUTDOWN = 15.0
"""Seconds in which a launcher has to end its ranks."""
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
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="of a call, in seconds")
    parser.add_argument("--seconds", type=float, default=7200.0, help="for the whole run")
    parser.add_argument("--leave", action="store_true", help="judge nothing now")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.judge or options.keep or Path(temporary)
        names = options.ways or (ways(options.backend) if options.judge is None else list(WAYS))
        bench = DeadBench(options, folder)
        if options.judge is None:
            with ThreadPoolExecutor(options.side_by_side) as pool:
                list(pool.map(bench.run, names))
        else:
            for name in names:
                bench.judge(name)
    result = bench.result()
    print_table(result)
    return int(result["wrong_proven"] > 0)


class DeadBench:
    """All jobs, so many at a time; what is known is written after each."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.until = time.monotonic() + options.seconds
        self.rows: dict[str, dict[str, Any]] = {}
        self.died: dict[str, float] = {}
        """Seconds until each job was over."""
        self.not_begun: list[str] = []
        self.cut: list[str] = []
        """Those that still lived when the time for the whole run was over."""
        self.not_hung: list[str] = []
        """Those that ended with status 0: what they do is no hang here."""
        self.head = self._head_of_jobs()
        self._lock, self._judging = threading.Lock(), threading.Lock()

    def _head_of_jobs(self) -> dict[str, Any]:
        """Where and how the jobs ran: of a run whose jobs are judged again, as its OUT.json says."""
        options = self.options
        if options.judge is None:
            chosen = {name: getattr(options, name) for name in ("backend", "side_by_side", "timeout")}
            return machine(options.backend) | chosen | {"ranks": RANKS}
        if options.out is None or not options.out.exists():
            return {}
        known: dict[str, Any] = json.loads(options.out.read_text())
        self.not_begun, self.cut = known.get("not_begun", []), known.get("cut", [])
        self.died, self.not_hung = known.get("died_after", {}), known.get("not_hung", [])
        return {name: value for name, value in known.items() if name not in summary([])}

    def run(self, name: str) -> None:
        """Let one job die, judge it, and write what is known."""
        begun = time.monotonic()
        left = self.until - begun
        if left < self.options.timeout + LEAST:
            self.not_begun.append(name)
            return
        status = let_die(name, self.folder / name, self.options, min(DEADLINE, left - SHUTDOWN))
        with self._lock:
            self.died[name] = round(time.monotonic() - begun, 1)
        # what was ended as the run's time was over is no job that died of its hang
        is_cut = status is None and left - SHUTDOWN < DEADLINE
        if is_cut or status == 0:
            (self.cut if is_cut else self.not_hung).append(name)
            shutil.rmtree(self.folder / name, ignore_errors=True)
            self.write()
        elif self.options.leave:
            self.write()
        else:
            self.judge(name)

    def judge(self, name: str) -> None:
        """Judge what one job has left, if anything, and write what is known."""
        place = self.folder / name
        if not (place / LOG).exists():
            return
        with self._judging:
            row = judged_row(name, place, self.options.source)
        with self._lock:
            self.rows[name] = row
        self.write()

    def result(self) -> dict[str, Any]:
        """The rows in the order of the ways, and how much of them is right."""
        rows = [self.rows[name] for name in WAYS if name in self.rows]
        more = {"not_begun": self.not_begun, "cut": self.cut, "not_hung": self.not_hung}
        return self.head | more | {"died_after": self.died} | summary(rows)

    def write(self) -> None:
        """Write what is known where it was asked for."""
        if self.options.out:
            with self._lock:
                self.options.out.write_text(json.dumps(self.result(), indent=1) + "\n")


def let_die(name: str, place: Path, options: argparse.Namespace, patience: float) -> int | None:
    """Start a job, keep its log and its dumps, and return its status; None where it had to be ended."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    backend = options.backend
    clean = {key: value for key, value in os.environ.items() if key in FORBIDDEN or not key.startswith(CLEAN)}
    common = {"HANGS_BACKEND": backend, "HANGS_TIMEOUT": str(options.timeout), "OMP_NUM_THREADS": "1"}
    if backend == "gloo":
        common |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with tempfile.TemporaryDirectory() as folder, open(place / LOG, "w") as log:
        dumps = Path(folder, "dumps")
        if backend == "nccl":  # jobs side by side would write over each other's in /tmp
            dumps.mkdir()
            common |= dict.fromkeys(DUMP_FILES, str(dumps / "nccl_trace_rank_"))
            common["NCCL_NVLS_ENABLE"] = "0"
        job = subprocess.Popen(
            [*command, str(PROGRAM), name],
            env={**clean, **common, "HANGS": folder},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        status = end_in_time(job, patience)
        if dumps.exists():
            shutil.copytree(dumps, place / "dumps", ignore=shutil.ignore_patterns(".*"))
    return status


def end_in_time(job: subprocess.Popen[bytes], patience: float) -> int | None:
    """The status of a job that is dead; after so many seconds it is ended as a person would: None."""
    try:
        return job.wait(max(1.0, patience))
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)
    try:
        job.wait(SHUTDOWN)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return None


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
