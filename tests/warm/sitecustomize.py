"""Jobs of tests, reports and kernels are forked: they have torch, or pandas, plotly and Jupyter, already.  To import
those costs each process of a job two seconds of CPU, each report and each kernel one.

For what only depends on what ranks do; how they are started is tested without (tests/live).  Python imports this first
where `tests.processes.warm` has put its folder on PYTHONPATH.  The guard of a job, and whoever only asks what torch can
do, hands what it was given to the server (tests/warm/server.py), which forks the process that it would have become, and
waits for the end of that one, as its own.  The guard then forks torchrun, and torchrun its ranks.  On a host of its own
torchrun is what hands over, and the process that is forked joins that host's namespaces.  `ncclkit report` and a
notebook's kernel do so with a server of their own, which has no torch.  A forked process has its own session, variables
and words, also in /proc, and no file of its parent.  Where the server cannot give what the process was given (another
interpreter, right, library or variable that torch reads when it is loaded), everything starts as it does for users, but
for the ranks, which torchrun forks.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import threading

ROOM = "NCCLKIT_TESTS_ROOM"
"""Variable that is long enough for those that torchrun adds for its ranks, of which it has none itself."""
SERVER = "NCCLKIT_TESTS_SERVER"
"""Variable: where the server of jobs listens, a file that other hosts of this machine have, too."""
NOTEBOOKS = "NCCLKIT_TESTS_NOTEBOOKS"
"""Variable: the same for that of reports and kernels."""
STANDS_IN = "stands in"
"""What a process is called by the kernel that waits for the end of the one forked in its place."""
NICE = "NCCLKIT_TESTS_NICE"
"""Variable: how nice the sessions of ranks are, for a job in which cores must be what is short, and not other tests."""
AGENT, OWN = "agent.pyz", "--own"
TORCHRUN = "torch.distributed.run"
KERNEL, REPORT = ["-m", "ipykernel_launcher"], ["-m", "ncclkit", "report"]
NEIGHBOUR = "neighbour.py"
"""Who attacks the stores of jobs (tests/hostile)."""
PARENT = "JPY_PARENT_PID"
"""Variable: the process without which a kernel ends."""
VERBS = ("facts", "hosts", "launch")
"""What a guard runs."""
QUESTION = "import json,sys,torch,torch.distributed as d; print("
"""How the one program begins that asks what torch can do (ncclkit/live/launch/local.py)."""
FACTS = '"""A script: what may hang is asked here'
"""How the one begins that facts of torch are read with (ncclkit/agent/facts/children.py)."""
FIXED = ("CUDA_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTHON", "TORCH_CPP_", "TORCH_SHOW_")
"""How variables begin that are read before a forked process has them."""
IDLE = ("PYTHONPATH", "PYTHONIOENCODING", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Those of them that a forked process can be given or does not heed, and what scikit-learn sets for its own process."""
JOINED = {"mnt": 0x00020000, "net": 0x40000000, "uts": 0x04000000}
"""Namespaces that a forked process joins, and what the kernel calls them."""
RIGHTS = ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
OWN_FILE = os.path.basename(__file__)
BUILT_IN = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
"""Where Python looks for modules, behind what PYTHONPATH names."""


def place():
    """What a forked process has of the server and cannot change: equal where it may stand in for this one."""
    with open("/proc/self/status") as file:
        rights = [line for line in file if line.startswith(RIGHTS)]
    with open("/proc/self/cgroup") as file:
        cgroup = file.read()
    root = os.geteuid() == 0  # it may join other namespaces, and other groups of users
    kinds = [kind for kind in sorted(os.listdir("/proc/self/ns")) if not root or kind not in JOINED]
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
    fixed = sorted(item for item in os.environ.items() if item[0].startswith(FIXED) and item[0] not in IDLE)
    where = [os.readlink("/proc/self/root"), cgroup, spaces]
    told = [sys.executable, sys.prefix, where, rights, root or os.getgroups(), fixed]
    return json.loads(json.dumps(told))


def limits():
    """What a forked process can have like this one: namespaces, folder, mask, cores, priority, signals and limits."""
    import resource

    mask = os.umask(0o077)
    os.umask(mask)
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "cwd": os.getcwd(),
        "umask": mask,
        "groups": os.getgroups(),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "ignored": [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in names},
        "spaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in JOINED},
        "pid": os.getpid(),
    }


def set_limits(told):
    """Take what `limits` has told of another process."""
    import resource

    _join(told)
    if os.getgroups() != told["groups"]:
        os.setgroups(told["groups"])
    os.chdir(told["cwd"])
    os.umask(told["umask"])
    os.sched_setaffinity(0, told["cores"])
    os.setpriority(os.PRIO_PROCESS, 0, told["nice"])
    for number in told["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for name, pair in told["limits"].items():
        if resource.getrlimit(getattr(resource, name)) != tuple(pair):
            resource.setrlimit(getattr(resource, name), pair)


def _join(told):
    """Be on the host of the process that has asked."""
    others = [kind for kind, space in told["spaces"].items() if os.readlink(f"/proc/self/ns/{kind}") != space]
    files = [open(f"/proc/{told['pid']}/ns/{kind}") for kind in others]
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, file in zip(others, files, strict=True):
        with file:
            if libc.setns(file.fileno(), JOINED[kind]):
                raise OSError(ctypes.get_errno(), f"cannot join the {kind} namespace")


def hand_over(name):
    """Have the server fork what this process would become, and end as that ends; returns where it cannot."""
    import socket

    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(name)
        fits = json.loads(line.recv(1 << 20)) == place()
    except OSError:
        fits = False  # it has ended, or its file is not here
    if not fits:
        return line.close()
    told = json.dumps({"words": sys.orig_argv, "environ": dict(os.environ), "limits": limits()})
    with open("/proc/self/comm", "w") as file:  # its words are those of the process that it stands in for
        file.write(STANDS_IN)

    def forward(number, _):
        with contextlib.suppress(ConnectionError):  # it has just ended, and how is about to be heard
            line.send(bytes([number]))

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # what is asked for goes first
    socket.send_fds(line, [told.encode()], [0, 1, 2])
    for number in SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        said = line.recv(64)
    except ConnectionError:  # a signal was not read any more; how it has ended comes behind that
        said = line.recv(64)
    status = int(said or b"-9")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def is_forked(words):
    """Whether a command is forked: of this interpreter, a rank, torchrun, facts of torch, or what a guard runs."""
    if not isinstance(words, (list, tuple)) or len(words) < 3 or words[0] != sys.executable:
        return False
    if words[1] == "-u":
        return os.path.exists(words[2])
    if words[1] == "-m":
        return words[2] == TORCHRUN
    if words[1] == "-c":
        return words[2].startswith(FACTS) and words[3:] == ["torch"]
    return os.path.basename(words[1]) == AGENT and words[2] in VERBS


def forking():
    """A Popen that forks these commands."""
    from inspect import signature
    from subprocess import Popen

    takes = signature(Popen._execute_child)

    class Fork(Popen):
        def _execute_child(self, *given, **named):
            asked = takes.bind(self, *given, **named).arguments
            if not is_forked(asked["args"]):
                return super()._execute_child(*given, **named)
            environ = dict(os.environ if asked["env"] is None else asked["env"])
            self.pid = os.fork()
            if self.pid == 0:
                become(list(asked["args"]), environ, lambda: _begin(asked))
            self._child_created = True
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[name] for name in pipes))

    return Fork


def _begin(asked):
    """What Popen does in a child before its program starts."""
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if asked[name] != -1:
            os.dup2(asked[name], number)
    if asked["start_new_session"]:
        os.setsid()
        if NICE in os.environ:
            with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:  # root may, on most kernels
                file.write(os.environ[NICE])
    if asked["cwd"] is not None:
        os.chdir(asked["cwd"])
    if asked["preexec_fn"] is not None:
        asked["preexec_fn"]()


def become(words, environ, begin):
    """Run what Python would run with these words and variables in this forked process, to its end; does not return."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, handler)
        begin()
        os.closerange(3, 1 << 12)
        _dress(words, environ)
        _customize(environ)
        _run(words[2:] if words[1] == "-u" else without_options(words[1:]))
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _dress(words, environ):
    """Its variables and words, and what Python and torch have made of those when they were loaded."""
    rank = words[1] == "-u"
    if rank:
        environ = {name: value for name, value in environ.items() if name != ROOM}
    if PARENT in environ:  # it waits for the server, which ends it where whoever stands in for it ends
        environ = {**environ, PARENT: str(os.getppid())}
    os.environ.clear()
    os.environ.update(environ)
    sys.orig_argv[:] = words
    _show(words, [f"{name}={value}" for name, value in environ.items()])
    sys.path[:] = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *BUILT_IN]
    sys.path_importer_cache.clear()
    if "torch" not in sys.modules:
        return
    import torch

    torch.distributed.set_debug_level_from_env()
    if rank:  # torch has read this when it was loaded, before torchrun set it
        torch.set_num_threads(int(environ.get("OMP_NUM_THREADS", "1")))


def without_options(words):
    """The words of Python behind its options of the form -X."""
    return words[1:] if words[0].startswith("-X") else words


def _customize(environ):
    """Run the other files of this one's name on PYTHONPATH, of which Python would have taken the first alone."""
    for folder in environ.get("PYTHONPATH", "").split(os.pathsep):
        file = os.path.join(folder, OWN_FILE)
        if os.path.exists(file) and not os.path.samefile(file, __file__):
            runpy.run_path(file)


def _run(words):
    sys.argv = list(words)
    if words[0] == "-c":
        sys.argv, code = ["-c", *words[2:]], words[1]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif words[:2] == ["-m", TORCHRUN]:
        program = importlib.import_module(words[1])
        sys.argv = [program.__file__, *words[2:]]
        program.main()
    elif words[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = words[1:]
        try:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        finally:
            threading._shutdown()  # waits for other threads, as Python does before it ends
    else:
        if not words[0].endswith(".pyz"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            for name in [name for name in sys.modules if name.partition(".")[0] == "ncclkit"]:
                del sys.modules[name]  # those of the agent of its guard
        runpy.run_path(words[0], run_name="__main__")


def _show(args, variables):
    """Put words and variables where /proc reads those of this process."""
    with open("/proc/self/stat") as file:
        places = [int(word) for word in file.read().rsplit(")", 1)[1].split()[45:49]]
    for (begin, end), words in zip((places[:2], places[2:]), (args, variables), strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) <= end - begin, "more than there is room for: see ROOM"
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _fork_ranks():
    """Have torchrun in this process fork its ranks."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = forking()


if ROOM in os.environ:
    _words = without_options(sys.orig_argv[1:])
    _program = os.path.basename(_words[0]) if _words else ""
    _job = [_program, *_words[1:3]] == [AGENT, OWN, "guard"] or _program == NEIGHBOUR
    _asks = _words[:1] == ["-c"] and (_words[1].startswith(QUESTION) or is_forked(sys.orig_argv))
    if SERVER in os.environ and (_job or _asks or _words[:2] == ["-m", TORCHRUN]):
        hand_over(os.environ[SERVER])
    if NOTEBOOKS in os.environ and (_words[:2] == KERNEL or _words[:3] == REPORT):
        hand_over(os.environ[NOTEBOOKS])
    if _words[1:2] == ["launch"] or _words[:2] == ["-m", TORCHRUN]:
        _fork_ranks()
