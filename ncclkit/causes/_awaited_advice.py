"""What to do first about a rank that waits for something outside of the job's calls.

It is told by what the rank waits for: who holds the lock, which terminal asks, which server is
silent.  Each advice begins with what ends this wait, and its command shows more of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from ncclkit.analysis import wait_kinds as kinds
from ncclkit.analysis.awaited import FEEDER
from ncclkit.analysis.waits import RankPosition
from ncclkit.core.kinds import AttachRank
from ncclkit.core.live_waits import NamedProcess, WaitEnd
from ncclkit.core.model import Advice

FORKED = "since it was forked"
"""How `awaited` says that a process was made while a lock was held."""
READS_ONLY = "None: it only reads."


def advice_on_wait(stand: RankPosition) -> tuple[Advice, ...]:
    """What ends the wait of this rank; nothing where its kind of wait tells no step."""
    make = _BY_KIND.get(stand.waits_for)
    if make is None:
        return ()
    return (make(stand, _seen_of(stand)),)


def _seen_of(stand: RankPosition) -> AttachRank:
    data: AttachRank = stand.lines[0].data
    return data


def _awaited_end(about: AttachRank) -> WaitEnd:
    """The one descriptor of its wait; empty where there is none, or are several."""
    ends = about.wait.get("ends", [])
    if len(ends) == 1:
        return ends[0]
    return {}


def _other_process(about: AttachRank) -> NamedProcess:
    """Who holds the other end of its pipe or socket, or its lock; empty where that is not known."""
    end = _awaited_end(about)
    others = list(end.get("others", []))
    for lock in about.wait.get("locks", []):
        holder = lock.get("holder", {})
        others.append(holder)
    if others:
        return others[0]
    return {}


def _at(stand: RankPosition) -> str:
    """`` at train.py:33``."""
    if stand.place:
        return f" at {stand.place}"
    return ""


def _look_at(pid: int | None, name: str = "python", variables: bool = False) -> str:
    """The command that shows what a process does; `name` is its command."""
    if not pid:
        return ""
    shown = f"ps -o pid,ppid,stat,wchan:20,etime,args -p {pid}"
    if variables:
        return f"{shown}; py-spy dump --locals --pid {pid}"
    if "python" in name:
        return f"{shown}; py-spy dump --pid {pid}"
    return shown


def _holders_of(path: str) -> str:
    """The command that shows who has a file open."""
    if not path.startswith("/"):
        return ""
    return f"ls -l -- {shlex.quote(path)}; fuser -v {shlex.quote(path)}"


# ---------------------------------------------------------------- stopped, and debuggers


def _step_of_stopped(stand: RankPosition, about: AttachRank) -> Advice:
    tracer = about.wait.get("tracer", {}).get("pid")
    if tracer:
        return Advice(
            f"Let process {tracer} go on or detach (`continue` or `detach` in gdb), or end it: it"
            f" traces rank {stand.rank}.",
            command=f"ps -o pid,ppid,user,tty,stat,etime,args -p {tracer}",
            why="A debugger that has stopped a process is the only one who may let it go on.",
            check="The state of the rank (`ps -o stat= -p PID`) is t no more, and the job goes on.",
            risk="A debugger that is killed lets go of the process as it ends.",
        )
    return _continue_advice(about.pid)


def _continue_advice(pid: int | None) -> Advice:
    order = ""
    number = ""
    if pid:
        order = f"ps -o pid,ppid,pgid,user,tty,stat,lstart,args -p {pid}"
        number = f" {pid}"
    return Advice(
        f"Let the stopped rank go on with `kill -CONT{number}`, unless somebody stopped it on"
        " purpose: ask for `scontrol suspend`, Ctrl-Z in its terminal, a script with `kill -STOP`,"
        " a snapshot (CRIU, `docker pause`).",
        command=order,
        why=(
            "The kernel keeps no sender of a signal: only an audit log (`ausearch -sc kill`), or"
            " who has a shell on this host, can tell it."
        ),
        check="Its state (`ps -o stat=`) is T no more, and the step counter moves.",
        risk=(
            "The other ranks go on at once. Where the time limit of a collective has passed, the"
            " job dies of it, as it would have anyhow."
        ),
    )


def _step_of_debugger(stand: RankPosition, about: AttachRank) -> Advice:
    terminal = _awaited_end(about).get("name", "")
    where = ""
    if terminal.startswith("/dev/"):
        where = f", which reads from {terminal}"
    return Advice(
        f"Take the breakpoint{_at(stand)} out of the program, or run it with PYTHONBREAKPOINT=0;"
        f" now, type `c` in the debugger{where}.",
        env={"PYTHONBREAKPOINT": "0"},
        why="breakpoint() and pdb wait for a person, while the other ranks wait for this one.",
        check="The next run passes that line.",
        risk="None.",
    )


def _debug_client(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        f"Attach the debugger that rank {stand.rank} waits for{_at(stand)}, or take"
        " debugpy.wait_for_client() out of the program.",
        command=_ports_of(about.pid),
        why="It waits for a person to connect, however long that takes.",
        check="The next run passes that line.",
        risk="None.",
    )


def _ports_of(pid: int | None) -> str:
    if not pid:
        return "ss -ltnp"
    return f"ss -ltnp | grep pid={pid},"


def _step_of_terminal(stand: RankPosition, about: AttachRank) -> Advice:
    name = _awaited_end(about).get("name") or "the terminal"
    return Advice(
        f"Answer the question at {name}, and let the next run ask none: start it with `< /dev/null`"
        f" and take the input{_at(stand)} out of the program.",
        why="A job has nobody who types, and the other ranks wait for the answer.",
        check="The next run passes that line.",
        risk="With </dev/null an input() raises EOFError, which names its line.",
    )


def _step_of_screen(stand: RankPosition, about: AttachRank) -> Advice:
    name = _awaited_end(about).get("name") or "the terminal"
    return Advice(
        f"Press Ctrl-Q at {name}, which takes no output (Ctrl-S, or a selection in its window), and"
        " let the next run print to a file.",
        why="A terminal that is held stops whoever prints to it.",
        check="The output goes on.",
        risk="None.",
    )


# ---------------------------------------------------------------- locks


def _step_of_lock(stand: RankPosition, about: AttachRank) -> Advice:
    locks = about.wait.get("locks", [])
    if locks:
        return _lock_of_file(locks[0].get("path", ""), stand, about)
    path = stand.detail.partition(",")[0]
    if path.startswith("/"):
        return _left_lock(path)
    if "lock file" in stand.detail:
        return _left_lock()
    if about.wait.get("futex") == "shared":
        return _shared_lock(stand, about)
    return _thread_lock(stand, about)


def _lock_of_file(path: str, stand: RankPosition, about: AttachRank) -> Advice:
    pid = _other_process(about).get("pid")
    what = path or "that file"
    do = f"See what process {pid} does, which holds the lock of {what}: the wait ends with it."
    if pid == about.pid:
        do = (
            f"Let the rank take the lock of {what} once: it holds it already, by another"
            " descriptor of the same file."
        )
    elif ", held by rank " in stand.detail:
        holder = "rank " + stand.detail.rpartition(", held by rank ")[2]
        do = (
            f"Let {holder} give up the lock of {what} before its next collective: rank"
            f" {stand.rank} needs the lock to come there."
        )
    return Advice(
        do,
        command=_look_at(pid),
        why="Only the holder's end, or its unlock, gives the lock to the next one.",
        check="The rank passes that line as soon as the holder has given it up.",
        risk="A holder that is killed leaves what it wrote half done.",
    )


def _left_lock(path: str = "") -> Advice:
    return Advice(
        f"See who made the lock file{' ' * bool(path)}{path}; where that process is gone, remove"
        " the file.",
        command=_holders_of(path),
        why=(
            "A lock that is a file, not a lock of the kernel, stays when its owner is killed, and"
            " nobody checks whether the owner lives."
        ),
        check="The rank passes that line within its next look at the file.",
        risk="Where the owner still works, two write the same thing: look for it first.",
    )


def _shared_lock(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        "See whether this rank takes the lock of multiprocessing twice (the lines of its program"
        f" that take it before{_at(stand)}). If it does not, a child that was killed or ended with"
        " os._exit() inside of `with` has it: nothing gives it back but a new start, and that child"
        " is to be mended.",
        command=_look_at(about.pid),
        why="A semaphore that processes share does not know its holder and outlives it.",
        check="With `with lock:` around whole work in each child, and no killed child, it passes.",
        risk="None: this only reads; a semaphore that is left can be freed by a new start alone.",
    )


def _thread_lock(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        f"See who took the lock before{_at(stand)}: by the stacks of all threads of the process,"
        " and by the lines that take it. A thread that takes one twice needs threading.RLock; use"
        " `with`, which gives it back after an error, too.",
        command=_look_at(about.pid),
        why="A lock of threading does not know its holder; only the process's own threads can"
        " give it back.",
        check="The rank passes that line.",
        risk=READS_ONLY,
    )


# ---------------------------------------------------------------- threads, queues, results


def _step_of_thread(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        f"See what the other thread waits for that rank {stand.rank} joins{_at(stand)}, and give"
        " what it waits for, or the join, a timeout.",
        command=_look_at(about.pid),
        why="A join lasts as long as the thread, and the other ranks wait meanwhile.",
        check="The thread ends, and the rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_ended(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        "Tell the thread to end when the program does, or start it with daemon=True; and let this"
        " rank take part in the last calls of the others before it ends.",
        command=_look_at(about.pid),
        why="Python waits at its end for each thread that is no daemon.",
        check="The process ends with its program.",
        risk="A daemon thread is cut off in the middle of its work.",
    )


def _step_of_queue(stand: RankPosition, about: AttachRank) -> Advice:
    do = f"Let an error of whoever fills the queue reach the main thread, which waits{_at(stand)}."
    if about.died:
        dead = about.died[-1]
        do = (
            f"Fix the error of thread {dead['name']} ({dead.get('error') or 'in its traceback'}),"
            " and let it reach the main thread: put it into the queue, or give get() a timeout."
        )
    return Advice(
        do,
        command=_look_at(about.pid),
        why="A thread that dies prints its traceback, and nobody who waits for it is told.",
        check="The next run ends with the producer's error, or goes on.",
        risk=READS_ONLY,
    )


def _step_of_room(stand: RankPosition, about: AttachRank) -> Advice:
    do = f"See what the thread waits for that should empty the queue, which is full{_at(stand)}."
    if " in `" in stand.detail:
        do = (
            f"End the wait of {stand.detail}, which should empty the queue that is full"
            f"{_at(stand)}: see whether its other side lives, and give that call a timeout."
        )
    return Advice(
        do,
        command=_look_at(about.pid, variables=True),
        why="put() into a full queue waits until another thread takes something out.",
        check="The thread takes the next item, and the rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_result(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        f"Find who should set the future that is awaited{_at(stand)}: nothing in this process can."
        " Await it with asyncio.wait_for and a timeout.",
        command=_look_at(about.pid),
        why="An event loop without a connection, a timer or a thread wakes for nothing.",
        check="The next run raises TimeoutError at that line, or goes on.",
        risk=READS_ONLY,
    )


def _step_of_pool(stand: RankPosition, about: AttachRank) -> Advice:
    if "idle" in stand.detail:
        return Advice(
            "See whether a worker of the pool was killed: those that were seen wait for tasks, and"
            f" a result is awaited{_at(stand)}. Use concurrent.futures.ProcessPoolExecutor, which"
            " raises BrokenProcessPool.",
            command="dmesg -T | grep -iE 'oom|killed process' | tail; coredumpctl list --no-pager",
            why="multiprocessing.Pool starts a new worker for a dead one, without its task.",
            check="The next run raises at that line, or goes on.",
            risk="None.",
        )
    return Advice(
        f"See what the workers of the pool do that rank {stand.rank} waits for{_at(stand)}, and"
        " give get() a timeout.",
        command=_look_at(about.pid),
        why="A result of a pool is awaited for ever.",
        check="The rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_store(stand: RankPosition, about: AttachRank) -> Advice:
    pid = about.pid or 1
    return Advice(
        f"Compare the MASTER_ADDR and MASTER_PORT that rank {stand.rank} uses{_at(stand)} with"
        " those of the others, and look whether rank 0 listens there.",
        command=f"tr '\\0' '\\n' < /proc/{pid}/environ | grep MASTER_; ss -ltnp",
        why="A rank without a connection to the store repeats it until its timeout.",
        check="The rank joins, and init_process_group returns on all ranks.",
        risk="None: these only read; what the program changed since its start they do not show.",
    )


def _step_of_signal(stand: RankPosition, about: AttachRank) -> Advice:
    return Advice(
        f"Find who should send the signal that the program waits for{_at(stand)}.",
        command=_look_at(about.pid),
        why="pause() and sigwait() end with a signal alone.",
        check="The rank passes that line.",
        risk=READS_ONLY,
    )


# ---------------------------------------------------------------- pipes, sockets, children


def _step_of_pipe(stand: RankPosition, about: AttachRank) -> Advice:
    other = _other_process(about)
    order = _look_at(other.get("pid"), other.get("name", "")) or _look_at(about.pid)
    if _awaited_end(about).get("does") == "write":
        return Advice(
            "Let the reader of the pipe read: the rank writes into it until it is full"
            f"{_at(stand)}. Use communicate(), or a file, where nobody reads meanwhile.",
            command=order,
            why="A pipe holds 64 KiB; after that whoever writes waits for its reader.",
            check="The rank passes that line.",
            risk=READS_ONLY,
        )
    return Advice(
        f"See why nothing is written to the pipe that the rank reads{_at(stand)}.",
        command=order,
        why="A read of a pipe waits until something is written or all its writers are gone.",
        check="The rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_fifo(stand: RankPosition, about: AttachRank) -> Advice:
    path = _awaited_end(about).get("name", "")
    what = path or "the FIFO"
    return Advice(
        f"Start the program at the other end of {what}, or open it with os.O_NONBLOCK{_at(stand)}.",
        command=_holders_of(path),
        why="Opening a FIFO waits until somebody opens its other end.",
        check="The rank passes that line as soon as the other end is open.",
        risk="None.",
    )


def _step_of_socket(stand: RankPosition, about: AttachRank) -> Advice:
    end = _awaited_end(about)
    remote = end.get("remote") or "the server"
    pid = _other_process(about).get("pid")
    if end.get("listens") is False:
        return Advice(
            f"Start the service at {remote}, or correct the address that is used{_at(stand)}.",
            command="ss -ltn",
            why="Nobody listens at this address of this host.",
            check="The service listens, and the rank passes that line.",
            risk="None.",
        )
    return Advice(
        f"See why {remote} does not answer, and give the call{_at(stand)} a timeout.",
        command=_look_at(pid) or "ss -tnpo",
        why="A connection without a timeout waits for its peer for ever.",
        check="The call returns or raises, and the job goes on.",
        risk=READS_ONLY,
    )


def _step_of_file(stand: RankPosition, about: AttachRank) -> Advice:
    path = stand.detail
    order = _look_at(about.pid)
    if path.startswith("/"):
        name = shlex.quote(path)
        order = f"findmnt -T {name}; timeout 10 stat -- {name}; fuser -v {name}"
    return Advice(
        f"See whether the file system answers that holds {path or 'the file'}: the call"
        f"{_at(stand)} waits in the kernel for it. Where it answers at once, another process keeps"
        " the file (a lease, a mandatory lock): fuser names who has it open.",
        command=order,
        why="A file server that is away or full of work holds whoever opens, reads or writes.",
        check="stat answers at once, and the rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_process(stand: RankPosition, about: AttachRank) -> Advice:
    pid = about.pid
    name = about.command
    if len(about.children) == 1:
        child = about.children[0]
        pid = child.get("pid")
        name = child.get("name", "")
    if FORKED in stand.detail:
        return _step_of_forked("child", pid)
    if FEEDER in stand.detail:
        return Advice(
            f"Take everything out of the queue before the join{_at(stand)}: a child that has put"
            " something into a queue of multiprocessing ends when that has been read.",
            command=_look_at(pid),
            why="The child's feeder thread waits until the pipe takes the rest.",
            check="get() before join(), and the rank passes that line.",
            risk="None.",
        )
    if "its output is not read" in stand.detail:
        return Advice(
            f"Read what the child prints while it runs: communicate() in the place of wait()"
            f"{_at(stand)}, or stdout= a file.",
            command=_look_at(pid),
            why="A pipe holds 64 KiB; then the child waits for its reader, which waits for it.",
            check="The child ends, and the rank passes that line.",
            risk="None.",
        )
    return Advice(
        f"See what the child process does that rank {stand.rank} waits for{_at(stand)}, and give"
        " the wait a timeout (subprocess.run(…, timeout=60)).",
        command=_look_at(pid, name),
        why="The rank goes on when its child ends.",
        check="The child ends, and the rank passes that line.",
        risk=READS_ONLY,
    )


def _step_of_forked(what: str, pid: int | None) -> Advice:
    """What to do about a process that was forked while a lock was held."""
    return Advice(
        f"Start the {what} by multiprocessing's spawn, not by fork (for a loader"
        " DataLoader(multiprocessing_context='spawn')), or fork it while nobody holds that lock:"
        " its copy of the lock was held when it was made.",
        command=_look_at(pid),
        why="A fork copies a held lock, but not the thread that would give it back.",
        check="The process passes that line.",
        risk="With spawn what it is given is pickled once for each process.",
    )


def _step_of_worker(stand: RankPosition, about: AttachRank) -> Advice:
    pid = about.pid
    for child in about.children:
        if f"process {child.get('pid')} " in f"{stand.detail} ":
            pid = child.get("pid")
    if FORKED in stand.detail:
        return _step_of_forked("worker", pid)
    return Advice(
        f"See what the data-loader worker does that rank {stand.rank} waits for, and give the"
        " loader a timeout, DataLoader(timeout=60), which names the worker.",
        command=_look_at(pid),
        why="The rank has no batch until its worker has made it.",
        check="The worker hands on its batches.",
        risk=READS_ONLY,
    )


def _step_of_timer(stand: RankPosition, about: AttachRank) -> Advice:
    retried = _retried_by_loop(about)
    if retried:
        return _end_of_loop(retried, stand, about)
    return Advice(
        f"Take the sleep{_at(stand)} out of what the others wait for, or let all ranks make it.",
        command=_look_at(about.pid),
        why="The other ranks wait as long as this one sleeps.",
        check="The ranks reach the collective together.",
        risk="None.",
    )


def _retried_by_loop(about: AttachRank) -> str:
    """The text of what a loop without a pause or with one tries again and again."""
    if about.program:
        return (about.program[0].get("retries") or "").removeprefix("return ")
    return ""


def _end_of_loop(retried: str, stand: RankPosition, about: AttachRank) -> Advice:
    """Who can end a loop that tries something, which is rarely the rank itself."""
    if retried.startswith("while not "):
        condition = retried.removeprefix("while not ")
        who = f"who should make `{condition}` true"
        if ".exists(" in condition or ".is_file(" in condition:
            who = f"who should create the file of `{condition}`, and whether it is the same path"
        do = f"Find {who}: the loop{_at(stand)} ends by that alone. Let it give up after some time."
    elif retried.startswith("while "):
        do = (
            f"Find what should end the loop{_at(stand)}, `{retried}`, and let it give up after some"
            " time."
        )
    else:
        do = (
            f"Find why `{retried}`{_at(stand)} fails each time, and start or correct what it"
            " calls: its variables tell which (a port, a path). Print its error, and let the loop"
            " give up after some time."
        )
    return Advice(
        do,
        command=_look_at(about.pid, variables=True),
        why="A loop without a limit tries for ever, while the other ranks wait.",
        check="The loop ends, or raises with the name of what is missing.",
        risk=READS_ONLY,
    )


def _step_of_busy(stand: RankPosition, about: AttachRank) -> Advice:
    retried = _retried_by_loop(about)
    if retried:
        return _end_of_loop(retried, stand, about)
    return Advice(
        f"See whether the work{_at(stand)} ends: look at it twice. Let all ranks make it, make it"
        " before the job, or give the loop a limit.",
        command=_look_at(about.pid),
        why="This rank works, and the others wait until it comes.",
        check="Two stacks a minute apart show other values of the loop, or the same.",
        risk=READS_ONLY,
    )


_BY_KIND: dict[str, Callable[[RankPosition, AttachRank], Advice]] = {
    kinds.STOPPED: _step_of_stopped,
    kinds.DEBUGGER: _step_of_debugger,
    kinds.DEBUG_CLIENT: _debug_client,
    kinds.TERMINAL: _step_of_terminal,
    kinds.SCREEN: _step_of_screen,
    kinds.LOCK: _step_of_lock,
    kinds.THREAD: _step_of_thread,
    kinds.ENDED: _step_of_ended,
    kinds.QUEUE: _step_of_queue,
    kinds.ROOM: _step_of_room,
    kinds.RESULT: _step_of_result,
    kinds.POOL: _step_of_pool,
    kinds.STORE: _step_of_store,
    kinds.SIGNAL: _step_of_signal,
    kinds.PIPE: _step_of_pipe,
    kinds.FIFO: _step_of_fifo,
    kinds.SOCKET: _step_of_socket,
    kinds.FILE: _step_of_file,
    kinds.PROCESS: _step_of_process,
    kinds.WORKER: _step_of_worker,
    kinds.TIMER: _step_of_timer,
    kinds.PYTHON: _step_of_busy,
    kinds.NATIVE: _step_of_busy,
}
_UNKNOWN = RankPosition(0, "", "", "", False, ())
REMEDIES_OF_WAITS = (
    _continue_advice(None),
    _left_lock(),
    _step_of_debugger(_UNKNOWN, AttachRank()),
)
"""Those of general use, for the page of the cause."""
