"""Does the kit still know what NCCL says?  Every text of a release, read as a line of a log.

    python tests/bench/messages.py PATH [PATH …] [--list] [--judge] [--write]

A PATH is a source tree of NCCL, a libnccl.so.2, or a wheel (`pip download --no-deps nvidia-nccl-cu12==V`).  Each text
of level WARN, ATTN and INFO gets values for its conversions and the head of a log line, and is read alone.  Printed
are, by release: how many WARN texts make no event, how many fall into the family `other`, how many say nothing by
themselves (`says_nothing.txt`), how many have a family that says where to look; of INFO texts how many make an event
(most are of no use); which variables are unknown.  --list prints the texts and variables themselves, --judge the
causes that a text of which nothing may be said still decides.  --write keeps the table in results/messages.json:
counts, and hashes of what is missed, never the texts, which are NVIDIA's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent.facts.settings import is_known
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.kinds import SAYS_NOTHING
from ncclkit.core.model import Event
from ncclkit.evidence.logs import fill

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.nccl_texts import Release, Text, read_release  # noqa: E402

TABLE = Path(__file__).parent / "results" / "messages.json"
AIM = 0.95
"""Share of WARN texts that have a family of their own, or are known to say nothing by themselves."""
CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|ll|[hlzjt])?[diouxXeEfgGcspm])")
WORDS = (
    ("Call to ", "recv"),
    ("failure ", "an error"),
    ("failed", "Invalid argument"),
    ("error", "Invalid argument"),
    ("from ", "10.0.0.2<40001>"),
    ("to ", "10.0.0.2<40001>"),
    ("peer ", "10.0.0.2<40001>"),
    ("device ", "mlx5_0"),
    ("host", "node-2"),
)
"""What stands before ``%s`` → a word that NCCL would put there; anything else gets a name."""
NAME = "name"


def fill_format(text: str) -> str:
    """The text with a plausible value for each conversion."""
    filled = []
    end = 0
    for conversion in CONVERSION.finditer(text):
        filled.append(text[end : conversion.start()])
        filled.append(_value_of(conversion[0], "".join(filled)[-24:]))
        end = conversion.end()
    return "".join(filled) + text[end:]


def _value_of(conversion: str, before: str) -> str:
    kind = conversion[-1]
    if kind == "%":
        return "%"
    if kind == "m":
        return "Invalid argument"
    if kind == "s":
        # the mark that ends last, and of those the longest
        found = [(before.rfind(mark) + len(mark), len(mark), word) for mark, word in WORDS if mark in before]
        return max(found)[2] if found else NAME
    if kind in "xXp":
        return "0x7f10" if kind == "p" else "1b000"
    return {"c": "a", "f": "0.5", "g": "0.5", "e": "0.5"}.get(kind, "3")


def line_of(text: Text) -> str:
    """A line of a log as the text's level has it."""
    message = fill_format(text.format)
    if text.level == "INFO":
        return f"node-1:4711:4720 [3] NCCL INFO {message}\n"
    return f"[2026-11-21 00:28:00] node-1:4711:4720 [3] {text.file or 'init.cc'}:49 NCCL {text.level} {message}\n"


@dataclass(frozen=True)
class Answer:
    """What the kit makes of a text."""

    text: Text
    events: tuple[Event, ...]

    @property
    def family(self) -> str:
        """The family of its event; empty where it made none."""
        families = [event.data.family for event in self.events if event.kind in ("nccl.warn", "nccl.attn", "nccl.info")]
        return families[0] if families else ""

    @property
    def digest(self) -> str:
        """What stands for the text in the table."""
        return hashlib.sha256(f"{self.text.level} {self.text.format}".encode()).hexdigest()[:12]


def read_texts(texts: Iterable[Text]) -> Iterator[Answer]:
    """Each text as a log of its own; a format without a word of its own is left out."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        for text in sorted(texts):
            if re.search(r"[A-Za-z]", CONVERSION.sub("", text.format)):
                log.write_text(line_of(text), encoding="utf-8")
                yield Answer(text, tuple(evidence.read([log]).events))


def causes_of(text: Text) -> list[str]:
    """The causes that a text alone decides."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(line_of(text), encoding="utf-8")
        case = Case()
        fill(case, evidence.read([log]))
        diagnosis = diagnose(case)
        # otherwise the findings are guesses by resemblance, named as such
        if diagnosis.verdict != "found":
            return []
        return [f"{finding.cause} ({finding.strength})" for finding in diagnosis.findings]


# ------------------------------------------------------------------ the table


def row_of(release: Release, answers: list[Answer]) -> dict[str, Any]:
    """Counts of one release, and hashes of what is missed."""
    row: dict[str, Any] = {}
    for level in ("WARN", "ATTN"):
        # one text of two source files counts once, by the better of its answers
        best = _best_by_text(answer for answer in answers if answer.text.level == level)
        kinds = Counter(_kind_of(answer) for answer in best)
        row[level.lower()] = {"texts": len(best), **{kind: kinds[kind] for kind in KINDS}}
        missed = sorted(answer.digest for answer in best if _kind_of(answer) in ("no_event", "other"))
        row[f"{level.lower()}_missed"] = missed
    info = _best_by_text(answer for answer in answers if answer.text.level == "INFO")
    row["info"] = {"texts": len(info), "with_event": sum(bool(answer.events) for answer in info)}
    unknown = sorted(unknown_variables(release))
    row["variables"] = {"asked": len(release.variables), "unknown": len(unknown)}
    row["families"] = dict(Counter(answer.family for answer in _best_by_text(_warnings(answers))).most_common())
    everything = "\n".join(sorted({f"{text.level} {text.format}" for text in release.texts}))
    row["hash"] = hashlib.sha256(everything.encode()).hexdigest()[:16]
    return row


KINDS = ("no_event", "other", "says_nothing", "named")


def _kind_of(answer: Answer) -> str:
    if not answer.family:
        return "no_event"
    if answer.family == "other":
        return "other"
    return "says_nothing" if answer.family in SAYS_NOTHING else "named"


def _warnings(answers: Iterable[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.text.level == "WARN"]


def _best_by_text(answers: Iterable[Answer]) -> list[Answer]:
    best: dict[str, Answer] = {}
    for answer in answers:
        known = best.get(answer.text.format)
        if known is None or KINDS.index(_kind_of(answer)) > KINDS.index(_kind_of(known)):
            best[answer.text.format] = answer
    return list(best.values())


def unknown_variables(release: Release) -> set[str]:
    """Variables that the release asks for and the kit would call unknown."""
    return {name for name in release.variables if not is_known(name)}


def covered(row: dict[str, Any]) -> float:
    """Share of the WARN texts of a release that are known."""
    warn = row["warn"]
    return float((warn["named"] + warn["says_nothing"]) / warn["texts"])


def version_key(version: str) -> tuple[int, ...]:
    """Order of versions."""
    return tuple(int(part) for part in version.split("."))


# ------------------------------------------------------------------ the command


def print_row(version: str, row: dict[str, Any]) -> None:
    """One release in one line."""
    warn, attn, info, asked = row["warn"], row["attn"], row["info"], row["variables"]
    print(
        f"{version:>8}: WARN {warn['texts']}: {warn['named']} named, {warn['says_nothing']} say nothing, "
        f"{warn['other']} other, {warn['no_event']} no event: {covered(row):.1%}; ATTN {attn['texts']} "
        f"({attn['other'] + attn['no_event']} missed); INFO {info['texts']}, {info['with_event']} with an event; "
        f"variables {asked['asked']}, {asked['unknown']} unknown"
    )


def print_missed(release: Release, answers: list[Answer]) -> None:
    """The texts without a family or an event, and the variables that the kit does not know."""
    for answer in _best_by_text(answers):
        where = f"{answer.text.level} {answer.text.file}: {answer.text.format!r}"
        if answer.text.level == "INFO" and not answer.events:
            print(f"    no_event {where}")
        elif answer.text.level != "INFO" and _kind_of(answer) in ("no_event", "other"):
            print(f"    {_kind_of(answer)} {where}")
    for name in sorted(unknown_variables(release)):
        print(f"    unknown variable {name}")


def print_judged(answers: list[Answer]) -> None:
    """The causes that texts decide of which nothing may be said."""
    for answer in _best_by_text(answers):
        if answer.family in {*SAYS_NOTHING, "other"}:
            causes = causes_of(answer.text)
            if causes:
                print(f"    {', '.join(causes)}: {answer.family} {answer.text.format!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--list", action="store_true", help="print what is missed")
    parser.add_argument(
        "--judge",
        action="store_true",
        help="print causes that texts of which nothing is said decide",
    )
    parser.add_argument("--write", action="store_true", help=f"keep the table in {TABLE.name}")
    options = parser.parse_args()
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for path in options.paths:
        release = read_release(path)
        version = release.version or path.name
        answers = list(read_texts(release.texts))
        row = row_of(release, answers)
        table[version] = row
        print_row(version, row)
        if options.list:
            print_missed(release, answers)
        if options.judge:
            print_judged(answers)
    if options.write:
        rows = {version: table[version] for version in sorted(table, key=version_key)}
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
