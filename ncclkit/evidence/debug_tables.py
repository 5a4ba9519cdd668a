"""Tables of torch's Flight Recorder analyser, as its debug server writes them.

They are aligned by blanks, and cells hold blanks, so a line is cut where the names of its columns
stand.  Of all calls only those are kept that some ranks did not make, or made otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.agent.digits import is_whole
from ncclkit.core.text import ranks as rank_words
from ncclkit.evidence.flight.compare import EQUAL_BOTH

HEADER = re.compile(r"\s*id\s+group_id\s+pass_check\s+collective_seq_id\s")
COLUMN = re.compile(r"\S+")
RANK = re.compile(r"\d{1,7}")
OTHER = re.compile(
    r"(?P<rank>\d{1,7}): Collective\(id=.{1,400}?collective_name='(?P<name>[^']{0,200})',"
    r" input_sizes=(?P<ins>[\[\]\d, ]{0,2000}), output_sizes=(?P<outs>[\[\]\d, ]{0,2000}),"
)
MANY = 1_000
"""Calls that are kept of one file."""
WIDEST = 1 << 16
"""Characters of a line that are read."""


@dataclass(frozen=True, slots=True)
class OddCall:
    """A call that ranks did not make, or made otherwise."""

    kind: str
    """That of its event."""
    fields: Mapping[str, Any]
    text: str
    line: int
    ranks: tuple[int, ...]
    """Those that did not make it, or made it otherwise."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What is the same of it in another table."""
        return (self.kind, self.fields["group"], self.fields["seq"], self.ranks)


def calls_of_tables(lines: Iterable[str]) -> Iterator[OddCall]:
    """The calls of all tables of a file, each once."""
    columns: dict[str, tuple[int, int]] = {}
    seen: set[tuple[Any, ...]] = set()
    for number, line in enumerate(lines, 1):
        text = line[:WIDEST]
        if HEADER.match(text):
            columns = _columns(text)
        elif text.startswith(("---", "===")) or not text.strip():
            columns = {}
        elif columns and len(seen) < MANY:
            call = _call_of_row(text, columns, number)
            if call is not None and call.key not in seen:
                seen.add(call.key)
                yield call


def _columns(header: str) -> dict[str, tuple[int, int]]:
    """Name of a column → where its name begins and ends."""
    return {match[0]: match.span() for match in COLUMN.finditer(header)}


def _call_of_row(row: str, columns: Mapping[str, tuple[int, int]], number: int) -> OddCall | None:
    def cell(name: str) -> str:
        """Text stands at the left of its column, which ends where the next one begins."""
        if name not in columns:
            return ""
        start, _ = columns[name]
        end = len(row)
        for begin, _ in columns.values():
            if start < begin < end:
                end = begin
        return row[start:end].strip()

    # a number stands at the right of its column
    head = row[: columns["collective_seq_id"][1]].split()
    if not head or not is_whole(head[-1]):
        return None
    expected = _ranks_of_cell(cell("expected_ranks"))
    missing = _ranks_of_cell(cell("missing_ranks"))
    name, _, desc = cell("pg_desc").partition(":")
    op = cell("collective_name").partition(":")[2]
    common = {
        "group": name,
        "desc": desc,
        "seq": int(head[-1]),
        "op": op,
    }
    title = f"process group {name}"
    if desc:
        title += f" ({desc})"
    if missing:
        waiting = sorted(set(expected) - set(missing))
        text = f"{title}: collective {head[-1]} {op}\n  missing_ranks: {rank_words(missing)}"
        fields = common | {"missing": missing, "waiting": waiting}
        return OddCall("flight.missing", fields, text, number, tuple(missing))
    return _mismatch(cell, common, expected, title, number)


def _ranks_of_cell(text: str) -> list[int]:
    """The ranks in a cell such as ``{0, 1, 2}``."""
    ranks = []
    for number in RANK.findall(text):
        ranks.append(int(number))
    return ranks


def _mismatch(
    cell: Any, common: Mapping[str, Any], expected: Sequence[int], title: str, number: int
) -> OddCall | None:
    """The first rank whose call differs, by operation or by sizes that all ranks have to share."""
    sizes = cell("input_sizes")
    for other in OTHER.finditer(cell("mismatch_collectives")):
        op = other["name"].partition(":")[2]
        rank = int(other["rank"])
        if op != common["op"]:
            field, values = "op", (common["op"], op)
        elif other["ins"] != sizes and op in EQUAL_BOTH:
            field, values = "sizes", (sizes, other["ins"])
        else:
            continue
        rest = sorted(set(expected) - {rank})
        fields = dict(common) | {
            "field": field,
            "majority": {"value": values[0], "ranks": rest},
            "odd": [{"value": values[1], "ranks": [rank]}],
            "sites": [],
        }
        text = f"{title}: collective {common['seq']} differs in {field}"
        text += f"\n  {rank_words(rest)}: {values[0]}\n  {rank_words([rank])}: {values[1]}"
        return OddCall("flight.mismatch", fields, text, number, (rank,))
    return None
