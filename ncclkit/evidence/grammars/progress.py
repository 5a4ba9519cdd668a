"""How far each rank came: progress bars and step counters.  Only the last word per rank and file counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Line

ANCHORS = (b"%|", b"it/s", b"s/it", b"step", b"Step", b"iter", b"finish", b"layer ", b"shard ", b"chunk ", b"file ")
LOOK = 8 << 10
"""Bytes at the end of a block in which progress is looked for: it is frequent, and only its end matters."""
REACH = 256 << 10
"""Bytes of the largest step farther back, where speakers were found."""
UNNAMED = 8
"""Lines without a label that are looked at there."""
WIDE = 2048
"""Bytes at the end of a longer line in which it is looked for."""

BAR = re.compile(
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15}|\?) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+), +(?P<rate>[\d.?]+ ?\w+/\w+)"
)
COUNTER = re.compile(
    r"\b(?:global_?step|[Ss]tep|iter(?:ation)?|finish|(?:layer|shard|chunk|file)(?= \d{1,15}/\d))\b"
    r"[\"']?[\s:=\[]{1,12}(?P<step>\d{1,15})(?:/ {0,8}(?P<total>\d{1,15}))?"
    r"(?![\d.(])"
)
LABEL = re.compile(
    rb"\s*(?:\[[A-Za-z_]+\d+(?:\|\d+)?\]:|\[\d+,\d+\]<|\(\w+ (?:rank=\d+ )?pid=\d+[^)]{0,60}\)|\d{1,5}: )"
)
STARTS = frozenset(bytes([byte]) for byte in b" \t[(0123456789")
RANK = re.compile(rb"\[rank\d+\]")
"""What tells the speakers of one file apart."""


def read(line: Line) -> Iterator[Event]:
    """The last bar or counter of a line."""
    if match := _last(line.text):
        total = match["total"]
        data = {
            "step": int(match["step"]),
            "total": int(total) if total and total.isdigit() else None,
            "rate": match.groupdict().get("rate"),
        }
        yield line.event("progress", data)


def _last(text: str) -> re.Match[str] | None:
    bars = list(BAR.finditer(text)) if "<" in text else []
    return bars[-1] if bars else COUNTER.search(text)


@dataclass(slots=True)
class Word:
    """A line that tells its speaker's progress."""

    step: int
    raw: bytes
    back: int
    """Line ends between it and the end of what was searched."""


Spoken = dict[tuple[bytes, ...], Word]


def latest(data: bytes, limit: int, *, shared: bool, keen: bool, back: bool) -> Spoken:
    """The last line of each speaker that tells its progress, looked for in the last `LOOK` bytes before `limit`.

    shared: many may speak without a label; back: farther back where there is nothing; keen (the file ends here):
    farther back too, until no more speakers are found.
    """
    found: Spoken = {}
    high, size, ends = limit, LOOK, 0
    while high > 0:
        low = max(0, high - size)
        low = low and (data.find(b"\n", low, high) + 1 or low)
        known = len(found)
        ends = _collect(data[low:high], ends, found, shared)
        if found and not (keen and len(found) > known and size < REACH):
            break
        if not found and not back:
            break
        high, size = low, size * 4
    return found


def _collect(text: bytes, ends: int, found: Spoken, shared: bool) -> int:
    """Add the speakers of these lines, the last first; of unnamed ones that share a file the furthest counts.

    `ends` line ends follow this text; returned are those that follow its first line.
    """
    tries, at = UNNAMED, ends
    for at, line in enumerate(reversed(text.split(b"\n")), ends):
        for raw in reversed(line.split(b"\r")) if b"\r" in line else (line,):
            who = _who(raw)
            again = who in found
            if again and (who or not shared or not tries):
                continue
            for anchor in ANCHORS:
                if anchor in raw:
                    tries -= not who
                    if match := _last(raw[-WIDE:].decode("utf-8", "replace")):
                        step = int(match["step"])
                        if not again or step > found[who].step:
                            found[who] = Word(step, raw[-WIDE:], at)
                    break
    return at


def _who(raw: bytes) -> tuple[bytes, ...]:
    label = LABEL.match(raw) if raw[:1] in STARTS else None
    rank = RANK.search(raw) if b"[rank" in raw else None
    return tuple([match[0] for match in (label, rank) if match])
