"""One rank's Python is blocked in native code that holds the GIL

What you see
    "Could not acquire GIL within 300 ms on exit, possible GIL induced hang", "ProcessGroupNCCL's
    watchdog got stuck for 480 seconds", a rank whose progress bar, heartbeat and signal handlers
    all stop.

Why it happens
    Only the thread that holds the GIL (Python's global interpreter lock) runs Python code.  A C
    extension that blocks (a file system call, a download, a lock inside a library, a CUDA call that
    waits) without releasing the lock stops every other thread, including the watchdog's attempts to
    write the Flight Recorder with Python stacks.

How to be sure
    `py-spy dump --native --pid PID` on that rank: the thread marked "+gil" is in the native call.

What to do
    A subprocess or a data-loader worker can make the call; a newer version of the library may
    release the lock.

Read more
    py-spy (--gil, --native); Python docs: releasing the GIL in extension code.
"""

from __future__ import annotations

import re

from ncclkit.analysis.frames import awaited_and_silent, own_frame, place, stacks
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    name_hosts,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.analysis.rank_states import rank_states, stopped
from ncclkit.analysis.wait_kinds import HOLDS_GIL
from ncclkit.analysis.waits import others_wait, positions_of_case
from ncclkit.causes._experiments import experiment_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import C10dMonitor, C10dTimeout, FlightMissing, RunEnd
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "gil_hold"
explains = ("c10d.monitor", "c10d.timeout", "slow_rank")

UNANSWERED = re.compile(r"rank (\d{1,7}) did not answer SIGUSR1")
"""What a run of ours says of a rank whose crash handler could not answer."""


def diagnose(case: Case) -> Finding:
    """Found where the monitor, the watchdog or a rank was kept waiting.

    The monitor could not get the lock, the watchdog was stuck, or a rank answered no signal.
    """
    went_well = [*case.of("c10d.timeout", "nccl.destroy"), *rank_states(case).ended.values()]
    missing = "a stack of each rank with native frames (`ncclkit attach`)"
    closed = []
    for fact in case.facts_of("limits.ptrace_scope"):
        if fact.value:
            closed.append(fact)
    if closed:
        missing += f"; as root, since {closed[0]}{on(closed[0].host)} keeps py-spy from attaching"
    return first_finding(
        case,
        _unresponsive_rank,
        _live_holder,
        _silent_rank,
        _lock_not_granted,
        _stuck_watchdog,
    ) or otherwise(ID, went_well, "No monitor reported a held lock.", missing)


def _lock_not_granted(case: Case) -> Finding | None:
    """PyTorch's monitor asked for the lock and did not get it."""
    lines = in_order(case.of(C10dMonitor, what="gil"))
    if not lines:
        return None
    # after a timeout the ranks are being stopped, which may hold the lock as well
    strength: Strength = "possible"
    missing = set()
    for gap in case.of(FlightMissing):
        missing.update(gap.data.missing)
    # a rank that waits for the others has given the lock up, and these never came
    never_came = set(ranks_in(lines)) <= missing and ranks_in(lines)
    if never_came or _stacks_of(case, lines) or not case.of(C10dTimeout):
        strength = "likely"
    return _finding(case, strength, "could not get the GIL", lines)


def _stuck_watchdog(case: Case) -> Finding | None:
    """PyTorch's watchdog itself did not move, and no collective had timed out."""
    lines = in_order(case.of(C10dMonitor, what="stuck"))
    if not lines or case.of(C10dTimeout):
        return None
    what = f"was stuck for {lines[0].data.seconds or 'minutes'} s"
    return _finding(case, "possible", what, lines)


def _stacks_of(case: Case, lines: list[Event]) -> list[Event]:
    """The stacks of the ranks of these lines, as far as there are some."""
    known = stacks(case)
    found = []
    for rank in ranks_in(lines):
        if rank in known:
            found.append(known[rank])
    return found


def _finding(case: Case, strength: Strength, what: str, lines: list[Event]) -> Finding:
    ranks = ranks_in(lines)
    seen = _stacks_of(case, lines)
    at = ""
    for stack in seen[:1]:
        where = place(own_frame(stack.data.frames, innermost_first=True))
        if where:
            at = f" at {where}"
    say = (
        f"The watchdog of {name_ranks(ranks)}{on(lines[0].host)} {what}: a thread"
        f" holds the lock in native code{at}."
    )
    stuck = in_order(case.of(C10dMonitor, what="stuck"))
    return found(
        ID,
        strength,
        say,
        pick(lines, stuck, seen),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice(case, ranks),
        next=experiment(case),
    )


def _live_holder(case: Case) -> Finding | None:
    """A rank of a running job that holds the lock while the others wait.

    It is in native code, and they wait for it.
    """
    outside = set()
    for gap in case.of(FlightMissing):
        outside.update(gap.data.missing)
    held = []
    for rank, stand in positions_of_case(case).items():
        # others wait for it: a rank may hold the lock for a moment at any time
        if stand.waits_for == HOLDS_GIL and rank in outside:
            held.append(stand)
    if not held:
        return None
    ranks = tuple(stand.rank for stand in held)
    say = f"{who_are(ranks)} holds the GIL in native code in {held[0].call} at {held[0].place}; "
    say += f"{others_wait(case, ranks) or 'the others wait for it'}."
    why = pick([stand.lines[-1] for stand in held], case.of(FlightMissing))
    return found(
        ID, "likely", say, why, ranks=ranks, advice=_advice(case, ranks), next=experiment(case)
    )


def _silent_rank(case: Case) -> Finding | None:
    """A rank that took the question of torch's debug server and did not answer."""
    lines = awaited_and_silent(case, "late")
    if not lines:
        return None
    ranks = ranks_in(lines)
    say = (
        f"{who_are(ranks, lines[0].host)} did not answer torch's debug server, while the others"
        " wait in a collective: a thread holds the GIL, or the process is stopped or swaps."
    )
    stood = []
    for rank, stack in stacks(case).items():
        if rank not in ranks:
            stood.append(stack)
    return found(
        ID,
        "possible",
        say,
        pick(lines, stood[:1], limit=4),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice(case, ranks),
        next=experiment(case),
    )


def _unresponsive_rank(case: Case) -> Finding | None:
    """A live rank of our own run whose crash handler could not answer.

    The handler is a thread of its own, and had seconds to answer.
    """
    known = stacks(case)
    held_by_signal = stopped(case)
    for end in case.of(RunEnd):
        ranks = set()
        for rank in UNANSWERED.findall(str(end.data.say)):
            ranks.add(int(rank))
        # a stopped process answers no signal either, and holds nothing
        silent = ranks - held_by_signal.keys()
        for rank, stack in known.items() if silent else ():
            if rank in silent:
                where = place(own_frame(stack.data.frames, innermost_first=True))
                say = (
                    f"Rank {rank} held the GIL in a native call at {where}, so that none of its"
                    " threads "
                )
                held = "+gil)" in stack.text.partition("\n")[0]  # py-spy saw it with the lock
                return found(
                    ID,
                    "proven" if held and rank_states(case).waiting else "likely",
                    say + "could answer while the others waited.",
                    pick([stack], [end]),
                    ranks=(rank,),
                    advice=_advice(case, (rank,)),
                    next=experiment(case),
                )
    return None


def _advice(case: Case, ranks: tuple[int, ...]) -> tuple[Advice, ...]:
    held_by = set(ranks)
    pid = None
    for event in case.events:
        if event.rank in held_by and event.pid:
            pid = event.pid
            break
    # py-spy asks for a process, which only some logs name
    dump = "pgrep -af python"
    if pid:
        dump = f"py-spy dump --native --pid {pid}"
    return (
        Advice(
            "Find the native call that holds the lock, and move it out of the training process or"
            " give it a timeout: py-spy dump --native shows it for the process of that rank.",
            command=dump,
            why="All other Python threads of the rank wait for this one.",
            check="The dump shows '+gil' in the main loop, not in that call.",
            risk="py-spy pauses the process for a moment.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same ranks without the program and its native calls."""
    return experiment_of(
        "Do the same ranks and GPUs keep going when they only do all_reduce?",
        {"minimal": True},
        {
            ID: (
                "works",
                "they do: a native call of the program held the lock; `py-spy dump --native`"
                " names it",
            ),
            "slow_rank": ("works", "they do: the program's ordinary Python was slow"),
            "gpu_hardware_error": ("same", "they stop too: a CUDA call never returns"),
            "p2p_broken": ("same", "they stop too: the data never arrives"),
        },
    )


REMEDIES = _advice(Case(), ())
