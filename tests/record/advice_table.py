"""First advice beside the settled fix, for a reader to grade, and the table of such grades.

    python tests/record/advice_table.py CASES                      rows to grade, as Markdown
    python tests/record/advice_table.py CASES --table              the table that docs/accuracy.md keeps

CASES is a folder of cases as JSON files (``id``, ``log``, ``fix``, ``log_sufficient``).  Grades stand in
`advice_grades.json` beside this file: reader → edition → grade → ids of cases; no word of a case is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.model import Advice  # noqa: E402
from tests.cases import read_text  # noqa: E402

GRADES = Path(__file__).with_name("advice_grades.json")
MEANINGS: Mapping[str, str] = {
    "right": "it is the settled fix, or leads to it; of a healthy job: nothing is advised",
    "partly": "the right part of the machine, and a further step is needed",
    "elsewhere": "a look that changes nothing and rules another suspect out",
    "wrong": "a change that does not help",
    "harmful": "a change that does damage, or hides the fault",
    "none": "nothing is advised",
}
"""What a reader may say of one first advice."""


@dataclass(frozen=True)
class PostedCase:
    """One case as it lies in the folder."""

    name: str
    log: str
    fix: str
    suffices: bool


def posted_cases(folder: Path) -> Iterator[PostedCase]:
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        yield PostedCase(row["id"], row["log"], row["fix"], bool(row["log_sufficient"]))


def first_advice(log: str) -> tuple[str, str]:
    """The cause named first with its strength, and its first advice with what can be copied."""
    findings = diagnose(read_text(log)).findings
    if not findings:
        return "-", "-"
    first = findings[0]
    return f"{first.cause} ({first.strength})", _in_words(first.advice[0]) if first.advice else "-"


def _in_words(advice: Advice) -> str:
    lines = " / ".join(advice.to_copy)
    return f"{advice.do} `{lines}`" if lines else advice.do


def grading_rows(cases: list[PostedCase]) -> list[str]:
    """A row for each case: its id, what is advised first, and the settled fix."""
    rows = ["| case | found | first advice | settled fix |", "|---|---|---|---|"]
    for case in cases:
        found, advice = first_advice(case.log)
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in (found, advice, case.fix)]
        rows.append(f"| {case.name} | {' | '.join(cells)} |")
    return rows


def grade_of_each(by_grade: Mapping[str, list[str]]) -> dict[str, str]:
    """Case → its grade; raises where a grade is unknown or a case has two."""
    grades: dict[str, str] = {}
    for grade, names in by_grade.items():
        if grade not in MEANINGS:
            raise SystemExit(f"There is no grade {grade!r}; known are {', '.join(MEANINGS)}.")
        for name in names:
            if name in grades:
                raise SystemExit(f"{name} has two grades.")
            grades[name] = grade
    return grades


def grade_table(cases: list[PostedCase], readers: Mapping[str, Mapping[str, Mapping[str, list[str]]]]) -> list[str]:
    """A row for each reader, edition and kind of text, with shares of all its cases."""
    head = ["reader", "edition", "the text", "n", *MEANINGS]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for reader, editions in readers.items():
        for edition, by_grade in editions.items():
            grades = grade_of_each(by_grade)
            for words, wanted in (("all", None), ("suffices", True), ("does not suffice", False)):
                names = [case.name for case in cases if wanted in (None, case.suffices)]
                counts = Counter(grades[name] for name in names)
                shares = [f"{counts[grade]} ({counts[grade] / len(names):.0%})" for grade in MEANINGS]
                rows.append(f"| {' | '.join([reader, edition, words, str(len(names)), *shares])} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--table", action="store_true", help="count the grades that are kept")
    options = parser.parse_args()
    cases = list(posted_cases(options.cases))
    if options.table:
        rows = grade_table(cases, json.loads(GRADES.read_text(encoding="utf-8")))
    else:
        rows = grading_rows(cases)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
