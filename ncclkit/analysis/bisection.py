"""Who is at fault where ranks fail together.

Groups are tried until the smallest one that fails is known.

Halves first, both at once; where both halves work, the fault needs some of each, and one half is
made smaller while the other stays complete, then vice versa (Zeller's delta debugging).  Then each
member of the smallest failing group is exchanged for somebody from outside: the one without whom it
works is to blame; where it works without either of two, it is the path between them.  In the end
the others are tried without whoever was found.

This is a pure function of what was tried: `bisect_ranks` says what it would have to know next, or
whom it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

Group = frozenset[int]
PAIRED = 4
"""Up to so many ranks or nodes all pairs of them are tried, in so many rounds less one."""
MAX_CULPRITS = 3
"""Faults that are looked for, one after the other."""
MAX_SWAPPED = 3
"""Larger failing groups are not taken apart further: their members would have to be exchanged one
by one."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """One thing at fault."""

    what: str
    """The kind of fault, in one word.

    It is ``rank``, ``node`` (it fails alone), ``interaction`` (one rank or node, only with others),
    ``path`` (each of two works with others), ``pair`` (two that nobody else can tell apart), or
    ``together`` (only all of these).
    """
    ranks: tuple[int, ...]
    """To blame; of a path, both ends."""
    within: tuple[int, ...]
    """The smallest group that fails."""


@dataclass(frozen=True, slots=True)
class Bisected:
    """How far the search has come."""

    found: tuple[Blamed, ...] = ()
    passing: bool = False
    """All ranks were started anew, and nothing failed."""
    rest: tuple[int, ...] = ()
    """Those that work without whoever was found."""
    ask: tuple[tuple[int, ...], ...] = ()
    """What has to be tried next; empty where the search is over."""
    among: tuple[int, ...] = ()
    """The smallest group that is known to fail, while the search is not over."""


class _Ask(Exception):  # noqa: N818  # it is a question, not an error
    """Groups that nothing is known of yet."""

    def __init__(self, groups: Iterable[Group]) -> None:
        super().__init__()
        self.groups = tuple(tuple(sorted(group)) for group in groups)


def bisect_ranks(
    nodes: Sequence[Sequence[int]], bad: Mapping[Group, bool], hints: Iterable[Iterable[int]] = ()
) -> Bisected:
    """The verdict on ranks that failed together, or the groups to try next.

    `nodes` are the ranks of each node; `bad` is group → whether it failed; `hints` are groups that
    may be the failing ones, tried first.
    """
    search = _Search(nodes, bad)
    state = Bisected()
    try:
        left: frozenset[int] = frozenset().union(*nodes)
        start = search.failing_group(left, [frozenset(hint) for hint in hints])
        # a failure that does not return when all ranks are started anew was temporary: no rank is
        # named
        if start is None:
            return Bisected(passing=True)
        while len(state.found) < MAX_CULPRITS:
            before = state.found
            one = search.culprit(start, left)
            # it stands where there is no time for what follows
            state = replace(state, found=(*before, one))
            state = replace(state, found=(*before, one := search.rank_of_pair(one, left)))
            left -= search.left_out(one)
            if one.what == "together" or not left:
                break
            # at the end the others are shown to work without whoever was found
            if not search.fails(left)[0]:
                return replace(state, rest=tuple(sorted(left)))
            start = left
    except _Ask as ask:
        return replace(state, ask=ask.groups, among=search.among)
    return state


class _Search:
    def __init__(self, nodes: Sequence[Sequence[int]], bad: Mapping[Group, bool]) -> None:
        self.nodes = [frozenset(node) for node in nodes]
        self.bad = bad
        self.among: tuple[int, ...] = ()

    def fails(self, *groups: Group) -> list[bool]:
        """Whether each of them fails; what is not known is asked for, all at once."""
        known = [self.known(group) for group in groups]
        unknown = []
        for group, fails in zip(groups, known, strict=True):
            if fails is None:
                unknown.append(group)
            elif fails and (not self.among or len(group) < len(self.among)):
                self.among = tuple(sorted(group))
        if unknown:
            raise _Ask(unknown)
        return [bool(fails) for fails in known]

    def known(self, group: Group) -> bool | None:
        """Whether a group fails, as far as seen.

        Part of what works does, and what has a failing part fails.
        """
        if group in self.bad:
            return self.bad[group]
        if any(group <= other for other, fails in self.bad.items() if not fails):
            return False
        if any(other <= group for other, fails in self.bad.items() if fails):
            return True
        return None

    def failing_group(self, every: Group, hints: Sequence[Group]) -> Group | None:
        """The smallest group that fails, as far as that is known.

        It is made of whole nodes where it takes more than one.  None where nothing fails any more.
        """
        failing = [hint for hint, fails in zip(hints, self.fails(*hints), strict=True) if fails]
        if failing:
            smallest = min(failing, key=len)
            nodes = [node for node in self.nodes if node & smallest]
            if len(nodes) > 1:
                return smallest.union(*nodes)
            return smallest
        if self.fails(every)[0]:
            return every
        return None

    def culprit(self, start: Group, left: Group) -> Blamed:
        """Who is at fault where `start` fails.

        `left` are ranks that may be taken for an exchange.
        """
        nodes = []
        for node in self.nodes:
            if node & start:
                nodes.append(node & start)
        if len(nodes) > 1 and all(node in self.nodes for node in nodes):
            smallest = self.smallest(nodes, frozenset())
            if len(smallest) > 1 or len(smallest[0]) == 1:
                return self._finer(
                    self._blamed(smallest, [node for node in self.nodes if node <= left])
                )
            start = smallest[0]
        ranks = self.smallest([frozenset({rank}) for rank in sorted(start)], frozenset())
        # ranks of the same node first, so that an exchange changes nothing but the rank
        near = sorted(
            left, key=lambda rank: (not any({rank} | start <= node for node in self.nodes), rank)
        )
        return self._blamed(ranks, [frozenset({rank}) for rank in near])

    def rank_of_pair(self, one: Blamed, left: Group) -> Blamed:
        """The rank at fault of two nodes that nobody else can stand in for.

        Where one rank is at fault, others of its node can stand in for it.
        """
        nodes = [node for node in self.nodes if node & set(one.within)]
        if one.what != "pair" or len(nodes) != 2:
            return one
        here, there = (node & set(one.within) for node in nodes)
        units = self.smallest([frozenset({rank}) for rank in sorted(here)], there)
        units += self.smallest(
            [frozenset({rank}) for rank in sorted(there)], frozenset().union(*units)
        )
        found = self._blamed(
            units, [frozenset({rank}) for rank in sorted(left & (nodes[0] | nodes[1]))]
        )
        # where other ranks of the nodes do not decide either, the pair stays named
        if found.what == "interaction":
            return found
        return one

    def left_out(self, one: Blamed) -> Group:
        """Whom to leave out so that the rest should work.

        Of two ends it is one.
        """
        if one.what not in ("path", "pair"):
            return frozenset(one.ranks)
        end = next((node for node in self.nodes if one.ranks[-1] in node), frozenset())
        if not end >= set(one.ranks):
            return end & set(one.ranks)
        return frozenset(one.ranks[-1:])

    def smallest(self, units: list[Group], included: Group) -> list[Group]:
        """The fewest of `units` that fail together with `included`.

        All of them do fail.
        """
        if len(units) == 1:
            return units
        # the number of jobs that must be started grows with the logarithm of the ranks
        middle = len(units) // 2
        left, right = units[:middle], units[middle:]
        with_left, with_right = included.union(*left), included.union(*right)
        left_fails, right_fails = self.fails(with_left, with_right)
        if left_fails:
            return self.smallest(left, included)
        if right_fails:
            return self.smallest(right, included)
        if not included and 2 < len(units) <= PAIRED:
            pairs = [list(pair) for pair in combinations(units, 2)]
            fails = self.fails(*(one | other for one, other in pairs))
            if any(fails):
                return self.smallest(pairs[fails.index(True)], included)
        needed = self.smallest(left, with_right)
        return needed + self.smallest(right, included.union(*needed))

    def _blamed(self, units: list[Group], outside: list[Group]) -> Blamed:
        """Which of the units that only fail together is at fault.

        It is the one whose exchange fixes them.
        """
        within = tuple(sorted(frozenset().union(*units)))
        if len(units) == 1:
            return Blamed("node" if len(within) > 1 else "rank", within, within)
        others = [unit for unit in outside if not unit & set(within)]
        if len(units) > MAX_SWAPPED or not others:
            return Blamed("pair" if len(units) == 2 else "together", within, within)
        swapped = []
        for place, unit in enumerate(units):
            swapped.append(
                others[place % len(others)].union(*(other for other in units if other != unit))
            )
        # a member is at fault where the group works with another rank in its place
        still = self.fails(*swapped)
        faulty = [unit for unit, fails in zip(units, still, strict=True) if not fails]
        if len(faulty) == 1:
            return Blamed("interaction", tuple(sorted(faulty[0])), within)
        # where either exchange fixes it, the path between the two is at fault
        return Blamed("path" if len(faulty) == len(units) == 2 else "together", within, within)

    def _finer(self, found: Blamed) -> Blamed:
        """The ranks of nodes that fail with each other.

        They are those of the same place in both, each over its own NIC.
        """
        both = []
        for node in self.nodes:
            if node <= set(found.within):
                both.append(sorted(node))
        if len(both) != 2 or len(both[0]) == 1:
            return found
        rails = [frozenset(rail) for rail in zip(*both, strict=False)]
        failing = [rail for rail, fails in zip(rails, self.fails(*rails), strict=True) if fails]
        if len(failing) != 1:
            return found
        rail = failing[0]
        return replace(
            found, ranks=tuple(sorted(rail & set(found.ranks))), within=tuple(sorted(rail))
        )


def describe(
    state: Bisected, who: Callable[[Iterable[int]], str], symptom: tuple[str, str], ranks: int
) -> str:
    """The verdict in words, without a full stop.

    `who` names ranks; `symptom` is what is wrong, as ``("is slow", "are slow")``; `ranks` are those
    of the whole job.
    """
    if state.passing:
        return (
            f"all {ranks} ranks were started anew, and none of them {symptom[0]} now: the trouble"
            " comes and goes"
        )
    parts = [_sentence(one, who, symptom, ranks) for one in state.found]
    if (
        len(state.found) == MAX_CULPRITS
        and not state.rest
        and all(one.what in ("rank", "node") for one in state.found)
    ):
        found: list[int] = []
        for blamed in state.found:
            found += blamed.ranks
        whom = who(found)
        return (
            f"{whom} {symptom[1]} even alone, and the others without them: this is no matter of"
            " single ranks"
        )
    if state.ask:
        named = {one.within for one in state.found}
        among = ""
        if state.among and state.among not in named:
            among = f" than {who(state.among)}"
        parts.append(f"it was narrowed down no further{among}")
    elif state.rest:
        parts.append(f"{_rest(state.rest)} without {_gone(state, who, ranks)}")
    elif len(state.found) == MAX_CULPRITS:
        parts.append(f"the others {symptom[1]} without them, too")
    return "; ".join(parts)


def _rest(ranks: Iterable[int]) -> str:
    count = len(set(ranks))
    if count == 1:
        return "the other one works"
    return f"the other {count} work"


def _gone(state: Bisected, who: Callable[[Iterable[int]], str], ranks: int) -> str:
    gone = set(range(ranks)) - set(state.rest)
    bisected_ranks: set[int] = set()
    for one in state.found:
        bisected_ranks.update(one.ranks)
    if gone == bisected_ranks:
        if len(state.found) == 1:
            return "it"
        return "them"
    return who(gone)


def _sentence(
    one: Blamed, who: Callable[[Iterable[int]], str], symptom: tuple[str, str], ranks: int
) -> str:
    whom = who(one.ranks)
    fails = symptom[0]
    both = symptom[1]
    if one.what in ("rank", "node"):
        return f"{whom} {fails} even alone"
    others = set(one.within) - set(one.ranks)
    if one.what == "interaction":
        least = ""
        if len(one.within) < ranks:
            least = f", already with {who(others)}"
        return f"{whom} {fails} only with others{least}, and works alone"
    if one.what == "path":
        return (
            f"{whom} {both} with each other, and each works with others: the path from one to the"
            " other"
        )
    if one.what == "pair":
        return (
            f"{whom} {both} with each other, and each works alone: the path from one to the other,"
            " or either end"
        )
    return f"{whom} {both} only all together: every smaller group that was tried works"
