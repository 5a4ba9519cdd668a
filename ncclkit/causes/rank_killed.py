"""A rank was killed from outside, and no file says why

What you see
    One process ends with exit code -9 or 143/-15 and no traceback, "Signal 15 (SIGTERM) received",
    "CANCELLED AT ... DUE TO TIME LIMIT" or "DUE TO PREEMPTION"; the other ranks then time out or
    see a closed connection.

Why it happens
    Nothing in the program ended it: the job's time limit was reached, the scheduler preempted the
    job, an operator or a node-health script sent a signal, a container was stopped, or the kernel's
    OOM killer acted (that leaves a trace in dmesg; see host_oom).  SIGKILL cannot be caught, so the
    rank's own log just stops.

How to be sure
    Look for the sender: `sacct -j JOB -o State,ExitCode,Reason`, `dmesg -T` on the node, `kubectl
    describe pod`, `journalctl` around the second in which the log stops.

What to do
    If it was memory: see host_oom.

Read more
    Slurm: sbatch --time, --requeue, --signal.  signal(7).
"""

from __future__ import annotations

import re

from ncclkit.analysis.frames import awaited_and_silent, stacks
from ncclkit.analysis.launches import (
    behind_sentence,
    global_ranks,
    hosts_of,
    in_brackets,
    places_in_words,
)
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    initialized,
    matching,
    name_hosts,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.analysis.waits import others_wait, positions_of_case
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._gone_ranks import advice_on_gone, ended_in_words
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import (
    AttachRank,
    C10dTimeout,
    CudaOom,
    ElasticExit,
    ElasticRoot,
    FlightMissing,
    GlooClosed,
    KernelOom,
    NcclInit,
    PythonException,
    RasCommunicator,
    RasReport,
    RunEnd,
    SlurmEvent,
    StepProgress,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, clear, found

ID = "rank_killed"
explains = (
    "c10d.timeout",
    "gloo.closed",
    "gloo.timeout",
    "store.lost",
    "nccl.peer_closed",
    "slow_rank",
    "network_loss",
    "rank_divergence",
)
BY = {
    "time_limit": "the job's time limit was reached",
    "cancelled": "the scheduler cancelled the job",
    "node_fail": "the scheduler lost the node",
}

OURS = ("deadline", "cancelled", "orphaned", "lost")
"""Reasons of a run's end for which the guard sent SIGTERM.

The ranks that it kills leave no exit code.
"""


def diagnose(case: Case) -> Finding:
    """Found where the scheduler ended the job, or a process was killed.

    It died of signal 9 or 15 that the launcher did not send.
    """
    went_well = case.of("nccl.destroy", "elastic.exit", "c10d.timeout")
    return first_finding(
        case,
        _failed_before,
        _ended_by_scheduler,
        _killed_for_memory,
        _killed_rank,
        _refuses_connections,
        _ended_by_guard,
        _closed_terminal,
        _other_launcher_failed,
        _launcher_stopped,
        _lost_by_ras,
    ) or otherwise(
        ID,
        went_well,
        "No process was ended by a signal from outside.",
        "the launcher's output with the exit codes",
    )


def _scheduler_lines(case: Case) -> list[Event]:
    """The lines in which Slurm says that it ended the job."""
    return [event for event in case.of(SlurmEvent) if event.data.what in BY]


def _failed_before(case: Case) -> Finding | None:
    """The job had failed, or hung, and the scheduler only cleared away what was left."""
    scheduler = _scheduler_lines(case)
    earlier = _after_failure(case, scheduler)
    if not scheduler or not earlier:
        return None
    return clear(
        ID,
        "The job had failed before the scheduler stopped what was left of it.",
        tuple(earlier[:2]),
    )


def _ended_by_scheduler(case: Case) -> Finding | None:
    """Slurm says that it ended the job.

    It did so by its time limit, for another one, or with its node.
    """
    scheduler = _scheduler_lines(case)
    if not scheduler:
        return None
    event = in_order(scheduler)[0]
    strength: Strength = "proven"
    # a node may also have gone down when the job was about to end anyhow
    after_end = event.data.answer and "NodeName=" in event.text
    if _signs_of_hang(case, event) or after_end or RAY_SAYS.search(event.text):
        strength = "likely"
    return found(
        ID,
        strength,
        _end_in_words(event, _lost_host(scheduler)),
        pick(scheduler),
        hosts=name_hosts(scheduler),
        advice=(_advice_on_end(event),),
    )


def _end_in_words(event: Event[SlurmEvent], lost: str) -> str:
    """What the scheduler did, in one sentence."""
    if event.data.what == "node_fail":
        return (
            f"The scheduler counts {lost or 'a node'} as failed (down, or without an answer) and"
            " ended the job; what became of the ranks there is not known."
        )
    return f"The ranks{on(lost)} were killed from outside: {_sender(event)}."


def _sender(event: Event[SlurmEvent]) -> str:
    """Why the scheduler ended the job, by the line that says that it did."""
    if _is_preemption(event):
        return "the scheduler took its nodes for a job of higher priority (preemption)"
    return BY[event.data.what]


def _is_preemption(event: Event[SlurmEvent]) -> bool:
    return event.data.what == "cancelled" and "PREEMPT" in event.text.upper()


def _advice_on_end(event: Event[SlurmEvent]) -> Advice:
    """What helps against an end that the scheduler decided."""
    if event.data.what == "node_fail":
        return LOST_NODE
    if _is_preemption(event):
        return PREEMPTED
    return _requeue_advice()


RAY_SAYS = re.compile(r"marked dead|its node has died|terminated soon")
"""Words of Ray of a node that it has lost, or is told that it will lose.

A node that only lost its network, or whose memory was full, is called dead as well.
"""


def _lost_host(scheduler: list[Event]) -> str:
    """The host of the first line; an answer about the whole job names none, that on a node does."""
    first = in_order(scheduler)[0]
    if first.data.answer:
        return first_host(scheduler)
    if first.data.what == "node_fail" and not first.host:
        # the log ended before the line that names the node
        return first_host([event for event in scheduler if event.data.what == "node_fail"])
    return first.host


def _killed_for_memory(case: Case) -> Finding | None:
    """The OOM killer says that it was the one: see host_oom."""
    memory: list[Event] = [*case.of(KernelOom), *case.of(SlurmEvent, what="oom")]
    memory += case.of(SystemFault, what="oom_kill")
    if memory:
        return clear(ID, "The OOM killer's report explains the kill.", tuple(memory[:2]))
    return None


def _ended_by_us(case: Case) -> list[Event]:
    """Ends of runs of ours in which the guard sent the signals."""
    return [event for event in case.of(RunEnd) if event.data.reason in OURS]


def _killed_rank(case: Case) -> Finding | None:
    """A rank died of a signal that nobody here sent."""
    ours = _ended_by_us(case)
    killed = {}
    for rank, end in rank_states(case).killed.items():
        # the guard asks with SIGTERM: SIGKILL came from somebody else
        if not ours or _signal_number(end) == 9:
            killed[rank] = end
    if killed:
        return _finding(case, killed)
    return None


def _ended_by_guard(case: Case) -> Finding | None:
    """ncclkit ended its own run."""
    ours = _ended_by_us(case)
    if ours:
        return clear(ID, "ncclkit itself ended this run.", tuple(ours))
    return None


def _stopped_launchers(case: Case) -> list[Event]:
    """The lines of a launcher that got SIGTERM."""
    lines: list[Event] = []
    for event in case.of(PythonException):
        if str(event.data.type).endswith("SignalException"):
            lines.append(event)
    return lines + matching(case.of(SystemFault), "Signal 15 (SIGTERM) received")


def _other_launcher_failed(case: Case) -> Finding | None:
    """A launcher was stopped, because that of another host had failed before."""
    first = _ended_elsewhere(case, _stopped_launchers(case))
    if not first:
        return None
    return clear(
        ID,
        "The launcher of another host failed first, and this one was stopped after it.",
        tuple(first),
    )


def _launcher_stopped(case: Case) -> Finding | None:
    """A launcher, or a line of the system, tells of a signal from outside."""
    reported = _stopped_launchers(case)
    named = case.of(SystemFault, what="killed")
    if not reported and not named:
        return None
    return found(
        ID,
        "likely",
        f"The launcher{on((reported + named)[0].host)} was stopped by a signal from outside.",
        pick(reported, named),
        ranks=ranks_in(named),
        advice=_advice_on_sender(),
        next=experiment(case),
    )


def _closed_terminal(case: Case) -> Finding | None:
    """The terminal in which the launcher ran was closed.

    That sends SIGHUP to all that it started.
    """
    # SIGHUP goes to all that was started in a terminal
    lines = case.of("elastic.signal", "elastic.stop", signal=1)
    lines += case.of(SystemFault, what="hangup")
    lines += matching(_stopped_launchers(case), "got sigval:1", "got signal: 1")
    hung_up = [event for event in lines if not OTHER_SIGNAL.search(event.text)]
    if not hung_up:
        return None
    lines = hung_up
    say = (
        f"The launcher{on(lines[0].host)} got SIGHUP: the terminal or connection in which it was"
        " started was closed."
    )
    return found(ID, "likely", say, pick(lines, limit=4), hosts=name_hosts(lines), advice=(DETACH,))


def _refuses_connections(case: Case) -> Finding | None:
    """Nothing listens any more where a rank had its part of torch's debug server."""
    lines = awaited_and_silent(case, "refused")
    if not lines:
        return None
    ranks = ranks_in(lines)
    say = (
        f"{who_are(ranks, lines[0].host)} refused torch's debug server, so its process has ended;"
        " the others wait in a collective and cannot go on without it."
    )
    stood = []
    for rank, stack in stacks(case).items():
        if rank not in ranks:
            stood.append(stack)
    return found(
        ID,
        "likely",
        say,
        pick(lines, stood[:1], limit=4),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice_on_sender(),
        next=experiment(case),
    )


OTHER_SIGNAL = re.compile(r"got (?:sigval|signal): ?1\d")
"""Signals whose number begins as that of SIGHUP."""
DETACH = Advice(
    "Start the job where no terminal ends it: with sbatch, in tmux or screen, or with setsid (nohup"
    " before torchrun does not help, as it takes the signal itself).",
    command="tmux new -s train",
    why="A shell that ends sends SIGHUP to what was started in it.",
    check="The job goes on after the connection was closed.",
    risk="A detached job must be stopped by hand.",
)


def _lost_by_ras(case: Case) -> Finding | None:
    """NCCL's RAS has given up the process of a rank that nobody has seen since."""
    seen = positions_of_case(case)
    for report in case.of(RasCommunicator):
        if not report.data.dead:
            continue
        numbers = global_ranks(case.events, report)
        if numbers is None:
            continue
        dead = [rank for rank in report.data.dead if numbers.get(rank, rank) not in seen]
        if not dead:
            continue
        ranks = tuple(numbers.get(rank, rank) for rank in dead)
        where = in_brackets(places_in_words(report, dead))
        say = (
            f"NCCL's RAS has had no word of {name_ranks(ranks)}{where}"
            " for a minute: its process is gone, frozen, or cut off from the network."
        )
        if len(ranks) > 1:
            say = say.replace("its process is", "their processes are")
        heads = [head for head in case.of(RasReport) if head.data.dead]
        return found(
            ID,
            "possible",
            f"{say} {behind_sentence(case.events)}".strip(),
            pick([report], heads),
            ranks=ranks,
            hosts=tuple(hosts_of(report, dead)),
            advice=(LOST, *_advice_on_sender()),
            next=experiment(case),
        )
    return None


LOST = Advice(
    "Look on that node whether the process lives, and whether the node answers.",
    command="ps -eo pid,stat,etime,cmd | grep -i python; dmesg -T | tail",
    why="A process that is gone, stopped (state T) and one that is cut off look alike to RAS.",
    check="The process is there and in state R or S, or its end is explained.",
    risk="None: it only reads.",
)


def _signs_of_hang(case: Case, event: Event) -> list[Event]:
    """Signs that the job hung before.

    A time limit or a user's cancellation also ends a job that hangs.
    """
    # a job whose start never ended may have been cancelled because of that
    begun = case.of(NcclInit, phase="start")
    if initialized(case):
        unfinished = []
    else:
        unfinished = begun
    cancelled = []
    if event.data.what == "cancelled" and not _is_preemption(event):
        cancelled = [event]
    failed = [
        *case.of(CudaOom),
        *family(case, "ib_completion", "ib_async", "ib_setup", "socket_connect"),
    ]
    return [*failed, *([] if case.of(StepProgress) else unfinished), *cancelled]


def _after_failure(case: Case, scheduler: list[Event]) -> list[Event]:
    """Failures in the same file before the scheduler ended the job.

    It cancelled a step, or a hung job reached its time limit.
    """
    # only lines of one file have a sure order
    first = min(((e.path, e.line) for e in scheduler), default=("", 0))
    # a node that is lost takes failures with it: they are its consequence
    lost_node = any(e.data.what == "node_fail" for e in scheduler)
    # what the scheduler answered afterwards stands behind everything that the job logged
    answered = all(e.data.answer for e in scheduler)
    # what failed before the last step did not end the job
    last = 0
    for progress in case.of(StepProgress):
        if progress.path == first[0] and progress.line < first[1]:
            last = max(last, progress.line)
    failures = []
    for kind in ("python.exception", "cuda.oom"):
        for event in case.of(kind):
            if event.line > last:
                failures.append(event)
    failures += case.of("c10d.timeout", "elastic.exit")
    failures += [e for e in case.of(SlurmEvent) if e.data.what in ("task_exit", "oom")]
    if lost_node:
        return []
    earlier_failures = []
    for event in failures:
        if answered or (event.path == first[0] and event.line < first[1]):
            earlier_failures.append(event)
    return earlier_failures


def _ended_elsewhere(case: Case, reported: list[Event]) -> list[Event]:
    """Ranks that ended with an error of their own.

    They stand in the log of a launcher that was not stopped.
    """
    # a launcher that was stopped stops its ranks, whose exits then say nothing
    stopped = {event.path for event in reported}
    ends = []
    for e in case.of(ElasticExit):
        if (e.data.exitcode or 0) > 0 and e.path not in stopped:
            ends.append(e)
    if reported:
        return ends
    return []


def _signal_number(end: Event) -> int:
    """Number of the signal that ended a process."""
    is_exit = isinstance(end.data, (ElasticExit, ElasticRoot, SlurmEvent))
    number = None
    if is_exit:
        # Slurm gives the signal, torchrun a negative exit code
        number = end.data.signal or end.data.exitcode
    return abs(int(number or 9))


def _gone(killed: dict[int, Event]) -> list[Event[AttachRank]]:
    """Those ranks of a running job that have no process any more."""
    return [event for event in killed.values() if isinstance(event.data, AttachRank)]


def _finding(case: Case, killed: dict[int, Event]) -> Finding:
    ranks = tuple(sorted(rank for rank in killed if rank >= 0))
    first = in_order(killed.values())[0]
    if first.kind == "attach.rank":
        ended = ended_in_words(case, [event.data.ended for event in _gone(killed)])
        say = f"{who_are(ranks, first.host)} has no process any more{ended}; "
        say += f"{others_wait(case, ranks) or 'the others wait'} and cannot go on without it."
        why = pick(killed.values(), case.of(FlightMissing), limit=5)
        return found(
            ID,
            "likely",
            say,
            why,
            ranks=ranks,
            hosts=name_hosts(killed.values()),
            advice=(*advice_on_gone(case, ranks), *_advice_on_sender()),
        )
    number = _signal_number(first)
    name = {9: "SIGKILL", 15: "SIGTERM"}.get(number, f"signal {number}")
    say = (
        f"{who_are(ranks, first.host)} was killed by {name} from outside and no file"
        " here says by whom; "
    )
    say += "the other ranks only lost their peer."
    return found(
        ID,
        "likely",
        say,
        pick(killed.values(), case.of(GlooClosed), case.of(C10dTimeout), limit=5),
        ranks=ranks,
        hosts=name_hosts(killed.values()),
        advice=_advice_on_sender(),
        next=experiment(case),
    )


def _advice_on_sender() -> tuple[Advice, ...]:
    return (
        Advice(
            "Look up in the kernel's and the scheduler's logs who sent the signal, at the time at"
            " which the log stops.",
            command=(
                "dmesg -T | grep -iE 'oom|killed process'; sacct -j $SLURM_JOB_ID -o"
                " JobID,State,ExitCode,Reason,MaxRSS"
            ),
            why="A killed process cannot log anything itself.",
            check="One of them names the process id or the job.",
            risk="None, it only reads.",
        ),
        RESTART,
        _requeue_advice(),
    )


def _requeue_advice() -> Advice:
    return Advice(
        "Ask for a longer time limit, or save a checkpoint on a signal before the limit and let the"
        " job be requeued: sbatch with --signal=B:USR1@300 --requeue.",
        command="scontrol show config | grep -iE 'requeue|KillWait|OverTimeLimit'",
        why="Limits are normal on shared machines.",
        check="The next run resumes from the last step.",
        risk="None.",
    )


LOST_NODE = Advice(
    "Start the job again from its last checkpoint without that node, and tell the administrators"
    " about it.",
    command="sinfo -R; sbatch --exclude=NODE train.sbatch",
    why="Nothing in the program ended it; a node that failed may fail again.",
    check="The next run resumes from the last step, on other nodes.",
    risk="A job that Slurm has requeued by itself would run twice: `squeue --me` shows it.",
)
PREEMPTED = Advice(
    "Start the job again from its last checkpoint, and let the next preemption cost less: a"
    " checkpoint on the signal that comes before it, --requeue, or a QoS or partition that is not"
    " preempted.",
    command="scontrol show config | grep -iE 'preempt|requeue|KillWait'; sacctmgr show qos",
    why="Preemption is normal on shared machines, and no fault of the job.",
    check="The next run resumes from the last step.",
    risk="A job that Slurm has requeued by itself would run twice: `squeue --me` shows it.",
)
RESTART = Advice(
    "Keep a checkpoint of each step that may be lost, and let the launcher start the ranks again"
    " from it: --max-restarts=3 of torchrun, --requeue of Slurm, max_failures of Ray.",
    env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    why=(
        "A job that was killed from outside once usually runs when it is started again; the"
        " variable keeps torchrun from passing the addresses of the dead attempt to the new one"
        " (recent torch keeps one store for all attempts)."
    ),
    check="The log goes on at the step after the last checkpoint, and the job succeeds.",
    risk="A job that kills itself, by its memory for example, is killed again each time.",
    change={"restarts": 1, "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}},
)
"""A fix that can be tried automatically.

It is the same job once more from its last checkpoint.
"""


def experiment(case: Case) -> Experiment:
    """Run the same job, and let torchrun start it again when it dies."""
    return experiment_of(
        "Does the job complete when torchrun starts it again?",
        dict(RESTART.change),
        {
            ID: ("works", "it does: the signal is not sent each time"),
            "host_oom": ("same", "it dies in the same way: it needs the same memory again"),
            "rank_exception": ("same", "it fails in the same way, at the same line"),
        },
    )


REMEDIES = (*_advice_on_sender(), LOST_NODE, PREEMPTED, DETACH, LOST)
