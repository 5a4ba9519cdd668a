"""Evidence from processes that are stuck right now: stacks, Flight Recorder, state, RAS.

Nothing here disturbs a healthy process: SIGUSR1 is sent to ranks with a black
box of ours alone (elsewhere it may mean "save and requeue"), py-spy reads
without pausing as long as that works, and everything has a deadline.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from . import processes, ras
from .facts import redact


def collect(folder, ranks, ours, deadline=8.0):
    """Write ``processes.json``, ``stacks_rank<N>.txt``, ``fr_rank_<N>`` and RAS reports into the run folder.

    ranks: {global rank: pid}; ours: the ranks have a black box that writes into this folder.  Returns one sentence per
    thing that could not be had.
    """
    until = time.monotonic() + deadline
    problems = []
    environ = processes.environ(next(iter(ranks.values()), os.getpid()))
    polls = ras.Polls(folder, ras.address(environ), deadline - 1.0)
    _write(folder, "processes.json", json.dumps({str(rank): look(pid) for rank, pid in ranks.items()}, indent=1))
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
    unanswered = polls.wait()
    if unanswered and any("libnccl" in processes.read("/proc/%d/maps" % pid, 8 << 20) for pid in ranks.values()):
        problems.append(unanswered)  # elsewhere it is no wonder
    return problems


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
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    tool = beside if os.path.exists(beside) else shutil.which("py-spy")
    if tool is None:
        return ["py-spy is neither beside %s nor on PATH, so rank %d has no stack" % (sys.executable, rank)]
    until = time.monotonic() + deadline
    # a rank that runs Python changes its stack while it is read: look again, and at last hold it for some milliseconds
    for how in (["--nonblocking"], ["--nonblocking"], ["--nonblocking"], []):
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


def _lives(pid):
    return processes.state(pid) not in ("Z", "X", "")


def _appears(path, until):
    while time.monotonic() < until:
        if os.path.exists(path):
            return True
        time.sleep(0.02)
    return os.path.exists(path)


def _write(folder, name, text):
    with open(os.path.join(folder, name), "w") as out:
        out.write(text)
