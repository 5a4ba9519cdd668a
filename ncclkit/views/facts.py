"""What is known of the hosts: a card for each theme, and what could not be read, with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

from ncclkit.causes import catalogue
from ncclkit.causes.engine import judge
from ncclkit.core import shapes
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Finding
from ncclkit.core.text import host_list, plural, quantity, some
from ncclkit.views._base import View
from ncclkit.views._facts import blind_table, known_table
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, table
from ncclkit.views.findings import advice_part

THEMES = {
    "GPUs": ("gpu",),
    "Network": ("net",),
    "Limits and isolation": ("limits", "host.container", "host.iommu", "host.acs"),
    "CPU and memory": ("cpu", "memory"),
    "Storage": ("storage",),
    "Software": ("software", "host"),
    "Variables": ("env",),
    "Other": ("",),
}
"""Cards in their order, each with the beginnings of the fact names that belong to it; the longest one holds."""

FIRST = {
    "gpu.count": "GPUs",
    "gpu.0.model": "model",
    "gpu.driver": "driver",
    "gpu.cuda": "newest CUDA",
    "gpu.nvidia_smi": "nvidia-smi",
    "net.nccl.interface": "NCCL uses",
    "net.gloo.interface": "gloo uses",
    "net.default": "default route",
    "net.hostname.addresses": "own name is",
    "net.loopback.bandwidth": "loopback",
    "limits.shm.size": "/dev/shm",
    "limits.nofile.soft": "open files",
    "limits.memlock": "locked memory",
    "limits.cgroup.memory": "memory limit",
    "host.container": "container",
    "cpu.usable": "usable",
    "cpu.model": "model",
    "memory.total": "memory",
    "memory.available": "available",
    "memory.swap": "swap",
    "storage.work.path": "working folder",
    "storage.work.type": "type",
    "storage.work.free": "free",
    "storage.work.latency": "small write",
    "software.torch": "torch",
    "software.nccl": "NCCL",
    "software.python": "Python",
    "software.torch.cuda": "CUDA",
    "host.kernel": "kernel",
    "env.problems": "problems",
    "env.notes": "notes",
}
"""Facts that decide most often, in plain words: the first lines of their cards, in this order."""

HEADLINE, SHORT = 5, 48
"""Facts in a card's first lines, and the characters that each may have."""


def facts_view(case: Case) -> View:
    """Cards of facts by theme: a verdict in words, the numbers, and what could not be read, why, and how to find out.

    The verdicts are those of the causes over these facts alone, judged now: no log is asked, nothing is stored.
    """
    themes: dict[str, list[Fact]] = {title: [] for title in THEMES}
    for fact in case.facts:
        themes[_theme(fact.name)].append(fact)
    verdicts = judge_facts(case.facts)
    body = [_card(title, facts, verdicts) for title, facts in themes.items() if facts]
    return View(facts_say(case.facts, verdicts), el("div", *body, cls="nk-cards") if body else Markup(""))


def judge_facts(facts: Iterable[Fact]) -> list[Finding]:
    """What every cause of the catalogue says to these facts alone."""
    seen = Case()
    seen.facts = list(map(shapes.sound, facts))
    return [judge(name, cause, seen) for name, cause in catalogue().items()]


def facts_say(facts: Sequence[Fact], verdicts: Iterable[Finding]) -> str:
    """What these hosts would make a job suffer, how much is known of them, and how much could not be read."""
    if not facts:
        return "No facts have been collected yet"
    hosts = {fact.host for fact in facts if fact.host}
    blind = sum(fact.value is None for fact in facts)
    about = f" about {host_list(hosts)}" if hosts else ""
    read = f"{plural(len(facts), 'fact')}{about}; {f'{blind:,} could not be read' if blind else 'all could be read'}"
    risks = [finding for finding in verdicts if finding.verdict == "found"]
    return f"{plural(len(risks), 'risk')} for a job here; {read}" if risks else f"No check finds a risk here; {read}"


@cache  # a thousand hosts have the same few hundred names
def _theme(name: str) -> str:
    """The card of a fact."""
    starts = {first: title for title, firsts in THEMES.items() for first in firsts}
    parts = name.split(".")
    return next(starts[head] for n in range(len(parts), -1, -1) if (head := ".".join(parts[:n])) in starts)


def _card(title: str, facts: list[Fact], verdicts: list[Finding]) -> Markup:
    citing = [
        f for f in verdicts if any(isinstance(piece, Fact) and _theme(piece.name) == title for piece in f.evidence)
    ]
    found = sorted((f for f in citing if f.verdict == "found"), key=lambda finding: finding.strength == "possible")
    cleared = [finding for finding in citing if finding.verdict == "clear"]
    known = [fact for fact in facts if fact.value is not None]
    blind = [fact for fact in facts if fact.value is None]
    looked = table(("Check", "What it says"), [(code(f.cause), f.say or "no sign of it") for f in cleared])
    return el(
        "section",
        el("div", el("h4", title), _badge(found, cleared, known), cls="nk-card-head"),
        *(_risk(finding) for finding in found),
        "" if found else el("p", _calm(cleared, known, blind)),
        _headline(known),
        fold(f"What was checked and is fine: {len(cleared)}", looked),
        fold(f"Details: {plural(len(known), 'fact')}", fit(known_table(known))),
        fold(f"Could not be read: {len(blind)}", fit(blind_table(blind))),
        cls="nk-card",
    )


def _badge(found: Sequence[Finding], cleared: Sequence[Finding], known: Sequence[Fact]) -> Markup:
    """The worst of what the causes say, as symbol and word."""
    if any(finding.strength != "possible" for finding in found):
        return badge("▲", "problem", "problem")
    if found:
        return badge("△", "risk", "likely")
    if not known:
        return badge("?", "not read", "unread")
    return badge("✓", "checked", "checked") if cleared else badge("·", "for reading", "for-reading")


def _risk(finding: Finding) -> Markup:
    """What a cause found, and behind a click what to do about it."""
    advice = [advice_part(advice) for advice in finding.advice]
    sure = finding.strength != "possible"
    return join(
        el("p", finding.say or finding.cause, cls="nk-bad" if sure else "nk-risk"),
        fold(f"What to do: {finding.cause}", *advice),
    )


def _calm(cleared: Sequence[Finding], known: Sequence[Fact], blind: Sequence[Fact]) -> str:
    """The verdict of a theme in which nothing was found; unread facts are said with it, as unknown is not fine."""
    counts = [fact.value for fact in known if fact.name == "gpu.count"]
    if counts and not any(counts):
        return "No GPU here, so most of this card stays empty: ranks run on the CPU, over gloo."
    unread = f" {plural(len(blind), 'fact')} could not be read." if blind else ""
    if not known:
        return f"Nothing of this could be read.{unread}"
    if not cleared:
        return f"No check decides on these facts alone.{unread}"
    return f"{plural(len(cleared), 'check')} looked here and found nothing wrong.{unread}"


def _headline(known: Sequence[Fact]) -> Markup:
    """The facts of a card that decide most often, as far as they can be said in a few words."""
    held: dict[str, list[Fact]] = defaultdict(list)
    for fact in known:
        if fact.name in FIRST and fact.rank is None:
            held[fact.name].append(fact)
    brief = [(label, _brief(held[name])) for name, label in FIRST.items() if name in held]
    chips = [el("span", el("b", label), " ", words, cls="nk-chip") for label, words in brief if 0 < len(words) <= SHORT]
    return el("p", *chips[:HEADLINE]) if chips else Markup("")


def _brief(facts: Sequence[Fact]) -> str:
    """The value that most hosts have in a few words, lists by the names of their members; empty where words fail."""
    by_value: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_value[repr(fact.value)].append(fact)
    most = max(by_value.values(), key=len)
    if len(most) * 2 <= len(facts):
        return f"{len(by_value):,} different values"
    words = _short(most[0])
    return words if len(most) == len(facts) or not words else f"{words} on {len(most):,} of {len(facts):,} hosts"


def _short(fact: Fact) -> str:
    shown = quantity(fact.value, fact.unit)
    if isinstance(shown, list):
        names = [item.get("name", "") or item.get("device", "") if isinstance(item, dict) else item for item in shown]
        return some(dict.fromkeys(str(name) for name in names if name != "")) or "none"
    if isinstance(shown, dict):
        return ""
    return ("yes" if shown else "no") if isinstance(shown, bool) else str(shown)
