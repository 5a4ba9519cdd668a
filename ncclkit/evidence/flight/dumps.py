"""Flight Recorder dumps of all schema versions, brought to one form.  Format: REFERENCE of torch 2.2 to 2.15."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from ncclkit.evidence.flight import pickles
from ncclkit.evidence.flight.calls import Calls, GroupKey, Kind
from ncclkit.evidence.flight.columns import Columns
from ncclkit.evidence.grammars.grammar import Data

ENTRIES = 200_000
"""Entries read of one dump, the last ones."""
RANKS = 1 << 20
GROUPS = 10_000
HOST = re.compile(r"(?:^|_)((?:host|node)[\w.-]*?)_(?:rank[_-]?)?\d{1,7}(?:\.\w+)?$")
NUMBERS = re.compile(r"\d{1,7}")
NUMBER = re.compile(r"(\d{1,7})(?:\.[a-z]\w*)*$")


@dataclass(slots=True)
class Dump:
    """What one rank recorded."""

    path: str
    rank: int | None
    version: str
    host: str = ""
    """From the file's name."""
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each group, where the dump tells them."""
    kinds: list[Kind] = field(default_factory=list)
    states: list[tuple[str, bool]] = field(default_factory=list)
    """Name, and whether it was retired."""
    sites: list[str] = field(default_factory=list)
    collectives: dict[GroupKey, Calls] = field(default_factory=dict)
    pairs: dict[GroupKey, Calls] = field(default_factory=dict)
    """Sends and receives."""
    total: int = 0
    """Entries in the file."""
    newest: tuple[Calls, int] | None = None
    """Its last call, and the place in its columns."""
    left_out: int = 0
    """Entries that could not be understood."""
    dropped: bool = False
    """True when older entries were overwritten before it was written."""

    def oldest(self) -> int:
        """When the oldest retained call was made, in nanoseconds since the epoch; 0 where nothing tells."""
        times = (time for c in (*self.collectives.values(), *self.pairs.values()) for time in c.created[:1] if time)
        return min(times, default=0)

    def word(self, calls: Calls, place: int) -> str:
        """One call in a line: number, operation, sizes, types, state, and where the program made it."""
        kind, site = self.kinds[calls.kinds[place]], self.sites[calls.sites[place]]
        shapes = str([list(shape) for shape in kind.inputs.shapes])
        state = self.states[calls.status[place]][0]
        return f"{calls.seqs[place]} {kind.op} {shapes} {'/'.join(kind.dtypes)} {state}{f' at {site}' if site else ''}"

    def frames(self, calls: Calls, place: int) -> list[Data]:
        """The whole stack, kept for the last calls only."""
        detail = calls.details.get(place)
        return detail.frames if detail else []

    def share(self, table: MutableMapping[Any, Any]) -> None:
        """Hold what other dumps hold as well only once in memory."""
        self.kinds = [table.setdefault(kind, kind) for kind in self.kinds]
        self.members = {key: table.setdefault(ranks, ranks) for key, ranks in self.members.items()}
        self.sites = [table.setdefault(site, site) for site in self.sites]


def load(data: bytes, path: str, rank: int | None) -> Dump | None:
    """Read one dump, pickle or JSON; None when it is something else.  Raises pickles.Refused on damage."""
    if data[:1] == b"\x80":
        with pickles.uncollected():
            return of_value(pickles.loads(data), path, rank)
    try:
        return of_value(json.loads(data), path, rank)
    except (ValueError, RecursionError) as error:
        raise pickles.Refused(f"damaged JSON ({type(error).__name__})") from error


def of_value(value: Any, path: str, rank: int | None) -> Dump | None:
    """The dump that a plain value holds; None when it is something else."""
    if isinstance(value, list) and value and is_entry(value[0]):
        value = {"version": "1.0", "entries": value}
    if not is_dump(value):
        return None
    name = Path(path).name
    told, host = value.get("rank"), HOST.search(name)
    if not isinstance(told, int) or isinstance(told, bool) or not 0 <= told < RANKS:
        number = NUMBER.search(name)
        told = rank if rank is not None else int(number[1]) if number else None
    version = value.get("version")
    dump = Dump(path, told, version[:20] if isinstance(version, str) else "", host[1] if host else "")
    dump.members = dict(_members(value.get("pg_config")))
    entries = value["entries"]
    dump.total = len(entries)
    first = entries[0].get("record_id") if entries else 0
    dump.dropped = isinstance(first, int) and first > 0 or len(entries) > ENTRIES
    columns = Columns({key[0]: key for key in dump.members})
    columns.read(entries[-ENTRIES:])
    dump.left_out = columns.left_out
    dump.kinds, dump.states, dump.sites = columns.kinds, columns.states, columns.sites
    dump.collectives, dump.pairs, dump.newest = columns.collectives, columns.pairs, columns.newest
    return dump


def is_dump(value: Any) -> bool:
    """True for the plain value of a Flight Recorder dump."""
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        return False
    if not value["entries"]:
        return "pg_config" in value or "pg_status" in value
    return is_entry(value["entries"][0])


def is_entry(value: Any) -> bool:
    """True for one entry of a dump; torch 2.2 wrote a list of them and nothing else."""
    return isinstance(value, dict) and "profiling_name" in value


def _members(config: Any) -> Iterator[tuple[GroupKey, tuple[int, ...]]]:
    """``{name: {name, desc, ranks: "[0, 1]"}}`` (2.1 and later) and ``{0: [0, 1]}`` (1.4)."""
    known: dict[int, tuple[int, ...]] = {}
    for name, group in islice(config.items(), GROUPS) if isinstance(config, dict) else ():
        desc, ranks = ("", group) if not isinstance(group, dict) else (group.get("desc", ""), group.get("ranks", ""))
        if not isinstance(name, (str, int)) or not isinstance(desc, str):
            continue
        if id(ranks) not in known:
            known[id(ranks)] = _ranks(ranks) if isinstance(ranks, str) else _whole(ranks)
        yield (str(name)[:200], desc[:200]), known[id(ranks)]


@lru_cache(maxsize=128)
def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in NUMBERS.findall(text[: RANKS * 9]))


def _whole(ranks: Any) -> tuple[int, ...]:
    listed = ranks[:RANKS] if isinstance(ranks, (list, tuple)) else ()
    return tuple(listed) if all(type(rank) is int and 0 <= rank < RANKS for rank in listed) else ()
