"""The catalogue: one known failure per module of this package.

In: a case with its events and facts.  Out: a diagnosis, with a finding of every cause: found, clear
or unknown, with the very lines.  A module's file name is the cause's id, its docstring the page of
the catalogue, ``diagnose(case)`` its check, ``explains`` what follows from it, ``experiment(case)``
the question that decides, and ``REMEDIES`` what helps.  A name with an underscore is a shared
helper.

Begin with `engine.diagnose`, which asks them all, and `gpu_clock_limit`, a short one.
"""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Experiment, Finding, NcclkitError
from ncclkit.core.text import did_you_mean

HOUSE = (
    "attempts",
    "contexts",
    "decision",
    "differential",
    "diagnosis",
    "engine",
    "looks",
    "order",
    "ranking",
    "recovery",
    "resemblance",
    "restart_or_stop",
    "summary",
    "suspicion",
    "suspects",
    "symptoms",
)
"""Modules of this package that are no causes."""
HEADINGS = ("What you see", "Why it happens", "How to be sure", "What to do", "Read more")
"""The headings of every page, in this order."""
DO = "What to do"
"""The heading under which a page prints its remedies.

Its docstring adds what they do not say.
"""
TO_COPY = "    "
"""How a paragraph of a page begins that is to be copied as it stands."""
WIDTH = 96
"""Columns of a line of a page."""


class Cause(Protocol):
    """What a module of this package offers."""

    ID: str
    explains: tuple[str, ...]
    REMEDIES: tuple[Advice, ...]
    """Every advice that its findings may give, for a job of which nothing is known."""

    def diagnose(self, case: Case) -> Finding:
        """Judge one case."""

    def experiment(self, case: Case) -> Experiment:
        """The question that separates this cause from its rivals.

        It comes with what each of them predicts.
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
    module = _known_cause(cause)
    written = _written_sections(module)
    sections = {"": written[""]}
    for heading in HEADINGS:
        sections[heading] = written.get(heading, "")
    printed = [_printed_remedy(advice) for advice in remedies_of(cause)]
    if sections[DO]:
        printed.append(sections[DO])
    sections[DO] = "\n\n".join(printed)
    return sections


def what_to_do(cause: str) -> str:
    """The remedies of one cause as flowing text, each with what it sets or runs."""
    sentences = [_remedy_in_words(advice) for advice in remedies_of(cause)]
    own_words = _written_sections(_known_cause(cause)).get(DO, "")
    return " ".join([*sentences, *own_words.split()])


def remedies_of(cause: str) -> tuple[Advice, ...]:
    """Every advice of one cause."""
    return _known_cause(cause).REMEDIES


def _known_cause(cause: str) -> Cause:
    module = catalogue().get(cause)
    if module is None:
        known = f"`ncclkit causes` lists the {len(catalogue())} known ones."
        raise NcclkitError(
            f"There is no cause {cause!r}; {did_you_mean(cause, catalogue(), known)}"
        )
    return module


def _written_sections(module: Cause) -> dict[str, str]:
    """Heading → the text that the docstring of a cause has under it."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in (module.__doc__ or "").splitlines():
        if line.strip() in HEADINGS:
            current = line.strip()
            sections[current] = []
        else:
            sections[current].append(line.strip())
    return {name: "\n".join(lines).strip() for name, lines in sections.items()}


def _printed_remedy(advice: Advice) -> str:
    """One advice as paragraphs of a page.

    They are what to do and its risk, and what can be copied.
    """
    words = advice.do
    if advice.risk.rstrip(".") not in ("", "None"):
        words = f"{words} Risk: {advice.risk}"
    paragraphs = [textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False)]
    if advice.to_copy:
        paragraphs.append(textwrap.indent("\n".join(advice.to_copy), TO_COPY))
    return "\n\n".join(paragraphs)


def _remedy_in_words(advice: Advice) -> str:
    """One advice as a sentence; code of several lines would not be read in it."""
    settings = [f"{name}={value}" for name, value in advice.env.items()]
    code = advice.code
    # code of several lines cannot be read within a sentence
    if "\n" in code:
        code = ""
    how = "; ".join(filter(None, [*settings, advice.command, code]))
    if how:
        return f"{advice.do.rstrip('.')}: `{how}`."
    return advice.do
