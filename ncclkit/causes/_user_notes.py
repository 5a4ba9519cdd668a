"""What people tried, as their own words between the lines of a log tell, and what follows for the verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclkit.core.case import Case
from ncclkit.core.model import Event


@dataclass(slots=True)
class Toggle:
    """A package with which the failure comes and goes."""

    fails: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    lines: list[Event] = field(default_factory=list)

    @property
    def fixed_in(self) -> str:
        """The next release after a failing one that works; the newest that works, where all of them are older."""
        works = sorted(set(self.works) - set(self.fails), key=_number)
        return next((version for version in works if _number(version) > _number(self.fails[0])), works[-1])


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def toggles(case: Case) -> dict[str, Toggle]:
    """package → versions with and without the failure; its name is empty where nothing says whose version it is."""
    rows = [trial for event in case.of("told.trial") for trial in event.data["trials"]]
    ours = {event.data.get("version") for event in case.of("nccl.version")}
    nameless = "nccl" if ours & {trial["value"] for trial in rows if not trial["name"]} else ""
    found: dict[str, Toggle] = {}
    for event in case.of("told.trial"):
        for trial in event.data["trials"]:
            if not trial["name"].isupper():
                toggle = found.setdefault(trial["name"] or nameless, Toggle())
                (toggle.works if trial["works"] else toggle.fails).append(trial["value"])
                toggle.lines += [] if event in toggle.lines else [event]
    return {name: toggle for name, toggle in found.items() if set(toggle.works) - set(toggle.fails) and toggle.fails}


def switched(case: Case, package: Iterable[str]) -> tuple[str, Toggle] | None:
    """(name, versions) of the first of these packages whose version alone decides."""
    known = toggles(case)
    return next(((name, known[name]) for name in package if name in known), None)


def sentence(name: str, toggle: Toggle) -> str:
    """``it comes with nccl 2.18.1 and is gone with 2.19.4``."""
    return f"it comes with {name} {toggle.fails[0]} and is gone with {toggle.fixed_in}".replace("  ", " ")


def relieved(case: Case, **variables: str) -> list[Event]:
    """Lines that tell that the failure is gone with one of these variables; ``""`` stands for any value.

    None where one of them failed as well.
    """
    rows = [(trial, event) for event in case.of("told.trial") for trial in event.data["trials"]]
    told = [(t, event) for t, event in rows if t["name"] in variables and variables[t["name"]] in ("", t["value"])]
    return [event for _, event in told] if all(trial["works"] for trial, _ in told) else []
