"""How a rank ended whose process is gone while the others wait, and where that stands."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence

from ncclkit.analysis.waits import positions_of_case
from ncclkit.core.case import Case
from ncclkit.core.kinds import AttachRank
from ncclkit.core.live_waits import EndedRank
from ncclkit.core.model import Advice
from ncclkit.core.text import plural, ranks

ENDS = re.compile(r": (?:exit|_exit|return|raise|abort)\b")
"""What ends a rank, or its part of the work, at a condition that the others passed."""


def ended_in_words(case: Case, known: Sequence[EndedRank]) -> str:
    """`` (its process 77 was killed by SIGKILL)``: how ranks ended, with a blank before it.

    Where nothing here shows it, that is said, with the file in which to look.
    """
    words = []
    for ended in known:
        words += _shown(ended)
    if words:
        return f" ({'; '.join(dict.fromkeys(words))})"
    file = output_of_others(case)
    look = "in the launcher's output"
    if file:
        look = f"in {file}"
    return f" (how it ended is not known here: look {look})"


def _shown(ended: EndedRank) -> list[str]:
    """What shows how one rank ended."""
    words = []
    if "signal" in ended:
        words.append(f"its process {ended.get('pid')} was killed by {_name(ended['signal'])}")
    if "status" in ended:
        words.append(f"its process {ended.get('pid')} ended with status {ended['status']}")
    if ended.get("error"):
        words.append(f"it printed `{ended['error']}`")
    kills = ended.get("oom_kills")
    if kills:
        killed = plural(kills, "process")
        words.append(f"the kernel has killed {killed} of the job's control group for memory")
    return words


def _name(number: int) -> str:
    """``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def output_of_others(case: Case) -> str:
    """The file to which the ranks that live print; "" where they print to none, or to several."""
    files = set()
    for position in positions_of_case(case).values():
        about: AttachRank = position.lines[0].data
        files.add(str(about.output.get("file") or ""))
    if len(files) == 1:
        return files.pop()
    return ""


def advice_on_gone(case: Case, gone: Sequence[int]) -> tuple[Advice, ...]:
    """To read what is left of these ranks, and to end the others."""
    file = output_of_others(case)
    command = "dmesg -T | grep -iE 'oom|killed process' | tail; coredumpctl list --no-pager | tail"
    where = "the launcher's output, the kernel's log and the list of cores"
    if file:
        command = f"ncclkit diagnose {shlex.quote(file)}; {command}"
        where = f"{file}, the kernel's log and the list of cores"
    return (
        Advice(
            f"{_left_by_program(case, gone)}Read how {ranks(gone)} ended, in {where}; then end the"
            " job and start it again: the others wait for a process that will not come back.",
            command=command,
            why="Without a launcher that watches them, ranks do not learn that one has ended.",
            check="One of them names the error, the signal or the process.",
            risk="None: these only read.",
        ),
    )


def _left_by_program(case: Case, gone: Sequence[int]) -> str:
    """The line at which the program itself may have ended them; "" where none is seen."""
    for stand in positions_of_case(case).values():
        if stand.condition.startswith("past ") and ENDS.search(stand.condition):
            return (
                f"See first whether the program itself ended {ranks(gone)} at"
                f" `{stand.condition[5:]}`, which rank {stand.rank} has passed. "
            )
    return ""
