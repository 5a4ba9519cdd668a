"""Evidence from processes that are stuck right now: stacks, Flight Recorder, state, RAS.

Nothing here disturbs a healthy process: SIGUSR1 is sent to ranks with a black
box of ours alone (elsewhere it may mean "save and requeue"), py-spy reads
without pausing as long as that works, and everything has a deadline.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from . import processes


def collect(folder, ranks, ours, deadline=8.0):
    """Write ``processes.json``, ``stacks_rank<N>.txt``, ``fr_rank_<N>`` and ``ras.txt`` into the run folder.

    ranks: {global rank: pid}; ours: the ranks have a black box that writes into this folder.  Returns one sentence per
    thing that could not be had.
    """
    until = time.monotonic() + deadline
    problems = []
    _write(folder, "processes.json", json.dumps({str(rank): look(pid) for rank, pid in ranks.items()}, indent=1))
    asked = [rank for rank, pid in ranks.items() if ours and processes.catches(pid, signal.SIGUSR1)]
    for rank in asked:
        processes.signal_one(ranks[rank], signal.SIGUSR1)
    report = ras(deadline=2.0)
    if report:
        _write(folder, "ras.txt", report)
    for rank in asked:
        if not _appears(os.path.join(folder, "stacks_rank%d.txt" % rank), until - 3.0):
            problems.append("rank %d did not answer SIGUSR1" % rank)
    for rank, pid in ranks.items():
        if not os.path.exists(os.path.join(folder, "stacks_rank%d.txt" % rank)):
            problems += _pyspy(folder, rank, pid, max(0.5, until - time.monotonic()))
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
        "command": processes.read("/proc/%d/cmdline" % pid).replace("\0", " ").strip()[:500],
    }


def ras(address=("localhost", 28028), deadline=2.0):
    """NCCL's own RAS report (text, verbose), or "" where no NCCL process of this user answers."""
    try:
        with socket.create_connection(address, timeout=deadline) as link:
            link.sendall(b"verbose status\n")
            answer, until = b"", time.monotonic() + deadline
            while time.monotonic() < until:
                part = link.recv(65536)
                if not part:
                    break
                answer += part
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


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
            _write(folder, "stacks_rank%d.txt" % rank, done.stdout)
            return []
        problem = "py-spy on rank %d: %s" % (rank, (done.stderr.strip().splitlines() or ["no output"])[0])
    return [problem]


def _appears(path, until):
    while time.monotonic() < until:
        if os.path.exists(path):
            return True
        time.sleep(0.02)
    return os.path.exists(path)


def _write(folder, name, text):
    with open(os.path.join(folder, name), "w") as out:
        out.write(text)
