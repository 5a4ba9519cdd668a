"""How far each rank came: progress bars and step counters.  Only the last word per rank and file counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.evidence.grammar import Line
from ncclkit.model import Event

ANCHORS = (b"%|", b"it/s", b"s/it", b"step", b"Step", b"iter", b"finish")
"""Looked for from the end of each block, a bounded number of times: progress is frequent and only its end matters."""
LOOKS = 200
REACH = 1 << 20
"""Bytes at the end of a block in which progress is looked for."""

BAR = re.compile(
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15}|\?) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+), +(?P<rate>[\d.?]+ ?\w+/\w+)"
)
COUNTER = re.compile(
    r"\b(?:global_?step|[Ss]tep|iter(?:ation)?|finish)\b[\s:=\[]{1,3}(?P<step>\d{1,15})(?:/(?P<total>\d{1,15}))?"
    r"(?![\d.(])"
)


def read(line: Line) -> Iterator[Event]:
    """The last bar or counter of a line."""
    bars = list(BAR.finditer(line.text))
    match = bars[-1] if bars else COUNTER.search(line.text)
    if match:
        total = match["total"]
        data = {
            "step": int(match["step"]),
            "total": int(total) if total and total.isdigit() else None,
            "rate": match.groupdict().get("rate"),
        }
        yield line.event("progress", data)
