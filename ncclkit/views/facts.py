"""What is known of the hosts: a card for each theme, and what could not be read, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclkit.case import Case
from ncclkit.causes import catalogue
from ncclkit.diagnose import judge
from ncclkit.model import Fact, Finding
from ncclkit.views._base import View
from ncclkit.views._html import Html, badge, code, el, fit, fold, join, table, value
from ncclkit.views._words import plural, quantity, some

THEMES = {
    "Host": ("host",),
    "GPUs": ("gpu",),
    "Network": ("net",),
    "Limits": ("limits",),
    "CPU and memory": ("cpu", "memory"),
    "Storage": ("storage",),
    "Software": ("software",),
    "Variables": ("env",),
}
"""Cards in their order, each with the first parts of the fact names that belong to it."""

FIRST = (
    "host.name",
    "host.os",
    "host.container",
    "gpu.count",
    "gpu.0.model",
    "gpu.driver",
    "gpu.cuda",
    "net.nccl.interface",
    "net.gloo.interface",
    "net.hostname.addresses",
    "net.loopback.bandwidth",
    "limits.nofile.soft",
    "limits.shm.free",
    "limits.memlock",
    "limits.cgroup.memory",
    "cpu.usable",
    "cpu.model",
    "memory.available",
    "memory.swap",
    "storage.work.path",
    "storage.work.type",
    "storage.work.free",
    "storage.work.latency",
    "software.torch",
    "software.nccl",
    "software.python",
    "env.problems",
)
"""Facts that decide most often; they lead their cards in this order."""

HEADLINE, SHORT = 5, 48
"""Facts named in a card's first lines, and the characters that each may have."""

_NUMBER = re.compile(r"\.(\d+)(?=\.)")


def facts_view(case: Case) -> View:
    """Cards of facts by theme: a verdict in words, the numbers, and what could not be read and why.

    The verdicts are those of the causes over these facts alone, judged now: no log is asked, nothing is stored.
    """
    themes: dict[str, list[Fact]] = {title: [] for title in (*THEMES, "Other")}
    for fact in case.facts:
        themes[_theme(fact)].append(fact)
    verdicts = judge_facts(case.facts)
    body = [_card(title, facts, verdicts) for title, facts in themes.items() if facts]
    return View(facts_say(case.facts), el("div", *body, cls="nk-cards") if body else Html(""))


def judge_facts(facts: Iterable[Fact]) -> list[Finding]:
    """What every cause of the catalogue says to these facts alone."""
    seen = Case()
    seen.facts = list(facts)
    return [judge(name, cause, seen) for name, cause in catalogue().items()]


def facts_say(facts: Iterable[Fact]) -> str:
    """How much is known, of how many hosts, and how much could not be read."""
    facts = list(facts)
    if not facts:
        return "No facts have been collected yet"
    hosts = sorted({fact.host for fact in facts if fact.host})
    blind = sum(fact.value is None for fact in facts)
    about = f" about {some(hosts)}" if hosts else ""
    return f"{plural(len(facts), 'fact')}{about}; {f'{blind:,} could not be read' if blind else 'all could be read'}"


def verdict(title: str, verdicts: Iterable[Finding]) -> tuple[str, str, str]:
    """Symbol, word and sentence for one theme: what the causes say that cite one of its facts."""
    citing = [f for f in verdicts if any(isinstance(piece, Fact) and _theme(piece) == title for piece in f.evidence)]
    if problems := [f.say for f in citing if f.verdict == "found"]:
        return "▲", "problem", " ".join(problems)
    if cleared := [f.say for f in citing if f.verdict == "clear" and f.say]:
        return "✓", "checked", " ".join(cleared)
    return "·", "for reading", "No check decides on these facts alone."


def _theme(fact: Fact) -> str:
    first = fact.name.partition(".")[0]
    return next((title for title, firsts in THEMES.items() if first in firsts), "Other")


def _card(title: str, facts: list[Fact], verdicts: list[Finding]) -> Html:
    symbol, word, sentence = verdict(title, verdicts)
    known = [fact for fact in facts if fact.value is not None]
    blind = [fact for fact in facts if fact.value is None]
    return el(
        "section",
        el("div", el("h4", title), badge(symbol, word, word.replace(" ", "-")), cls="nk-card-head"),
        el("p", sentence),
        _headline(known),
        fold(f"Details: {plural(len(known), 'fact')}", fit(_known(known))),
        fold(f"Could not be read: {len(blind)}", _blind(blind), is_open=bool(blind)),
        cls="nk-card",
    )


def _headline(known: list[Fact]) -> Html:
    """The facts of a card that decide most often, as far as they can be said in a few words."""
    ordered = sorted(known, key=lambda fact: FIRST.index(fact.name) if fact.name in FIRST else len(FIRST))
    brief = {fact.name: words for fact in ordered if (words := _brief(fact)) and len(words) <= SHORT}
    chips = (el("span", el("b", name), " ", words, cls="nk-chip") for name, words in list(brief.items())[:HEADLINE])
    return el("p", *chips) if brief else Html("")


def _brief(fact: Fact) -> str:
    """A fact in a few words: a list by the names of its members; empty where there are none."""
    shown = quantity(fact.value, fact.unit)
    if isinstance(shown, list):
        names = [item.get("name", "") if isinstance(item, dict) else item for item in shown]
        return some(dict.fromkeys(str(name) for name in names if name != "")) or "none"
    if isinstance(shown, dict):
        return ""
    return ("yes" if shown else "no") if isinstance(shown, bool) else str(shown)


def _known(facts: list[Fact]) -> Html:
    """One row per name and value; hosts that agree share a row, and so do GPUs."""
    rows: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        rows.setdefault((_NUMBER.sub(".N", fact.name), repr(fact.value)), []).append(fact)
    hosts = len({fact.host for fact in facts if fact.host}) > 1
    places = [_where(name, group, hosts) for (name, _), group in rows.items()]
    head = ("Fact, and where it was read", *(("Of",) if any(places) else ()), "Value")
    body = [
        (_name(name, group), *((place or "–",) if any(places) else ()), value(quantity(group[0].value, group[0].unit)))
        for ((name, _), group), place in zip(rows.items(), places, strict=True)
    ]
    return table(head, body)


def _where(name: str, group: list[Fact], hosts: bool) -> str:
    """Which hosts and which numbers (of GPUs, say) a row speaks of."""
    numbers = sorted({int(found) for fact in group for found in _NUMBER.findall(fact.name)})
    numbered = f"N = {some(numbers)}" if len(group) > 1 and name != group[0].name else ""
    return "; ".join(filter(None, (some(dict.fromkeys(fact.host for fact in group)) if hosts else "", numbered)))


def _blind(facts: list[Fact]) -> Html:
    """Facts that could not be read, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for fact in facts:
        reasons.setdefault(fact.why or "the reader gave no reason", []).append(fact.name)
    return table(("Fact", "Why not"), [(some(dict.fromkeys(names)), why) for why, names in reasons.items()])


def _name(name: str, group: list[Fact]) -> Html:
    """The name as it was given where a row holds one fact, its rank where it has one, and its source."""
    ranks = {fact.rank for fact in group if fact.rank is not None}
    said = f" rank {some(sorted(ranks))}" if ranks else ""
    return join(code(name if len(group) > 1 else group[0].name), said, el("div", group[0].source, cls="nk-path"))
