"""Score the diagnosis on labelled cases, whole and with evidence taken away; prints Markdown.

    python tests/bench/diagnosis.py PATH [PATH …] [--texts] [--list] [--confusion] [--whole] [--robust [--sample N]]

A PATH holds cases as JSON files (``log``, ``cause``, ``also_accept``, ``log_sufficient``), of which the log text alone
is judged, logs with a ``state`` in the place of a cause (``ended well``, ``at work``, ``excerpt``, ``not a job``,
``broken``), or case folders of recorded runs (``ncclkit/evidence/samples``), of which all that the job
left behind is judged.
"right" counts the cause or one of ``also_accept``; a healthy run is right when nothing is found.  A set is the folder
of a case.  --robust writes each log that is answered rightly in sixty other ways (`variations`) and counts what
survives; --sample takes every N-th pair of a case and a variation.  --texts adds texts that are no logs and quote
errors (`tests/evidence/quoted.py`), of which nothing may be proven.

"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import fill

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.variations import VARIATIONS, classes  # noqa: E402
from tests.evidence import quoted  # noqa: E402

NCCL = re.compile(rb"NCCL (?:INFO|WARN|TRACE|CALL|version)\b")
SPEAKER = re.compile(rb"^\s*(?:\[(?:rank|default)(\d{1,6})\]|(\d{1,5}): )")
LOG = re.compile(r"(?:^|/)rank(\d+)\.log$")

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Sample:
    """One failure with its settled cause, and what it left behind by file name."""

    name: str
    group: str
    cause: str
    accept: frozenset[str]
    culprits: tuple[int, ...]
    files: Files
    source: str = ""
    """The set that it is of."""
    state: str = ""
    """What became of the job, where that alone is known."""


@dataclass(frozen=True)
class Score:
    sample: Sample
    found: tuple[tuple[str, str], ...]
    seconds: float
    verdict: str

    def right(self, among: int) -> bool:
        if self.sample.state == "broken":  # why, nobody knows
            return bool(self.found)
        if not self.sample.cause:
            return not self.found
        return any(cause in self.sample.accept for cause, _ in self.found[:among])

    @property
    def wrong_at_proven(self) -> bool:
        return self.wrong_at("proven")

    def wrong_at(self, strength: str) -> bool:
        """Whether the first answer is wrong, and that firm."""
        return bool(self.found) and self.found[0][1] == strength and not self.right(1)


def samples(path: Path) -> Iterator[Sample]:
    """Cases of a folder: JSON files, and folders with a ``case.json`` that holds the truth."""
    for file in sorted(path.glob("*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        if state := case.get("state"):
            log = {"job.log": case["log"].encode()}
            yield Sample(file.stem, f"log of a job: {state}", "", frozenset(), (), log, path.name, state)
            continue
        group = "posted log suffices" if case["log_sufficient"] else "posted log does not suffice"
        group = group if case["cause"] else "healthy log"
        accept = frozenset([case["cause"], *case.get("also_accept", ())])
        yield Sample(file.stem, group, case["cause"], accept, (), {"job.log": case["log"].encode()}, path.name)
    for about in sorted(path.glob("*/case.json")):
        truth = json.loads(about.read_text(encoding="utf-8"))["truth"]
        files = {name: data for name, data in _tree(about.parent) if name != "truth.json"}
        group = "recorded run" if truth["cause"] else "healthy run"
        yield Sample(
            *(about.parent.name, group, truth["cause"], frozenset([truth["cause"]]), tuple(truth["ranks"]), files),
            path.name,
        )


def texts() -> Iterator[Sample]:
    """Documentation, source code, settings and letters that quote an error; nothing failed in them."""
    for quote, name, text in quoted.texts():
        yield Sample(f"{name} {quote}", "no log", "", frozenset(), (), {name: text.encode()}, "quoted")


def _tree(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), str(path.relative_to(folder))
        yield (name[:-3], gzip.decompress(data)) if name.endswith(".gz") else (name, data)


def no_nccl(sample: Sample) -> Files | None:
    """Without NCCL's own lines."""
    kept = {
        name: b"\n".join(line for line in data.split(b"\n") if not NCCL.search(line)) if _is_text(data) else data
        for name, data in sample.files.items()
    }
    return kept if kept != sample.files else None


def no_flight(sample: Sample) -> Files | None:
    """Without Flight Recorder dumps."""
    kept = {name: data for name, data in sample.files.items() if "fr_rank_" not in name}
    return kept if len(kept) < len(sample.files) else None


def victim(sample: Sample) -> Files | None:
    """The log of one rank that is not at fault, and nothing else."""
    ranks = [name for name in _ranks(sample) if _ranks(sample)[name] not in sample.culprits]
    return {ranks[0]: sample.files[ranks[0]]} if sample.culprits and ranks else None


def culprit(sample: Sample) -> Files | None:
    """The log of the rank at fault, and nothing else."""
    ranks = [name for name in _ranks(sample) if _ranks(sample)[name] in sample.culprits]
    return {ranks[0]: sample.files[ranks[0]]} if ranks else None


def one_rank(sample: Sample) -> Files | None:
    """Of a log of many ranks the lines of the one that speaks most, and those of nobody."""
    if len(sample.files) > 1:
        return None
    ((name, data),) = sample.files.items()
    lines = data.split(b"\n")
    speakers = [next(filter(None, match.groups())) if (match := SPEAKER.match(line)) else None for line in lines]
    counts = Counter(speaker for speaker in speakers if speaker is not None)
    if len(counts) < 2:
        return None
    most = counts.most_common(1)[0][0]
    return {name: b"\n".join(line for line, who in zip(lines, speakers, strict=True) if who in (None, most))}


def tail(sample: Sample) -> Files | None:
    """The last 50 lines of each log, and nothing else."""
    logs = {name: data for name, data in sample.files.items() if _is_text(data) and name.endswith(".log")}
    kept = {name: b"\n".join(data.rstrip(b"\n").split(b"\n")[-50:]) for name, data in logs.items()}
    return kept if kept != sample.files else None


ABLATIONS: dict[str, Callable[[Sample], Files | None]] = {
    "all there is": lambda sample: sample.files,
    "no NCCL log": no_nccl,
    "no Flight Recorder": no_flight,
    "one rank's lines": one_rank,
    "culprit's log only": culprit,
    "a victim's log only": victim,
    "last 50 lines": tail,
}


def _is_text(data: bytes) -> bool:
    return data[:1] != b"\x80"


def _ranks(sample: Sample) -> dict[str, int]:
    """Logs of single ranks: name → rank."""
    return {name: int(match[1]) for name in sample.files if (match := LOG.search(name))}


def score(sample: Sample, files: Files) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        start = time.perf_counter()
        result = judge(Path(folder))
        seconds = time.perf_counter() - start
    found = tuple((finding.cause, str(finding.strength)) for finding in result.findings)
    return Score(sample, found, seconds, result.verdict)


def judge(folder: Path) -> Diagnosis:
    """The diagnosis of a folder; of one in which nothing is left to read, an empty one."""
    try:
        reading = evidence.read([folder])
    except NcclkitError:
        return Diagnosis()
    return diagnose(fill(Case(), reading))


def table(scores: Mapping[str, list[Score]]) -> str:
    """One row per group of cases and kind of ablation."""
    rows = [
        "| set | cases | evidence | n | right first | among three | silent | wrong at proven / likely / possible "
        "| seconds (median) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = {(item.sample.source, item.sample.group) for found in scores.values() for item in found}
    for source, group in sorted(kinds, key=lambda kind: (kind[1], kind[0]), reverse=True):
        for ablation, found in scores.items():
            mine = [item for item in found if (item.sample.source, item.sample.group) == (source, group)]
            if mine:
                rows.append(f"| {source} | {group} | {ablation} | {len(mine)} | {' | '.join(_cells(mine))} |")
    return "\n".join(rows)


def _cells(group: list[Score]) -> list[str]:
    def share(values: list[bool]) -> str:
        return f"{sum(values)} ({100 * sum(values) / len(values):.0f} %)"

    seconds = sorted(item.seconds for item in group)[len(group) // 2]
    return [
        share([item.right(1) for item in group]),
        share([item.right(3) for item in group]),
        str(sum(not item.found for item in group)),
        " / ".join(str(sum(item.wrong_at(word) for item in group)) for word in ("proven", "likely", "possible")),
        f"{seconds:.2f}",
    ]


ANSWERS = ("found right", "found wrong", "resembles", "cannot tell", "running", "healthy", "no job")
TRUTHS = ("broken", "ended well", "at work", "excerpt", "not a job")


def truth_of(sample: Sample) -> str:
    """What became of the job."""
    if sample.state:
        return sample.state
    return "broken" if sample.cause else "ended well"


def answer_of(item: Score) -> str:
    """What was said of it, in the words of the matrix."""
    if item.verdict == "found":
        known_cause = item.sample.cause and item.right(1)
        unknown_cause = item.sample.state == "broken"  # that it broke is all that is known
        return "found right" if known_cause or unknown_cause else "found wrong"
    if item.found:
        return "resembles"
    return {"unexplained": "cannot tell", "no_job": "no job"}.get(item.verdict, item.verdict)


def matrix(scores: Sequence[Score]) -> str:
    """What became of the jobs against what was said of them."""
    counts = Counter((truth_of(item.sample), answer_of(item)) for item in scores)
    rows = ["| truth | n | " + " | ".join(ANSWERS) + " |", "|---|---|" + "---|" * len(ANSWERS)]
    for truth in TRUTHS:
        row = [counts[truth, answer] for answer in ANSWERS]
        if sum(row):
            rows.append(f"| {truth} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(rows)


def totals(scores: Sequence[Score]) -> str:
    """Over all sets: what is wrong at each strength, and healthy jobs of which something is said."""
    well = [item for item in scores if truth_of(item.sample) != "broken"]
    wrong = ", ".join(
        f"{sum(item.wrong_at(word) for item in scores)} {word}" for word in ("proven", "likely", "possible")
    )
    said = sum(bool(item.found) for item in well)
    share = f"{said} of {len(well)} healthy logs have a finding ({100 * said / len(well):.1f} %). " if well else ""
    return f"{share}Wrong first answers of {len(scores)}: {wrong}."


def confusion(scores: list[Score]) -> str:
    """What was answered first instead of the settled cause, most frequent first."""
    wrong = Counter(
        (item.sample.cause or "healthy", item.found[0][0] if item.found else "nothing")
        for item in scores
        if not item.right(1)
    )
    rows = ["| settled cause | answered first | cases |", "|---|---|---|"]
    return "\n".join(rows + [f"| {cause} | {said} | {count} |" for (cause, said), count in wrong.most_common()])


def robustness(scores: Sequence[Score], sample: int, listed: bool) -> str:
    """How many of the right answers survive each class of variations, and the worst variations of each."""
    right = [item.sample for item in scores if item.right(1) and list(item.sample.files) == ["job.log"]]
    pairs = [(case, name) for case in right for name in VARIATIONS]
    found: dict[str, list[Score]] = {}
    for case, name in pairs[::sample]:
        text = VARIATIONS[name](case.files["job.log"].decode())
        found.setdefault(name, []).append(score(case, {"job.log": text.encode()}))
    rows = ["| variations | n | survive | wrong at proven | worst |", "|---|---|---|---|---|"]
    for kind in [*classes(list(found)), "all"]:
        mine = {name: items for name, items in found.items() if kind in ("all", name.partition(" ")[0])}
        items = [item for answers in mine.values() for item in answers]
        worst = sorted(mine, key=lambda name: sum(item.right(1) for item in mine[name]) / len(mine[name]))[:3]
        shares = [f"{name} {sum(item.right(1) for item in mine[name])}/{len(mine[name])}" for name in worst]
        survive = sum(item.right(1) for item in items)
        share = f"{survive} ({100 * survive / len(items):.1f} %)"
        proven = sum(item.wrong_at_proven for item in items)
        rows.append(f"| {kind} | {len(items)} | {share} | {proven} | {', '.join(shares)} |")
    lost = [f"- {name}: {listing([item])[2:]}" for name in found for item in found[name] if not item.right(1)]
    return "\n".join(rows + (lost if listed else []))


def listing(scores: list[Score]) -> str:
    rows = []
    for item in scores:
        mark = "1" if item.right(1) else "3" if item.right(3) else "-"
        answer = ", ".join(f"{cause} ({strength})" for cause, strength in item.found[:4]) or "nothing"
        rows.append(f"{mark} {item.sample.name} [{item.sample.group}]: {item.sample.cause or 'healthy'} <- {answer}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the diagnosis on labelled cases.")
    parser.add_argument("paths", type=Path, nargs="+", help="folders with one JSON file or one case folder per case")
    parser.add_argument("--texts", action="store_true", help="also texts that are no logs and quote errors")
    parser.add_argument("--list", action="store_true", help="also print every case with its answer")
    parser.add_argument("--confusion", action="store_true", help="also print which cause was taken for which")
    parser.add_argument("--whole", action="store_true", help="only with all the evidence there is")
    parser.add_argument("--robust", action="store_true", help="only: write each log in sixty ways, count what survives")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="of what --robust tries, every N-th")
    options = parser.parse_args()
    cases = [sample for path in options.paths for sample in samples(path)]
    cases += texts() if options.texts else ()
    if not cases:
        parser.error(f"no cases in {', '.join(map(str, options.paths))}")
    if options.robust:
        print(robustness([score(case, case.files) for case in cases], options.sample, options.list))
        return
    scores: dict[str, list[Score]] = {}
    for name, take in list(ABLATIONS.items())[: 1 if options.whole else None]:
        scores[name] = [score(case, files) for case in cases if (files := take(case)) is not None]
    whole = scores["all there is"]
    print(f"{matrix(whole)}\n\n{table(scores)}\n\n{totals(whole)}")
    if options.confusion:
        print("\n" + confusion(whole))
    if options.list:
        print("\n" + listing(whole))


if __name__ == "__main__":
    main()
