"""The events of a case in order, found by kind and by rank quickly.

To find them takes no walk over all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from typing import Any, TypeVar

from ncclkit.core.model import Event, Fact

Method = TypeVar("Method", bound=Callable[..., Any])
Places = dict[Hashable, list[int]]
"""What events have in common → where they stand in the list, in their order."""


def _changing_method(method: Method) -> Method:
    """A method of `list` that changes it, after which the index is built anew."""

    @wraps(method)
    def changed(events: EventList, *given: Any, **named: Any) -> Any:
        # before the call, which may raise halfway
        events._by_kind = events._by_rank = None
        return method(events, *given, **named)

    return changed  # type: ignore[return-value]


class EventList(list[Event]):
    """A list of events with an index, which is built when first asked for.

    A job of many ranks leaves many events, and the causes ask for those of a kind or a rank again
    and again.
    """

    __slots__ = ("_by_kind", "_by_rank")

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(events)
        self._by_kind: Places | None = None
        self._by_rank: Places | None = None

    def of_kind(self, kind: str) -> list[Event]:
        """Events of this kind."""
        return self._at(self._kinds().get(kind, ()))

    def of_family(self, prefix: str) -> list[Event]:
        """Events whose kind begins so."""
        kinds = self._kinds()
        members = [kind for kind in kinds if str(kind).startswith(prefix)]
        places = []
        for kind in members:
            places.extend(kinds[kind])
        return self._at(sorted(places))

    def of_rank(self, rank: int) -> list[Event]:
        """Events of this rank."""
        if self._by_rank is None:
            self._by_rank = _places_of_keys(event.rank for event in self)
        return self._at(self._by_rank.get(rank, ()))

    def _kinds(self) -> Places:
        if self._by_kind is None:
            self._by_kind = _places_of_keys(event.kind for event in self)
        return self._by_kind

    def _at(self, places: Iterable[int]) -> list[Event]:
        return [self[place] for place in places]

    append = _changing_method(list.append)
    extend = _changing_method(list.extend)
    insert = _changing_method(list.insert)
    remove = _changing_method(list.remove)
    pop = _changing_method(list.pop)
    clear = _changing_method(list.clear)
    sort = _changing_method(list.sort)
    reverse = _changing_method(list.reverse)
    __setitem__ = _changing_method(list.__setitem__)
    __delitem__ = _changing_method(list.__delitem__)
    __iadd__ = _changing_method(list.__iadd__)
    __imul__ = _changing_method(list.__imul__)


def _places_of_keys(keys: Iterable[Hashable]) -> Places:
    places: Places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return places


def known_hosts(records: Iterable[Event | Fact]) -> set[str]:
    """The hosts that these events or facts name."""
    hosts = set()
    for record in records:
        if record.host:
            hosts.add(record.host)
    return hosts


def known_ranks(records: Iterable[Event | Fact]) -> set[int]:
    """The ranks that these events or facts name."""
    ranks = set()
    for record in records:
        if record.rank is not None:
            ranks.add(record.rank)
    return ranks


def first_host(records: Iterable[Event | Fact]) -> str:
    """The host of the first event or fact that names one; empty where none does."""
    for record in records:
        if record.host:
            return record.host
    return ""
