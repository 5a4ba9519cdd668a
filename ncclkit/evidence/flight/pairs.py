"""Sends and receives of two ranks that do not pair up: one is left over, or their sizes differ.

The n-th send from one rank to another pairs with the n-th receive there.  Where a ring buffer overwrote older calls
only those still open are compared.  A receive from any source takes what is left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclkit.evidence.flight.groups import Group
from ncclkit.evidence.flight.hang import Stop

Pair = tuple[int, int]
"""Global ranks of sender and receiver."""


def unpaired(group: Group) -> Iterator[Stop]:
    """One finding per pair of ranks whose sends and receives do not match."""
    sends, receives, open_ended = _collect(group)
    for pair in sorted(sends.keys() | receives.keys()):
        src, dst = pair
        if src in group.dumps and dst in group.dumps:
            found = _differ(group, pair, sends.get(pair, []), receives.get(pair, []), open_ended)
            if found is not None:
                yield found


def _collect(group: Group) -> tuple[dict[Pair, list[int]], dict[Pair, list[int]], Counter[int]]:
    """Places of sends and of receives by pair, and how many receives from any source each rank has."""
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


def _differ(group: Group, pair: Pair, sends: list[int], receives: list[int], anybody: Counter[int]) -> Stop | None:
    src, dst = pair
    if group.dumps[src].dropped or group.dumps[dst].dropped:
        sends = [place for place in sends if group.pairs[src].open[place]]
        receives = [place for place in receives if group.pairs[dst].open[place]]
    wild = min(anybody[dst], max(0, len(sends) - len(receives)))
    anybody[dst] -= wild
    sent, received = len(sends), len(receives) + wild
    if sent > received and group.pairs[src].open[sends[received]]:
        return _stop(group, pair, (sent, received), [src], src, sends[received], None)
    if received > sent and group.pairs[dst].open[receives[sent]]:
        return _stop(group, pair, (sent, received), [dst], dst, receives[sent], None)
    if not wild:
        for a, b in zip(sends, receives, strict=False):
            sizes = _elements(group, src, a), _elements(group, dst, b)
            if None not in sizes and sizes[0] != sizes[1]:
                waiting = [rank for rank, at in ((src, a), (dst, b)) if group.pairs[rank].open[at]]
                return _stop(group, pair, (sent, received), waiting, src, a, sizes)
    return None


def _elements(group: Group, rank: int, place: int) -> int | None:
    kind = group.sources[rank].kinds[group.pairs[rank].kinds[place]]
    return kind.inputs.total if kind.op == "send" else kind.outputs.total


def _stop(
    group: Group,
    pair: Pair,
    counts: tuple[int, int],
    waiting: list[int],
    rank: int,
    place: int,
    sizes: tuple[int | None, int | None] | None,
) -> Stop:
    src, dst = pair
    lacking = [] if sizes else [dst if rank == src else src]
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
        text += [f"  rank {rank} waits: {call}", f"  rank {lacking[0]} never made the matching call"]
        newest = group.dumps[lacking[0]].newest
        text += [f"    its last was {group.dumps[lacking[0]].word(*newest)}"] if newest else []
    return Stop("flight.p2p", group, data, text, waiting or [src], lacking, waiting)
