"""The collective is healthy; its timeout is shorter than the job needs

What you see
    A watchdog timeout far below the default of 600 s (a program sets 30 s or 60 s), or at the
    default in a place where the job always takes long: the first step with torch.compile, loading a
    large model, consolidating a checkpoint.  With a longer timeout the same job runs.

Why it happens
    The timeout covers the wait for the slowest rank, not only the data transfer.  Warm-up compiles
    kernels, reads hundreds of gigabytes, and builds indices on one rank first; new_group() takes
    the backend's default and not the parent's timeout, and gloo groups have 1800 s of their own.

How to be sure
    Raise the timeout and watch progress: if the step ends by itself, the timeout was too short.  If
    there is never any progress it is a hang, and a longer timeout only hides it.

What to do
    The timeout must exceed the longest legitimate phase: twice its measured time.  Or give that
    phase a group of its own with a long timeout, and keep the short one for training.

Read more
    PyTorch docs: init_process_group(timeout), new_group(timeout).
"""

from __future__ import annotations

import math

from ncclkit.analysis.calls import only_point_to_point, op_of
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    seconds,
    who_of,
)
from ncclkit.analysis.rank_states import (
    all_waiting,
    idle_service,
    rank_states,
    startup_phase,
    timeout_of,
)
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._settings import MEASURE, raise_timeout, unreached_timeout
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclDestroy, RunEnd, Stack, StepProgress, WorkerPhase
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, clear, found

ID = "timeout_too_short"
explains = ("c10d.timeout", "gloo.timeout", "rank_divergence", "p2p_broken", "nccl_bug")
DEFAULT_MS = 600_000
SHORT_MS = 300_000
PROOF = ("flight.missing", "flight.mismatch", "c10d.mismatch", "gloo.barrier")
"""Event kinds that explain better why the collective did not end."""


def diagnose(case: Case) -> Finding:
    """Found where a short timeout expired, or ranks were still compiling.

    The timeout is well below the default, and no rank died.
    """
    went_well = [*rank_states(case).ended.values(), *case.of(NcclDestroy)]
    return first_finding(
        case,
        _rank_died,
        _instant_timeout,
        _explained_otherwise,
        _own_deadline,
        _compiling_ranks,
        _idle_server,
        _unreached_setting,
        _short_timeout,
        _default_timeout,
    ) or otherwise(
        ID,
        went_well,
        NONE_TOO_SHORT,
        "the timeout that is set, and the time of the longest phase",
    )


NONE_TOO_SHORT = "No collective reached a timeout that was too short."


def _rank_died(case: Case) -> Finding | None:
    dead = rank_states(case).dead
    if dead:
        say = "A rank died; more time would not have helped."
        return clear(ID, say, tuple(dead.values())[:2])
    return None


def _better_reasons(case: Case) -> list[Event]:
    """What says by itself why the collective did not end."""
    reasons: list[Event] = []
    for kind in PROOF:
        reasons.extend(case.of(kind))
    return reasons


def _explained_otherwise(case: Case) -> Finding | None:
    """Whether something shows that time was not the matter.

    It shows which rank was missing or which calls differed.
    """
    if not _better_reasons(case):
        return None
    went_well = [
        *rank_states(case).ended.values(),
        *case.of(NcclDestroy),
        *_better_reasons(case),
    ]
    return clear(ID, NONE_TOO_SHORT, tuple(went_well[:3]))


WATCHDOG_MS = 100
"""How often PyTorch's watchdog looks.

With a shorter timeout whatever it sees at work has timed out.
"""


def _instant_timeout(case: Case) -> Finding | None:
    """The timeout is so short that a healthy collective exceeds it.

    It is the reason, not a rank.
    """
    lines = in_order(rank_states(case).instant_timeouts)
    if not lines:
        return None
    limit = lines[0].data.timeout_ms
    who = who_of(lines)
    say = (
        f"{who} timed out after {limit:g} ms, in which hardly any collective ends: the timeout is"
        " the reason, and no rank needs to have been late."
    )
    advice = raise_timeout(case, "A timeout in milliseconds was probably meant as one in seconds.")
    strength: Strength = "likely"
    # the watchdog looks less often than that
    if limit < WATCHDOG_MS:
        strength = "proven"
    return found(ID, strength, say, pick(lines), advice=advice or (MEASURE,), next=experiment(case))


def _own_deadline(case: Case) -> Finding | None:
    """Our own run was ended at its deadline while every rank was still making progress."""
    ends = case.of(RunEnd, reason="deadline")
    last = {}
    for event in in_order(case.of(WorkerPhase)):
        if event.rank is not None:
            last[event.rank] = event
    if (
        not ends
        or not last
        or any(e.data.phase == "error" for e in last.values())
        or rank_states(case).waiting
    ):
        return None
    # all at one size: the test was under way, not stuck
    sizes = {e.data.bytes or e.data.step for e in last.values()}
    at = ""
    if len(sizes) == 1 and None not in sizes:
        at = f" (last at {sizes.pop()})"
    who = name_ranks(last)
    say = (
        f"The run's own deadline came while {who} were still at work{at}; nothing shows that one of"
        " them hangs."
    )
    check, risk = "The run ends by itself.", "A hang is noticed that much later."
    advice = (
        Advice("Give the run a longer deadline.", code="deadline = 600.0", check=check, risk=risk),
    )
    return found(
        ID, "possible", say, pick(ends, last.values()), advice=advice, next=experiment(case)
    )


def _compiling_ranks(case: Case) -> Finding | None:
    """The ranks compiled kernels at different speeds, and one timed out.

    They may also have tuned them; it was the first of them that timed out.
    """
    phase = startup_phase(case, "compile")
    waits = in_order(rank_states(case).waiting.values())
    if phase is None:
        return None
    limit = seconds(waits[0].data.timeout_ms)
    say = f"{who_of(waits)} waited {limit} while ranks still compiled kernels, which happens once."
    advice = (
        *raise_timeout(case, "The first step compiles; later ones take a fraction of its time."),
        CACHE,
    )
    return found(ID, "likely", say, pick([phase], waits), advice=advice, next=experiment(case))


def _idle_server(case: Case) -> Finding | None:
    """A server had nothing to do.

    Its workers timed out waiting for the next request.
    """
    phase = idle_service(case)
    waits = in_order(rank_states(case).waiting.values())
    if phase is None:
        return None
    who = who_of(waits)
    limit = seconds(waits[0].data.timeout_ms)
    say = (
        f"{who} waited {limit} for the next request, and none came: the server was idle, not stuck."
    )
    advice = raise_timeout(case, "It must exceed the longest time without a request.") or (PING,)
    return found(
        ID,
        "likely",
        say,
        pick([phase], waits, limit=4),
        advice=(*advice, PING)[:2],
        next=experiment(case),
    )


PING = Advice(
    "Send the server a short request from time to time.",
    command="watch -n 60 curl -s http://localhost:8000/health_generate",
    why="Workers that wait for work wait in a collective, which has a timeout.",
    check="The server still answers after an idle night.",
    risk="None; a newer release of the server may wait without a timeout.",
)


def _unreached_setting(case: Case) -> Finding | None:
    """A longer timeout was set elsewhere.

    The group that timed out did not get it.
    """
    # a new group takes the backend's default and not its parent's timeout
    short, raised = unreached_timeout(case)
    if not short:
        return None
    name = next((str(said) for e in short if (said := e.data.desc or e.data.pg)), "")
    say = (
        f"A longer timeout was set, but the group{f' {name}' if name else ''} in which"
        f" {name_ranks(ranks_in(short))} "
    )
    say += "timed out has the default of 600 s."
    advice = (EACH_GROUP, MEASURE)
    return found(
        ID, "likely", say, pick(short[:2], raised[:2]), advice=advice, next=experiment(case)
    )


EACH_GROUP = Advice(
    "Pass the timeout to each group that is made.",
    code=(
        "torch.distributed.new_group(ranks, timeout=timedelta(hours=2))   # also in"
        " init_device_mesh"
    ),
    why="A new group does not inherit the timeout of init_process_group.",
    check=(
        "The watchdog's 'initialization options' lines name the same TIMEOUT(ms) for every group."
    ),
    risk="A true hang is noticed that much later.",
)

CACHE = Advice(
    "Keep the compiled kernels on a local disk of each node, and fill that cache in a run of one"
    " rank per node.",
    env={"TORCHINDUCTOR_CACHE_DIR": "/var/tmp/inductor", "TRITON_CACHE_DIR": "/var/tmp/triton"},
    why="A second start then compiles nothing.",
    check="The first step of the second start takes about as long as its second step.",
    risk="A cache of another version is not used.",
)


def _short_timeout(case: Case) -> Finding | None:
    """The timeout is far below the default."""
    waits = in_order(rank_states(case).waiting.values())
    # half of the default: somebody chose it
    lines = []
    for event in waits:
        if (timeout_of(event) or DEFAULT_MS) < SHORT_MS:
            lines.append(event)
    if not lines:
        return None
    who = who_of(lines)
    limit = seconds(timeout_of(lines[0]))
    say = (
        f"{who} timed out after {limit}, far below the default of 600 s; a rank may only have been"
        " late."
    )
    advice = (
        *raise_timeout(case, "The timeout must exceed the longest phase of any rank."),
        MEASURE,
    )
    first_line = {line.path: line.line for line in sorted(lines, key=lambda line: -line.line)}
    # steps below the timeout in the same file: the job went on
    moving = []
    for e in case.of(StepProgress):
        if e.line > first_line.get(e.path, math.inf):
            moving.append(e)
    strength: Strength = "possible"
    if moving:
        strength = "likely"
        say = f"{say[:-1]}, and the work went on after that."
    return found(
        ID,
        strength,
        say,
        pick(lines, moving or case.of(StepProgress)),
        advice=advice,
        next=experiment(case),
    )


def _default_timeout(case: Case) -> Finding | None:
    """A timeout at the default.

    The log does not show whether the collective would have completed.
    """
    lines = []
    for event in in_order(rank_states(case).waiting.values()):
        if op_of(event):
            lines.append(event)
    if (
        not lines
        or case.of(Stack)
        # where all ranks are inside, or in pairs, waiting longer ends nothing
        or all_waiting(case, rank_states(case))
        or only_point_to_point(lines)
    ):
        return None
    who = who_of(lines)
    limit = seconds(timeout_of(lines[0]))
    say = (
        f"{who} waited {limit} for a collective; this log does not show whether it would have"
        " completed later."
    )
    advice = (MEASURE, *raise_timeout(case, "Only to see whether the step ends by itself."))
    return found(ID, "possible", say, pick(lines, limit=3), advice=advice, next=experiment(case))


def experiment(case: Case) -> Experiment:
    """Run the same job with a longer timeout and watch for progress."""
    return experiment_of(
        "Does the step of a small job end by itself when its collectives may take four times as"
        " long?",
        {"timeout": 4},
        {
            ID: ("works", "it ends"),
            "slow_rank": (
                "named",
                "one rank is late again, whether or not the others wait for it now",
            ),
            "rank_divergence": ("same", "no rank makes progress"),
            "send_recv_mismatch": ("same", "no rank makes progress"),
            "p2p_broken": ("same", "no rank makes progress"),
            "network_loss": ("same", "no rank makes progress"),
        },
    )


REMEDIES = (
    MEASURE,
    *raise_timeout(Case(), "It must exceed the longest legitimate phase of any rank."),
    EACH_GROUP,
    CACHE,
    PING,
)
