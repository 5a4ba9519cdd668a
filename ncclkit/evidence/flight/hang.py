"""Where a process group stalls, and which hang is the root.

It tells who never entered, sends without receives, and late ranks.  Groups are as all dumps
together show them: the same name with other members is another communicator.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from ncclkit.core.kinds import Frame
from ncclkit.evidence.flight.dumps import Calls, Dump, GroupKey, Kind
from ncclkit.evidence.grammars.grammar import Data

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
        """The name of the group in sentences."""
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
        """Where the program made a call, ``train.py:88 in step``.

        It is empty where the dump does not record it.
        """
        return self.sources[rank].sites[self.calls[rank].sites[place]]

    def stack(self, rank: int, place: int) -> list[Frame]:
        """The whole stack of a call, innermost first; kept for the last calls only."""
        return self.sources[rank].frames(self.calls[rank], place)

    def word(self, rank: int, place: int) -> str:
        """One call in a line."""
        return self.sources[rank].word(self.calls[rank], place)

    def waits(self) -> dict[int, int]:
        """rank → the sequence number of the first call that it still waits for."""
        found = {}
        for rank, calls in self.calls.items():
            if calls.waiting is not None:
                found[rank] = calls.seqs[calls.waiting]
        return found


def groups(dumps: Iterable[Dump], world: int | None) -> list[Group]:
    """Every communicator that some dump names, in the order of ranks.

    `world` is the number of ranks of the job, where something other than the dumps shows it.  Of
    two dumps of one rank the one with the newer call of a group counts for that group.
    """
    by_rank: dict[int, list[Dump]] = {}
    for dump in dumps:
        if dump.rank is not None:
            by_rank.setdefault(dump.rank, []).append(dump)
    newest = {}
    for rank, found in sorted(by_rank.items()):
        newest[rank] = max(found, key=_time_of_newest)
    known = _known_members(by_rank)
    made: dict[tuple[GroupKey, Members], Group] = {}
    for rank, found in sorted(by_rank.items()):
        # the newest comes last, so that its calls stay
        for dump in sorted(found, key=_time_of_newest):
            for key in dict.fromkeys((*dump.collectives, *dump.pairs)):
                members = _members_of_group(dump, key, rank, known)
                name, desc = key
                group = made.setdefault((key, members), Group(name or "0", desc, [], newest))
                group.sources[rank] = dump
                group.calls[rank] = dump.collectives.get(key, Calls())
                group.pairs[rank] = dump.pairs.get(key, Calls())
    for (key, members), group in made.items():
        named = members or _unnamed_members(key, newest, world)
        group.members = sorted({*named, *group.sources})
    return list(made.values())


def _known_members(by_rank: Mapping[int, list[Dump]]) -> dict[GroupKey, list[Members]]:
    """Group → every list of members that some dump says of it, in order."""
    spoken: set[tuple[GroupKey, Members]] = set()
    for found in by_rank.values():
        for dump in found:
            spoken.update(dump.members.items())
    known: dict[GroupKey, list[Members]] = {}
    for key, ranks in sorted(spoken):
        lists = known.setdefault(key, [])
        if ranks:
            lists.append(ranks)
    return known


def _time_of_newest(dump: Dump) -> tuple[int, str]:
    calls = dump.newest
    return (calls[0].created[calls[1]] if calls else 0, dump.path)


def _members_of_group(
    dump: Dump, key: GroupKey, rank: int, known: Mapping[GroupKey, list[Members]]
) -> Members:
    """Members of a group of one dump.

    Where the dump does not tell them, they are the only ones that other dumps tell.
    """
    recorded = dump.members.get(key, ())
    if recorded:
        candidates = [recorded]
    else:
        candidates = [ranks for ranks in known.get(key, []) if rank in ranks]
    if len(candidates) == 1:
        return candidates[0]
    return ()


def _unnamed_members(key: GroupKey, dumps: Mapping[int, Dump], world: int | None) -> set[int]:
    """Members of a group of which nothing tells them.

    They are everybody, where it is the default group.
    """
    if key[1] != "default_pg" and key[0] not in ("0", "", "default_pg"):
        return set()
    whole = set()
    for dump in dumps.values():
        for ranks in dump.members.values():
            for rank in ranks:
                whole.add(rank)
    return whole | set(dumps) | set(range(world or 0))


def listed(ranks: Iterable[int]) -> str:
    """``ranks 0, 1, 2 and 61 more``."""
    found = list(ranks)
    shown = ", ".join(map(str, found[:SHOWN])) + (
        f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    )
    return f"rank{'s' if len(found) != 1 else ''} {shown}"


ALONE = frozenset({"", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather"})
"""Operations that a rank can have behind it although another one never came."""


@dataclass(slots=True, eq=False)
class GroupFinding:
    """One finding about one group.

    It is an event before it is known what depends on what.
    """

    kind: str
    group: Group
    fields: Data
    """Without what every finding says of its group."""
    text: list[str]
    ranks: list[int]
    """Ranks that the finding is about, for its path and rank."""
    missing: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


def find_hang(group: Group) -> Iterator[GroupFinding]:
    """Which ranks are missing from a group, or that all are inside.

    It is empty where nothing hangs.  Of a rank whose dump is older than what others have completed
    with it nothing is known.
    """
    last, lost = _last_sequences(group)
    older = _older_dumps(group, last)
    for rank in older:
        last.pop(rank, None)
    if not last:
        return
    waits = {}
    for rank, place in group.waits().items():
        if rank in last:
            waits[rank] = place
    least = min(last.values())
    seq = min((place for place in waits.values() if place <= least), default=None)
    inside = []
    for rank, place in waits.items():
        if place == seq:
            inside.append(rank)
    entered = [rank for rank, reached in last.items() if reached >= 0]
    if len(set(last.values())) > 1 and 2 * len(inside) <= len(last):
        yield from _gaps_of_group(group, last, waits, lost, older)
    elif seq is not None and (group.no_dump or lost):
        if len(inside) == len(entered):
            yield _missing_finding(group, seq, last, [], inside, lost)
    elif older:
        return  # whether they are inside, too, their dumps came too early to tell
    elif seq is not None and len(group.members) > 1 and 2 * len(inside) > len(group.members):
        yield from _stuck_collective(group, seq, inside)


def _older_dumps(group: Group, last: Mapping[int, int]) -> list[int]:
    """Ranks whose dump was taken early: another one completed a call that needs them.

    A rank that has made that call, and only does not see its end, may be one whose GPU failed.
    """
    proven = max((_last_proven(group, rank) for rank in group.calls), default=-1)
    return [rank for rank, reached in last.items() if reached < proven]


def _last_proven(group: Group, rank: int) -> int:
    """The last call of a rank that proves that all members entered.

    Such a call ends only once all have entered it; -1 without one.  An aborted call counts as
    completed, too, but its watchdog has not retired it.
    """
    dump, calls = group.sources[rank], group.calls[rank]
    for place in reversed(range(len(calls))):
        kind = dump.kinds[calls.kinds[place]]
        needs_all = kind.library == "nccl" and kind.op not in ALONE and not kind.closes
        if needs_all and dump.states[calls.status[place]] == ("completed", True):
            return calls.seqs[place]
    return -1


def _last_sequences(group: Group) -> tuple[dict[int, int], list[int]]:
    """rank → its last sequence number, and ranks whose record was overwritten.

    The number is -1 where a rank never entered.  A ring buffer keeps the newest calls of all
    groups.  Where none of this group is left, the rank may have been in it long ago; only what
    others entered after the oldest call that it still holds would have to be there.
    """
    last = {rank: calls.seqs[-1] for rank, calls in group.calls.items() if len(calls)}
    if not last:
        return {}, []
    newest = min((calls.created[-1] for calls in group.calls.values() if len(calls)), default=0)
    lost = []
    for rank in group.members:
        if rank in group.dumps and rank not in last:
            dump = group.dumps[rank]
            if dump.dropped and not 0 < dump.oldest() <= newest:
                lost.append(rank)
            else:
                last[rank] = -1
    return dict(sorted(last.items())), lost


def _gaps_of_group(
    group: Group, last: dict[int, int], waits: dict[int, int], lost: list[int], older: list[int]
) -> Iterator[GroupFinding]:
    """Ranks that never entered a collective that other ranks entered.

    The others wait in it, or have it behind them.
    """
    least = min(last.values())
    waited = [seq for seq in waits.values() if seq > least]
    candidates = list(waited)
    # where nobody waits, the next call of whoever is ahead tells what the others lack
    if not waited:
        for rank, reached in last.items():
            if reached > least:
                candidates.append(_next_sequence(group, rank, least))
    seq = min(candidates)
    waiting = [rank for rank, reached in last.items() if reached >= seq]
    if not waited and not any(_is_unconfirmed(group, rank, seq) for rank in waiting):
        return
    missing = [rank for rank, reached in last.items() if reached < seq]
    found = _missing_finding(group, seq, last, missing, waiting, lost)
    if older:
        found.text.append(f"  dump too early, nothing is known: {listed(older)}")
    yield found


def _next_sequence(group: Group, rank: int, seq: int) -> int:
    seqs = group.calls[rank].seqs
    return seqs[bisect_left(seqs, seq + 1)]


def _is_unconfirmed(group: Group, rank: int, seq: int) -> bool:
    """True unless NCCL says that the call is complete.

    To be complete it needs every rank to have entered it.
    """
    place = group.calls[rank].at(seq)
    if place is None:
        return True
    kind = group.kind(rank, place)
    return kind.library != "nccl" or kind.op in ALONE or group.state(rank, place) != "completed"


def _missing_finding(
    group: Group,
    seq: int,
    last: dict[int, int],
    missing: list[int],
    waiting: list[int],
    lost: list[int],
) -> GroupFinding:
    place = group.calls[waiting[0]].at(seq)
    newest = None
    if missing:
        newest = group.dumps[missing[0]].newest
    data = {
        "seq": seq,
        "op": group.kind(waiting[0], place).op if place is not None else "",
        "missing": missing,
        "waiting": waiting,
        "no_dump": group.no_dump,
        "overwritten": lost,
        "frames": group.dumps[missing[0]].frames(*newest) if newest else [],
        "last_seq": {str(rank): max(0, value) for rank, value in last.items()},
    }
    text = [f"{group.title}: collective {seq} {data['op']}", f"  waiting: {listed(waiting)}"]
    if place is not None:
        text += [f"    rank {waiting[0]}: {group.word(waiting[0], place)}"]
    if missing:
        text += [f"  never entered it: {listed(missing)}"]
        text += [
            f"    rank {rank}: last was {_newest_call(group, rank)}" for rank in missing[:SHOWN]
        ]
    text += [f"  no dump: {listed(group.no_dump)}"] if group.no_dump else []
    text += [f"  record overwritten, nothing is known: {listed(lost)}"] if lost else []
    return GroupFinding("flight.missing", group, data, text, missing or waiting, missing, waiting)


def _newest_call(group: Group, rank: int) -> str:
    dump = group.dumps[rank]
    if dump.newest:
        return dump.word(*dump.newest)
    return "nothing"


def _stuck_collective(group: Group, seq: int, inside: list[int]) -> Iterator[GroupFinding]:
    """A collective that every member launched and nobody, or too few, finished.

    There is none where all states say completed: such a dump was taken before the watchdog retired
    the call.
    """
    places = {rank: calls.at(seq) for rank, calls in group.calls.items()}
    done = [rank for rank in group.calls if rank not in inside]
    states = {}
    for rank, place in places.items():
        # a call that the buffer holds no more has ended
        if place is None or rank in done:
            states[str(rank)] = "completed"
        else:
            states[str(rank)] = group.state(rank, place)
    if set(states.values()) == {"completed"}:
        return
    op = next(group.kind(rank, place).op for rank, place in places.items() if place is not None)
    counted = Counter(states.values())
    counts = ", ".join(f"{state} on {number}" for state, number in counted.items())
    data = {"seq": seq, "op": op, "ranks": sorted(places), "states": states}
    whom = "completed by none"
    if done:
        whom = f"completed only by {listed(done)}"
    text = [f"{group.title}: collective {seq} {op} launched by all, {whom} ({counts})"]
    yield GroupFinding("flight.stuck", group, data, text, [], [], inside)


def crossed(found: Iterable[GroupFinding]) -> None:
    """Fill `crossed` of groups that all have entered.

    It names other such groups, if ranks made the two calls in two orders.
    """
    stuck = [stop for stop in found if stop.kind == "flight.stuck"]
    for stop in stuck:
        stop.fields["crossed"] = []
        for other in stuck:
            both = stop.group.calls.keys() & other.group.calls.keys()
            later = [
                _time_of_stuck_call(other, rank) - _time_of_stuck_call(stop, rank) for rank in both
            ]
            if min(later, default=0) < 0 < max(later, default=0):
                stop.fields["crossed"].append(other.group.name)


def _time_of_stuck_call(stop: GroupFinding, rank: int) -> int:
    """When a rank made the call that is stuck, in nanoseconds.

    It is 0 where its dump does not hold the call.
    """
    calls = stop.group.calls[rank]
    place = calls.at(stop.fields["seq"])
    if place is not None:
        return calls.created[place]
    return 0


def roots(found: Iterable[GroupFinding]) -> None:
    """Fill `root`: the group whose hang holds the missing ranks of this one.

    It is "" where a group is a root itself.  A group depends on another where each of its missing
    ranks waits in that one.  Groups that wait for each other in a circle are all roots: their
    collectives were launched in different order.
    """
    stops = list(found)
    holder: dict[int, int] = {}
    for number, stop in enumerate(stops):
        missing = set(stop.missing)
        others = [
            n for n, other in enumerate(stops) if n != number and missing <= set(other.waiting)
        ]
        if missing and others:
            holder[number] = others[0]
    for number, stop in enumerate(stops):
        seen = {number}
        root = number
        while root in holder and holder[root] not in seen:
            root = holder[root]
            seen.add(root)
        stop.fields["root"], stop.fields["holds"] = "", []
        if root != number and root not in holder:
            stop.fields["root"] = stops[root].group.name
            stop.text.append(
                f"  only a consequence: {listed(stop.missing)} wait in {stops[root].group.title}"
            )
    for stop in stops:
        stop.fields["holds"] = [
            other.group.name for other in stops if other.fields["root"] == stop.group.name
        ]
        if stop.fields["holds"]:
            stop.text.append(
                f"  because of it wait: {len(stop.fields['holds'])} other groups,"
                f" {', '.join(stop.fields['holds'][:SHOWN])}"
            )


Pair = tuple[int, int]
"""Global ranks of sender and receiver."""


def unpaired(group: Group) -> Iterator[GroupFinding]:
    """One finding per pair of ranks whose sends and receives do not match."""
    sends, receives, open_ended = _collect_pairs(group)
    for pair in sorted(sends.keys() | receives.keys()):
        src, dst = pair
        if src in group.dumps and dst in group.dumps:
            found = _differing_pair(
                group, pair, sends.get(pair, []), receives.get(pair, []), open_ended
            )
            if found is not None:
                yield found


def _collect_pairs(
    group: Group,
) -> tuple[dict[Pair, list[int]], dict[Pair, list[int]], Counter[int]]:
    """Places of sends and of receives by pair.

    It tells also how many receives from any source each rank has.
    """
    sends: dict[Pair, list[int]] = {}
    receives: dict[Pair, list[int]] = {}
    anybody: Counter[int] = Counter()
    size = len(group.members)
    for rank, calls in group.pairs.items():
        kinds = group.sources[rank].kinds
        for place, number in enumerate(calls.kinds):
            kind = kinds[number]
            if kind.op == "send" and kind.dst is not None and kind.dst < size:
                sends.setdefault((rank, group.members[kind.dst]), []).append(place)
            elif kind.op == "recv" and kind.src is None and kind.dst is not None:
                anybody[rank] += 1
            elif kind.op == "recv" and kind.src is not None and kind.src < size:
                receives.setdefault((group.members[kind.src], rank), []).append(place)
    return sends, receives, anybody


def _differing_pair(
    group: Group, pair: Pair, sends: list[int], receives: list[int], anybody: Counter[int]
) -> GroupFinding | None:
    src, dst = pair
    if group.dumps[src].dropped or group.dumps[dst].dropped:
        # what the others were paired with may be among the calls that a dump has lost
        sends = [place for place in sends if group.pairs[src].open[place]]
        receives = [place for place in receives if group.pairs[dst].open[place]]
    # a receive from anybody takes what no other one waits for
    wild = min(anybody[dst], max(0, len(sends) - len(receives)))
    anybody[dst] -= wild
    sent = len(sends)
    received = len(receives) + wild
    counts = (sent, received)
    if sent > received and group.pairs[src].open[sends[received]]:
        return _stop_of_pair(group, pair, counts, [src], src, sends[received], None)
    if received > sent and group.pairs[dst].open[receives[sent]]:
        return _stop_of_pair(group, pair, counts, [dst], dst, receives[sent], None)
    # with receives from anybody nobody knows which send met which receive
    if wild:
        return None
    return _unequal_sizes(group, pair, sends, receives)


def _unequal_sizes(
    group: Group, pair: Pair, sends: list[int], receives: list[int]
) -> GroupFinding | None:
    """The first send of which the other side expects another number of elements."""
    src, dst = pair
    counts = (len(sends), len(receives))
    for send, receive in zip(sends, receives, strict=False):
        sizes = _elements_of_call(group, src, send), _elements_of_call(group, dst, receive)
        if None in sizes or sizes[0] == sizes[1]:
            continue
        waiting = []
        for rank, place in ((src, send), (dst, receive)):
            if group.pairs[rank].open[place]:
                waiting.append(rank)
        return _stop_of_pair(group, pair, counts, waiting, src, send, sizes)
    return None


def _elements_of_call(group: Group, rank: int, place: int) -> int | None:
    kind = group.sources[rank].kinds[group.pairs[rank].kinds[place]]
    if kind.op == "send":
        return kind.inputs.total
    return kind.outputs.total


def _stop_of_pair(
    group: Group,
    pair: Pair,
    counts: tuple[int, int],
    waiting: list[int],
    rank: int,
    place: int,
    sizes: tuple[int | None, int | None] | None,
) -> GroupFinding:
    src, dst = pair
    if sizes:
        lacking = []
    else:
        lacking = [dst if rank == src else src]
    data = {
        "src": src,
        "dst": dst,
        "sent": counts[0],
        "received": counts[1],
        "sizes": list(sizes) if sizes else None,
        "waiting": waiting,
        "lacking": lacking,
    }
    text = [f"{group.title}: rank {src} to rank {dst}: sends {counts[0]}, receives {counts[1]}"]
    call = group.sources[rank].word(group.pairs[rank], place)
    if sizes:
        text += [f"  a send of {sizes[0]} elements meets a receive of {sizes[1]}: {call}"]
    else:
        text += [
            f"  rank {rank} waits: {call}",
            f"  rank {lacking[0]} never made the matching call",
        ]
        newest = group.dumps[lacking[0]].newest
        text += [f"    its last was {group.dumps[lacking[0]].word(*newest)}"] if newest else []
    return GroupFinding("flight.p2p", group, data, text, waiting or [src], lacking, waiting)


SECOND = 10**9
LEAST = SECOND
"""Lateness that is worth a word, in nanoseconds."""
BEYOND = 5
"""A late entry lies this many times above the usual spread."""
SAMPLE = 33
"""Collectives from which the difference of clocks is estimated."""
FEW = 8
BLIND = 60 * SECOND
"""Lateness that is claimed across hosts without such an estimate.

Clocks are seldom that wrong.
"""
WORST = 16
"""Ranks that an event names."""


MOSTLY, WORTH = 2 / 3, SECOND // 1000
"""Share of a running job's collectives to which one rank comes last; spread worth a word."""


def find_straggler(
    group: Group, hosts: Mapping[int, str], goes_on: bool = False
) -> GroupFinding | None:
    """The collective for which one rank let the others wait longest.

    It is None where nobody was late.  `goes_on`: the job was seen to make calls; then a rank that
    comes last to most of them is late.
    """
    columns = _columns_of_times(group)
    if len(columns) < 2:
        return None
    ranks = list(columns)
    times = list(columns.values())
    names = {hosts.get(rank, "") for rank in ranks}
    one_clock = len(names) == 1 and "" not in names
    if not one_clock:
        times = _corrected_times(ranks, times, hosts)
    spreads = []
    lasts = Counter[int]()
    for row in zip(*times, strict=True):
        last = max(row)
        spreads.append(last - min(row))
        lasts[row.index(last)] += 1
    usual = 0
    if len(spreads) >= FEW:
        usual = median(spreads)
    number = max(range(len(spreads)), key=spreads.__getitem__)
    found = [column[number] for column in times]
    middle = _lower_median(found)
    behind = max(found) - middle
    blind = not one_clock and len(spreads) < FEW
    latest, often = lasts.most_common(1)[0]
    if goes_on and one_clock and usual >= WORTH and often >= MOSTLY * len(spreads):
        behind_of = [row[latest] - _lower_median(row) for row in zip(*times, strict=True)]
        number = max(range(len(behind_of)), key=behind_of.__getitem__)
        seconds = {ranks[latest]: round(behind_of[number] / SECOND, 3)}
        return _late_stop(group, number, seconds, usual, often, len(spreads))
    if behind < max(LEAST, BEYOND * usual, BLIND if blind else 0):
        return None
    order = sorted(range(len(found)), key=lambda place: -found[place])[:WORST]
    seconds = {
        ranks[place]: round((found[place] - middle) / SECOND, 3)
        for place in order
        if found[place] > middle
    }
    return _late_stop(group, number, seconds, usual, lasts[order[0]], len(spreads))


def _lower_median(times: Iterable[int]) -> int:
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 2]


def _columns_of_times(group: Group) -> dict[int, array[int]]:
    """rank → when it called each collective that all ranks still hold.

    Only ranks with records count; {} where they do not line up.
    """
    calls = {rank: c for rank, c in sorted(group.calls.items()) if len(c)}
    low = max((c.seqs[0] for c in calls.values()), default=0)
    high = min((c.seqs[-1] for c in calls.values()), default=-1)
    found = {
        r: c.created[bisect_left(c.seqs, low) : bisect_right(c.seqs, high)]
        for r, c in calls.items()
    }
    whole = all(
        len(column) == len(found[min(found)]) and 0 not in column for column in found.values()
    )
    if found and whole and len(found[min(found)]):
        return found
    return {}


def _corrected_times(
    ranks: list[int], times: list[array[int]], hosts: Mapping[int, str]
) -> list[array[int]]:
    """Times on a common clock.

    Each host's usual distance from the middle is taken off.
    """
    count = len(times[0])
    if count < FEW:
        return times
    sample = range(0, count, max(1, count // SAMPLE))
    middles = [median(column[place] for column in times) for place in sample]
    own = [
        median(column[place] - middle for place, middle in zip(sample, middles, strict=True))
        for column in times
    ]
    clocks: dict[str | int, list[float]] = {}
    for rank, distance in zip(ranks, own, strict=True):
        clocks.setdefault(hosts.get(rank) or rank, []).append(distance)
    offsets = [int(median(clocks[hosts.get(rank) or rank])) for rank in ranks]
    found: list[array[int]] = []
    for c, o in zip(times, offsets, strict=True):
        if o:
            found.append(array("q", [t - o for t in c]))
        else:
            found.append(c)
    return found


def _late_stop(
    group: Group, number: int, seconds: dict[int, float], usual: float, often: int, of: int
) -> GroupFinding:
    worst = next(iter(seconds))
    calls = group.calls[worst]
    low = max(c.seqs[0] for c in group.calls.values() if len(c))
    place = bisect_left(calls.seqs, low) + number
    data = {
        "seq": calls.seqs[place],
        "op": group.kind(worst, place).op,
        "seconds": {str(rank): value for rank, value in seconds.items()},
        "worst": worst,
        "usual": round(usual / SECOND, 3),
        "last_in": often,
        "of": of,
    }
    text = [
        (
            f"{group.title}: rank {worst} entered collective {data['seq']} {data['op']}"
            f" {seconds[worst]:.1f} s after the middle of its {len(group.calls)} ranks (usual"
            f" spread {data['usual']} s; last in {often} of {of} collectives)"
        ),
        f"  rank {worst}: {group.word(worst, place)}",
    ]
    return GroupFinding("flight.late", group, data, text, [worst])
