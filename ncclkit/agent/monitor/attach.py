"""Evidence from processes that are stuck right now: stacks, Flight Recorder, state, RAS, and what they do meanwhile.

Nothing here disturbs a healthy process: SIGUSR1 is sent to ranks with a crash
handler of ours alone (elsewhere it may mean "save and requeue"), py-spy reads
without pausing as long as that works, and everything has a deadline.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from .. import redact
from ..run import processes
from . import ras, telemetry

WHOLE = "--full-filenames"
"""Option of ``py-spy dump`` that not every release knows."""
PYSPY = "NCCLKIT_PY_SPY"
"""Variable that names a py-spy for where the training interpreter has none: the program needs no Python to run in."""
SECONDS = 3.0
"""How long a job that we did not start is watched at least: a few samples, from which a rate follows."""


def join(folder, ranks, seconds=SECONDS):
    """Collect evidence of a job that ncclkit did not start (see `collect`), and sample ``telemetry.jsonl`` meanwhile.

    ranks: {global rank: pid}; seconds: how long it is watched at least, or until its ranks are gone.
    """
    enough = threading.Event()
    path = os.path.join(folder, "telemetry.jsonl")
    sampler = threading.Thread(target=telemetry.beside, args=(path, ranks, enough), daemon=True)
    until = time.monotonic() + seconds
    sampler.start()
    try:
        problems = collect(folder, ranks, ours=False)
        sampler.join(max(0.0, until - time.monotonic()))
    finally:
        enough.set()
    sampler.join(2 * telemetry.PATIENCE + 1.0)  # nvidia-smi may not answer
    return problems


def collect(folder, ranks, ours, deadline=8.0, node=""):
    """Write ``processes.json``, ``gpus.xml``, ``stacks_rank<N>.txt``, ``fr_rank_<N>`` and RAS reports into the folder.

    ranks: {global rank: pid}; ours: the ranks have a black box that writes into this folder; node: its number where
    several write into one folder.  Returns one sentence per thing that could not be had.
    """
    until = time.monotonic() + deadline
    problems = []
    one = next(iter(ranks.values()), os.getpid())
    polls = ras.Polls(folder, ras.address(processes.environ(one)), deadline - 1.0, one, {*processes.of_job(one), *ranks.values()})
    here = "-node" + node if node else ""
    gpus = Gpus(os.path.join(folder, "gpus%s.xml" % here))
    states = {str(rank): look(pid) for rank, pid in ranks.items()}
    _write(folder, "processes%s.json" % here, json.dumps(states, indent=1))
    mute = [rank for rank in ranks if not os.path.exists(os.path.join(folder, "stacks_rank%d.txt" % rank))]
    asked = [rank for rank in mute if ours and processes.catches(ranks[rank], signal.SIGUSR1)]
    for rank in asked:
        processes.signal_one(ranks[rank], signal.SIGUSR1)
    for rank in asked:
        silent = not _appears(os.path.join(folder, "stacks_rank%d.txt" % rank), until - 3.0)
        if silent and _lives(ranks[rank]):
            problems.append("rank %d did not answer SIGUSR1" % rank)
    for rank, pid in ranks.items():
        if not os.path.exists(os.path.join(folder, "stacks_rank%d.txt" % rank)) and _lives(pid):
            problems += _pyspy(folder, rank, pid, max(0.5, until - time.monotonic()))
    if any("ermission" in problem or "not permitted" in problem for problem in problems):
        problems.append(_permission())
    problems += gpus.wait(until)
    unanswered = polls.wait()
    if unanswered and any("libnccl" in processes.read("/proc/%d/maps" % pid, 8 << 20) for pid in ranks.values()):
        problems.append(unanswered)  # elsewhere it is no wonder
    for rank in asked:  # last: what is slow there, a driver that waits for a call still being made, is slow by itself
        if not _written(os.path.join(folder, "fr_rank_%d" % rank), ranks[rank], until):
            problems.append("rank %d did not finish its Flight Recorder dump in time" % rank)
    return problems


class Gpus:
    """The driver's report on every GPU: memory, clocks and why they are low, errors, processes; made meanwhile."""

    COMMAND = ("nvidia-smi", "-q", "-x")

    def __init__(self, path):
        self.path, self.child = path, None
        try:
            with open(path + ".part", "wb") as out:
                self.child = subprocess.Popen(
                    self.COMMAND, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL
                )
        except OSError:
            self._forget()  # no driver here, or no place for a file

    def wait(self, until):
        """Write the report to the folder; returns why there is none, "" where there is one."""
        if self.child is None:
            return []
        try:
            code = self.child.wait(max(0.5, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.child.kill()  # in the middle of a call of the driver it may never end
            self._forget()
            return ["nvidia-smi did not answer in time; the driver, or a GPU, may hang"]
        if code == 0:
            os.replace(self.path + ".part", self.path)
            return []
        self._forget()
        return ["nvidia-smi -q ended with %d" % code]

    def _forget(self):
        if os.path.exists(self.path + ".part"):
            os.unlink(self.path + ".part")


def look(pid):
    """State of one process: what ``ps`` and ``/proc`` say, as a dict of plain values."""
    status = dict(line.split(":", 1) for line in processes.read("/proc/%d/status" % pid).splitlines() if ":" in line)
    return {
        "pid": pid,
        "state": status.get("State", "").strip(),
        "rss_kb": int((status.get("VmRSS", "0").split() or ["0"])[0]),
        "threads": int(status.get("Threads", "0").strip() or 0),
        "waits_in": processes.read("/proc/%d/wchan" % pid).strip(),
        "command": redact.text(processes.read("/proc/%d/cmdline" % pid).replace("\0", " ").strip())[:500],
    }


def _pyspy(folder, rank, pid, deadline):
    handed = os.environ.get(PYSPY, "")
    places = [os.path.join(os.path.dirname(sys.executable), "py-spy"), handed if os.path.isabs(handed) else ""]
    tool = next(filter(None, map(shutil.which, [*filter(None, places), "py-spy"])), None)
    if tool is None:
        where = ", ".join(filter(None, places))
        return ["py-spy is neither at %s nor on PATH, so rank %d has no stack" % (where, rank)]
    until = time.monotonic() + deadline
    # a rank that runs Python changes its stack while it is read: look again, and at last hold it for some milliseconds;
    # whole file names, as shortened ones do not tell a library from the user's own code
    for how in (["--nonblocking", WHOLE], ["--nonblocking", WHOLE], ["--nonblocking", WHOLE], [WHOLE], []):
        command = [tool, "dump", *how, "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=max(0.5, until - time.monotonic()), text=True)
        except (subprocess.TimeoutExpired, OSError) as error:
            return ["py-spy on rank %d: %s" % (rank, error)]
        if done.returncode == 0:
            _write(folder, "stacks_rank%d.txt" % rank, redact.text(done.stdout))  # it begins with the command line
            return []
        problem = "py-spy on rank %d: %s" % (rank, (done.stderr.strip().splitlines() or ["no output"])[0])
    return [problem]


def _permission():
    """Which permission py-spy lacks, and how to get it."""
    scope = processes.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope not in ("", "0"):
        return "kernel.yama.ptrace_scope is %s here, so only root may read stacks: repeat it with sudo" % scope
    return "stacks may be read by root and by who may ptrace: repeat it with sudo, or give the container SYS_PTRACE"


def _lives(pid):
    return processes.state(pid) not in ("Z", "X", "")


def _appears(path, until):
    while time.monotonic() < until:
        if os.path.exists(path):
            return True
        time.sleep(0.02)
    return os.path.exists(path)


def _written(path, pid, until):
    """Whether a file that a process began is whole, or was never begun; waits for it."""
    while os.path.exists(path + ".part") and _lives(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not os.path.exists(path + ".part")


def _write(folder, name, text):
    with open(os.path.join(folder, name), "w") as out:
        out.write(text)
