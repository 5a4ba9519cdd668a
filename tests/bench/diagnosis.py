"""Score the diagnosis on a folder of labelled cases; prints a Markdown table.

    python tests/bench/diagnosis.py PATH [--list]

PATH holds one JSON file per case with ``log``, ``cause``, ``also_accept`` and ``log_sufficient``.  The log text alone
is judged.  "right" counts the cause or one of ``also_accept``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.case import Case
from ncclkit.diagnose import Diagnosis, diagnose


@dataclass(frozen=True)
class Score:
    name: str
    cause: str
    accept: frozenset[str]
    sufficient: bool
    found: tuple[tuple[str, str], ...]
    seconds: float

    def right(self, among: int) -> bool:
        return any(cause in self.accept for cause, _ in self.found[:among])

    @property
    def wrong_at_proven(self) -> bool:
        return any(strength == "proven" and cause not in self.accept for cause, strength in self.found[:1])


def score(path: Path, folder: Path) -> Score:
    case = json.loads(path.read_text(encoding="utf-8"))
    log = folder / "job.log"
    log.write_text(case["log"], encoding="utf-8")
    start = time.perf_counter()
    result = judge(log)
    found = tuple((finding.cause, str(finding.strength)) for finding in result.findings)
    accept = frozenset([case["cause"], *case.get("also_accept", ())])
    return Score(path.stem, case["cause"], accept, bool(case["log_sufficient"]), found, time.perf_counter() - start)


def judge(log: Path) -> Diagnosis:
    reading = evidence.read([log])
    return diagnose(Case().add(reading.events))


def table(scores: list[Score]) -> str:
    rows = [
        "| cases | n | top-1 | top-3 | wrong at proven | nothing found | seconds (median) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, group in (
        ("log sufficient", [s for s in scores if s.sufficient]),
        ("log not sufficient", [s for s in scores if not s.sufficient]),
        ("all", scores),
    ):
        if group:
            rows.append("| " + " | ".join([name, str(len(group)), *_cells(group)]) + " |")
    return "\n".join(rows)


def _cells(group: list[Score]) -> list[str]:
    def share(values: list[bool]) -> str:
        return f"{sum(values)} ({100 * sum(values) / len(values):.0f} %)"

    seconds = sorted(score.seconds for score in group)[len(group) // 2]
    return [
        share([score.right(1) for score in group]),
        share([score.right(3) for score in group]),
        str(sum(score.wrong_at_proven for score in group)),
        str(sum(not score.found for score in group)),
        f"{seconds:.3f}",
    ]


def listing(scores: list[Score]) -> str:
    rows = []
    for item in scores:
        mark = "1" if item.right(1) else "3" if item.right(3) else "-"
        answer: Any = ", ".join(f"{cause} ({strength})" for cause, strength in item.found[:4]) or "nothing"
        rows.append(f"{mark} {'s' if item.sufficient else ' '} {item.name}: {item.cause} <- {answer}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the diagnosis on labelled cases.")
    parser.add_argument("path", type=Path, help="folder with one JSON file per case")
    parser.add_argument("--list", action="store_true", help="also print every case with its answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores = [score(path, Path(folder)) for path in sorted(options.path.glob("*.json"))]
    print(table(scores) if scores else f"No *.json in {options.path}.")
    if options.list:
        print(listing(scores))


if __name__ == "__main__":
    main()
