"""What a person holds first: a line or a sentence that many causes share.

In: the lines of a case.  Out: the symptoms that they show, each with its usual suspects; no symptom
proves a cause, and `ncclkit.causes.differential` orders the suspects by what settled cases turned
out to be.  One symptom per module: its docstring is the page, ``WORDS`` finds it in lines, and
``SUSPECTS`` are its causes, each with the reason in one clause.

Begin with `symptoms_in`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from ncclkit.analysis.complaints import without_names
from ncclkit.core.model import Event

NO_SYMPTOMS = ("document",)
"""Modules of this package that are no symptoms."""
HEADINGS = ("What it means", "Whom not to believe", "What to get")
"""The headings of the page of a symptom, in this order."""


class Symptom(Protocol):
    """What a module of this package offers."""

    ID: str
    WORDS: tuple[str, ...]
    """Regular expressions; a line that one of them fits shows the symptom."""
    SUSPECTS: Mapping[str, str]
    """Cause → why it shows this symptom, in one clause, the most usual first."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A symptom, and the line that shows it."""

    symptom: str
    line: Event


@cache
def symptoms() -> Mapping[str, Symptom]:
    """Every symptom by id, sorted by id."""
    found = (info.name for info in pkgutil.iter_modules(__path__))
    names = sorted(name for name in found if name not in NO_SYMPTOMS)
    return {name: cast(Symptom, import_module(f"{__name__}.{name}")) for name in names}


def page_of(symptom: str) -> dict[str, str]:
    """The page of one symptom: its title (key ``""``) and the text under each heading."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in (symptoms()[symptom].__doc__ or "").splitlines():
        words = line.strip()
        if words in HEADINGS:
            current = words
            sections[current] = []
        else:
            sections[current].append(words)
    return {name: "\n".join(lines).strip() for name, lines in sections.items()}


def symptoms_in(lines: Iterable[tuple[str, Event]]) -> tuple[Seen, ...]:
    """The symptoms that these lines show, each with the first line that does."""
    known = [(without_names(line), event) for line, event in lines]
    found: list[Seen] = []
    for name in symptoms():
        pattern = _symptom_pattern(name)
        shown = next((event for line, event in known if pattern.search(line)), None)
        if shown is not None:
            found.append(Seen(name, shown))
    return tuple(found)


@cache
def _symptom_pattern(symptom: str) -> re.Pattern[str]:
    return re.compile("|".join(symptoms()[symptom].WORDS), re.IGNORECASE)
