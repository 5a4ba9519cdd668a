"""What a look at a running rank tells of its wait, as it stands in `attach.rank`."""

from __future__ import annotations

from typing import TypedDict


class WaitFrame(TypedDict, total=False):
    """One frame of a thread, or of a child process."""

    func: str
    file: str
    line: int
    text: str
    """What stands in the line."""
    takes: str
    """The lock that the line takes, as the program names it."""
    taken_at: list[int]
    """Other lines of the file that take one of that name."""
    holds: list[str]
    """The locks of ``with`` around the line."""


class NamedProcess(TypedDict, total=False):
    """A process that a rank waits for, or that holds what it waits for."""

    pid: int
    name: str
    """Its command where it is of this job, else its program alone."""
    own: bool
    """Whether it is of this job."""


class WaitEnd(TypedDict, total=False):
    """A file, pipe, terminal or socket of the call in which a thread waits."""

    kind: str
    """``file``, ``pipe``, ``fifo``, ``terminal``, ``socket``, ``device``."""
    name: str
    does: str
    """``read``, ``write``, ``open``, or "" where the call does not tell."""
    others: list[NamedProcess]
    """Who holds the other end of a pipe, or listens at the other end of a socket."""
    state: str
    """Of a TCP socket, in the kernel's numbers; ``pair`` of a local one without a name."""
    local: str
    remote: str
    listens: bool
    """Whether somebody listens at the remote address; absent where that cannot be known."""


class FileLock(TypedDict, total=False):
    """A lock of a file that a thread waits for."""

    path: str
    holder: NamedProcess


class Wait(TypedDict, total=False):
    """What the kernel tells of the wait of a main thread; absent is what it does not tell."""

    ends: list[WaitEnd]
    polls: bool
    """Whether the ends are all that an event loop waits for."""
    locks: list[FileLock]
    futex: str
    """``private``: only a thread of the same process can end this wait; else ``shared``."""
    sharers: list[NamedProcess]
    """Other processes that have a semaphore that processes share; absent where it is none."""
    lock_file: str
    """The path of a lock file that its program looks at again and again."""
    child: list[NamedProcess]
    """The children, one of which has to end."""
    signal: bool
    tracer: NamedProcess
    terminal: str
    """Of a stopped process: the terminal in whose background it is."""


class WaitingThread(TypedDict, total=False):
    """A thread of a rank that is not its main one."""

    name: str
    frames: list[WaitFrame]


class WaitingChild(NamedProcess, total=False):
    """A child process of a rank."""

    state: str
    waits_in: str
    frames: list[WaitFrame]
    threads: list[WaitingThread]
    wait: Wait


class Engine(WaitingChild, total=False):
    """A process above a worker: its engine, or the front end of that."""

    orphan: bool
    """Whether what started it has ended."""
    listens: bool
    """Whether clients can connect to it."""
    ended: list[int]
    """What it has started that ended, and that it has not asked about."""


class DeadThread(TypedDict, total=False):
    """A thread that ended with an exception, by what its process printed."""

    name: str
    error: str
    file: str
    line: int
    func: str


class EndedRank(TypedDict, total=False):
    """What still shows how a rank ended whose process is gone; absent is what nothing shows."""

    pid: int
    status: int
    """The exit status of the one process beside the others that nobody has collected."""
    signal: int
    error: str
    """The last exception that it printed where the others print, too."""
    oom_kills: int
    """Processes that the kernel has killed for memory in the control group of the others."""
