"""NCCL's RAS report: what it says about each communicator, and what changed from one report to the next.

RAS counts the collectives that each rank has launched.  Ranks of a healthy job drift apart for moments, so a single
report only suspects; a rank that is behind in two reports and launched nothing in between is late.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, clip

Counts = dict[str, dict[int, int]]
"""op → {rank: collectives launched}."""


@dataclass(slots=True)
class Comm:
    """What one report says about one communicator."""

    hash: str
    """As ``commId`` in the log's INIT lines."""
    size: int | None = None
    line: int = 0
    said: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)
    """Of the ranks that the report names."""
    shares: Counts = field(default_factory=dict)
    """op → {count: number of ranks that have it}; text reports alone."""
    errors: dict[int, str] = field(default_factory=dict)

    def launched(self) -> Counts:
        """Counts of all ranks: what a text report says of "3 ranks" goes to those that it does not name."""
        full = {op: dict(counts) for op, counts in self.counts.items()}
        for op, shares in self.shares.items():
            counts = full.setdefault(op, {})
            named = Counter(counts.values())
            rest = {count: number for count, number in shares.items() if named[count] != number}
            unnamed = set(range(min(self.size or 0, 1 << 20))) - counts.keys() - {*self.missing, *self.dead}
            if len(rest) == 1 and len(unnamed) == next(iter(rest.values())):
                counts |= dict.fromkeys(unnamed, next(iter(rest)))
        return full

    def tops(self) -> dict[str, int]:
        """op → the highest count that the report tells, of whatever rank."""
        launched = self.launched()
        return {op: max([0, *counts.values(), *self.shares.get(op, {})]) for op, counts in launched.items()}

    def behind(self) -> list[int]:
        """Ranks whose count is below the highest that the report tells for the operation."""
        tops = self.tops()
        return sorted({rank for op, counts in self.launched().items() for rank in counts if counts[rank] < tops[op]})

    def event(self, report: Report) -> Event:
        """The ``ras.communicator`` of a report."""
        data = {
            "hash": self.hash,
            "size": self.size,
            "missing": self.missing,
            "counts": {op: _texts(counts) for op, counts in self.counts.items() if any(counts.values())},
            "behind": self.behind(),
            "dead": self.dead,
            "errors": _texts(self.errors),
        }
        return Event("ras.communicator", clip("\n".join(self.said)), report.path, self.line, report.time, data=data)


@dataclass(slots=True)
class Report:
    """One report of one job, text or JSON."""

    path: str
    form: str
    version: str = ""
    time: float | None = None
    """Seconds since the epoch; JSON alone tells it."""
    said: list[str] = field(default_factory=list)
    nodes: int = 0
    processes: int = 0
    total: int = 0
    """Communicators of the job."""
    sound: int = 0
    """Communicators without a remark."""
    silent: list[str] = field(default_factory=list)
    """``host:pid`` of processes that did not answer in time."""
    dead: list[str] = field(default_factory=list)
    """``host:pid`` of processes that RAS has given up."""
    timeouts: int = 0
    comms: dict[str, Comm] = field(default_factory=dict)
    """By hash; of a text report those that it remarks on."""

    def events(self) -> list[Event]:
        """The report as a whole, then each communicator it has something to say about."""
        data = {
            name: getattr(self, name)
            for name in ("version", "nodes", "processes", "total", "sound", "silent", "dead", "timeouts")
        }
        data["communicators"] = data.pop("total")
        head = Event("ras.report", clip("\n".join(self.said)), self.path, 0, self.time, data=data)
        return [head, *(comm.event(self) for comm in self.comms.values())]


def _texts(counts: dict[int, Any]) -> Data:
    return {str(rank): count for rank, count in counts.items()}


def identity(text: str) -> str:
    """A communicator's hash as NCCL's log writes it: ``07c1…`` and ``0x7c1…`` are one."""
    return f"0x{int(text, 16):x}" if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}", text) else text[:40]


def changes(reports: Iterable[Report]) -> Iterator[Event]:
    """One ``ras.change`` for each communicator and two successive reports that know it."""
    ordered = list(reports)
    if all(report.time is not None for report in ordered):
        ordered.sort(key=lambda report: report.time or 0.0)
    known: dict[str, Report] = {}
    for report in ordered:
        for key, earlier in list(known.items()):
            yield from _change(key, earlier, report)
        known |= dict.fromkeys(report.comms, report)


def _change(key: str, first: Report, second: Report) -> Iterator[Event]:
    before, after = first.comms[key].launched(), _later(key, first, second)
    moved: dict[str, dict[str, int]] = {}
    still = set()
    for op, counts in after.items():
        for rank, count in counts.items():
            start = before.get(op, {}).get(rank)
            if start is None or count < start:
                continue
            still.add(rank)
            if count > start:
                moved.setdefault(str(rank), {})[op] = count - start
    if not still:
        return
    rest = sorted(still - {int(rank) for rank in moved})
    seconds = None if first.time is None or second.time is None else second.time - first.time
    comm = second.comms.get(key, first.comms[key])
    say = f"communicator {key}, from {os.path.basename(first.path)} to {os.path.basename(second.path)}"
    say += f"{f' ({seconds:g} s)' if seconds else ''}: {_motion(len(moved), rest)}"
    data = {"hash": key, "moved": moved, "still": rest, "seconds": seconds, "behind": comm.behind()}
    yield Event("ras.change", "\n".join([say, *comm.said])[:1500], second.path, comm.line, second.time, data=data)


def _motion(moved: int, rest: list[int]) -> str:
    if not moved or not rest:
        return f"{'all' if moved else 'none of the'} {moved + len(rest)} ranks launched collectives"
    names = ", ".join(map(str, rest[:16])) + (" …" if len(rest) > 16 else "")
    return f"{moved} ranks launched collectives, ranks {names} did not"


def _later(key: str, first: Report, second: Report) -> Counts:
    """Counts of the second report; where its text has no remark any more, those that were behind have caught up."""
    if key in second.comms:
        return second.comms[key].launched()
    same = (first.form, first.total, os.path.dirname(first.path)) == (
        "text",
        second.total,
        os.path.dirname(second.path),
    )
    if not same or second.form != "text" or second.sound <= first.sound:
        return {}
    before = first.comms[key]
    tops, late = before.tops(), set(before.behind())
    return {op: dict.fromkeys(late & counts.keys(), tops[op]) for op, counts in before.launched().items()}
