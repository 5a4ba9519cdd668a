"""The job does not have the number of ranks that it expects

What you see
    "Timed out after 1800 seconds waiting for clients. 3/4 clients joined", "mismatch in rank count
    from procs", "environment variable RANK expected, but not set", "rank 3 of 4 ranks has already
    checked in", or a start that hangs with fewer INIT lines than nranks.

Why it happens
    WORLD_SIZE is a promise: every rank waits until that many have come.  A node that never started,
    a launcher that started fewer processes, two that claim the same rank, an old value left in the
    environment, or --nnodes that differs between nodes break the promise, and only the rank that
    counts can know which one is missing.

How to be sure
    Count: which of the ranks 0 ... WORLD_SIZE-1 have written anything?  On each node print RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR.

What to do
    Do not set RANK and WORLD_SIZE by hand; srun alone may start all ranks as well.

Read more
    PyTorch docs: torchrun, environment variable initialization.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from ncclkit.analysis.hosts import can_simulate_again
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    initialized,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import LARGEST, rank_states
from ncclkit.causes._experiments import minimal
from ncclkit.causes._launchers import options_of
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_ranks
from ncclkit.core.kinds import (
    C10dTimeout,
    C10dUniqueId,
    JobMember,
    NcclInit,
    PythonException,
    RendezvousError,
    SlurmEvent,
    StoreClients,
    StoreConnectTimeout,
    StoreResolve,
    StoreWait,
    SystemFault,
    WorkerPhase,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import start

ID = "world_size_mismatch"
explains = (
    "store.wait",
    "c10d.unique_id",
    "store_unreachable",
    "slow_rank",
    "rank_exception",
    "c10d.timeout",
    "rendezvous.error",
    "c10d.error",
    "nccl.trace",
    "network_loss",
)


def diagnose(case: Case) -> Finding:
    """Found where the number of ranks that started differs from the number that was expected."""
    finding = first_finding(
        case,
        _bootstrap_mismatch,
        _clients_mismatch,
        _unset_variable,
        _told_by_program,
        _differing_sizes,
        _roster_mismatch,
        _beyond_world,
        _never_started,
        _waits_uncounted,
        _no_slots,
    )
    if finding and can_simulate_again(case):
        # with one launcher per host the launchers' own numbers may be wrong
        finding = replace(finding, next=None)
    if finding:
        return replace(finding, advice=_advice(case))
    went_well = initialized(case)
    went_well += [
        *case.of(C10dTimeout),
        *case.of(WorkerPhase, phase="init"),
    ]
    return otherwise(
        ID,
        went_well,
        "All ranks joined.",
        "the first lines of every rank's log, or NCCL_DEBUG=INFO",
    )


def _bootstrap_mismatch(case: Case) -> Finding | None:
    # a truncated message is two releases of NCCL (version_mismatch)
    lines = [e for e in family(case, "bootstrap_mismatch") if "truncated" not in e.text] + matching(
        messages(case),
        "mismatch in rank count",
        "mismatch in info from procs",
        "has already checked in",
        "Invalid rank requested",
        "rank should be in the interval",
    )
    if not lines:
        return None
    sizes = re.search(r"procs (\d+) ?: ?(\d+)|nranks (\d+) vs (\d+)", lines[0].text)
    twice = re.search(r"rank (\d+) of (\d+) ranks has already", lines[0].text)
    odd = _other_sizes(case)
    if sizes:
        one, two = (number for number in sizes.groups() if number)
        say = f"Some ranks were started for a job of {one} ranks and others for one of {two}."
        if odd:
            say = f"{who_of(odd)} was started for a job of {odd[0].data.nranks} ranks, unlike "
            return _finding("proven", say + "the others.", [*lines, *odd], ranks_in(odd))
    elif twice:
        say = f"Two processes claim to be rank {twice[1]} of {twice[2]}."
    else:
        say = "The ranks disagree about the number of ranks."
    return _finding("proven", say, lines, (int(twice[1]),) if twice else ())


def _other_sizes(case: Case) -> list[Event]:
    """INIT lines with another number of ranks than was started.

    It may also be another one than in most lines of their communicator.  They are empty where there
    is no majority.
    """
    # before 2.16 NCCL names no communicator, and sub-groups have other sizes rightly
    starts = []
    for event in case.of(NcclInit, phase="start"):
        if event.data.comm_id:
            starts.append(event)
    # where we started the ranks their number is known, and no vote is needed
    plans = _worker_plans(case)
    if plans:
        return [e for e in starts if e.data.nranks != plans[-1].data.ranks]
    # a vote within each communicator, as groups of one job have different sizes
    sizes = Counter((e.data.comm_id, e.data.nranks) for e in starts)
    # the most frequent size of a communicator stands first in its list and so last in the reversed
    # one: it is what stays in the dict
    most = {comm: count for (comm, _), count in reversed(sizes.most_common())}
    # less than half of the largest camp: of two equal camps nobody can say which one is wrong
    return [e for e in starts if 2 * sizes[e.data.comm_id, e.data.nranks] < most[e.data.comm_id]]


def _clients_mismatch(case: Case) -> Finding | None:
    reported = []
    for event in case.of(StoreClients):
        if None not in (event.data.joined, event.data.expected):
            reported.append(event)
    # a number beyond every cluster was misread from a damaged line
    lines = []
    for e in reported:
        if e.data.joined < e.data.expected <= LARGEST:
            lines.append(e)
    many = [e for e in reported if e.data.joined > e.data.expected]
    if many:
        joined, expected = many[-1].data.joined, many[-1].data.expected
        say = (
            f"{joined} processes registered for a job of {expected}: an earlier start left its"
            " entries in the store, "
        )
        return _finding("likely", say + "or a launcher starts too many.", many[-3:], ())
    if not lines:
        return None
    joined, expected = lines[-1].data.joined, lines[-1].data.expected
    missing = _absent_ranks(case, expected)
    who = ""
    # only then do the silent ranks and the count agree; else some rank merely logs nothing
    if missing and len(missing) == expected - joined:
        who = f"; {name_ranks(missing)} left no line here"
    limit = lines[-1].data.timeout_s
    say = (
        f"Only {joined} of {expected} processes joined the"
        f" job{f' within {limit} s' if limit else ''}{who}."
    )
    # our own launchers report that they were started, one line each
    launched = case.of(WorkerPhase, phase="launch")
    # a launcher that was started here and joined did what it should: the one that counts expects
    # too many
    if len(launched) == joined:
        names = " and ".join(name_hosts(launched))
        say = (
            f"{say[:-1]}; the launchers of {names} have all joined, so the one{on(lines[-1].host)}"
            " expects too many."
        )
        return _finding("proven", say, [lines[-1]], ())
    ended = _ended_tasks(case, joined)
    if ended:
        return _finding(
            "likely", f"{say[:-1]}; Slurm had started {joined} tasks.", [*lines[-2:], *ended], ()
        )
    # a barrier only shows that a rank is late or gone, the store counts clients
    barrier = lines[-1].data.key
    return _finding("possible" if barrier else "likely", say, lines, missing if who else ())


def _ended_tasks(case: Case, joined: int) -> list[Event]:
    """The ends of Slurm's tasks, where Slurm reports exactly as many tasks as joined."""
    ended = case.of(SlurmEvent, what="task_exit")
    reported = set()
    for e in ended:
        for number in re.findall(r"\d{1,6}", str(e.data.task)):
            reported.add(int(number))
    # Slurm numbers its tasks from 0, so these are all that it had started
    if reported and min(reported) == 0 and max(reported) == joined - 1:
        return ended
    return []


def _unset_variable(case: Case) -> Finding | None:
    lines = matching(
        [*case.of(RendezvousError), *messages(case)],
        "environment variable",
        "expected, but not set",
    )
    lines = [e for e in lines if "expected, but not set" in e.text]
    if not lines:
        return None
    name = re.search(r"environment variable (\w+)", lines[0].text)
    return _finding(
        "proven",
        f"The program was not started by a launcher: {name[1] if name else 'a variable'} is not"
        " set, so it cannot know its rank.",
        lines,
        (),
    )


def _told_by_program(case: Case) -> Finding | None:
    """The program reports that ranks do not fit.

    Their number does not fit its settings, or its rank is not set.
    """
    lines = []
    for event in case.of(PythonException):
        if UNTOLD.search(event.text) or UNFIT.search(event.text):
            lines.append(event)
    if not lines:
        return None
    said = UNTOLD.search(lines[0].text)
    if said:
        return _finding(
            "likely", f"The program was not started by a launcher: {said[1]} is not set.", lines, ()
        )
    return _finding(
        "likely",
        "The number of ranks does not fit the program's own settings.",
        lines,
        ranks_in(lines),
    )


UNTOLD = re.compile(r"KeyError: '((?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))'")
UNFIT = re.compile(
    r"(?<!equal to )[Ww]orld[_ ]size.{0,80}(?:not (?:equal|divisible)|should be|must be|does not"
    r" match)"
    r"|within the (?:the )?world_size|(?:not (?:equal|divisible)|must be).{0,60}[Ww]orld[_ ]size(?!"
    r" times)"
)


def _differing_sizes(case: Case) -> Finding | None:
    """INIT lines of one communicator name different numbers of ranks."""
    sizes: dict[tuple[str, int], dict[int, Event]] = {}
    for event in case.of(NcclInit):
        if event.data.comm_id and isinstance(event.data.nranks, int):
            sizes.setdefault((str(event.data.comm_id), 0), {}).setdefault(event.data.nranks, event)
    for events in sizes.values():
        if len(events) > 1:
            return _finding(
                "proven",
                f"The ranks of one communicator expect {' and '.join(map(str, sorted(events)))}"
                " ranks.",
                list(events.values()),
                (),
            )
    return None


def _roster_mismatch(case: Case) -> Finding | None:
    """Ranks that announce themselves in a way that does not fit.

    They do so twice, beyond the job, or as members of jobs of other sizes; none has met another.
    Ranks that launchers start again announce themselves again.
    """
    announced = case.of(JobMember)
    if (
        not announced
        or initialized(case)
        # ranks that work have met, and those that are started again announce themselves again
        or case.of("progress", "nccltests.table", "elastic.restart", "job.done")
    ):
        return None
    worlds = set()
    for e in announced:
        if e.data.world and e.data.world <= LARGEST:
            worlds.add(e.data.world)
    named = [e for e in announced if e.data.number is not None]
    count = Counter[int]()
    world = max(worlds, default=0)
    for event in named:
        # equal lines are one event with a count
        count[event.data.number or 0] += event.count
    if len(worlds) > 1:
        sizes = " and ".join(map(str, sorted(worlds)))
        return _finding(
            "likely",
            f"The ranks announce themselves as members of jobs of {sizes} ranks.",
            announced,
            (),
        )
    if world and max(count, default=0) >= world:
        beyond = tuple(sorted(rank for rank in count if rank >= world))
        return _finding(
            "likely",
            f"{who_are(beyond)} cannot be in a job of {world} ranks.",
            named,
            beyond,
        )
    twice = tuple(sorted(rank for rank in count if count[rank] > 1))
    # one rank that says it twice may log to two handlers; all of them do not
    if not twice or len(twice) < len(count):
        return None
    # MPI programs and scripts that greet alone announce rank 0 rightly, in one process
    if twice == (0,) and (len({e.pid for e in named}) > 1 or world == 1):
        say = (
            f"Each of {count[0]} processes announces itself as rank 0: none knows of the others"
            " from its launcher."
        )
        return _finding("likely", say, named, (0,))
    say = (
        f"{who_are(twice)} announced {'itself' if len(twice) == 1 else 'themselves'} more than once"
    )
    missing = tuple(rank for rank in range(world) if rank not in count)
    if count.total() == world and missing:
        say = f"{say}, {name_ranks(missing)} never: two launchers claim the same ranks."
        return _finding("likely", say, named, twice)
    return _finding("possible", f"{say}, and no rank has met another.", named, twice)


def _beyond_world(case: Case) -> Finding | None:
    """A rank waits for the address of a rank that the launcher did not start."""
    world = rank_states(case).world
    for event in case.of(StoreWait):
        # gloo asks the store for the address of each peer under such a key
        peer = re.search(r"//(?:cpu|cuda)//\d+/(\d{1,7})$", str(event.data.keys or ""))
        if world and peer and int(peer[1]) >= world:
            who = name_ranks(ranks_in([event]))
            say = (
                f"{start(who)} waited for rank {peer[1]}, but the launcher started {world} ranks:"
                " its WORLD_SIZE is "
            )
            return _finding(
                "proven",
                say + "larger than the job.",
                [event, *_worker_plans(case)],
                ranks_in([event]),
            )
    return None


def _worker_plans(case: Case) -> list[Event]:
    return case.of(WorkerPhase, phase="plan")


def _never_started(case: Case) -> Finding | None:
    """Fewer INIT START lines than ranks, none of them complete.

    A rank must have timed out waiting.
    """
    inits = []
    for e in case.of(NcclInit):
        if not e.data.parent:
            inits.append(e)
    started = set()
    for event in inits:
        if event.data.phase == "start" and isinstance(event.data.rank, int):
            started.add(event.data.rank)
    done = [e for e in inits if e.data.phase == "done"]
    size = max((size for e in inits if (size := e.data.nranks or 0) <= LARGEST), default=0)
    waited = case.of(StoreWait, C10dUniqueId)
    # a single line may be an excerpt
    if done or len(started) < 2 or not 0 < len(started) < size or not waited:
        return None
    missing = tuple(rank for rank in range(size) if rank not in started)
    return _finding(
        "possible",
        f"{name_ranks(missing).capitalize()} of {size} never started NCCL in these logs.",
        [*inits[:2], *waited],
        missing,
    )


def _waits_uncounted(case: Case) -> Finding | None:
    """A rank waited at the rendezvous, and no line counts the ranks.

    The wait of a rank that asks for NCCL's id, anywhere in its log, does not count, as it is past
    the rendezvous; an error of the rendezvous always does.
    """
    # a rank that asks for NCCL's id has met the others at the store
    past = {e.rank for e in case.of(C10dUniqueId)} - {None}
    lines = [
        *(e for e in case.of(StoreWait) if e.rank not in past),
        *matching(case.of(RendezvousError), "Timeout", "Closed", "StateError"),
    ]
    if not lines or case.of(StoreConnectTimeout, StoreResolve):
        return None
    return _finding(
        "possible",
        "A rank waited at the rendezvous for others that may never have been started.",
        lines,
        (),
    )


def _no_slots(case: Case) -> Finding | None:
    """A launcher has fewer places than the ranks that it is to start."""
    lines = case.of(SystemFault, what="slots")
    say = "The launcher was asked for more ranks or GPUs than the hosts that it knows have."
    if lines:
        return _finding("likely", say, lines[:2], ())
    return None


def _absent_ranks(case: Case, expected: int) -> tuple[int, ...]:
    seen = known_ranks(case.events) | {e.data.number for e in case.of(JobMember)}
    seen.discard(None)
    if seen:
        return tuple(rank for rank in range(expected) if rank not in seen)
    return ()


def _finding(strength: Strength, say: str, why: list[Event], ranks: tuple[int, ...]) -> Finding:
    return found(
        ID,
        strength,
        say,
        pick(in_order(why)),
        ranks=ranks or (),
        hosts=name_hosts(why) if not ranks else (),
        next=None if strength == "proven" else _minimal_experiment(),
    )


def _advice(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "Start exactly as many ranks as WORLD_SIZE says, all by one launcher with the same"
            f" numbers on every node: {options_of(case).counts}.",
            command="env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_|SLURM_N)' | sort",
            why="It sets RANK, WORLD_SIZE and LOCAL_RANK consistently.",
            check="As many different RANK values as WORLD_SIZE print a first line.",
            risk="None.",
        ),
        Advice(
            "Look at the first error of the rank or node that is missing.",
            why="It probably failed before it could join.",
            command="env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_)' | sort",
            check="The values on all nodes agree, and no RANK occurs twice.",
            risk="None, it only prints.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run as many ranks as the launcher counts, without the program's own numbers."""
    return _minimal_experiment()


def _minimal_experiment() -> Experiment:
    return minimal(
        "Do all ranks join when torchrun alone counts them?",
        {
            ID: "they do: the program or its environment counted wrongly",
            "slow_rank": "they do: one was only late",
        },
        {
            "store_unreachable": "they do not meet either",
            "hostname_resolution": "they do not meet either",
        },
    )


REMEDIES = _advice(Case())
