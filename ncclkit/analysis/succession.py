"""What came after what: by place in a file, else by time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ncclkit.core.model import Event

Place = TypeVar("Place", int, float)
"""The number of a line, or a time."""


def is_later(one: Event, two: Event) -> bool:
    """Whether one event is later, by place in a file, else by time.

    It is False where neither says.
    """
    if one.path == two.path:
        return one.line > two.line
    return one.time is not None and two.time is not None and one.time > two.time


class Span:
    """The stretch from the first to the last of some events.

    So none has to be compared with all of them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._first_line: dict[str, int] = {}
        self._last_line: dict[str, int] = {}
        first_time: dict[str, float] = {}
        last_time: dict[str, float] = {}
        for event in events:
            _widen(self._first_line, self._last_line, event.path, event.line)
            if event.time is not None:
                _widen(first_time, last_time, event.path, event.time)
        # two files are enough: times count only between files, so at most one of them is the
        # event's own
        self._earliest = _times_and_paths(first_time)[:2]
        self._latest = _times_and_paths(last_time)[-2:]

    def ends_after(self, event: Event) -> bool:
        """Whether any of the events `is_later` than this one."""
        if self._last_line.get(event.path, event.line) > event.line:
            return True
        now = event.time
        return now is not None and any(
            time > now and path != event.path for time, path in self._latest
        )

    def begins_before(self, event: Event) -> bool:
        """Whether this event `is_later` than any of the events."""
        if self._first_line.get(event.path, event.line) < event.line:
            return True
        now = event.time
        return now is not None and any(
            time < now and path != event.path for time, path in self._earliest
        )


def _widen(first: dict[str, Place], last: dict[str, Place], path: str, place: Place) -> None:
    """Let the stretch of a file reach to this place."""
    first[path] = min(place, first.get(path, place))
    last[path] = max(place, last.get(path, place))


def _times_and_paths(time_of_path: dict[str, float]) -> list[tuple[float, str]]:
    return sorted((time, path) for path, time in time_of_path.items())
