"""Entries of the Flight Recorder that somebody printed in a log.

They show what each rank had in flight, in its order.
"""

from __future__ import annotations

from dataclasses import replace

from ncclkit.core.case import Case
from ncclkit.core.kinds import FlightEntry
from ncclkit.core.model import Event
from ncclkit.evidence.flight.compare import EQUAL_INPUT


def pending_calls(case: Case) -> list[list[Event]]:
    """The entries of one rank each that did not complete, in order.

    The order is that in which they were made.  A rank's entries stand together: a line that names
    another rank, or one in between, begins the next one's.
    """
    found: list[list[Event]] = []
    owner = None
    after = ("", 0)
    for event in case.of(FlightEntry):
        # the first line of a queue names its rank, the following ones need not
        if (event.path, event.line) != after or event.rank not in (None, owner):
            found.append([])
            owner = event.rank
        after = event.path, event.line + 1
        if event.data.state != "completed":
            found[-1].append(replace(event, rank=owner))
    return [queue for queue in found if queue]


def opposite_order(case: Case) -> list[Event]:
    """Entries of two ranks that run the same two groups in opposite order.

    Their work of these groups is in flight.
    """
    orders = [
        (list(dict.fromkeys(_group_name(event) for event in queue)), queue)
        for queue in pending_calls(case)
    ]
    # what runs first on a rank is what its GPU waits in
    first_of = {tuple(names[:2]): queue for names, queue in reversed(orders)}
    for names, queue in orders:
        theirs = None
        if len(names) > 1:
            theirs = first_of.get(tuple(names[1::-1]))
        if theirs:
            return [*queue[:2], *theirs[:2]]
    return []


def _group_name(event: Event) -> str:
    """The kind of a group where it has a description.

    Its members differ from rank to rank.
    """
    return str(event.data.desc or event.data.group)


def blocked_pairs(case: Case) -> list[Event]:
    """The first calls in flight of two partners that block each other.

    Both send to each other, or both wait for each other.
    """
    heads = []
    for queue in pending_calls(case):
        if queue[0].data.op in ("send", "recv"):
            heads.append(queue[0])
    # the same call from both ends: two that both send, or both receive
    first_of = {(two.data.peer, two.rank, two.data.op): two for two in reversed(heads)}
    for one in heads:
        two = first_of.get((one.rank, one.data.peer, one.data.op))
        if two is not None and None not in (one.rank, two.rank):
            return sorted((one, two), key=lambda event: event.rank or 0)
    return []


def differing_entries(case: Case, what: str) -> list[Event]:
    """Entries of one group and number that differ between ranks in `what`.

    `what` is ``op`` or ``sizes``.  Sizes are compared only where every rank has to bring as many
    elements: an uneven all_to_all is legal.
    """
    calls: dict[tuple[str, int], list[Event]] = {}
    for queue in pending_calls(case):
        for event in queue:
            comparable = what != "sizes" or event.data.op in EQUAL_INPUT
            # calls between two ranks count for themselves
            in_order = event.data.seq is not None and event.data.peer is None
            if comparable and in_order and printed_value(event, what):
                calls.setdefault((event.data.group, event.data.seq), []).append(event)
    for events in calls.values():
        if len({printed_value(event, what) for event in events}) > 1:
            return events
    return []


def printed_value(event: Event[FlightEntry], what: str) -> str:
    """The operation or the sizes of an entry."""
    if what == "op":
        return event.data.op
    return event.data.sizes
