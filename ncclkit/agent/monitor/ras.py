"""NCCL's RAS: the report of the running job, asked for twice.

The two are a short while apart, as RAS counts launches.  Ranks of a healthy job drift apart for
moments, so one look accuses the innocent; ranks that are apart and stay so are evidence.  Only
valid lines of the protocol are sent, as other bytes have crashed RAS threads (NVIDIA/nccl issue
1996), and only to a server that introduced itself.  The report is never asked for in its verbose
form: with a rank missing, NCCL 2.28.9 then prints thousands of words of foreign memory; JSON has it
all anyway.

NCCL 2.31 diagnoses a running job when it is asked: memory errors, links, drivers and settings, by
counters that it reads.  That is asked for once, when the ranks are not watched any more: each of
them reads 90 KB of files for its answer, which would look like work of its own.  2.32.3 was watched
on two H200: it answered within 40 ms and measured nothing, as its test of bandwidth runs at the
start of a communicator.  Of later releases it is not known that they only read, so a person may ask
these.

All jobs of a user on a host listen on one port, and whichever has it answers.  A report counts only
where its processes are those of the job that was asked about; otherwise the connection is made
again.
"""

import os
import re
import socket
import threading
import time

from .. import redact
from ..digits import whole_number
from ..run import processes

PORT = 28028
LARGEST = 64 << 20
"""Bytes kept of one report."""
GRACE = 1.0
"""Seconds beyond its deadline in which the thread may say why it has no report."""
AGAIN = 0.2
"""Seconds after a report of another job until the connection is made again."""
DIAGNOSIS = 2.0
"""Seconds in which the diagnostics have to answer."""
LONGEST_WATCH = 600.0
"""Seconds after which the diagnostics are given up, should nobody say that the watch is over."""
DIAGNOSES = (2, 31)
"""The first release whose RAS diagnoses a job."""
LAST_SEEN = (2, 32)
"""The last one that is known to only read."""
RELEASE = re.compile(rb'(?:NCCL version |"nccl_version": ")(\d{1,3})\.(\d{1,3})\.(\d{1,3})')
SPEAKER = re.compile(rb":(\d{1,10}) NCCL DIAG ")
"""Who prints a line of the diagnostics: the process that answers."""
NAMED = re.compile(
    rb'"host":\s*"(?P<host>[^"]*)",\s*"pid":\s*(?P<pid>\d{1,10})'
    rb"|managed by process (?P<process>\d{1,10}) on node (?P<node>\S+)"
)
"""Where a report in JSON, or in text, names a process."""


class Unanswered(Exception):
    """RAS gave no report; the text says why."""


class Polls:
    """Two RAS reports, fetched beside other work.

    They become ``ras.json`` or ``ras.txt``, then ``ras_2.json`` or ``ras_2.txt``.  They are asked
    for from the network of process `pid`, since the loopback of a container, or of a simulated
    host, is not ours.  `job` are the processes of the job on this host; a report of others is not
    kept.
    """

    def __init__(self, folder, address, deadline, pid, job):
        self.where = "%s:%d" % address
        self.until = time.monotonic() + deadline
        self.pause = deadline / 4
        self.job = job
        self.foreign = 0
        self.watch_is_over = threading.Event()
        self.problem = "NCCL's RAS on %s did not answer within %g s" % (self.where, deadline)
        # a daemon: a name service that does not answer must not keep the guard alive
        self.thread = threading.Thread(
            target=self._run, args=(folder, address, pid), daemon=True, name="ncclkit-ras"
        )
        self.thread.start()

    def wait(self):
        """Why there are not two whole reports, in one sentence; "" when there are.

        The ranks are not watched any more: NCCL may be asked for what makes them work.
        """
        self.watch_is_over.set()
        self.thread.join(max(0.0, self.until - time.monotonic()) + DIAGNOSIS + GRACE)
        return self.problem

    def _run(self, folder, address, pid):
        why = stayed = ""
        try:
            if any(name.startswith("ras.") for name in os.listdir(folder)):
                # another node's guard asks already, and every process answers for the whole job
                self.problem = ""
                return
            stayed = processes.enter_network(pid)
            for name in ("ras", "ras_2"):
                if name == "ras_2":
                    time.sleep(min(self.pause, max(0.0, self.until - time.monotonic())))
                report, form, why = self._own(address)
                processes.write_whole(os.path.join(folder, "%s.%s" % (name, form)), report)
                if why:
                    break
            else:
                why = self._diagnose(
                    folder,
                    address,
                    report,
                )
        except ConnectionRefusedError:
            why = (
                "nobody listens; no communicator is up, RAS is off (NCCL_RAS_ENABLE=0) or NCCL is"
                " older than 2.24"
            )
            if stayed:
                why = "%s, or %s" % (why, stayed)
        except (OSError, Unanswered) as error:
            why = str(error)
        if self.foreign:
            if self.foreign == 1:
                many = "1 report of another job was"
            else:
                many = "%d reports of other jobs were" % self.foreign
            why = "%s not used%s" % (many, "; " + why if why else "")
        if why:
            self.problem = "NCCL's RAS on %s: %s" % (self.where, why)
        else:
            self.problem = ""

    def _diagnose(
        self,
        folder,
        address,
        report,
    ):
        """Write what NCCL's diagnostics answer; returns why they did not, or ""."""
        version = release_of(report)
        if version < DIAGNOSES or not self.watch_is_over.wait(LONGEST_WATCH):
            return ""
        if version[:2] > LAST_SEEN:
            return (
                "NCCL %d.%d may measure more than it reads, so it was not asked for its"
                " diagnostics: `ncclras -D` on that host does" % version[:2]
            )
        try:
            text, why = ask_diagnostics(address, time.monotonic() + DIAGNOSIS)
        except (OSError, Unanswered) as error:
            return "it gave no diagnostics (%s)" % error
        speakers = set(map(int, SPEAKER.findall(text)))
        if speakers - _numbers_of(self.job):
            return "the diagnostics of another job were not used"
        said = redact.text(text.decode("utf-8", "replace"))
        processes.write_whole(os.path.join(folder, "ras_diagnostics.txt"), said)
        return why

    def _own(self, address):
        """As `ask`, of this job; connects again after a report of another one."""
        while True:
            report, form, why = ask_ras(address, self.until)
            if belongs(report, self.job):
                return report, form, why
            self.foreign += 1
            if time.monotonic() + AGAIN > self.until:
                raise Unanswered(
                    "no report of this job came in time; its jobs share the port, and another one"
                    " has it"
                )
            time.sleep(AGAIN)


def address(environ):
    """(host, port) of a process with this environment.

    NCCL_RAS_ADDR is ``host:port`` or ``[address]:port``.
    """
    host, _, port = environ.get("NCCL_RAS_ADDR", "").strip().rpartition(":")
    number = whole_number(port)
    if not host or number is None or number > 65535:
        return "localhost", PORT
    return host.strip("[]"), number


def belongs(report, job):
    """Whether a report is of the job whose processes on this host are `job`.

    Where it names processes of a host of ours, all of them must be those of the job.  A report in
    text names only what is odd, maybe nobody, or a whole node that is not this one: then it counts
    where no other process of the user here has NCCL loaded.
    """
    hosts = {}  # type: dict[bytes, set[int]]
    for match in NAMED.finditer(report):
        hosts.setdefault(match["host"] or match["node"] or b"", set()).add(
            int(match["pid"] or match["process"])
        )
    inner = _numbers_of(job)
    if any(pids <= inner for pids in hosts.values()):
        return True
    if report.lstrip()[:1] == b"{" or any(map(_is_ours, hosts)):
        return False
    return not _others(job)


def _is_ours(node):
    """Whether an address is one of this host.

    A datagram socket that is connected sends nothing, and then has the address from which it would.
    """
    name = node.decode("ascii", "replace")
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((socket.inet_ntop(family, socket.inet_pton(family, name)), 9))
                if probe.getsockname()[0] == probe.getpeername()[0]:
                    return True
        except (OSError, ValueError):
            continue  # an address of the other family, or no way there
    return False


def _numbers_of(job):
    """The numbers of all processes of a job, in every namespace."""
    inner = set()
    for pid in job:
        inner.update(_numbers(pid))
    return inner


def _numbers(pid):
    """The numbers of a process, in this namespace and in that of its container."""
    for line in processes.read_text("/proc/%d/status" % pid).splitlines():
        if line.startswith("NSpid:"):
            return {pid, *map(int, line.split()[1:])}
    return {pid}


def _others(job):
    """Processes of the users of a job, outside of it, that have NCCL loaded."""
    owners = {processes.owner(pid) for pid in job}
    strangers = (
        pid for pid in processes.parents() if pid not in job and processes.owner(pid) in owners
    )
    return [
        pid for pid in strangers if "libnccl" in processes.read_text("/proc/%d/maps" % pid, 8 << 20)
    ]


def ask_ras(address, until):
    """One report: (bytes, "json" or "txt", why it breaks off or "").

    `until` is the moment of `time.monotonic` at which waiting ends.  JSON is for NCCL 2.28.7 and
    later; earlier ones give text.  Raises Unanswered or OSError.
    """
    link = _Link(address, until)
    try:
        form = link.agree()
        if form is None:
            # closed for a line it does not know: the question once more without that line
            link.close()
            link = _Link(address, until)
            link.greet()
        link.send("STATUS")
        report, why = link.rest()
    finally:
        link.close()
    if not report:
        raise Unanswered(why or "it closed the connection without a report")
    return report, form or "txt", why


def release_of(report):
    """(2, 31, 2): the release of NCCL that answered; () where the report does not say."""
    match = RELEASE.search(report)
    if match is None:
        return ()
    return tuple(map(int, match.groups()))


def ask_diagnostics(address, until):
    """(what NCCL's diagnostics of a running job answer, why it is not all of it or "").

    It is for NCCL 2.31 and later; earlier ones keep the connection open and say nothing more.
    """
    link = _Link(address, until)
    try:
        link.greet()
        link.send("DIAGNOSTICS")
        text, why = link.rest()
    finally:
        link.close()
    if not text:
        raise Unanswered(why or "it closed the connection without an answer")
    return text, why.replace("report", "diagnosis")


class _Link:
    """One connection; every wait ends at the deadline."""

    def __init__(self, address, until):
        self.until = until
        self.kept = b""
        self.socket = socket.create_connection(address, timeout=self._left())

    def _left(self):
        left = self.until - time.monotonic()
        if left <= 0:
            raise Unanswered("no answer in time")
        return left

    def greet(self):
        """Exchange greetings; raises Unanswered where the server does not speak the RAS
        protocol.
        """
        self.send("CLIENT PROTOCOL 2")
        answer = self.line()
        if not answer.startswith(b"SERVER PROTOCOL"):
            raise Unanswered("what answers there is not RAS, or closed the connection")

    def agree(self):
        """The form of the report, "json" or "txt"; None when the server hung up on the question."""
        self.greet()
        # RAS waits this long for processes that do not answer it: less than we wait for the report
        self.send("TIMEOUT %d" % max(1, self._left() / 3))
        self.line()
        self.send("SET FORMAT json")
        answer = self.line()
        if not answer:
            return None
        if answer.strip() == b"OK":
            return "json"
        return "txt"

    def send(self, line):
        self.socket.settimeout(self._left())
        self.socket.sendall(line.encode() + b"\n")

    def line(self):
        """The next line; b"" when the connection was closed."""
        while b"\n" not in self.kept:
            part = self._part()
            if not part or len(self.kept) > 4096:
                return b""
            self.kept += part
        line, _, self.kept = self.kept.partition(b"\n")
        return line

    def rest(self):
        """(what comes until the server closes, why it is not all of it or "")."""
        parts = [self.kept]
        size = len(self.kept)
        try:
            while size < LARGEST:
                part = self._part()
                if not part:
                    return b"".join(parts), ""
                parts.append(part)
                size += len(part)
        except (OSError, Unanswered) as error:
            return b"".join(parts), "its report breaks off (%s)" % error
        return b"".join(parts), "its report is longer than %d MiB" % (LARGEST >> 20)

    def _part(self):
        self.socket.settimeout(self._left())
        return self.socket.recv(65536)

    def close(self):
        self.socket.close()
