"""Process groups as all dumps together show them.  The same name with other members is another communicator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ncclkit.evidence.flight.calls import Calls, GroupKey, Kind
from ncclkit.evidence.flight.dumps import Dump

SHOWN = 16
"""Ranks that a text names one by one."""
Members = tuple[int, ...]


@dataclass(slots=True)
class Group:
    """One communicator: its members, and what each of them recorded."""

    name: str
    desc: str
    members: list[int]
    """Global ranks; the place in the list is the rank inside the group."""
    dumps: Mapping[int, Dump]
    """Of all ranks of the job."""
    calls: dict[int, Calls] = field(default_factory=dict)
    pairs: dict[int, Calls] = field(default_factory=dict)
    """Sends and receives."""
    sources: dict[int, Dump] = field(default_factory=dict)
    """rank → the dump that `calls` and `pairs` came from."""

    @property
    def title(self) -> str:
        """For texts."""
        return f"process group {self.name}" + (f" ({self.desc})" if self.desc else "")

    @property
    def no_dump(self) -> list[int]:
        """Members that left no dump."""
        return [rank for rank in self.members if rank not in self.dumps]

    def kind(self, rank: int, place: int) -> Kind:
        """What a rank called at one place of its columns."""
        return self.sources[rank].kinds[self.calls[rank].kinds[place]]

    def state(self, rank: int, place: int) -> str:
        """``scheduled``, ``started`` or ``completed``."""
        return self.sources[rank].states[self.calls[rank].status[place]][0]

    def site(self, rank: int, place: int) -> str:
        """Where the program made a call, ``train.py:88 in step``; empty where the dump does not record it."""
        return self.sources[rank].sites[self.calls[rank].sites[place]]

    def word(self, rank: int, place: int) -> str:
        """One call in a line."""
        return self.sources[rank].word(self.calls[rank], place)

    def waits(self) -> dict[int, int]:
        """rank → the sequence number of the first call that it still waits for."""
        return {rank: c.seqs[c.waiting] for rank, c in self.calls.items() if c.waiting is not None}


def groups(dumps: Iterable[Dump], world: int | None) -> list[Group]:
    """Every communicator that some dump names, in the order of ranks.

    world: number of ranks of the job, where something other than the dumps shows it.  Of two dumps of one rank
    the one with the newer call of a group counts for that group.
    """
    by_rank: dict[int, list[Dump]] = {}
    for dump in dumps:
        if dump.rank is not None:
            by_rank.setdefault(dump.rank, []).append(dump)
    newest = {rank: max(found, key=_time) for rank, found in sorted(by_rank.items())}
    made: dict[tuple[GroupKey, Members], Group] = {}
    spoken = {(key, ranks) for found in by_rank.values() for dump in found for key, ranks in dump.members.items()}
    known: dict[GroupKey, list[Members]] = {}
    for key, ranks in sorted(spoken):
        known.setdefault(key, []).extend([ranks] if ranks else [])
    for rank, found in sorted(by_rank.items()):
        for dump in sorted(found, key=_time):
            for key in dict.fromkeys((*dump.collectives, *dump.pairs)):
                members = _members(dump, key, rank, known)
                group = made.setdefault((key, members), Group(key[0] or "0", key[1], [], newest))
                group.sources[rank] = dump
                group.calls[rank] = dump.collectives.get(key, Calls())
                group.pairs[rank] = dump.pairs.get(key, Calls())
    for (key, members), group in made.items():
        group.members = sorted({*(members or _unnamed(key, newest, world)), *group.sources})
    return list(made.values())


def _time(dump: Dump) -> tuple[int, str]:
    calls = dump.newest
    return (calls[0].created[calls[1]] if calls else 0, dump.path)


def _members(dump: Dump, key: GroupKey, rank: int, known: Mapping[GroupKey, list[Members]]) -> Members:
    """Members of a group of one dump; where it does not tell them, the only ones that others tell."""
    told = dump.members.get(key, ())
    ways = [told] if told else [ranks for ranks in known.get(key, []) if rank in ranks]
    return ways[0] if len(ways) == 1 else ()


def _unnamed(key: GroupKey, dumps: Mapping[int, Dump], world: int | None) -> set[int]:
    """Members of a group of which nothing tells them: everybody, where it is the default group."""
    if key[1] != "default_pg" and key[0] not in ("0", "", "default_pg"):
        return set()
    whole = {rank for dump in dumps.values() for ranks in dump.members.values() for rank in ranks}
    return whole | set(dumps) | set(range(world or 0))


def listed(ranks: Iterable[int]) -> str:
    """``ranks 0, 1, 2 and 61 more``."""
    found = list(ranks)
    shown = ", ".join(map(str, found[:SHOWN])) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
    return f"rank{'s' if len(found) != 1 else ''} {shown}"
