"""What ranks of a job that we did not start do.

It reads, at a few moments, Python stacks and counters, then native frames.  No process is stopped
for a snapshot as long as py-spy can read it so; one that changes its stack during each of three
readings is held for some milliseconds.  A rank that stands at one place in all snapshots is read
once more with its native frames, for which it is paused for some tenths of a second; there it loses
nothing.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from .. import redact
from ..commands import LARGEST, LATE, run_bounded
from ..native_files import NATIVE_FILE
from ..run import processes
from ..threads import side_by_side
from . import as_owner, family, utilization
from .crowding import crowding_here
from .ended import last_errors
from .engines import side_of
from .family import FRAME, Family, dead_threads
from .program import LIBRARY, own_files, sources, targets
from .waits_on import traced_by

WHOLE = "--full-filenames"
"""Option of ``py-spy dump`` that not every release knows."""
TOOLS = {"py-spy": "NCCLKIT_PY_SPY", "pystack": "NCCLKIT_PYSTACK"}
"""Tool → the variable that names it where the training interpreter has none: neither needs Python
to run in."""
SIDE_BY_SIDE = 4
"""Ranks that are read at one time at most."""
NATIVE = 10.0
"""Seconds that the native frames of one rank may take on a host with free cores; their symbols are
read from files of gigabytes."""
MAIN = re.compile(r'^Thread \S+ \([a-z+]+\)(?:: "MainThread")?\s*$')
FRAMEWORK = re.compile(r"/(?:site|dist)-packages/(?!torch/)")
"""Libraries that may have the loop over steps in the place of the user."""
STEP = re.compile(
    r"(?:(?:global|current|cur|train|training)_?)?(?:step|iteration|iter|itr|epoch|batch_?(?:idx|i"
    r"|id|num))"
    r"(?:_?(?:idx|index|i|id|num|no|number))?|it|[ni]_?iter|i_?batch"
)
"""Names of variables that count steps."""
STEPS = 4
"""Counters of a stack that are shown at most."""
PY_SPY = re.compile(r"Process |Python v|Thread |    \S.*\)$|\s*$")
"""Lines of what py-spy prints that are not about variables."""
NUMBER = re.compile(r" {12}(?P<name>[A-Za-z_]\w*): (?P<value>\d{1,12})")
POLLS_LOCK = re.compile(r"/filelock/|torch/utils/file_baton\.py")
"""In the stack of a rank that waits for a lock file."""
PATH_VARIABLE = re.compile(r' {12}(?P<name>[a-z_]{1,40}): "(?P<path>/[^"\\]{1,4000}(?<!\.\.\.))"')
LOCK_PATHS = (
    (re.compile(r"/filelock/_api\.py \w+$"), "lock_filename", ""),
    (re.compile(r"torch/utils/cpp_extension\.py _jit_compile$"), "build_directory", "/lock"),
)
"""Function of a library, its variable that tells the path of a lock file, and what follows it."""
LOCALS = 5.0
"""Seconds that the variables of one rank may take."""
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
WAKES = 2.5
"""Wakes a second above which a rank is not in one and the same wait for peers: it makes steps."""
SPINS = 0.3
"""Share of the time from which a main thread that waits does not sleep meanwhile."""
AWAITS_PEERS = re.compile(r"torch/(?:distributed/|autograd/graph)")
"""In the stack of a rank that sleeps until its peers have come; in other waits it may look now and
then."""
SHARED_QUEUE = "shm_broadcast.py:"
"""In the stack of a worker of vLLM that waits, or spins, for what its engine hands on."""
HOUSEKEEPING = ("pt_tcpstore", "pt_nccl", "NCCL")
"""How threads are named that keep a job together: their messages come in a hang, too."""
AT_ONE_MOMENT = 3
"""How often two counts are read again that a message between them has put apart."""
GLOO_WORKER = "pt_gloo_runloop"
"""The name of torch's threads that work on collectives over gloo, one after the other."""
STANDSTILL = 3
"""Snapshots after the first that have to show a rank at one place until it counts as one that
hangs."""
PATIENCE = 5.0
"""Seconds that one of them may take beyond the pause between them."""
STOPS = 0.5
"""Seconds in which a signal that a killed reader had sent arrives."""
GPU_FILE = re.compile(r"/dev/(?:nvidia\d|kfd$)")
VOLUNTARY = re.compile(r"\nvoluntary_ctxt_switches:\s*(\d+)")


class Snapshots:
    """The ranks at a few moments; `take` one at a time, then `finish`."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.rows = {rank: [] for rank in ranks}  # type: dict[int, list[dict[str, object]]]
        self.texts = {}  # type: dict[int, str]
        self.numbers: dict[int, list[list[tuple[dict[str, str], dict[str, int]]]]] = {
            rank: [] for rank in ranks
        }
        self.problems = {}  # type: dict[int, str]
        self.details = {}  # type: dict[int, dict[str, object]]
        self.threads = {}  # type: dict[int, str]
        self.halves = {}  # type: dict[int, bool]
        self._family = None  # type: Family | None

    def take(self, until):
        """Read the Python stack and the counters of each rank.

        Stops at moment `until` of `time.monotonic`.
        """
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for rank, (said, problem) in pool.map(
                lambda rank: (rank, self._one(rank, until)), self.ranks
            ):
                text, numbers = without_locals(said)
                self.numbers[rank].append(numbers)
                self.problems[rank] = problem
                if text:
                    self.texts[rank] = text
                    self.threads[rank] = text
                stack = "\n".join(main_thread(text))
                self.rows[rank].append({**counters(self.ranks[rank]), "stack": redact.text(stack)})

    def _one(self, rank, until):
        if not processes.is_alive(self.ranks[rank]):
            return "", "rank %d has ended" % rank
        return python_stack(rank, self.ranks[rank], until, numbers=True)

    def follow(self, seconds, tell=lambda say: None):
        """Return as soon as a rank has ended, or has stood still.

        It stood still if it was in one place for so long without once being switched to. `tell` is
        called with a sentence whenever other ranks stand still than before.
        """
        pause = seconds / STANDSTILL
        stood = dict.fromkeys(self.ranks, 0)
        told = []  # type: list[int]
        while max(stood.values()) < STANDSTILL:
            begun = time.monotonic()
            self.take(begun + pause + PATIENCE)
            if any(rows[-1]["state"] in ("", "Z", "X") for rows in self.rows.values()):
                return
            for rank, rows in self.rows.items():
                del rows[:-2]
                del self.numbers[rank][:-2]
                if _stood_still(rows):
                    stood[rank] += 1
                else:
                    stood[rank] = 0
            still = []
            for rank, times in stood.items():
                if times >= STANDSTILL - 1:
                    still.append(rank)
            if still != told:
                tell(self._change_words(told, still, pause))
                told = still
            time.sleep(max(0.0, pause - (time.monotonic() - begun)))

    def _change_words(self, before, now, pause):
        """One sentence on the ranks that stand still now, or do so no longer."""
        who = ", ".join(map(str, now or before))
        if not now:
            return "rank %s moves again" % who
        last = self.rows[now[0]][-1]
        stack = str(last["stack"])
        place = stack.partition("\n")[0]
        seconds = (STANDSTILL - 1) * pause
        return "rank %s stands still for %.0f s: %s" % (who, seconds, place.strip())

    def standing(self):
        """Ranks that every snapshot shows at one place.

        They are in a hang, or in a long step.
        """
        return [rank for rank, rows in self.rows.items() if self._stands(rank, rows)]

    def _stands(self, rank, rows):
        places = {str(row["stack"]) for row in rows}
        collectives = {row.get("gloo") for row in rows}
        if len(places) > 1 or "" in places or len(collectives) > 1 or self._counts(rank):
            return False
        return not (any(map(AWAITS_PEERS.search, places)) and was_woken(rows))

    def _counts(self, rank):
        """Whether a whole number in the stack of a rank changed, as the variable of a loop."""
        read = []
        for numbers in self.numbers[rank]:
            if numbers:
                read.append([values for _, values in numbers])
        return any(one != read[0] for one in read)

    def stationary(self):
        """Ranks that every snapshot shows at one place and that may be paused.

        There are none where most ranks make steps, as such a job is not paused: two snapshots may
        meet a healthy job in the same call of two steps.
        """
        places = {rank: {row["stack"] for row in rows} for rank, rows in self.rows.items()}
        steps = [
            rank
            for rank, rows in self.rows.items()
            if len(places[rank]) > 1 or wakeups_per_second(rows) > WAKES
        ]
        if 2 * len(steps) > len(places):
            return []
        return [rank for rank, seen in places.items() if len(seen) == 1 and "" not in seen]

    def finish(self, folder, until):
        """Write ``stacks_rank<N>.txt``, with native frames of ranks that did not move.

        Returns what is missing.
        """
        with ThreadPoolExecutor(min(SIDE_BY_SIDE, os.cpu_count() or 1)) as pool:
            for rank, (text, problem) in pool.map(
                lambda rank: (rank, self._native(rank, until)), self.stationary()
            ):
                self.texts[rank] = text or self.texts[rank]
                self.halves[rank] = not text
                self.problems[rank] = self.problems[rank] or problem
        for rank, text in self.texts.items():
            with open(os.path.join(folder, "stacks_rank%d.txt" % rank), "w") as out:
                out.write(redact.text(text))  # it begins with the command line
        return [problem for problem in self.problems.values() if problem]

    def _native(self, rank, until):
        points = FRAME.match(str(self.rows[rank][-1]["stack"]).partition("\n")[0])
        tracer = traced_by(self.ranks[rank])
        if tracer:
            return "", "rank %d has no native frames: process %d traces it" % (rank, tracer)
        left = min(NATIVE * crowding_here(), until - time.monotonic())
        if left <= 1.0:
            return "", "rank %d was not read with native frames: no time was left" % rank
        return native_stack(
            rank, self.ranks[rank], left, bool(points and points["func"] in POINT_TO_POINT)
        )

    def row(self, rank, until):
        """What is known of one rank, and why not more.

        It tells also its program and its output.  Nothing is asked after the moment `until`.
        """
        if rank in self.details:
            return self.details[rank], ""
        pid, last = self.ranks[rank], self.rows[rank][-1:]
        # fmt: skip
        frames = []
        for line in str(last[0]["stack"] if last else "").splitlines():
            for match in [FRAME.match(line)]:
                if match:
                    frames.append(match.groupdict())
        about = process_details(pid)
        known = {**about, "snapshots": self.rows[rank], "counted": self._counts(rank)}
        known.update(self._beside(rank, until))

        seconds = max(0.5, until - time.monotonic())

        def files(_):
            paths = own_files(chain(frames, *family.all_frames(known)))
            texts, printed, problem = as_owner.read_named_files(pid, paths, seconds)
            pairs = zip(self.rows[rank], self.numbers[rank])
            shots = [{**row, "steps": steps(texts, numbers)} for row, numbers in pairs]
            return {
                **sources(texts, frames),
                **family.with_programs(known, texts),
                "output": output_file(printed),
                "died": dead_threads(printed.get("text", "")),
                "errors": last_errors(printed.get("text", "")),
                "snapshots": shots,
            }, problem

        # they may be where no file server answers, which may be why it hangs
        found = side_by_side(files, [None], seconds, None)[0]
        if found is None:
            return (
                known,
                "the program and the output of rank %d were not read in time: a file server may be"
                " away" % rank,
            )
        said, problem = found
        row = {**known, **said}
        if problem:
            return row, "the program and the output of rank %d were not read: %s" % (rank, problem)
        self.details[rank] = row
        return row, ""

    def _polled_lock(self, rank, until):
        """The path of the lock file that a rank looks at again and again, by its variables."""
        program, _ = find_tool("py-spy")
        left = until - time.monotonic()
        if program is None or left < 1.0:
            return ""
        # said twice, texts are printed longer
        words = [program, "dump", "--nonblocking", "--locals", "--locals", WHOLE]
        said, _ = _run([*words, "--pid", str(self.ranks[rank])], min(left, LOCALS))
        return lock_polled(said)

    def _beside(self, rank, until):
        """What the kernel tells of the wait of a rank, and what its threads and children do."""
        pid = self.ranks[rank]
        if self._family is None:
            self._family = Family(self.ranks, lambda one, end: python_stack(rank, one, end)[0])
        relatives = self._family
        stack = ""
        if self.rows[rank]:
            stack = str(self.rows[rank][-1]["stack"])
        waits_alone = rank in self.standing() and not AWAITS_PEERS.search(stack)
        text = self.threads.get(rank, "")
        found = relatives.look_at(pid, text, waits_alone, until - 0.5)
        if waits_alone or SHARED_QUEUE in stack:
            found.update(relatives.engines_of(pid, until - 0.5))
        path = ""
        # its loop counts attempts, so it does not stand still
        if POLLS_LOCK.search(stack):
            path = self._polled_lock(rank, until - 0.5)
        if path:
            found["wait"]["lock_file"] = redact.text(path)
        found["half"] = self.halves.get(rank, False)
        found["on_gpu"] = _has_gpu(pid)
        return found


def lock_polled(said):
    """The path of the lock file in what py-spy prints with variables; "" where it is not whole."""
    function = ""
    for line in said.splitlines():
        frame = FRAME.match(line)
        if frame:
            name = frame["func"].rpartition(".")[2]
            function = "%s %s" % (frame["file"], name)
        variable = PATH_VARIABLE.fullmatch(line)
        if not variable:
            continue
        shown = variable["name"]
        path = variable["path"]
        for place, name, end in LOCK_PATHS:
            if shown == name and place.search(function):
                return path + end
    return ""


def _stood_still(rows):
    """Whether two snapshots show one place, without a switch to the main thread in between."""
    if len(rows) < 2:
        return False
    first, last = rows
    if not first["stack"] or first["stack"] != last["stack"]:
        return False
    return first["switches"] == last["switches"]


def _has_gpu(pid):
    """Whether a process has opened a GPU."""
    return any(map(GPU_FILE.match, processes.targets_of_descriptors(pid)))


def main_thread(text):
    """The lines of frames of the main thread in what py-spy prints, innermost first."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if MAIN.match(line)), len(lines))
    found = []
    for line in lines[begin + 1 :]:
        if not line.startswith("    "):
            break
        found.append(line)
    return found


def without_locals(said):
    """What py-spy prints less all variables, and whole numbers of the main thread.

    The numbers come as (frame, its whole numbers by name).
    """
    kept, frames, is_main = [], [], False  # type: ignore[var-annotated]
    for line in said.split("\n"):
        if PY_SPY.match(line):
            kept.append(line)
            frame = FRAME.match(line)
            if not frame:
                is_main = bool(MAIN.match(line))
            if frame and is_main:
                frames.append((frame.groupdict(), {}))
        elif is_main and frames and (number := NUMBER.fullmatch(line)):
            frames[-1][1][number["name"]] = int(number["value"])
    return "\n".join(kept), frames


def steps(texts, frames):
    """{name: number} of what counts steps in a stack.

    These are the variables of loops around its lines, and such as `STEP`.
    """
    found = {}  # type: dict[str, int]
    for frame, numbers in reversed(frames):
        own = not LIBRARY.search(frame["file"])
        names = []
        if own or FRAMEWORK.search(frame["file"]):
            names = [name for name in numbers if STEP.fullmatch(name)]
        names += targets(texts, frame["file"], int(frame["line"])) if own and numbers else []
        found.update({name: numbers[name] for name in names if name in numbers})
    return dict(list(found.items())[:STEPS])


def find_tool(name):
    """The path of a program beside the interpreter, or handed over, or on PATH.

    Where there is none it is None, with the places where it was looked for.
    """
    handed = os.environ.get(TOOLS[name], "")
    places = [
        os.path.join(os.path.dirname(sys.executable), name),
        handed if os.path.isabs(handed) else "",
    ]
    found = next(filter(None, map(shutil.which, [*filter(None, places), name])), None)
    return found, ", ".join(filter(None, places))


def python_stack(rank, pid, until, numbers=False):
    """(what py-spy prints, why there is nothing).

    Variables are printed where `numbers` are wanted and py-spy can.
    """
    program, places = find_tool("py-spy")
    if program is None:
        return "", "py-spy is neither at %s nor on PATH, so rank %d has no stack" % (places, rank)
    problem = ""
    # a rank that runs Python changes its stack while it is read: look again, and at last hold it
    # for some milliseconds;
    # whole file names, as shortened ones do not tell a library from the user's own code
    first = ["--nonblocking", *["--locals"] * numbers, WHOLE]
    for how in (first, ["--nonblocking", WHOLE], ["--nonblocking", WHOLE], [WHOLE], []):
        said, problem = _run([program, "dump", *how, "--pid", str(pid)], until - time.monotonic())
        if said or problem.startswith("took"):
            break
    return said, "py-spy on rank %d: %s" % (rank, problem) if problem else ""


def native_stack(rank, pid, seconds, peers=False):
    """(all threads with native frames, why there are none).

    They come from pystack or else from py-spy.  `peers`: also tell whom a send or a receive is for,
    by the arguments of torch's functions; no other value is kept.
    """
    # its threads have other numbers here, and a reader might pause a stranger
    if processes.is_contained(pid):
        return (
            "",
            "rank %d was read without native frames, as it is in a container: repeat it inside"
            % rank,
        )
    until = time.monotonic() + seconds
    failed = ""
    program, _ = find_tool("pystack")
    if program is not None:
        said, problem = _run(
            [program, "remote", "--native-all", *["--locals"] * peers, str(pid)], seconds
        )
        if said:
            return "\n".join(_short(said)), ""
        failed = "pystack on rank %d: %s" % (rank, problem)
    # pystack fails on a process now and then, and as its owner it may not be found
    program, _ = find_tool("py-spy")
    left = until - time.monotonic()
    if program is None or (failed and left < 1.0):
        return "", failed  # where there is no py-spy, the Python stack has said so
    said, problem = _run([program, "dump", "--native", WHOLE, "--pid", str(pid)], left)
    if has_lost_its_way(said):
        return "", "py-spy --native on rank %d printed no line of Python" % rank
    if said:
        return said, ""
    return "", failed or "py-spy --native on rank %d: %s" % (rank, problem)


def has_lost_its_way(said):
    """Whether py-spy shows frames of the main thread, but no line of Python.

    Its reader of native frames then ended at an address: the stack without them tells more.
    """
    frames = main_thread(said)
    for line in frames:
        frame = FRAME.match(line)
        if frame and not NATIVE_FILE.search(frame["file"]):
            return False
    return bool(frames)


def _run(command, seconds):
    """(what a command prints, why it printed nothing)."""
    pid = int(command[-1])
    before = processes.process_state(int(command[-1]))
    # a notebook's kernel asks every program for colours
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")
    }
    plain["NO_COLOR"] = "1"
    patience = max(0.5, seconds)
    try:
        # SIGINT asks it to let go; killed, it may leave its process stopped, which is undone
        own = [*as_owner.prefix(pid), *command]
        reply = run_bounded(own, patience, plain, first=signal.SIGINT, grace=1.0, tied=False)
    except OSError as error:
        return "", str(error)
    if reply.code in (None, -signal.SIGKILL):
        _let_go(pid, before)
    if reply.ended:
        limit = "took more than %.0f s" % patience
        return "", limit if reply.ended == LATE else "wrote more than %d MiB" % (LARGEST >> 20)
    said, wrong = (text.decode("utf-8", "replace") for text in (reply.out, reply.err))
    if reply.code == 0 and said:
        return said, ""
    return "", (wrong.strip().splitlines() or ["no output"])[-1 if "Traceback" in wrong else 0]


def _let_go(pid, before):
    """Let a process go on that its reader has left stopped."""
    until = time.monotonic() + STOPS
    while before not in ("T", "t") and time.monotonic() < until:
        if _is_stopped(pid):
            processes.signal_one(pid, signal.SIGCONT)
            return
        time.sleep(0.02)


def _is_stopped(pid):
    """Whether a process is stopped, or about to be.

    It is about to be where the signal to stop is pending, until it has a core.
    """
    return processes.process_state(pid) in ("T", "t") or processes.is_pending(pid, signal.SIGSTOP)


THREAD = re.compile(r"^Traceback for thread ")
NATIVE_FRAME = re.compile(
    r'^(?P<head>\s+\(C\) File ".*", line \d+, in )(?P<func>.*)(?P<library> \(\S+\))$'
)
PEER = re.compile(r"^\s+(?:group_)?(?:src|dst): \d+$")
OF_INTEREST = re.compile(r"\(Python\)|c10d::|gloo::|nccl|torch::autograd|the GIL")
"""What a thread has to show to be kept: pools of a hundred threads that wait for work tell
nothing."""
LONGEST = 160
"""Characters of a native function's name; templates of C++ have thousands."""


def _short(text):
    """What pystack prints, without what tells nothing.

    Left out are threads that tell nothing, native frames below Python ones, and values of
    variables.  The peers of sends and receives are the values that stay.
    """
    blocks = []  # type: list[list[str]]
    in_torch = False
    for line in text.splitlines():
        native = NATIVE_FRAME.match(line)
        if THREAD.match(line):
            blocks.append([line])
        elif not blocks:
            continue
        elif native:
            blocks[-1].append(
                native["head"] + native["func"][:LONGEST].rstrip() + native["library"]
            )
        elif line.startswith("    (Python)"):
            in_torch = "distributed_c10d.py" in line
            blocks[-1] = [kept for kept in blocks[-1] if not NATIVE_FRAME.match(kept)] + [line]
        elif in_torch and PEER.match(line):
            blocks[-1].append(line)
    for number, block in enumerate(blocks):
        if number == 0 or any(map(OF_INTEREST.search, block)):
            yield from [*block, ""]


def counters(pid):
    """What the kernel counts of a process and of its main thread, at this moment."""
    stat = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    switches = VOLUNTARY.search(processes.read_text("/proc/%d/status" % pid))
    return {
        "t": round(time.time(), 3),
        "state": stat[0] if stat else "",
        "cpu": (int(stat[11]) + int(stat[12])) / utilization.TICKS if len(stat) > 12 else None,
        "main": utilization.seconds_runnable(pid),
        "switches": int(switches[1]) if switches else None,
        "io": _bytes_moved(pid),
        "gloo": _gloo_wakes(pid),
        "waits_in": processes.read_text("/proc/%d/wchan" % pid).strip(),
    }


def _bytes_moved(pid):
    """Bytes that a process has read and written, without what keeps its job together.

    None where the kernel does not tell.  The store of rank 0 answers the watchdogs of all ranks
    each second: of a rank that sleeps in a hang the bytes would rise, too.
    """
    for _ in range(AT_ONE_MOMENT):
        before = _bytes_of_housekeeping(pid)
        moved = _bytes_counted("/proc/%d/io" % pid)
        if moved is None:
            return None
        if _bytes_of_housekeeping(pid) == before:
            break
    return moved - before


def _bytes_of_housekeeping(pid):
    """Bytes that those threads of a process have read and written which keep its job together."""
    moved = 0
    for task in _tasks(pid):
        if processes.read_text(task + "/comm").startswith(HOUSEKEEPING):
            moved += _bytes_counted(task + "/io") or 0
    return moved


def _bytes_counted(path):
    """Bytes that the kernel counts in a file ``io`` as read and written; None of none."""
    counts = re.findall(r"^[rw]char: (\d+)$", processes.read_text(path), re.MULTILINE)
    if counts:
        return sum(map(int, counts))
    return None


def _gloo_wakes(pid):
    """How often its threads that work on collectives over gloo were woken.

    They are woken for a collective, and by its end: not once in a hang.  None where it has no such
    threads.
    """
    found = []
    for task in _tasks(pid):
        if processes.read_text(task + "/comm").strip() == GLOO_WORKER:
            switches = VOLUNTARY.search(processes.read_text(task + "/status"))
            found += [int(switches[1])] if switches else []
    if found:
        return sum(found)
    return None


def _tasks(pid):
    """The folders of the threads of a process; none where it has ended."""
    try:
        return ["/proc/%d/task/%s" % (pid, name) for name in os.listdir("/proc/%d/task" % pid)]
    except OSError:
        return []


def wakeups_per_second(rows):
    """How often a second the main thread was woken.

    The rate is that between the first `counters` and the last.
    """
    return _rate_of(rows, "switches")


def _rate_of(rows, name):
    """How much a counter rose in a second; 0 where it is not known at two moments."""
    known = []
    for row in rows:
        if row.get(name) is not None:
            known.append((row["t"], row[name]))
    if len(known) < 2:
        return 0.0
    begun, low = known[0]
    ended, high = known[-1]
    if ended <= begun:
        return 0.0
    return (high - low) / (ended - begun)


def was_woken(rows):
    """Whether a main thread's wait ended between the first and last `counters`.

    A thread that sleeps until its peers have come is not woken before: over gloo not once in a
    hang.  One that spins may be switched off its core now and then.
    """
    most = 0.0
    if _rate_of(rows, "main") > SPINS:
        most = WAKES
    return wakeups_per_second(rows) > most


def output_file(printed):
    """Where a process prints to, where that is a file.

    It is {file, quiet (seconds since it was written), last line with a step}. `printed` is what
    `as_owner.read_named_files` found there.
    """
    if not printed:
        return {}
    lines = re.split(r"[\r\n]+", printed["text"])
    last = next((line for line in reversed(lines) if PROGRESS.search(line)), "")
    return {
        "file": redact.text(printed["file"]),
        "quiet": printed["quiet"],
        "line": redact.text("".join(one for one in last if one.isprintable()).strip())[:160],
    }


PROGRESS = re.compile(
    r"(?i)\b(?:step|iter(?:ation)?|epoch|batch)s?\b\W{0,4}\d|\b\d+/\d+ \[\d+:\d\d"
)
"""Lines of progress: ``step 120``, ``Epoch [3/10]``, and the bars of tqdm."""


LAUNCHER = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|horovodrun|mpirun"
    r"|mpiexec|orted|prted"
    r"|hydra_pmi_proxy|slurmstepd|srun|lightning|ray|agent\.pyz launch)\b"
)
"""Programs that start ranks, in a command line; the last one is our own torchrun."""
COMMAND = 200
"""Characters of a command line that are shown."""


def process_details(pid):
    """The command of a rank, what started it, and its job's number in Slurm."""
    above = processes.parents()
    chain = [pid]
    while above.get(chain[-1], 0) > 1:
        chain.append(above[chain[-1]])
    launchers = ((LAUNCHER.search(" ".join(_argv(one)[:4])), one) for one in chain[1:])
    command = shlex.join(redact.words(_argv(pid)))
    return {
        "pid": pid,
        "command": command if len(command) <= COMMAND else command[:COMMAND] + "…",
        "launcher": next(
            ("%s, process %d" % (name[0], one) for name, one in launchers if name), ""
        ),
        "slurm": processes.environ(pid).get("SLURM_JOB_ID", ""),
        "side": side_of(pid, above),
    }


def _argv(pid):
    return processes.read_text("/proc/%d/cmdline" % pid).rstrip("\0").split("\0")


MOST_RANKS = 1024
"""Ranks of one job that one host has at most; who claims more is not believed."""


def expected_ranks(pids):
    """The ranks that the launcher has started on this host; [] if unknown.

    The environment of its processes says which.
    """
    found = set()  # type: set[int]
    for pid in pids:
        found.update(_claimed_ranks(processes.environ(pid)))
    if len(found) <= MOST_RANKS:
        return sorted(found)
    return []


def _claimed_ranks(variables):
    """The ranks on the host of a process with this environment."""
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
    world, here, rank, local = (processes.number_of(variables, name) for name in names)
    alone = (
        variables.get("MASTER_ADDR") == socket.gethostname()
        and variables.get("SLURM_NNODES") == "1"
    )
    if here is not None and rank is not None and local is not None:
        first = rank - local
        count = here
    elif world is not None and (
        alone or variables.get("MASTER_ADDR") in ("127.0.0.1", "localhost")
    ):
        first, count = 0, world
    else:
        return range(0)
    if first >= 0 and count <= MOST_RANKS:
        return range(first, first + count)
    return range(0)
