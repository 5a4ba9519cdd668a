"""Where the ranks of a dead job stood, and which of them had left the common path.

Tracebacks and dumps hold file and line.  Where the program still holds the call that the job made
there (`program.line`), the condition on the rank around it tells who went another way, as `waits`
tells it of a running job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ncclkit.analysis.frames import Frame, call_within, in_collective, is_own, own_frame, place
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import ranks_in
from ncclkit.analysis.rank_states import rank_states
from ncclkit.analysis.waits import side_outside
from ncclkit.core.case import Case
from ncclkit.core.kinds import ProgramLine, PythonException
from ncclkit.core.model import Event


@dataclass(frozen=True, slots=True)
class Departure:
    """The one side that left the common path."""

    side: int
    """Its number."""
    how: str
    """``inside `if rank == 0` at train.py:88``, or ``after the loop at train.py:40``."""
    lines: tuple[Event, ...]
    """The lines of the program that say so; none where the program was read as the job ran."""


def departure(case: Case, stacks: Sequence[Sequence[Frame]]) -> Departure | None:
    """The side that left the common path, of some that each stood in one call.

    stacks: of each side, innermost frame first.  It is None where the lines tell of no single one.
    """
    programs = [_program_lines(case, frames) for frames in stacks]
    if not all(programs):
        return None
    under = [_own_conditions(programs, number) for number in range(len(programs))]
    conditions = []
    for found in under:
        conditions.append(found[0][0] if found else "")
    found = side_outside(conditions, [_rows(program) for program in programs])
    if found is None:
        return None
    side, how = found
    lines = tuple(line for _, line in under[side][:1]) or tuple(programs[side][:1])
    if under[side]:
        how += f" at {PurePosixPath(lines[0].path).name}:{lines[0].line}"
    return Departure(side, how, lines)


def _own_conditions(programs: Sequence[Sequence[Event]], number: int) -> list[tuple[str, Event]]:
    """The conditions on the rank under which one side came where it is, innermost first.

    Those that hold for all sides are left out: by them nobody left the path of the others.
    """
    shared = set(_conditions_of(programs[0]))
    for program in programs:
        shared &= set(_conditions_of(program))
    found = []
    for line in programs[number]:
        for condition in line.data.conditions:
            if (line.path, condition) not in shared:
                found.append((condition, line))
    return found


def _conditions_of(program: Sequence[Event]) -> list[tuple[str, str]]:
    found = []
    for line in program:
        for condition in line.data.conditions:
            found.append((line.path, condition))
    return found


def _rows(program: Sequence[Event]) -> list[dict[str, Any]]:
    """The lines as `ncclkit.agent.monitor.program` tells them of a running job."""
    rows = []
    for line in program:
        rows.append(
            {
                "file": line.path,
                "line": line.line,
                "func": line.data.func,
                "loops": line.data.loops,
            }
        )
    return rows


def _program_lines(case: Case, frames: Sequence[Frame]) -> list[Event]:
    """What is known of the lines of a stack, innermost first.

    It is empty where the innermost line of the user's own code is not known: the condition that
    decides may stand around it.
    """
    known = _lines_of_case(case)
    own = [frame for frame in frames if is_own(frame)]
    found = []
    for frame in own:
        line = known.get((frame["file"], frame["line"], frame["func"]))
        if line is not None:
            found.append(line)
        elif not found:
            return []
    return found


@once
def _lines_of_case(case: Case) -> dict[tuple[str, int, str], Event]:
    lines = {}
    for event in case.of(ProgramLine):
        lines[event.path, event.line, event.data.func] = event
    return lines


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
    seen: dict[int, Event] = {}
    for error in case.of(PythonException):
        by_gloo = GLOO_GAVE_UP.search(str(error.data.message))
        if error.rank is not None and by_gloo and error.data.frames:
            seen.setdefault(error.rank, error)
    if states.dead or not case.of("gloo.timeout") or not set(states.members) <= seen.keys():
        return []
    if interrupted(case).keys() & seen.keys():
        return []
    sides: dict[tuple[str, str], GaveUp] = {}
    for _, error in sorted(seen.items()):
        frames = error.data.frames[::-1]
        own = own_frame(frames, innermost_first=True)
        if own is None or not in_collective(frames):
            return []
        key = (call_within(frames), place(own))
        sides.setdefault(key, GaveUp(*key, frames, [])).lines.append(error)
    return sorted(sides.values(), key=lambda side: len(side.lines))


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
        frames = list(error.data.frames)
        handled = [n for n, frame in enumerate(frames) if HANDLERS.search(frame["file"])]
        own = [n for n, frame in enumerate(frames) if is_own(frame)]
        # what starts the ranks may stand outermost
        if handled and own and handled[-1] > own[0]:
            first = next(n for n in handled if n > own[0])
            found[error.rank] = Interrupted(error, frames[:first][::-1])
        elif BY_SIGNAL.search(str(error.data.type)):
            found[error.rank] = Interrupted(error, frames[::-1])
    return found
