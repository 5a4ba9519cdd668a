"""The guard: runs one command, and leaves nothing of it behind.

It is the adoptive parent of everything the command starts, so sessions of their own and double
forks do not escape.  It ends the run at the deadline, when told to (a line ``cancel`` on standard
input) and when standard input closes, which happens when the program that asked for the run dies,
whatever killed it.  Before it ends a run that hangs it collects the evidence.
"""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time

from .. import redact, wire
from ..monitor import attach
from ..monitor.telemetry import Sampler
from . import processes

STATUS = {"done": 0, "failed": 1, "deadline": 3}
"""Exit status by reason; 2 cannot start, 4 cancelled or orphaned."""
SAMPLE_SECONDS = 1.0
"""Seconds between two samples of telemetry, and between two looks at the run folder."""
DYING = 3.0
"""Seconds that ranks get to write their last log lines and to end."""
WRITTEN = (".log", ".txt", ".json", ".xml")
"""How files end that ranks and evidence are written to; ``launcher.log`` belongs to who reads this
program's output."""
LARGEST = 512 << 20
"""Bytes of them that are searched for secrets: some seconds for each 100 MiB."""
SIGNS = ("fr_rank_", "stacks_rank")
"""How files begin that a rank writes last."""


def main(argv):
    """``guard RUN_FOLDER DEADLINE_SECONDS COMMAND…``: run the command; returns its exit status."""
    wire.send("guard")  # by which one knows that this interpreter starts
    return run_guarded(argv[0], float(argv[1]), argv[2:])


def run_guarded(folder, deadline, command, node=""):
    """Run a command until it ends, its `deadline` passes or our input closes.

    Then end whatever it started.  `deadline` is in seconds; `node` is the number of this node where
    every node has a guard of its own: it is then part of the record and of the file name, and
    nobody listens on standard input.
    """
    processes.adopt_orphans()
    end = ExitStatus(folder, node)
    shm = ShmFiles()
    wakeup = _child_signals()
    try:
        # a session of its own: Ctrl-C in the user's terminal would kill the ranks before their
        # evidence is kept
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=processes.die_with_parent,
        )
    except OSError as error:
        return end.write("failed", None, ["cannot start %s: %s" % (command[0], error.strerror)], 2)
    collect = functools.partial(_collect_evidence, folder, node, shm)
    failure = FailureWatch(folder, collect)
    each_second = []
    # reading facts is no run that anybody watches
    if os.path.exists(os.path.join(folder, "plan.json")):
        name = "telemetry-node%s.jsonl" % node if node else "telemetry.jsonl"
        each_second.append(Sampler(os.path.join(folder, name)).take)
    each_second.append(failure.collect_once)
    reason, code = _wait_for_command(
        child.pid, wakeup, [] if node else [0], time.monotonic() + deadline, each_second
    )
    if reason == "deadline":
        # what ranks say from now on is said of the end that they are given
        wire.send("ending", reason=reason)
    # a run that ended by itself has no ranks left to look at; of those that survived a failure it
    # was collected then
    if reason == "done":
        problems = failure.problems
    else:
        problems = collect()
    left = processes.end(os.getpid())
    shm.clear()
    child.returncode = code if code is not None else -signal.SIGKILL  # reaped by us, not by Popen
    if reason == "done" and code != 0:
        reason = "deadline" if _deadline_came(folder) else "failed"
        if code is not None and code < 0:  # nobody else says so, as whoever was killed cannot
            problems.append(
                "%s was killed by signal %d"
                % ("srun" if "srun" in command else "the launcher", -code)
            )
    if left:
        problems.append("processes %s could not be ended" % left)
    # of several nodes the guard of the whole run does it, once nobody writes any more
    problems += [] if node else hide_secrets(folder)
    return end.write(reason, code, problems, STATUS.get(reason, 4))


def _child_signals():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # an interrupt in a terminal reaches the launcher, which cancels us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _wait_for_command(pid, wakeup, listen, until, each_second):
    """("done", exit code) when the command ended, else (why it is to end, None).

    Why is "deadline", "cancelled" or "orphaned".  `each_second` is called every second.
    """
    while True:
        # signals come through a pipe: one that arrived between a look and a plain sleep would be
        # slept over
        ready, _, _ = select.select(
            [wakeup, *listen], [], [], max(0.0, min(SAMPLE_SECONDS, until - time.monotonic()))
        )
        if wakeup in ready:
            os.read(wakeup, 4096)
            code = _exit_code(pid)
            if code is not None:
                return "done", code
        if 0 in ready:
            said = os.read(0, 4096)
            if not said:
                return "orphaned", None
            if b"cancel" in said:
                return "cancelled", None
        if time.monotonic() >= until:
            return "deadline", None
        for call in each_second:
            call()


class FailureWatch:
    """Collects evidence of the surviving ranks after one has failed.

    It does so some seconds after, before the launcher ends them.  A rank that hangs in native code
    answers no signal, but py-spy can read it as long as it is there.  It is not done at once, as
    ranks that fail together are then busy with dying, and must not be asked for their stacks.
    """

    def __init__(self, folder, collect):
        self.folder = folder
        self.collect = collect
        self.since = None
        """When the first sign was seen; infinity once everything was collected."""
        self.problems = []
        """One sentence per thing that could not be had."""

    def collect_once(self):
        """Collect evidence once, some seconds after the first sign of failure."""
        if self.since == float("inf"):
            return
        try:
            signs = any(name.startswith(SIGNS) for name in os.listdir(self.folder))
        except OSError:
            self.since = float("inf")  # the folder is gone, and with it the place for evidence
            return
        now = time.monotonic()
        if not signs:
            # also where ranks that were started again have put aside what they left before
            self.since = None
        elif self.since is None:
            self.since = now
        elif now - self.since >= DYING:
            self.since = float("inf")
            self.problems = self.collect()


class ShmFiles:
    """The files in /dev/shm that processes of the run have held.

    By it what they leave behind can be removed.
    """

    def __init__(self):
        self.before, self.seen = processes.shm_files(), set()  # type: tuple[set[str], set[str]]

    def remember(self, pids):
        """Remember the files of /dev/shm that these processes hold now."""
        self.seen |= processes.mapped_or_open(pids) - self.before

    def clear(self):
        """Remove the remembered files that no living process holds."""
        processes.remove_shm_files(self.seen)


def _collect_evidence(folder, node, shm):
    """Collect what the hanging ranks can tell; a full disk must not keep them alive."""
    pids = processes.descendants(os.getpid())
    shm.remember(pids)
    try:
        ranks = processes.ranks_of_processes(pids)
        return attach.collect(folder, ranks, attach.ways_to_ask_ranks(folder, ranks), node=node)
    except OSError as error:
        return ["evidence could not be written: %s" % error]


def hide_secrets(folder):
    """Take the secrets out of what the ranks wrote; returns what went wrong.

    It is called when nobody writes there any more.
    """
    problems = []  # type: list[str]
    left = LARGEST
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        path = os.path.join(folder, name)
        if name.endswith(WRITTEN) and name != "launcher.log" and not os.path.islink(path):
            try:
                left -= os.path.getsize(path)
                if left < 0:
                    return [
                        *problems,
                        "what begins with %s is too large to be searched for secrets" % path,
                    ]
                redact.file(path)
            except OSError as error:
                problems.append("%s may hold secrets: %s" % (path, error))
    return problems


def _deadline_came(folder):
    """True when the guard of a single node says that its deadline came.

    The whole run then failed for that reason.
    """
    said = [
        name
        for name in os.listdir(folder)
        if name.startswith("status-node") and name.endswith(".json")
    ]
    return any(
        '"reason": "deadline"' in processes.read_text(os.path.join(folder, name)) for name in said
    )


def _exit_code(pid):
    """Exit code of `pid` if it has ended (negative: killed by that signal).

    The status of other ended children is collected, too.
    """
    code = None
    try:
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                return code
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return code


class ExitStatus:
    """How the run ended: written to ``status.json``, and sent as a record."""

    def __init__(self, folder, node):
        self.started = time.time()
        if node:
            self.kind = "node_end"
        else:
            self.kind = "end"
        self.path = os.path.join(folder, "status-node%s.json" % node if node else "status.json")

    def write(self, reason, code, problems, status):
        """Write ``status.json``, send the record, and return the exit status."""
        said = {"reason": reason, "exitcode": code, "say": "; ".join(problems)}
        try:
            # the workbook, and the guard of all nodes, read it while we write
            processes.write_whole(
                self.path, json.dumps(dict(said, started=self.started, ended=time.time()))
            )
        except OSError as error:
            sys.stderr.write("ncclkit: cannot write %s: %s\n" % (self.path, error))
        with contextlib.suppress(OSError):  # nobody may read any more
            os.write(1, b"\n")  # the command may have ended in the middle of a line
        wire.send(self.kind, **said)
        return status
