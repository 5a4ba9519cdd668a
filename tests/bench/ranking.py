"""Fit the weights of the voices that order the causes, and judge the order on owners that it has not read.

    python -m tests.bench.ranking PATH [--write] [--answers FILE …] [--list]

PATH holds posted failures as JSON files (`../shared/cases`).  Their owners are dealt into folds.  What judges
a fold has read nothing of its owners: neither the weights of words (`tests.bench.resemblance`), nor the settled
cases (`tests.bench.differential`), nor the weights of the voices, which are fitted to what the other folds get
from models that have read neither.  Only rules, pages and stated ratios were written by people who had seen some.

--write puts the weights of the voices, fitted to all folds, where the package reads them
(`ncclkit/causes/ranking.json`).  Printed is how often the settled cause (or one that its thread would have
accepted) is first, among three, among five, and first after up to three questions.  Those are answered from FILE,
which holds for each case what its reporter could have said (``{case: {look: "yes" or "no"}}``); what stands there
for nothing is answered by "cannot tell".
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from ncclkit.causes import differential as module
from ncclkit.causes import engine, ranking, resemblance
from ncclkit.causes.differential import (
    Differential,
    Settled,
    Table,
    answer_event,
    settled_cases,
)
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.looks import all_questions
from ncclkit.causes.ranking import FILE, Ranked, Voices, ranked_causes
from ncclkit.causes.resemblance import Weights, unpacked
from ncclkit.core.case import Case
from tests.bench.differential import GROUPS, Posted, posted_failures
from tests.bench.resemblance import FROM_POSTS, Counted, corpus, counted, fit

FOLDS = 6
QUESTIONS = 3
"""How many are asked at most."""
START = Voices(
    resembled=1.0,
    counted=0.4,
    usual=0.0,
    on_page=0.4,
    stated=1.0,
    excluded=-3.9,
    possible=2.2,
    place=-0.5,
    cleared=-1.5,
    ruled_out=-5.0,
)
"""The weights as they were stated before anything was fitted; the fit leaves them for a reason only."""
PULL = 0.1
"""How strongly they are held to these."""

VERDICTS: dict[str, Any] = {}
"""Failure → what the rules have said of it: they are asked once."""

Heard = Mapping[str, Voices]
"""Cause → what the voices say of it in one case."""


# ---------------------------------------------------------------- what has not read a fold


@dataclass(frozen=True)
class Unseen:
    """What judges failures of owners that it has not read."""

    words: Weights
    table: Table


@dataclass
class Folds:
    """Posted failures dealt by owner, and what has not read some of the folds."""

    posted: Sequence[Posted]
    own: Sequence[Settled]
    known: Counted
    fold_of: dict[str, int] = field(default_factory=dict)
    """Owner → its fold."""

    def __post_init__(self) -> None:
        counts = Counter(one.owner for one in self.posted)
        filled = [0] * FOLDS
        # the owners with most failures first, each to the fold that has fewest
        for owner in sorted(counts, key=lambda owner: (-counts[owner], owner)):
            fold = filled.index(min(filled))
            self.fold_of[owner] = fold
            filled[fold] += counts[owner]

    def of(self, fold: int) -> list[Posted]:
        """The failures of a fold."""
        return [one for one in self.posted if self.fold_of[one.owner] == fold]

    def without(self, *folds: int) -> Unseen:
        """What has read nothing of these folds."""
        owners = {owner for owner, fold in self.fold_of.items() if fold in folds}
        # an owner of healthy jobs alone is in no fold, and may be read
        sources = [FROM_POSTS + owner for owner in owners]
        words = unpacked(fit(self.known.without(*sources), level=1))
        others = [one.settled for one in self.posted if one.owner not in owners]
        return Unseen(words, Table([*self.own, *others]))


@contextmanager
def judging_with(unseen: Unseen, weights: Voices | None = None) -> Iterator[None]:
    """The package judges with these instead of what ships."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(resemblance, "weights", lambda: unseen.words))
        stack.enter_context(patch.object(module, "settled_table", lambda: unseen.table))
        if weights is not None:
            stack.enter_context(patch.object(ranking, "fitted_weights", lambda: weights))
        yield


def _verdicts_of(posted: Posted) -> Any:
    """What the rules say of a failure: they say it again whatever the weights are."""
    name = posted.sample.name
    if name not in VERDICTS:
        VERDICTS[name] = _asked_rules(posted)
    return VERDICTS[name]


def _asked_rules(posted: Posted) -> Any:
    kept: list[Any] = []
    original = engine._verdicts  # noqa: SLF001

    def keep(case: Case, deadline: float) -> Any:
        kept.append(original(case, deadline))
        return kept[-1]

    with patch.object(engine, "_verdicts", keep):
        diagnose(posted.case)
    return kept[-1]


def judged(posted: Posted) -> Diagnosis:
    """The diagnosis of a posted failure; its rules are asked once."""
    verdicts = _verdicts_of(posted)
    with patch.object(engine, "_verdicts", lambda *_: verdicts):
        return diagnose(posted.case)


# ---------------------------------------------------------------- the fit


def heard_in(posted: Posted) -> Heard | None:
    """What the voices say in a failure; None where a rule is sure, and they are not asked."""
    said: list[Heard] = []

    def record(voices: Heard) -> Ranked:
        said.append(voices)
        return ranked_causes(voices)

    with patch.object(module, "ranked_causes", record):
        judged(posted)
    if said:
        return said[-1]
    return None


def heard_without(folds: Folds) -> dict[tuple[int, int], list[tuple[Posted, Heard]]]:
    """Two folds → what is heard in the second by models that have read neither."""
    heard: dict[tuple[int, int], list[tuple[Posted, Heard]]] = {}
    for one in range(FOLDS):
        for two in range(one, FOLDS):
            with judging_with(folds.without(one, two)):
                heard[one, two] = list(_heard_in_all(folds.of(two)))
                heard[two, one] = list(_heard_in_all(folds.of(one)))
    return heard


def _heard_in_all(posted: Sequence[Posted]) -> Iterator[tuple[Posted, Heard]]:
    for one in posted:
        said = heard_in(one)
        if said is not None:
            yield one, said


def fitted(heard: Sequence[tuple[Posted, Heard]]) -> Voices:
    """The weights under which the settled causes are likeliest, held to where they start."""
    import numpy as np
    from scipy.optimize import minimize  # a second: only those who fit pay

    names = Voices.__struct_fields__
    start = np.array([getattr(START, name) for name in names])
    cases = []
    for posted, said in heard:
        right = np.array([cause in posted.sample.accept for cause in said])
        if right.any():
            values = [[getattr(voices, name) for name in names] for voices in said.values()]
            cases.append((np.array(values), right))

    def loss(weights: Any) -> tuple[float, Any]:
        total, slope = 0.0, np.zeros_like(weights)
        for values, right in cases:
            odds = values @ weights
            powers = np.exp(odds - odds.max())
            shares = powers / powers.sum()
            share = shares[right].sum()
            total -= np.log(share)
            slope -= values.T @ (shares * right / share - shares)
        away = weights - start
        pulled = PULL * (away @ away) / 2
        return total / len(cases) + pulled, slope / len(cases) + PULL * away

    best = minimize(loss, start, jac=True, method="L-BFGS-B").x
    return Voices(*(round(float(value), 2) for value in best))


# ---------------------------------------------------------------- the judgement


@dataclass(frozen=True)
class Answered:
    """What the package says of a failure."""

    named: list[str]
    """The causes of its findings, the best first."""
    suspects: list[str]
    """The same; where it names none, as nothing in the text says that anything failed, what it holds for who asks."""
    differential: Differential | None
    strength: str
    """How firm its first finding is."""


def answered(one: Posted) -> Answered:
    """What is said of a failure now."""
    found = judged(one)
    named = [finding.cause for finding in found.findings]
    held = found.differential.suspects if found.differential else ()
    strength = str(found.findings[0].strength) if found.findings else ""
    return Answered(named, named or [one.cause for one in held], found.differential, strength)


def first_after_questions(one: Posted, answers: Mapping[str, str]) -> str:
    """The first cause after as many questions as it takes, at most `QUESTIONS`; the case stays as it was."""
    known = answered(one)
    before = list(one.case.events)
    for _ in range(QUESTIONS):
        look = known.differential.question if known.differential else None
        if look is None:
            break
        given = answers.get(look.cause, "unknown")
        one.case.events.append(answer_event(look, given, "user"))  # type: ignore[arg-type]
        known = answered(one)
    one.case.events = before
    return next(iter(known.suspects), "")


def scores_table(posted: Sequence[Posted], found: Mapping[str, Answered]) -> str:
    """How right the first answers are, in Markdown."""
    rows = [
        "| posted log | n | first | among three | among five | silent "
        "| wrong at proven / likely / possible | for who asks: first | among three |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in GROUPS:
        mine = [one for one in posted if one.sample.group == group]
        cells = [str(len(mine))]
        for among in (1, 3, 5):
            right = sum(one.is_right(found[one.sample.name].named[:among]) for one in mine)
            cells.append(_share(right, len(mine)))
        cells.append(str(sum(not found[one.sample.name].named for one in mine)))
        cells.append(_wrong(mine, found))
        for among in (1, 3):
            held = sum(one.is_right(found[one.sample.name].suspects[:among]) for one in mine)
            cells.append(_share(held, len(mine)))
        rows.append(f"| {group.removeprefix('posted log ')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _wrong(posted: Sequence[Posted], found: Mapping[str, Answered]) -> str:
    """How many first answers are wrong at each strength."""
    counts: Counter[str] = Counter()
    for one in posted:
        answer = found[one.sample.name]
        if not one.is_right(answer.named[:1]):
            counts[answer.strength] += 1
    return " / ".join(str(counts[strength]) for strength in ("proven", "likely", "possible"))


def after_questions(one: Posted, answers: Mapping[str, Mapping[str, Mapping[str, str]]]) -> dict[str, str]:
    """File of answers → the first cause after its answers."""
    return {name: first_after_questions(one, given.get(one.sample.name, {})) for name, given in answers.items()}


def read_answers(files: Sequence[Path]) -> dict[str, dict[str, dict[str, str]]]:
    """What reporters could have answered, by file, case and look."""
    read: dict[str, dict[str, dict[str, str]]] = {}
    for file in files:
        read[file.name] = json.loads(file.read_text(encoding="utf-8"))
        looks = {look for given in read[file.name].values() for look in given}
        unknown = sorted(looks - all_questions().keys())
        if unknown:
            raise SystemExit(f"{file}: there is no look {', '.join(unknown)}")
    return read


def main() -> None:
    """Fit the weights, and print how right the order is on owners that were not read."""
    parser = argparse.ArgumentParser(description="Fit the order of the causes, and judge it.")
    parser.add_argument("path", type=Path, help="a folder of posted failures")
    parser.add_argument("--write", action="store_true", help="write the weights that the package reads")
    parser.add_argument("--answers", type=Path, nargs="*", default=[], help="what reporters could have answered")
    parser.add_argument("--list", action="store_true", help="also print each case that is not first")
    options = parser.parse_args()
    answers = read_answers(options.answers)
    own = [one for one in settled_cases() if not one.source.startswith(FROM_POSTS)]
    folds = Folds(list(posted_failures(options.path)), own, counted(corpus()))
    heard = heard_without(folds)
    weights = fitted([pair for fold in range(FOLDS) for pair in heard[fold, fold]])
    if options.write:
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(weights)) + b"\n")
    print(f"{weights}\n")
    found: dict[str, Answered] = {}
    first: dict[str, dict[str, str]] = {}
    for fold in range(FOLDS):
        others = [other for other in range(FOLDS) if other != fold]
        fold_weights = fitted([pair for other in others for pair in heard[fold, other]])
        with judging_with(folds.without(fold), fold_weights):
            for one in folds.of(fold):
                found[one.sample.name] = answered(one)
                first[one.sample.name] = after_questions(one, answers)
    print(scores_table(folds.posted, found))
    for one in folds.posted if options.list else ():
        answer = found[one.sample.name]
        if not one.is_right(answer.suspects[:1]):
            mark = "" if answer.named else "for who asks: "
            said = ", ".join(answer.suspects[:5])
            print(f"- {one.sample.name}: {one.sample.cause} <- {mark}{said} {answer.strength}")
    bare = [one for one in folds.posted if one.sample.group == GROUPS[1]]
    for name in answers:
        right = sum(one.is_right([first[one.sample.name][name]]) for one in bare)
        print(f"{name}: first after at most {QUESTIONS} questions {_share(right, len(bare))}")


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.0f} %)"


if __name__ == "__main__":
    main()
