"""Ranks that torchrun forks: they have torch already, whose import costs each of them two seconds of CPU.

For what only depends on what ranks do; how they are started is tested without (tests/live).  Python imports this first
where ``tests.processes.warm`` has put its folder on PYTHONPATH, and it changes nothing but torchrun.  A rank has
its own session, its own variables and words, also in /proc, and no file of its parent.
"""

import atexit
import ctypes
import os
import runpy
import signal
import sys

ROOM = "NCCLKIT_TESTS_ROOM"
"""Variable that is long enough for those that torchrun adds for its ranks, of which it has none itself."""


def _fork_ranks():
    """Have torchrun in this process fork its ranks."""
    from subprocess import Popen

    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    class Fork(Popen):
        def _execute_child(self, args, *more):
            if tuple(args[:2]) != (sys.executable, "-u") or not os.path.exists(args[2]):
                return super()._execute_child(args, *more)
            self.pid = os.fork()
            if self.pid == 0:
                _become(args, next(word for word in more if isinstance(word, dict)))
            self._child_created = True

    subprocess_handler.Popen = Fork


def _become(args, environ):
    """Run the program of a rank in this forked process, to its end."""
    status = 1
    try:
        os.setsid()
        os.closerange(3, 1 << 12)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        environ = {name: value for name, value in environ.items() if name != ROOM}
        os.environ.clear()
        os.environ.update(environ)
        _show(args, [f"{name}={value}" for name, value in environ.items()])
        import torch

        # torch has read this when it was loaded, before torchrun set it
        torch.set_num_threads(int(environ.get("OMP_NUM_THREADS", "1")))
        sys.argv = list(args[2:])
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _show(args, variables):
    """Put words and variables where /proc reads those of this process."""
    with open("/proc/self/stat") as file:
        places = [int(word) for word in file.read().rsplit(")", 1)[1].split()[45:49]]
    for (begin, end), words in zip((places[:2], places[2:]), (args, variables), strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) <= end - begin, "more than there is room for: see ROOM"
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if ROOM in os.environ and (sys.orig_argv[2:3] == ["launch"] or sys.orig_argv[1:3] == ["-m", "torch.distributed.run"]):
    _fork_ranks()
