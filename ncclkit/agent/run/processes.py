"""Processes of a run.

It tells who descends from whom, in which state, and how to end them all.
"""

import ctypes
import os
import re
import signal
import time

from ..digits import is_whole

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000


def call(name, *words):
    """Call a function of the C library; raises OSError with its name where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))


def _prctl(option, value):
    call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


def enter_network(pid):
    """Move this thread to the network namespace of a process.

    A process without one of its own needs no move.  Returns why not, "" on success.  It takes root.
    """
    try:
        network = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY)
        try:
            if os.fstat(network).st_ino != os.stat("/proc/thread-self/ns/net").st_ino:
                call("setns", network, CLONE_NEWNET)
        finally:
            os.close(network)
    except OSError as error:
        return "the network of process %d cannot be entered (%s)" % (pid, error.strerror or error)
    return ""


def die_with_parent(parent=None):
    """Have the kernel kill this process with SIGKILL as soon as its parent thread ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(137)  # the parent went away before the request was in force


def adopt_orphans():
    """Make this process the new parent of every descendant that loses its own.

    A descendant may lose it by setsid or a double fork.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def parents():
    """{pid: parent pid} of every process that can be seen."""
    table = {}
    for name in os.listdir("/proc"):
        if is_whole(name):
            # the name of a program may hold blanks and brackets, so fields count from the last one
            stat = read_text("/proc/%s/stat" % name)
            if stat:
                table[int(name)] = int(stat.rsplit(")", 1)[1].split()[1])
    return table


def descendants(root):
    """Living descendants of `root`, zombies left out."""
    table = parents()
    found = []
    wave = [root]
    while wave:
        wave = [pid for pid, parent in table.items() if parent in wave]
        found += wave
    return [pid for pid in found if is_alive(pid)]


def group(leader):
    """Living processes of the process group with this number, zombies left out."""
    found = []
    for pid in parents():
        words = read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
        if len(words) > 2 and words[2] == str(leader) and words[0] not in ("Z", "X"):
            found.append(pid)
    return found


def families(heads):
    """{rank: [its process, then every descendant of that]}.

    `heads` is {rank: pid}.  It looks at the table of processes once.
    """
    children = {}  # type: dict[int, list[int]]
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = {rank: [pid] for rank, pid in heads.items()}
    for pids in found.values():
        # the list grows while it is walked, so that each descendant is met
        for pid in pids:
            pids += children.get(pid, [])
    return found


def process_state(pid):
    """The state of a process in one letter as in ps.

    The letter is R, S, D, T, Z …, or empty when the process is gone.
    """
    stat = read_text("/proc/%d/stat" % pid)
    if stat:
        return stat.rsplit(")", 1)[1].split()[0]
    return ""


def is_alive(pid):
    """False of a process that is gone, or waits to be collected."""
    return process_state(pid) not in ("Z", "X", "")


def read_text(path, limit=1 << 20):
    """Text of a small file, or "" when it cannot be read.

    It may be the file of a process that has just ended.
    """
    try:
        with open(path, "rb") as source:
            return source.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def write_whole(path, data):
    """Write text or bytes as one whole.

    Who reads the file meanwhile sees all of them or what was there before.
    """
    with open(path + ".part", "wb") as out:
        out.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
    os.replace(path + ".part", path)


def owner(pid):
    """The number of the user that a process runs as; -1 where it has ended.

    ``/proc/<pid>`` itself belongs to root where a process may not be read.
    """
    line = re.search(r"^Uid:\s+\d+\s+(\d+)", read_text("/proc/%d/status" % pid), re.MULTILINE)
    if line:
        return int(line[1])
    return -1


def may_read(pid):
    """False where the system forbids us to look into a process.

    It is True also of a process that has ended.
    """
    try:
        os.readlink("/proc/%d/exe" % pid)
    except PermissionError:
        return False
    except OSError:
        return True  # it has ended, or is a thread of the kernel
    return True


def is_contained(pid):
    """Whether a process is in another namespace of processes than we.

    Seen from the host, that is one of a container.
    """
    inside = _target("/proc/%d/ns/pid" % pid)
    ours = _target("/proc/self/ns/pid")
    return bool(inside and ours) and inside != ours


CAP_SYS_PTRACE = 19


def has_capability(number):
    """Whether this process has a capability of Linux."""
    line = re.search(r"^CapEff:\s+([0-9a-f]+)", read_text("/proc/self/status"), re.MULTILINE)
    return bool(line and int(line[1], 16) >> number & 1)


def targets_of_descriptors(pid):
    """The targets of a process's file descriptors.

    It is None where the process has ended, or belongs to another user.
    """
    folder = "/proc/%d/fd" % pid
    try:
        return [_target(os.path.join(folder, name)) for name in os.listdir(folder)]
    except OSError:
        return []


def _target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed just now, or of another user


def environ(pid):
    """The environment a process was started with, as a dict."""
    pairs = (item.partition("=") for item in read_text("/proc/%d/environ" % pid).split("\0"))
    return {name: value for name, _, value in pairs if name}


LARGEST_NUMBER = 1 << 30


def number_of(variables, name):
    """A whole number in an environment, which anybody may have written.

    It is None where there is no such number.
    """
    text = variables.get(name, "")
    if re.fullmatch("[0-9]{1,10}", text) and int(text) < LARGEST_NUMBER:
        return int(text)
    return None


JOB = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
)
"""Variables that all ranks of a job have alike, and two jobs on one host have not."""
NUMBERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID")
"""Variables in which launchers tell a process its rank; the others count where no process of the
job has a RANK."""


def jobs_of_processes(pids):
    """One {rank: pid} for each job that these processes belong to.

    See `ranks_of_processes`.
    """
    groups = {}  # type: dict[tuple[str, ...], list[int]]
    for pid in pids:
        key = _job(pid)
        if key:
            groups.setdefault(key, []).append(pid)
    found = [ranks_of_processes(members) or _tasks(members) for members in groups.values()]
    return [job for job in found if job]


def of_job(pid):
    """All processes on this host of the job of this one.

    `pid` is a rank or a launcher.  Processes of one job are equal in the variables of a job.
    """
    wanted = {_job(one) for one in [pid, *descendants(pid)]} - {None}
    return [one for one in parents() if _job(one) in wanted]


def of_slurm(job, step="", node=""):
    """All processes on this host of a Slurm job, by its number.

    Those of `step` are left out, as it is our own.  With `node` they are of this node alone, where
    several are one host.
    """
    found = []
    for pid in parents():
        variables = environ(pid)
        ours = step and variables.get("SLURM_STEP_ID") == step
        elsewhere = node and variables.get("SLURMD_NODENAME", node) != node
        if variables.get("SLURM_JOB_ID") == job and not ours and not elsewhere:
            found.append(pid)
    return found


def _job(pid):
    """What tells the job of a process from others; None where it has no number in one."""
    variables = environ(pid)
    numbered = any(number_of(variables, name) is not None for name in NUMBERS)
    if numbered:
        return tuple(variables.get(name, "") for name in JOB)
    return None


def _tasks(pids):
    """Ranks that a scheduler started without a launcher of torch's.

    Of what it started, they are the Python programs.
    """
    programs = [pid for pid in pids if runs_python(pid)]
    return next(
        (found for name in NUMBERS[1:] if (found := ranks_of_processes(programs, name))), {}
    )


def ranks_of_processes(pids, number="RANK"):
    """{rank: pid} for the processes that a launcher gave a RANK.

    Of a rank's family it is the Python program that started first, as a shell or a container may be
    around it; without one it is the process that started first.
    """
    table = {}  # type: dict[int, tuple[bool, int, int]]
    for pid in pids:
        rank = number_of(environ(pid), number)
        stat = read_text("/proc/%d/stat" % pid)
        if rank is not None and stat:
            # field 22 of the file: when the process was started
            one = (not runs_python(pid), int(stat.rsplit(")", 1)[1].split()[19]), pid)
            table[rank] = min(one, table.get(rank, one))
    return {rank: pid for rank, (_, _, pid) in sorted(table.items())}


def program_of(pid):
    """The file name of the program of a process; "" where it may not be seen."""
    return os.path.basename(_target("/proc/%d/exe" % pid))


def runs_python(pid):
    """Whether the program of a process is a Python."""
    return "python" in program_of(pid)


def catches(pid, number):
    """True when the process has a handler for this signal.

    Then sending the signal does not kill the process.
    """
    for line in read_text("/proc/%d/status" % pid).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def end(root, grace=2.0, deadline=10.0):
    """Terminate, then kill every descendant of `root`.

    Returns the pids still alive at the deadline (normally none).
    """
    start = time.monotonic()
    sign = signal.SIGTERM
    # again and again, as what is ended may start something else meanwhile
    while time.monotonic() - start < deadline:
        _reap()
        left = descendants(root)
        if not left:
            return []
        if time.monotonic() - start > grace:
            sign = signal.SIGKILL
        for pid in left:
            signal_one(pid, sign)
        time.sleep(0.05)
    return descendants(root)


def is_pending(pid, number):
    """Whether a signal was sent to a process that has not taken it yet."""
    status = read_text("/proc/%d/status" % pid)
    waiting = re.findall(r"^S(?:ig|hd)Pnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in waiting)


def signal_one(pid, number):
    """Send a signal; False when the process is gone or not ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap():
    """Collect the exit status of adopted orphans, so that no zombie is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


FOLDER = "/dev/shm"


def shm_files():
    """Names of the files in /dev/shm."""
    try:
        return set(os.listdir(FOLDER))
    except OSError:
        return set()


def mapped_or_open(pids):
    """Names of the files in /dev/shm that these processes have mapped or open."""
    found = set()  # type: set[str]
    for pid in pids:
        mapped = (
            line.rpartition(" ")[2]
            for line in read_text("/proc/%d/maps" % pid, 64 << 20).splitlines()
        )
        for path in [*mapped, *targets_of_descriptors(pid)]:
            folder, name = os.path.split(path)
            if folder == FOLDER:
                found.add(name)
    return found


def remove_shm_files(left):
    """Remove these files from /dev/shm, less those that a living process holds.

    Returns the names that are gone.
    """
    gone = []
    left = left & shm_files()
    for name in sorted(left - mapped_or_open(parents()) if left else ()):
        try:
            os.unlink(os.path.join(FOLDER, name))
            gone.append(name)
        except OSError:
            continue  # somebody else has removed it, or it is not ours
    return gone
