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


class BadNode(NamedTuple):
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


def failing_nodes(results: Mapping[Pair, PairResult], enough: int = ENOUGH) -> list[BadNode]:
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
        found.append(BadNode(node, say))
    return found


def slow_nodes(results: Mapping[Pair, PairResult]) -> list[BadNode]:
    """Nodes that are slow with all of their partners, where these are fast with others."""
    nodes: set[int] = set()
    for pair, result in results.items():
        if result.speed:
            nodes.update(pair)
    found = []
    for node in sorted(nodes):
        own, others = _speeds_of(results, node)
        if len(own) < FEWEST or len(others) < FEWEST:
            continue
        usual = median(others)
        if max(own) < SLOW * usual:
            say = "reaches %.2f GB/s with any other node, where others reach %.2f"
            found.append(BadNode(node, say % (max(own) / 1e9, usual / 1e9)))
    # where most are slow there is no usual speed
    if len(found) > 1 and 2 * len(found) >= len(nodes):
        return []
    return found


def _speeds_of(
    results: Mapping[Pair, PairResult],
    node: int,
) -> tuple[list[float], list[float]]:
    """(speeds of the pairs of a node, those of all other pairs)."""
    own: list[float] = []
    others: list[float] = []
    for pair, result in results.items():
        if not result.speed:
            continue
        if node in pair:
            own.append(result.speed)
        else:
            others.append(result.speed)
    return own, others


def verdict(
    names: Mapping[int, str],
    absent: Mapping[int, str],
    results: Mapping[Pair, PairResult],
    together: PairResult | None,
    untried: int,
    backend: str = "gloo",
) -> dict[str, Any]:
    """The object of a gang: its status, the bad nodes by name, and the sentence."""
    named = []
    for node, why in sorted(absent.items()):
        named.append(BadNode(node, why))
    partners = len(names) - len(absent) - 1
    named += failing_nodes(results, max(SUSPECT, min(ENOUGH, partners)))
    named += slow_nodes(results)
    bad: list[int] = []
    says: list[str] = []
    for one in named:
        says.append("%s %s" % (names[one.node], one.say))
        if one.node not in bad:
            bad.append(one.node)
    if untried:
        says.append("%d pairs were not tried, as the time was over" % untried)
    doubts = _doubtful_pairs(names, results, bad)
    if together is not None and not together.works:
        doubts.append("all others together fail (%s), although their pairs work" % together.why)
    if together is None and not doubts and not bad:
        doubts.append("the nodes were not tried together, as the time was over")
    status, head = _status_in_words(len(names), len(bad), bool(doubts))
    if status == 0:
        head += TRIED[backend]
    elif together is not None and together.works and not doubts:
        others = len(names) - len(bad)
        says.append("the other %d work in pairs and together%s" % (others, TRIED[backend]))
    good = []
    for node in sorted(names):
        if node not in bad:
            good.append(names[node])
    bad_names = []
    for node in bad:
        bad_names.append(names[node])
    # a node that never came may have no name that a launcher knows
    known = []
    for name in bad_names:
        if " " not in name:
            known.append(name)
    return {
        "ready": READY[status],
        "status": status,
        "say": "; ".join([head, *says, *doubts]),
        "bad": bad_names,
        "good": good,
        "exclude": ",".join(known),
    }


TRIED = {
    "gloo": " (a checked all_reduce over gloo; no GPU was tried)",
    "nccl": " (a checked all_reduce over NCCL, on the first GPU of each node)",
}
"""Backend → what nodes have done that work, in brackets."""
READY = {0: True, 1: False, 2: None}
"""Status → whether the nodes that there are work."""


def _status_in_words(nodes: int, bad: int, is_doubtful: bool) -> tuple[int, str]:
    """(status, how the sentence begins)."""
    if is_doubtful:
        return 2, "it could not be told whether these %d nodes work" % nodes
    if bad == 1:
        return 1, "1 of %d nodes fails" % nodes
    if bad:
        return 1, "%d of %d nodes fail" % (bad, nodes)
    return 0, "all %d nodes work in pairs and together" % nodes


def _doubtful_pairs(
    names: Mapping[int, str],
    results: Mapping[Pair, PairResult],
    bad: Iterable[int],
) -> list[str]:
    """Sentences on pairs that fail although neither of their nodes is named; the first three."""
    blamed = set(bad)
    found = []
    for (left, right), result in results.items():
        if result.works or left in blamed or right in blamed:
            continue
        say = "%s and %s fail with each other (%s), and nothing says which of them is at fault"
        why = result.why or "no reason"
        found.append(say % (names[left], names[right], why))
    return found[:3]
