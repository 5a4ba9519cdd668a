"""Who knocked on NCCL's sockets without belonging to the communicator.

NCCL discards such a connection: another job, a process that an earlier attempt left behind, a port
scan or a health check.  One is harmless; many at a start that hangs are worth a look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclAttn, NcclInfo, NcclInit, NcclWarn
from ncclkit.core.model import Event

MANY = 5
"""Discarded connections; scanners and health checks knock once or twice."""
PEER = re.compile(r"\bfrom ([\d.a-fA-F:]{2,45})<\d{1,5}>")
MAGIC = re.compile(r"\(peer 0x([0-9a-f]{1,16}) != ")


def strangers_in_words(case: Case) -> str:
    """Who knocked often while no communicator came to be, and what to look at; else empty."""
    knocks = [event for event in case.of(NcclInfo, NcclAttn, NcclWarn) if _is_mismatch(event)]
    if sum(event.count for event in knocks) < MANY or _started(case, knocks):
        return ""
    peers: Counter[str] = Counter()
    for event in knocks:
        named = PEER.search(event.text)
        if named:
            peers[named[1]] += event.count
    where = ""
    if peers:
        where = f" from {text.some([name for name, _ in peers.most_common(3)])}"
    count = sum(event.count for event in knocks)
    spoken = _words_of(knocks)
    who = "another job, or processes that an earlier attempt left behind, or a port scan"
    if spoken:
        who = f'a program that is not NCCL (it began with "{spoken}")'
    return (
        f"Who connected: {count} connections{where} were discarded at the start (magic mismatch),"
        f" so they are of {who}; `ss -tnp` on that host names the process."
    )


def _is_mismatch(event: Event) -> bool:
    return event.data.family == "foreign" and "agic" in event.text


def _started(case: Case, knocks: Iterable[Event]) -> bool:
    """Whether a communicator was made on a host at whose door somebody knocked."""
    hosts = {event.host for event in knocks}
    return any(event.host in hosts for event in case.of(NcclInit, phase="done"))


def _words_of(knocks: Iterable[Event]) -> str:
    """What a peer said that speaks another protocol: its first bytes, where they are letters."""
    for event in knocks:
        said = MAGIC.search(event.text)
        if said is None:
            continue
        raw = int(said[1], 16).to_bytes(8, "little")
        if all(32 <= byte < 127 for byte in raw):
            return raw.decode("ascii")
    return ""
