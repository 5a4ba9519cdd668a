"""``python server.py SOCKET jobs|notebooks``: forks processes that have what they import (see sitecustomize.py).

SOCKET is the number of the file that it listens on.  It ends with its standard input, that is with whoever started it,
and what it has forked ends with it.
"""

import _imp
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import weakref
import zipfile
import zipimport

warm = sys.modules["sitecustomize"]  # which Python has imported first
MODULES = {
    "jobs": (
        "torch.distributed.run",
        "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
        "torch._dynamo",  # the first step of an optimizer imports it
    ),
    "notebooks": (
        *("ipykernel.kernelapp", "ipywidgets", "matplotlib_inline.backend_inline", "pandas", "plotly.graph_objects"),
        *("plotly.graph_objs._bar", "plotly.graph_objs._figure", "plotly.graph_objs._scatter", "plotly.subplots"),
        *("ncclkit.report.headless", "ncclkit.report.page", "ncclkit.views"),
    ),
}
"""What jobs of tests import; reports, and kernels."""
MORE = {"stories.resume": ("lightning.fabric", "torchdata.stateful_dataloader")}
"""What one job imports, too, as much as all the others; what is not installed it does without."""
CODE, COMPILE = {}, zipimport._compile_source
"""Source of a module of the agent → its code."""
PR_SET_PDEATHSIG = 1


class Server:
    """Each line is a process that waits for the end of the one that was forked in its place."""

    def __init__(self, listening, kind):
        self.listening, self.kind = listening, kind
        self.watch, self.place = selectors.DefaultSelector(), warm.place()
        self.pids = {}
        """Line → pid of what was forked for it."""
        self.watch.register(listening, selectors.EVENT_READ, self.accept)
        self.watch.register(0, selectors.EVENT_READ, self.end)

    def run(self):
        """Serve until standard input ends."""
        while True:
            for key, _ in self.watch.select():
                if key in self.watch.get_map().values():  # what came before it may have closed it
                    key.data()

    def accept(self):
        """Tell a process of this user who we are."""
        line, _ = self.listening.accept()
        _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid() or not _sent(line, json.dumps(self.place)):
            return line.close()
        self.watch.register(line, selectors.EVENT_READ, lambda: self.hear(line))

    def hear(self, line):
        """What it has been given, a signal for what stands in for it, or its end."""
        try:
            message, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        except ConnectionError:
            message, files = b"", []
        if line in self.pids:
            for number in message or (signal.SIGKILL,):
                os.kill(self.pids[line], number)
        elif message:
            return self.fork(line, json.loads(message), files)
        if not message:
            self.watch.unregister(line)
            if line not in self.pids:
                line.close()

    def fork(self, line, told, files):
        """Fork what was asked for; when it has ended, say how."""
        _have([*MODULES[self.kind], *(name for word in told["words"] for name in MORE.get(word, ()))])
        _compile(told["words"][1])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            warm.become(told["words"], told["environ"], lambda: _begin(told, files, parent))
        for file in files:
            os.close(file)
        self.pids[line], ended = pid, os.pidfd_open(pid)
        self.watch.register(ended, selectors.EVENT_READ, lambda: self.ended(line, ended))

    def ended(self, line, pidfd):
        """Tell who waits how it has ended."""
        self.watch.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pids.pop(line), 0)[1])
        if line in self.watch.get_map():
            self.watch.unregister(line)
            _sent(line, str(status))
        line.close()

    def end(self):
        """Whoever started this has ended."""
        os._exit(0)


def _have(names):
    """Import what is not there yet, and keep the garbage collectors of all who are forked away from it."""
    count = len(sys.modules)
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    if len(sys.modules) > count:
        if "ipywidgets" in sys.modules:
            sys.modules["ipywidgets"].register_comm_target()  # as it does where a kernel imports it
        weakref.finalize._registry.clear()  # torch takes back all it has registered, a tenth of a second
        gc.collect()
        gc.freeze()


def _compile(agent):
    """Compile the modules of an agent once for all that are forked; its file is another one in each run."""
    if os.path.basename(agent) != warm.AGENT:
        return
    with zipfile.ZipFile(agent) as archive:
        for name in archive.namelist():
            source = archive.read(name)
            if name.endswith(".py") and source not in CODE:
                CODE[source] = compile(source, name, "exec", dont_inherit=True)


def _compiled(pathname, source):
    """What zipimport compiles."""
    if source not in CODE:
        return COMPILE(pathname, source)
    _imp._fix_co_filename(CODE[source], pathname)
    return CODE[source]


def _sent(line, text):
    """Whether somebody is there to hear it."""
    try:
        return line.send(text.encode()) > 0
    except ConnectionError:
        return False


def _begin(told, files, parent):
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)
    warm.set_limits(told["limits"])


def main():
    """Serve; the ranks of the jobs that are forked here are forked, too."""
    listening, kind = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    if kind == "jobs":
        _fork_what_they_start()
    Server(listening, kind).run()


def _fork_what_they_start():
    run = os.execvpe

    def become(file, words, environ):
        if warm.is_forked(words):
            warm.become(list(words), dict(environ), lambda: None)
        run(file, words, environ)

    os.execvpe = become
    zipimport._compile_source = _compiled
    subprocess.Popen = warm.forking()


if __name__ == "__main__":
    main()
