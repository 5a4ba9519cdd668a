"""One step further than the call in which a rank waits: who or what it is that does not come.

A wait for a pipe, a lock or a child has somebody at its other end, whom the kernel knows: the
process that holds the lock, that does not read the pipe, that listens at the address or does not.
What nothing shows is not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ncclkit.analysis.frames import is_own, own_frame
from ncclkit.analysis.wait_kinds import (
    BUSY,
    DEBUG_CLIENT,
    DEBUGGER,
    ENDED,
    FIFO,
    FILE,
    GIL,
    GPU,
    LOCK,
    NATIVE,
    PEERS,
    PIPE,
    POOL,
    PROCESS,
    PYTHON,
    QUEUE,
    REQUESTS,
    RESULT,
    ROOM,
    SCREEN,
    SIGNAL,
    SOCKET,
    STOPPED,
    STORE,
    TERMINAL,
    THREAD,
    TIMER,
    UNKNOWN,
    WORKER,
)
from ncclkit.core.kinds import AttachRank
from ncclkit.core.live_waits import NamedProcess, Wait, WaitEnd, WaitingChild, WaitingThread

Frame = Mapping[str, Any]

DEBUGGERS = re.compile(r"(?:^|/)(?:pdb|bdb)\.py$|/IPython/(?:core|terminal)/debugger\.py|/pudb/")
DEBUG_SERVERS = re.compile(r"/debugpy/|/_?pydevd")
POLLED_LOCKS = re.compile(r"/filelock/|torch/utils/file_baton\.py$")
FEEDER = "QueueFeederThread"
"""The thread by which multiprocessing's queue is filled."""
IDLE_WORKER = ("queues.py", "get")
"""File and function in which a worker of a loader waits for its rank."""
IN_KERNEL = (
    (TIMER, r"nanosleep"),
    (PROCESS, r"^do_wait"),
    (LOCK, r"lock_inode|posix_lock|flock"),
    (
        FILE,
        r"nfs|rpc_wait|lustre|ll_|fuse|ceph|folio_wait|io_schedule|jbd2|xfs|ext4|break_lease",
    ),
    (SOCKET, r"sk_wait|sock|tcp_|inet_|unix_stream"),
)
"""What a process waits for, by the function of the kernel that it is in."""
TAKES_VALUE_OF_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|nonzero)\(\)|\bsynchronize\(")
"""Calls in a line of a program that wait for the GPU, without a frame of Python."""
QUOTED = 60
"""Characters of a line of a program that is quoted."""
DEEPER = 12
"""Frames of Python's library between the user's own line and the wait."""


class Awaited(NamedTuple):
    """What a rank waits for, and what more is known of it."""

    waits_for: str
    """One of `wait_kinds`."""
    detail: str
    """``/mnt/cache.lock, held by process 4711, cat``; empty where nothing shows it."""


def awaited(
    kind: str, frames: Sequence[Frame], about: AttachRank, rank_of_pid: Mapping[int, int]
) -> Awaited:
    """What the kernel and its other threads add to what a rank waits for by its stack.

    `kind` is that, and comes back where nothing more is known.
    """
    if kind == STOPPED:
        return Awaited(STOPPED, _who_stopped(about))
    if kind in BUSY:
        return Awaited(kind, _retried_words(about))
    if kind in (GPU, PEERS, STORE, GIL):
        return Awaited(kind, "")
    if kind == WORKER:
        return Awaited(WORKER, _worker_words(about, rank_of_pid))
    place = _Place(frames, about.wait, about.threads, rank_of_pid, about.program, about.pid)
    further = _of_thread(place, about) or _of_debugger(place) or _of_end(kind, place)
    if further is None:
        further = _of_kind(kind, place, about)
    return further


def without_native_frames(kind: str, about: AttachRank, stays: bool) -> str:
    """What a rank waits for whose main thread ran at one place, without native frames.

    A wait for a GPU spins, so that CPU time alone does not tell it from work.
    """
    if not stays or kind not in (PYTHON, NATIVE, UNKNOWN):
        return kind
    text = ""
    if about.program:
        text = str(about.program[0].get("text"))
    if about.on_gpu and TAKES_VALUE_OF_GPU.search(text):
        return GPU
    if about.half:
        return UNKNOWN
    return kind


class _Place(NamedTuple):
    """Where one process stands, and whom it knows."""

    frames: Sequence[Frame]
    wait: Wait
    threads: Sequence[WaitingThread]
    rank_of_pid: Mapping[int, int]
    program: Sequence[Mapping[str, Any]] = ()
    """What the program says of its own lines, innermost first."""
    pid: int | None = None

    def is_in(self, *functions: str, file: str) -> bool:
        """Whether one of these functions of a file of a library is among its innermost frames."""
        for frame in self.frames[:DEEPER]:
            name = PurePosixPath(str(frame.get("file"))).name
            func = str(frame.get("func")).rpartition(".")[2]
            if name == file and func in functions:
                return True
            if is_own(frame):
                break
        return False

    def goes_through(self, pattern: re.Pattern[str]) -> bool:
        """Whether one of its innermost frames is of a file with such a path."""
        for frame in self.frames[:DEEPER]:
            if pattern.search(str(frame.get("file"))):
                return True
            if is_own(frame):
                break
        return False


# ---------------------------------------------------------------- debuggers and threads


def _of_debugger(place: _Place) -> Awaited | None:
    if place.goes_through(DEBUGGERS):
        return Awaited(DEBUGGER, "")
    if place.goes_through(DEBUG_SERVERS):
        return Awaited(DEBUG_CLIENT, "")
    return None


def _of_thread(place: _Place, about: AttachRank) -> Awaited | None:
    """What a wait for a thread of its own is for."""
    if place.is_in("_shutdown", file="threading.py") and not any(map(is_own, place.frames)):
        return Awaited(ENDED, _threads_words(place) or "a thread that is not a daemon")
    if place.is_in("get", "wait", file="pool.py"):
        return Awaited(POOL, _pool_words(about, place.rank_of_pid))
    if place.is_in("join", file="threading.py"):
        return Awaited(THREAD, _threads_words(place))
    if place.is_in("result", file="_base.py"):
        return Awaited(THREAD, _threads_words(place))
    if place.is_in("put", file="queue.py"):
        return Awaited(ROOM, _threads_words(place, own_only=True))
    alone = not place.threads and bool(place.frames) and bool(place.wait)
    if alone and place.is_in("get", file="queue.py"):
        none = "no other thread of it runs Python"
        # threads of C++ may fill the queue of a server, too
        if not about.died:
            return Awaited(REQUESTS, none)
        dead = about.died[-1]
        return Awaited(QUEUE, f"{none}; thread {dead['name']} died{_where_died(dead)}")
    if alone and place.wait.get("polls") and _watches_nothing(place.wait):
        return Awaited(RESULT, "its event loop watches no connection, and it has no other thread")
    return None


def _pool_words(about: AttachRank, rank_of_pid: Mapping[int, int]) -> str:
    """What the worker of a pool does that works, or that all workers that were seen are idle."""
    workers = list(filter(_is_of_pool, about.children))
    for child in workers:
        if not _is_idle_worker(child):
            return _child_words(child, about, rank_of_pid)
    if not workers:
        return ""
    shown = ", ".join(str(child.get("pid")) for child in workers)
    return f"its workers are idle: process {shown}"


def _is_of_pool(child: WaitingChild) -> bool:
    frames = child.get("frames", [])
    return any(str(frame.get("file")).endswith("multiprocessing/pool.py") for frame in frames)


def _where_died(dead: Mapping[str, Any]) -> str:
    where = ""
    if dead.get("file"):
        where = f" at {PurePosixPath(dead['file']).name}:{dead.get('line', '?')}"
    if dead.get("error"):
        where += f" of {dead['error']}"
    return where


def _watches_nothing(wait: Wait) -> bool:
    """Whether an event loop has nothing but the pair of sockets by which it wakes itself."""
    ends = wait.get("ends", [])
    return len(ends) == 1 and ends[0].get("kind") == "socket" and ends[0].get("state") == "pair"


def _threads_words(place: _Place, own_only: bool = False) -> str:
    """``thread uploader at train.py:44``: its threads in the user's own code, if there are any."""
    known = [one for one in place.threads if any(map(is_own, one.get("frames", [])))]
    if not known and not own_only:
        known = list(place.threads)
    words = []
    for thread in known[:2]:
        name = str(thread.get("name"))
        does = _stands_at(thread.get("frames", []))
        # a child that has put something into a queue ends when that was read
        if name.startswith(FEEDER):
            does = ", which writes into a queue that is not read"
        words.append(f"thread {name}{does}")
    more = len(known) - len(words)
    if more > 0:
        words.append(f"{more} more")
    return "; ".join(words)


def _stands_at(frames: Sequence[Frame]) -> str:
    """`` in `link.recv(1)` at train.py:44``; empty without frames."""
    own = own_frame(frames, innermost_first=True)
    if own is None or not is_own(own):
        return ""
    text = str(own.get("text") or "")
    where = _line_words(own)
    if 0 < len(text) <= QUOTED:
        return f" in `{text}`{where}"
    return where


# ---------------------------------------------------------------- descriptors


def _of_end(kind: str, place: _Place) -> Awaited | None:
    """What the file, pipe or socket is in which a process waits."""
    ends = place.wait.get("ends", [])
    if len(ends) != 1 or kind == REQUESTS:
        return None
    end = ends[0]
    if end.get("kind") == "terminal":
        name = str(end.get("name"))
        if end.get("does") == "write":
            return Awaited(SCREEN, name)
        return Awaited(TERMINAL, name)
    if end.get("kind") == "fifo":
        return Awaited(FIFO, str(end.get("name")))
    if end.get("kind") == "pipe":
        # what a child prints is awaited as the child is
        if kind == PROCESS and end.get("does") != "write":
            return None
        return Awaited(PIPE, _pipe_words(end, place.rank_of_pid))
    if end.get("kind") == "socket" and kind in (SOCKET, FILE, UNKNOWN):
        return Awaited(SOCKET, _socket_words(end, place.rank_of_pid))
    if end.get("kind") == "file" and kind in (FILE, UNKNOWN):
        return Awaited(FILE, str(end.get("name")))
    return None


def _pipe_words(end: WaitEnd, rank_of_pid: Mapping[int, int]) -> str:
    others = end.get("others", [])
    who = _any_of(others, rank_of_pid)
    if end.get("does") == "write":
        if who:
            return f"its output is not read by {who}"
        return "it is full, and no other process holds its other end"
    if who:
        return f"{who} writes nothing to it"
    return "no other process can write to it"


def _socket_words(end: WaitEnd, rank_of_pid: Mapping[int, int]) -> str:
    remote = end.get("remote")
    if not remote:
        return ""
    if end.get("listens") is False:
        return f"{remote}, where nobody listens"
    who = _any_of(end.get("others", []), rank_of_pid)
    if who:
        return f"{remote}, where {who} listens"
    return remote


def _any_of(found: Sequence[NamedProcess], rank_of_pid: Mapping[int, int]) -> str:
    """``rank 3 or process 4711 `cat` ``; empty for nobody."""
    return " or ".join([_process_words(one, rank_of_pid) for one in found[:2]])


def _process_words(process: NamedProcess, rank_of_pid: Mapping[int, int]) -> str:
    """``rank 3``, or ``process 4711 `sleep 600` ``."""
    pid = process.get("pid", 0)
    if pid in rank_of_pid:
        return f"rank {rank_of_pid[pid]}"
    name = process.get("name")
    if name:
        return f"process {pid} `{name}`"
    return f"process {pid}"


# ---------------------------------------------------------------- locks, children, the rest


def _of_kind(kind: str, place: _Place, about: AttachRank) -> Awaited:
    """What is known of a wait that is for no descriptor, thread or debugger."""
    locks = place.wait.get("locks", [])
    if locks:
        process = locks[0].get("holder", {})
        path = locks[0].get("path")
        held = f"held by {_process_words(process, place.rank_of_pid)}"
        # two descriptors of one file are two owners of its lock
        if process.get("pid") == place.pid and place.pid:
            held = "which it holds itself, by another descriptor of the file"
        if path:
            held = f"{path}, {held}"
        return Awaited(LOCK, held)
    if place.wait.get("signal"):
        return Awaited(SIGNAL, "")
    if place.goes_through(POLLED_LOCKS):
        return Awaited(LOCK, _polled_lock_words(place))
    if kind == LOCK:
        return Awaited(LOCK, _locked_path(place) or _lock_words(place, was_forked=False))
    if kind == PROCESS:
        return Awaited(PROCESS, _children_words(about, place.rank_of_pid))
    if kind == TIMER:
        return Awaited(TIMER, _retried_words(about))
    return Awaited(kind, "")


def _polled_lock_words(place: _Place) -> str:
    """``/mnt/model.lock, a file that is not removed``; by the line where its path is not known."""
    path = place.wait.get("lock_file")
    if path:
        return f"{path}, a lock file that is not removed"
    text = ""
    if place.program:
        text = str(place.program[0].get("text") or "")
    if text:
        return f"the lock file of `{text}`, which is not removed"
    return "a lock file that is not removed"


def _locked_path(place: _Place) -> str:
    """The file of a lock whose holder the kernel does not know, as on another host."""
    for end in place.wait.get("ends", []):
        if end.get("kind") == "file":
            return str(end.get("name"))
    return ""


def _lock_words(place: _Place, was_forked: bool) -> str:
    """Who could release a lock of threads, or of processes."""
    own = _own_lines(place)
    name = ""
    if own:
        name = str(own[0].get("takes") or "")
    known = [_holder_words(place, own, name, was_forked)]
    if name:
        known.insert(0, f"`{name}`")
    return ", ".join(filter(None, known))


def _own_lines(place: _Place) -> Sequence[Mapping[str, Any]]:
    """Its lines of the user's own code with the locks in them, innermost first."""
    if place.program:
        return place.program
    found = []
    for frame in place.frames:
        if is_own(frame):
            found.append(frame)
    return found


def _holder_words(
    place: _Place, own: Sequence[Mapping[str, Any]], name: str, was_forked: bool
) -> str:
    """Who holds a lock, or what could release it."""
    if place.wait.get("futex") == "shared":
        return _sharers_words(place)
    if place.wait.get("futex") != "private" or not place.frames:
        return ""
    holder = _thread_inside(place, own, name, was_forked)
    if holder:
        return holder
    also = _taken_elsewhere(own, name)
    if place.threads:
        words = _threads_words(place, own_only=True)
    elif was_forked:
        words = "held since it was forked"
    else:
        words = "no other thread of it runs Python to release it"
    return "; ".join(filter(None, (words, also)))


def _sharers_words(place: _Place) -> str:
    """What is known of the holder of a semaphore that processes share."""
    shared = "one that processes share"
    sharers = place.wait.get("sharers")
    if sharers is None:
        return shared
    if sharers:
        who = _any_of(sharers, place.rank_of_pid)
        return f"{shared}, as {who} could hold it"
    return f"{shared}, and no other living process has it: who took it has ended, or is the rank"


def _thread_inside(
    place: _Place, own: Sequence[Mapping[str, Any]], name: str, was_forked: bool
) -> str:
    """``thread writer is inside `with guard` at train.py:44``; "" where no stack shows one."""
    if not name:
        return ""
    file = own[0].get("file")
    for line in own[1:]:
        held = line.get("holds", ())
        if name in held and line.get("file") == file:
            # a child of a fork has the stack of its parent
            if was_forked:
                return f"held since it was forked inside `with {name}`{_line_words(line)}"
            return f"it is inside `with {name}` itself{_line_words(line)}"
    for thread in place.threads:
        frames = thread.get("frames", [])
        for frame in frames:
            held = frame.get("holds", ())
            if name in held and frame.get("file") == file:
                return f"thread {thread.get('name')} is inside `with {name}`{_line_words(frame)}"
    return ""


def _line_words(line: Mapping[str, Any]) -> str:
    """`` at train.py:44``."""
    path = PurePosixPath(str(line.get("file")))
    number = line.get("line", "?")
    return f" at {path.name}:{number}"


def _taken_elsewhere(own: Sequence[Mapping[str, Any]], name: str) -> str:
    """``its program takes it at train.py:12, too``: where whoever holds it may have taken it."""
    if not name or not own[0].get("taken_at"):
        return ""
    path = PurePosixPath(str(own[0].get("file")))
    file = path.name
    places = []
    for line in own[0]["taken_at"]:
        places.append(f"{file}:{line}")
    known = ", ".join(places)
    return f"its program takes it at {known}, too"


def _retried_words(about: AttachRank) -> str:
    """What a loop around its line tries again and again."""
    text = ""
    if about.program:
        text = about.program[0].get("retries") or ""
    if text:
        return f"again and again: `{text}`"
    return ""


def _who_stopped(about: AttachRank) -> str:
    tracer = about.wait.get("tracer")
    if tracer:
        name = tracer.get("name")
        return f"traced by process {tracer.get('pid')} `{name}`, which has to let it go"
    more = "the kernel keeps no sender"
    terminal = about.wait.get("terminal")
    if terminal:
        more = f"in the background of {terminal}"
    return f"{more}; `kill -CONT {about.pid}` lets it go on"


def _worker_words(about: AttachRank, rank_of_pid: Mapping[int, int]) -> str:
    """What the workers of a loader do that do not wait for their rank."""
    for child in about.children:
        if child.get("frames") and not _is_idle_worker(child):
            return _child_words(child, about, rank_of_pid)
    return ""


def _is_idle_worker(child: WaitingChild) -> bool:
    for frame in child.get("frames", []):
        name = PurePosixPath(str(frame.get("file"))).name
        # py-spy names the class from Python 3.11 on: Queue.get, SimpleQueue.get
        func = str(frame.get("func")).rpartition(".")[2]
        if (name, func) == IDLE_WORKER:
            return True
        if is_own(frame):
            break
    return False


def _children_words(about: AttachRank, rank_of_pid: Mapping[int, int]) -> str:
    """The child that a process waits for, where it can be only one."""
    if len(about.children) != 1:
        return ""
    return _child_words(about.children[0], about, rank_of_pid)


def _child_words(child: WaitingChild, about: AttachRank, rank_of_pid: Mapping[int, int]) -> str:
    """``process 4711 `sleep 600` waits for a timer``."""
    frames = child.get("frames", [])
    # a fork without an exec has the command of its parent
    name = str(child.get("name"))
    was_forked = name == about.command
    # a long command is cut
    if name.endswith("…"):
        was_forked = about.command.startswith(name[:-1])
    who = f"process {child.get('pid')}"
    if not was_forked:
        who = _process_words(child, rank_of_pid)
    if child.get("state") in ("T", "t"):
        return f"{who} is stopped: `kill -CONT {child.get('pid')}`"
    kind, detail = _wait_of_child(child, was_forked, rank_of_pid)
    at = _stands_at(frames)
    if kind:
        if detail:
            at += f": {detail}"
        return f"{who} waits for {kind}{at}"
    if at:
        return f"{who} stands{at}"
    return who


def _wait_of_child(
    child: WaitingChild, was_forked: bool, rank_of_pid: Mapping[int, int]
) -> Awaited:
    wait = child.get("wait", {})
    place = _Place(child.get("frames", []), wait, child.get("threads", []), rank_of_pid)
    bare = AttachRank(pid=child.get("pid"), wait=wait, threads=list(place.threads))
    kind = UNKNOWN
    for name, pattern in IN_KERNEL:
        if re.search(pattern, str(child.get("waits_in"))):
            kind = name
            break
    if wait.get("futex"):
        kind = LOCK
    further = _of_thread(place, bare) or _of_debugger(place) or _of_end(kind, place)
    if further is not None:
        return further
    if kind == LOCK and not wait.get("locks"):
        return Awaited(LOCK, _lock_words(place, was_forked))
    return _of_kind(kind, place, bare)
