"""Where a process group stands still: who never entered, or everybody inside; and which group's hang is the root."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ncclkit.evidence.flight.groups import SHOWN, Group, listed
from ncclkit.evidence.grammars.grammar import Data

ALONE = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather"})
"""Operations that a rank can have behind it although another one never came."""


@dataclass(slots=True, eq=False)
class Stop:
    """One finding about one group: an event before it is known what depends on what."""

    kind: str
    group: Group
    data: Data
    """Without what every finding says of its group."""
    text: list[str]
    ranks: list[int]
    """Ranks that the finding is about, for its path and rank."""
    missing: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


def stops(group: Group) -> Iterator[Stop]:
    """Who is missing, or that everybody is inside; nothing where the dumps show no hang."""
    last, lost = _last(group)
    waits = {rank: seq for rank, seq in group.waits().items() if rank in last}
    if not last:
        return
    least = min(last.values())
    seq = min((seq for seq in waits.values() if seq <= least), default=None)
    inside = [rank for rank, place in waits.items() if place == seq]
    entered = [rank for rank, reached in last.items() if reached >= 0]
    if len(set(last.values())) > 1 and 2 * len(inside) <= len(last):
        yield from _gap(group, last, waits, lost)
    elif seq is not None and (group.no_dump or lost):
        if len(inside) == len(entered):
            yield _missing(group, seq, last, [], inside, lost)
    elif seq is not None and len(group.members) > 1 and 2 * len(inside) > len(group.members):
        yield _stuck(group, seq, inside)


def _last(group: Group) -> tuple[dict[int, int], list[int]]:
    """rank → its last sequence number, -1 where it never entered; and ranks whose record was overwritten.

    A ring buffer keeps the newest calls of all groups.  Where none of this group is left, the rank may have been in
    it long ago; only what others entered after the oldest call that it still holds would have to be there.
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


def _gap(group: Group, last: dict[int, int], waits: dict[int, int], lost: list[int]) -> Iterator[Stop]:
    """Ranks that never entered a collective in which others wait, or that others have behind them."""
    least = min(last.values())
    waited = [seq for seq in waits.values() if seq > least]
    seq = min(waited or [_after(group, rank, least) for rank in last if last[rank] > least])
    waiting = [rank for rank, reached in last.items() if reached >= seq]
    if waited or any(_may_lie(group, rank, seq) for rank in waiting):
        yield _missing(group, seq, last, [rank for rank, reached in last.items() if reached < seq], waiting, lost)


def _after(group: Group, rank: int, seq: int) -> int:
    seqs = group.calls[rank].seqs
    return seqs[bisect_left(seqs, seq + 1)]


def _may_lie(group: Group, rank: int, seq: int) -> bool:
    """True unless NCCL says that the call is complete, which needs every rank to have entered it."""
    place = group.calls[rank].at(seq)
    if place is None:
        return True
    kind = group.kind(rank, place)
    return kind.library != "nccl" or kind.op in ALONE or group.state(rank, place) != "completed"


def _missing(
    group: Group, seq: int, last: dict[int, int], missing: list[int], waiting: list[int], lost: list[int]
) -> Stop:
    place = group.calls[waiting[0]].at(seq)
    newest = group.dumps[missing[0]].newest if missing else None
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
        text += [f"    rank {rank}: last was {_newest(group, rank)}" for rank in missing[:SHOWN]]
    text += [f"  no dump: {listed(group.no_dump)}"] if group.no_dump else []
    text += [f"  record overwritten, nothing is known: {listed(lost)}"] if lost else []
    return Stop("flight.missing", group, data, text, missing or waiting, missing, waiting)


def _newest(group: Group, rank: int) -> str:
    dump = group.dumps[rank]
    return dump.word(*dump.newest) if dump.newest else "nothing"


def _stuck(group: Group, seq: int, inside: list[int]) -> Stop:
    """Every member launched the same collective and nobody, or the smaller part, finished it."""
    places = {rank: calls.at(seq) for rank, calls in group.calls.items()}
    states = {str(rank): "completed" if p is None else group.state(rank, p) for rank, p in places.items()}
    states |= {str(rank): "completed" for rank in group.calls if rank not in inside}
    op = next(group.kind(rank, place).op for rank, place in places.items() if place is not None)
    counts = ", ".join(f"{state} on {number}" for state, number in Counter(states.values()).items())
    done = [rank for rank in group.calls if rank not in inside]
    data = {"seq": seq, "op": op, "ranks": sorted(places), "states": states}
    whom = f"completed only by {listed(done)}" if done else "completed by none"
    text = [f"{group.title}: collective {seq} {op} launched by all, {whom} ({counts})"]
    return Stop("flight.stuck", group, data, text, [], [], inside)


def roots(found: Iterable[Stop]) -> None:
    """Fill `root`: the group whose hang holds the missing ranks of this one; "" where it is a root itself.

    A group depends on another where each of its missing ranks waits in that one.  Groups that wait for each other in
    a circle are all roots: their collectives were launched in different order.
    """
    stops = list(found)
    holder: dict[int, int] = {}
    for number, stop in enumerate(stops):
        missing = set(stop.missing)
        others = [n for n, other in enumerate(stops) if n != number and missing <= set(other.waiting)]
        if missing and others:
            holder[number] = others[0]
    for number, stop in enumerate(stops):
        seen, root = {number}, number
        while root in holder and holder[root] not in seen:
            root = holder[root]
            seen.add(root)
        stop.data["root"], stop.data["holds"] = "", []
        if root != number and root not in holder:
            stop.data["root"] = stops[root].group.name
            stop.text.append(f"  only a consequence: {listed(stop.missing)} wait in {stops[root].group.title}")
    for stop in stops:
        stop.data["holds"] = [other.group.name for other in stops if other.data["root"] == stop.group.name]
        if stop.data["holds"]:
            stop.text.append(
                f"  because of it wait: {len(stop.data['holds'])} other groups, {', '.join(stop.data['holds'][:SHOWN])}"
            )
