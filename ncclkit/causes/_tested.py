"""What a connection test without a job (``ncclkit connect``) shows: a risk, named with the hosts that would meet it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclkit.case import Case
from ncclkit.causes._words import failed
from ncclkit.evidence.jobs import links
from ncclkit.evidence.jobs.links import Host, Link
from ncclkit.model import Event, Strength


def paths(case: Case, bad: Callable[[Link], bool]) -> list[Link]:
    """The tested paths between hosts that are bad in this respect."""
    return [link for link in links.links(case.events) if bad(link)]


def hosts(case: Case) -> dict[str, Host]:
    """The tested hosts by name."""
    return links.hosts(case.events)


def sound(case: Case, good: Callable[[Link], bool]) -> list[Event]:
    """The tested paths, where every host could be asked and every path is good in this respect; else nothing."""
    tested = links.links(case.events)
    whole = tested and not any(host.problem for host in hosts(case).values())
    return [link.event for link in tested] if whole and all(map(good, tested)) else []


def risk(case: Case) -> Strength:
    """Beside a job that failed a risk is merely possible: what the job itself says weighs more."""
    return "possible" if failed(case) else "likely"


def more(found: Sequence[object], what: str) -> str:
    """`` (and 5 more paths)``, after the first one was named."""
    others = len(found) - 1
    return f" (and {others} more {what}{'s' if others > 1 else ''})" if others else ""


def ends_of(found: Sequence[Link]) -> tuple[str, ...]:
    """The hosts at which these paths end, sorted."""
    return tuple(sorted({link.dst for link in found}))
