"""What a rank is about to call, and whether calls of several ranks fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of a process group, as its rank announces it before it is made."""

    number: int
    """Of the rank: its first call has 1."""
    group: str
    members: tuple[int, ...]
    """Global ranks, in the order of the group."""
    place: str
    """file:line of the user's program."""
    op: str
    root: int | None = None
    """Global rank of the source or destination of a rooted collective."""
    reduce: str = ""
    dtypes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    """Elements that must be equal on all members."""
    shapes: tuple[str, ...] = ()
    gives: tuple[int, ...] = ()
    """Elements for each member, or one number that holds for all of them."""
    takes: tuple[int, ...] = ()
    """Elements that are expected of each member; empty where none are."""
    peer: int | None = None
    """Global rank at the other end of a send or recv; None for any."""
    tag: int = 0
    backend: str = "nccl"
    """Whose rules hold in the group: those of `nccl` or of `gloo`."""
    owner: str = ""
    """The model whose gradients these are; empty where it is not known."""
    gpu: str = ""
    """On which its tensors lie, as the host counts them; empty where it is not known."""
    gpu_place: str = ""
    """file:line that chose it."""
    batched: bool = False
    """It is one of `batch_isend_irecv`, and NCCL makes the group's communicator at first use."""
    group_desc: str = ""
    """What the script calls the group; empty where it gave it no name."""

    @property
    def words(self) -> str:
        """The call in a sentence: all_reduce(SUM) of float32[4]."""
        words = self.op
        details = self._details()
        if details:
            words += "(%s)" % ", ".join(details)
        tensors = []
        for dtype, shape in zip(self.dtypes, self.shapes):
            tensors.append(dtype + shape)
        if tensors:
            words += " of %s" % ", ".join(tensors[:SHOWN])
        if len(tensors) > SHOWN:
            words += " and %d more" % (len(tensors) - SHOWN)
        return words + self._peer_words()

    def _details(self) -> list[str]:
        details = []
        if self.reduce:
            details.append(self.reduce)
        if self.root is not None:
            details.append("root %d" % self.root)
        return details

    def _peer_words(self) -> str:
        if self.op == "send":
            return " to rank %s" % self.peer
        if self.op != "recv":
            return ""
        if self.peer is None:
            return " from any rank"
        return " from rank %d" % self.peer


SHOWN = 3
"""Tensors of a call that its words name."""
POINT_TO_POINT = ("send", "recv")
COMPARED_NAMES = ("op", "root", "reduce", "dtypes", "sizes")
"""Fields in which calls of one collective must be equal."""
COMPARED = slice(
    Call._fields.index(COMPARED_NAMES[0]),
    Call._fields.index(COMPARED_NAMES[-1]) + 1,
)
"""Where they stand in a call, side by side."""


def call_of(record: Mapping[str, Any]) -> Call:
    """The call in a message of a rank."""
    fields = {}
    for name, value in record.items():
        if isinstance(value, list):
            value = tuple(value)
        fields[name] = value
    return Call(**fields)


def differing_field(calls: Mapping[int, Call]) -> str:
    """The name of the first field in which calls of one collective differ; empty where they fit.

    calls: global rank → its call.  What may differ (names of files, shapes of as many elements)
    is not compared.
    """
    known = list(calls.values())
    first = known[0]
    for call in known:
        # most collectives are equal in all of them: that is one comparison a rank
        if call[COMPARED] != first[COMPARED]:
            return _first_difference(known)
    for _ in unequal_pairs(calls):
        return "splits"
    owners = {call.owner for call in known if call.owner}
    if len(owners) > 1:
        return "owner"
    return ""


def passes_silently(calls: Mapping[int, Call], field: str) -> bool:
    """Whether a library would let calls pass that differ in this field: it moves bytes."""
    if field not in ("reduce", "dtypes", "owner"):
        return False
    known = set()
    for call in calls.values():
        known.add((call.op, call.root, _bytes_of(call)))
    if len(known) > 1:
        return False
    _, _, size = known.pop()
    return size is not None


def _bytes_of(call: Call) -> int | None:
    """Bytes that a call brings; None where its tensors are of several types."""
    if len(call.dtypes) != 1:
        return None
    width = BITS.search(call.dtypes[0])
    if width is None:
        return None
    elements = sum(call.sizes) or sum(call.gives)
    return elements * int(width[1]) // 8


BITS = re.compile(r"[a-z](\d+)")
"""The bits of an element in the name of its type: float32, bfloat16, float8_e5m2."""


def _first_difference(calls: list[Call]) -> str:
    for name in COMPARED_NAMES:
        first = getattr(calls[0], name)
        for call in calls:
            if getattr(call, name) != first:
                return name
    return ""


def unequal_pairs(calls: Mapping[int, Call]) -> Iterator[tuple[int, int, int, int]]:
    """Yields (sender, receiver, elements sent, elements expected) where these differ."""
    for receiver, call in calls.items():
        for sender, expected in zip(call.members, call.takes):
            if sender not in calls:
                continue
            sent = _elements_for(calls[sender], receiver)
            if sent is None:
                continue
            if sent != expected:
                yield sender, receiver, sent, expected


def _elements_for(call: Call, receiver: int) -> int | None:
    """Elements that a call gives to a rank; None where it does not say."""
    if not call.gives:
        return None
    if len(call.gives) == 1:
        return call.gives[0]
    place = call.members.index(receiver)
    return call.gives[place]


def differing_field_of_pair(send: Call, recv: Call) -> str:
    """In what a send and the recv that it meets differ; empty where they agree."""
    if send.dtypes != recv.dtypes:
        return "dtypes"
    if send.sizes != recv.sizes:
        return "sizes"
    return ""
