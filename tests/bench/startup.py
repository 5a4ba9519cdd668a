"""What starting costs: the report, the import, a diagnosis of 1 MB of log; each beside a peer measured in the same run.

    python tests/bench/startup.py [--skip-report]

Run it from the environment of `make` on a quiet machine. It prints and asserts nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
LINES = (
    "node{node}:{pid}:{tid} [{gpu}] NCCL INFO Channel {channel:02d}/0 : {gpu}[{gpu}] -> {peer}[{peer}] via P2P/CUMEM",
    "node{node}:{pid}:{tid} [{gpu}] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    "[rank{rank}]: step {step:6d} loss 2.{step:05d} lr 3.0e-04 {channel} it/s",
)
ERROR = "ValueError: found by the last of many lines"


def seconds(*command: str, status: int = 0, says: str = "") -> float:
    """Wall time of one command in seconds; one that ends otherwise than expected has no figure, and ends this."""
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    if result.returncode != status or says not in result.stdout:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return took


def medians(times: int, *timers: Callable[[], float]) -> list[float]:
    """Median seconds of each; they take turns, so that a busy moment meets them all."""
    rounds = [[timer() for timer in timers] for _ in range(times)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def write_log(path: Path, size: int) -> None:
    """A log of 16 ranks of `size` bytes: NCCL's and a training script's lines, and a traceback on rank 3 at the end."""
    step = 0
    tail = "".join(
        f"[rank3]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/work/train.py", line 7, in <module>',
            "    step(batch)",
            ERROR,
        )
    )
    with path.open("w") as out:
        while out.tell() < size - len(tail):
            rank, step = step % 16, step + 1
            fields = {
                "node": rank // 8,
                "rank": rank,
                "pid": 4000 + rank,
                "tid": 5000 + rank,
                "gpu": rank % 8,
                "peer": (rank + 1) % 8,
                "channel": step % 32,
                "step": step,
            }
            out.write(LINES[step % len(LINES)].format(**fields) + "\n")
        out.write(tail)


def empty_notebook(path: Path) -> None:
    """A notebook of one cell: what papermill and a kernel cost by themselves."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def report(folder: Path) -> None:
    """`make report` into a fresh case folder, beside papermill on an empty notebook."""
    if not (ROOT / ".venv/.installed").exists():
        print("make report           not measured: type it once, so that its environment is there")
        return
    empty_notebook(folder / "empty.ipynb")
    peer = seconds(PYTHON, "-m", "papermill", str(folder / "empty.ipynb"), str(folder / "out.ipynb"))
    ours = seconds("make", "-C", str(ROOT), "report", f"CASE={folder / 'case'}")
    print(f"make report           {ours:7.1f} s    papermill, empty notebook {peer:.1f} s")


def imports() -> None:
    """`import ncclkit` in a new process, beside the same process without it."""
    bare, ours = medians(31, partial(seconds, PYTHON, "-c", "pass"), partial(seconds, PYTHON, "-c", "import ncclkit"))
    print(f"import ncclkit       {(ours - bare) * 1e3:+8.1f} ms   bare Python {bare * 1e3:.1f} ms")


def diagnosis(folder: Path) -> None:
    """`ncclkit diagnose` on 1 MB of log, beside what only reads it."""
    log = folder / "job.log"
    write_log(log, 1_000_000)
    ours, grep, cat, bare = medians(
        7,
        partial(seconds, PYTHON, "-m", "ncclkit", "diagnose", str(log), status=1, says="rank_exception"),
        partial(seconds, "grep", "-c", "ValueError", str(log)),
        partial(seconds, "cat", str(log)),
        partial(seconds, PYTHON, "-c", "pass"),
    )
    print(
        f"ncclkit diagnose 1 MB {ours:7.2f} s    "
        f"grep -c {grep * 1e3:.1f} ms, cat {cat * 1e3:.1f} ms, bare Python {bare * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-report", action="store_true", help="leave out the minute that the report takes")
    options = parser.parse_args()
    os.chdir(ROOT)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        imports()
        diagnosis(Path(folder))
        if not options.skip_report:
            report(Path(folder))


if __name__ == "__main__":
    main()
