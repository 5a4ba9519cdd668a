"""Ranks that no launcher gave a number: workers of servers, of Ray, and of spawned engines.

vLLM and SGLang write their place into the title of a process, Ray the name of an actor.  Others are
known by what started them: children of one process, by Python's multiprocessing, that have torch
loaded.  Their number is that of their title, else that of a variable in their stack, else their
place in the order in which they were started.
"""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from .. import redact
from ..run import processes
from . import snapshots
from .engines import ACTOR, SPAWNED, is_forked, is_orphan, title_of

# VLLM::Worker_DP0_TP1_EP1      sglang::scheduler_PP0_TP1
TITLE = re.compile(
    r"(?:VLLM::Worker|sglang::scheduler)(?P<places>(?:_(?:DP|PP|DCP|PCP|CP|TP|EP)\d{1,5}){1,6})$"
)
PLACE = re.compile(r"_([A-Z]+)(\d+)")
OUTER_FIRST = ("DP", "PP", "PCP", "CP", "DCP", "TP", "EP")
"""Kinds of parallelism in the order in which ranks are counted, outermost first."""
NOT_WORKERS = ("IDLE", "SPILL", "RESTORE", "JobSupervisor")
"""Titles of Ray's own processes."""
TORCH = ("libtorch_cpu", "libtorch_cuda", "libc10.")
RANK = ("rank", "global_rank", "world_rank", "local_rank")
"""Variables in the outermost frames of a worker that tell its number, the surest first."""
NUMBER = re.compile(r"\s+(?P<name>\w{1,60}): (?P<value>\d{1,7})$")
LOADER = "_worker_loop ("
"""What the stack of a data loader's worker holds."""
FEWEST = 2
"""Workers of a group: one alone waits for nobody."""
MOST = 1024
SECONDS, SECONDS_EACH = 8.0, 0.5
"""Seconds in which the stacks that tell numbers have to be read, and more for each worker."""
BY_ORDER = (
    "nothing tells the numbers of these workers, so they are counted in the order in which they"
    " were started: rank 0 is process %d"
)

BY_SIDES = "these are sides of one job, counted one after the other: %s"
MOST_NAMED, MOST_OF_TITLE = 8, 60
"""Processes that are named, and characters of the title of each."""
NO_RAY_JOB = "f" * 8
OF_GROUPS = ("pt_gloo", "pt_nccl", "NCCL")
"""How the threads are named that torch and NCCL start for a group."""


class WorkerGroup(NamedTuple):
    """The workers of one engine or actor group on this host."""

    ranks: "dict[int, int]"
    """Number → process."""
    named: str
    """What tells the numbers: ``title``, ``variable``, ``order``, ``sides`` of one job."""
    starter: int
    """The process that started them."""
    kind: str
    """``title``, ``spawn``, or the class of actors of Ray."""


def worker_groups(pids):
    """The groups of workers among these processes, the largest first.

    Sides of one job, such as a trainer and the workers of an engine, are one group.
    """
    groups = []
    for group in one_job_each(_groups_by_starter(pids), processes.parents()):
        if len(group.ranks) >= FEWEST:
            groups.append(group)
    groups.sort(key=lambda group: (-len(group.ranks), min(group.ranks.values())))
    return groups


def _groups_by_starter(pids):
    """All groups of workers, also those of one process, if it has joined a group of torch."""
    parents = processes.parents()
    titled = {}  # type: dict[tuple[str, int], dict[int, str]]
    started = {}  # type: dict[tuple[str, int, int], list[int]]
    for pid in pids:
        title = title_of(pid)
        place = TITLE.match(title)
        actor = ACTOR.match(title)
        if place:
            engine = ("title", _engine_of(pid, parents))
            titled.setdefault(engine, {})[pid] = place["places"]
        elif actor and not actor["name"].startswith(NOT_WORKERS):
            name = actor["name"].partition(".")[0]
            started.setdefault((name, parents.get(pid, 0), 0), []).append(pid)
        elif SPAWNED.search(title) or is_forked(pid, parents):
            # whoever adopts orphans has those of all engines that ended
            session = session_of(pid) if is_orphan(pid) else 0
            started.setdefault(("spawn", parents.get(pid, 0), session), []).append(pid)
    groups = []
    for (_, starter), places in titled.items():
        groups.append(WorkerGroup(_by_place(places), "title", starter, "title"))
    for (kind, starter, _), held in started.items():
        workers = []
        for pid in held[:MOST]:
            if has_torch(pid):
                workers.append(pid)
        workers.sort(key=_age)
        if len(workers) >= FEWEST or any(map(has_joined, workers)):
            ranks, named = _numbered(workers)
            groups.append(WorkerGroup(ranks, named, starter, kind))
    return groups


def siblings_of(pid):
    """What else the starter of a worker has started; where it ended, the rest of the session."""
    parents = processes.parents()
    siblings = processes.descendants(parents.get(pid, 0))
    if not is_orphan(pid):
        return siblings
    session = session_of(pid)
    return [sibling for sibling in siblings if session_of(sibling) == session]


def session_of(pid):
    """The session of a process; 0 of one that has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def one_job_each(groups, parents):
    """The groups, where sides of one job are put together: counted one after the other.

    Replicas of an engine are alike and have no call in common, so they stay apart.
    """
    left = []
    for group in groups:
        if not _holds_engine(group, groups, parents):
            left.append(group)
    # what stands outermost is counted first: a trainer before the workers of an engine
    left.sort(key=lambda group: len(_line_of(group.starter, parents)))
    found = []  # type: list[WorkerGroup]
    while left:
        sides = [left.pop(0)]
        for other in list(left):
            if _are_sides(sides[0], other, parents):
                sides.append(other)
                left.remove(other)
        found.append(_joined(sides))
    return found


def _joined(sides):
    """One group of all sides, or the only one; of several that are alike the first is left out."""
    if len(sides) == 1:
        return sides[0]
    pids = []
    for side in sides:
        for number in sorted(side.ranks):
            pid = side.ranks[number]
            pids.append(pid)
    return WorkerGroup(dict(enumerate(pids)), "sides", sides[0].starter, sides[0].kind)


def _are_sides(one, other, parents):
    """Whether two groups are of one job, and not replicas of each other."""
    if one.kind == other.kind and one.starter == other.starter:
        return False
    if is_of_ray(one) or is_of_ray(other):
        jobs = _ray_jobs(one) | _ray_jobs(other)
        return is_of_ray(one) and is_of_ray(other) and len(jobs) == 1
    return one.starter in _line_of(other.starter, parents)[1:] and one.starter > 1


def is_of_ray(group):
    """Whether a group is of actors of Ray."""
    return group.kind not in ("title", "spawn")


def _ray_jobs(group):
    """The jobs of Ray that its actors name."""
    found = set()
    for pid in group.ranks.values():
        job = processes.environ(pid).get("RAY_JOB_ID", "")
        # Ray starts some processes before it knows for which job
        if job not in ("", NO_RAY_JOB):
            found.add(job)
    return found


def _holds_engine(group, groups, parents):
    """Whether a process of a group has started another group: it is an engine, and no worker."""
    for other in groups:
        if set(group.ranks.values()).intersection(_line_of(other.starter, parents)):
            return True
    return False


def _line_of(pid, parents):
    """A process, what started it, and so on."""
    found = [pid]
    while parents.get(found[-1], 0) > 1 and len(found) < MOST:
        found.append(parents[found[-1]])
    return found


def has_joined(pid):
    """Whether a process has joined a group of torch or NCCL, by the names of its threads."""
    folder = "/proc/%d/task" % pid
    try:
        threads = os.listdir(folder)
    except OSError:
        return False
    for thread in threads[:MOST]:
        name = processes.read_text("%s/%s/comm" % (folder, thread))
        if name.startswith(OF_GROUPS):
            return True
    return False


def note_on(group):
    """What has to be known of a group's numbers; "" where its processes tell them themselves."""
    if group.named == "order":
        return BY_ORDER % group.ranks[0]
    if group.named == "sides":
        words = []
        for number, pid in group.ranks.items():
            title = shown_title(pid)
            words.append("rank %d is process %d (%s)" % (number, pid, title))
        return BY_SIDES % "; ".join(words[:MOST_NAMED])
    return ""


def shown_title(pid):
    """The title of a process, without secrets and cut."""
    words = title_of(pid).split(" ")
    return " ".join(redact.words(words))[:MOST_OF_TITLE]


def has_torch(pid):
    """Whether a process has torch loaded."""
    mapped = processes.read_text("/proc/%d/maps" % pid, 8 << 20)
    return any(name in mapped for name in TORCH)


def _engine_of(pid, parents):
    """The process from which a titled worker was started: the outermost that is no worker."""
    at = parents.get(pid, 0)
    while at > 1 and TITLE.match(title_of(at)):
        at = parents.get(at, 0)
    return at


def _by_place(places):
    """{number: process}, by the places that titles name, counted as ranks are."""

    def order(pid):
        named = dict(PLACE.findall(places[pid]))
        numbers = []
        for kind in OUTER_FIRST:
            numbers.append(int(named.get(kind, 0)))
        return numbers

    return dict(enumerate(sorted(places, key=order)))


def _age(pid):
    """When a process was started, and its number."""
    stat = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return (int(stat[19]) if len(stat) > 19 else 0, pid)


def _numbered(workers):
    """({number: process}, what tells it), by their stacks where all of them tell it.

    Workers of a data loader, which have torch as well, are none.
    """
    until = time.monotonic() + SECONDS + SECONDS_EACH * len(workers)
    with ThreadPoolExecutor(snapshots.SIDE_BY_SIDE) as pool:
        stacks = list(pool.map(lambda pid: _stack_with_numbers(pid, until), workers))
    told = {}
    for pid, said in zip(workers, stacks):
        if LOADER not in said:
            told[pid] = ranks_in_stack(said)
    for name in RANK:
        numbers = {one.get(name): pid for pid, one in told.items()}
        if None not in numbers and len(numbers) == len(told):
            return dict(sorted(numbers.items())), "variable"
    return dict(enumerate(told)), "order"


def _stack_with_numbers(pid, until):
    return snapshots.python_stack(0, pid, until, numbers=True)[0]


def ranks_in_stack(said):
    """{variable of `RANK`: number} of the outermost frame of a main thread, as py-spy prints it."""
    found = {}
    is_main = False
    for line in said.splitlines():
        if line.startswith("Thread "):
            is_main = bool(snapshots.MAIN.match(line))
        if not is_main:
            continue
        number = NUMBER.match(line)
        if number and number["name"] in RANK:
            name = number["name"]
            found[name] = int(number["value"])
    return found
