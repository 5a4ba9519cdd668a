"""Whether the hosts of a job agree: what differs and why it matters, the odd one out first; 1,000 hosts on a page."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkit.analysis.consistency import MEANS, Consistency, Difference, HostGroup, MissingFact, compare
from ncclkit.core.case import Case
from ncclkit.core.text import HOSTS, fold_hosts, host_list, plural
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, table

BADGES = {"breaks": ("▲", "problem"), "slows": ("◆", "likely"), "differs": ("·", "possible")}
"""Effect → symbol and colour."""
GROUPS, MOST = 3, 25
"""Groups of hosts of one difference that are shown at once; rows of a table before the rest is folded."""
SHORT = 20
"""Characters of a value that is kept in one piece."""
ALONE = join(
    "Inside a Slurm allocation all nodes are read; elsewhere, give what ",
    code("ncclkit inspect --json"),
    " printed on the other hosts (",
    code("others"),
    " in 01_environment).",
)


def consistency_view(case: Case) -> View:
    """The same facts of all hosts side by side: only what differs and matters, hosts with the same value together."""
    seen = compare(case.facts)
    if len(seen.hosts) < 2:
        return View(seen.summary, el("p", ALONE, cls="nk-dim"))
    return View(seen.summary, join(_counts(seen), _differences(seen.differences), _standing_out(seen), _unread(seen)))


def _counts(seen: Consistency) -> Markup:
    """How many comparisons came out how."""
    effects = [found.effect for found in seen.differences]
    known: list[tuple[str, object]] = [
        (plural(len(seen.hosts), "host"), host_list(seen.hosts)),
        (f"{seen.agreed:,} agree", ""),
    ]
    known += [(f"{effects.count(effect):,} {means}", "") for effect, means in MEANS.items() if effect in effects]
    return el("p", *(el("span", el("b", number), f" {names}", cls="nk-chip") for number, names in known))


def _differences(found: Sequence[Difference]) -> Markup:
    head = ("What differs", "Odd one out", "Most hosts", "Why it matters")
    return _long(head, [(_what(each), _groups(each.odd), _usual(each), each.why) for each in found], "difference")


def _what(found: Difference) -> Markup:
    symbol, colour = BADGES[found.effect]
    return join(el("div", el("b", found.title)), badge(symbol, MEANS[found.effect], colour))


def _groups(groups: Sequence[HostGroup]) -> Markup:
    """A line for each group, the smallest first."""
    lines = [el("div", _value(group), " on ", _hosts(group.hosts)) for group in groups[: GROUPS + MOST]]
    left = sum(len(group.hosts) for group in groups[GROUPS + MOST :])
    more = el("div", f"… and other values on {plural(left, 'host')}") if left else ""
    rest = fold(f"{plural(len(groups) - GROUPS, 'more value')}", *lines[GROUPS:], more) if groups[GROUPS:] else ""
    return join(*lines[:GROUPS], rest)


def _hosts(names: Sequence[str]) -> Markup:
    """The first pieces of a list of hosts, and behind a click all of them."""
    pieces = [text for text, _ in fold_hosts(names)]
    return join(host_list(names), fold(f"all {len(names):,}", ", ".join(pieces)) if len(pieces) > HOSTS else "")


def _value(group: HostGroup) -> Markup:
    """A short value in one piece, a long one in as many lines as it takes."""
    return code(group.value) if len(group.value) <= SHORT else el("b", group.value)


def _usual(found: Difference) -> Markup:
    if found.usual is None:
        return el("span", "no value is the usual one", cls="nk-dim")
    return join(_value(found.usual), f" on {plural(len(found.usual.hosts), 'host')}")


def _standing_out(seen: Consistency) -> Markup:
    """Hosts that stand out in the same things share a row, those with most of them first."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, found in seen.odd.items():
        alike.setdefault(tuple(each.title for each in found), []).append(host)
    rows = [(_hosts(names), f"{len(titles):,}", ", ".join(titles)) for titles, names in alike.items()]
    if not rows:
        return Markup("")
    return join(el("h5", "Hosts that stand out"), _long(("Host", "Differences", "In what"), rows, "row"))


def _unread(seen: Consistency) -> Markup:
    """What only some hosts could read stands open: a host that cannot say is an odd one, too."""
    partly, nowhere = seen.partly, [each for each in seen.unread if each.nowhere]
    head = ("What", "Why not", "On")
    blind = [(each.title, each.why, _where(each, seen)) for each in nowhere]
    return join(
        el("h5", "Could not be compared everywhere") if partly else "",
        _long(head, [(each.title, each.why, _hosts(each.hosts)) for each in partly], "row"),
        fold(f"Could be read on no host: {len(nowhere)}", fit(table(head, blind))),
    )


def _where(each: MissingFact, seen: Consistency) -> str:
    return host_list(each.hosts) if len(each.hosts) < len(seen.hosts) else "all hosts"


def _long(head: Sequence[str], rows: Sequence[Sequence[object]], noun: str) -> Markup:
    """A table whose later rows are folded."""
    rest = rows[MOST:]
    return join(
        fit(table(head, rows[:MOST])), fold(plural(len(rest), f"more {noun}"), fit(table(head, rest))) if rest else ""
    )
