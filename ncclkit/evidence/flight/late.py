"""Who entered a collective last, and by how much: from the times at which the ranks called it.

Clocks of hosts differ, so ranks of one host are compared as they stand; those of different hosts only against what
the two clocks usually differ by, the middle of many collectives.  Where no host is known every rank may have a clock
of its own: then a rank that is always late looks like one whose clock is wrong, and only the exception is claimed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from statistics import median

from ncclkit.evidence.flight.groups import Group
from ncclkit.evidence.flight.hang import Stop

SECOND = 10**9
LEAST = SECOND
"""Lateness that is worth a word, in nanoseconds."""
BEYOND = 5
"""A late entry lies this many times above the usual spread."""
SAMPLE = 33
"""Collectives from which the difference of clocks is estimated."""
FEW = 8
BLIND = 60 * SECOND
"""Lateness that is claimed across hosts without such an estimate; clocks are seldom that wrong."""
WORST = 16
"""Ranks that an event names."""


def late(group: Group, hosts: Mapping[int, str]) -> Stop | None:
    """The collective of a group for which one rank let the others wait longest; None where nobody was late."""
    columns = _columns(group)
    if len(columns) < 2:
        return None
    ranks, times = list(columns), list(columns.values())
    names = {hosts.get(rank, "") for rank in ranks}
    one_clock = len(names) == 1 and "" not in names
    if not one_clock:
        times = _corrected(ranks, times, hosts)
    spreads, lasts = [], Counter[int]()
    for row in zip(*times, strict=True):
        last = max(row)
        spreads.append(last - min(row))
        lasts[row.index(last)] += 1
    usual = median(spreads) if len(spreads) >= FEW else 0
    number = max(range(len(spreads)), key=spreads.__getitem__)
    found = [column[number] for column in times]
    middle = sorted(found)[(len(found) - 1) // 2]
    behind = max(found) - middle
    blind = not one_clock and len(spreads) < FEW
    if behind < max(LEAST, BEYOND * usual, BLIND if blind else 0):
        return None
    order = sorted(range(len(found)), key=lambda place: -found[place])[:WORST]
    seconds = {ranks[place]: round((found[place] - middle) / SECOND, 3) for place in order if found[place] > middle}
    return _stop(group, number, seconds, usual, lasts[order[0]], len(spreads))


def _columns(group: Group) -> dict[int, array[int]]:
    """rank → when it called each collective that all ranks with records still hold; {} where they do not line up."""
    calls = {rank: c for rank, c in sorted(group.calls.items()) if len(c)}
    low = max((c.seqs[0] for c in calls.values()), default=0)
    high = min((c.seqs[-1] for c in calls.values()), default=-1)
    found = {r: c.created[bisect_left(c.seqs, low) : bisect_right(c.seqs, high)] for r, c in calls.items()}
    whole = all(len(column) == len(found[min(found)]) and 0 not in column for column in found.values())
    return found if found and whole and len(found[min(found)]) else {}


def _corrected(ranks: list[int], times: list[array[int]], hosts: Mapping[int, str]) -> list[array[int]]:
    """Times on a common clock: each host's usual distance from the middle taken off."""
    count = len(times[0])
    if count < FEW:
        return times
    sample = range(0, count, max(1, count // SAMPLE))
    middles = [median(column[place] for column in times) for place in sample]
    own = [median(column[place] - middle for place, middle in zip(sample, middles, strict=True)) for column in times]
    clocks: dict[str | int, list[float]] = {}
    for rank, distance in zip(ranks, own, strict=True):
        clocks.setdefault(hosts.get(rank) or rank, []).append(distance)
    offsets = [int(median(clocks[hosts.get(rank) or rank])) for rank in ranks]
    return [array("q", [t - o for t in c]) if o else c for c, o in zip(times, offsets, strict=True)]


def _stop(group: Group, number: int, seconds: dict[int, float], usual: float, often: int, of: int) -> Stop:
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
        f"{group.title}: rank {worst} entered collective {data['seq']} {data['op']} {seconds[worst]:.1f} s after the "
        f"middle of its {len(group.calls)} ranks (usual spread {data['usual']} s; last in {often} of {of} collectives)",
        f"  rank {worst}: {group.word(worst, place)}",
    ]
    return Stop("flight.late", group, data, text, [worst])
