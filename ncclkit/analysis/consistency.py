"""Whether the hosts of a job agree.

Facts stand side by side, only the differences that matter, the odd one out first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ncclkit.analysis.consistency_rules import (
    ANY,
    RULES,
    ConsistencyRule,
    Effect,
    Host,
    pattern_of,
    variable,
)
from ncclkit.core.model import Fact
from ncclkit.core.text import host_list as folded
from ncclkit.core.text import natural, quantity

MEANS: Mapping[Effect, str] = {
    "breaks": "can break a job",
    "slows": "can slow a job down",
    "differs": "only differs",
}
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
        if 2 * len(last.hosts) > sum(len(group.hosts) for group in self.groups):
            return last
        return None

    @property
    def outliers(self) -> tuple[HostGroup, ...]:
        """The groups that stand out.

        They are all but the usual one, or all where none is usual.
        """
        if self.usual:
            return self.groups[:-1]
        return self.groups

    @property
    def fewest(self) -> int:
        """Hosts that stand out."""
        return sum(len(group.hosts) for group in self.outliers)

    @property
    def summary(self) -> str:
        """``NCCL: 2.26.2 on node-3; 2.27.5 on the other 7 hosts``."""
        said = [f"{group.value} on {folded(group.hosts)}" for group in self.outliers[:SHOWN]]
        rest = sum(len(group.hosts) for group in self.outliers[SHOWN:])
        said += [f"other values on {rest:,} more"] if rest else []
        said += [f"{self.usual.value} on {others(self.usual.hosts)}"] if self.usual else []
        return f"{self.title}: {'; '.join(said)}"


def others(hosts: Sequence[str]) -> str:
    """Those that agree, where the others have been named."""
    if len(hosts) > 1:
        return f"the other {len(hosts):,} hosts"
    return "the other host"


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
    """The facts of several hosts side by side."""

    hosts: tuple[str, ...]
    agreed: int
    """Comparisons in which all hosts that could be read agree."""
    differences: tuple[Difference, ...]
    """What can break a job before what only differs, the odd one out before what splits the
    hosts."""
    unread: tuple[MissingFact, ...]
    """What one host could not read before what none could."""

    def __repr__(self) -> str:
        return self.summary

    @property
    def summary(self) -> str:
        """The conclusion in one sentence."""
        many = len(self.hosts)
        if many < 2:
            if many:
                return "Facts of one host are known: nothing to compare"
            return "No facts have been collected yet"
        hosts: set[str] = set()
        for each in self.partly:
            hosts.update(each.hosts)
        blind = sorted(hosts)
        missing = ""
        if blind:
            missing = f" (not everything could be read on {folded(blind)})"
        if not self.differences:
            return f"{many:,} hosts agree in all {self.agreed:,} things that were compared{missing}"
        worst = self.differences[0]
        total = self.agreed + len(self.differences)
        bad = sum(found.effect == worst.effect for found in self.differences)
        first = "none of them should matter"
        if worst.effect != "differs":
            first = f"{bad} of them {MEANS[worst.effect]}"
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
    def outliers(self) -> dict[str, tuple[Difference, ...]]:
        """Host → where it stands out against a majority; most differences first."""
        found: dict[str, tuple[Difference, ...]] = {}
        for difference in self.differences:
            for group in difference.outliers if difference.usual else ():
                for host in group.hosts:
                    found[host] = (*found.get(host, ()), difference)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def text(self) -> str:
        """The comparison for a terminal."""
        lines = [f"{self.summary}."]
        for found in self.differences:
            lines.append(f"  [{MEANS[found.effect]}] {found.summary}.\n      {found.why}")
        for each in self.partly:
            lines.append(f"  [not read] {each.title} on {folded(each.hosts)}: {each.why}")
        return "\n".join(lines)


EFFECTS = ("breaks", "slows", "differs")
ORDER = ("software.nccl", ANY, *RULES)
NOT_SET = "not set"
MUTE = "facts.host"
"""The fact, never read, of a host that gave no facts at all."""

LONGEST = 120
"""Characters of a value; the facts hold the whole."""


Place = str
"""The number of a GPU; empty where a host has one such fact."""
Places = Mapping[Place, Any]
"""Place → what a host has there."""
Cells = dict[str, dict[Place, Fact]]
"""host → place → reading."""


@dataclass(frozen=True, slots=True)
class HostValues:
    """What one host has to compare."""

    places: Places
    """Place → normal form; about equal numbers are (least, largest)."""
    fact: Fact

    @property
    def key(self) -> frozenset[tuple[str, int]]:
        """A key that is equal on hosts that agree, whichever GPU it is.

        How many are alike only counts where not all are.
        """
        known = Counter(map(repr, self.places.values()))
        return frozenset(known.items() if len(known) > 1 else ((value, 0) for value in known))


LENT = "net.interfaces"
"""The fact of a host that is needed to compare others.

A variable may name an interface, for example.
"""
BATCH = 8
"""Rows of the table that an executor gets at once, with what all of them need."""


def compare(facts: Iterable[Fact], executor: Executor | None = None) -> Consistency:
    """The facts of several hosts side by side.

    It tells what differs and matters, the worst first, and what could not be read.  Facts without a
    host are left out; of two readings of the same fact the later one counts.  `executor` is any
    `concurrent.futures` executor that compares rows side by side.
    """
    hosts: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        if fact.host:
            hosts[fact.host][fact.name] = fact
    names = tuple(sorted(hosts, key=natural))
    table = _table(hosts)
    unread = list(_unread(table, hosts))
    differences = list[Difference]()
    agreed = 0
    lent = {}
    for host, known in hosts.items():
        lent[host] = {LENT: known[LENT]} if LENT in known else {}
    rows = [*table.items()]
    batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    for found, alike, missing in (executor.map if executor else map)(
        _compared, batches, [lent] * len(batches)
    ):
        differences += found
        agreed += alike
        unread += missing
    differences.sort(
        key=lambda found: (
            EFFECTS.index(found.effect),
            found.fewest,
            ORDER.index(pattern_of(found.name)),
        )
    )
    return Consistency(names, agreed, tuple(differences), tuple(_joined(unread)))


def _compared(
    rows: Iterable[tuple[str, Cells]], hosts: Mapping[str, Host]
) -> tuple[list[Difference], int, list[MissingFact]]:
    """What differs in some rows of the table, and how often all hosts agree.

    It tells also what is not in its form.
    """
    differences = list[Difference]()
    agreed = 0
    unread = list[MissingFact]()
    for name, cells in rows:
        for rule in _rules(name):
            held = _values_of_hosts(rule, cells, hosts, unread)
            difference = _difference(name, rule, held)
            differences += [difference] if difference else []
            agreed += difference is None and len(held) > 1
    return differences, agreed, unread


@cache
def _rules(name: str) -> tuple[ConsistencyRule, ...]:
    """How the facts of one row of the table are compared."""
    if pattern_of(name) == ANY:
        rule = variable(name.removeprefix("env."))
        if rule:
            return (rule,)
        return ()
    label = ""
    if name.startswith("storage."):
        label = name.split(".")[1]
    return tuple(
        replace(rule, title=f"{rule.title} ({label})") if label else rule
        for rule in RULES.get(pattern_of(name), ())
    )


@cache
def _row(name: str) -> tuple[str, Place]:
    """The row of the table that a fact belongs to, and its place there.

    GPUs of a host share a row.
    """
    wide = pattern_of(name)
    if "<i>" in wide:
        return wide, name.split(".")[1]
    return name, ""


def _table(hosts: Mapping[str, Host]) -> dict[str, Cells]:
    """Row → host → place → reading, of what is compared.

    A variable that a host lacks is one that is not set there.
    """
    table: dict[str, Cells] = {}
    for host, facts in hosts.items():
        for name, fact in facts.items():
            row, place = _row(name)
            if _rules(row):
                table.setdefault(row, {}).setdefault(host, {})[place] = fact
    looked = [host for host, facts in hosts.items() if "env.problems" in facts]
    for row, cells in table.items():
        if row.startswith("env."):
            for host in looked:
                cells.setdefault(host, {"": Fact(row, NOT_SET, source="environment", host=host)})
    return table


def _values_of_hosts(
    rule: ConsistencyRule, cells: Cells, hosts: Mapping[str, Host], unread: list[MissingFact]
) -> dict[str, HostValues]:
    """Host → normal forms of one rule.

    What has no value, or nothing to compare, is left out.
    """
    column: dict[str, dict[Place, Any]] = {}
    for host, places in cells.items():
        try:
            formed = {}
            for at, fact in places.items():
                if fact.value is not None:
                    formed[at] = _formed(rule, fact.value, hosts[host])
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration):
            unread.append(
                MissingFact(
                    rule.title,
                    "its value, or one that it depends on, is not in the form it should have",
                    (host,),
                )
            )
            continue
        told = {}
        for at, value in formed.items():
            if value is not None:
                told[at] = value
        column[host] = told
    if rule.among:
        single = rule.among({host: formed[""] for host, formed in column.items() if "" in formed})
        column = {}
        for host, value in single.items():
            if value is not None:
                column[host] = {"": value}
    if rule.tolerance:
        column = _rounded(column, *rule.tolerance)
    return {
        host: HostValues(formed, cells[host][min(formed)])
        for host, formed in column.items()
        if formed
    }


def _formed(rule: ConsistencyRule, value: Any, host: Host) -> Any:
    if value == NOT_SET:
        return value
    return rule.form(value, host)


def _rounded(
    column: Mapping[str, Mapping[Place, Any]], times: float, by: float
) -> dict[str, dict[Place, Any]]:
    """Values in which numbers that are about equal become one pair.

    The pair is (least, largest); -1, unlimited, stays apart from all.
    """
    numbers = set()
    for formed in column.values():
        for value in formed.values():
            if isinstance(value, (int, float)):
                numbers.add(value)
    clusters: list[list[float]] = []
    for number in sorted(numbers):
        last = -1.0
        if clusters:
            last = clusters[-1][-1]
        if last < 0 or (number > last * times and number - last > by):
            clusters.append([])
        clusters[-1].append(number)
    pairs = {}
    for cluster in clusters:
        for number in cluster:
            pairs[number] = (cluster[0], cluster[-1])
    rounded = {}
    for host, formed in column.items():
        rounded[host] = {
            at: pairs[value] if isinstance(value, (int, float)) else value
            for at, value in formed.items()
        }
    return rounded


def _difference(
    name: str, rule: ConsistencyRule, held: Mapping[str, HostValues]
) -> Difference | None:
    """The groups of hosts, the smallest first; None where all agree."""
    alike: dict[frozenset[tuple[str, int]], list[str]] = {}
    for host, what in held.items():
        alike.setdefault(what.key, []).append(host)
    if len(alike) < 2:
        return None
    members = sorted(alike.values(), key=len)
    places = []
    for group in members:
        places.append([held[host].places for host in group])
    values = _value_words(places, held[members[0][0]].fact.unit)
    groups = (
        HostGroup(value, tuple(sorted(group, key=natural)), held[group[0]].fact)
        for group, value in zip(members, values, strict=True)
    )
    return Difference(name, rule.title, rule.effect, rule.why, tuple(groups))


def _unread(table: Mapping[str, Cells], hosts: Mapping[str, Host]) -> Iterator[MissingFact]:
    """What a host looked for in vain, and what it does not even mention.

    The second counts where others do mention it.
    """
    mute = {}
    for host, facts in hosts.items():
        if MUTE in facts:
            mute[host] = facts[MUTE].why
    for host, why in mute.items():
        yield MissingFact("everything", why, (host,))
    for name, cells in table.items():
        title = _rules(name)[0].title
        known = set()
        for host, places in cells.items():
            if any(fact.value is not None for fact in places.values()):
                known.add(host)
        for host in hosts.keys() - known - mute.keys():
            if host in cells:
                why = next(iter(cells[host].values())).why or "the reader gave no reason"
                yield MissingFact(title, why, (host,), nowhere=not known)
            elif not _without_gpu(name, hosts[host]):
                yield MissingFact(
                    title, "not among the facts of this host", (host,), nowhere=not known
                )


def _without_gpu(name: str, host: Host) -> bool:
    """Whether a host has no GPU, and so nothing to say of them.

    That it has none is a difference already.
    """
    return name.startswith("gpu.<i>.") and "gpu.count" in host and not host["gpu.count"].value


def _joined(unread: Iterable[MissingFact]) -> Iterator[MissingFact]:
    """Hosts with the same reason together.

    What only few could not read comes first.
    """
    same: dict[tuple[str, str, bool], list[str]] = {}
    for each in unread:
        reason = each.title, each.why, each.nowhere
        same.setdefault(reason, []).extend(each.hosts)
    ordered = sorted(same, key=lambda reason: (len(same[reason]), reason))
    for reason in ordered:
        title, why, nowhere = reason
        hosts = sorted(set(same[reason]), key=natural)
        yield MissingFact(title, why, tuple(hosts), nowhere)


def _value_words(groups: Sequence[Sequence[Places]], unit: str) -> list[str]:
    """For each group of hosts that agree, what they have.

    Of sets it is only what not all groups share.
    """
    sets = []
    for group in groups:
        for value in group[0].values():
            if isinstance(value, frozenset):
                sets.append(value)
    if sets:
        shared = frozenset.intersection(*sets)
    else:
        shared = frozenset()
    said = (_group(group, unit, shared) for group in groups)
    return [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in said]


def _group(hosts: Sequence[Places], unit: str, shared: frozenset[str]) -> str:
    """``16``; or what most GPUs have, and which have something else.

    An example of the second is ``16 (GPU 5: 8)``.
    """
    written_values = []
    for places in hosts:
        for value in places.values():
            written_values.append(repr(value))
    known = Counter(written_values)
    if len(known) == 1:
        return _words(next(iter(hosts[0].values())), unit, shared)
    usual = known.most_common(1)[0][0]
    others: dict[str, set[tuple[str, ...]]] = {}
    shown = {repr(value): _words(value, unit, shared) for value in hosts[0].values()}
    for places in hosts:
        for odd in {repr(value) for value in places.values()} - {usual}:
            others.setdefault(odd, set()).add(
                tuple(at for at, value in places.items() if repr(value) == odd)
            )
    said = [f"{_gpus(where)}: {shown[odd]}" for odd, where in sorted(others.items())]
    return f"{shown[usual]} ({', '.join(said)})"


def _gpus(where: set[tuple[str, ...]]) -> str:
    """``GPU 5``, ``GPUs 2, 5``.

    It is ``some GPUs`` where the hosts do not agree in which.
    """
    if len(where) > 1:
        return "some GPUs"
    numbers = next(iter(where))
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _words(value: Any, unit: str = "", shared: frozenset[str] = frozenset()) -> str:
    """One normal form for people.

    It is such as yes, unlimited, 64 MiB, 0.2–4.9 ms, or mlx5_0, mlx5_1.
    """
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(value - shared))) or (
            "none of these" if shared or not value else ""
        )
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(end, (int, float)) for end in value)
    ):
        ends = list(dict.fromkeys(str(quantity(end, unit)) for end in value))
        return "–".join(ends)
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {held}" for key, held in value.items()) or "none"
    return str(quantity(value, unit)) or "empty"
