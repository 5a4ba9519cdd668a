"""Ranks that no launcher gave a number: workers of servers, of Ray, and of spawned engines.

vLLM and SGLang write their place into the title of a process, Ray the name of an actor.  Others are
known by what started them: children of one process, by Python's multiprocessing, that have torch
loaded.  Their number is that of their title, else that of a variable in their stack, else their
place in the order in which they were started.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ..run import processes
from . import snapshots

# VLLM::Worker_DP0_TP1_EP1      sglang::scheduler_PP0_TP1
TITLE = re.compile(
    r"(?:VLLM::Worker|sglang::scheduler)(?P<places>(?:_(?:DP|PP|DCP|PCP|CP|TP|EP)\d{1,5}){1,6})$"
)
PLACE = re.compile(r"_([A-Z]+)(\d+)")
OUTER_FIRST = ("DP", "PP", "PCP", "CP", "DCP", "TP", "EP")
"""Kinds of parallelism in the order in which ranks are counted, outermost first."""
# ray::WorkerDict.actor_rollout_generate_sequences      ray::RayWorkerWrapper
ACTOR = re.compile(r"ray::(?P<name>[\w.<>-]{1,100})")
NOT_WORKERS = ("IDLE", "SPILL", "RESTORE", "JobSupervisor")
"""Titles of Ray's own processes."""
SPAWNED = re.compile(r"multiprocessing[.-](?:spawn|fork)|--multiprocessing-fork")
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


class WorkerGroup(NamedTuple):
    """The workers of one engine or actor group on this host."""

    ranks: "dict[int, int]"
    """Number → process."""
    named: str
    """What tells the numbers: ``title``, ``variable``, ``order``."""


def worker_groups(pids):
    """The groups of workers among these processes, the largest first."""
    parents = processes.parents()
    titled = {}  # type: dict[tuple[str, int], dict[int, str]]
    started = {}  # type: dict[tuple[str, int], list[int]]
    for pid in pids:
        title = title_of(pid)
        place = TITLE.match(title)
        actor = ACTOR.match(title)
        if place:
            engine = ("title", _engine_of(pid, parents))
            titled.setdefault(engine, {})[pid] = place["places"]
        elif actor and not actor["name"].startswith(NOT_WORKERS):
            name = actor["name"].partition(".")[0]
            started.setdefault((name, parents.get(pid, 0)), []).append(pid)
        elif SPAWNED.search(title) or is_forked(pid, parents):
            started.setdefault(("spawn", parents.get(pid, 0)), []).append(pid)
    groups = []
    for places in titled.values():
        groups.append(WorkerGroup(_by_place(places), "title"))
    for held in started.values():
        workers = []
        for pid in held[:MOST]:
            if has_torch(pid):
                workers.append(pid)
        workers.sort(key=_age)
        if len(workers) >= FEWEST:
            groups.append(_numbered(workers))
    found = []
    for group in groups:
        if len(group.ranks) >= FEWEST:
            found.append(group)
    found.sort(key=lambda group: (-len(group.ranks), min(group.ranks.values())))
    return found


def note_on(group):
    """What has to be known of a group's numbers; "" where its processes tell them themselves."""
    if group.named == "order":
        return BY_ORDER % group.ranks[0]
    return ""


def title_of(pid):
    """The command line of a process, which a program may have written over with its title."""
    return processes.read_text("/proc/%d/cmdline" % pid).replace("\0", " ").strip()


def has_torch(pid):
    """Whether a process has torch loaded."""
    mapped = processes.read_text("/proc/%d/maps" % pid, 8 << 20)
    return any(name in mapped for name in TORCH)


def is_forked(pid, parents):
    """Whether a process is a copy of its parent that multiprocessing made by fork."""
    parent = parents.get(pid, 0)
    title = title_of(pid)
    return bool(title) and title == title_of(parent) and "python" in title.partition(" ")[0]


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
    """The group of these processes, numbered by their stacks where all of them tell it.

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
            return WorkerGroup(dict(sorted(numbers.items())), "variable")
    return WorkerGroup(dict(enumerate(told)), "order")


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
