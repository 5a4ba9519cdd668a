"""Events found among many, by kind, rank, host and words.

It also puts those together that say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ncclkit.analysis.timeline import abnormal
from ncclkit.core.model import Event

ALL, ABNORMAL = "all", "abnormal"
RANKS = re.compile(r"\s*\d{1,7}(\s*[-–]\s*\d{1,7})?(\s*,\s*\d{1,7}(\s*[-–]\s*\d{1,7})?)*\s*")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def select_events(
    events: Sequence[Event], kind: str = ALL, rank: str = ALL, words: str = "", host: str = ALL
) -> list[Event]:
    """Events of one kind, of some ranks, of one host, with these words.

    Ranks are written ``5`` or ``0-7, 12``; the words stand in the text or path.  `ALL` and empty
    words leave a filter open, the kind `ABNORMAL` takes what a healthy job would not have said.
    """
    wanted = words.casefold()
    ranks = _ranks(rank)
    selected = []
    for event in events:
        if not _is_of_kind(event, kind):
            continue
        if host not in (ALL, event.host):
            continue
        if ranks is not None and not _is_of_ranks(event, ranks):
            continue
        if wanted in f"{event.text}\n{event.path}".casefold():
            selected.append(event)
    return selected


def _is_of_kind(event: Event, kind: str) -> bool:
    if kind == ABNORMAL:
        return abnormal(event)
    return kind in (ALL, event.kind)


def _is_of_ranks(event: Event, ranks: Sequence[tuple[int, int]]) -> bool:
    if event.rank is None:
        return False
    for low, high in ranks:
        if low <= event.rank <= high:
            return True
    return False


def group_alike(events: Iterable[Event]) -> list[list[Event]]:
    """Events that say the same, but for numbers, together.

    The rarest come first: of a thousand ranks the odd one counts.
    """
    alike: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        words = _NUMBERS.sub("#", excerpt(event)[:400])[:200]
        alike.setdefault((event.kind, words), []).append(event)
    return sorted(alike.values(), key=len)


def is_rank_list(words: str) -> bool:
    """Whether words name ranks as `select_events` takes them, ``0-7, 12``."""
    return RANKS.fullmatch(words) is not None


def excerpt(event: Event) -> str:
    """The line of its raw text that says most.

    It is the last one of a traceback, the first one of everything else.
    """
    lines = [line for line in event.text.splitlines() if line.strip()]
    if not lines:
        return ""
    if event.kind == "python.exception":
        return lines[-1]
    return lines[0]


def _ranks(words: str) -> list[tuple[int, int]] | None:
    """``0-7, 12`` → [(0, 7), (12, 12)]; None for all."""
    if words == ALL or not is_rank_list(words):
        return None
    ranges = []
    for part in words.split(","):
        numbers = [int(number) for number in re.findall(r"\d+", part)]
        ranges.append((numbers[0], numbers[-1]))
    return ranges
