"""What a test of the connections without a job shows.

It shows a risk, named with the hosts that would meet it.  The test is ``ncclkit connect``, or what
people looked up themselves: ``ping``, ``ss -ti``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ncclkit.analysis.picks import failed
from ncclkit.core import connections
from ncclkit.core.case import Case
from ncclkit.core.connections import HostNetwork, NetworkPath
from ncclkit.core.kinds import NetPing, NetTcp
from ncclkit.core.model import Event, Strength


def paths(case: Case, bad: Callable[[NetworkPath], bool]) -> list[NetworkPath]:
    """The tested paths between hosts that are bad in this respect."""
    found = []
    for link in connections.links(case.events):
        if bad(link):
            found.append(link)
    return found


def hosts(case: Case) -> dict[str, HostNetwork]:
    """The tested hosts by name."""
    return connections.hosts(case.events)


def passed(case: Case, good: Callable[[NetworkPath], bool]) -> list[Event]:
    """The tested paths, where every path is good in this respect.

    Every host must have been asked; else it is nothing.
    """
    tested = connections.links(case.events)
    # a host that could not be asked may be the one at fault
    whole = tested and not any(host.problem for host in hosts(case).values())
    if whole and all(map(good, tested)):
        return [link.event for link in tested]
    return []


def risk(case: Case) -> Strength:
    """Strength of a risk.

    It is merely possible beside a job that failed, whose own lines weigh more.
    """
    if failed(case):
        return "possible"
    return "likely"


def plus(found: Sequence[object], what: str) -> str:
    """`` (and 5 more paths)``, after the first one was named."""
    others = len(found) - 1
    if others:
        return f" (and {others} more {what}{'s' if others > 1 else ''})"
    return ""


def ends_of(found: Sequence[NetworkPath]) -> tuple[str, ...]:
    """The hosts at which these paths end, sorted."""
    return tuple(sorted({link.dst for link in found}))


HEADERS = 28
"""Bytes of IPv4 and ICMP around the data of a ping."""
STANDS, SAMPLE = 3, 10
REPEATED = 5
"""Packets repeated within seconds that are no mere chance, where nothing else moves."""
"""Doubled timeouts in a row from which a connection stalls, and pings.

From so many pings a loss of some is not an accident.
"""


@dataclass(frozen=True, slots=True)
class UserTest:
    """What people saw of the way to another host with tools of their own."""

    summary: str
    lines: list[Event]
    passes: int | None = None
    """The largest packet in bytes that came through, where larger ones did not."""


def user_test(case: Case) -> UserTest | None:
    """Large packets or pings that get lost, or a connection without answer.

    Pings may be partly lost.  A host that answers no ping of any size is one that cannot be reached
    at all: nothing is said of the way to it.
    """
    pings = [event for event in case.of(NetPing) if event.data.address]
    alive = set()
    for event in pings:
        # one answer of any size shows that the host is there
        if event.data.received:
            alive.add(event.data.address)
    silent_addresses = set()
    for event in pings:
        if event.data.received == 0:
            silent_addresses.add(event.data.address)
    # a host that answers nothing may be down or filter pings: it says nothing of the way to it
    mute = silent_addresses - alive
    still = []
    for e in case.of(NetTcp):
        if (e.data.backoff or 0) >= STANDS and (e.data.lost or e.data.retrans):
            still.append(e)
    still = [event for event in still if event.data.peer not in mute]
    of_address: dict[str, list[Event]] = {}
    for event in pings:
        of_address.setdefault(event.data.address, []).append(event)
    # a size from which nothing passes explains a stalled connection as well, so it comes first
    for address in sorted(alive):
        cliff = _size_cliff(of_address[address])
        if cliff:
            return replace(cliff, lines=[*cliff.lines, *still[:1]])
    if not still:
        still = _repeating(case)
    held = None
    if still:
        held = still[0].data
    if held and held.grown and (held.backoff or 0) < STANDS:
        say = (
            f"A connection to {held.peer} repeated {held.grown} packets"
            " while the job stood still"
        )
        return UserTest(say, still[:2])
    if still:
        peer, times = still[0].data.peer, still[0].data.backoff
        say = (
            f"A connection to {peer} has sent the same packet again {times} times, and no answer"
            " came"
        )
        return UserTest(say, still[:2])
    some = []
    for event in pings:
        if event.data.bytes is None and (event.data.sent or 0) >= SAMPLE:
            some.append(event)
    if not some:
        return None
    ping = some[0].data
    lost = (ping.sent or 0) - (ping.received or 0)
    say = f"{lost} of {ping.sent} pings to {ping.address} were lost"
    return UserTest(say, some[:2])


def _repeating(case: Case) -> list[Event]:
    """Connections of ranks that repeated packets while they were looked at, the worst first."""
    found = []
    for event in case.of(NetTcp):
        if (event.data.grown or 0) >= REPEATED:
            found.append(event)
    found.sort(key=lambda event: -(event.data.grown or 0))
    return found


def _size_cliff(pings: list[Event]) -> UserTest | None:
    """The size from which no ping to a host comes back.

    All smaller ones must have come back.
    """
    sized = sorted(
        (e for e in pings if e.data.bytes is not None),
        key=lambda event: int(event.data.bytes),
    )
    answered = [bool(event.data.received) for event in sized]
    # only a clean edge is a limit of size; scattered losses are losses
    passed = sum(answered)
    if passed in (0, len(sized)) or not all(answered[:passed]):
        return None
    best, lost = sized[passed - 1], sized[passed]
    fits, large = (event.data.bytes + HEADERS for event in (best, lost))
    say = (
        f"Packets of {large:,} bytes to {best.data.address} get lost and those of {fits:,} pass,"
        " as the pings show"
    )
    if fits < large:
        return UserTest(say, [lost, best], fits)
    return None
