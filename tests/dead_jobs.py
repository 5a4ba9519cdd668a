"""What a job of a small script leaves behind when it dies of a hang: gloo's tracebacks, dumps, torchrun's words."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.evidence import Reading
from ncclkit.evidence.logs import fill
from ncclkit.evidence.programs import add_program_lines

PROGRAM = """\
import torch.distributed as dist


def train(rank, batches):
    for batch in batches:
        dist.all_reduce(batch)
    if rank == 0:
        evaluate(batches)
    dist.barrier()


def evaluate(batches):
    dist.all_gather(batches, batches[0])
    upload(batches)
"""
IN_LOOP, EVALUATES, BARRIER, GATHERS = 6, 8, 9, 13
"""Lines of it."""
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TIMED_OUT = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 15000ms for recv operation to complete"
)
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17323"
Place = tuple[str, int, str, str]
"""File, line, function and text of a frame."""


def program(folder: Path, text: str = PROGRAM) -> str:
    """The path of the program."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def stack(path: str, lines: Sequence[tuple[int, str]], call: str) -> list[Place]:
    """A stack, outermost frame first, that ends in a call of torch."""
    texts = PROGRAM.splitlines()
    places = []
    for line, func in lines:
        places.append((path, line, func, texts[line - 1].strip() if line <= len(texts) else ""))
    return [*places, (TORCH, 3252, call, "work.wait()")] if call else places


def in_loop(path: str) -> list[Place]:
    return stack(path, [(IN_LOOP, "train")], "all_reduce")


def in_barrier(path: str) -> list[Place]:
    return stack(path, [(BARRIER, "train")], "barrier")


def in_evaluation(path: str) -> list[Place]:
    return stack(path, [(EVALUATES, "train"), (GATHERS, "evaluate")], "all_gather")


def traceback(rank: int, places: Sequence[Place], error: str = TIMED_OUT) -> str:
    """As a rank prints it."""
    rows = ["Traceback (most recent call last):"]
    for path, line, func, text in places:
        rows += [f'  File "{path}", line {line}, in {func}', f"    {text}"]
    return "".join(f"[rank{rank}]: {row}\n" for row in [*rows, error])


def dump(folder: Path, rank: int, op: str, places: Sequence[Place], ranks: int = 2, calls: int = 4) -> None:
    """A Flight Recorder dump of a rank whose fourth call is this one, which it waits in, of the first calls."""
    folder.mkdir(exist_ok=True)
    frames = [{"filename": path, "line": line, "name": func} for path, line, func, _ in reversed(places)]
    entries = []
    for number in range(1, calls + 1):
        last = number == 4
        entries.append(
            {
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "profiling_name": f"gloo:{op if last else 'all_reduce'}",
                "time_created_ns": 10**18 + number * 10**6,
                "input_sizes": [[8]],
                "input_dtypes": ["Float"],
                "output_sizes": [[8]],
                "output_dtypes": ["Float"],
                "state": "scheduled" if last else "completed",
                "retired": not last,
                "is_p2p": False,
                "frames": frames,
            }
        )
    value = {"version": "2.10", "entries": entries, "pg_config": {"0": {"desc": "default_pg", "ranks": str(list(range(ranks)))}}}
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value))


def torchrun(failed: dict[int, int], stopped: Sequence[int] = ()) -> str:
    """What torchrun says at the end: exit codes of ranks, that of the first failure first, and whom it stopped."""
    at = "torch/distributed/elastic/multiprocessing/api.py"
    rows = [f"W1127 19:03:28.896000 77 {at}:1028] Sending process {100 + r} closing signal SIGTERM" for r in stopped]
    first = next(iter(failed))
    rows.append(
        f"E1127 19:03:28.906000 77 {at}:1002] failed (exitcode: {failed[first]}) local_rank: {first}"
        f" (pid: {100 + first}) of binary: /venv/bin/python"
    )
    rows += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED"]
    rows += ["-" * 60, "Failures:"]
    for rank, code in failed.items():
        if rank == first:
            continue
        rows += _entry(rank, code)
    rows += ["-" * 60, "Root Cause (first observed failure):", *_entry(first, failed[first]), "=" * 60]
    return "\n".join(rows) + "\n"


def _entry(rank: int, code: int) -> list[str]:
    return [
        "[0]:",
        "  time      : 2026-11-27_19:03:28",
        "  host      : localhost",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {100 + rank})",
        "  error_file: <N/A>",
    ]


def read_dead(folder: Path, log: str = "", source: str = "") -> Reading:
    """The reading of a folder with dumps, and a log with this text."""
    if log:
        (folder / "job.log").write_text(log)
    left = [str(path) for path in (folder / "job.log", folder / "dumps") if path.exists()]
    return add_program_lines(evidence.read(left), source)


def judged_dead(folder: Path, log: str = "", source: str = "") -> Diagnosis:
    """The diagnosis of what a job left in a folder."""
    return diagnose(fill(Case(), read_dead(folder, log, source)))
