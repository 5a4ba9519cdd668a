"""What one file gave, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclkit.core.model import Event, Fact, Measurement
from ncclkit.evidence import tools
from ncclkit.evidence.flight import dumps
from ncclkit.evidence.ras import report
from ncclkit.evidence.scanner import pieces
from ncclkit.evidence.sources.streams import Hashed
from ncclkit.evidence.tools import Document

Spread = Callable[[Callable[[pieces.Piece], pieces.Found], Sequence[pieces.Piece]], Iterator[pieces.Found]]
"""`map`, or that of an executor."""


@dataclass(slots=True)
class Part:
    """What one file gave."""

    path: str
    kind: str = "unknown"
    bytes: int = 0
    lines: int = 0
    sha256: str = ""
    rank: int | None = None
    """From the file's name."""
    speakers: list[int] = field(default_factory=list)
    """Ranks that some line of it names as its speaker."""
    events: list[Event] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    dump: dumps.Dump | None = None
    report: report.Report | None = None
    problems: list[str] = field(default_factory=list)
    """One sentence per thing that went wrong."""
    spread: Spread | None = None
    """How the pieces of a plain file are scanned; None for what is no plain file."""
    hashed: Hashed | None = None
    """Its digest, as long as it is read."""

    def take(self, found: Sequence[Document]) -> None:
        """Add what other tools printed here; a file with nothing else in it is of their kind."""
        if found and all(event.kind == "progress" for event in self.events):
            self.kind = found[0].tool
        hosts = {event.host for event in self.events if event.host}
        host = hosts.pop() if len(hosts) == 1 else ""
        self.facts = [replace(fact, host=host) for fact in tools.facts(found)]
        self.measurements = [measurement for document in found for measurement in document.measurements]
        self.events += [event for document in found for event in document.events]
        self.problems += [f"{self.path} {document.problem}" for document in found if document.problem]

    def row(self, events: int, errors: int) -> dict[str, Any]:
        """The line of ``inputs.json``; errors: lines that call themselves so, and that no grammar knows."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "lines": self.lines,
            "kind": self.kind,
            "sha256": self.sha256,
            "events": events,
            "errors": errors,
            "ranks": sorted({*self.speakers, *([] if self.rank is None else [self.rank])}),
        }
