"""Count settled cases for the differential.

    python -m tests.bench.differential PATH

PATH holds posted failures as JSON files (`../shared/cases`).  Counted are these, the exam and the recordings: what
each of them showed, without any text, is put where the package reads it (`ncclkit/causes/settled.json`).
`tests.bench.ranking` tries it on owners that it has not counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ncclkit import evidence
from ncclkit.causes.differential import FILE, Settled, features_of
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.bench.diagnosis import Sample, samples
from tests.bench.resemblance import SETS

TESTS = Path(__file__).parents[1]
RECORDINGS = TESTS.parent / "ncclkit/evidence/samples"
GROUPS = ("posted log suffices", "posted log does not suffice")


@dataclass(frozen=True)
class Posted:
    """A posted failure: its owner, what was settled, and its case as it was read."""

    owner: str
    sample: Sample
    settled: Settled
    case: Case

    def is_right(self, causes: Iterable[str]) -> bool:
        """Whether any of these is the settled cause, or one that its thread would have accepted."""
        return bool(self.sample.accept & set(causes))


def posted_failures(folder: Path) -> Iterator[Posted]:
    """The failures of a folder, by name; healthy jobs in it are left out."""
    for sample in samples(folder):
        if sample.cause:
            text = json.loads((folder / f"{sample.name}.json").read_text(encoding="utf-8"))
            owner = text["source"].partition("/")[0].lower()
            case = read_case(sample)
            yield Posted(owner, sample, settled_case(sample, case, f"posted:{owner}"), case)


def read_case(sample: Sample) -> Case:
    """What a failure left behind, read as the package reads it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in sample.files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return fill(Case(), evidence.read([Path(folder)]))


def settled_case(sample: Sample, case: Case, source: str) -> Settled:
    """What is counted of a failure."""
    seen, contexts = features_of(case)
    shows = frozenset([*(one.symptom for one in seen), *contexts])
    accept = tuple(sorted(sample.accept - {sample.cause}))
    return Settled(source, sample.cause, accept, sample.group != GROUPS[1], shows)


def own_failures() -> Iterator[Settled]:
    """What is counted of this repository: the exam and the recordings."""
    folders = [*(TESTS / "exam" / name for name in SETS), RECORDINGS]
    for folder in folders:
        for sample in samples(folder):
            if sample.cause:
                yield settled_case(sample, read_case(sample), folder.name)


def write_settled(settled: Sequence[Settled]) -> None:
    """A row for each case, one a line, sorted: a change of one stays a change of one line."""
    rows = [{**msgspec.to_builtins(one), "shows": sorted(one.shows)} for one in settled]
    lines = sorted(json.dumps(row, separators=(",", ":")) for row in rows)
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def main() -> None:
    """Write what is counted."""
    parser = argparse.ArgumentParser(description="Count settled cases for the differential.")
    parser.add_argument("path", type=Path, help="a folder of posted failures")
    options = parser.parse_args()
    posted, own = list(posted_failures(options.path)), list(own_failures())
    write_settled([*own, *(one.settled for one in posted)])
    print(f"{FILE.name}: {len(own) + len(posted)} settled cases, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
