"""Count settled cases for the differential, and try it on owners that it has not counted.

    python -m tests.bench.differential PATH [--write] [--answers FILE …] [--list]

PATH holds posted failures as JSON files (`../shared/cases`).  Counted are these, the exam and the recordings.
--write puts what each of them showed, without any text, where the package reads it (`ncclkit/causes/settled.json`).
Without it, the posted failures are judged by what was counted of all other owners: the settled cause (or one that its
thread would have accepted) first, among three, among five, and first after up to three questions.  Those are answered
from FILE, which holds for each case what its reporter could have said (``{case: {look: "yes" or "no"}}``); what stands
there for nothing is answered by "cannot tell".
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import msgspec

from ncclkit import evidence
from ncclkit.causes import differential as module
from ncclkit.causes.differential import FILE, Differential, Settled, Table, answer_event, features_of
from ncclkit.causes.engine import diagnose
from ncclkit.causes.looks import all_questions
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.bench.diagnosis import Sample, samples
from tests.bench.resemblance import SETS

TESTS = Path(__file__).parents[1]
RECORDINGS = TESTS.parent / "ncclkit/evidence/samples"
GROUPS = ("posted log suffices", "posted log does not suffice")
QUESTIONS = 3
"""How many are asked at most."""


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


def judged_unseen(posted: Sequence[Posted], own: Sequence[Settled]) -> Iterator[tuple[str, Table]]:
    """Each owner with the table of all failures but its own."""
    for owner in sorted({one.owner for one in posted}):
        others = [one.settled for one in posted if one.owner != owner]
        yield owner, Table([*own, *others])


@dataclass(frozen=True)
class Answered:
    """What the package says of a failure."""

    named: list[str]
    """The causes of its findings, the best first."""
    suspects: list[str]
    """The same; where it names none, as nothing in the text says that anything failed, what it holds for who asks."""
    differential: Differential | None


def answered(case: Case, table: Table) -> Answered:
    """The diagnosis of a case with this table."""
    with patch.object(module, "settled_table", lambda: table):
        found = diagnose(case)
    named = [finding.cause for finding in found.findings]
    held = found.differential.suspects if found.differential else ()
    return Answered(named, named or [one.cause for one in held], found.differential)


def first_after_questions(one: Posted, table: Table, answers: Mapping[str, str]) -> str:
    """The first cause after as many questions as it takes, at most `QUESTIONS`; the case stays as it was."""
    known = answered(one.case, table)
    before = list(one.case.events)
    for _ in range(QUESTIONS):
        look = known.differential.question if known.differential else None
        if look is None:
            break
        given = answers.get(look.cause, "unknown")
        one.case.events.append(answer_event(look, given, "user"))  # type: ignore[arg-type]
        known = answered(one.case, table)
    one.case.events = before
    return next(iter(known.suspects), "")


def scores_table(posted: Sequence[Posted], found: Mapping[str, Answered]) -> str:
    """How right the first answers are, in Markdown."""
    rows = ["| posted log | n | first | among three | among five | silent | three, for who asks |"]
    rows.append("|---|---|---|---|---|---|---|")
    for group in GROUPS:
        mine = [one for one in posted if one.sample.group == group]
        cells = [str(len(mine))]
        for among in (1, 3, 5):
            right = sum(one.is_right(found[one.sample.name].named[:among]) for one in mine)
            cells.append(_share(right, len(mine)))
        cells.append(str(sum(not found[one.sample.name].named for one in mine)))
        held = sum(one.is_right(found[one.sample.name].suspects[:3]) for one in mine)
        cells.append(_share(held, len(mine)))
        rows.append(f"| {group.removeprefix('posted log ')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Write what is counted, or print how right it is on owners that were not counted."""
    parser = argparse.ArgumentParser(description="Count settled cases for the differential, or try it.")
    parser.add_argument("path", type=Path, help="a folder of posted failures")
    parser.add_argument("--write", action="store_true", help="write what the package reads")
    parser.add_argument("--answers", type=Path, nargs="*", default=[], help="what reporters could have answered")
    parser.add_argument("--list", action="store_true", help="also print each case that is not among three")
    options = parser.parse_args()
    posted, own = list(posted_failures(options.path)), list(own_failures())
    if options.write:
        write_settled([*own, *(one.settled for one in posted)])
        print(f"{FILE.name}: {len(own) + len(posted)} settled cases, {FILE.stat().st_size:,} bytes")
        return
    tables = dict(judged_unseen(posted, own))
    found = {one.sample.name: answered(one.case, tables[one.owner]) for one in posted}
    print(scores_table(posted, found))
    bare = [one for one in posted if one.sample.group == GROUPS[1]]
    for one in bare if options.list else ():
        answer = found[one.sample.name]
        if not one.is_right(answer.suspects[:3]):
            mark = "" if answer.named else "for who asks: "
            print(f"- {one.sample.name}: {one.sample.cause} <- {mark}{', '.join(answer.suspects[:5])}")
    for file in options.answers:
        print(_with_answers(file, bare, tables, options.list))


def _with_answers(file: Path, bare: Sequence[Posted], tables: Mapping[str, Table], listed: bool) -> str:
    """How many are first after questions that this file answers."""
    answers: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    unknown = sorted({look for given in answers.values() for look in given} - all_questions().keys())
    if unknown:
        raise SystemExit(f"{file}: there is no look {', '.join(unknown)}")
    first = {}
    for one in bare:
        given = answers.get(one.sample.name, {})
        first[one.sample.name] = first_after_questions(one, tables[one.owner], given)
    wrong = [one for one in bare if not one.is_right([first[one.sample.name]])]
    lines = [f"{file.name}: first after at most {QUESTIONS} questions {_share(len(bare) - len(wrong), len(bare))}"]
    lines += [f"- {one.sample.name}: {one.sample.cause} <- {first[one.sample.name]}" for one in wrong if listed]
    return "\n".join(lines)


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.0f} %)"


if __name__ == "__main__":
    main()
