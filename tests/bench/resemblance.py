"""Fit the verdict by resemblance to known failures; score it on sources that it has not seen.

    python -m tests.bench.resemblance [--write] [--count PATH] [--rules] [--list]

Known are those of this repository, and posted failures (`../shared/cases`), of which only counts are
kept (`tests/differential/posted.bin`): how often each hashed feature stands in each of them, and what
it was.  --count counts those of PATH anew.  --write puts the weights where the package reads them
(`ncclkit/causes/resemblance.bin`).  A test fits them again and compares.  Without either, the
cross-validation is printed: each set of tests/exam is judged by what was fitted to all other sources
but the specimens, as many of those were made from misses of the exam.  --rules judges the whole
diagnosis so: its rules have learned from the first five sets, and hardly from the later ones.
`tests.bench.ranking` does the same for posted failures.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ncclkit import evidence
from ncclkit.causes import catalogue, page, resemblance
from ncclkit.causes.resemblance import FILE, WELL, abnormal, counted_lines, shares, unpacked
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.bench import diagnosis
from tests.bench.diagnosis import Score, samples, score
from tests.causes.specimens import FOLDERS, load

TESTS = Path(__file__).parents[1]
SETS = ("setup", "program", "mixed", "public", "rare", "posts", "forum", "later", "last")
POSTED = TESTS / "differential/posted.bin"
"""What is kept of posted failures: counts of hashed features, and no text."""
FROM_POSTS = "posted:"
"""How the source of a posted failure begins; its owner follows."""
WEIGHT_OF_POSTS = 3.0
"""Weight of a posted failure.

It is what strangers write, and half of ours was written by those who wrote the tool.
"""
FEATURES = 12_000
"""What is kept of them: those whose weight is largest for some cause."""
SHOWN = 110
"""Characters of an example."""


@dataclass(frozen=True)
class Known:
    """One known failure, or a healthy job, and the lines of it that count."""

    source: str
    """``exam/rare``, ``specimens``, ``pages``, ``wordings``, ``posted:pytorch``."""
    cause: str
    lines: tuple[str, ...]
    accept: frozenset[str] = frozenset()
    suffices: bool = True
    times: Mapping[int, int] = field(default_factory=dict)
    """How often each feature stands in it, where its lines are not kept."""

    @property
    def counts(self) -> Mapping[int, int]:
        """How often each feature stands in it, by its number."""
        return self.times or counted_lines(self.lines)


def corpus() -> list[Known]:
    """All known failures of the repository, and what was counted of posted ones."""
    return [*own_corpus(), *kept_posts()]


def own_corpus() -> list[Known]:
    """All known failures of the repository."""
    return [*_exam(), *_specimens(), *_pages(), *_wordings()]


def kept_posts() -> list[Known]:
    """The posted failures and healthy jobs, as they were counted."""
    rows = json.loads(zlib.decompress(POSTED.read_bytes()))
    posts = []
    for row in rows:
        times = dict(zip(row["features"], row["times"], strict=True))
        accept = frozenset([row["cause"], *row["accept"]])
        posts.append(Known(row["source"], row["cause"], (), accept, row["suffices"], times))
    return posts


def posts_of(folder: Path) -> list[Known]:
    """The posted failures and healthy jobs of a folder, with their lines."""
    posts = []
    for file in sorted(folder.glob("*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        cause = case["cause"] or WELL
        accept = frozenset([cause, *case.get("also_accept", ())])
        source = FROM_POSTS + case["source"].partition("/")[0].lower()
        posts.append(Known(source, cause, _lines_of(case["log"]), accept, case["log_sufficient"]))
    return posts


def packed_posts(posts: Sequence[Known], own: Sequence[Known]) -> bytes:
    """What is kept of posted failures.

    A feature that no other known failure has would teach nothing, and might be somebody's name.
    """
    in_failures: Counter[int] = Counter()
    for known in [*own, *posts]:
        in_failures.update(known.counts.keys())
    rows = []
    for post in posts:
        kept = sorted(name for name in post.counts if in_failures[name] > 1)
        row = {
            "source": post.source,
            "cause": post.cause,
            "accept": sorted(post.accept - {post.cause}),
            "suffices": post.suffices,
            "features": kept,
            "times": [post.counts[name] for name in kept],
        }
        rows.append(row)
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)


def _exam() -> Iterator[Known]:
    for name in SETS:
        for file in sorted((TESTS / "exam" / name).glob("*.json")):
            case = json.loads(file.read_text(encoding="utf-8"))
            cause = case["cause"] or WELL
            accept = frozenset([cause, *case.get("also_accept", ())])
            lines = _lines_of(case["log"])
            yield Known(f"exam/{name}", cause, lines, accept, case["log_sufficient"])


def _specimens() -> Iterator[Known]:
    for folder in FOLDERS:
        if folder.name.startswith("found-"):
            yield Known("specimens", folder.parent.name, _lines(load(folder)))


def _lines_of(log: str) -> tuple[str, ...]:
    reading = evidence.read(["-"], stdin=io.BytesIO(log.encode()))
    return _lines(fill(Case(), reading))


def _lines(case: Case) -> tuple[str, ...]:
    return tuple(line for line, _ in abnormal(case))


def _pages() -> Iterator[Known]:
    for cause in catalogue():
        about = page(cause)
        text = "\n".join(about[heading] for heading in ("", "What you see", "Why it happens"))
        yield Known("pages", cause, tuple(text.splitlines()))


def _wordings() -> Iterator[Known]:
    for cause, text in wordings():
        yield Known("wordings", cause, tuple(line for line in text.splitlines() if line.strip()))


def wordings() -> Iterator[tuple[str, str]]:
    """Cause and text of each of tests/wordings: how public failures word it, one file a cause."""
    for file in sorted((TESTS / "wordings").glob("*.txt")):
        for text in file.read_text(encoding="utf-8").split("\n---\n"):
            yield WELL if file.stem == "healthy" else file.stem, text.strip("\n")


@dataclass(frozen=True)
class Counted:
    """Known failures, and how often each feature stands in each of them.

    They are counted once for many fits.
    """

    known: Sequence[Known]
    numbers: Any
    """The numbers of the features, sorted."""
    times: Any
    """A sparse matrix: a row for each known failure, a column for each feature."""

    def without(self, *sources: str) -> Counted:
        """The known failures of all other sources."""
        kept = [row for row, item in enumerate(self.known) if item.source not in sources]
        return Counted([self.known[row] for row in kept], self.numbers, self.times[kept])


def counted(known: Sequence[Known]) -> Counted:
    """These known failures, their features counted."""
    from sklearn.feature_extraction import DictVectorizer  # a second: only those who fit pay

    vectorizer = DictVectorizer(dtype=float)
    times = vectorizer.fit_transform([item.counts for item in known])
    return Counted(known, vectorizer.get_feature_names_out(), times)


def fit(known: Counted, kept: int = FEATURES, level: int = 9) -> bytes:
    """The bytes of the file: a linear classifier over all features, then once more over those that mattered.

    level: how hard they are to be compressed.
    """
    import numpy as np

    columns = _heaviest(known, kept)
    weighted, model = _fitted(known, columns)
    largest = np.abs(model.coef_).max(axis=1)
    stored = np.rint(model.coef_ / largest[:, None] * 127).astype(np.int8).T
    about = {
        "features": len(columns),
        "causes": list(model.classes_),
        "bias": [round(float(value), 6) for value in model.intercept_],
        "scale": [float(value) / 127 for value in largest],
        "examples": _examples(),
    }
    numbers = known.numbers[columns].astype("<u4")
    rarity = weighted.idf_.astype("<f4")
    head = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.compress(head + b"\n" + numbers.tobytes() + rarity.tobytes() + stored.tobytes(), level)


def _heaviest(known: Counted, kept: int) -> list[int]:
    """The columns of the features that weigh most for some cause, among those that two known failures have."""
    import numpy as np

    columns = np.flatnonzero(known.times.getnnz(axis=0) >= 2)
    _, model = _fitted(known, columns)
    heavy = np.abs(model.coef_).max(axis=0)
    return sorted(int(columns[at]) for at in np.argsort(-heavy, kind="stable")[:kept])


def _fitted(known: Counted, columns: Any) -> tuple[Any, Any]:
    """What weighs the features by their rarity, and the classifier."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.svm import LinearSVC

    weighted = TfidfTransformer(sublinear_tf=True)
    model = LinearSVC(C=0.5, class_weight="balanced", random_state=0, max_iter=5000)
    spread = weighted.fit_transform(known.times[:, columns])
    causes = [item.cause for item in known.known]
    return weighted, model.fit(spread, causes, sample_weight=list(map(_weight, known.known)))


def _weight(known: Known) -> float:
    if known.source.startswith(FROM_POSTS):
        return WEIGHT_OF_POSTS
    return 1.0


def _examples() -> dict[str, list[str]]:
    """What is shown of a cause: the first line of each of its wordings."""
    shown: dict[str, list[str]] = {}
    for cause, text in wordings():
        line = text.splitlines()[0]
        shown.setdefault(cause, []).append(line if len(line) <= SHOWN else f"{line[:SHOWN]}…")
    return shown


def crossed(every: Counted, sets: Sequence[str] = SETS) -> list[tuple[Known, list[str]]]:
    """Each case of these sets with the causes that it resembles, best first, judged by all other sources."""
    answers = []
    for name in (f"exam/{name}" for name in sets):
        weights = unpacked(fit(every.without(name, "specimens"), level=1))
        answers += [(item, list(shares(item.lines, weights))) for item in every.known if item.source == name]
    return answers


def table(answers: Sequence[tuple[Known, list[str]]]) -> str:
    """The cross-validation in Markdown."""
    rows = ["| exam, unseen by the weights | n | right first | among three | taken for well |", "|---|---|---|---|---|"]
    groups = {
        "suffices": [answer for answer in answers if answer[0].cause and answer[0].suffices],
        "does not suffice": [answer for answer in answers if answer[0].cause and not answer[0].suffices],
        "well": [answer for answer in answers if not answer[0].cause],
    }
    for group, found in groups.items():
        ranked = [(item, [cause for cause in best if cause or not item.cause], best[0] == WELL) for item, best in found]
        right = [sum(bool(item.accept & set(best[:among])) for item, best, _ in ranked) for among in (1, 3)]
        cells = [f"{count} ({math.floor(100 * count / len(found) + 0.5)} %)" for count in right]
        rows.append(f"| {group} | {len(found)} | {' | '.join(cells)} | {sum(well for *_, well in ranked)} |")
    return "\n".join(rows)


def behind_rules(known: Sequence[Known]) -> list[Score]:
    """The whole diagnosis of each case of the exam, with weights that have not read its set."""
    scores, every = [], counted(known)
    for name in SETS:
        read = unpacked(fit(every.without(f"exam/{name}", "specimens"), level=1))
        with patch.object(resemblance, "weights", lambda read=read: read):
            scores += [score(sample, sample.files) for sample in samples(TESTS / "exam" / name)]
    return scores


def main() -> None:
    """Fit and write, or print how good it is on unseen sources."""
    parser = argparse.ArgumentParser(description="Fit the verdict by resemblance, or cross-validate it.")
    parser.add_argument("--write", action="store_true", help="write the weights that the package reads")
    parser.add_argument("--rules", action="store_true", help="score the whole diagnosis, with weights that are unseen")
    parser.add_argument("--list", action="store_true", help="also print each case that is not right first")
    parser.add_argument("--count", type=Path, metavar="PATH", help="count the posted failures of a folder anew")
    options = parser.parse_args()
    if options.count:
        own, posts = own_corpus(), posts_of(options.count)
        POSTED.write_bytes(packed_posts(posts, own))
        print(f"{POSTED.name}: {POSTED.stat().st_size:,} bytes, from {len(posts)} posted failures")
        return
    known = corpus()
    if options.write:
        FILE.write_bytes(data := fit(counted(known)))
        print(f"{FILE.name}: {len(data):,} bytes, from {len(known)} known failures")
        return
    if options.rules:
        scores = behind_rules(known)
        print(f"{diagnosis.table({'weights unseen': scores})}\n\n{diagnosis.totals(scores)}")
        print(f"\n{diagnosis.listing(scores)}" if options.list else "")
        return
    answers = crossed(counted(known))
    print(table(answers))
    for item, best in answers if options.list else ():
        if best[0] not in item.accept:
            print(f"- {item.source}: {item.cause or 'well'} <- {', '.join(cause or 'well' for cause in best[:4])}")


if __name__ == "__main__":
    main()
