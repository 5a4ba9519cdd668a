"""Evidence from processes that are stuck right now.

It is stacks, Flight Recorder, state, RAS, and what they do meanwhile.

Nothing here disturbs a healthy process: SIGUSR1 is sent to ranks with a crash
handler of ours alone (elsewhere it may mean "save and requeue"), py-spy reads
without pausing as long as that works, and everything has a deadline.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from xml.etree import ElementTree

from .. import redact, wire
from ..commands import GRACE, LARGEST, TOO_LONG, run_bounded
from ..run import processes
from . import flight_dump, ras, telemetry, utilization
from .ended import how_ended
from .kernels import Kernels
from .links import Links
from .snapshots import Snapshots, expected_ranks, python_stack

SECONDS = 3.0
"""How long a job that we did not start is watched at least: a few samples, from which a rate
follows."""
LONGER = 10.0
"""Seconds for which it is watched where a rank stalls.

A step may take so long, or what one rank does alone.
"""
AGAIN = 1.0
"""Seconds between two snapshots of such a job."""
TIMEOUT = 27.0
"""Seconds in which everything ends, with eight ranks."""
NATIVELY = 5.0
"""Part of `TIMEOUT` that is kept for native frames, however long a job is watched."""
DEBUGGER_EXTRA = 60.0
"""Seconds more with debuggers, which are then asked to let go: on an H200 ranks died whose cuda-gdb
was interrupted."""
PER_FURTHER_RANK = 1.0
"""Seconds more for each further rank on this host."""
OVERHEAD = 2.0
"""Part of `TIMEOUT` for the start of this process, and for the judgement after it."""
DEBUGGER_MINIMUM = 9.0
"""Part of `TIMEOUT` that debuggers have at least, where they are asked for."""

OF_THIS_JOB = "job"
"""The word in the place of processes."""


def main(argv):
    """``attach FOLDER OPTIONS RANK=PID …`` or ``… job``: collect evidence.

    It is that of these processes, or of all here of the Slurm job that this is a step of.
    OPTIONS are those of `collect_and_sample`, as JSON.  Sends a record for each thing that is
    missing.
    """
    folder = argv[0]
    options = json.loads(argv[1])
    words = argv[2:]
    node = ""
    processes.die_with_parent()
    if words[0] == OF_THIS_JOB:
        node = os.environ["SLURM_NODEID"]
        jobs = processes.jobs_of_processes(
            processes.of_slurm(
                os.environ["SLURM_JOB_ID"],
                os.environ["SLURM_STEP_ID"],
                os.environ["SLURMD_NODENAME"],
            )
        )
        ranks = {}
        if jobs:
            ranks = jobs[0]
        wire.send("ranks", ranks={str(rank): pid for rank, pid in ranks.items()})
    else:
        ranks = {int(rank): int(pid) for rank, pid in (word.split("=") for word in words)}
    for problem in collect_and_sample(folder, ranks, node=node, **options) if ranks else ():
        wire.send("problem", say=problem)
    return 0


def collect_and_sample(
    folder,
    ranks,
    seconds=SECONDS,
    snapshots=2,
    node="",
    kernels=False,
    dump=False,
    follow=0.0,
    timeout=TIMEOUT,
):
    """Collect evidence of a running job, and sample ``telemetry.jsonl`` meanwhile.

    The job is one that ncclkit did not start (see `collect`).

    ranks: {global rank: pid}; seconds: between its first and its last snapshot; node: its number
    where several write into one folder; kernels, dump: also ask cuda-gdb and the Flight Recorders
    (`COST`, `COSTS`); follow: wait before all that until a rank has stalled for so many seconds, or
    has ended; timeout: as `TIMEOUT`.
    """
    if follow:
        Snapshots(ranks).follow(follow, lambda say: wire.send("note", say=say))
    enough, here = threading.Event(), "-node" + node if node else ""
    path = os.path.join(folder, "telemetry%s.jsonl" % here)
    sampler = threading.Thread(
        target=telemetry.sample_running_job, args=(path, ranks, enough), daemon=True
    )
    sampler.start()
    attached, gpus = "attached%s.json" % here, Kernels(ranks)

    def read(until):
        taken, rows = Snapshots(ranks), {}  # type: Snapshots, dict[str, dict[str, object]]
        links = Links(ranks)
        spare = 0.0
        if kernels or dump:
            spare = DEBUGGER_MINIMUM
        for number in range(snapshots):
            if number:
                time.sleep(seconds / (snapshots - 1))
            taken.take(until - 3.0 - spare)
        _watch_longer(taken, until - spare)
        problems = taken.finish(folder, until - 2.0 - spare)
        enough.set()  # what a debugger does to a rank must not look like its own work
        file = os.path.join(folder, attached)
        lost = links.lost()
        problems += _write_ranks(file, ranks, taken, gpus, until - spare, rows, lost)
        if kernels or dump:
            problems += _ask_debuggers(folder, ranks, (kernels, dump), taken.texts, gpus, until)
            problems += _write_ranks(file, ranks, taken, gpus, until, rows, lost)
        return list(dict.fromkeys(problems))

    until = time.monotonic() + timeout - OVERHEAD + PER_FURTHER_RANK * max(0, len(ranks) - 8)
    try:
        problems = collect(folder, ranks, read, until, node)
    finally:
        enough.set()
        sampler.join(max(0.5, until - time.monotonic()))  # nvidia-smi may not answer
    job = {*processes.of_job(next(iter(ranks.values()))), *ranks.values()}
    _own_gpus(os.path.join(folder, "gpus%s.xml" % here), job)
    return problems


def _watch_longer(taken, until):
    """Take snapshots until no rank stands still any more, or for `LONGER` seconds."""
    end = min(time.monotonic() + LONGER - SECONDS, until - 2.0 - NATIVELY)
    while taken.standing() and time.monotonic() + AGAIN < end:
        time.sleep(AGAIN)
        taken.take(end + AGAIN)


def _ask_debuggers(folder, ranks, which, texts, gpus, until):
    """Ask GPUs for their kernels, then for Flight Recorders, then for kernels again.

    Returns what is missing.
    """
    kernels, dump = which
    # kernels are asked again after the dumps, so these get half of the time
    half = 0.0
    if dump:
        half = (until - time.monotonic()) / 2
    problems = []
    if kernels:
        problems = gpus.ask(until - half)
    problems += flight_dump.dump(folder, ranks, until, texts) if dump else []
    return problems + (gpus.ask_again(until) if kernels else [])


def _write_ranks(file, ranks, taken, gpus, until, rows, lost):
    """Write what the ranks of this host do, who should be here, and what links lost.

    Returns what is missing.  `rows` are those of before a debugger came, which are brought up to
    date.
    """
    quiet = utilization.seconds_without_traffic(ranks.values())
    problems = []
    errors = {}  # type: dict[str, str]
    for rank, pid in ranks.items():
        if processes.is_alive(pid):
            told, problem = taken.row(rank, until)
            # what ranks print to one file tells of those that have ended
            row = {name: value for name, value in told.items() if name != "errors"}
            errors.update(told.get("errors") or {})
            rows[str(rank)] = {**row, "quiet": quiet.get(pid), "kernels": gpus.rows[rank]}
            problems += [problem] if problem else []
        elif str(rank) in rows:
            problems.append(
                "rank %d ended while a debugger was attached to it; what it did before counts"
                % rank
            )
    due = sorted({*expected_ranks(ranks.values()), *ranks})
    report = {"attached": 1, "host": socket.gethostname(), "expected": due, "ranks": rows}
    absent = [rank for rank in due if str(rank) not in rows]
    report["ended"] = how_ended(absent, ranks, errors)
    processes.write_whole(file, json.dumps({**report, "links": lost}))
    return problems


def _own_gpus(path, job):
    """Leave in the driver's report only the GPUs of a job.

    Of others it keeps no more than that they are there.
    """
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return  # none here, or none that can be told apart
    gpus = {gpu: gpu.findall("processes/process_info") for gpu in tree.getroot().findall("gpu")}
    pids = {gpu: {int(one.findtext("pid", "0")) for one in found} for gpu, found in gpus.items()}
    for gpu, found in gpus.items():
        # in a container the driver may list no process at all
        if any(pids.values()) and not pids[gpu] & job:
            tree.getroot().remove(gpu)
        for one in found:
            if int(one.findtext("pid", "0")) not in job:
                for child in one:
                    child.text = {"pid": "0", "process_name": "another job's"}.get(
                        child.tag, child.text
                    )
    tree.write(path)


def collect(folder, ranks, read, until=None, node=""):
    """Write ``gpus.xml``, RAS reports, and what `read` writes, into the folder.

    ranks: {global rank: pid}; read: takes the moment at which it has to end and returns one
    sentence per thing that could not be had, as this does; until: that moment, 8 s from now where
    none is given; node: its number where several write into one folder.
    """
    if until is None:
        until = time.monotonic() + 8.0
    one = next(iter(ranks.values()), os.getpid())
    job = {*processes.of_job(one), *ranks.values()}
    polls = ras.Polls(
        folder,
        ras.address(processes.environ(one)),
        min(until - time.monotonic() - 1.0, RAS),
        one,
        job,
    )
    here = ""
    if node:
        here = "-node" + node
    gpus = Gpus(os.path.join(folder, "gpus%s.xml" % here), until)
    problems = read(until)
    if (
        problems
        and not all(map(processes.may_read, ranks.values()))
        or any(map(REFUSED.search, problems))
    ):
        problems.append(_why_refused(ranks.values()))
    problems += gpus.wait()
    unanswered = polls.wait()
    if unanswered and any(
        "libnccl" in processes.read_text("/proc/%d/maps" % pid, 8 << 20) for pid in ranks.values()
    ):
        problems.append(unanswered)  # elsewhere it is no wonder
    return problems


RAS = 10.0
"""Seconds in which NCCL's RAS has to answer."""


def ways_to_ask_ranks(folder, ranks):
    """A function for `collect`: until when → what could not be had of ranks that we started.

    Each rank has our crash handler, which writes ``stacks_rank<N>.txt`` and ``fr_rank_<N>`` into
    the folder.  `ranks` is {rank: pid}.  `ncclkit attach` signals nobody and does not use this.
    """

    def ask_ranks(until):
        asked = _signal_mute_ranks(folder, ranks)
        problems = []
        for rank in asked:
            answered = _wait_for_file(_stacks_file(folder, rank), until - 3.0)
            if not answered and processes.is_alive(ranks[rank]):
                problems.append("rank %d did not answer SIGUSR1" % rank)
        for rank, pid in ranks.items():
            problem = _look_from_outside(folder, rank, pid, until)
            if problem:
                problems.append(problem)
        # last: what is slow there, a driver that waits for a call still being made, is slow itself
        for rank in asked:
            dump = os.path.join(folder, "fr_rank_%d" % rank)
            if not _wait_until_whole(dump, ranks[rank], until):
                problems.append("rank %d did not finish its Flight Recorder dump in time" % rank)
        return problems

    return ask_ranks


def _stacks_file(folder, rank):
    return os.path.join(folder, "stacks_rank%d.txt" % rank)


def _signal_mute_ranks(folder, ranks):
    """Signal the ranks that have written no stacks yet, and return them."""
    asked = []
    for rank, pid in ranks.items():
        # whoever has written stacks need not be asked
        if os.path.exists(_stacks_file(folder, rank)):
            continue
        # without a handler the signal would end it, and another handler may do anything
        if processes.catches(pid, signal.SIGUSR1):
            asked.append(rank)
    for rank in asked:
        processes.signal_one(ranks[rank], signal.SIGUSR1)
    return asked


def _look_from_outside(folder, rank, pid, until):
    """Write the stacks of a rank that did not write them itself; return what hindered it, or ""."""
    path = _stacks_file(folder, rank)
    if os.path.exists(path) or not processes.is_alive(pid):
        return ""
    text, problem = python_stack(rank, pid, max(until, time.monotonic() + 0.5))
    if text:
        processes.write_whole(path, redact.text(text))
    return problem


class Gpus:
    """The driver's report on every GPU, made beside other work.

    It holds memory, clocks and why they are low, errors, and processes.
    """

    COMMAND = ("nvidia-smi", "-q", "-x")

    def __init__(self, path, until):
        """Begin the report.

        `path` is the file that is written, `until` the moment at which it has to be there.
        """
        self.path, self.until = path, max(time.monotonic() + 0.5, until - 2 * GRACE)
        self.problems = ["nvidia-smi did not answer in time; the driver, or a GPU, may hang"]
        self.thread = threading.Thread(target=self._run, daemon=True, name="ncclkit-gpus")
        self.thread.start()

    def wait(self):
        """Why there is no report in the folder.

        It is empty where there is one, or no driver.
        """
        self.thread.join(max(0.0, self.until - time.monotonic()) + 2 * GRACE)
        return self.problems

    def _run(self):
        try:
            reply = run_bounded(self.COMMAND, self.until - time.monotonic())
            if reply.ended == TOO_LONG:
                limit = LARGEST >> 20
                self.problems = ["nvidia-smi -q wrote more than %d MiB and was ended" % limit]
            elif not reply.ended and reply.code:
                self.problems = ["nvidia-smi -q ended with %d" % reply.code]
            elif not reply.ended:
                processes.write_whole(self.path, reply.out)
                self.problems = []
        except OSError:
            self.problems = []  # no driver here, or no place for a file


REFUSED = re.compile(r"ermission|not permitted")
"""In what py-spy, pystack and gdb say where they may not read a process."""
CONTAINER = (
    "start the container with --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
)


def _why_refused(pids):
    """Why stacks of processes were refused, and how to allow it."""
    others = sorted({processes.owner(pid) for pid in pids} - {os.geteuid(), -1})
    if others:
        return (
            "the ranks belong to user %d, who may read them, as may root: repeat it with sudo"
            % others[0]
        )
    scope = processes.read_text("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope == "3":
        return (
            "kernel.yama.ptrace_scope is 3 here, so nobody may read stacks until the host has been"
            " booted without it"
        )
    may = processes.has_capability(processes.CAP_SYS_PTRACE)
    if scope in ("1", "2") and not may:
        how = "repeat it with sudo, or allow it: sudo sysctl kernel.yama.ptrace_scope=0"
        return "kernel.yama.ptrace_scope is %s here, so stacks take CAP_SYS_PTRACE: %s" % (
            scope,
            how,
        )
    if not may:
        return (
            "stacks of these ranks take CAP_SYS_PTRACE: repeat it with sudo on the host, or "
            + CONTAINER
        )
    return (
        "a seccomp filter or a security module refuses ptrace: repeat it on the host, or "
        + CONTAINER
    )


def _wait_for_file(path, until):
    while time.monotonic() < until:
        if os.path.exists(path):
            return True
        time.sleep(0.02)
    return os.path.exists(path)


def _wait_until_whole(path, pid, until):
    """Whether a file that a process began is whole, or was never begun; waits for it."""
    while os.path.exists(path + ".part") and processes.is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not os.path.exists(path + ".part")
