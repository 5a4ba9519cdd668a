"""Rehearses scripts for GPUs with `--gpu`: all ranks share the first GPU of this machine.

    python3 tests/bench/rehearse_gpu.py [--json FILE] [--ranks 2 4] [--seconds 280]

From a checkout, with the interpreter that has PyTorch; nothing is installed.  Each script is
rehearsed with each number of ranks, a few at a time, and its verdict held against the expected one.
FILE takes all rows with date, hardware and versions, after each of them.  Returns 1 where a verdict
is another one, and 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "rehearsal" / "scripts"
EXPECTED = {
    "barrier_rank0.py": "mismatch",
    "full_tensor_rank0.py": "mismatch",
    "nan_skipped.py": "mismatch",
    "unused_parameters.py": "left",
    "healthy_cuda.py": "agree",
    "healthy_fsdp.py": "agree",
    "healthy_fsdp2_gpu.py": "agree",
    "healthy_sync_batch_norm.py": "agree",
}
"""Script → its verdict: of those with a fault as on the CPU."""
OF_THIRD_RANK = ("nan_skipped.py",)
"""Scripts whose fault is that of rank 2."""
BESIDE = 2
"""Rehearsals at a time."""
EACH = 100
"""Seconds of one rehearsal, without its start."""
WITHOUT_GPU = "No GPU: --gpu shares one, so nothing was rehearsed (%s)."
BEGIN = """
import json, torch
torch.cuda.init()
found = {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Rehearsed:
    """One script with one number of ranks."""

    script: str
    ranks: int
    expected: str
    verdict: str
    odd: list[int]
    """Ranks at fault."""
    lines: bool
    """Whether both marked lines of a fault are named; true of a healthy script."""
    seconds: float
    sentence: str

    @property
    def is_right(self) -> bool:
        """Whether it was told what was expected."""
        return self.verdict == self.expected and self.lines


def main(argv: list[str] | None = None) -> int:
    """Rehearse all of them, as far as the time goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=280.0, help="for all of it")
    options = parser.parse_args(argv)
    about = about_gpu()
    if "gpu" not in about:
        print(WITHOUT_GPU % about["lacking"])
        return 2
    until = time.monotonic() + options.seconds
    rows: list[Rehearsed] = []
    asked = pairs_of(options.ranks)
    with ThreadPoolExecutor(BESIDE) as pool:
        running = [pool.submit(rehearse_on_gpu, script, ranks, until) for script, ranks in asked]
        for ended in as_completed(running):
            row = ended.result()
            if row is None:
                continue
            rows.append(row)
            mark = "ok" if row.is_right else "WRONG"
            print(f"{mark:5} {row.script} with {row.ranks} ranks: {row.sentence}", flush=True)
            write_rows(options.json, about, rows, len(asked))
    wrong = [row for row in rows if not row.is_right]
    print(f"{len(rows)} of {len(asked)} rehearsed, {len(wrong)} with another verdict than expected")
    return int(bool(wrong) or len(rows) < len(asked))


def pairs_of(ranks: list[int]) -> list[tuple[str, int]]:
    """What is rehearsed: script and ranks."""
    pairs = []
    for number in ranks:
        for script in EXPECTED:
            if script not in OF_THIRD_RANK or number > 2:
                pairs.append((script, number))
    return pairs


def about_gpu() -> dict[str, str]:
    """Date, hardware and versions; without `gpu`, and with what is `lacking`, where there is none."""
    about = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
    # CUDA begins in a process of its own: this one only starts others
    words = [sys.executable, "-c", BEGIN]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return about | {"lacking": "it did not begin within 120 s"}
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["no word"]
        return about | {"lacking": said[-1]}
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return about | found


def rehearse_on_gpu(script: str, ranks: int, until: float) -> Rehearsed | None:
    """One rehearsal; None where no time is left for it."""
    limit = min(EACH, until - time.monotonic() - 10)
    if limit < 20:
        return None
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    own = [sys.executable, "-m", "ncclkit", "rehearse", "--json", "--gpu"]
    own += ["--ranks", str(ranks), "--timeout", str(int(limit))]
    words = [*own, "--", sys.executable, str(SCRIPTS / script)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=limit + 150,
        )
    seconds = round(time.monotonic() - began, 1)
    return row_of(script, ranks, seconds, ended)


def row_of(
    script: str,
    ranks: int,
    seconds: float,
    ended: subprocess.CompletedProcess[str],
) -> Rehearsed:
    """What a rehearsal has told, as a row."""
    told: dict[str, Any] = {"kind": "none", "odd": [], "sentence": ended.stderr[-300:]}
    if ended.stdout:
        told = json.loads(ended.stdout)
    return Rehearsed(
        script=script,
        ranks=ranks,
        expected=EXPECTED[script],
        verdict=told["kind"],
        odd=told["odd"],
        lines=names_lines(script, told["sentence"]),
        seconds=seconds,
        sentence=told["sentence"],
    )


def names_lines(script: str, sentence: str) -> bool:
    """Whether a sentence names each line that the script marks."""
    source = (SCRIPTS / script).read_text(encoding="utf-8")
    for number, line in enumerate(source.splitlines(), 1):
        if "# LINE:" in line and f"{script}:{number}" not in sentence:
            return False
    return True


def write_rows(
    path: Path | None,
    about: dict[str, str],
    rows: list[Rehearsed],
    asked: int,
) -> None:
    """Keep what is known so far."""
    if path is None:
        return
    right = sum(row.is_right for row in rows)
    table: dict[str, Any] = {**about, "torch": torch_version(), "asked": asked, "right": right}
    table["rows"] = [asdict(row) for row in rows]
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def torch_version() -> str:
    """The version that is installed; torch is not loaded for it."""
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    sys.exit(main())
