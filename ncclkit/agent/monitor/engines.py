"""The processes above a worker that no launcher numbered: its engine, and the front end of that.

A worker waits for what its engine hands on, and the engine for its front end.  Whether a request
can still reach the worker shows there alone.
"""

import re

from ..run import processes
from .sockets import LISTENS, own_tcp_sockets

# ray::WorkerDict.actor_rollout_generate_sequences      ray::RayWorkerWrapper
ACTOR = re.compile(r"ray::(?P<name>[\w.<>-]{1,100})")
SPAWNED = re.compile(r"multiprocessing[.-](?:spawn|fork)|--multiprocessing-fork")
MOST_ENGINES = 3
"""Processes above a worker that are looked at."""
TITLES = ("VLLM::", "sglang::")
"""How the titles begin that servers write over the command of what they start."""
RAYLET = "raylet"
"""The program that starts actors of Ray, and ends them."""
# python /usr/local/bin/ray start --head --block
STARTS_NODE = re.compile(r"[/.](?:ray|scripts) start(?: |$)")


def engines_above(pid):
    """The processes above a worker, the nearest first; none where a launcher gave it a number."""
    if "RANK" in processes.environ(pid):
        return []
    parents = processes.parents()
    found = []  # type: list[int]
    at = pid
    if ACTOR.match(title_of(pid)):
        at = _driver_of(pid, parents)
        if at:
            found.append(at)
    # what a person or a shell started is the outermost one
    while is_started(at, parents) and len(found) < MOST_ENGINES:
        at = parents.get(at, 0)
        if not processes.runs_python(at):
            break
        found.append(at)
    return found


def _driver_of(actor, parents):
    """The driver of an actor of Ray where that began the cluster, else 0.

    Who uses a cluster that stands does not show in the tree of processes.
    """
    raylet = parents.get(actor, 0)
    driver = parents.get(raylet, 0)
    if processes.program_of(raylet) != RAYLET or not processes.runs_python(driver):
        return 0
    return 0 if STARTS_NODE.search(title_of(driver)) else driver


def side_of(pid, parents):
    """What tells workers of one job apart that no launcher numbered; "" of ranks that have one.

    Workers of an engine are of one side, and actors of one class.
    """
    if "RANK" in processes.environ(pid):
        return ""
    actor = ACTOR.match(title_of(pid))
    if actor:
        return actor["name"].partition(".")[0]
    return "process %d" % parents.get(pid, 0)


def is_orphan(pid):
    """Whether what started a worker, or an engine, has ended."""
    parents = processes.parents()
    parent = parents.get(pid, 0)
    if ACTOR.match(title_of(pid)):
        return processes.program_of(parent) != RAYLET
    return is_started(pid, parents) and not processes.runs_python(parent)


def is_started(pid, parents):
    """Whether a process is one that another Python started by multiprocessing, or as a server."""
    title = title_of(pid)
    if title.startswith(TITLES) or SPAWNED.search(title):
        return True
    return is_forked(pid, parents)


def title_of(pid):
    """The command line of a process, which a program may have written over with its title."""
    return processes.read_text("/proc/%d/cmdline" % pid).replace("\0", " ").strip()


def is_forked(pid, parents):
    """Whether a process is a copy of its parent that multiprocessing made by fork."""
    parent = parents.get(pid, 0)
    title = title_of(pid)
    return bool(title) and title == title_of(parent) and "python" in title.partition(" ")[0]


def takes_connections(pid):
    """Whether a process has a socket of its own to which clients connect."""
    return any(one.state == LISTENS for one in own_tcp_sockets(pid))


def ended_children(pid):
    """The children of a process that have ended and that it has not asked about."""
    found = []
    for child, parent in processes.parents().items():
        if parent == pid and processes.process_state(child) == "Z":
            found.append(child)
    return sorted(found)
