"""The guard: runs one command, and leaves nothing of it behind.

It is the adoptive parent of everything the command starts, so sessions of their
own and double forks do not escape.  It ends the run at the deadline, when told
to (a line ``cancel`` on standard input) and when standard input closes, which
happens when the program that asked for the run dies, whatever killed it.
Before it ends a run that hangs it collects the evidence.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

from . import attach, processes, wire


def main(argv):
    """``guard RUN_FOLDER DEADLINE_SECONDS COMMAND…``; exit status 0 done, 1 failed, 2 cannot start, 3 deadline, 4 cancelled."""
    folder, deadline, command = argv[0], float(argv[1]), argv[2:]
    processes.adopt_orphans()
    started = time.time()
    wakeup = _watch_children()
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=processes.die_with_parent
        )
    except OSError as error:
        return _finish(folder, started, "failed", None, "cannot start %s: %s" % (command[0], error.strerror), 2)
    reason, code = _wait(child.pid, wakeup, time.monotonic() + deadline)
    problems = [] if reason == "done" else _evidence(folder)
    left = processes.end(os.getpid())
    child.returncode = code if code is not None else -signal.SIGKILL  # reaped by us, not by Popen
    if reason == "done" and code != 0:
        reason = "failed"
    say = "; ".join(problems + (["processes %s could not be ended" % left] if left else []))
    return _finish(folder, started, reason, code, say, {"done": 0, "failed": 1, "deadline": 3}.get(reason, 4))


def _watch_children():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt in a terminal reaches the launcher, which cancels us
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _wait(pid, wakeup, until):
    """("done", exit code) when the command ended, else ("deadline" | "cancelled" | "orphaned", None)."""
    while True:
        ready, _, _ = select.select([0, wakeup], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return "deadline", None
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


def _evidence(folder):
    """Collect what the hanging ranks can tell; a full disk must not keep them alive."""
    try:
        return attach.collect(folder, processes.ranks(processes.descendants(os.getpid())))
    except OSError as error:
        return ["evidence could not be written: %s" % error]


def _exit_code(pid):
    """Exit code of `pid` if it has ended (negative: killed by that signal); other ended children are collected too."""
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


def _finish(folder, started, reason, code, say, status):
    record = {"reason": reason, "exitcode": code, "started": started, "ended": time.time(), "say": say, "exits": {}}
    try:
        with open(os.path.join(folder, "status.json.part"), "w") as out:
            json.dump(record, out)
        os.replace(os.path.join(folder, "status.json.part"), os.path.join(folder, "status.json"))
    except OSError as error:
        sys.stderr.write("ncclkit: cannot write status.json: %s\n" % error)
    os.write(1, b"\n")  # the command may have ended in the middle of a line
    wire.send("end", reason=reason, exitcode=code, say=say)
    return status
