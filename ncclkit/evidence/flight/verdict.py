"""Flight Recorder: from all ranks' dumps to events.  No rank is the truth, and no dump needs the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.flight.calls import Calls
from ncclkit.evidence.flight.dumps import Dump
from ncclkit.evidence.flight.groups import SHOWN, Group, groups
from ncclkit.evidence.flight.hang import Stop, late, roots, stops, unpaired
from ncclkit.evidence.flight.mismatch import mismatch, splits
from ncclkit.evidence.grammars.grammar import Data, clip

OPEN = 64
"""Calls in flight that a summary lists."""
LAST, SPREAD = 8, 24
"""Calls whose times a summary holds: the last ones, and so many spread over those before."""


def summary(dump: Dump) -> Event:
    """The `flight.dump` event of one file."""
    told: dict[str, Data] = {}
    said: list[str] = []
    for key in dict.fromkeys((*dump.members, *dump.collectives)):
        calls = dump.collectives.get(key, Calls())
        closed = calls.open.rfind(b"\0")
        told[key[0] or "0"] = {
            "desc": key[1],
            "ranks": _listed(dump.members.get(key, ())),
            "last_seq": calls.seqs[-1] if calls.seqs else None,
            "last_completed": calls.seqs[closed] if closed >= 0 else None,
            "in_flight": [seq for seq, mark in zip(calls.seqs, calls.open, strict=True) if mark][:OPEN],
            "times": _times(calls),
            "sizes": _sizes(dump, calls),
        }
        name, group = key[0] or "0", told[key[0] or "0"]
        gloo = len(calls) > 0 and dump.kinds[calls.kinds[0]].library == "gloo"
        closed_as = "retired" if gloo else "completed"  # gloo records no more, and retires what timed out as well
        said.append(f"{name} {key[1]}: last {group['last_seq']}, {closed_as} {group['last_completed']}, in flight")
        said[-1] += f" {group['in_flight'][:8]}"
    text = "\n".join([f"Flight Recorder {dump.version}, {dump.total} entries", *said])
    data = {"version": dump.version, "entries": dump.total, "groups": told}
    return Event("flight.dump", clip(text), dump.path, 0, host=dump.host, rank=dump.rank, data=data)


def _times(calls: Calls) -> list[list[float]]:
    """Number of a call, and when it was made, in seconds since the epoch; without those that the dump does not date."""
    first = max(0, len(calls) - LAST)
    places = [*range(0, first, max(1, -(-first // SPREAD))), *range(first, len(calls))]
    return [[calls.seqs[at], calls.created[at] / 1e9] for at in places if calls.created[at]]


ITEM = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
"""Data type as torch writes it → bytes of an element."""
SIZES = 64
"""Sizes of a group's messages that a summary holds, the most frequent ones."""


def _sizes(dump: Dump, calls: Calls) -> list[list[Any]]:
    """``[operation, bytes of the larger side, calls]``, the most frequent first; without those of unknown size."""
    counts = Counter(calls.kinds)
    told: Counter[tuple[str, int]] = Counter()
    for number, count in counts.items():
        kind = dump.kinds[number]
        item = ITEM.get((kind.dtypes or kind.output_dtypes or ("",))[0], 0)
        size = item * max(kind.inputs.total or 0, kind.outputs.total or 0)
        if size:
            told[kind.op, size] += count
    return [[op, size, count] for (op, size), count in told.most_common(SIZES)]


@lru_cache(maxsize=1024)
def _listed(ranks: tuple[int, ...]) -> list[int]:
    """One list for all events that name the same members: a thousand of a thousand ranks fill memory."""
    return list(ranks)


def analyse(dumps: Iterable[Dump], world: int | None = None, events: Sequence[Event] = ()) -> list[Event]:
    """Cross-rank events, group by group; those that only follow from another group's hang say so.

    world: number of ranks of the job, where something else shows it.  events: those of other files; stacks and
    hosts of ranks are taken from them.
    """
    given = list(dumps)
    hosts = {dump.rank: dump.host for dump in given if dump.rank is not None and dump.host}
    hosts |= {event.rank: event.host for event in events if event.rank is not None and event.host}
    stacks = {event.rank: event for event in events if event.kind == "stack" and event.rank is not None}
    found: list[Stop] = []
    for group in groups(given, world):
        found += _of(group)
        found += [stop] if (stop := late(group, hosts)) is not None else []
    roots(stop for stop in found if stop.kind in ("flight.missing", "flight.mismatch", "flight.stuck", "flight.p2p"))
    return [_event(stop, stacks) for stop in found]


def _of(group: Group) -> list[Stop]:
    """Everything about one group but lateness."""
    found: list[Stop] = []
    for told in (mismatch(group), splits(group)):
        if told is not None:
            data, text, odd = told
            found.append(Stop("flight.mismatch", group, data, text, odd, waiting=list(group.waits())))
            break
    hang = list(stops(group))
    found += [stop for stop in hang if stop.kind != "flight.stuck" or not found]
    return found + list(unpaired(group))


def _event(stop: Stop, stacks: Mapping[int, Event]) -> Event:
    data: dict[str, Any] = {"group": stop.group.name, "desc": stop.group.desc, **stop.data}
    text = list(stop.text)
    if stop.kind in ("flight.missing", "flight.p2p"):
        seen = {rank: stacks[rank] for rank in stop.missing[:SHOWN] if rank in stacks}
        data["stacks"] = {str(rank): event.data["frames"] for rank, event in seen.items()}
        text += [f"    rank {rank} stood {_stood(event)}" for rank, event in seen.items()]
    dumps = stop.group.dumps
    path = next((dumps[rank].path for rank in stop.ranks if rank in dumps), next(iter(dumps.values())).path)
    rank = stop.ranks[0] if len(stop.ranks) == 1 else None
    return Event(stop.kind, clip("\n".join(text)), path, 0, rank=rank, data=data)


def _stood(event: Event) -> str:
    """The innermost line of a stack that is not torch's own."""
    frames = event.data["frames"]
    own = next((frame for frame in frames if "/torch/" not in frame["file"]), frames[0])
    return f"in {own['func']} at {own['file']}:{own['line']} ({event.data.get('tool')})"
