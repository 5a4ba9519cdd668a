"""What people tried, as their own words between the lines of a log tell, and what follows for the verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclkit.case import Case
from ncclkit.model import Event


@dataclass(slots=True)
class Toggle:
    """A package with which the failure comes and goes."""

    fails: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    lines: list[Event] = field(default_factory=list)


def toggles(case: Case) -> dict[str, Toggle]:
    """package → versions with and without the failure; its name is empty where the sentence has none."""
    found: dict[str, Toggle] = {}
    for event in case.of("told.trial"):
        for trial in event.data["trials"]:
            if not trial["name"].isupper():
                toggle = found.setdefault(trial["name"], Toggle())
                (toggle.works if trial["works"] else toggle.fails).append(trial["value"])
                toggle.lines += [] if event in toggle.lines else [event]
    return {name: toggle for name, toggle in found.items() if set(toggle.works) - set(toggle.fails) and toggle.fails}


def switched(case: Case, package: Iterable[str]) -> tuple[str, Toggle] | None:
    """(name, versions) of the first of these packages whose version alone decides."""
    known = toggles(case)
    return next(((name, known[name]) for name in package if name in known), None)


def sentence(name: str, toggle: Toggle) -> str:
    """``it comes with nccl 2.18.1 and is gone with 2.19.4``."""
    return f"it comes with {name} {toggle.fails[0]} and is gone with {toggle.works[0]}".replace("  ", " ")
