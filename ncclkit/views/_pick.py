"""Which events a filter picks, and which of them say the same.  No widget here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ncclkit.analysis.timeline import abnormal
from ncclkit.core.model import Event

ALL, ODD = "all", "abnormal"
RANKS = re.compile(r"\s*\d{1,7}(\s*[-–]\s*\d{1,7})?(\s*,\s*\d{1,7}(\s*[-–]\s*\d{1,7})?)*\s*")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def pick(events: Sequence[Event], kind: str = ALL, rank: str = ALL, words: str = "", host: str = ALL) -> list[Event]:
    """Events of one kind, of some ranks (``5``, ``0-7, 12``), of one host, with these words in their text or path.

    `ALL` and empty words leave a filter open, the kind `ODD` takes what a healthy job would not have said.
    """
    wanted, ranks = words.casefold(), _ranks(rank)
    return [
        event
        for event in events
        if (kind in (ALL, event.kind) or (kind == ODD and abnormal(event)))
        and (host in (ALL, event.host))
        and (ranks is None or any(low <= event.rank <= high for low, high in ranks if event.rank is not None))
        and (not wanted or wanted in f"{event.text}\n{event.path}".casefold())
    ]


def gather(events: Iterable[Event]) -> list[list[Event]]:
    """Events that say the same, but for numbers, together; the rarest first: of a thousand ranks the odd one counts."""
    alike: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        alike.setdefault((event.kind, _NUMBERS.sub("#", excerpt(event)[:400])[:200]), []).append(event)
    return sorted(alike.values(), key=len)


def excerpt(event: Event) -> str:
    """The line of its raw text that says most: the last one of a traceback, the first one of everything else."""
    lines = [line for line in event.text.splitlines() if line.strip()] or [""]
    return lines[-1 if event.kind == "python.exception" else 0]


def _ranks(words: str) -> list[tuple[int, int]] | None:
    """``0-7, 12`` → [(0, 7), (12, 12)]; None for all."""
    if words == ALL or not RANKS.fullmatch(words):
        return None
    ends = ([int(number) for number in re.findall(r"\d+", part)] for part in words.split(","))
    return [(numbers[0], numbers[-1]) for numbers in ends]
