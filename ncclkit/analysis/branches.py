"""Which ranks had left the common path, by the lines of the program.

Tracebacks and dumps hold file and line.  Where the program still holds the call that the job made
there (`program.line`), the condition on the rank around it tells who went another way, as `waits`
tells it of a running job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ncclkit.analysis.calls import ranks_of
from ncclkit.analysis.frames import Frame, is_own, own_frame, place
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import name_ranks
from ncclkit.analysis.waits import (
    RankPosition,
    inside,
    outside_common_path,
    positions_of_case,
    side_outside,
)
from ncclkit.core.case import Case
from ncclkit.core.kinds import FlightMismatch, ProgramLine
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
    for around in under:
        condition = ""
        if around:
            condition = around[0][0]
        conditions.append(condition)
    found = side_outside(conditions, [_rows(program) for program in programs])
    if found is None:
        return None
    side, how = found
    line = programs[side][0]
    if under[side]:
        line = under[side][0][1]
        how += f" at {PurePosixPath(line.path).name}:{line.line}"
    return Departure(side, how, (line,))


def condition_around(case: Case, frames: Sequence[Frame]) -> Departure | None:
    """The innermost condition on the rank under which a stack came where it is.

    frames: innermost first.
    """
    for line in _program_lines(case, frames):
        for condition in line.data.conditions:
            how = f"{inside(condition)} at {PurePosixPath(line.path).name}:{line.line}"
            return Departure(0, how, (line,))
    return None


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
    found: list[Event] = []
    for frame in frames:
        if not is_own(frame):
            continue
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
class Left:
    """The ranks of a mismatch that left the common path alone."""

    ranks: tuple[int, ...]
    how: str
    lines: tuple[Event, ...]
    """What shows it."""
    is_live: bool = False
    """Whether the job was looked at as it ran."""


def who_left(case: Case, mismatch: Event[FlightMismatch]) -> Left | None:
    """The ranks that left the common path alone, and how; None where nothing shows it."""
    seen = positions_of_case(case)
    groups = (mismatch.data.majority, *mismatch.data.odd)
    held: list[list[RankPosition]] = []
    for group in groups:
        positions = []
        for rank in ranks_of([group]):
            if rank in seen:
                positions.append(seen[rank])
        held.append(positions)
    if all(held):
        outside = outside_common_path(held, mismatch.data.sites)
        if outside is None:
            return None
        positions = held[outside[0]]
        ranks = tuple(position.rank for position in positions)
        return Left(ranks, outside[1], positions[0].lines, is_live=True)
    gone = departure(case, mismatch.data.stacks)
    if gone is None or len(mismatch.data.stacks) != len(groups):
        return None
    return Left(ranks_of([groups[gone.side]]), gone.how, gone.lines)


def places_of_calls(mismatch: Event[FlightMismatch]) -> str:
    """`` (rank 0 at train.py:88 (evaluate), rank 1 at train.py:120 (step))``.

    It is the user's line of each side's call, empty where not all are known.
    """
    groups = (mismatch.data.majority, *mismatch.data.odd)
    places = []
    for group, frames in zip(groups, mismatch.data.stacks, strict=False):
        where = place(own_frame(frames, innermost_first=True))
        if not where:
            return ""
        places.append(f"{name_ranks(ranks_of([group]))} at {where}")
    if len(places) < 2:
        return ""
    return f" ({', '.join(places[:4])})"
