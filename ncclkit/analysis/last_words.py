"""Where the ranks of a dead job stood, by their tracebacks and by what the launcher said of them.

A rank that timed out shows the call in which it waited; one that a signal ended shows its own line;
of one that said nothing the launcher may know whether it lived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from signal import SIGKILL

from ncclkit.analysis.frames import (
    Frame,
    call_of,
    call_within,
    in_collective,
    is_own,
    own_frame,
    place,
)
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import name_ranks, ranks_in
from ncclkit.analysis.rank_states import RankStates, rank_states
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    ElasticExit,
    ElasticRoot,
    ElasticStop,
    FlightDump,
    FlightMissing,
    PythonException,
)
from ncclkit.core.model import Event


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Ranks whose tracebacks end in one call at one line of the program."""

    call: str
    place: str
    frames: Sequence[Frame]
    """Of the first of them, innermost first."""
    lines: list[Event]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, sorted."""
        return ranks_in(self.lines)

    @property
    def words(self) -> str:
        """``ranks 0 and 1 were in all_reduce at train.py:33 (step)``."""
        verb = "were"
        if len(self.ranks) == 1:
            verb = "was"
        return f"{name_ranks(self.ranks)} {verb} in {self.call} at {self.place}"


GLOO_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms for|Application timeout caused"
    r"|Connection (?:closed|reset) by peer"
)
"""Messages of gloo to a rank in a collective that did not end."""


@once
def sides_by_tracebacks(case: Case) -> list[GaveUp]:
    """The ranks by the call and the line at which they gave up, the fewest first.

    It is empty where a rank is not known to have given up in a collective of gloo: the others may
    wait for it.  NCCL's ranks may be lines ahead of the call that does not end.
    """
    states = rank_states(case)
    seen = _given_up(case)
    if states.dead or not case.of("gloo.timeout") or not set(states.members) <= seen.keys():
        return []
    if interrupted(case).keys() & seen.keys():
        return []
    sides: dict[tuple[str, str], GaveUp] = {}
    for rank in sorted(seen):
        error = seen[rank]
        frames = error.data.frames[::-1]
        own = own_frame(frames, innermost_first=True)
        if own is None or not in_collective(frames):
            return []
        key = (call_within(frames), place(own))
        if key not in sides:
            sides[key] = GaveUp(*key, frames, [])
        sides[key].lines.append(error)
    return sorted(sides.values(), key=lambda side: len(side.lines))


def _given_up(case: Case) -> dict[int, Event[PythonException]]:
    """rank → the first traceback in which gloo gave up."""
    seen: dict[int, Event[PythonException]] = {}
    for error in case.of(PythonException):
        if error.rank is None or error.rank in seen or not error.data.frames:
            continue
        if GLOO_GAVE_UP.search(str(error.data.message)):
            seen[error.rank] = error
    return seen


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Where a rank stood when a signal ended it."""

    line: Event
    """Its traceback."""
    frames: Sequence[Frame]
    """Innermost first, without those of the signal's handler."""


HANDLERS = re.compile(r"signal_connector\.py$|elastic/multiprocessing/")
"""Files of frameworks in which signals are handled, right below the line that was interrupted."""
BY_SIGNAL = re.compile(r"KeyboardInterrupt$|SignalException$|SIGTERM\w*$")
"""Exceptions that a signal raises wherever a rank is."""


@once
def interrupted(case: Case) -> dict[int, Interrupted]:
    """rank → where it stood when a signal came, as its traceback shows.

    What its handler did then is not what the others had waited for.
    """
    found = {}
    for error in case.of(PythonException):
        if error.rank is None or not error.data.frames:
            continue
        frames = error.data.frames
        handler = _first_of_handler(frames)
        if handler is not None:
            found[error.rank] = Interrupted(error, frames[:handler][::-1])
        elif BY_SIGNAL.search(str(error.data.type)):
            found[error.rank] = Interrupted(error, frames[::-1])
    return found


def _first_of_handler(frames: Sequence[Frame]) -> int | None:
    """The number of the outermost frame of a signal's handler; None without one.

    What starts the ranks may stand further out, and is none.
    """
    own_came = False
    for number, frame in enumerate(frames):
        own_came = own_came or is_own(frame)
        if own_came and HANDLERS.search(frame["file"]):
            return number
    return None


@dataclass(frozen=True, slots=True)
class AwaitedKey:
    """A key of the store that a rank's own code waited for, and the exception that says so."""

    key: str
    line: Event[PythonException]


KEY = re.compile(r"keys: \S{0,200}?(?P<key>[^/\s,]{1,80})$")


@once
def awaited_keys(case: Case) -> dict[int, AwaitedKey]:
    """rank → the key that its own code waited for in vain.

    What torch itself waits for is none.
    """
    found = {}
    for error in case.of(PythonException):
        match = KEY.search(str(error.data.message).strip())
        if error.rank is None or not match or not error.data.frames:
            continue
        by_store = str(error.data.type).endswith("DistStoreError")
        if by_store and is_own(error.data.frames[-1]):
            found[error.rank] = AwaitedKey(match["key"], error)
    return found


def call_in_tracebacks(case: Case, states: RankStates) -> str:
    """``all_reduce at train.py:33 (step)``: where the ranks gave up that timed out.

    It is empty where no traceback tells, or several tell of different places.
    """
    places = set()
    for error in case.of(PythonException):
        frames = error.data.frames[::-1]
        if error.rank not in states.waiting or not error.data.victim:
            continue
        if in_collective(frames):
            where = place(own_frame(frames, innermost_first=True))
            places.add(f"{call_of(frames)} at {where}")
    if len(places) == 1:
        return places.pop()
    return ""


def stood_last(case: Case, ranks: Iterable[int]) -> list[Sequence[Frame]]:
    """The stacks, innermost frame first, in which tracebacks show these ranks outside of a call."""
    found: list[Sequence[Frame]] = []
    for rank in ranks:
        if rank in interrupted(case):
            found.append(interrupted(case)[rank].frames)
        if rank in awaited_keys(case):
            found.append(awaited_keys(case)[rank].line.data.frames[::-1])
    return found


def stops_of_rank(case: Case, rank: int) -> list[Event]:
    """The lines in which the launcher says that it ended a rank."""
    stops: list[Event] = []
    for stop in case.of(ElasticStop):
        if stop.rank == rank:
            stops.append(stop)
    return stops


def heeds_no_signal(events: Iterable[Event]) -> bool:
    """Whether the launcher had to kill a rank, which SIGTERM did not end."""
    for event in events:
        if isinstance(event.data, ElasticStop) and event.data.signal == SIGKILL:
            return True
    return False


def dumps_tell(case: Case) -> bool:
    """Whether dumps show how the ranks hung, or are of all ranks and show that none was late."""
    dumped = ranks_in(case.of(FlightDump))
    if case.of("flight.missing", "flight.mismatch", "flight.stuck", "flight.p2p"):
        return True
    return bool(dumped) and set(rank_states(case).members) <= set(dumped)


def gaps_without_dump(case: Case) -> list[Event[FlightMissing]]:
    """The collectives of a dead job that only ranks without a dump can be missing from."""
    found = []
    for gap in case.of(FlightMissing):
        if not gap.data.live and not gap.data.missing:
            found.append(gap)
    return found


@dataclass(frozen=True, slots=True)
class EndedUnseen:
    """A rank that left nothing, and that torchrun neither reports as failed nor had to stop."""

    rank: int
    listed: tuple[int, ...]
    """The ranks of which torchrun speaks."""
    lines: list[Event]


def ended_unseen(case: Case) -> EndedUnseen | None:
    """The one rank that must have ended with status 0, of which torchrun says nothing."""
    states = rank_states(case)
    expected: set[int] = set()
    if states.world:
        expected.update(states.members)
    gaps = gaps_without_dump(case)
    for gap in gaps:
        expected.update(gap.data.waiting)
        expected.update(gap.data.no_dump)
    reports = [*case.of(ElasticExit), *case.of(ElasticStop)]
    listed = ranks_in(reports)
    absent = expected.difference(listed, ranks_in(case.of(FlightDump)))
    absent = absent.difference(states.waiting, states.dead, states.ended)
    if not case.of(ElasticRoot) or not listed or len(absent) != 1:
        return None
    return EndedUnseen(absent.pop(), listed, [*case.of(ElasticRoot), *gaps])
