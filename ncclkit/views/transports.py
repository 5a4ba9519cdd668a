"""Which pair of ranks goes over which transport, and how the rings run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ncclkit.analysis import communicators
from ncclkit.core.case import Case
from ncclkit.core.text import MANY, plural, some
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, el, fit, join, table

EACH = 64
"""Up to here the matrix has a row for each rank; beyond, one for each host."""
NOTHING = "the logs hold no line of NCCL about it; NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET prints it"

Pair = tuple[int, int]
Links = Mapping[Pair, str]
"""(sender, receiver) → transport in words."""
Orders = Mapping[tuple[int, ...], Sequence[int]]
"""Ranks in the order of a ring, from the lowest on → its channels."""


def transports_view(case: Case) -> View:
    """The pairs of ranks that NCCL connected, by transport; the odd ones first."""
    links = _links(case)
    if not links:
        return View(f"Nothing is known of the transports: {NOTHING}", Markup(""))
    kinds = _kinds(links)
    hosts = _hosts(case)
    rows = [
        (kind, f"{len(kinds[kind]):,}", _pairs(kinds[kind]), _places(kinds[kind], hosts)) for kind in reversed(kinds)
    ]
    names, placed, what = _axes(links, hosts)
    figure = _draw.matrix({kind: _placed(kinds[kind], placed) for kind in kinds}, names, what)
    head = ("Transport", "Pairs", "Which ranks", "Hosts")
    return Drawn(_summary(kinds), figure, fit(table(head, rows)))


def rings_view(case: Case) -> View:
    """The rings: which rank follows which, and where a ring leaves its host."""
    known = communicators.rings(case.events)
    if not known:
        return View(f"Nothing is known of the rings: {NOTHING}", Markup(""))
    orders: dict[tuple[int, ...], list[int]] = {}
    for channel, order in sorted(known.items()):
        orders.setdefault(_turned(order), []).append(channel)
    ranked = sorted(orders, key=lambda order: -len(orders[order]))
    hosts, links = _hosts(case), _links(case)
    body = table(("Channels", "Order"), [(some(orders[order]), _order(order, hosts)) for order in ranked])
    return Drawn(_rings_summary(orders, ranked[0], hosts), _ring(ranked[0], hosts, links), fit(body))


def _links(case: Case) -> dict[Pair, str]:
    return {pair: _words(link.transport, link.gdr) for pair, link in communicators.transports(case.events).items()}


def _words(transport: str, gdr: bool) -> str:
    """``P2P/CUMEM``, ``NET/IB with GPUDirect RDMA``: without the number of the device."""
    ways = dict.fromkeys("/".join(way.split("/")[:2]) for way in transport.split(" / "))
    return " and ".join(ways) + (" with GPUDirect RDMA" if gdr else "")


def _kinds(links: Links) -> dict[str, list[Pair]]:
    """Transport → its pairs, the most frequent first."""
    kinds: dict[str, list[Pair]] = {}
    for pair, words in sorted(links.items()):
        kinds.setdefault(words, []).append(pair)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def _summary(kinds: Mapping[str, Sequence[Pair]]) -> str:
    (usual, pairs), *others = kinds.items()
    if not others:
        return f"All {plural(len(pairs), 'pair')} of ranks that NCCL connected go over {usual}"
    rest = ", ".join(f"{len(found):,} over {words}" for words, found in others)
    return f"{plural(len(pairs), 'pair')} of ranks over {usual}; {rest}"


def _hosts(case: Case) -> dict[int, str]:
    """rank → its host, as the communicators say, or else its own lines."""
    said = {event.rank: event.host for event in case.events if event.rank is not None and event.host}
    for comm in communicators.communicators(case.events):
        said |= {comm.ranks[rank]: host for rank, (host, _bus) in comm.members.items() if host and rank in comm.ranks}
    return said


def _axes(links: Links, hosts: Mapping[int, str]) -> tuple[list[str], dict[int, int], str]:
    """Names along the axes, the place of each rank among them, and what a name is."""
    ranks = sorted({rank for pair in links for rank in pair})
    if len(ranks) <= EACH or any(rank not in hosts for rank in ranks):
        return [str(rank) for rank in ranks], {rank: place for place, rank in enumerate(ranks)}, "rank"
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    places = {name: place for place, name in enumerate(names)}
    return names, {rank: places[hosts[rank]] for rank in ranks}, "host"


def _placed(pairs: Iterable[Pair], places: Mapping[int, int]) -> list[Pair]:
    return list(dict.fromkeys((places[src], places[dst]) for src, dst in pairs))


def _pairs(pairs: Sequence[Pair]) -> str:
    shown = ", ".join(f"{src} → {dst}" for src, dst in pairs[:MANY])
    return shown + (f" and {len(pairs) - MANY:,} more" if len(pairs) > MANY else "")


def _places(pairs: Iterable[Pair], hosts: Mapping[int, str]) -> str:
    """The hosts that the pairs lie in or connect."""
    ends = [(hosts.get(src, ""), hosts.get(dst, "")) for src, dst in pairs]
    inside = sorted({a for a, b in ends if a and a == b})
    across = sum(a != b for a, b in ends)
    parts = (f"inside {some(inside)}" if inside else "", f"{plural(across, 'pair')} between hosts" if across else "")
    return "; ".join(filter(None, parts)) or "–"


def _turned(order: Sequence[int]) -> tuple[int, ...]:
    """The same ring, from its lowest rank on."""
    at = order.index(min(order))
    return (*order[at:], *order[:at])


def _steps(order: Sequence[int], hosts: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Neighbours on one host together, where a ring is too long to name every rank."""
    if len(order) <= _draw.LABELLED:
        return [(str(rank), [rank]) for rank in order]
    return [(host or "unknown host", list(ranks)) for host, ranks in groupby(order, lambda rank: hosts.get(rank, ""))]


def _order(order: Sequence[int], hosts: Mapping[int, str]) -> Markup:
    steps = _steps(order, hosts)
    named = [name if len(ranks) == 1 else f"{name} ({some(ranks)})" for name, ranks in steps[:MANY]]
    more = f" → … {len(steps) - MANY:,} more" if len(steps) > MANY else ""
    return join(" → ".join(named), more, el("span", f" → {named[0]}", cls="nk-dim") if not more else "")


def _ring(order: Sequence[int], hosts: Mapping[int, str], links: Links) -> object:
    steps = _steps(order, hosts)
    ends = [(ranks[-1], after[0]) for (_, ranks), (_, after) in zip(steps, [*steps[1:], steps[0]], strict=True)]
    joined = [links.get(pair, "not in the logs") for pair in ends]
    kinds = sorted(dict.fromkeys(joined), key=lambda kind: -joined.count(kind))
    return _draw.ring([name for name, _ in steps], joined, kinds)


def _rings_summary(orders: Orders, first: tuple[int, ...], hosts: Mapping[int, str]) -> str:
    channels = sum(len(found) for found in orders.values())
    places = [hosts.get(rank, "") for rank in first]
    crossings = sum(a != b for a, b in zip(places, [*places[1:], places[0]], strict=True))
    shape = "the same ring" if len(orders) == 1 else f"{len(orders)} different rings"
    across = f", which changes host {crossings:,} times" if crossings and len(orders) == 1 else ""
    run = f"{plural(channels, 'channel')} run{'s' if channels == 1 else ''}"
    return f"{run} {shape} over {plural(len(first), 'rank')}{across}"
