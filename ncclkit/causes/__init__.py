"""The catalogue: one known failure per module of this package.

In: a case with its events and facts.  Out: a diagnosis, with a finding of every cause: found, clear
or unknown, with the very lines.  A module's file name is the cause's id, its docstring the page of
the catalogue, ``diagnose(case)`` its check, ``explains`` what follows from it, and
``experiment(case)`` the question that decides.  A name with an underscore is a shared helper.
Begin with `engine.diagnose`, which asks them all, and `gpu_clock_limit`, a short one.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from ncclkit.core.case import Case
from ncclkit.core.model import Experiment, Finding, NcclkitError
from ncclkit.core.text import did_you_mean

HOUSE = (
    "contexts",
    "differential",
    "diagnosis",
    "engine",
    "looks",
    "order",
    "recovery",
    "resemblance",
    "summary",
    "suspicion",
    "suspects",
    "symptoms",
)
"""Modules of this package that are no causes."""
HEADINGS = ("What you see", "Why it happens", "How to be sure", "What to do", "Read more")
"""The headings of every page, in this order."""


class Cause(Protocol):
    """What a module of this package offers."""

    ID: str
    explains: tuple[str, ...]

    def diagnose(self, case: Case) -> Finding:
        """Judge one case."""

    def experiment(self, case: Case) -> Experiment:
        """The question that separates this cause from its rivals, with what each of
        them predicts.
        """


@cache
def catalogue() -> Mapping[str, Cause]:
    """Every cause by id, sorted by id."""
    names = sorted(
        info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")
    )
    module_names = {}
    for name in names:
        if name not in HOUSE:
            module_names[name] = cast(Cause, import_module(f"{__name__}.{name}"))
    return module_names


def page(cause: str) -> dict[str, str]:
    """The catalogue page of one cause: title (key ``""``) and the text under each heading."""
    module = catalogue().get(cause)
    if module is None:
        known = f"`ncclkit causes` lists the {len(catalogue())} known ones."
        raise NcclkitError(
            f"There is no cause {cause!r}; {did_you_mean(cause, catalogue(), known)}"
        )
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in (module.__doc__ or "").splitlines():
        if line.strip() in HEADINGS:
            current = line.strip()
        sections.setdefault(current, [])
        if line.strip() not in HEADINGS:
            sections[current].append(line.strip())
    return {name: "\n".join(lines).strip() for name, lines in sections.items()}
