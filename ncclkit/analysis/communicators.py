"""What the log says of a job's communicators.

It tells each process's rank in them, how pairs are connected, rings, and variables.

A pointer (``comm 0x55d``) means something in one process only; ``commId`` (2.16+) joins the
processes.  Children of a split (2.23+) print their parent's pointer and a colour instead.  Before
2.16 nothing joins them but size and order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from re import search
from typing import NamedTuple

from ncclkit.core.model import Event

Process = tuple[str, int | None, str]
"""Host, pid, and the file where a line names no pid."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator as the INIT lines of all processes show it."""

    id: str
    """``commId`` as the log prints it; made of parent and colour, or of size and order, where there
    is none."""
    size: int
    members: Mapping[int, tuple[str, str]]
    """Rank in this communicator → (host, bus id)."""
    parent: str = ""
    """`id` of the communicator that it was split from."""
    complete: bool = False
    """Every rank finished its init."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Rank in this communicator → global rank, where it is known."""
    done: frozenset[int] = frozenset()
    """Ranks that finished their init."""
    why: str = ""
    """Why it is not complete, in words."""


Fits = Callable[[Communicator, int], bool]


@dataclass(slots=True)
class _Seat:
    """One process's place in one communicator."""

    process: Process
    event: Event
    done: bool


class Index:
    """All communicators of a job, by pointer and line.

    It tells which of them a process means by a pointer or at a line.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        inits = []
        for event in events:
            if event.kind == "nccl.init" and _is_complete(event):
                inits.append(event)
        self.world = max((event.data.nranks for event in inits), default=0)
        self.all: list[Communicator] = []
        self._of: dict[tuple[Process, str], tuple[Communicator, int] | None] = {}
        self._spoken: dict[Process, dict[str, list[tuple[int, int, Communicator]]]] = defaultdict(
            dict
        )
        for name, (parent, seats) in _joined(_seats(inits)).items():
            self._add(_communicator(name, parent, seats, self.world), seats)

    def _add(self, made: Communicator, seats: list[_Seat]) -> None:
        self.all.append(made)
        for seat in seats:
            handle = seat.process, str(seat.event.data.comm)
            # after a destroy the pointer may come back: then it names neither
            reused = handle in self._of
            if reused or made.why.startswith("several"):
                self._of[handle] = None
            else:
                self._of[handle] = (made, seat.event.data.rank)
            event = seat.event
            place = event.line, event.data.rank, made
            insort(
                self._spoken[seat.process].setdefault(event.path, []),
                place,
                key=lambda item: item[0],
            )

    def of(self, event: Event) -> tuple[Communicator, int] | None:
        """The communicator that `event` names by its pointer.

        With it comes the rank of its process in it.
        """
        return self._of.get((process(event), str(event.data.comm)))

    def at(self, event: Event, fits: Fits = lambda made, rank: True) -> Communicator | None:
        """The communicator that a process sets up at this line.

        It is the last one begun before it, else the next one.  `fits` tells what must hold for a
        communicator and the process's rank in it.
        """
        files = self._spoken.get(process(event), {})
        spoken = files.get(event.path)
        # another file of the same process tells of its only communicator, or of none for sure
        if spoken is None:
            elsewhere = []
            for items in files.values():
                elsewhere.extend(items)
            if len(elsewhere) == 1 and fits(elsewhere[0][2], elsewhere[0][1]):
                return elsewhere[0][2]
            return None
        begun = bisect_right(spoken, event.line, key=lambda item: item[0])
        near = chain(reversed(spoken[:begun]), spoken[begun:])
        return next((made for _, rank, made in near if fits(made, rank)), None)


def _is_complete(event: Event) -> bool:
    """False for a torn line, whose numbers cannot be meant."""
    rank, size = event.data.rank, event.data.nranks
    return isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size


def process(event: Event) -> Process:
    """The process that logged an event, by host and pid."""
    return event.host.partition(".")[0], event.pid, "" if event.pid is not None else event.path


def _seats(inits: list[Event]) -> list[_Seat]:
    """Start and end of one init together; in the order of the log."""
    seats: dict[tuple[Process, str, str | None, int, int], _Seat] = {}
    for event in inits:
        data = event.data
        key = process(event), str(data.comm), data.comm_id, data.nranks, data.rank
        seat = seats.setdefault(key, _Seat(process(event), event, False))
        seat.done = seat.done or data.phase == "done"
    return list(seats.values())


def _joined(seats: list[_Seat]) -> dict[str, tuple[str, list[_Seat]]]:
    """name → (name of the parent, seats)."""
    names: dict[tuple[Process, str], str] = {}
    groups: dict[str, tuple[str, list[_Seat]]] = {}
    orders: dict[tuple[object, ...], Iterator[int]] = defaultdict(lambda: count(1))
    loose: dict[str, list[_Seat]] = defaultdict(list)
    for seat in seats:
        data = seat.event.data
        handle = (seat.process, str(seat.event.data.comm))
        above = ""
        if _parent(seat):
            above = names.get((seat.process, str(data.parent)), "")
        # from 2.16 on all processes print the same id
        if data.comm_id:
            name = str(data.comm_id)
        elif _parent(seat):
            above = above or f"parent {data.parent} of process {seat.process[1]}"
            said = search(r"(?:splitCount|childCount) (\d{1,9})", seat.event.text)
            if said:
                number = said[1]
            else:
                number = str(next(orders[seat.process, above, data.color]))
            name = f"{above} split {number} color {data.color}"
        else:
            # before 2.16 no line joins processes: size and order do
            name = f"{data.nranks} ranks #{next(orders[seat.process, data.nranks])}"
            loose[name].append(seat)
        names[handle] = name
        groups.setdefault(name, (above, []))[1].append(seat)
    for name, held in loose.items():
        groups |= _separate(name, groups.pop(name)[1] if name in groups else held)
    return groups


def _parent(seat: _Seat) -> bool:
    return str(seat.event.data.parent or "(nil)") not in ("(nil)", "0x0")


def _separate(name: str, seats: list[_Seat]) -> dict[str, tuple[str, list[_Seat]]]:
    """Communicators of the same size and order: one, or one per host.

    They may also not be to be told apart.  Groups keep the order of the global ranks, so if every
    host holds every rank exactly once, each host is a group.
    """
    size = seats[0].event.data.nranks
    if _holds_each_once(seats):
        return {name: ("", seats)}
    hosts: dict[str, list[_Seat]] = defaultdict(list)
    for seat in seats:
        hosts[seat.process[0]].append(seat)
    is_whole_each = all(len(own) == size and _holds_each_once(own) for own in hosts.values())
    if is_whole_each:
        return {f"{name} on {host}": ("", own) for host, own in hosts.items()}
    return {f"{name} (several)": ("", seats)}


def _holds_each_once(seats: list[_Seat]) -> bool:
    """Whether no two of these processes claim the same rank."""
    ranks = {seat.event.data.rank for seat in seats}
    return len(ranks) == len(seats)


def _communicator(name: str, parent: str, seats: list[_Seat], world: int) -> Communicator:
    size = seats[0].event.data.nranks
    several = name.endswith("(several)")
    claims: dict[int, list[_Seat]] = defaultdict(list)
    for seat in seats:
        claims[seat.event.data.rank].append(seat)
    sole = {}
    for rank, own in sorted(claims.items()):
        if len(own) == 1 or not several:
            sole[rank] = own[0]
    ranks = {rank: seat.event.rank for rank, seat in sole.items() if seat.event.rank is not None}
    # several ranks in one process, or no process known
    if size == world and len(set(ranks.values())) < len(sole):
        ranks = {rank: rank for rank in sole}
    done = frozenset(rank for rank, seat in sole.items() if seat.done)
    return Communicator(
        name,
        size,
        {rank: (seat.process[0], str(seat.event.data.bus or "")) for rank, seat in sole.items()},
        parent,
        len(done) == size,
        ranks,
        done,
        _why(size, len(sole), len(done), several),
    )


def _why(size: int, known: int, done: int, several: bool) -> str:
    if several:
        return (
            "several communicators of this size cannot be told apart: NCCL before 2.16 prints no"
            " commId"
        )
    if done == size:
        return ""
    reason = f"{known} of {size} ranks printed an INIT line"
    if done == known:
        return reason
    return f"{reason}, {done} finished"


class Transport(NamedTuple):
    """How one rank sends to another."""

    via: str
    """``P2P``, ``SHM``, ``NET``; joined by ``/`` where channels differ."""
    transport: str
    channels: int
    gdr: bool
    """Every network channel uses GPUDirect RDMA."""


def communicators(events: Iterable[Event]) -> list[Communicator]:
    """Every communicator of the job, the largest first, then in the order of the log."""
    return sorted(Index(events).all, key=lambda made: -made.size)


def transports(events: Sequence[Event]) -> dict[tuple[int, int], Transport]:
    """(sender, receiver) → how they are connected.

    They are global ranks where the communicator is known.
    """
    index = Index(events)
    found = defaultdict(list)
    for event in events:
        if event.kind == "nccl.channel" and None not in (event.data.src, event.data.dst):
            pair = event.data.src, event.data.dst
            made = index.at(event, _pair_fits(pair))
            known = made.ranks if made else {}
            # then a rank that printed nothing still has its number
            whole = made is None or made.size == index.world
            source, target = (known.get(rank, rank if whole else None) for rank in pair)
            if source is not None and target is not None:
                found[source, target].append(event)
    return {pair: _link(lines) for pair, lines in sorted(found.items())}


def _pair_fits(pair: tuple[int, int]) -> Fits:
    return lambda made, rank: rank in pair and max(pair) < made.size


def _link(lines: list[Event]) -> Transport:
    """One link by the lines of both ends.

    Both ends of a pair may say it, each with its own device; the end that names more channels
    counts.
    """
    ends: dict[bool, int] = defaultdict(int)
    for line in lines:
        ends["[receive]" in line.text] += line.data.channels
    ordered = sorted(lines, key=lambda line: -line.data.channels)
    net = []
    for line in lines:
        if line.data.via == "NET":
            net.append(line.data.gdr)
    via = " / ".join(dict.fromkeys(str(line.data.via) for line in ordered))
    transport = " / ".join(dict.fromkeys(str(line.data.transport) for line in ordered))
    return Transport(via, transport, max(ends.values()), bool(net) and all(net))


def rings(events: Sequence[Event]) -> dict[int, list[int]]:
    """Channel → ranks in the order of the ring, of the largest communicator.

    A ring whose length is not the communicator's size is the longest piece that the lines tell.
    """
    whole: dict[int, list[int]] = {}
    after: dict[int, dict[int, int]] = defaultdict(dict)
    for event in _planned(events):
        order = event.data.order
        if None in (event.data.channel, *order):  # a torn line
            continue
        if event.data.whole:
            whole[event.data.channel] = list(order)
        else:
            after[event.data.channel].update(zip(order, order[1:], strict=False))
    # a ring that NCCL printed whole stands above pieces of it
    found = {channel: _longest_chain(follows) for channel, follows in after.items()} | whole
    return dict(sorted(found.items())) or _from_links(transports(events))


def _planned(events: Sequence[Event]) -> Iterator[Event]:
    """The lines of rings that a process prints while it sets up the largest communicator."""
    index = Index(events)
    largest = max(index.all, key=lambda made: made.size, default=None)
    for event in events:
        if event.kind == "nccl.ring" and index.at(event) in (None, largest):
            yield event


def _longest_chain(follows: Mapping[int, int]) -> list[int]:
    """The longest way along these successors."""
    # a closed ring has no start, so any of its ranks serves
    starts = sorted(follows.keys() - follows.values()) or sorted(follows)[:1]
    return max((_chain(follows, start) for start in starts), key=len, default=[])


def _chain(follows: Mapping[int, int], start: int) -> list[int]:
    seen = {start: None}
    while (start := follows.get(start, start)) not in seen:
        seen[start] = None
    return list(seen)


def _from_links(links: Mapping[tuple[int, int], Transport]) -> dict[int, list[int]]:
    """The ring of each channel by pairs of ranks.

    Where every rank sends to one other rank only, over as many channels, the pairs are the ring.
    """
    follows = dict(links.keys())
    widths = {link.channels for link in links.values()}
    order = _longest_chain(follows)
    sends_to_one = len(follows) == len(links)
    in_one_ring = len(order) == len(links) and len(order) > 1
    if not sends_to_one or not in_one_ring or len(widths) != 1:
        return {}
    return {channel: list(order) for channel in range(widths.pop())}


def variables(events: Iterable[Event]) -> dict[str, dict[str, list[int | str]]]:
    """NCCL variable → value → who read it.

    They are global ranks, or hosts where the rank is not known.
    """
    # each reader once, in the order of the log
    readers: dict[tuple[str, str], dict[int | str, None]] = defaultdict(dict)
    for event in events:
        if event.kind != "nccl.env":
            continue
        reader: int | str = event.host
        if event.rank is not None:
            reader = event.rank
        setting = str(event.data.name), str(event.data.value)
        readers[setting][reader] = None
    # by name alone, so that the values of one variable stay in the order of the log
    by_name = sorted(readers, key=lambda setting: setting[0])
    collected: dict[str, dict[str, list[int | str]]] = {}
    for name, value in by_name:
        values = collected.setdefault(name, {})
        # as text, since ranks and hosts cannot be compared
        values[value] = sorted(readers[name, value], key=str)
    return collected
