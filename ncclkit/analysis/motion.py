"""Whether a running job goes on.

It tells what moved while the job was looked at, and who comes last.

A hang is a wait that outlasts the look.  Ranks that are met at one place twice may have made a
step in between, and dumps of ranks are taken one after the other: so wherever anything moved,
nothing is compared as if it were one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from ncclkit.analysis.idle import doubt_of_idleness, idle
from ncclkit.analysis.launches import launch_sentence
from ncclkit.analysis.once import once
from ncclkit.analysis.wait_kinds import REQUESTS
from ncclkit.analysis.waits import (
    RankPosition,
    blockages,
    group_line,
    rank_positions,
    same_positions,
    waiting_time,
)
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    AttachRank,
    FlightDump,
    FlightLate,
    FlightMismatch,
    FlightMissing,
    RasCommunicator,
)
from ncclkit.core.model import Event
from ncclkit.core.text import format_time, start, verb
from ncclkit.core.text import ranks as rank_words

OF_A_MOMENT = frozenset(
    "stack attach.rank ras.communicator telemetry.utilization telemetry.scheduling "
    "flight.missing flight.mismatch flight.stuck flight.p2p net.tcp net.counter".split()
)
"""Kinds of events that show one moment of a job, which accuse nobody where it goes on."""
AT_WORK, IDLE = 60.0, 30.0
"""Percentages of time of main threads that work, and that wait.

One rank works, and the others wait for it.
"""


@dataclass(frozen=True, slots=True)
class Motion:
    """What shows that a running job goes on."""

    ranks: tuple[int, ...]
    """Ranks that moved."""
    how: str
    """``moved between the snapshots (step 118 to 120)``."""
    evidence: Event
    idle: bool = False
    """Whether it only waits for a request, which can reach it."""

    @property
    def summary(self) -> str:
        """``ranks 0-2 moved between the snapshots``."""
        if self.idle:
            return self.how
        if not self.ranks:
            return f"some ranks {self.how}"
        return f"{rank_words(self.ranks)} {self.how}"


def motion(events: Iterable[Event]) -> Motion | None:
    """What of a running job moved during the look, or that it is idle; None where nothing did.

    A rank that works keeps a job going only where nobody waited for it all the while: an endless
    loop moves, too.
    """
    known = list(events)
    seen = rank_positions(known)
    if not seen:
        return None
    # the firmest first: counts that rose, calls with a time, stacks
    called = _launched(known) or _called(known, seen)
    if called is not None:
        return called
    if _has_failed(known):
        return None
    return _moved(seen) or _is_idle(known)


def _has_failed(events: Iterable[Event]) -> bool:
    """Whether NCCL says of a rank that its communicator failed: what moves then is its end."""
    for event in events:
        if isinstance(event.data, RasCommunicator) and event.data.errors:
            return True
    return False


def _is_idle(events: Sequence[Event]) -> Motion | None:
    found = idle(events)
    if found is None or found.hindrance:
        return None
    how = f"it is idle and waits for a request ({found.say})"
    return Motion(found.ranks, how, found.evidence, idle=True)


@once
def without_moments(case: Case) -> Case:
    """The case, where the job is running or idle without its momentary states.

    Of a job that goes on, or is idle, what shows one moment is left out.  Of one that goes on an
    ``attach.motion`` stands for that.  Workers of a server that has nothing to do wait as in a
    hang, by their stacks and by their dumps.
    """
    moving = motion(case.events)
    if moving is None and (_is_blocked(case.events) or not waits_for_request(case.events)):
        return case
    lasting = copy(case)
    lasting.events = [event for event in case.events if not _is_of_a_moment(event)]
    if moving is not None:
        shown = moving.evidence
        data = {"ranks": list(moving.ranks), "idle": moving.idle}
        goes_on = Event("attach.motion", moving.summary, shown.path, shown.line, data=data)
        lasting.events.append(goes_on)
    return lasting


@once
def with_blockages(case: Case) -> Case:
    """The case, with what keeps ranks waiting by the looks of torch's debug server.

    Of a look by `ncclkit attach` it is known when it is stored.
    """
    looked = []
    for event in case.of(AttachRank, gone=False):
        if event.pid is None:
            looked.append(event)
    if not looked or any(event.data.live for event in case.of(*COMPARED)):
        return case
    found = blockages(case.events)
    if not found:
        return case
    known = copy(case)
    known.events = [*case.events, *found]
    return known


def _is_blocked(events: Iterable[Event]) -> bool:
    """Whether ranks were seen to be missing from a call in which others wait."""
    for event in events:
        if isinstance(event.data, FlightMissing) and event.data.live:
            return True
    return False


COMPARED = ("flight.missing", "flight.mismatch", "flight.p2p")
"""Kinds of what a comparison of ranks says."""


def _is_of_a_moment(event: Event) -> bool:
    """Whether an event says nothing of a job that has gone on since."""
    # calls that differ and are completed stay so
    if isinstance(event.data, FlightMismatch) and event.data.completed:
        return False
    return event.kind in OF_A_MOMENT


def waits_for_request(events: Iterable[Event]) -> bool:
    """Whether a rank of a running job waits for something to do."""
    return any(one.waits_for == REQUESTS for one in rank_positions(events).values())


def _launched(events: Sequence[Event]) -> Motion | None:
    """What moved by two reports of NCCL's RAS."""
    for change in events:
        # what RAS counts rises only where collectives are launched, so a rise is proof that the job
        # goes on
        if change.kind == "ras.change" and (change.data.moved or change.data.unnamed):
            counts = [sum(ops.values()) for ops in change.data.moved.values()]
            seconds = change.data.seconds
            rate = ""
            if seconds and counts:
                rate = f", {_per_second(max(counts) / seconds)}"
            ranks = tuple(sorted(map(int, change.data.moved)))
            how = f"launched collectives between two reports of NCCL's RAS{rate}"
            return Motion(ranks, how, change)
    return None


def _called(events: Sequence[Event], seen: Mapping[int, RankPosition]) -> Motion | None:
    """What moved by dumps.

    A call was made after the first snapshot of its rank.
    """
    dumps = []
    for event in events:
        if event.kind == "flight.dump" and event.rank in seen:
            dumps.append(event)
    newest = {dump.rank: float(dump.data.newest or 0.0) for dump in dumps}
    # dumps are taken one after the other: only a call made after the look began says that it goes
    # on
    fresh = [dump for dump in dumps if newest[dump.rank] > _first_look(seen, dump.rank)]
    if not fresh:
        return None
    rates: list[float] = []
    for dump in fresh:
        rates.extend(_rates(dump))
    pace = ""
    if rates:
        pace = f", {_per_second(max(rates))}"
    dumped_ranks = []
    for dump in fresh:
        if dump.rank is not None:
            dumped_ranks.append(dump.rank)
    ranks = tuple(sorted(dumped_ranks))
    they = verb(ranks, "it was", "they were")
    return Motion(ranks, f"made calls while {they} looked at{pace}", fresh[0])


def _first_look(seen: Mapping[int, RankPosition], rank: int | None) -> float:
    shots = ()
    if rank is not None:
        shots = seen[rank].lines[0].data.snapshots
    if shots:
        return float(shots[0]["t"])
    # without a first look nothing is later than it
    return float("inf")


def _rates(dump: Event[FlightDump]) -> Iterable[float]:
    """Calls a second of each group, over those that the dump dates."""
    for group in dump.data.groups.values():
        times = group["times"]
        if len(times) < 2:
            continue
        first_call, begun = times[0]
        last_call, ended = times[-1]
        if ended > begun:
            yield (last_call - first_call) / (ended - begun)


def _per_second(rate: float) -> str:
    if rate >= 10:
        return f"{rate:,.0f} a second"
    return f"{rate:.2g} a second"


def _moved(seen: Mapping[int, RankPosition]) -> Motion | None:
    """What moved by the snapshots.

    Nobody waits all the while, or most ranks move.
    """
    moved = tuple(rank for rank, position in seen.items() if position.moved)
    waits = False
    for position in seen.values():
        # one that could not be read may wait as well
        is_unread = not position.waits_for and not position.moved
        waits = waits or is_unread or position.waits_for_ranks
    # one rank that evaluates while the others wait looks like a hang, so most ranks must have moved
    if not moved or (waits and 2 * len(moved) <= len(seen)):
        return None
    made = next(filter(None, (_progress(seen[rank]) for rank in moved)), "")
    counted = ""
    if made:
        counted = f" ({made})"
    return Motion(moved, f"moved between the snapshots{counted}", seen[moved[0]].lines[0])


def _progress(position: RankPosition) -> str:
    """``step 118 to 120``: what of its counters went on between the snapshots."""
    shots = position.lines[0].data.snapshots
    first: Mapping[str, int] = next((shot["steps"] for shot in shots if shot.get("steps")), {})
    known = {}
    for name, last in position.steps.items():
        if name in first:
            known[name] = last
    made = []
    for name, last in known.items():
        if first[name] != last:
            made.append((name, first[name], last))
    return ", ".join(f"{name} {before} to {after}" for name, before, after in made)


# ---------------------------------------------------------------- who comes last


def comes_last(events: Iterable[Event]) -> str:
    """Who comes last to most collectives, in words; "" for nobody.

    It says who is awaited: ``Rank 2 comes last to 29 of 32 collectives, …``.
    """
    known = list(events)
    return _last_by_dumps(known) or _last_by_load(known)


def _last_by_dumps(events: Sequence[Event]) -> str:
    """Who comes last by the times of calls.

    They are all calls that the ranks of one host recorded.
    """
    late = []
    for event in events:
        if isinstance(event.data, FlightLate):
            late.append(event.data)
    if not late:
        return ""
    most = max(late, key=lambda data: data.last_in)
    apart = format_time(1e6 * most.usual)
    say = f"Rank {most.worst} comes last to {most.last_in} of {most.of} collectives"
    return f"{say}, which the ranks enter {apart} apart as a rule"


def _last_by_load(events: Sequence[Event]) -> str:
    """Who comes last by main threads: one works, and all others wait.

    A rank that waits for a GPU spins, and looks like one that works: of ranks with GPUs, and of one
    that was met in a wait, load tells nothing.
    """
    seen = rank_positions(events)
    loads = [event for event in events if event.kind == "telemetry.utilization"]
    if any(event.data.gpu is not None for event in loads):
        return ""
    rows = {event.rank: event.data.main for event in loads}
    shares = {}
    for rank in seen:
        if rows.get(rank) is not None:
            shares[rank] = rows[rank]
    busy = [rank for rank, share in shares.items() if share >= AT_WORK]
    others = [share for rank, share in shares.items() if rank not in busy]
    # where two are busy, nothing tells which one is awaited
    if len(busy) != 1 or len(shares) < len(seen) or not others or max(others) > IDLE:
        return ""
    if not seen[busy[0]].is_busy:
        return ""
    low = f"{min(others):.0f}"
    high = f"{max(others):.0f}"
    if low == high:
        span = f"{high} %"
    else:
        span = f"{low} to {high} %"
    worked = f"{shares[busy[0]]:.0f} % of the time"
    return f"The others wait for rank {busy[0]} most: it worked {worked}, they {span}"


# ---------------------------------------------------------------- in a sentence


def headline(events: Iterable[Event]) -> str:
    """What is to be said of a running job in which nothing was found."""
    known = list(events)
    seen = rank_positions(known)
    moving = motion(known)
    if moving is not None:
        last = ""
        if not moving.idle:
            last = comes_last(known)
        return f"The job goes on: {moving.summary}.{f' {last}.' if last else ''}"
    waiting = [position for position in seen.values() if position.waits_for_ranks]
    counted = launch_sentence(known)
    if waits_for_request(known):
        counted = ""
    if len(waiting) == len(seen) > 0:
        return f"{_sentence_of_all_waiting(known, waiting)} {counted}".strip()
    if counted:
        return counted
    lines = [group_line(held) for held in same_positions(seen.values())]
    more = ""
    if len(lines) > 4:
        more = "; …"
    say = start("; ".join(lines[:4]) + more) or "No stack could be read"
    # its workers wait in a collective for days, and nothing shows whether it hangs
    asked = idle(known)
    if asked is not None:
        return doubt_of_idleness(asked)
    return say


def _sentence_of_all_waiting(events: Sequence[Event], waiting: Sequence[RankPosition]) -> str:
    """The sentence on a job of which all ranks wait, with their place where it is one."""
    known = waiting_time(waiting)
    what = f"All {len(waiting)} ranks wait for each other"
    if waiting[0].place:
        what = f"All {len(waiting)} ranks wait in {waiting[0].call} at {waiting[0].place}"
    kernels = {position.kernel for position in waiting}
    within = ""
    if len(kernels) == 1 and all(kernels):
        within = f", each GPU in {next(iter(kernels))}"
    dumped = any(event.kind == "flight.dump" for event in events)
    more = " or ".join(["--dump"] * (not dumped) + ["--kernels"] * (kernels == {None}))
    advice = ""
    if more:
        advice = f"; {more} may"
    since = ""
    if known:
        since = f" {known}"
    return f"{what}{since}{within}: where they stand does not tell why{advice}."
