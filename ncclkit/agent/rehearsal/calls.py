"""What a rank is about to call, and whether calls of several ranks fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of a process group, as its rank announces it before it is made."""

    number: int
    """Of the rank: its first call has 1."""
    group: str
    members: tuple[int, ...]
    """Global ranks, in the order of the group."""
    op: str
    place: str
    """file:line of the user's program."""
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    reduce: str = ""
    root: int | None = None
    """Global rank of the source or destination of a rooted collective."""
    sizes: tuple[int, ...] = ()
    """Elements that must be equal on all members."""
    gives: tuple[int, ...] = ()
    """Elements for each member, or one number that holds for all of them."""
    takes: tuple[int, ...] = ()
    """Elements that are expected of each member; empty where none are."""
    peer: int | None = None
    """Global rank at the other end of a send or recv; None for any."""
    tag: int = 0

    @property
    def words(self) -> str:
        """The call in a sentence: all_reduce(SUM) of float32[4]."""
        details: list[str] = [self.reduce]
        if self.root is not None:
            details.append("root %d" % self.root)
        given = ", ".join(word for word in details if word)
        words = self.op
        if given:
            words = "%s(%s)" % (words, given)
        tensors = ["%s%s" % pair for pair in zip(self.dtypes, self.shapes)]
        if tensors:
            words += " of %s" % ", ".join(tensors[:SHOWN])
        if len(tensors) > SHOWN:
            words += " and %d more" % (len(tensors) - SHOWN)
        if self.op == "send":
            words += " to rank %s" % self.peer
        elif self.op == "recv":
            words += " from %s" % ("any rank" if self.peer is None else "rank %d" % self.peer)
        return words


SHOWN = 3
"""Tensors of a call that its words name."""
POINT_TO_POINT = ("send", "recv")


def call_of(record: Mapping[str, Any]) -> Call:
    """The call in a message of a rank."""
    fields = {name: record[name] for name in Call._fields if name in record}
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
    return Call(**fields)


def differing_field(calls: Mapping[int, Call]) -> str:
    """The name of the first field in which calls of one collective differ; empty where they fit.

    calls: global rank → its call.  What may differ (names of files, shapes of as many elements)
    is not compared.
    """
    for name in ("op", "root", "reduce", "dtypes", "sizes"):
        values = {getattr(call, name) for call in calls.values()}
        if len(values) > 1:
            return name
    if any(True for _ in unequal_pairs(calls)):
        return "splits"
    return ""


def unequal_pairs(calls: Mapping[int, Call]) -> Iterator[tuple[int, int, int, int]]:
    """Yields (sender, receiver, elements sent, elements expected) where these differ."""
    for receiver, call in calls.items():
        for sender, expected in zip(call.members, call.takes):
            if sender not in calls:
                continue
            sent = _elements_for(calls[sender], receiver)
            if sent is not None and sent != expected:
                yield sender, receiver, sent, expected


def _elements_for(call: Call, receiver: int) -> int | None:
    """Elements that a call gives to a rank; None where it does not say."""
    if not call.gives:
        return None
    if len(call.gives) == 1:
        return call.gives[0]
    return call.gives[call.members.index(receiver)]


def fits_pair(send: Call, recv: Call) -> bool:
    """Whether a send and the recv that it meets agree."""
    return send.dtypes == recv.dtypes and send.sizes == recv.sizes
