"""The Flight Recorder of ranks whose job set nothing for it.

Each rank is asked by the mildest method that it allows, and only on request, as three of the five
run code inside the process; never in a process of another user.  Each method has conditions, so
that none begins what it may not be able to end: a debugger calls into Python only while no thread
holds the GIL, only where time is left for the call, and is asked to let go, not killed, in the
middle of it.
"""

import http.client
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..run import processes
from . import remote_thread, utilization
from .snapshots import python_stack

COSTS = {
    "pipe": (
        "torch writes the dump itself (the job has set TORCH_NCCL_DEBUG_INFO_PIPE_FILE); nothing is"
        " paused"
    ),
    "server": "torch's debug server answers (the job has started it); nothing is paused",
    "remote_exec": (
        "Python 3.14 runs five lines at the next safe point of the main thread; nothing is paused"
    ),
    "ptrace": (
        "a thread is begun that calls Python once (x86_64), for which the main thread is paused for"
        " milliseconds"
    ),
    "gdb": (
        "gdb, or cuda-gdb, attaches, needs ptrace, and calls Python once; the process is paused for"
        " some seconds"
    ),
}
"""Method → what it needs and costs."""
MORE_TIME = "--timeout 180 gives it more"
"""What to do where the deadline came first."""
NEXT_TIME = (
    "For a dump without a debugger set next time: export TORCH_FR_BUFFER_SIZE=2000"
    " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_pipe_rank_ (the"
    " second name is for torch before 2.8; it takes torch 2.3)"
)
CODE = """import _thread
def _ncclkit(path):
    import contextlib, os, sys
    def dump():
        torch = sys.modules.get("torch")
        distributed = sys.modules.get("torch.distributed")
        if torch is None or distributed is None or not distributed.is_initialized():
            return b"", "it has no process group of torch"
        inner, which = torch._C._distributed_c10d, "torch %s" % torch.__version__
        nccl = distributed.get_backend() == "nccl"
        names = ("_dump_nccl_trace", "_dump_fr_trace") if nccl else ("_dump_fr_trace",)
        call = next((getattr(inner, name) for name in names if hasattr(inner, name)), None)
        if call is None:
            return b"", "%s has no Flight Recorder for %s" % (which, distributed.get_backend())
        found = call()
        sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        older = [int(part) for part in torch.__version__.split(".")[:2]] < [2, 11]
        asked = any(os.environ.get(name) for name in sizes)
        if older and not asked and b"profiling_name" not in found:
            return b"", "the Flight Recorder of %s is off unless it is asked for" % which
        return found, ""
    try:
        found, problem = dump()
    except Exception as error:
        found, problem = b"", repr(error)
    with contextlib.suppress(OSError):  # the folder is gone where nobody waits for it any more
        with open(path + ".part", "wb") as out:
            out.write(found or problem.encode())
        os.replace(path + ".part", path if found else path + ".none")
_thread.start_new_thread(_ncclkit, ({path!r},))
del _ncclkit, _thread
"""
"""What is run inside a rank.

A thread of its own makes the dump, once the debugger has let go: it asks CUDA for the state of each
collective, and the main thread may have been stopped where it holds a lock of CUDA's.
"""
REFUSED = "Couldn't write"
"""How gdb begins what it says of registers that it cannot write."""
WRITE_CHECK = (
    "set $ncclkit = $xmm15.v2_int64[0]",
    "set $xmm15.v2_int64[0] = $ncclkit ^ 1",
    "set $xmm15.v2_int64[0] = $ncclkit",
)
"""Orders that fail, and change nothing, where gdb cannot write the registers of a thread.

gdb before 14 cannot on a processor with AMX: a call is refused halfway, and the process dies of
what was written.
"""
QUIET = (
    "set auto-load no",
    "set auto-solib-add off",
    "set debuginfod enabled off",
    "set confirm off",
)
"""Orders to gdb before it begins."""
OF_OUR_OWN = ("/bin/sh", "-c", ":")
"""The program on which a debugger is asked whether it can write registers."""
ASKED = 10.0
"""Seconds that this may take."""
PATIENCE = {"pipe": 8.0, "server": 4.0, "remote_exec": 3.0, "ptrace": 30.0, "gdb": 60.0}
"""Seconds that a method may take on one rank."""
SIGINT_GRACE = 1.6
"""Seconds in which a debugger heeds an interrupt, which unwinds its call, after which it
detaches."""
UNWIND_GRACE = 8.0
"""Seconds more that it gets, past its deadline, as a rank dies of a debugger that ends in the
middle of a call."""
STOP_BEFORE = 2 * SIGINT_GRACE
"""Seconds before its deadline at which a debugger is interrupted first."""
CALL_NEEDS = 15.0
"""Seconds without which a debugger begins no call.

On an H200 ranks died of a debugger that was interrupted in the middle of one.
"""
ATTACH_NEEDS = 2 * CALL_NEEDS
"""Seconds without which no debugger is begun, as on a busy host it takes about ten until its first
call."""
GIL_CHECKS, PAUSE = 5, 0.3
"""How often, and after how many seconds again, it is looked whether a thread has the GIL."""
DETACH_GRACE = 3.0
"""Seconds in which a debugger ends by itself once the rank has answered."""
LAST = 200
"""Characters of what a debugger printed last, where nothing in it says what went wrong."""
CUDA = "/usr/local/cuda/bin"
"""Where cuda-gdb lies that is not on PATH."""
LARGEST = 256 << 20
SIDE_BY_SIDE = 8


class Final(Exception):
    """Why there is no dump, where no other method is to be asked.

    The rank itself has said so, or may still do what it was asked.
    """


def dump(folder, ranks, until, texts):
    """Write ``fr_rank_<N>`` of each rank that allows it.

    Returns one sentence for each that does not.  `texts` is what pystack or py-spy printed of each
    rank, which shows who holds the GIL.
    """
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, os.cpu_count() or 1)) as pool:
        said = list(
            pool.map(
                lambda rank: _write_dump_of_rank(
                    folder, rank, ranks[rank], until, texts.get(rank, "")
                ),
                ranks,
            )
        )
    problems = [problem for problem in said if problem]
    if problems:
        return [*problems, NEXT_TIME]
    return []


def _write_dump_of_rank(folder, rank, pid, until, text):
    owner = processes.owner(pid)
    if owner < 0:
        return "rank %d has ended" % rank
    if owner != os.geteuid():
        return "rank %d belongs to another user, so nothing is asked of its process" % rank
    why = []
    for method, ask in METHODS.items():
        left = min(PATIENCE[method], until - time.monotonic())
        if left <= 0:
            why.append("no time was left; " + MORE_TIME)
            break
        try:
            found, problem = ask(rank, pid, left, text)
        except OSError as error:  # it has ended meanwhile, or its folder is full
            found = b""
            problem = str(error)
        except Final as error:
            why.append("%s: %s" % (method, error))
            break
        if found:
            processes.write_whole(os.path.join(folder, "fr_rank_%d" % rank), found)
            return ""
        why += ["%s: %s" % (method, problem)] if problem else []
    return "rank %d gave no Flight Recorder dump (%s)" % (rank, "; ".join(why))


PIPE_ONLY = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
"""Opens what stands where a pipe should: what else it is stays as is."""


def _dump_by_pipe(rank, pid, seconds, text):
    """(bytes that torch wrote, why there are none), by the rank's named pipe.

    A write to that pipe asks torch for its dump.
    """
    variables = processes.environ(pid)
    prefix = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    if not prefix:
        return b"", ""
    home = variables.get("HOME", "") + "/.cache/torch/"
    named = [
        variables.get(name, "")
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    ]
    prefixes = [
        *filter(None, named),
        home + "comm_lib_trace_rank_",
        home + "nccl_trace_rank_",
        "/tmp/nccl_trace_rank_",
    ]
    places = [_path_inside(pid, "%s%d" % (place, rank)) for place in prefixes]
    begun = time.monotonic()
    before = {place: _time_written(place) for place in places}
    try:
        pipe = os.open(_path_inside(pid, "%s%d.pipe" % (prefix, rank)), PIPE_ONLY)
    except OSError as error:
        return b"", error.strerror
    with open(pipe, "wb", buffering=0) as out:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return b"", "%s%d.pipe is not a pipe, so nothing was written to it" % (prefix, rank)
        out.write(b"1\n")
    while time.monotonic() - begun < seconds:
        new = next((place for place in places if _time_written(place) != before[place]), None)
        if new is not None:
            written = _whole_file(new, begun + seconds)
            return written, "" if written else "torch wrote nothing"
        time.sleep(0.1)
    return b"", "torch wrote nothing"


def _whole_file(path, until):
    """What is in a file that a process writes just now.

    It is read once it has grown and grows no more, or at the deadline.
    """
    size = os.path.getsize(path)
    known = -1
    while time.monotonic() < until and (size == 0 or size != known):
        time.sleep(0.3)
        size, known = os.path.getsize(path), size
    return _read_dump(path)


def _path_inside(pid, path):
    """A path as the process sees it, which may be in a container."""
    if os.path.isabs(path):
        return "/proc/%d/root%s" % (pid, path)
    return "/proc/%d/cwd/%s" % (pid, path)


def _time_written(path):
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _read_dump(path):
    with open(path, "rb") as source:
        return source.read(LARGEST)


def _dump_by_server(rank, pid, seconds, text):
    """(the dump that torch's debug server gives, why there is none)."""
    problem = ""
    store = processes.environ(pid).get("MASTER_PORT", "")
    for port in _listening_ports(pid):
        if str(port) == store:
            continue
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds / 2)
        try:
            link.request("GET", "/")
            if b"torch" not in link.getresponse().read(4096):
                continue
            for handler in ("dump_nccl_trace_pickle", "fr_trace_json"):
                link.request("POST", "/handler/" + handler)
                answer = link.getresponse()
                body = answer.read(LARGEST)
                if answer.status == 200 and b"entries" in body:
                    return body, ""
                problem = "it answered %d" % answer.status
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        finally:
            link.close()
    return b"", problem


def _listening_ports(pid):
    """Ports on which a process listens at all addresses.

    Torch's debug server does so; gloo and NCCL do not.
    """
    held = set(utilization.inodes(pid))
    found = []
    for line in processes.read_text("/proc/%d/net/tcp6" % pid).splitlines()[1:]:
        words = line.split()
        address, _, port = words[1].partition(":")
        if words[3] == "0A" and not address.strip("0") and int(words[9]) in held:
            found.append(int(port, 16))
    return found


def _script_folder(pid, rank):
    """A folder that only this user and the process see.

    Returns it as we see it, and as the process does.
    """
    base = next(
        (place for place in ("/tmp", "/dev/shm") if os.access(_path_inside(pid, place), os.W_OK)),
        "",
    )
    if not base:
        return "", ""
    seen = _path_inside(
        pid, base
    )  # which goes with the process, and what is in the folder would stay
    ours = tempfile.mkdtemp(prefix="ncclkit_", dir=base if os.path.samefile(seen, base) else seen)
    theirs = os.path.join(base, os.path.basename(ours))
    with open(os.path.join(ours, "dump.py"), "w") as out:
        out.write(CODE.replace("{path!r}", repr(os.path.join(theirs, "fr"))))
    return ours, theirs


def _has_answered(folder):
    return os.path.exists(folder + "/fr") or os.path.exists(folder + "/fr.none")


def _read_answer(folder):
    """(the dump that `CODE` wrote, ""); raises Final with its reason where it wrote none."""
    if os.path.exists(folder + "/fr"):
        return _read_dump(folder + "/fr"), ""
    raise Final(processes.read_text(folder + "/fr.none", 200))


def _remote_exec(rank, pid, seconds, text):
    """(the dump, why there is none) by Python 3.14's own door.

    It is used through the interpreter that the process runs.
    """
    try:
        program = os.readlink("/proc/%d/exe" % pid)
    except OSError as error:
        return b"", error.strerror
    version = re.search(
        r"python3\.(\d+)", program + "\n" + processes.read_text("/proc/%d/maps" % pid, 8 << 20)
    )
    if version is None or int(version[1]) < 14:
        return b"", ""
    ours, theirs = _script_folder(pid, rank)
    if not ours:
        return b"", "there is no folder that the process can read"
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    command = [program, "-I", "-S", "-c", code, str(pid), theirs + "/dump.py"]
    begun = time.monotonic()
    asked = False
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            return b"", (done.stderr.strip().splitlines() or ["it failed"])[-1]
        asked = True
        while not _has_answered(ours):
            if time.monotonic() - begun > seconds:
                return b"", "its main thread came to no safe point"
            time.sleep(0.05)
        return _read_answer(ours)
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", str(error)
    finally:
        if asked and not _has_answered(ours):
            with open(ours + "/dump.py", "w"):
                pass  # should the thread come there later, it finds a script that does nothing
        else:
            shutil.rmtree(ours, ignore_errors=True)


def _dump_by_ptrace(rank, pid, seconds, text):
    """(the dump, why there is none) by a thread begun in the process.

    No debugger is needed for that.
    """
    until = time.monotonic() + seconds
    _raise_if_shut(rank, pid, text, until)
    ours, theirs = _script_folder(pid, rank)
    if not ours:
        return b"", "there is no folder that the process can read"
    try:
        # begun late, as when a thread has the GIL, it finds nothing more to do
        remote_thread.begin(
            pid, "__import__('os').path.exists('%s') and %s" % (theirs, _line_of_python(theirs))
        )
        while not _has_answered(ours):
            if time.monotonic() > until:
                raise Final(
                    "the thread that makes the dump did not end in %.0f s; %s"
                    % (seconds, MORE_TIME)
                )
            time.sleep(0.02)
        return _read_answer(ours)
    except remote_thread.ThreadRefused as error:
        return b"", str(error)
    finally:
        shutil.rmtree(ours, ignore_errors=True)


def _line_of_python(folder):
    """Python that runs `CODE` and leaves no name behind in the program."""
    return "exec(open('%s/dump.py').read(), {})" % folder


def _raise_if_shut(rank, pid, text, until):
    """Raise Final where no call into Python would come back."""
    if processes.process_state(pid) in ("T", "t"):
        raise Final("it is stopped")
    if _holds_gil(rank, pid, text, until):
        raise Final("a thread holds the GIL, and no call would come back")


def _dump_by_gdb(rank, pid, seconds, text):
    """(the dump, why there is none) by a debugger that calls three functions of Python."""
    programs = [program for program in (shutil.which("gdb"), cuda_gdb()) if program]
    if not programs:
        return b"", "neither gdb nor cuda-gdb is installed"
    until = time.monotonic() + seconds
    found = b""
    problem = ""
    _raise_if_shut(rank, pid, text, until)
    for program in programs:
        problem = refusal(program) or problem
        if refusal(program):
            continue
        if until - time.monotonic() <= ATTACH_NEEDS:
            return b"", "%.0f s were left, and a debugger takes %.0f; %s" % (
                seconds,
                ATTACH_NEEDS,
                MORE_TIME,
            )
        found, problem = _dump_by_debugger(program, rank, pid, until - time.monotonic())
        if found or REFUSED not in problem:
            break
    return found, problem


_asking = threading.Lock()
_refusals = {}  # type: dict[str, str]


def _each_behind(option, orders):
    """The orders as words of gdb's command line, each behind its option."""
    words = []  # type: list[str]
    for order in orders:
        words += [option, order]
    return words


def refusal(program):
    """Why a debugger can call nothing on this host; "" where it can.

    It is asked once, of a program of our own.
    """
    with _asking:
        if program not in _refusals:
            orders = _each_behind("-ex", ["starti", *write_check(), "kill"])
            quiet = _each_behind("-iex", QUIET)
            command = [program, "-nx", "-batch", *quiet, *orders, "--args", *OF_OUR_OWN]
            said = re.search("(?m)^%s.*$" % REFUSED, debugged(command, time.monotonic() + ASKED))
            if said:
                _refusals[program] = "%s says: %s Its release 14 can write them" % (
                    program,
                    said[0],
                )
            else:
                _refusals[program] = ""
        return _refusals[program]


def write_check():
    """`WRITE_CHECK` where the processor has these registers."""
    if platform.machine() == "x86_64":
        return WRITE_CHECK
    return ()


def _holds_gil(rank, pid, text, until):
    """Whether a thread has the GIL whenever one looks.

    What runs Python (``+gil``) has it now and then.  `text` is what was seen of the process before;
    pystack, which says ``Has the GIL``, reads processes that stand.
    """
    for _ in range(GIL_CHECKS):
        if "+gil" not in text:
            break
        time.sleep(PAUSE)
        text = (
            python_stack(rank, pid, min(until, time.monotonic() + PATIENCE["remote_exec"]))[0]
            or text
        )
    return "Has the GIL" in text or "+gil" in text


def _dump_by_debugger(program, rank, pid, seconds):
    """(the dump, why there is none) by this debugger."""
    ours, theirs = _script_folder(pid, rank)
    if not ours:
        return b"", "there is no folder that the process can read"
    first = ["handle all nostop noprint pass", "set unwindonsignal on"]
    # all of torch would take seconds more; without libcuda's symbols cuda-gdb is a gdb, and leaves
    # the GPU alone
    first += ["sharedlibrary libpython", r"sharedlibrary /libc[.-]"]
    # cuda-gdb has its eye on a kernel where one runs, and calls nothing there
    calls = ["thread 1", *write_check()]
    calls += ["set $state = (int) PyGILState_Ensure()", "thread 1"]
    calls += ['call (int) PyRun_SimpleString("%s")' % _line_of_python(theirs)]
    # of a file gdb leaves out what follows an error
    with open(ours + "/permitted", "w") as out:
        out.write("\n".join(calls) + "\n")
    # Python ends a process that releases a state that it has not taken
    with open(ours + "/release", "w") as out:
        out.write("if ! $_isvoid($state)\ncall (void) PyGILState_Release($state)\nend\n")
    before = _each_behind("-iex", QUIET)
    # one move decides: either the calls begin, or there are none any more
    first.append(
        "shell mv %s %s" % (shlex.quote(ours + "/permitted"), shlex.quote(ours + "/calls"))
    )
    after = [*_each_behind("-ex", first), "-x", ours + "/calls"]
    after += ["-ex", "thread 1", "-x", ours + "/release", "-ex", "detach"]
    until = time.monotonic() + seconds
    try:
        command = [program, "-nx", "-batch", *before, "-p", str(pid), *after]
        said = debugged(command, until, lambda: _has_answered(ours), ours + "/permitted")
        called = re.search(r"(?m)^\$\d+ = 0$", said)
        while called and not _has_answered(ours) and time.monotonic() < until:
            time.sleep(0.05)
        if _has_answered(ours):
            return _read_answer(ours)
        if called:
            return b"", "the thread that makes the dump did not end in %.0f s; %s" % (
                seconds,
                MORE_TIME,
            )
        if not os.path.exists(ours + "/calls") and not os.path.exists(ours + "/permitted"):
            return b"", "it had not begun after %.0f s; %s" % (seconds - CALL_NEEDS, MORE_TIME)
        if time.monotonic() > until - STOP_BEFORE:
            return b"", "it was asked to let go as it took more than %.0f s; %s" % (
                seconds,
                MORE_TIME,
            )
        refused = re.findall(r"(?m)^.*(?:ptrace|denied|not permitted|%s).*$" % REFUSED, said)
        wrong = re.findall(r"Error in sourced command file:\n(.+)", said)
        wrong += re.findall(r"(?m)^.*(?:rror|No symbol|annot|signaled).*$", said)[-1:]
        last = " / ".join(said.strip().splitlines()[-3:])[-LAST:]
        return (
            b"",
            (refused or wrong or ["it called nothing (%s)" % (last or "it printed nothing")])[0],
        )
    finally:
        shutil.rmtree(ours, ignore_errors=True)


def cuda_gdb():
    """The path of cuda-gdb; None where there is none."""
    return shutil.which("cuda-gdb") or shutil.which("cuda-gdb", path=CUDA)


def debugged(command, until, answered=lambda: False, script=""):
    """What gdb, or cuda-gdb, prints.

    It ends by the moment `until`, and soon after the rank has `answered`.  Only one that heeds no
    interrupt has `UNWIND_GRACE` seconds more.  `script` is a file of its orders, removed where it
    has not begun them `CALL_NEEDS` seconds before that moment.  cuda-gdb is a script that starts
    the debugger, so signals go to both.  They stay in our process group, with which Cancel ends
    them.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "SHELL": "/bin/sh"},
    )
    said = ""
    started = {child.pid}
    known = False
    patience = until - STOP_BEFORE
    signals = [(signal.SIGINT, SIGINT_GRACE), (signal.SIGINT, SIGINT_GRACE + UNWIND_GRACE)]
    signals += [(signal.SIGTERM, SIGINT_GRACE), (signal.SIGKILL, SIGINT_GRACE)]
    while True:
        try:
            return child.communicate(timeout=0.1)[0]
        except subprocess.TimeoutExpired as late:
            said = (late.output or b"").decode("utf-8", "replace")
        now = time.monotonic()
        if not known and answered():
            known = True
            patience = min(patience, now + DETACH_GRACE)
        if script and not known and now > until - CALL_NEEDS:
            with suppress(FileNotFoundError):
                os.remove(script)
        if now < patience:
            continue
        if not signals:
            return said
        started.update(processes.descendants(child.pid))  # the script may end before the debugger
        number, seconds = signals.pop(0)
        patience = now + seconds
        for pid in started:
            processes.signal_one(pid, number)


METHODS = {
    "pipe": _dump_by_pipe,
    "server": _dump_by_server,
    "remote_exec": _remote_exec,
    "ptrace": _dump_by_ptrace,
    "gdb": _dump_by_gdb,
}
"""Method → its function, the mildest first."""
