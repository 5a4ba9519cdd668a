"""What a comparison of hosts says: what differs, who is the odd one out, and why it matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclkit.analysis.consistency.table import Effect
from ncclkit.core.model import Fact
from ncclkit.core.text import host_list as folded

MEANS: Mapping[Effect, str] = {"breaks": "can break a job", "slows": "can slow a job down", "differs": "only differs"}
SHOWN = 3
"""Groups of hosts, and differences, that a sentence names."""


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts that agree in one fact."""

    value: str
    """What they have, in words."""
    hosts: tuple[str, ...]
    fact: Fact
    """The reading of one of them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which hosts differ."""

    name: str
    """As in docs/facts.md, with the variable's name or the folder's label."""
    title: str
    effect: Effect
    why: str
    """Why it matters, one sentence."""
    groups: tuple[HostGroup, ...]
    """The smallest first."""

    @property
    def usual(self) -> HostGroup | None:
        """What more than half of the hosts have; None where nothing is so common."""
        last = self.groups[-1]
        return last if 2 * len(last.hosts) > sum(len(group.hosts) for group in self.groups) else None

    @property
    def odd(self) -> tuple[HostGroup, ...]:
        """The groups that stand out: all but the usual one, or all where none is usual."""
        return self.groups[:-1] if self.usual else self.groups

    @property
    def fewest(self) -> int:
        """Hosts that stand out."""
        return sum(len(group.hosts) for group in self.odd)

    @property
    def summary(self) -> str:
        """``NCCL: 2.26.2 on node-3; 2.27.5 on the other 7 hosts``."""
        said = [f"{group.value} on {folded(group.hosts)}" for group in self.odd[:SHOWN]]
        rest = sum(len(group.hosts) for group in self.odd[SHOWN:])
        said += [f"other values on {rest:,} more"] if rest else []
        said += [f"{self.usual.value} on {others(self.usual.hosts)}"] if self.usual else []
        return f"{self.title}: {'; '.join(said)}"


def others(hosts: Sequence[str]) -> str:
    """Those that agree, where the others have been named."""
    return f"the other {len(hosts):,} hosts" if len(hosts) > 1 else "the other host"


@dataclass(frozen=True, slots=True)
class MissingFact:
    """What could not be compared on some hosts."""

    title: str
    why: str
    hosts: tuple[str, ...]
    nowhere: bool = False
    """Whether it could be read on no host at all."""


@dataclass(frozen=True, slots=True, repr=False)
class Consistency:
    """The facts of N hosts side by side."""

    hosts: tuple[str, ...]
    agreed: int
    """Comparisons in which all hosts that could be read agree."""
    differences: tuple[Difference, ...]
    """What can break a job before what only differs, the odd one out before what splits the hosts."""
    unread: tuple[MissingFact, ...]
    """What one host could not read before what none could."""

    def __repr__(self) -> str:
        return self.summary

    @property
    def summary(self) -> str:
        """The conclusion in one sentence."""
        many = len(self.hosts)
        if many < 2:
            return "Facts of one host are known: nothing to compare" if many else "No facts have been collected yet"
        blind = sorted({host for each in self.partly for host in each.hosts})
        missing = f" (not everything could be read on {folded(blind)})" if blind else ""
        if not self.differences:
            return f"{many:,} hosts agree in all {self.agreed:,} things that were compared{missing}"
        worst, total = self.differences[0], self.agreed + len(self.differences)
        bad = sum(found.effect == worst.effect for found in self.differences)
        first = f"{bad} of them {MEANS[worst.effect]}" if worst.effect != "differs" else "none of them should matter"
        head = f"{many:,} hosts differ in {len(self.differences):,} of {total:,} things, {first}"
        return f"{head}, first {worst.summary}{missing}"

    @property
    def can_break(self) -> bool:
        """Whether some difference can break a job."""
        return any(found.effect == "breaks" for found in self.differences)

    @property
    def partly(self) -> tuple[MissingFact, ...]:
        """What some hosts could read and others could not."""
        return tuple(each for each in self.unread if not each.nowhere)

    @property
    def odd(self) -> dict[str, tuple[Difference, ...]]:
        """Host → where it stands out against a majority; most differences first."""
        found: dict[str, tuple[Difference, ...]] = {}
        for difference in self.differences:
            for group in difference.odd if difference.usual else ():
                for host in group.hosts:
                    found[host] = (*found.get(host, ()), difference)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def text(self) -> str:
        """The comparison for a terminal."""
        lines = [f"{self.summary}."]
        lines += [f"  [{MEANS[found.effect]}] {found.summary}.\n      {found.why}" for found in self.differences]
        lines += [f"  [not read] {each.title} on {folded(each.hosts)}: {each.why}" for each in self.partly]
        return "\n".join(lines)
