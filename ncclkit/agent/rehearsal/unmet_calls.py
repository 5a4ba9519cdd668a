"""Sends and recvs that nobody has met yet, by whom each may meet."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from .calls import Call

Mailbox = tuple[int, str, int]
"""The rank that receives, the group and the tag."""


class UnmetCall(NamedTuple):
    """A call that waits for its counterpart."""

    order: int
    """How many were posted before it."""
    rank: int
    call: Call


Queues = dict["int | None", "deque[UnmetCall]"]
"""The rank that sends → its calls, oldest first; under None recvs from whoever sends."""


class UnmetCalls:
    """Finds the oldest counterpart without a look at all others.

    A send that nobody waits for costs a script nothing, so there may be thousands of them.
    """

    def __init__(self) -> None:
        self._sends: dict[Mailbox, Queues] = defaultdict(dict)
        self._recvs: dict[Mailbox, Queues] = defaultdict(dict)
        self._posted = 0

    def take_partner(self, rank: int, call: Call) -> tuple[int, Call] | None:
        """The oldest call that this one may meet, and its rank; it is kept no longer."""
        others = self._sends
        if call.op == "send":
            others = self._recvs
        queues = others.get(_mailbox_of(rank, call), {})
        oldest: deque[UnmetCall] | None = None
        for source in _sources_of(rank, call, queues):
            queue = queues.get(source)
            if queue and queue[0].rank != rank:
                if oldest is None or queue[0].order < oldest[0].order:
                    oldest = queue
        if oldest is None:
            return None
        found = oldest.popleft()
        return found.rank, found.call

    def add_call(self, rank: int, call: Call) -> None:
        """Keep a call that nobody has met."""
        self._posted += 1
        own = self._recvs
        source = call.peer
        if call.op == "send":
            own = self._sends
            source = rank
        queue = own[_mailbox_of(rank, call)].setdefault(source, deque())
        queue.append(UnmetCall(self._posted, rank, call))


def _mailbox_of(rank: int, call: Call) -> Mailbox:
    receiver = rank
    # only a recv may name no peer
    if call.op == "send" and call.peer is not None:
        receiver = call.peer
    return receiver, call.group, call.tag


def _sources_of(rank: int, call: Call, queues: Queues) -> tuple[int | None, ...]:
    """Whose calls may meet this one."""
    if call.op == "send":
        return rank, None
    if call.peer is None:
        return tuple(queues)
    return (call.peer,)
