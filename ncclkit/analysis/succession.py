"""What came after what: by place in a file, else by time."""

from __future__ import annotations

from collections.abc import Iterable

from ncclkit.core.model import Event


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
            path, line, time = event.path, event.line, event.time
            self._first_line[path] = min(line, self._first_line.get(path, line))
            self._last_line[path] = max(line, self._last_line.get(path, line))
            if time is not None:
                first_time[path] = min(time, first_time.get(path, time))
                last_time[path] = max(time, last_time.get(path, time))
        # two files are enough: times count only between files, so at most one of them is the
        # event's own
        self._earliest = sorted((time, path) for path, time in first_time.items())[:2]
        self._latest = sorted((time, path) for path, time in last_time.items())[-2:]

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
