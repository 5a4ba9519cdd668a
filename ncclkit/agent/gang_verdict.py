"""Which node of a gang is bad, by the pairs and groups that were tried.

A pair that fails accuses two nodes; only a node that fails with several others, which work with
each other, is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

Pair = tuple[int, int]

SUSPECT, ENOUGH = 2, 3
"""Partners with which a node must fail before it is spared others, and before it is named.

On hosts that are busy healthy pairs are late, too; of three nodes each has only two partners.
"""
RARE = 4
"""A node that works once for so many failures is still named; more often, and nobody can tell."""
SLOW = 0.3
"""Share of the usual speed of a pair below which one is slow."""
FEWEST = 3
"""Pairs of a node whose speed is known, before it is called slow."""


class PairResult(NamedTuple):
    """What came of a pair of nodes."""

    works: bool
    speed: float | None = None
    """Bytes of the message per second."""
    why: str = ""


class Named(NamedTuple):
    """A node that is bad, and why."""

    node: int
    say: str


def rounds_of(nodes: Iterable[int]) -> list[list[Pair]]:
    """Every pair of nodes once, in rounds in which each node has one partner at most."""
    places: list[int | None] = [*nodes]
    if len(places) % 2:
        places.append(None)
    half = len(places) // 2
    rounds = []
    for _ in range(len(places) - 1):
        pairs = []
        for left, right in zip(places[:half], reversed(places[half:])):
            if left is not None and right is not None:
                pairs.append((min(left, right), max(left, right)))
        rounds.append(pairs)
        # the first stays, all others move on by one place
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def failing_nodes(results: Mapping[Pair, PairResult], enough: int = ENOUGH) -> list[Named]:
    """Nodes that fail with nearly all of their partners, where these work with others."""
    works: dict[int, list[int]] = {}
    fails: dict[int, list[int]] = {}
    whys: dict[int, str] = {}
    for (left, right), result in results.items():
        counts = fails
        if result.works:
            counts = works
        for node, partner in ((left, right), (right, left)):
            counts.setdefault(node, []).append(partner)
            if not result.works:
                whys.setdefault(node, result.why)
    suspects = set()
    for node, partners in fails.items():
        if len(partners) >= enough and len(partners) >= RARE * len(works.get(node, ())):
            suspects.add(node)
    found = []
    for node in sorted(suspects):
        # where everything fails all are suspects, and nobody is left to accuse them
        witnesses = [one for one in fails[node] if one not in suspects and works.get(one)]
        if len(witnesses) < SUSPECT:
            continue
        partners_tried = len(fails[node]) + len(works.get(node, ()))
        say = "fails with %d of %d other nodes, which work with others" % (
            *(len(fails[node]), partners_tried),
        )
        if whys[node]:
            say += " (%s)" % whys[node]
        found.append(Named(node, say))
    return found


def slow_nodes(results: Mapping[Pair, PairResult]) -> list[Named]:
    """Nodes that are slow with all of their partners, where these are fast with others."""
    speeds = {pair: result.speed for pair, result in results.items() if result.speed}
    found = []
    for node in sorted({node for pair in speeds for node in pair}):
        own = [speed for pair, speed in speeds.items() if node in pair]
        others = [speed for pair, speed in speeds.items() if node not in pair]
        if len(own) < FEWEST or len(others) < FEWEST:
            continue
        usual = median(others)
        if max(own) < SLOW * usual:
            say = "reaches %.2f GB/s with any other node, where others reach %.2f" % (
                *(max(own) / 1e9, usual / 1e9),
            )
            found.append(Named(node, say))
    # where most are slow there is no usual speed
    if len(found) > 1 and 2 * len(found) >= len({node for pair in speeds for node in pair}):
        return []
    return found


def verdict(
    names: Mapping[int, str],
    absent: Mapping[int, str],
    results: Mapping[Pair, PairResult],
    together: PairResult | None,
    untried: int,
) -> dict[str, Any]:
    """The object of a gang: its status, the bad nodes by name, and the sentence."""
    named = [Named(node, why) for node, why in sorted(absent.items())]
    partners = len(names) - len(absent) - 1
    named += [*failing_nodes(results, max(SUSPECT, min(ENOUGH, partners))), *slow_nodes(results)]
    bad = list(dict.fromkeys(one.node for one in named))
    blamed = set(bad)
    doubtful = [
        pair for pair, result in results.items() if not result.works and not blamed & set(pair)
    ]
    says = ["%s %s" % (names[one.node], one.say) for one in named]
    doubts = []
    for left, right in doubtful[:3]:
        doubts.append(
            "%s and %s fail with each other (%s), and nothing says which of them is at fault"
            % (names[left], names[right], results[(left, right)].why or "no reason")
        )
    if together is not None and not together.works:
        doubts.append("all others together fail (%s), although their pairs work" % together.why)
    if untried:
        says.append("%d pairs were not tried, as the time was over" % untried)
    good = [names[node] for node in sorted(names) if node not in blamed]
    if doubts:
        status = 2
    elif bad:
        status = 1
    elif together is None:
        status = 2
        doubts.append("the nodes were not tried together, as the time was over")
    else:
        status = 0
    head = "all %d nodes work in pairs and together" % len(names)
    if status == 1:
        head = "%d of %d nodes %s bad" % (len(bad), len(names), "is" if len(bad) == 1 else "are")
    if status == 2:
        head = "it could not be told whether these %d nodes work" % len(names)
    return {
        "ready": {0: True, 1: False, 2: None}[status],
        "status": status,
        "say": "; ".join([head, *says, *doubts]),
        "bad": [names[node] for node in bad],
        "good": good,
        # a node that never came may have no name that a launcher knows
        "exclude": ",".join(names[node] for node in bad if " " not in names[node]),
    }
