"""One thing tried in a process of its own: it tells how far it came, and gives everything back by ending."""

import json
import os
import select
import signal
import time

from . import processes


class Attempt:
    """``work(tell)`` in a child process; what it hands to `tell(**fields)` is known here, the last value of each field.

    The child is killed by `end`, with this process, and by its own time limit, so nothing that it took is kept.
    """

    def __init__(self, work, seconds):
        self.told, self.until, self._rest = {}, time.monotonic() + seconds, b""
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            os._exit(_child(work, writer, parent, seconds))
        os.close(writer)

    def await_(self, *fields):
        """Read until one of these fields is told, the child ends, or its time is over; returns all that was told."""
        while not any(field in self.told for field in fields):
            left = max(0.0, self.until - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                self.told["why"] = "it did not end within its time"
                break
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                break
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self.told.update(json.loads(line))
        return self.told

    def end(self):
        """Kill the child, unless it has ended; all that was told, with the signal that it died of."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._reader)
        if ended is not None and os.WIFSIGNALED(status):
            died = signal.Signals(os.WTERMSIG(status))
            self.told["error" if died == signal.SIGBUS else "why"] = "killed by %s" % died.name
        return self.told


def tried(work, seconds):
    """All that ``work(tell)`` told, to its end or until `seconds` are over."""
    attempt = Attempt(work, seconds)
    attempt.await_()
    return attempt.end()


def _child(work, writer, parent, seconds):
    """Exit status of the child; an error that `work` did not foresee is told like any other."""

    def tell(**fields):
        os.write(writer, json.dumps(fields).encode() + b"\n")

    try:
        processes.die_with_parent(parent)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds) + 5)  # whatever happens to the parent
        work(tell)
    except Exception as error:  # a defect in one attempt must not take the others with it
        tell(why="the attempt itself failed (%s: %s)" % (type(error).__name__, error))
        return 1
    return 0
