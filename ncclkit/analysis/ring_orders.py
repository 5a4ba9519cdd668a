"""The rings of a job.

They tell which ranks follow each other, over which channels, on which hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ncclkit.analysis import communicators
from ncclkit.core.case import Case

Order = tuple[int, ...]
"""Ranks in the order of a ring, from the lowest on."""


def channels_by_order(case: Case) -> dict[Order, list[int]]:
    """Different orders of the rings → their channels, the most frequent order first."""
    known = communicators.rings(case.events)
    orders: dict[Order, list[int]] = {}
    for channel, order in sorted(known.items()):
        turned = from_lowest_rank(order)
        orders.setdefault(turned, []).append(channel)
    return dict(sorted(orders.items(), key=lambda item: -len(item[1])))


def from_lowest_rank(order: Sequence[int]) -> Order:
    """The same ring, from its lowest rank on."""
    start = order.index(min(order))
    return (*order[start:], *order[:start])


def hosts_of_ranks(case: Case) -> dict[int, str]:
    """Rank → its host, as the communicators say, or else its own lines."""
    hosts: dict[int, str] = {}
    for event in case.events:
        if event.rank is not None and event.host:
            hosts[event.rank] = event.host
    for comm in communicators.communicators(case.events):
        for member, (host, _bus) in comm.members.items():
            if host and member in comm.ranks:
                hosts[comm.ranks[member]] = host
    return hosts


def host_changes(order: Sequence[int], hosts: Mapping[int, str]) -> int:
    """How often a ring leaves a host."""
    places = [hosts.get(rank, "") for rank in order]
    # the last rank is followed by the first
    following = [*places[1:], places[0]]
    return sum(here != there for here, there in zip(places, following, strict=True))


def neighbours_by_host(
    order: Sequence[int], hosts: Mapping[int, str]
) -> list[tuple[str, list[int]]]:
    """Host → ranks that follow each other on it, in the order of the ring."""
    found = []
    for host, ranks in groupby(order, lambda rank: hosts.get(rank, "")):
        found.append((host, list(ranks)))
    return found
