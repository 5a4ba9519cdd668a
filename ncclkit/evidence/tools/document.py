"""What a tool's output is made of.

That is where it begins, and the facts and events in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclkit.core.model import Event, Fact, Measurement

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Document:
    """The output of one command; sources and paths are filled in by who found it."""

    tool: str
    """The command, as a user would type it."""
    facts: list[Fact] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    problem: str = ""
    """What is wrong with it, as the end of a sentence that begins with the file's name."""

    def placed(self, path: str, line: int, rank: int | None = None) -> Document:
        """The same, with its place as the source of all it holds."""
        if line:
            place = f"{path}:{line}"
        else:
            place = path
        return replace(
            self,
            facts=[
                replace(fact, source=f"{place} ({self.tool})", rank=rank) for fact in self.facts
            ],
            measurements=[replace(m, run=f"{place} ({m.run})") for m in self.measurements],
            events=[replace(event, path=path, line=line, rank=rank) for event in self.events],
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """How to find and read the output of one command."""

    anchors: tuple[bytes, ...]
    """Literals; the text contains at least one of them."""
    start: re.Pattern[str]
    """The line at which `read` is tried."""
    read: Callable[[Sequence[str], int], Document | None]
    """The document at that line of these lines; None where it only looks like one."""


def document_of(
    tool: str, values: dict[str, Any], units: dict[str, str] | None = None
) -> Document | None:
    """A document of facts, without those whose value is None.

    It is None where nothing is left.
    """
    facts = [
        Fact(name, value, (units or {}).get(name, ""))
        for name, value in values.items()
        if value is not None
    ]
    if facts:
        return Document(tool, facts)
    return None


def leading_number(text: str) -> int | float | None:
    """The number that a text begins with.

    It is None where there is none or it cannot be meant.
    """
    match = re.match(r"\s*(-?\d{1,18}(?:\.\d{1,9})?)(?![\d.])", text, re.ASCII)
    if match is None:
        return None
    if "." in match[1]:
        return float(match[1])
    return int(match[1])
