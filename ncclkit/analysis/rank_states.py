"""Who waited, who died, who was killed, who stopped logging.

It is told of the ranks of one case.  The first question of every hang is which rank is the culprit
and which are its victims.  A victim says "timed out" or "connection closed"; a culprit says
something of its own, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from signal import SIGKILL, SIGSEGV, SIGTERM

from typing import Any
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import in_order
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_ranks
from ncclkit.core.kinds import (
    AttachRank,
    C10dStatus,
    C10dTimeout,
    C10dUniqueId,
    Collective,
    ElasticExit,
    ElasticRoot,
    ElasticStop,
    FlightMissing,
    FlightStuck,
    GlooTimeout,
    JobDone,
    JobPhase,
    NcclChannel,
    NcclDestroy,
    NcclEnv,
    NcclInit,
    PythonException,
    RunEnd,
    SlurmEvent,
    StoreClients,
    SystemFault,
    TelemetryScheduling,
    TelemetryUtilization,
    WorkerPhase,
)
from ncclkit.core.model import Event
from ncclkit.core.summary import MOST

MESSENGERS = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException"
    r"|KeyboardInterrupt|SystemExit"
    r"|ProcessRaisedException|ProcessExitedException|Rendezvous\w*|OutOfMemoryError"
    r"|AcceleratorError|WorkerCrashedError"
    r"|nccl[A-Z]\w*Error"
)
"""Exception types that report the work of a library or a signal, not the program's own error."""
MESSAGES = re.compile(
    r"\bNCCL\b|\bnccl[A-Z]|c10d|gloo/|Gloo|CUDA|cuda|TCPStore|store->get|[Ss]ocket|monitoredBarrier"
    r"|ProcessGroup|[Ww]atchdog"
    r"|Detected mismatch between collectives|Timed out waiting|env:// rendezvous|shared"
    r" memory|DataLoader "
    r"worker(?! process)|Too many open files"
    r"|Address already in use|No space left|Broken pipe|Connection"
    r" (?:reset|refused|closed)|connect\(\) timed out"
    r"|Engine ?[cC]ore|Cannot allocate memory"
    r"|Expected to have finished reduction|Forward order differs across ranks"
    r"|verifies (?:model )?param|inconsistent .{0,12}params|undefined symbol"
    r"|sizes of the same param in process|Split sizes|without a matching (?:send|recv)"
    r"|cuDNN error|CUDNN_STATUS|cuFFT error|CUSPARSE_STATUS"
)
"""Message fragments that belong to another cause of the catalogue."""
DEVICES = re.compile(r"cuda:\d+|torch\.cuda\.\w+|device type cuda")
"""How torch names where a tensor lies, in errors that CUDA has no part in."""
LAST_WORDS = re.compile(
    r"Detected mismatch between|prior iteration|verifies|inconsistent|monitoredBarrier|the same"
    r" param"
    r"|Forward order differs"
)
"""Checks that raise on a rank because the ranks disagree: nobody is dead yet when they speak."""
UNANSWERED = re.compile(r"[Tt]imeout|[Tt]imed out")
"""What the store says to a rank whose key nobody has set; all else speaks of the connection."""
LARGEST = 1 << 20
"""Ranks that a job can have: a torn number must not fill the memory."""
PROCESSES_PER_CORE, SHORTEST = 3, 3.0
"""Processes for each core, and seconds in the queue, from which a rank counts as starved."""
IDLE, BUSY = (0.0, 15.0), (60.0, 100.0)
"""Shares of time, in %, in which a main thread that waits, and one that computes or spins, has
something to do."""
EARLY = 100
"""Collectives of a group that a job's start needs at most."""
EXITED = re.compile(r"with code 0\b|xit code 0\b")
"""What a rank says that ends; that a training is complete may be said long before."""
KILLED = (9, 15)
CRASHED = (4, 7, 8, 11)

INSTANT_MS = 1000
"""A timeout in ms below this ends healthy collectives.

The first one connects the ranks, which takes seconds.
"""


def is_own(event: Event) -> bool:
    """True when a traceback is the program's own error.

    It is then no victim's report, and not a library's.
    """
    if event.kind != "python.exception" or event.data.victim:
        return False
    kind = str(event.data.type)
    message = str(event.data.message)
    message = DEVICES.sub("", message)
    return not MESSENGERS.search(kind.rpartition(".")[2]) and not MESSAGES.search(message)


@dataclass(frozen=True, slots=True)
class RankStates:
    """What each rank of the job did last, as far as the evidence says."""

    world: int | None = None
    """Ranks of the job where something says so."""
    members: tuple[int, ...] = ()
    """Every rank that must exist: 0 … world-1, or 0 … highest one seen."""
    waiting: dict[int, Event] = field(default_factory=dict)
    """rank → the line in which it says that it timed out, else the dumps by which it waits."""
    raised: dict[int, Event] = field(default_factory=dict)
    """rank → the traceback of its own error (-1: nobody knows which rank)."""
    killed: dict[int, Event] = field(default_factory=dict)
    """rank → its death by a signal that the launcher did not send (-1: rank not known)."""
    broken: dict[int, Event] = field(default_factory=dict)
    """rank → its error that another cause explains: CUDA, a library, a crash (-1: rank not
    known)."""
    ended: dict[int, Event] = field(default_factory=dict)
    """rank → the record or line that says that it finished normally."""

    @property
    def dead(self) -> dict[int, Event]:
        """rank → why it is gone, whatever the reason."""
        # the last one stands: a rank's own error says more than how its process ended
        return self.broken | self.killed | self.raised

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that neither waited nor died nor ended, while others waited."""
        known = self.waiting.keys() | self.dead.keys() | self.ended.keys()
        if self.waiting:
            return tuple(rank for rank in self.members if rank not in known)
        return ()

    @property
    def instant_timeouts(self) -> tuple[Event, ...]:
        """The waits, where each had a timeout of less than a second.

        Healthy collectives take as long.
        """
        limits = [timeout_of(event) for event in self.waiting.values()]
        instant = bool(limits) and all(limit is not None and limit < INSTANT_MS for limit in limits)
        if instant:
            return tuple(self.waiting.values())
        return ()


PRINTED_TIMEOUTS = frozenset(
    "c10d.timeout gloo.timeout c10d.unique_id c10d.desync gloo.barrier store.wait".split()
)
"""Kinds of lines that only a wait that timed out leaves."""


def how_they_waited(waits: Iterable[Event]) -> str:
    """``timed out waiting`` where a line says so; ``waited`` of dumps, stacks and counts."""
    if any(wait.kind in PRINTED_TIMEOUTS for wait in waits):
        return "timed out waiting"
    return "waited"


@once
def rank_states(case: Case) -> RankStates:
    """The states of the ranks of one case."""
    world = _world(case)
    waiting = _together(
        _first_by_rank([*case.of("c10d.timeout", "gloo.timeout"), *_unanswered(case)])
    )
    if not waiting:
        waiting = _waiting_by_dumps(case)
    times = []
    for e in case.of(ElasticStop):
        if e.time is not None:
            times.append(e.time)
    stopped = min(times, default=None)
    # what ranks raise once the launcher ends them follows from that
    raised = _first_by_rank(
        [e for e in case.of(PythonException) if is_own(e) and not _after(e, stopped)]
    )
    seen = known_ranks(case.events) | {rank for rank in waiting if rank >= 0}
    own_errors = {}
    for rank, error in raised.items():
        if not _given_up(waiting.get(rank), error):
            own_errors[rank] = error
    raised = own_errors
    members = tuple(
        range(world if world else max((rank for rank in seen if rank < LARGEST), default=-1) + 1)
    )
    ended = {}
    for rank, event in _ended(case, members):
        # whoever waits or raised something has not ended well, whatever its last line says
        if rank not in raised and rank not in waiting:
            ended[rank] = event
    return RankStates(
        world,
        members,
        waiting,
        raised,
        _killed(case, raised),
        _broken(case, stopped, waiting),
        ended,
    )


def _waiting_by_dumps(case: Case) -> dict[int, Event]:
    """rank → the gap in the Flight Recorders' dumps that shows that it waits."""
    waiting: dict[int, Event] = {}
    for gap in case.of(FlightMissing):
        for rank in gap.data.waiting:
            waiting[rank] = gap
    return waiting


def _together(waiting: dict[int, Event]) -> dict[int, Event]:
    """The waits without those of a few ranks that came late.

    Theirs began when others had given up already.  After its timeout a rank of NCCL lives for
    another minute, in which its kernels still answer a rank that comes.
    """
    ends = []
    for event in waiting.values():
        if event.time is not None:
            ends.append(event.time)
    first_end = min(ends, default=0.0)
    known = []
    for rank, e in waiting.items():
        known.append((rank, e.time, e.data.ran_ms if isinstance(e.data, C10dTimeout) else None))
    late = set()
    for rank, time, ran in known:
        # a timeout says how long it ran, and by that when it began
        if time is not None and ran and time - ran / 1000 > first_end:
            late.add(rank)
    event_of_rank = {}
    for rank, event in waiting.items():
        if rank not in late or len(late) * 2 >= len(waiting):
            event_of_rank[rank] = event
    return event_of_rank


def _unanswered(case: Case) -> list[Event]:
    """Ranks that timed out waiting for the id of a communicator.

    Those whose connection to the store broke do not count.
    """
    return [event for event in case.of(C10dUniqueId) if UNANSWERED.search(str(event.data.error))]


def rank_of(event: Event) -> int:
    """The global rank; -1 where nothing says.

    Before torch 2.2 only the rank in the group stands in the line.  Of torchcomms a group may have
    any name, so its ranks say nothing of those of the job.
    """
    if event.rank is not None:
        return event.rank
    is_in_group = isinstance(event.data, (C10dTimeout, C10dStatus))
    if isinstance(event.data, C10dTimeout) and event.data.api == "nccl2":
        is_in_group = False
    inside = None
    if is_in_group:
        inside = event.data.pg_rank
    if isinstance(inside, int):
        return inside
    return -1


def sequence_of(event: Event) -> int | None:
    """The number of the collective that an event is about; None where it tells none."""
    if isinstance(event.data, Collective):
        return event.data.seq
    return None


def timeout_of(event: Event) -> float | None:
    """How long whoever timed out was to wait at most, in ms.

    It is None where the line tells nothing.
    """
    if isinstance(event.data, (C10dTimeout, GlooTimeout)):
        return event.data.timeout_ms
    return None


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a rank's process, and the line that says so."""

    rank: int
    """-1 where nothing says whose it was."""
    event: Event
    code: int | None
    signal: int
    """0 where no signal ended it."""
    by_launcher: bool
    """The launcher ended it, as another rank had failed."""


@once
def exits(case: Case) -> list[Exit]:
    """How the processes of ranks ended, as the launcher, Slurm or the kernel says.

    Each source in the order of time.
    """
    ends = in_order(case.of(ElasticExit))
    stops = case.of(ElasticStop)
    stopped_pids = {e.pid or e.data.pid for e in stops} - {None}
    stopped_ranks = {stop.rank for stop in stops} - {None}
    others = any(end.data.exitcode not in (None, -SIGTERM) for end in ends)
    found: list[Exit] = []
    for end in ends:
        number = signal_of(end)
        # a launcher ends the other ranks by SIGTERM once one has failed
        asked = number == SIGTERM and (others or end.rank in stopped_ranks)
        by_launcher = asked or (number in KILLED and end.data.pid in stopped_pids)
        found.append(Exit(rank_of(end), end, end.data.exitcode, number, by_launcher))
    tasks = [e for e in in_order(case.of(SlurmEvent)) if e.data.what == "task_exit"]
    by_torchrun = bool(case.of("elastic."))
    for end in tasks:
        if by_torchrun:
            # below torchrun a task of Slurm is a launcher of many ranks
            own = [-1]
        else:
            own = _tasks(end)
        found += [Exit(rank, end, end.data.exitcode, signal_of(end), False) for rank in own]
    for kind, number in (("kernel.oom", SIGKILL), ("kernel.segfault", SIGSEGV)):
        found += [Exit(rank_of(e), e, None, number, False) for e in case.of(kind)]
    return found


def _tasks(end: Event[SlurmEvent]) -> list[int]:
    """``0-3,7`` → 0, 1, 2, 3, 7."""
    ranks: list[int] = []
    for part in str(end.data.task).split(","):
        run = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if run:
            first, last = int(run[1]), int(run[2] or run[1])
            # a log can name any number: no more than MOST are ever made
            room = MOST - len(ranks)
            ranks += range(first, last + 1)[:room]
    return ranks


@once
def crashes(case: Case) -> list[Event]:
    """Deaths in native code of ranks that had not reported another end.

    A rank that had reported what ended it tripped over itself as it died.
    """
    victims = [event for event in case.of(PythonException) if event.data.victim]
    dying = {rank_of(event) for event in [*victims, *case.of("c10d.timeout", "gloo.timeout")]} - {
        -1
    }
    ends = []
    for end in exits(case):
        if end.signal in CRASHED:
            ends.append(end.event)
    ends += case.of(SystemFault, what="segfault")
    return [event for event in ends if rank_of(event) not in dying]


@once
def starving(case: Case) -> list[Event]:
    """What was measured of ranks that mostly waited for a core.

    Such ranks have several processes for each core, which spent most of their time in the queue.
    Both must be true together: a long queue alone may be the work of other programs on the machine.
    """
    rows = case.of(TelemetryScheduling)
    oversubscribed = [e for e in rows if e.data.processes >= PROCESSES_PER_CORE * e.data.cores > 0]
    starved = []
    for event in oversubscribed:
        if event.data.waited >= max(SHORTEST, (PROCESSES_PER_CORE - 1) * event.data.ran):
            starved.append(event)
    return starved


@once
def stopped(case: Case) -> dict[int, Event]:
    """Ranks whose process a signal or a debugger holds (state T).

    Telemetry must have seen it so to the end.
    """
    rows = []
    for event in case.of(TelemetryUtilization):
        if event.rank is not None and len(event.data.states) > 1:
            rows.append(event)
    event_of_rank = {}
    for event in rows:
        # the last two looks, as a process may be stopped for a moment
        if not event.data.states[-2:].strip("Tt") and event.rank is not None:
            event_of_rank[event.rank] = event
    return event_of_rank


@once
def outlying_utilization(case: Case) -> dict[int, Event]:
    """The few ranks that compute while others idle, or the reverse.

    They are fewer than half, and compute while all others idle, or idle while all others compute.
    It is told by their main threads; there are none where there are fewer than three ranks, or
    where one of them is neither.
    """
    rows = {}
    for event in case.of(TelemetryUtilization):
        if event.rank is not None:
            rows[event.rank] = event
    shares = {rank: event.data.main for rank, event in rows.items()}
    sides = []
    for bounds in IDLE, BUSY:
        ranks = set()
        for rank, share in shares.items():
            if share is not None and bounds[0] <= share <= bounds[1]:
                ranks.add(rank)
        sides.append(ranks)
    few = min(sides, key=len)
    whole = len(rows) >= 3 and len(sides[0]) + len(sides[1]) == len(rows)
    # either side may be the one that waits, as NCCL spins where gloo sleeps: so the few stand out
    if whole and 2 * len(few) < len(rows):
        return {rank: rows[rank] for rank in sorted(few)}
    return {}


def signal_of(event: Event) -> int:
    """The signal that ended a process; 0 where it was none."""
    if not isinstance(event.data, (ElasticExit, ElasticRoot, SlurmEvent)):
        return 0
    # torchrun writes -9 for a rank that signal 9 ended
    code = event.data.exitcode or 0
    return int(event.data.signal or (-code if code < 0 else 0))


@once
def spans_hosts(case: Case) -> bool:
    """True when something shows that the ranks run on more than one machine."""
    ours = set()
    for event in case.of(WorkerPhase):
        if event.data.phase == "hello":
            ours.add(event.host)
    nccl_hosts = set()
    for event in case.events:
        if event.host and event.kind.startswith("nccl."):
            nccl_hosts.add(event.host)
    hosts = ours | nccl_hosts
    disabled = any(
        e.data.name == "NCCL_SHM_DISABLE" and e.data.value == "1" for e in case.of(NcclEnv)
    )
    # with shared memory switched off ranks of one host use the network as well
    return len(hosts) > 1 or (
        not disabled and any(e.data.via == "NET" for e in case.of(NcclChannel))
    )


def all_waiting(case: Case, states: RankStates) -> list[Event]:
    """The waits, where every rank waits in one and the same collective.

    Every rank of the job must be known to: nobody is missing.
    """
    waits = list(states.waiting.values())
    calls = {_call_and_size(wait) for wait in waits}
    size = states.world or (_group_size(waits[0]) if waits else None)
    complete = (
        size is not None
        and len(waits) >= size
        and len(calls) == 1
        and sequence_of(waits[0]) is not None
    )
    return case.of(FlightStuck) or (waits if complete else [])


def _call_and_size(wait: Event) -> tuple[Any, ...]:
    """Number and name of a collective, and how many elements a rank brings to it."""
    if isinstance(wait.data, Collective):
        brought = None
        if isinstance(wait.data, C10dTimeout):
            brought = wait.data.numel_in
        return wait.data.seq, wait.data.op, brought
    return None, None, None


def _group_size(wait: Event) -> int | None:
    """Ranks of a group, as the sizes of a gather or scatter tell; None for other collectives."""
    if not isinstance(wait.data, C10dTimeout):
        return None
    small, large = sorted((wait.data.numel_in or 0, wait.data.numel_out or 0))
    shares = str(wait.data.op).strip("_").startswith(("ALLGATHER", "REDUCE_SCATTER"))
    if shares and small and large % small == 0 and large // small > 1:
        return large // small
    return None


def startup_phase(case: Case, *kinds: str) -> Event | None:
    """The phase of the job's start in which ranks began to wait.

    They must also have timed out, if it is of one of these kinds.
    """
    waits = list(rank_states(case).waiting.values())
    numbers = [sequence_of(wait) for wait in waits]
    if not any(number is not None and number <= EARLY for number in numbers):
        return None
    last_wait: dict[str, int] = {}
    for wait in waits:
        last_wait[wait.path] = max(wait.line, last_wait.get(wait.path, wait.line))
    begun = [e for e in case.of(JobPhase) if e.line < last_wait.get(e.path, 0)]
    if begun and begun[-1].data.what in kinds:
        return begun[-1]
    return None


def idle_service(case: Case) -> Event | None:
    """The last line by which a server had no request.

    Its workers timed out waiting for one.
    """
    waits = list(rank_states(case).waiting.values())
    logs = {wait.path for wait in waits}
    idle = [e for e in case.of(JobPhase, what="idle") if e.path in logs]
    calls = set()
    for wait in waits:
        calls.add((wait.data.op or "").upper() if isinstance(wait.data, Collective) else "")
    # rank 0 of a server hands each request to the others
    handed = all(call.strip("_").startswith(("BROADCAST", "RECV")) for call in calls)
    if idle and handed and 0 not in rank_states(case).waiting:
        return idle[-1]
    return None


def _first_by_rank(events: list[Event]) -> dict[int, Event]:
    first: dict[int, Event] = {}
    for event in in_order(events):
        first.setdefault(rank_of(event), event)
    return first


def _world(case: Case) -> int | None:
    sizes = []
    for event in case.of(NcclInit):
        # a communicator that was split off is smaller than the job
        if not event.data.parent:
            sizes.append(event.data.nranks)
    sizes += [e.data.ranks for e in case.of(WorkerPhase, phase="plan")]
    # the store's first barrier is that of all ranks
    first = [e for e in case.of(StoreClients) if str(e.data.key).endswith("barrier_key:1")]
    sizes += [e.data.expected for e in first]
    known = []
    for size in sizes:
        if isinstance(size, int) and 0 < size <= LARGEST:
            known.append(size)
    return max(known, default=None)


def _after(event: Event, moment: float | None) -> bool:
    return moment is not None and event.time is not None and event.time > moment


def _given_up(wait: Event | None, error: Event) -> bool:
    """Whether a rank gave up in a collective before it raised the error.

    It tripped while it cleaned up.
    """
    return (
        wait is not None
        and wait.rank is not None
        and wait.path == error.path
        and wait.line < error.line
    )


def _killed(case: Case, raised: dict[int, Event]) -> dict[int, Event]:
    by_torchrun = [end for end in exits(case) if end.event.kind == "elastic.exit"]
    dead: dict[int, Event] = {}
    for end in by_torchrun:
        if end.signal in KILLED and not end.by_launcher and end.rank not in raised:
            dead.setdefault(end.rank, end.event)
    if case.of(FlightMissing):
        for gone in case.of(AttachRank):
            if gone.data.gone and gone.data.exitcode != 0 and gone.rank is not None:
                dead.setdefault(gone.rank, gone)
    if by_torchrun or raised:
        return dead
    tasks = [end for end in exits(case) if end.event.kind == "slurm.event"]
    if tasks and tasks[0].signal == SIGKILL:
        dead[-1] = tasks[0].event  # a task of Slurm may be a launcher of many ranks
    return dead


def _broken(case: Case, stopped: float | None, waiting: dict[int, Event]) -> dict[int, Event]:
    """rank → what broke it.

    A communicator that is aborted after a timeout fails the next call of its rank: that is no
    reason of the wait.
    """
    errors: list[Event] = []
    for event in case.of(PythonException):
        if event.data.victim or is_own(event) or _after(event, stopped):
            continue
        if _left_well(event) or LAST_WORDS.search(str(event.data.message)):
            continue
        if event.rank is not None and _given_up(waiting.get(event.rank), event):
            continue
        errors.append(event)
    by_cuda = case.of("cuda.oom", "cuda.error")
    return _first_by_rank([*by_cuda, *errors, *crashes(case)])


def _left_well(event: Event[PythonException]) -> bool:
    """True where a rank's own ``sys.exit(0)`` was printed as an exception."""
    return (
        event.rank is not None
        and event.data.type == "SystemExit"
        and event.data.message in ("", "0")
    )


def _ended(case: Case, members: Iterable[int]) -> Iterator[tuple[int, Event]]:
    done: list[Event] = [e for e in case.of(WorkerPhase) if e.data.phase in ("leave", "done")]
    done += case.of(NcclDestroy, how="destroy")
    done += case.of(AttachRank, exitcode=0)
    for event in case.of(JobDone):
        if event.rank is not None and EXITED.search(str(event.data.message)):
            done.append(event)
    done += [e for e in case.of(PythonException) if _left_well(e)]
    done += [end.event for end in exits(case) if end.code == 0]
    first = _first_by_rank(done)
    yield from first.items()
    runs = case.of(RunEnd, reason="done")
    if runs:
        # a run that our launcher saw end well speaks for the ranks that left no line
        for rank in members:
            if rank not in first:
                yield rank, runs[-1]
