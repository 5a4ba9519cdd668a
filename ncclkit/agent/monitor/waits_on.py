"""What the kernel tells of the wait of one process.

It tells the file, pipe, socket, lock or child process in which its main thread waits, and who
stands at the other end.  All of it is read in ``/proc``; no file of the job is opened.  Processes
outside of the job are named by their number and their program alone.
"""

import os
import platform
import re
import shlex
import socket
import struct

from .. import redact
from ..digits import whole_number
from ..run import processes

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
LISTENS, SYN_SENT, ESTABLISHED = "0A", "02", "01"
TRACER = re.compile(r"^TracerPid:\s+(\d+)$", re.MULTILINE)


class Waits:
    """What processes of one job wait for; `of` is asked for each."""

    def __init__(self, job):
        """`job` are the numbers of all processes of the job."""
        self.job = set(job)
        self._ends = {}  # type: dict[str, list[int]]
        self._sockets = {}  # type: dict[str, list[tuple[str, str, str, str]]]

    def of(self, pid):
        """{what the main thread of a process waits for: …}; {} where nothing shows it.

        Its keys are those of `core.kinds.AttachRank.wait`.
        """
        words = processes.read_text("/proc/%d/syscall" % pid).split()
        found = {}  # type: dict[str, object]
        tracer = traced_by(pid)
        if tracer:
            found["tracer"] = self.named(tracer)
        if processes.process_state(pid) in ("T", "t"):
            found["terminal"] = _background_of(pid)
        locks = self._locks(pid)
        if locks:
            found["locks"] = locks
        if platform.machine() == "x86_64" and len(words) > 6:
            found.update(self._of_call(pid, whole_number(words[0]), words[1:7]))
        return found

    def named(self, pid):
        """{pid, name}: what may be told of a process; of the job's own its command."""
        if pid in self.job:
            return {"pid": pid, "name": command(pid), "own": True}
        name = processes.read_text("/proc/%d/comm" % pid).strip()
        return {"pid": pid, "name": redact.text(name), "own": False}

    def _of_call(self, pid, number, arguments):
        found = {}  # type: dict[str, object]
        values = [int(value, 16) for value in arguments if re.fullmatch("0x[0-9a-f]+", value)]
        if number is None or len(values) < 6:
            return found
        if number in DESCRIPTOR_CALLS:
            handles = _descriptors(pid, number, values)
            ends = [self._descriptor(pid, one, DESCRIPTOR_CALLS[number]) for one in handles]
            found["ends"] = [end for end in ends if end]
            found["polls"] = number in EPOLL
        elif number in (OPEN, OPENAT):
            path = _text_at(pid, values[int(number == OPENAT)])
            end = {"kind": _kind_of_open(pid), "name": redact.text(path), "does": "open"}
            found["ends"] = [end]
        elif number == FUTEX:
            found["futex"] = "private" if values[1] & PRIVATE else "shared"
        elif number in WAIT_FOR_CHILD:
            found["child"] = self._children(pid)
        elif number in PAUSE:
            found["signal"] = True
        return found

    def _children(self, pid):
        """The children of a process that live."""
        own = [one for one, parent in processes.parents().items() if parent == pid]
        return [self.named(one) for one in own if processes.is_alive(one)][:MOST_DESCRIPTORS]

    def _locks(self, pid):
        """[{path, holder}] of the locks of files that a process waits for, by ``/proc/locks``."""
        rows = [line.split() for line in processes.read_text("/proc/locks").splitlines()]
        rows = [row for row in rows if len(row) >= 8]
        found = []
        for row in rows:
            if row[1] != "->" or row[5] != str(pid):
                continue
            holders = [whole_number(one[4]) for one in rows if one[0] == row[0] and one[1] != "->"]
            found += [
                {"path": redact.text(_path_of(pid, row[6])), "holder": self.named(holder)}
                for holder in holders
                if holder and holder > 0
            ]
        return found[:MOST_DESCRIPTORS]

    def _descriptor(self, pid, handle, does):
        """{kind, name, does, …} of one descriptor of a process; {} where it is closed."""
        try:
            target = os.readlink("/proc/%d/fd/%d" % (pid, handle))
        except OSError:
            return {}
        found = {"kind": _kind_of(pid, target), "name": redact.text(target), "does": does}
        if target.startswith("pipe:"):
            found["others"] = [self.named(one) for one in self._other_ends(pid, target, does)]
        elif target.startswith("socket:"):
            found.update(self._socket(pid, target[len("socket:[") : -1]))
        return found

    def _other_ends(self, pid, target, does):
        """Processes that hold the other end of a pipe: first its children, at last itself."""
        if target not in self._ends:
            held = []
            for one in list(processes.parents())[:MOST_PROCESSES]:
                if target in processes.targets_of_descriptors(one) and _has_end(one, target, does):
                    held.append(one)
            self._ends[target] = held
        others = [one for one in self._ends[target] if one != pid]
        return others[:MOST_DESCRIPTORS]

    def _socket(self, pid, inode):
        """Addresses and state of a socket, and who listens at the other end, where that is here."""
        rows = self.tcp_sockets(pid)
        mine = next((row for row in rows if row[3] == inode), None)
        if mine is None:
            return _local_socket(pid, inode)
        local, remote, state, _ = mine
        found = {"state": state, "local": local, "remote": remote}
        if state == LISTENS or not remote:
            return {**found, "remote": ""}
        return {**found, **self._listener(rows, remote)}

    def _listener(self, rows, remote):
        """Whether somebody listens at an address of this host, and who."""
        host, _, port = remote.rpartition(":")
        here = {row[0].rpartition(":")[0] for row in rows}
        if host not in here and not host.startswith("127."):
            return {}  # of another host nothing is known
        inodes = {
            row[3]
            for row in rows
            if row[2] == LISTENS and row[0].rpartition(":")[2] == port and _covers(row[0], host)
        }
        if not inodes:
            return {"listens": False}
        targets = {"socket:[%s]" % one for one in inodes}
        for one in list(processes.parents())[:MOST_PROCESSES]:
            if targets.intersection(processes.targets_of_descriptors(one)):
                return {"listens": True, "others": [self.named(one)]}
        return {"listens": True}

    def tcp_sockets(self, pid):
        """(local, remote, state, inode) of all TCP sockets in the network of a process."""
        try:
            network = os.readlink("/proc/%d/ns/net" % pid)
        except OSError:
            return []
        if network not in self._sockets:
            rows = []
            for name in ("tcp", "tcp6"):
                text = processes.read_text("/proc/%d/net/%s" % (pid, name), 8 << 20)
                for line in text.splitlines()[1:]:
                    words = line.split()
                    if len(words) > 9:
                        ends = (_address(words[1]), _address(words[2]))
                        rows.append((*ends, words[3], words[9]))
            self._sockets[network] = rows
        return self._sockets[network]


def _local_socket(pid, inode):
    """{state} of a Unix socket: ``pair`` where it has no name and takes no connections."""
    for line in processes.read_text("/proc/%d/net/unix" % pid, 8 << 20).splitlines():
        words = line.split()
        if len(words) > 6 and words[6] == inode:
            takes_connections = int(words[3], 16) & 1 << 16
            return {} if takes_connections or len(words) > 7 else {"state": "pair"}
    return {}


def traced_by(pid):
    """The process that traces this one, as a debugger does; 0 where none does."""
    tracer = TRACER.search(processes.read_text("/proc/%d/status" % pid))
    return int(tracer[1]) if tracer else 0


def command(pid):
    """The command line of a process, without secrets and cut."""
    words = processes.read_text("/proc/%d/cmdline" % pid).rstrip("\0").split("\0")
    text = " ".join(shlex.join(redact.words(words)).split())
    return text if len(text) <= COMMAND else text[:COMMAND] + "…"


def _kind_of(pid, target):
    """``pipe``, ``fifo``, ``terminal``, ``socket``, ``device`` or ``file``."""
    for start, kind in (
        ("pipe:", "pipe"),
        ("socket:", "socket"),
        ("anon_inode:", "device"),
        ("/dev/pts/", "terminal"),
        ("/dev/tty", "terminal"),
        ("/dev/console", "terminal"),
        ("/dev/", "device"),
    ):
        if target.startswith(start):
            return kind
    # a path is not asked, as its file server may be away: the kernel's function says as much
    waits_in = processes.read_text("/proc/%d/wchan" % pid)
    return "fifo" if "pipe" in waits_in else "file"


def _kind_of_open(pid):
    waits_in = processes.read_text("/proc/%d/wchan" % pid)
    return "fifo" if "wait_for_partner" in waits_in or "fifo_open" in waits_in else "file"


def _has_end(pid, target, does):
    """Whether a process holds the end of a pipe that is not used by whoever does this with it."""
    folder = "/proc/%d/fd" % pid
    for name in _names(folder):
        try:
            if os.readlink(os.path.join(folder, name)) != target:
                continue
        except OSError:
            continue
        about = processes.read_text("/proc/%d/fdinfo/%s" % (pid, name))
        flags = re.search(r"^flags:\s*([0-7]+)$", about, re.MULTILINE)
        mode = int(flags[1], 8) & os.O_ACCMODE if flags else None
        if mode == os.O_RDWR or mode == {READ: os.O_WRONLY, WRITE: os.O_RDONLY}.get(does, mode):
            return True
    return False


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _descriptors(pid, number, values):
    """The descriptors that a call waits for."""
    if number in EPOLL:
        about = processes.read_text("/proc/%d/fdinfo/%d" % (pid, values[0]))
        return [int(one) for one in re.findall(r"^tfd:\s*(\d+)", about, re.MULTILINE)][:64]
    if number in POLL:
        count = min(values[1], MOST_DESCRIPTORS)
        data = _memory(pid, values[0], 8 * count)
        return [struct.unpack_from("=i", data, 8 * one)[0] for one in range(len(data) // 8)]
    if number in SELECT:
        size = min(values[0], 1024)
        data = b"".join(_memory(pid, place, -(-size // 8)) for place in values[1:3] if place)
        bits = [8 * (at % -(-size // 8)) + bit for at, byte in enumerate(data) for bit in range(8)
                if byte >> bit & 1]  # fmt: skip
        return bits[:MOST_DESCRIPTORS]
    return [values[0]]


def _memory(pid, place, size):
    """Bytes of a process; none where it may not be read."""
    try:
        with open("/proc/%d/mem" % pid, "rb", 0) as source:
            source.seek(place)
            return source.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _text_at(pid, place):
    """The path that a process opens."""
    # a page may end where the text does, so it is read in two pieces
    data = _memory(pid, place, 4096 - place % 4096)
    if b"\0" not in data:
        data += _memory(pid, place + len(data), 4096)
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def _path_of(pid, place):
    """The path of the file of a lock, ``major:minor:inode``, by the descriptors of a process."""
    inode = place.rpartition(":")[2]
    for name in _names("/proc/%d/fd" % pid):
        about = processes.read_text("/proc/%d/fdinfo/%s" % (pid, name))
        if re.search(r"^ino:\s*%s$" % re.escape(inode), about, re.MULTILINE):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if target.startswith("/"):
                return target
    return ""


def _background_of(pid):
    """The terminal of a process that is not in its foreground, so that reading stops it."""
    words = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    if len(words) < 6:
        return ""
    group, terminal, foreground = words[2], whole_number(words[4]) or 0, words[5]
    if terminal <= 0 or group == foreground:
        return ""
    major, minor = terminal >> 8 & 0xFFF, terminal & 0xFF | terminal >> 12 & 0xFFF00
    return "/dev/pts/%d" % minor if major == 136 else "/dev/tty%d" % minor


def _address(text):
    """``127.0.0.1:4444`` of the kernel's hexadecimal; "" where there is no other end."""
    host, _, port = text.partition(":")
    try:
        data, number = bytes.fromhex(host), int(port, 16)
    except ValueError:
        return ""
    if number == 0 or len(data) not in (4, 16):
        return ""
    # the kernel prints each word of four bytes as a number of this host, which has it turned
    turned = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    if turned.startswith(bytes(10) + b"\xff\xff"):
        turned = turned[12:]
    family = socket.AF_INET if len(turned) == 4 else socket.AF_INET6
    return "%s:%d" % (socket.inet_ntop(family, turned), number)


def _covers(address, host):
    """Whether a socket that listens at an address takes connections to a host's address."""
    listens = address.rpartition(":")[0]
    return listens in ("0.0.0.0", "::", host)
