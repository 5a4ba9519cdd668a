"""Telemetry: what the host, its GPUs and the ranks did while a job ran, once a second, one line of JSON each.

What people use ``nvidia-smi`` and ``htop`` for, recorded during the run, so that a peak of memory or a clock that fell
can be compared with the phases afterwards.  The guard takes the samples of a run of ours, `sample_running_job` those of
a job that somebody attached to; a sample never waits, and no process is signalled or stopped.
"""

import json
import math
import os
import socket
import subprocess
import time

from ..commands import end_group, run_bounded
from ..digits import is_whole, whole_number, whole_numbers
from ..run import processes
from .utilization import Scheduling, Utilization

QUERY = ("index", "memory.used", "utilization.gpu", "power.draw", "clocks.sm", "temperature.gpu")
"""What is asked of each GPU: its index, MiB, %, W, MHz, C."""
COMMAND = ["nvidia-smi", "--query-gpu=" + ",".join(QUERY), "--format=csv,noheader,nounits", "-l", "1"]
LEAST = 0.9
"""Seconds between two samples at least."""
AGAIN = 2
"""Samples between two looks for new ranks, as that reads every process's environment."""
APPS = ["nvidia-smi", "--query-compute-apps=pid,gpu_bus_id", "--format=csv,noheader"]
"""Which process computes on which GPU; it answers with process ids of its own namespace."""
BUSES = ["nvidia-smi", "--query-gpu=pci.bus_id,index", "--format=csv,noheader"]
MOST_GPUS = 1024
"""More than any host has: what writes more numbers than that must not fill our memory."""
PATIENCE = 5.0
"""Seconds that a question to a sick driver may take."""


class Sampler:
    """Appends samples to a file; `take` one each second, and `close` it at last."""

    def __init__(self, path, find=None, gpus=None):
        """Find: gives {rank: pid} (default: the ranks among our descendants); gpus: {rank: GPU} as far as known."""
        self.path, self.host = path, socket.gethostname()
        self.find = find or (lambda: processes.ranks(processes.descendants(os.getpid())))
        self.taken, self.families, self.before = 0, {}, None
        self.scheduling, self.utilization, self.mine = Scheduling(), Utilization(), gpus or {}
        self.rest, self.gpus, self.last = b"", {}, 0.0
        self.smi = self._listen()

    def take(self):
        """One sample; a disk that is full or gone ends the telemetry, not the run."""
        if not self.path or time.monotonic() - self.last < LEAST:
            return
        self.last = time.monotonic()
        now = {"telemetry": 1, "t": time.time(), "host": self.host, **self._host(), **self._ranks()}
        self._gpu_rows()
        if self.gpus:
            now["gpus"] = [self.gpus[index] for index in sorted(self.gpus)]
        try:
            with open(self.path, "a") as out:
                out.write(json.dumps(now) + "\n")
        except OSError:
            self.path = ""

    def close(self):
        """Close the file, and end the processes that the sampler started."""
        if self.smi is not None:
            end_group(self.smi)
            self.smi.stdout.close()

    def _listen(self):
        """nvidia-smi, which then speaks once a second; None where there is none."""
        try:
            child = subprocess.Popen(
                COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=processes.die_with_parent,
            )
        except OSError:
            return None
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)  # a driver that hangs must not stop the other figures
        return child

    def _gpu_rows(self):
        """The last row that nvidia-smi has said of each GPU."""
        if self.smi is None:
            return
        try:
            self.rest += os.read(self.smi.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return  # nothing new
        # bounded: half a line without an end must not fill our memory
        *whole, self.rest = self.rest[-(1 << 16) :].split(b"\n")
        rows = [[_number(cell) for cell in line.split(b",")] for line in whole]
        for row in rows:
            if len(row) == len(QUERY) and row[0] is not None and 0 <= row[0] < MOST_GPUS:
                self.gpus[row[0]] = row[1:]

    def _host(self):
        """CPU in %, memory and swap in bytes, pressure in %, traffic in bytes per second since the last sample."""
        cpu, net, moment = _cpu(), _traffic(), time.monotonic()
        before, self.before = self.before, (cpu, net, moment)
        memory = _table("/proc/meminfo")
        sample = {
            "memory": (memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)) << 10,
            "memory_total": memory.get("MemTotal", 0) << 10,
            "swap": (memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)) << 10,
            "pressure": {name: _pressure(name) for name in ("cpu", "memory", "io")},
        }
        if before and cpu and before[0] and cpu[1] > before[0][1]:
            sample["cpu"] = round(100 * (1 - (cpu[0] - before[0][0]) / (cpu[1] - before[0][1])), 1)
        if before:
            seconds = max(moment - before[2], 1e-3)
            moved = {name: sum(now) - sum(before[1].get(name, now)) for name, now in net.items()}
            sample["net"] = {name: round(count / seconds) for name, count in moved.items() if count > 0}
        return sample

    def _ranks(self):
        """Of each rank the memory of its process in bytes, its utilization, and the CPU scheduling of its processes."""
        if self.taken % AGAIN == 0:
            self.families = processes.families(self.find())
        self.taken += 1
        page = os.sysconf("SC_PAGE_SIZE")
        heads = {rank: pids[0] for rank, pids in self.families.items()}
        held = {rank: processes.read("/proc/%d/statm" % pid).split() for rank, pid in heads.items()}
        memory = {rank: int(words[1]) * page for rank, words in held.items() if len(words) > 1}
        utilization = self.utilization.take(heads)
        for rank in utilization.keys() & self.mine.keys():
            utilization[rank]["gpu"] = self.mine[rank]
        return {"ranks": memory, "utilization": utilization, "scheduling": self.scheduling.take(self.families)}


def sample_running_job(path, ranks, until):
    """Sample a job that ncclkit did not start, once a second, until `until` is set or all its ranks have ended."""
    sampler = Sampler(path, lambda: ranks, gpus_of(ranks))
    try:
        while any(processes.state(pid) not in ("Z", "X", "") for pid in ranks.values()):
            sampler.take()
            if until.wait(LEAST):
                break
        sampler.take()
    finally:
        sampler.close()


def gpus_of(ranks):
    """{rank: GPU on which its process computes}, as nvidia-smi says, which in a container may know nothing."""
    index = dict(_rows(BUSES))
    used = {pid: index[bus] for pid, bus in _rows(APPS) if bus in index}
    found = {rank: whole_number(used.get(str(pid), "")) for rank, pid in ranks.items()}
    return {rank: gpu for rank, gpu in found.items() if gpu is not None}


def _rows(command):
    """Lines of two cells; none where the command fails, or does not answer."""
    try:
        reply = run_bounded(command, PATIENCE)
    except OSError:
        return []
    if reply.ended:
        return []
    lines = reply.out.decode("utf-8", "replace").splitlines()
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [row for row in cells if len(row) == 2]


def _number(cell):
    try:
        number = float(cell)
    except ValueError:
        return None  # [N/A]
    return number if math.isfinite(number) else None  # JSON has no other


def _cpu():
    """(idle, total) in ticks since boot; None where it cannot be read."""
    words = processes.read("/proc/stat", 1 << 12).split("\n", 1)[0].split()[1:9]
    ticks = whole_numbers(words)
    return (ticks[3] + ticks[4], sum(ticks)) if len(ticks) > 4 else None


def _table(path):
    """``Name:  123 kB`` lines as numbers."""
    rows = (line.split() for line in processes.read(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and is_whole(row[1])}


def _pressure(name):
    """Share of the last 10 s in which some task waited for it, in %; None where the kernel does not tell."""
    text = processes.read("/proc/pressure/" + name).partition("avg10=")[2]
    return _number(text.split(" ", 1)[0]) if text else None


def _traffic():
    """{interface: (received, sent)} in bytes since boot."""
    found = {}
    for line in processes.read("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) > 8:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found
