"""The crash handler of a rank: armed first, read after the crash.

It moves the rank's output to ``rank<N>.log`` (wire records keep the original standard output),
makes the rank die with its launcher, and answers SIGUSR1 and SIGTERM with its stacks and its Flight
Recorder, even while the main thread is stuck inside a C++ wait: the signal number arrives through
`set_wakeup_fd`, and a thread that holds nothing does the writing.
"""

import atexit
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading

from .. import wire
from . import processes

COLLECT_EVERY = 50_000
"""Objects between two garbage collections: with Python's own 700 a rank spends 0.7 s of its start
on them."""


def run_rank(folder, work):
    """Run `work(rank)` under the crash handler, and end this process.

    Start and end are reported as records.  After an error the Flight Recorder is kept before the
    error goes on.
    """
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt:
        _set_aside(folder, rank, ".attempt%d-" % (attempt - 1))
    arm(folder, rank)
    gc.set_threshold(COLLECT_EVERY)
    where = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "local_rank": int(os.environ["LOCAL_RANK"]),
    }
    if os.environ.get("SLURMD_NODENAME"):
        # hosts may share a name, as cloned machines and containers do
        where["node"] = os.environ["SLURMD_NODENAME"]
    wire.send(
        "phase", phase="hello", rank=rank, **where, **({"attempt": attempt} if attempt else {})
    )
    try:
        work(rank)
    except Exception as error:
        wire.send(
            "phase",
            phase="error",
            rank=rank,
            error="%s: %s" % (type(error).__name__, str(error)[:1500]),
        )
        write_flight(folder, rank)
        raise
    finally:
        # a dying interpreter must not be asked for its stacks
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    wire.send("phase", phase="done", rank=rank)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # the interpreter's own end may abort on torch's threads, after all has gone well (torch 2.13)
    os._exit(0)


def _set_aside(folder, rank, prefix):
    """Hide what this rank left before torchrun started it again.

    It is no evidence of what happens now.
    """
    for name in ("rank%d.log" % rank, "stacks_rank%d.txt" % rank, "fr_rank_%d" % rank):
        if os.path.exists(os.path.join(folder, name)):
            os.replace(os.path.join(folder, name), os.path.join(folder, prefix + name))


def arm(folder, rank):
    """Arm the crash handler of this process; call it before importing torch.

    `folder` is the run folder, `rank` the global rank.
    """
    processes.die_with_parent(os.getppid())
    # records keep the launcher's pipe; 1 and 2 become the log, so that C++ and child processes
    # write there, too
    wire.use(os.dup(1))
    _redirect_output(os.path.join(folder, "rank%d.log" % rank))
    faulthandler.enable(file=2)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # the handler itself does nothing: Python runs it between bytecodes of the main thread, which
    # may never come again,
    # but a signal that has one writes its number to the pipe at once
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(
        target=_answer_signals,
        args=(reader, folder, rank),
        daemon=True,
        name="ncclkit-crash-handler",
    ).start()
    os.register_at_fork(after_in_child=_disarm_child)


def restart_in_place():
    """Execute this rank's program again in the same process, with the current environment.

    Does not return.
    """
    os.dup2(wire.output(), 1)
    with open("/proc/self/cmdline", "rb") as file:
        os.execv(sys.executable, file.read().split(b"\0")[:-1])


def _disarm_child():
    """A forked child, such as a data loader's worker, is no rank.

    Signals to it must not reach its parent's handler.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _redirect_output(path):
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        sys.stderr.write(
            "ncclkit: cannot write %s (%s); this rank's output goes to launcher.log\n"
            % (path, error)
        )
        return
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")


def _answer_signals(reader, folder, rank):
    while True:
        number = os.read(reader, 1)[0]
        if number not in (signal.SIGUSR1, signal.SIGTERM):
            continue
        write_stacks(folder, rank)
        write_flight(folder, rank)
        if number == signal.SIGTERM:
            # SIG_DFL; Python's own call needs the main thread
            ctypes.CDLL(None).signal(signal.SIGTERM, None)
            os.kill(os.getpid(), signal.SIGTERM)


def write_stacks(folder, rank):
    """Write the stacks of all threads to ``stacks_rank<N>.txt``.

    A file that is there already is kept, as the first one counts.
    """
    path = os.path.join(folder, "stacks_rank%d.txt" % rank)
    if os.path.exists(path):
        return
    try:
        with open(path + ".part", "w") as out:
            out.write("Process %d: rank %d\n" % (os.getpid(), rank))
            out.flush()
            faulthandler.dump_traceback(file=out, all_threads=True)
        os.replace(path + ".part", path)
    except OSError as error:
        sys.stderr.write("ncclkit: cannot write %s: %s\n" % (path, error))


def write_flight(folder, rank):
    """Write this rank's Flight Recorder to ``fr_rank_<N>``.

    Where torch has already written it there, it stays.
    """
    path = os.path.join(folder, "fr_rank_%d" % rank)
    torch = sys.modules.get("torch")
    if os.path.exists(path) or torch is None:
        return
    try:
        dump = _dump_function(torch)
        if dump is None:
            return
        with open(path + ".part", "wb") as out:  # whoever looks meanwhile waits for what was begun
            out.write(dump())
        os.replace(path + ".part", path)
    except (OSError, RuntimeError) as error:
        sys.stderr.write("ncclkit: no Flight Recorder dump: %s\n" % error)


def _dump_function(torch):
    """torch's own dump function for the backend in use.

    It is None before the process group exists.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    names = (
        ("_dump_nccl_trace", "_dump_fr_trace")
        if distributed.get_backend() == "nccl"
        else ("_dump_fr_trace",)
    )
    return next(
        (
            getattr(torch._C._distributed_c10d, n)
            for n in names
            if hasattr(torch._C._distributed_c10d, n)
        ),
        None,
    )
