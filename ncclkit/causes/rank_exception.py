"""A rank died of an error in its own program; the others only report that it is gone

What you see
    One traceback with an ordinary Python error (ValueError, FileNotFoundError, an assertion) and,
    before or after it, many lines of other ranks: collective timeouts, "Connection closed by peer",
    broken pipes, exit codes -6 and -15.  The many lines are louder than the one that matters.

Why it happens
    When a rank raises, its process ends and its sockets close.  The others still wait for it in a
    collective: gloo notices at once ("Connection closed by peer"), NCCL only when the watchdog's
    time is up, minutes later. torchrun calls the first exit it observed the root cause, which is
    right only if the process of the rank at fault ended first; the others can exit earlier while
    that rank hangs in its cleanup.

How to be sure
    Sort the tracebacks by time and leave out those that only report someone else (DistBackendError,
    gloo errors, SignalException).  The remaining one, on one rank, at a line of your own code, is
    the cause.

What to do
    The distributed machinery is fine; torch's @record on main makes torchrun's summary show the
    traceback.  Make sure that all ranks see the same data checks, or agree on skipping a bad
    sample.

Read more
    PyTorch: torch.distributed.elastic.multiprocessing.errors (the record decorator), torchrun error
    propagation.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ncclkit.analysis.frames import own_frame, place, stacks
from ncclkit.analysis.launchers import launchers
from ncclkit.analysis.outcome import work_lines
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    matching,
    messages,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import RankStates, crashes, exits, rank_states, signal_of
from ncclkit.analysis.shrinks import Shrink, shrinks
from ncclkit.analysis.succession import Span
from ncclkit.causes._experiments import minimal
from ncclkit.causes._launchers import options_of
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_ranks
from ncclkit.core.kinds import (
    SAYS_NOTHING,
    C10dUniqueId,
    ElasticExit,
    ElasticRoot,
    FlightMissing,
    GlooClosed,
    KernelOom,
    KernelSegfault,
    NcclDestroy,
    NcclWarn,
    PythonException,
    Stack,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, clear, found

ID = "rank_exception"
explains = (
    "c10d.timeout",
    "gloo.timeout",
    "gloo.closed",
    "store.lost",
    "nccl.peer_closed",
    "slow_rank",
    "rank_divergence",
    "network_loss",
    "timeout_too_short",
    "rank_killed",
    "ib_link_error",
    "send_recv_mismatch",
)

SEGFAULT = 11
SIGNALS = {4: "illegal instruction", 8: "arithmetic error", SEGFAULT: "segmentation fault"}


def diagnose(case: Case) -> Finding:
    """Found at the earliest traceback that is the program's own error."""
    states = rank_states(case)
    went_well = list(states.ended.values())
    went_well += case.of("c10d.timeout", "nccl.destroy", "elastic.exit")
    return first_finding(
        case, _raised_error, _native_crash, _lost_peer, _exit_without_traceback
    ) or otherwise(
        ID, went_well, "No rank raised an error of its own.", "the standard error of every rank"
    )


def _lost_peer(case: Case) -> Finding | None:
    """Ranks only report that a peer is gone, and nothing shows why it ended."""
    states = rank_states(case)
    # a rank that died, or a timeout, is told by other causes
    if states.dead or states.waiting:
        return None
    lost = _lost_connections(case)
    if not lost:
        return None
    ranks: tuple[int, ...] = ()
    line: list[Event] = []
    decided = ""
    shrink = _shrink_after(case, lost)
    if shrink is not None:
        # whom the program left out then is the peer that the others had lost
        ranks = shrink.left_out
        peer = name_ranks(ranks)
        first = shrink.lines[0]
        line = [first]
        work = Span(work_lines(case))
        if work.ends_after(first):
            return clear(ID, f"The program went on without {peer}.", tuple(line))
        decided = f", and the program then left {peer} out (ncclCommShrink)"
    say = (
        f"{who_of(lost)} only lost a peer{decided}; the reason why that peer ended,"
        " most often an error of the program, is not in these files."
    )
    return found(
        ID,
        "possible",
        say,
        pick(line, lost, limit=3),
        ranks=ranks,
        advice=(_record_traceback(case),),
        next=experiment(case),
    )


def _shrink_after(case: Case, lost: list[Event]) -> Shrink | None:
    """The shrink in which those were left out that had not closed their communicators before."""
    closed = set()
    for event in case.of(NcclDestroy, how="destroy"):
        closed.add(event.rank)
    losses = Span(lost)
    for shrink in shrinks(case.events):
        if not shrink.left_out or closed.intersection(shrink.left_out):
            continue
        first = shrink.lines[0]
        if losses.begins_before(first):
            return shrink
    return None


def _exit_without_traceback(case: Case) -> Finding | None:
    """The launcher saw a rank exit with an error, and no line says which error it was."""
    ended: list[Event] = []
    for root in case.of(ElasticRoot):
        if (root.data.exitcode or 0) > 0:
            ended.append(root)
    for event in case.of(ElasticExit):
        # a code from 128 on is a signal's
        if event.rank is not None and 0 < (event.data.exitcode or 0) < 128:
            ended.append(event)
    if not ended or _is_explained(case):
        return None
    ranks = _failed_by_themselves(case)
    who = "A rank"
    if ranks:
        who = who_are(ranks)
    say = (
        f"{who}{_on_host(ended[0])} ended with exit code {ended[0].data.exitcode} and its"
        " traceback is not in these files."
    )
    return found(
        ID,
        "possible",
        say,
        pick(ended, limit=1),
        ranks=ranks,
        advice=(_record_traceback(case),),
        next=experiment(case),
    )


def _failed_by_themselves(case: Case) -> tuple[int, ...]:
    """The only rank that ended with an error, where the launcher ended all others.

    Of several the first may be the victim of another.
    """
    failed = []
    for end in exits(case):
        if end.event.kind == "elastic.exit" and not end.by_launcher:
            failed.append(end.rank)
    ranks = tuple(sorted(set(failed)))
    if len(ranks) == 1 and ranks[0] >= 0:
        return ranks
    return ()


def _raised_error(case: Case) -> Finding | None:
    """A rank raised an error of its own."""
    states = rank_states(case)
    if not states.raised:
        return None
    # an error about waiting for another process comes last, whenever it was raised: its rank may
    # be a victim
    errors = sorted(in_order(states.raised.values()), key=_of_a_peer)
    first = errors[0]
    # one sentence: libraries append pages of hints
    message = re.split(r"\.\s+(?=[A-Z])", " ".join(str(first.data.message).split()))[0][
        :160
    ].rstrip(" .")
    where = place(own_frame(first.data.frames or (), innermost_first=False))
    kind = str(first.data.type).rpartition(".")[2]
    same_ranks = []
    for rank in states.raised:
        if rank >= 0 and _same_type(states.raised[rank], first):
            same_ranks.append(rank)
    ranks = tuple(sorted(same_ranks))
    victims = _reports_of_victims(case, states, ranks)
    strength: Strength = "likely"
    # an error of all ranks has no victims among them
    if victims and ranks and len(ranks) < max(len(states.members), 2):
        strength = "proven"
    # a worker is one of several processes of its engine, which tells of its end, whatever its rank
    if victims and first.data.worker and not ranks:
        strength = "proven"
    if _of_a_peer(first):
        strength = "likely"
    if _of_a_service(first):
        strength = "possible"
    who = who_are(ranks)
    if first.data.worker and not ranks:
        who = f"The worker {first.data.worker} of the server"
    say = f"{who} raised {kind}{': ' + message if message else ''}{' at ' + where if where else ''}"
    waiting = _waiting_in_rehearsal(case)
    if waiting and strength == "likely" and not _of_a_peer(first):
        strength = "proven"
    if victims:
        say += f"; the errors of {name_ranks(known_ranks(victims))} are the consequence."
    elif waiting:
        say += f"; {name_ranks(waiting)} would wait for it."
    else:
        say += "."
    return found(
        ID,
        strength,
        say,
        pick(errors[:3], in_order(victims), limit=6),
        ranks=ranks,
        advice=(
            *_do_as_it_says(first),
            *_provide(first),
            _fix_error(where, who),
            _record_traceback(case),
        ),
        next=None if strength == "proven" else experiment(case),
    )


def _waiting_in_rehearsal(case: Case) -> tuple[int, ...]:
    """Ranks that wait in a rehearsal, which knows why every rank ended."""
    waiting = set()
    for gap in case.of(FlightMissing):
        if gap.data.rehearsed:
            waiting.update(gap.data.waiting)
    return tuple(sorted(waiting))


PEER = re.compile(r"\bpeers?\b|\b[Rr]anks? \d|heartbeat|timed? ?out|lost connection", re.IGNORECASE)


def _of_a_peer(error: Event) -> bool:
    """True where the program's error is about waiting for another process.

    The rank may be one more victim.
    """
    kind = str(error.data.type).rpartition(".")[2]
    # frameworks wrap the loss of a peer into an error of their own
    reported = kind in ("RuntimeError", "Exception") and PEER.search(str(error.data.message))
    return bool(reported) or kind in (
        "TimeoutError",
        "EOFError",
        "BrokenPipeError",
        "ConnectionResetError",
        "Empty",
    )


SERVICE = re.compile(
    r"\bengine ?core\b.{0,40}\b(?:fail|died|dead)|\bplacement group\b|\bworker ?proc"
    r"|\bengine (?:process|loop) .{0,20}\b(?:fail|died|dead)",
    re.IGNORECASE,
)
"""Words of a service that gives up because a process of it did, or never came."""


def _of_a_service(error: Event) -> bool:
    """Whether Ray, or a server of models, tells of a process that it started.

    Why that process ended is said elsewhere, or nowhere.
    """
    if str(error.data.type).startswith("ray.exceptions."):
        return True
    return SERVICE.search(str(error.data.message)) is not None


def _same_type(error: Event, first: Event) -> bool:
    return bool(error.data.type == first.data.type)


def _reports_of_victims(case: Case, states: RankStates, ranks: tuple[int, ...]) -> list[Event]:
    kinds = (
        "c10d.timeout",
        "gloo.timeout",
        "gloo.closed",
        "store.lost",
        "nccl.peer_closed",
        "elastic.stop",
    )
    reports = []
    for kind in kinds:
        reports.extend(case.of(kind))
    for error in case.of(PythonException):
        if error.data.victim:
            reports.append(error)
    # a rank that raised is no victim, whatever else it printed
    own = set(ranks)
    others = []
    for event in reports:
        if event.rank not in own:
            others.append(event)
    return others


def _lost_connections(case: Case) -> list[Event]:
    """Reports of closed connections, whose ranks are victims of another one."""
    # what NCCL says of a peer that went; any other warning is a reason of its own
    victims = ("socket_closed", "proxy", "no_ib_library", "foreign", *SAYS_NOTHING)
    if any(e.data.family not in victims for e in case.of(NcclWarn)) or case.of(
        "gloo.size_mismatch"
    ):
        return []
    lost = [*case.of(GlooClosed), *family(case, "socket_closed")]
    for e in case.of(C10dUniqueId):
        if matching([e], "reset by peer", "Broken pipe", "got 0 bytes"):
            lost.append(e)
    return lost + matching(messages(case), "remote process exited or there was a network error")


def _native_crash(case: Case) -> Finding | None:
    """A process crashed in native code."""
    crashed = []
    for event in crashes(case):
        if (signal_of(event) or SEGFAULT) in SIGNALS:
            crashed.append(event)
    # a process that the kernel killed for memory may be seen to crash as well
    if not crashed or case.of(KernelOom):
        return None
    first = in_order(crashed)[0]
    number = signal_of(first) or SEGFAULT
    ranks = ranks_in(crashed)
    dead = set(ranks)
    seen = []
    for rank, stack in stacks(case).items():
        if rank in dead:
            seen.append(stack)
    where = next((place(own_frame(stack.data.frames, innermost_first=True)) for stack in seen), "")
    say = f"{who_are(ranks)} crashed in native code ({SIGNALS[number]}, signal {number})"
    say += (
        f" under {where}; the others only lost their peer."
        if where
        else "; the others only lost their peer."
    )
    position = where or next(
        (
            place(own_frame(e.data.frames, innermost_first=True))
            for e in _unplaced_stacks(case, ranks)
        ),
        "",
    )
    if position:
        advice = _native_advice(position)
    else:
        advice = TRACE
    return found(
        ID,
        "likely",
        say,
        pick([first], case.of(KernelSegfault), seen, crashed, limit=5),
        ranks=ranks,
        advice=(advice,),
        next=experiment(case),
    )


def _unplaced_stacks(case: Case, ranks: tuple[int, ...]) -> list[Event]:
    """Stacks of unknown ranks, where it is unknown, too, which one crashed."""
    if ranks:
        return []
    unplaced_stacks = []
    for event in case.of(Stack):
        if event.rank is None and event.data.frames:
            unplaced_stacks.append(event)
    return unplaced_stacks


TRACE = Advice(
    "Run again with PYTHONFAULTHANDLER=1 to see the Python line above the native crash.",
    env={"PYTHONFAULTHANDLER": "1"},
    why="A segmentation fault leaves no traceback of its own.",
    check="The rank's log ends with 'Fatal Python error: Segmentation fault' and its stack.",
    risk="None.",
)


def _native_advice(where: str) -> Advice:
    """What to do where the stack of the crash is known already."""
    return Advice(
        f"Look at the native call under {where}: which package it belongs to, and whether that"
        " package was built for this Python, torch and CUDA; make the same call in one process.",
        command="python -m torch.utils.collect_env; python -m pip check",
        why=(
            "Native code crashes where it was built for other versions, or does not check what it"
            " is given."
        ),
        check=(
            "The same call in one process crashes too, or the job passes it with another version of"
            " the package."
        ),
        risk="A newer package may need a newer torch.",
    )


def _is_explained(case: Case) -> bool:
    kinds = (
        "c10d.error",
        "cuda.oom",
        "cuda.error",
        "c10d.timeout",
        "gloo.timeout",
        "store.bind",
        "store.connect_timeout",
        "system.error",
        "rendezvous.error",
        "slurm.event",
        "kernel.oom",
        "cuda.driver",
        "nccl.warn",
    )
    raised = []
    for event in case.of(PythonException):
        # torchrun raises that for whatever ended a rank
        if not str(event.data.type).endswith("ChildFailedError"):
            raised.append(event)
    return bool(raised) or any(case.of(kind) for kind in kinds)


def _on_host(event: Event) -> str:
    host = ""
    if isinstance(event.data, ElasticRoot):
        host = event.data.host
    if host:
        return f" on {host}"
    return ""


RECOMMENDED = re.compile(
    r"(?:^|[.!;:]\s+)((?:[Pp]lease|[Tt]ry|[Cc]onsider|[Mm]ake sure|[Ee]nsure|[Uu]se|[Ss]et|[Pp]ass"
    r"|[Ii]nstall|[Uu]pgrade|[Rr]un|You (?:can|must|should|need to|have to))\b[^.!]{8,160})"
)
"""A clause of an error that says what to do."""
REPORTING = ("report", "issue", "debug", "CUDA_LAUNCH_BLOCKING", "traceback", "more information")
"""Words of clauses that say how to find out more, and not what helps."""


def _do_as_it_says(error: Event) -> tuple[Advice, ...]:
    """What the error itself recommends; empty where it recommends nothing."""
    message = " ".join(str(error.data.message).split())
    for clause in RECOMMENDED.findall(message):
        if not any(word in clause for word in REPORTING):
            return (replace(RECOMMENDATION, do=f"Do what the error itself says: {clause}."),)
    return ()


RECOMMENDATION = Advice(
    "Do what the error itself says.",
    why="Who wrote the message knew when it is raised.",
    check="The same job passes this step.",
    risk="The message knows one reason; the error may have another.",
)


def _provide(error: Event) -> tuple[Advice, ...]:
    """How to provide what a rank did not find: a file or a package."""
    kind = str(error.data.type).rpartition(".")[2]
    if kind == "FileNotFoundError":
        return (SHARED_FILE,)
    if kind == "ModuleNotFoundError":
        return (PACKAGE,)
    return ()


SHARED_FILE = Advice(
    "Put the file that the error names where every rank finds it: on a file system that all hosts"
    " share, or made on each host by its own first rank, and not removed while the job runs.",
    command="df -h .; ls -la",
    why="A file that rank 0 wrote to a local disk does not exist on other hosts.",
    check="`ls` with that path succeeds on every host.",
    risk="Two ranks must not write it at once.",
)
PACKAGE = Advice(
    "Install the package that the error names in the environment that runs on every host.",
    command="python -m pip list; python -c 'import sys; print(sys.executable)'",
    why="A rank imports from its own host's environment.",
    check="The same import succeeds on every host.",
    risk="None.",
)


def _fix_error(where: str, who: str) -> Advice:
    return Advice(
        f"Fix the error at {where or 'the place the traceback names'}; look at the data that only"
        f" {who.lower()} has.",
        why="The collectives of the other ranks failed because this process was gone.",
        check="The same job passes this step.",
        risk="Skipping a bad sample on one rank only makes the ranks diverge.",
    )


def _record_traceback(case: Case) -> Advice:
    code = ""
    if "torchrun" in launchers(case):
        code = (
            "from torch.distributed.elastic.multiprocessing.errors import record\n\n@record\ndef"
            " main(): ..."
        )
    return Advice(
        f"Read what the rank that fails printed itself: {options_of(case).output}.",
        code=code,
        why="A launcher's summary only has an exit code, and other ranks only lost their peer.",
        check="One rank's own output ends with an error that is not of the network.",
        risk="None.",
    )


def experiment(case: Case) -> Experiment:
    """Run the same ranks without the program."""
    return minimal(
        "Do the same ranks work without the program?",
        {
            ID: "they do: the program ended a rank",
            "host_oom": "they do: the program had taken the memory",
        },
        {
            "version_mismatch": "they fail too: a library does not fit",
            "network_loss": "they fail too: a connection breaks",
            "gpu_hardware_error": "they fail too, on one GPU",
        },
    )


REMEDIES = (
    _fix_error("", "that rank"),
    RECOMMENDATION,
    SHARED_FILE,
    PACKAGE,
    _record_traceback(Case()),
    TRACE,
    _native_advice("the place that the stack names"),
)
