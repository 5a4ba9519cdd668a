"""What the log says of a job's communicators: their members, how pairs are connected, rings, variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ncclkit.analysis.members import Communicator, Fits, Index
from ncclkit.core.model import Event

__all__ = ["Communicator", "Transport", "communicators", "rings", "transports", "variables"]


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
    """(sender, receiver) → how they are connected, in global ranks where the communicator is known."""
    index, found = Index(events), defaultdict(list)
    for event in events:
        if event.kind == "nccl.channel" and None not in (event.data["src"], event.data["dst"]):
            pair = event.data["src"], event.data["dst"]
            made = index.at(event, _pair_fits(pair))
            known = made.ranks if made else {}
            whole = made is None or made.size == index.world  # then a rank that printed nothing still has its number
            source, target = (known.get(rank, rank if whole else None) for rank in pair)
            if source is not None and target is not None:
                found[source, target].append(event)
    return {pair: _link(lines) for pair, lines in sorted(found.items())}


def _pair_fits(pair: tuple[int, int]) -> Fits:
    return lambda made, rank: rank in pair and max(pair) < made.size


def _link(lines: list[Event]) -> Transport:
    """Both ends of a pair may say it, each with its own device: the end that names more channels counts."""
    ends: dict[bool, int] = defaultdict(int)
    for line in lines:
        ends["[receive]" in line.text] += line.data["channels"]
    ways = sorted(lines, key=lambda line: -line.data["channels"])
    net = [line.data["gdr"] for line in lines if line.data["via"] == "NET"]
    joined = [" / ".join(dict.fromkeys(str(line.data[name]) for line in ways)) for name in ("via", "transport")]
    return Transport(joined[0], joined[1], max(ends.values()), bool(net) and all(net))


def rings(events: Sequence[Event]) -> dict[int, list[int]]:
    """Channel → ranks in the order of the ring, of the largest communicator.

    A ring whose length is not the communicator's size is the longest piece that the lines tell.
    """
    whole: dict[int, list[int]] = {}
    after: dict[int, dict[int, int]] = defaultdict(dict)
    for event in _planned(events):
        order = event.data["order"]
        if None in (event.data["channel"], *order):  # a torn line
            continue
        if event.data["whole"]:
            whole[event.data["channel"]] = list(order)
        else:
            after[event.data["channel"]].update(zip(order, order[1:], strict=False))
    found = {channel: _walk(follows) for channel, follows in after.items()} | whole
    return dict(sorted(found.items())) or _from_links(transports(events))


def _planned(events: Sequence[Event]) -> Iterator[Event]:
    """The lines of rings that a process prints while it sets up the largest communicator."""
    index = Index(events)
    largest = max(index.all, key=lambda made: made.size, default=None)
    for event in events:
        if event.kind == "nccl.ring" and index.at(event) in (None, largest):
            yield event


def _walk(follows: Mapping[int, int]) -> list[int]:
    """The longest way along these successors."""
    starts = sorted(follows.keys() - follows.values()) or sorted(follows)[:1]
    return max((_chain(follows, start) for start in starts), key=len, default=[])


def _chain(follows: Mapping[int, int], start: int) -> list[int]:
    seen = {start: None}
    while (start := follows.get(start, start)) not in seen:
        seen[start] = None
    return list(seen)


def _from_links(links: Mapping[tuple[int, int], Transport]) -> dict[int, list[int]]:
    """Where every rank sends to one other rank only, over as many channels, the pairs are the ring of each channel."""
    follows = dict(links.keys())
    widths = {link.channels for link in links.values()}
    order = _walk(follows)
    if len(follows) != len(links) or len(widths) != 1 or len(order) != len(links) or len(order) < 2:
        return {}
    return {channel: list(order) for channel in range(widths.pop())}


def variables(events: Iterable[Event]) -> dict[str, dict[str, list[int | str]]]:
    """NCCL variable → value → who read it: global ranks, or hosts where the rank is not known."""
    found: dict[str, dict[str, dict[int | str, None]]] = defaultdict(lambda: defaultdict(dict))
    for event in events:
        if event.kind == "nccl.env":
            who = event.rank if event.rank is not None else event.host
            found[str(event.data["name"])][str(event.data["value"])][who] = None
    return {name: {value: sorted(who, key=str) for value, who in by.items()} for name, by in sorted(found.items())}
