"""Flight Recorder: who is missing, who differs, where everybody is stuck.

Sequence numbers are compared per process group only.  No rank is the truth: of
different values the one that most ranks hold is taken as meant, then the one of
the ranks that came further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ncclkit.evidence.dumps import Dump, Entry, GroupKey
from ncclkit.evidence.grammar import Data, clip
from ncclkit.model import Event

SAME_SIZE = frozenset(
    {
        "all_reduce",
        "allreduce",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "_allgather_base",
        "all_gather_into_tensor",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "all_reduce_barrier",
    }
)
"""Operations whose input must have the same number of elements on every rank."""
SHOWN = 16
"""Ranks that a text names one by one."""


def summary(dump: Dump) -> Event:
    """The `flight.dump` event of one file."""
    groups: dict[str, Data] = {}
    for key in dict.fromkeys((*dump.members, *dump.groups)):
        entries = dump.groups.get(key, [])
        closed = [entry.seq for entry in entries if not entry.open]
        groups[key[0] or "0"] = {
            "desc": key[1],
            "ranks": list(dump.members.get(key, ())),
            "last_seq": entries[-1].seq if entries else None,
            "last_completed": max(closed, default=None),
            "in_flight": [entry.seq for entry in entries if entry.open][:64],
        }
    said = [
        f"{name} {g['desc']}: last {g['last_seq']}, completed {g['last_completed']}, in flight {g['in_flight'][:8]}"
        for name, g in groups.items()
    ]
    text = "\n".join([f"Flight Recorder {dump.version}, {dump.total} entries", *said])
    data = {"version": dump.version, "entries": dump.total, "groups": groups}
    return Event("flight.dump", clip(text), dump.path, 0, rank=dump.rank, data=data)


def analyse(dumps: Iterable[Dump], world: int | None = None) -> list[Event]:
    """Cross-rank events, group by group.  world: ranks of the job where something else tells it."""
    known = {dump.rank: dump for dump in dumps if dump.rank is not None}
    grouped: dict[GroupKey, dict[int, dict[int, Entry]]] = {}
    for rank, dump in sorted(known.items()):
        for key, entries in dump.groups.items():
            grouped.setdefault(key, {})[rank] = {entry.seq: entry for entry in entries}
    events: list[Event] = []
    for key, by_rank in grouped.items():
        group = _Group(key, known, by_rank, world)
        found = list(group.mismatch()) + list(group.missing())
        events += found or list(group.stuck())
    return events


class _Group:
    """One process group as all dumps together show it."""

    def __init__(
        self, key: GroupKey, dumps: Mapping[int, Dump], by_rank: dict[int, dict[int, Entry]], world: int | None
    ) -> None:
        self.name, self.desc = key[0] or "0", key[1]
        self.dumps, self.by_rank = dumps, by_rank
        """by_rank: rank → sequence number → entry, in order."""
        self.members = self._members(key, world)
        self.last = {rank: max(by_rank[rank]) if rank in by_rank else -1 for rank in self.members if rank in dumps}
        self.no_dump = [rank for rank in self.members if rank not in dumps]
        self.waits = {
            rank: next((e.seq for e in entries.values() if e.open), None) for rank, entries in by_rank.items()
        }
        """The first collective that each rank still waits for."""

    def _members(self, key: GroupKey, world: int | None) -> list[int]:
        told = {rank for dump in self.dumps.values() for rank in dump.members.get(key, ())}
        if not told and self._is_default(key):
            whole = {rank for dump in self.dumps.values() for ranks in dump.members.values() for rank in ranks}
            told = whole | set(self.dumps) | set(range(world or 0))
        return sorted(told | set(self.by_rank))

    @staticmethod
    def _is_default(key: GroupKey) -> bool:
        return key[1] == "default_pg" or key[0] in ("0", "", "default_pg")

    def missing(self) -> Iterator[Event]:
        """Ranks that never entered a collective in which others wait, or that others have behind them."""
        if len(set(self.last.values())) < 2:
            yield from self._absent()
            return
        least = min(self.last.values())
        waited = [seq for seq in self.waits.values() if seq is not None and seq > least]
        seq = min(waited or [seq for entries in self.by_rank.values() for seq in entries if seq > least])
        missing = [rank for rank, last in self.last.items() if last < seq]
        waiting = [rank for rank, last in self.last.items() if last >= seq]
        yield self._missing(seq, missing, waiting)

    def _absent(self) -> Iterator[Event]:
        """All dumps agree and wait for the same collective, but some ranks left no dump: they are the suspects."""
        waits = set(self.waits.values())
        if self.no_dump and len(waits) == 1 and (seq := waits.pop()) is not None:
            yield self._missing(seq, [], list(self.by_rank))

    def _missing(self, seq: int, missing: list[int], waiting: list[int]) -> Event:
        entry = self.by_rank[waiting[0]].get(seq)
        last = self._last_entry(missing[0]) if missing else None
        data = self._data(seq) | {
            "op": entry.op if entry else "",
            "missing": missing,
            "waiting": waiting,
            "no_dump": self.no_dump,
            "frames": last.frames if last else [],
            "last_seq": {str(rank): max(0, value) for rank, value in self.last.items()},
        }
        text = [f"{self._title()}: collective {seq} {data['op']}", f"  waiting: {_list(waiting)}"]
        if missing:
            text += [f"  never entered it: {_list(missing)}"]
            text += [f"    rank {rank}: last was {self._word(self._last_entry(rank))}" for rank in missing[:SHOWN]]
        if self.no_dump:
            text += [f"  no dump: {_list(self.no_dump)}"]
        return self._event("flight.missing", text, data, missing or waiting)

    def mismatch(self) -> Iterator[Event]:
        """The first collective that ranks disagree on: another operation, other sizes, other dtypes."""
        seqs = Counter(seq for entries in self.by_rank.values() for seq in entries)
        for seq in sorted(seq for seq, count in seqs.items() if count > 1):
            held = {rank: entries[seq] for rank, entries in self.by_rank.items() if seq in entries}
            for field in ("op", "sizes", "dtypes"):
                values = {rank: _value(entry, field) for rank, entry in held.items()}
                if None not in values.values() and len(set(values.values())) > 1:
                    yield self._mismatch(seq, field, values, held)
                    return

    def _mismatch(self, seq: int, field: str, values: dict[int, Any], held: dict[int, Entry]) -> Event:
        sides: dict[Any, list[int]] = {}
        for rank, value in sorted(values.items()):
            sides.setdefault(value, []).append(rank)
        ordered = sorted(
            sides.items(), key=lambda side: (-len(side[1]), -max(self.last.get(r, 0) for r in side[1]), side[1])
        )
        shown = [{"value": _shown(held[ranks[0]], field), "ranks": ranks} for _, ranks in ordered]
        data = self._data(seq) | {"field": field, "majority": shown[0], "odd": shown[1:]}
        text = [f"{self._title()}: collective {seq} differs in {field}"]
        text += [f"  {_list(ranks)}: {self._word(held[ranks[0]])}" for _, ranks in ordered[:SHOWN]]
        return self._event("flight.mismatch", text, data, ordered[1][1])

    def stuck(self) -> Iterator[Event]:
        """Every member launched the same collective and nobody finished it: the data path, or one GPU."""
        waits = set(self.waits.values())
        seq = next(iter(waits)) if len(waits) == 1 else None
        if seq is None or len(self.by_rank) < max(2, len(self.members)):
            return
        entries = {rank: held[seq] for rank, held in self.by_rank.items()}
        states = {str(rank): entry.state for rank, entry in entries.items()}
        op = next(iter(entries.values())).op
        data = self._data(seq) | {"op": op, "ranks": list(entries), "states": states}
        counts = ", ".join(f"{state} on {number}" for state, number in Counter(states.values()).items())
        yield self._event(
            "flight.stuck",
            [f"{self._title()}: collective {seq} {op} launched by all, completed by none ({counts})"],
            data,
            [],
        )

    def _last_entry(self, rank: int) -> Entry | None:
        entries = self.dumps[rank].entries if rank in self.dumps else []
        return entries[-1] if entries else None

    def _data(self, seq: int) -> Data:
        return {"group": self.name, "desc": self.desc, "seq": seq}

    def _title(self) -> str:
        return f"process group {self.name}" + (f" ({self.desc})" if self.desc else "")

    @staticmethod
    def _word(entry: Entry | None) -> str:
        if entry is None:
            return "nothing"
        own = next((f for f in entry.frames if "/torch/" not in f["file"]), None)
        where = f" at {own['file']}:{own['line']} in {own['func']}" if own else ""
        return f"{entry.seq} {entry.op} {entry.shapes} {'/'.join(entry.dtypes)} {entry.state}{where}"

    def _event(self, kind: str, text: list[str], data: Data, ranks: list[int]) -> Event:
        path = next(
            (self.dumps[rank].path for rank in ranks if rank in self.dumps), next(iter(self.dumps.values())).path
        )
        return Event(kind, clip("\n".join(text)), path, 0, rank=ranks[0] if len(ranks) == 1 else None, data=data)


def _value(entry: Entry, field: str) -> Any:
    """What must be equal; None where a difference would mean nothing (coalesced, uneven by design)."""
    if entry.op.startswith("coalesced") or not entry.op:
        return None
    if field == "op":
        return entry.op
    if entry.op not in SAME_SIZE:
        return None
    return sum(entry.sizes) if field == "sizes" else entry.dtypes


def _shown(entry: Entry, field: str) -> Any:
    return {"op": entry.op, "sizes": entry.shapes, "dtypes": list(entry.dtypes)}[field]


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return (
        f"rank{'s' if len(ranks) != 1 else ''} {shown}{f' and {len(ranks) - SHOWN} more' if len(ranks) > SHOWN else ''}"
    )
