"""What a machine really grants.

All that a job needs of it is taken, counted, and given back at once.

Each thing is taken in a process of its own (`attempt`), up to the need and never to the brim: where
taking it could starve other programs (memory, a full /dev/shm, the cgroup's processes), what is
free is told instead, or why nobody knows.  Records: ``resources.tried``, one for each thing
(docs/events.md has the fields).
"""

import _thread
import ctypes
import errno
import json
import mmap
import os
import re
import secrets
import select
import signal
import socket
import time

from .. import wire
from ..connect import worker
from ..connect.worker import Listener
from ..digits import whole_numbers
from ..facts.limits import cgroup_folders, shm
from ..facts.machine import Machine, Unread
from . import processes

SECONDS = 20.0
"""Longest time for one thing."""
PIECE, PAGE = 16 << 20, mmap.PAGESIZE
TRIED = ("what", "name", "need", "got", "unit", "error", "why")
"""Fields of a record; got None: nobody knows, for the reason `why`; error: what the system said to
more than that."""
MLOCK_ONFAULT = 1
"""Of mlock2(2): the limit counts what may be locked, and the memory is taken when it is used."""
REFUSED = (errno.ENOMEM, errno.EPERM, errno.EAGAIN)
"""What mlock2 answers to more than the limit; EPERM where nothing may be locked at all."""
PATIENCE = 3
"""How often a connection is tried that gets no answer, or none in time."""
UNLIMITED = 1 << 60
SHARE = 2
"""Of memory, and of what the whole system may open, at most one part in this many is taken."""


def main(argv):
    """``resources NEEDS``: take what is needed; sends a record for each thing.

    NEEDS is JSON: thing (a key of `THINGS`) → what is needed of it.
    """
    needs = json.loads(argv[0])
    for what, need in needs.items():
        for row in THINGS[what](need, needs):
            record = {name: row.get(name) for name in TRIED}
            wire.send("resources.tried", **dict(record, host=socket.gethostname(), what=what))
    return 0


def _counted(work, unit):
    """A thing that is counted.

    ``work(need, report)`` reports ``got``, then maybe ``error`` or ``why``.
    """

    def rows(need, needs):
        said = {
            "got": 0,
            "error": "",
            "why": "",
            **run_attempt(lambda report: work(need, report), SECONDS),
        }
        if said["why"] and said["got"] < need:
            said["got"] = None
        yield {"need": need, "unit": unit, **said}

    return rows


def descriptors(need, report):
    """Open sockets until that many descriptors are open in one process."""
    used, _, most = (
        int(word) for word in _read("/proc/sys/fs/file-nr", "0 0 %d" % UNLIMITED).split()
    )
    if need > (most - used) // SHARE:
        return report(
            why="only %d more files may be opened on this machine by all programs" % (most - used)
        )
    held, open_ = [], 0
    try:
        while open_ < need:
            held.append(socket.socket())
            # the lowest free number is taken, and the limit is one of numbers
            open_ = held[-1].fileno() + 1
    except OSError as error:
        report(error=_error_in_words(error))
    report(got=open_)


def threads(need, report):
    """Start threads until that many run."""
    left = _processes_left()
    if need > left:
        return report(got=left, error="pids.max of the cgroup allows no more beside those that run")
    gate = _thread.allocate_lock()
    count = 0
    gate.acquire()
    # small stacks, as threads are asked for, and not memory
    _thread.stack_size(256 << 10)
    try:
        while count < need:
            _thread.start_new_thread(gate.acquire, ())
            count += 1
    except RuntimeError as error:
        report(error=str(error))
    report(got=count)


def _processes_left():
    """How many more processes and threads the cgroups above this process allow."""
    left = [limit - used for limit, used in _cgroups("pids", ("pids.max",), ("pids.current",))]
    return min(left, default=UNLIMITED)


def _read(path, missing):
    """A file of the system, or what stands for one that cannot be read."""
    try:
        return Machine().read(path)
    except Unread:
        return missing


def _cgroups(controller, limits, used):
    """(limit, used) of each cgroup above this process that has a limit.

    `limits` and `used` are names of version 2 and 1.
    """

    def number(folder, names):
        texts = [_read(folder + "/" + name, "").strip() for name in names]
        return next(iter(whole_numbers(texts)), None)  # not "max", nor the other version

    try:
        folders = cgroup_folders(Machine(), controller)
    except Unread:
        folders = []  # no cgroups, or none that can be seen from here: what is tried shows them
    rows = [(number(folder, limits), number(folder, used), folder) for folder in folders]
    return [
        (limit, count - _given_up(at))
        for limit, count, at in rows
        if limit is not None and count is not None
    ]


def _memory_free():
    """Bytes of memory that a program here could get."""
    text = _read("/proc/meminfo", "MemAvailable: 0")
    free = next(
        int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable:")
    )
    limits = ("memory.max", "memory.limit_in_bytes")
    used = ("memory.current", "memory.usage_in_bytes")
    return max(
        0, min([free, *(limit - count for limit, count in _cgroups("memory", limits, used))])
    )


def _given_up(folder):
    """Bytes of files that a cgroup counts as used, and gives up on demand.

    It gives them up when memory is asked for.  Version 1 tells two sums.
    """
    sums = re.findall(r"^(?:total_)?inactive_file (\d+)", _read(folder + "/memory.stat", ""), re.M)
    if sums:
        return int(sums[-1])
    return 0


def _memory_left():
    """Bytes of memory that may be taken here without harm to others."""
    return _memory_free() // SHARE


def memory(need, needs):
    """Report the free memory.

    None is taken, as the OOM killer could choose the program of somebody else.
    """
    free = _memory_free()
    yield {
        "need": need,
        "got": min(need, free),
        "unit": "bytes",
        "error": "no more is free" * (free < need),
        "why": "",
    }


def shared(need, report):
    """Allocate, map and write that many bytes of /dev/shm.

    They are in a file that has no name any more.
    """
    path = "/dev/shm/ncclkit-%s" % secrets.token_hex(8)
    try:
        size, free = shm(Machine())
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except (Unread, OSError) as error:
        return report(
            got=0, error=_error_in_words(error) if isinstance(error, OSError) else str(error)
        )
    os.unlink(path)
    if size and need > free:
        return report(
            got=free, error=_refusal(file, need) if need > size else "the rest of it is in use"
        )
    if need > _memory_left():
        return report(
            why="this machine has too little free memory to write so much of it without harm"
        )
    try:
        os.posix_fallocate(file, 0, need)
        place = mmap.mmap(file, need)
    except OSError as error:
        return report(got=0, error=_error_in_words(error))
    block = bytes(1 << 20)
    for start in range(0, need, len(block)):
        place[start : start + len(block)] = block[: need - start]
    report(got=need)


def _refusal(file, need):
    """What the kernel says to more than the whole of /dev/shm, at once and without taking any."""
    try:
        os.posix_fallocate(file, 0, need)
    except OSError as error:
        return _error_in_words(error)
    return "it is smaller"


def locked(need, report):
    """Lock the addresses of that many bytes, in smaller pieces towards the limit.

    No page is touched for that.
    """
    library = ctypes.CDLL(None, use_errno=True)
    place = mmap.mmap(-1, need)
    start = ctypes.addressof(ctypes.c_char.from_buffer(place))
    got = 0
    piece = PIECE
    while got < need and piece >= PAGE:
        size = min(piece, need - got)
        if library.mlock2(ctypes.c_void_p(start + got), ctypes.c_size_t(size), MLOCK_ONFAULT) == 0:
            got += size
            continue
        refused = ctypes.get_errno()
        piece = piece // 2
        report(**{"error" if refused in REFUSED else "why": os.strerror(refused)})
    report(got=got)


def port(need, needs):
    """Open the rendezvous port, and connect to it from another process."""
    listener, said = _listening(need)
    row = {"error": "", "why": "", **said}
    if "port" in said:
        end = _connection_ends([["127.0.0.1", need]])[0]
        row.update(
            got=int(end == "open"),
            error="" if end == "open" else "a connection to it ends so: %s" % end,
        )
    elif row["error"]:
        row["got"] = 0
    listener.end()
    yield dict(row, name=str(need), need=1, unit="connections")


def names(need, needs):
    """Look up every name, and connect to this machine through its addresses.

    The name "" stands for the machine's own name.
    """
    listener, said = _listening(0)
    for name in need:
        asked = name or socket.gethostname()
        if "port" in said:
            row = _name(asked, said["port"])
        else:
            row = {"why": "no port was free"}
        if row.get("loopback") and needs.get("hosts", 1) > 1:  # of its own name only gloo makes use
            if name:
                row = {"got": 0, "error": "it resolves to each host itself"}
            else:
                row = {"why": "it resolves to loopback"}
        yield {"error": "", "why": "", **row, "name": asked, "need": 1, "unit": "addresses"}
    listener.end()


def _name(name, listens):
    """Through how many of the addresses of a name this machine answers."""
    found = run_attempt(
        lambda report: report(found=worker.resolve_names([name])[name]), SECONDS
    ).get("found", "the resolver hangs")
    if not isinstance(found, list):
        return {"got": 0, "error": found}
    own = [address for address in found if _is_own_address(address)]
    if not own:
        return {
            "why": "it resolves to %s, which is not an address of this machine" % ", ".join(found)
        }
    ends = _connection_ends([[address, listens] for address in own])
    bad = next(("%s: %s" % both for both in zip(own, ends) if both[1] != "open"), "")
    return {
        "got": ends.count("open"),
        "error": bad,
        "loopback": found[0].startswith("127.") or found[0] == "::1",
    }


def _is_own_address(address):
    """True for an address that this machine has: nothing else can be bound."""
    if ":" in address:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _listening(number):
    """A process that listens on a port (0: any), and its report.

    It says ``port``, or ``error``.
    """

    def work(report):
        try:
            report(
                port=Listener(
                    "listener",
                    TOKEN,
                    worker.addresses_to_test(worker.facts_for_connection()),
                    number,
                ).port
            )
        except OSError as error:
            return report(error=_error_in_words(error))
        signal.pause()  # until it is ended

    attempt = Attempt(work, SECONDS)
    return attempt, attempt.await_("port", "error")


def _connection_ends(targets):
    """How a connection to each [address, port] ends, asked by another process."""

    def how_it_ends(address, number):
        for _ in range(PATIENCE):
            how = worker.reach(address, number, TOKEN, "asker", "listener")
            # what a busy machine makes of our own listener, too
            if how not in ("silent", "foreign"):
                break
        return how

    def report_ends(report):
        report(ends=[how_it_ends(address, number) for address, number in targets])

    return run_attempt(report_ends, SECONDS).get("ends", ["silent"] * len(targets))


def _error_in_words(error):
    if error.errno:
        return os.strerror(error.errno)
    return str(error)


TOKEN = secrets.token_hex(16)
"""What our own listener is known by; every process of this run inherits it."""
THINGS = {
    "descriptors": _counted(descriptors, "open files"),
    "threads": _counted(threads, "threads"),
    "shm": _counted(shared, "bytes"),
    "memlock": _counted(locked, "bytes"),
    "memory": memory,
    "port": port,
    "names": names,
    "hosts": lambda need, needs: (),  # how many the job spans: no thing by itself
}


class Attempt:
    """Runs ``work(report)`` in a child process.

    The last value of each field that it reports is known here.  The child is killed by `end`, with
    this process, and by its own timeout, so nothing that it took is kept.
    """

    def __init__(self, work, seconds):
        self.reported, self.until, self._rest = {}, time.monotonic() + seconds, b""
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            os._exit(_child(work, writer, parent, seconds))
        os.close(writer)

    def await_(self, *fields):
        """Read until one of these fields is reported; returns all reports.

        It also ends when the child does, or when its time is over.
        """
        while not any(field in self.reported for field in fields):
            left = max(0.0, self.until - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                self.reported["why"] = "it did not end within its time"
                break
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                break
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self.reported.update(json.loads(line))
        return self.reported

    def end(self):
        """Kill the child where it still runs.

        Returns all that it reported, and the signal that it died of.
        """
        # without taking it, so that the number of the child stays its own until it is killed
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._reader)
        if ended is not None and os.WIFSIGNALED(status):
            died = signal.Signals(os.WTERMSIG(status))
            # a write to a full tmpfs ends with SIGBUS
            self.reported["error" if died == signal.SIGBUS else "why"] = "killed by %s" % died.name
        return self.reported


def run_attempt(work, seconds):
    """The last value of each field that ``work(report)`` reported.

    It counts what was reported before the child ended, or before `seconds` were over.
    """
    attempt = Attempt(work, seconds)
    attempt.await_()
    return attempt.end()


def _child(work, writer, parent, seconds):
    """Exit status of the child.

    An error that `work` did not foresee is reported like any other.
    """

    def report(**fields):
        os.write(writer, json.dumps(fields).encode() + b"\n")

    try:
        processes.die_with_parent(parent)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds) + 5)  # whatever happens to the parent
        work(report)
    except Exception as error:  # a defect in one attempt must not take the others with it
        report(why="the attempt itself failed (%s: %s)" % (type(error).__name__, error))
        return 1
    return 0
