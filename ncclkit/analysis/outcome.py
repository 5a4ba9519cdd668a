"""How a job came out, as far as its evidence says.

It succeeded, it was at work, or neither.

A success needs the end of every rank that logged, or the word of who watched all of them: a
launcher, a scheduler, the closing line of a test.  One rank's "Training completed" says nothing of
the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclkit.analysis.complaints import is_source
from ncclkit.analysis.job_phrases import (
    COUNTED,
    END_OF_ALL,
    END_OF_ONE,
    HELPER,
    INTERRUPTED,
    KEYBOARD,
    LARGEST_SIZE,
    LOSS,
    MODEL_SERVED,
    NOT_A_NUMBER,
    NO_WRONG_VALUE,
    NUMBERS,
    OWN_LINE,
    DESTROYED,
    OWN_RANK,
    PROCESS_END,
    PROMPT,
    RATE,
    SECTION,
    SERVING,
    SET_BY_COMMAND,
    STARTED,
    TEST_ROW,
    TORCH_LINE,
    WRONG_VALUES,
)
from ncclkit.analysis.once import once
from ncclkit.analysis.succession import Span
from ncclkit.core.case import RUN, Case
from ncclkit.core.kinds import NcclEnv, RehearsalVerdict
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks

LIBRARY = (
    "nccl.", "nccltests.", "job.member", "printed.", "system.denied", "run.", "store.",
    "c10d.communicator", "c10d.device_unknown", "c10d.hint",
)  # fmt: skip
"""How kinds begin that are no words of a rank's own program."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the evidence shows of the end of a job."""

    success: Event | None
    """The line that shows that all of it succeeded."""
    work: Event | None
    """The last line that only a job at work writes."""
    interrupted: Event | None = None
    """The line that shows that somebody ended it from the keyboard."""


@once
def outcome(case: Case) -> Outcome:
    """Whether the job was seen to succeed, and whether it was seen at work."""
    work = max(work_lines(case), key=_place, default=None)
    return Outcome(_success(case), work, _interrupted(case))


def _interrupted(case: Case) -> Event | None:
    raised = [e for e in case.of("python.exception") if e.data.type == KEYBOARD]
    plain = [*unread_lines(case, "quiet"), *unread_lines(case)]
    said = [line for line in plain if INTERRUPTED.search(line.text)]
    return max([*raised, *said], key=_place, default=None)


def unread_lines(case: Case, which: str = "abnormal") -> list[Event]:
    """Lines of its logs that no grammar knows.

    Of our own runs they are those of the last.  `which` is ``abnormal``, those with words of
    trouble, or ``quiet``, the others of short logs.
    """
    now = {event.path for event in case.events}
    files = []
    for file in case.inputs:
        if file["path"] in now or not RUN.search(file["path"]):
            files.append(file)
    unread = []
    for file in files:
        for row in file.get(which, ()):
            unread.append(_as_event("log.error", file, row))
    return unread


@once
def work_lines(case: Case) -> list[Event]:
    """Lines that only a job at work writes.

    They tell steps, rows of a test, or requests that were served.
    """
    lines = [*case.of("progress"), *_serving(case)]
    for file in case.inputs:
        rows = (*file.get("quiet", ()), *file.get("abnormal", ()))
        for row in rows:
            if _shows_work(row):
                lines.append(_as_event("progress", file, row))
    return lines


@once
def success_lines(case: Case) -> list[Event]:
    """Lines that say that ranks, or the whole job, succeeded.

    `outcome` judges whose end it is.
    """
    ours = [event for event in case.of("run.end") if event.data.reason == "done"]
    named = [event for event in case.of("job.done") if _says_end(event.text)]
    plain = [*unread_lines(case, "quiet"), *unread_lines(case)]
    said = [line for line in plain if _says_end(line.text)]
    # ranks of a rehearsal may have agreed on little: it speaks for itself
    if case.of(RehearsalVerdict):
        return list(case.of(RehearsalVerdict, verdict="agree"))
    return [*ours, *named, *said, *_back_in_shell(plain)]


def shows_training(case: Case) -> bool:
    """Whether a line holds a loss, a row of a test, or served tokens."""
    return _any_line_shows(case, LOSS, TEST_ROW, MODEL_SERVED)


def _any_line_shows(case: Case, *patterns: re.Pattern[str]) -> bool:
    for line in (*unread_lines(case, "quiet"), *unread_lines(case)):
        for pattern in patterns:
            if pattern.search(line.text):
                return True
    return False


def _back_in_shell(lines: list[Event]) -> list[Event]:
    """A prompt in the last line of a pasted text.

    It shows that the command came back.
    """
    last = max(lines, key=_place, default=None)
    first = min(lines, key=_place, default=None)
    # a text of one line shows no command that came back
    if last is None or last is first:
        return []
    if PROMPT.match(last.text):
        return [last]
    return []


def asked_for(case: Case) -> set[str]:
    """Names of variables that a command line in the text sets.

    What it does with them is intended.
    """
    lines = [*unread_lines(case, "quiet"), *unread_lines(case)]
    found: set[str] = set()
    for line in lines:
        for match in SET_BY_COMMAND.finditer(line.text):
            found.add(match["name"])
    return found


def set_in_environment(case: Case) -> set[str]:
    """Names of variables that a foreign job's environment sets, by NCCL's lines.

    Whoever keeps the log of a job that does well does not ask about them.  Our own runs and tests
    of bandwidth ask how fast a path is, so that nothing about it is settled there.
    """
    if case.of("nccltests.table") or _any_line_shows(case, TEST_ROW):
        return set()
    foreign = [event for event in case.of(NcclEnv) if not RUN.search(event.path)]
    return {str(event.data.name) for event in foreign}


def speaks_for_all(event: Event) -> bool:
    """Whether an end is said by who watched all ranks.

    That is a launcher, a scheduler or a test.
    """
    if event.kind in ("run.end", "nccltests.table", "rehearsal.verdict"):
        return True
    return any(pattern.search(event.text) for pattern in (END_OF_ALL, NO_WRONG_VALUE))


def _success(case: Case) -> Event | None:
    ends = success_lines(case)
    for end in ends:
        if speaks_for_all(end):
            return end
    table = _whole_table(case)
    if table:
        return table
    return _end_of_each(case, ends) or _closed_by_each(case)


def _end_of_each(case: Case, ends: list[Event]) -> Event | None:
    """The last of the ends where every rank that logged has one.

    It is None where some have none.
    """
    if not ends:
        return None
    if all(PROCESS_END.search(end.text) for end in ends):
        if _count_ends(ends, case) >= len(_members(case)):
            return max(ends, key=_place)
        return None
    ended = {_rank_of_end(event) for event in ends} | _left(case)
    open_ranks = _speakers(case) - ended
    unmarked = None in ended  # mostly rank 0, which alone prints
    if open_ranks - {0} or (open_ranks and not unmarked):
        return None
    if _sections(case) > _count_ends(ends, case):
        return None
    named = {rank for rank in map(_rank_of_end, ends) if rank is not None}
    if named and not unmarked and named < _members(case):
        return None
    return max(ends, key=_place)


def _sections(case: Case) -> int:
    """How many files a text was put together from, as `tail` shows several.

    Each of them must show its end.
    """
    repeats = []
    for row in _rows(case):
        if SECTION.match(row["text"]):
            repeats.append(row.get("times", 1))
    return sum(repeats)


def _count_ends(ends: list[Event], case: Case) -> int:
    """How often an end was said.

    Lines that differ in numbers alone stand once, with their count.
    """
    counts: dict[str, int] = {}
    for end in ends:
        alike = NUMBERS.sub("#", end.text)
        counts[alike] = max(counts.get(alike, 0), end.count)
    for row in _rows(case):
        alike = NUMBERS.sub("#", row["text"])
        if alike in counts:
            counts[alike] = max(counts[alike], row.get("times", 1))
    return sum(counts.values())


def _rows(case: Case) -> list[Mapping[str, Any]]:
    """Lines of its logs that no grammar knows, as they were kept."""
    kept: list[Mapping[str, Any]] = []
    for file in case.inputs:
        kept += file.get("quiet", ())
        kept += file.get("abnormal", ())
    return kept


def _rank_of_end(event: Event) -> int | None:
    """The rank that a line of an end is of: ``Training completed for rank 6``."""
    if event.rank is not None:
        return event.rank
    named = OWN_RANK.search(event.text)
    if named:
        return int(named[1])
    return None


def _closed_by_each(case: Case) -> Event | None:
    """The last destroyed communicator, where every rank closed its own.

    Every rank that began one must have worked before.
    """
    begun = {event.rank for event in case.of("nccl.init")}
    closed = [event for event in case.of("nccl.destroy") if event.data.how == "destroy"]
    worked = bool(work_lines(case))
    everybody = begun | _speakers(case) <= {event.rank for event in closed}
    if closed and worked and everybody:
        return max(closed, key=_place)
    return _left_at_exit(case) or _group_destroyed(case)


def _group_destroyed(case: Case) -> Event | None:
    """Torch's own line that a group is destroyed, after work.

    Every rank must have written it.
    """
    lines = [*unread_lines(case), *unread_lines(case, "quiet")]
    ended = [(line, DESTROYED.search(line.text)) for line in lines]
    by_rank = {}
    for line, match in ended:
        if match:
            by_rank[int(match[1])] = line
    steps = Span(work_lines(case))
    after = [line for line in by_rank.values() if steps.begins_before(line)]
    everybody = _members(case) <= by_rank.keys()
    if after and everybody:
        return after[-1]
    return None


def _left_at_exit(case: Case) -> Event | None:
    """Torch's warning at a program's end, after work.

    Every rank that logged must have said it.
    """
    hints = [event for event in case.of("c10d.hint") if event.data.what == "not_destroyed"]
    steps = Span(work_lines(case))
    after = [hint for hint in hints if steps.begins_before(hint)]
    if after and _speakers(case) <= {hint.rank for hint in hints}:
        return after[-1]
    return None


def _left(case: Case) -> set[int | None]:
    """Ranks that are known to have come to their end, or to have closed their communicators."""
    ranks = set()
    for hint in case.of("c10d.hint", what="not_destroyed"):
        ranks.add(hint.rank)
    for closed in case.of("nccl.destroy", how="destroy"):
        ranks.add(closed.rank)
    for phase in case.of("worker.phase"):
        if phase.data.phase in ("leave", "end"):
            ranks.add(phase.rank)
    return ranks


def _members(case: Case) -> set[int]:
    """All ranks that the evidence knows."""
    return set(ranks(case.events, case.inputs))


def _speakers(case: Case) -> set[int | None]:
    """The ranks whose program wrote a line while the job was at work.

    What NCCL and torch write is no word of the program, and what a rank says at its start says
    nothing of how it ends: mostly rank 0 alone writes from then on.
    """
    first = min(work_lines(case), key=_place, default=None)
    spoken = [event for event in case.events if not event.kind.startswith(LIBRARY)]
    for file in case.inputs:
        rows = (*file.get("quiet", ()), *file.get("abnormal", ()))
        for row in rows:
            if not TORCH_LINE.search(row["text"]):
                spoken.append(_as_event("line", file, row))
    if first is not None:
        after_first = []
        for line in spoken:
            # in another file nothing says whether it came before
            if line.path != first.path or line.line >= first.line:
                after_first.append(line)
        spoken = after_first
    ranks_heard = {_rank_of_line(line) for line in spoken}
    speakers: set[int | None] = set()
    for rank in ranks_heard:
        if rank is not None and rank >= 0:
            speakers.add(rank)
    return speakers


def _rank_of_line(line: Event) -> int | None:
    """The rank that wrote a line, by the launcher's mark or by the program's own."""
    if line.rank is not None:
        return line.rank
    marked = OWN_LINE.match(line.text)
    if marked:
        return int(marked["rank"])
    return None


def _whole_table(case: Case) -> Event | None:
    """The closing of a test's table without a wrong value.

    Where there is none, it is a row of the table's largest size.
    """
    tables = case.of("nccltests.table")
    if any(event.data.wrong for event in tables):
        return None
    for table in tables:
        # a table that broke off has no average
        if table.data.average is not None:
            return table
    lines = sorted((*unread_lines(case, "quiet"), *unread_lines(case)), key=_place)
    if any(TEST_ROW.search(line.text) and WRONG_VALUES.search(line.text) for line in lines):
        return None
    for line in lines:
        if NO_WRONG_VALUE.search(line.text):
            return line
    return _largest_row(lines)


def _largest_row(lines: list[Event]) -> Event | None:
    asked = [LARGEST_SIZE.search(line.text) for line in lines]
    sizes = []
    for match in asked:
        if match:
            sizes.append(int(match["bytes"] or match["other"]))
    if not sizes:
        return None
    rows = [(TEST_ROW.search(line.text), line) for line in lines]
    whole = []
    for row, line in rows:
        # a test measures the largest size last
        if row and int(row["size"]) >= max(sizes):
            whole.append(line)
    if whole:
        return whole[-1]
    return None


def _says_end(text: str) -> bool:
    if NOT_A_NUMBER.search(text) or STARTED.search(text) or is_source(text):
        return False
    if END_OF_ALL.search(text):
        return True
    return END_OF_ONE.search(text) is not None and HELPER.search(text) is None


def _serving(case: Case) -> list[Event]:
    served = [event for event in case.of("job.phase") if event.data.what in ("idle", "serving")]
    moved = []
    for e in case.of("ras.change"):
        if e.data.moved and not e.data.still:
            moved.append(e)
    tables = [event for event in case.of("nccltests.table") if not event.data.wrong]
    return [*served, *moved, *tables, *case.of("attach.motion")]


def _shows_work(row: Mapping[str, Any]) -> bool:
    text = row["text"]
    if RATE.search(text) or SERVING.search(text) or LOSS.search(text):
        return True
    if TEST_ROW.search(text):
        return WRONG_VALUES.search(text) is None
    # any program counts something once; a job at work does so again and again
    return row.get("times", 1) > 1 and COUNTED.search(text) is not None


def _as_event(kind: str, file: Mapping[str, Any], row: Mapping[str, Any]) -> Event:
    return Event(kind, text=row["text"], path=file["path"], line=row["line"], rank=row["rank"])


def _place(event: Event) -> tuple[float, str, int]:
    return event.time or 0.0, event.path, event.line
