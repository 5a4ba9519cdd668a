"""What the kernel tells of the wait of one process.

It tells the file, pipe, socket, lock or child process in which its main thread waits, and who
stands at the other end.  All of it is read in ``/proc``; no file of the job is opened.  Processes
outside of the job are named by their number and their program alone.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import struct

from .. import redact
from ..digits import whole_number
from ..run import processes
from .sockets import (
    LISTENS,
    SocketRow,
    host_of,
    is_unix_pair,
    network_of,
    port_of,
    tcp_sockets,
)

READ, WRITE, OTHER = "read", "write", ""
DESCRIPTOR_CALLS = {
    0: READ,
    1: WRITE,
    7: OTHER,
    17: READ,
    18: WRITE,
    19: READ,
    20: WRITE,
    23: OTHER,
    42: OTHER,
    43: OTHER,
    44: WRITE,
    45: READ,
    46: WRITE,
    47: READ,
    72: OTHER,
    73: OTHER,
    74: OTHER,
    75: OTHER,
    232: OTHER,
    270: OTHER,
    271: OTHER,
    281: OTHER,
    288: OTHER,
}
"""Number of a call of Linux on x86_64 on file descriptors → what it does with them."""
POLL, SELECT, EPOLL = (7, 271), (23, 270), (232, 281)
OPEN, OPENAT = 2, 257
"""Calls whose first, or second, argument is a path."""
FUTEX, PRIVATE = 202, 128
"""The call in which a thread waits for a lock, and its flag that no other process shares it."""
WAIT_FOR_CHILD = (61, 247)
PAUSE = (34, 130)
"""Calls that end with a signal alone."""
MOST_DESCRIPTORS = 8
"""Descriptors of one wait that are looked at."""
MOST_PROCESSES = 4096
"""Processes whose descriptors are looked through for the other end of a pipe."""
COMMAND = 80
"""Characters of a command line that are shown."""
TRACER = re.compile(r"^TracerPid:\s+(\d+)$", re.MULTILINE)
LOCK_HELD = re.compile(r"(?P<number>\d+): \w+ +\w+ +\w+ (?P<pid>\d+) (?P<file>\S+)")
LOCK_AWAITED = re.compile(
    r"(?P<number>\d+): -> (?:FLOCK|POSIX|OFDLCK) +\w+ +\w+ (?P<pid>\d+) (?P<file>\S+)"
)
"""Rows of ``/proc/locks``: a lock and its holder, and below it who waits for it.

Who waits for a LEASE to be given back opens a file, and has asked for no lock.
"""
HEXADECIMAL = re.compile("0x[0-9a-f]+")
FIFO_OPEN = re.compile("wait_for_partner|fifo_open")
"""Functions of the kernel in which an open of a FIFO waits for its other end."""
FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
WATCHED = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)
"""A descriptor that an event loop watches."""
MOST_WATCHED = 64
MAPPED = re.compile(
    r"(?P<first>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) \S+ \S+ (?P<device>\S+) (?P<inode>\d+)"
    r" *(?P<path>.*)"
)
"""A row of ``/proc/PID/maps``."""
LARGEST_MAPS = 8 << 20
POLLED = struct.Struct("=ii")
"""A descriptor of a poll, and what is waited for."""
PAGE = 4096


class Waits:
    """What processes of one job wait for; `wait_of` is asked for each."""

    def __init__(self, job):
        """`job` are the numbers of all processes of the job."""
        self.job = set(job)
        self._ends = {}  # type: dict[str, list[int]]
        self._sockets: dict[str, list[SocketRow]] = {}

    def wait_of(self, pid):
        """{what the main thread of a process waits for: …}; {} where nothing shows it.

        Its keys are those of `core.live_waits.Wait`.
        """
        # the number of the system call in which it is, and six arguments
        call = processes.read_text("/proc/%d/syscall" % pid).split()
        found = {}  # type: dict[str, object]
        tracer = traced_by(pid)
        if tracer:
            found["tracer"] = self.process_named(tracer)
        if processes.process_state(pid) in ("T", "t"):
            found["terminal"] = _background_of(pid)
        locks = self._locks_awaited(pid)
        if locks:
            found["locks"] = locks
        if platform.machine() == "x86_64" and len(call) > 6:
            found.update(self._wait_in_call(pid, whole_number(call[0]), call[1:7]))
        return found

    def process_named(self, pid):
        """{pid, name}: what may be told of a process; of the job's own its command."""
        if pid in self.job:
            return {"pid": pid, "name": command_shown(pid), "own": True}
        name = processes.read_text("/proc/%d/comm" % pid).strip()
        return {"pid": pid, "name": redact.text(name), "own": False}

    def _wait_in_call(self, pid, number, arguments):
        found = {}  # type: dict[str, object]
        values = []
        for value in arguments:
            if HEXADECIMAL.fullmatch(value):
                values.append(int(value, 16))
        if number is None or len(values) < 6:
            return found
        if number in DESCRIPTOR_CALLS:
            found["ends"] = self._ends_awaited(pid, number, values)
            found["polls"] = number in EPOLL
        elif number in (OPEN, OPENAT):
            path = _path_at(pid, values[int(number == OPENAT)])
            kind = "file"
            if FIFO_OPEN.search(processes.read_text("/proc/%d/wchan" % pid)):
                kind = "fifo"
            found["ends"] = [{"kind": kind, "name": redact.text(path), "does": "open"}]
        elif number == FUTEX:
            if values[1] & PRIVATE:
                found["futex"] = "private"
            else:
                found["futex"] = "shared"
                found.update(self._sharers_of(pid, values[0]))
        elif number in WAIT_FOR_CHILD:
            found["child"] = self._living_children(pid)
        elif number in PAUSE:
            found["signal"] = True
        return found

    def _sharers_of(self, pid, address):
        """{sharers: [other processes that have a semaphore]}; {} where it is none of a file."""
        file = _shared_file_at(pid, address)
        if not file:
            return {}
        found = []
        table = processes.parents()
        for one in list(table)[:MOST_PROCESSES]:
            if one == pid:
                continue
            mapped = set()
            for row in _mapped_files(one):
                key = row["device"], row["inode"]
                mapped.add(key)
            if file in mapped:
                process = self.process_named(one)
                found.append(process)
        return {"sharers": found[:MOST_DESCRIPTORS]}

    def _living_children(self, pid):
        found = []
        table = processes.parents()
        for one, parent in table.items():
            if parent != pid:
                continue
            if processes.is_alive(one):
                found.append(self.process_named(one))
        return found[:MOST_DESCRIPTORS]

    def _locks_awaited(self, pid):
        """[{path, holder}] of the locks of files that a process waits for, by ``/proc/locks``."""
        holders = {}  # type: dict[str, int]
        awaited = []
        table = processes.read_text("/proc/locks")
        for line in table.splitlines():
            # a row with an arrow waits for the lock of the same number
            waits = LOCK_AWAITED.match(line)
            if waits and waits["pid"] == str(pid):
                awaited.append(waits.group("number", "file"))
            held = LOCK_HELD.match(line)
            if held:
                number = held["number"]
                holders[number] = int(held["pid"])
        found = []
        for number, file in awaited:
            holder = holders.get(number, 0)
            if holder > 0:
                path = redact.text(_path_of_inode(pid, file))
                found.append({"path": path, "holder": self.process_named(holder)})
        return found[:MOST_DESCRIPTORS]

    def _ends_awaited(self, pid, number, values):
        found = []
        for handle in _descriptors_of_call(pid, number, values):
            end = self._end_of_descriptor(pid, handle, DESCRIPTOR_CALLS[number])
            if end:
                found.append(end)
        return found

    def _end_of_descriptor(self, pid, handle, does):
        """{kind, name, does, …} of one descriptor of a process; {} where it is closed."""
        try:
            target = os.readlink("/proc/%d/fd/%d" % (pid, handle))
        except OSError:
            return {}
        found = {"kind": _kind_of_target(pid, target), "name": redact.text(target), "does": does}
        if target.startswith("pipe:"):
            others = self._holders_of_other_end(pid, target, does)
            found["others"] = list(map(self.process_named, others))
        elif target.startswith("socket:"):
            found.update(self._socket_end(pid, target))
        return found

    def _holders_of_other_end(self, pid, target, does):
        """Processes that hold the other end of a pipe, but this one."""
        if target not in self._ends:
            held = []
            for one in list(processes.parents())[:MOST_PROCESSES]:
                if target in processes.targets_of_descriptors(one) and _has_end(one, target, does):
                    held.append(one)
            self._ends[target] = held
        others = [one for one in self._ends[target] if one != pid]
        return others[:MOST_DESCRIPTORS]

    def _socket_end(self, pid, target):
        """Addresses and state of a socket, and who listens at the other end, where that is here."""
        for one in self._tcp_sockets(pid):
            if one.target == target:
                found = {"state": one.state, "local": one.local, "remote": one.remote}
                if one.state == LISTENS or not one.remote:
                    return {**found, "remote": ""}
                return {**found, **self._listener_at(pid, one.remote)}
        if is_unix_pair(pid, target[len("socket:[") : -1]):
            return {"state": "pair"}
        return {}

    def _listener_at(self, pid, remote):
        """Whether somebody listens at an address of this host, and who."""
        host = host_of(remote)
        hosts = set()
        targets = set()
        for one in self._tcp_sockets(pid):
            hosts.add(host_of(one.local))
            if one.listens_at(host, port_of(remote)):
                targets.add(one.target)
        if host not in hosts and not host.startswith("127."):
            return {}  # of another host nothing is known
        if not targets:
            return {"listens": False}
        for holder in list(processes.parents())[:MOST_PROCESSES]:
            if targets.intersection(processes.targets_of_descriptors(holder)):
                return {"listens": True, "others": [self.process_named(holder)]}
        return {"listens": True}

    def _tcp_sockets(self, pid):
        """`tcp_sockets` of a process, read once for each network."""
        network = network_of(pid)
        if network not in self._sockets:
            self._sockets[network] = tcp_sockets(pid)
        return self._sockets[network]


def traced_by(pid):
    """The process that traces this one, as a debugger does; 0 where none does."""
    tracer = TRACER.search(processes.read_text("/proc/%d/status" % pid))
    if tracer:
        return int(tracer[1])
    return 0


def command_shown(pid):
    """The command line of a process, without secrets and cut."""
    text = processes.read_text("/proc/%d/cmdline" % pid)
    words = text.rstrip("\0").split("\0")
    text = shlex.join(redact.words(words))
    # one line, whatever its words hold
    text = " ".join(text.split())
    if len(text) <= COMMAND:
        return text
    return text[:COMMAND] + "…"


KINDS = (
    ("pipe:", "pipe"),
    ("socket:", "socket"),
    ("anon_inode:", "device"),
    ("/dev/pts/", "terminal"),
    ("/dev/tty", "terminal"),
    ("/dev/console", "terminal"),
    ("/dev/", "device"),
)
"""How the target of a descriptor begins → what it is."""


def _kind_of_target(pid, target):
    """``pipe``, ``fifo``, ``terminal``, ``socket``, ``device`` or ``file``."""
    for start, kind in KINDS:
        if target.startswith(start):
            return kind
    # a path is not asked, as its file server may be away: the kernel's function says as much
    if "pipe" in processes.read_text("/proc/%d/wchan" % pid):
        return "fifo"
    return "file"


def _has_end(pid, target, does):
    """Whether a process holds the end of a pipe that is not used by whoever does this with it."""
    wanted = {READ: os.O_WRONLY, WRITE: os.O_RDONLY}.get(does)
    for number in _numbers_of_descriptors(pid, target):
        about = processes.read_text("/proc/%d/fdinfo/%s" % (pid, number))
        flags = FLAGS.search(about)
        if wanted is None or not flags:
            return True
        if int(flags[1], 8) & os.O_ACCMODE in (wanted, os.O_RDWR):
            return True
    return False


def _numbers_of_descriptors(pid, target=""):
    """The descriptors of a process, or those that lead to a target."""
    folder = "/proc/%d/fd" % pid
    found = []
    try:
        for number in os.listdir(folder):
            if not target or os.readlink(os.path.join(folder, number)) == target:
                found.append(number)
    except OSError:
        return found  # it has ended, or has just closed one
    return found


def _descriptors_of_call(pid, number, values):
    """The descriptors that a call waits for."""
    if number in EPOLL:
        about = processes.read_text("/proc/%d/fdinfo/%d" % (pid, values[0]))
        return list(map(int, WATCHED.findall(about)))[:MOST_WATCHED]
    if number in POLL:
        count = min(values[1], MOST_DESCRIPTORS)
        data = _memory_of(pid, values[0], POLLED.size * count)
        if len(data) < POLLED.size * count:
            return []
        return [number for number, _ in POLLED.iter_unpack(data)]
    if number in SELECT:
        return _descriptors_of_select(pid, values)
    return [values[0]]


def _descriptors_of_select(pid, values):
    """The descriptors in the sets of bits for reading and for writing."""
    size = -(-min(values[0], 1024) // 8)
    found = []
    for place in values[1:3]:
        data = _memory_of(pid, place, size)
        # the lowest bit of the first byte stands for the first descriptor
        bits = int.from_bytes(data, "little")
        for number in range(bits.bit_length()):
            if bits >> number & 1:
                found.append(number)
    return found[:MOST_DESCRIPTORS]


def _memory_of(pid, place, size):
    """Bytes of a process; none where it may not be read."""
    if not place:
        return b""
    try:
        with open("/proc/%d/mem" % pid, "rb", 0) as source:
            source.seek(place)
            return source.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _shared_file_at(pid, address):
    """(device, inode) of the file of /dev/shm that holds an address; () where it is another's."""
    for row in _mapped_files(pid):
        first = int(row["first"], 16)
        end = int(row["end"], 16)
        if not row["path"].startswith("/dev/shm/"):
            continue
        if first <= address < end:
            return row["device"], row["inode"]
    return ()


def _mapped_files(pid):
    """The rows of ``/proc/PID/maps``."""
    path = "/proc/%d/maps" % pid
    text = processes.read_text(path, LARGEST_MAPS)
    for line in text.splitlines():
        match = MAPPED.match(line)
        if match:
            yield match


def _path_at(pid, place):
    """The path that a process opens."""
    # a page may end where the text does, so it is read in two pieces
    data = _memory_of(pid, place, PAGE - place % PAGE)
    if b"\0" not in data:
        data += _memory_of(pid, place + len(data), PAGE)
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def _path_of_inode(pid, place):
    """The path of the file of a lock, ``major:minor:inode``, by the descriptors of a process."""
    inode = place.rpartition(":")[2]
    for number in _numbers_of_descriptors(pid):
        about = processes.read_text("/proc/%d/fdinfo/%s" % (pid, number))
        if re.search(r"^ino:\s*%s$" % re.escape(inode), about, re.MULTILINE):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, number))
            except OSError:
                continue  # closed just now
            if target.startswith("/"):
                return target
    return ""


def _background_of(pid):
    """The terminal of a process that is not in its foreground, so that reading stops it."""
    words = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    if len(words) < 6:
        return ""
    terminal = whole_number(words[4]) or 0
    is_foreground = words[2] == words[5]
    if terminal <= 0 or is_foreground:
        return ""
    major = terminal >> 8 & 0xFFF
    minor = terminal & 0xFF | terminal >> 12 & 0xFFF00
    if major == 136:
        return "/dev/pts/%d" % minor
    return "/dev/tty%d" % minor
