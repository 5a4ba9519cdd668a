"""Judge logs that stand in public repositories; prints a Markdown table and all that has a finding.

    python tests/bench/posted.py GIT_FOLDER [GIT_FOLDER …] [--each N] [--seed N]

A GIT_FOLDER is a clone, bare or not.  Of each folder of a repository N log files are drawn, and of
its Markdown pages every fenced block that is no source code and speaks of a run.  Nobody has
labelled them: what has a finding is listed with its first line, so that one can look whether
something failed there.  Nothing of them is kept.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ncclkit.causes.diagnosis import Diagnosis  # noqa: E402
from tests.bench.diagnosis import judge  # noqa: E402

LOG_NAME = re.compile(r"\.(?:log|out|err)$|(?:log|slurm|output)[^/]*\.txt$|/result_\d+\.txt$", re.I)
PAGE_NAME = re.compile(r"\.(?:md|rst)$", re.I)
FENCED = re.compile(r"^```[ \t]*(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```", re.M | re.S)
OF_A_RUN = re.compile(
    r"NCCL|rank ?\d|epoch|loss|torchrun|srun|iter|step|GB/s|nvidia-smi|world_size|slurm|mpirun", re.I
)
NO_LANGUAGE = ("", "bash", "sh", "shell", "console", "text", "txt", "log", "output", "none")
LEAST_LINES = 10
SMALLEST, LARGEST = 500, 3_000_000
"""Bytes of a log file."""


@dataclass(frozen=True)
class Posted:
    """One text that somebody has posted."""

    repository: str
    name: str
    is_page: bool
    text: bytes


@dataclass(frozen=True)
class Blob:
    """One file of the newest commit."""

    path: str
    digest: str
    size: int


def git(folder: Path, *words: str) -> bytes:
    """What git prints of a clone."""
    return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True).stdout


def blobs(folder: Path) -> Iterator[Blob]:
    """All files of the newest commit."""
    for line in git(folder, "ls-tree", "-r", "-l", "HEAD").decode().splitlines():
        about, path = line.split("\t", 1)
        _, _, digest, size = about.split()
        if size.isdecimal():
            yield Blob(path, digest, int(size))


def drawn_logs(folder: Path, each: int) -> Iterator[Posted]:
    """So many log files of each folder, by chance."""
    by_folder: dict[str, list[Blob]] = defaultdict(list)
    for blob in blobs(folder):
        if LOG_NAME.search(blob.path) and SMALLEST < blob.size < LARGEST:
            by_folder[str(Path(blob.path).parent)].append(blob)
    for _, found in sorted(by_folder.items()):
        for blob in random.sample(found, min(each, len(found))):
            text = git(folder, "cat-file", "blob", blob.digest)
            if OF_A_RUN.search(text.decode("latin-1")):
                yield Posted(folder.parent.name, blob.path, False, text)


def fenced_blocks(folder: Path) -> Iterator[Posted]:
    """Blocks of the Markdown pages that speak of a run."""
    for blob in blobs(folder):
        if not PAGE_NAME.search(blob.path):
            continue
        page = git(folder, "cat-file", "blob", blob.digest).decode("utf-8", "replace")
        for number, match in enumerate(FENCED.finditer(page)):
            text = match["text"]
            is_output = match["language"].lower() in NO_LANGUAGE
            if is_output and text.count("\n") >= LEAST_LINES and OF_A_RUN.search(text):
                name = f"{blob.path} block {number}"
                yield Posted(folder.parent.name, name, True, text.encode())


def judged(text: bytes) -> Diagnosis:
    """The verdict on one text, as somebody pastes it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.log").write_bytes(text)
        return judge(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge logs of public repositories.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=1, help="log files of each folder")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    counts: dict[str, Counter[str]] = {"log files": Counter(), "blocks of pages": Counter()}
    found = []
    for folder in options.folders:
        for posted in (*drawn_logs(folder, options.each), *fenced_blocks(folder)):
            result = judged(posted.text)
            counts["blocks of pages" if posted.is_page else "log files"][result.verdict] += 1
            if result.findings:
                found.append((posted, result))
    verdicts = ("healthy", "running", "no_job", "unexplained", "slow", "found")
    print("| posted | n |", " | ".join(verdicts), "|")
    print("|---" * (len(verdicts) + 2) + "|")
    for name, count in counts.items():
        print(f"| {name} | {count.total()} |", " | ".join(str(count[v]) for v in verdicts), "|")
    for posted, result in found:
        first = result.findings[0]
        line = str(first.evidence[0]).partition("  ")[2] if first.evidence else ""
        named = f"{first.cause} ({first.strength})"
        print(f"\n{posted.repository} {posted.name}\n  {result.verdict}: {named}: {line[:200]}")


if __name__ == "__main__":
    main()
