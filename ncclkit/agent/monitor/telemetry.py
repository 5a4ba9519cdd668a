"""Telemetry: what host, GPUs and ranks did while a job ran.

It is one line of JSON each second: what people use ``nvidia-smi`` and ``htop`` for, recorded during
the run, so that a peak of memory or a clock that fell can be compared with the phases afterwards.
The guard takes the samples of a run of ours, `sample_running_job` those of a job that somebody
attached to; a sample never waits, and no process is signalled or stopped.
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
from .utilization import TICKS, Scheduling, Utilization

QUERY = ("index", "memory.used", "utilization.gpu", "power.draw", "clocks.sm", "temperature.gpu")
"""What is asked of each GPU: its index, MiB, %, W, MHz, C."""
COMMAND = [
    "nvidia-smi",
    "--query-gpu=" + ",".join(QUERY),
    "--format=csv,noheader,nounits",
    "-l",
    "1",
]
LEAST = 0.9
"""Seconds between two samples at least; the guard asks for one each `guard.SAMPLE_SECONDS`."""
AGAIN = 2
"""Samples between two looks for new ranks, as that reads every process's environment."""
APPS = ["nvidia-smi", "--query-compute-apps=pid,gpu_bus_id", "--format=csv,noheader"]
"""Which process computes on which GPU; it answers with process ids of its own namespace."""
BUSES = ["nvidia-smi", "--query-gpu=pci.bus_id,index", "--format=csv,noheader"]
MOST_GPUS = 1024
"""More than any host has: what writes more numbers than that must not fill our memory."""
PATIENCE = 5.0
"""Seconds that a question to a sick driver may take."""
HOLDERS = [
    "nvidia-smi",
    "--query-compute-apps=pid,gpu_bus_id,used_memory,process_name",
    "--format=csv,noheader,nounits",
    "-l",
    "5",
]
"""Which process computes on which GPU with how many MiB, again and again."""
MOST_HOLDERS = 64
"""Processes on GPUs that a sample lists."""


class Sampler:
    """Appends samples to a file; `take` one each second, and `close` it at last."""

    def __init__(self, path, find=None, gpus=None):
        """Open the file for samples.

        `find` gives {rank: pid} (default: the ranks among our descendants); `gpus` is {rank: GPU}
        as far as known.
        """
        self.path, self.host = path, socket.gethostname()
        self.find = find or (
            lambda: processes.ranks_of_processes(processes.descendants(os.getpid()))
        )
        self.taken = 0
        self.families = {}
        self.before = None
        self.scheduling, self.utilization, self.mine = Scheduling(), Utilization(), gpus or {}
        self.gpus = {}
        self.last = 0.0
        self.smi, self.apps = SmiListener(COMMAND), SmiListener(HOLDERS) if find is None else None
        self.cores, self.others = os.cpu_count() or 1, OtherCores() if find is None else None

    def take(self):
        """One sample; a disk that is full or gone ends the telemetry, not the run."""
        if not self.path or time.monotonic() - self.last < LEAST:
            return
        self.last = time.monotonic()
        now = {"telemetry": 1, "t": time.time(), "host": self.host, **self._host(), **self._ranks()}
        self._gpu_rows()
        if self.gpus:
            now["gpus"] = [self.gpus[index] for index in sorted(self.gpus)]
        now.update(self._others())
        try:
            with open(self.path, "a") as out:
                out.write(json.dumps(now) + "\n")
        except OSError:
            self.path = ""

    def close(self):
        """Close the file, and end the processes that the sampler started."""
        for listener in (self.smi, self.apps):
            if listener is not None:
                listener.close()

    def _gpu_rows(self):
        """The last row that nvidia-smi has said of each GPU."""
        rows = []
        for line in self.smi.lines():
            rows.append([_number_of_cell(cell) for cell in line.split(b",")])
        for row in rows:
            if len(row) == len(QUERY) and row[0] is not None and 0 <= row[0] < MOST_GPUS:
                self.gpus[row[0]] = row[1:]

    def _others(self):
        """What processes that are none of ours use: cores, and GPUs.

        It is told where this run has a tree of its own.
        """
        if self.others is None or self.apps is None:
            return {}
        now = {
            "cores": self.cores,
            "load": _number_of_cell(processes.read_text("/proc/loadavg").split(" ", 1)[0]),
        }
        family = [os.getpid(), *processes.descendants(os.getpid())]
        used = self.others.take(family)
        if used is not None:
            now["others"] = used
        rows = [line.decode("utf-8", "replace").split(", ", 3) for line in self.apps.lines()]
        held = [row for row in rows if len(row) == 4 and is_whole(row[0])][-MOST_HOLDERS:]
        mine = {str(pid) for pid in family}
        # where none of ours is listed either the list is of another process namespace, or of before
        # they came
        if any(row[0] in mine for row in held):
            others = [row for row in held if row[0] not in mine]
            now["holders"] = [[*row[:3], row[3].rsplit("/", 1)[-1]] for row in others]
        return now

    def _host(self):
        """Figures of the host since the last sample.

        They are CPU in %, memory and swap in bytes, pressure in %, and traffic in bytes per second.
        """
        cpu = _cpu_ticks()
        net = _traffic_counts()
        moment = time.monotonic()
        before, self.before = self.before, (cpu, net, moment)
        memory = _numbers_of_table("/proc/meminfo")
        sample = {
            "memory": (memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)) << 10,
            "memory_total": memory.get("MemTotal", 0) << 10,
            "swap": (memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)) << 10,
            "pressure": {name: _pressure_share(name) for name in ("cpu", "memory", "io")},
        }
        if before and cpu and before[0] and cpu[1] > before[0][1]:
            sample["cpu"] = round(100 * (1 - (cpu[0] - before[0][0]) / (cpu[1] - before[0][1])), 1)
        if before:
            seconds = max(moment - before[2], 1e-3)
            moved = {name: sum(now) - sum(before[1].get(name, now)) for name, now in net.items()}
            sample["net"] = {
                name: round(count / seconds) for name, count in moved.items() if count > 0
            }
        return sample

    def _ranks(self):
        """Of each rank its process's memory in bytes, utilization and CPU scheduling.

        The scheduling is that of all processes of the rank.
        """
        if self.taken % AGAIN == 0:
            self.families = processes.families(self.find())
        self.taken += 1
        page = os.sysconf("SC_PAGE_SIZE")
        heads = {rank: pids[0] for rank, pids in self.families.items()}
        held = {
            rank: processes.read_text("/proc/%d/statm" % pid).split() for rank, pid in heads.items()
        }
        memory = {rank: int(words[1]) * page for rank, words in held.items() if len(words) > 1}
        utilization = self.utilization.take(heads)
        for rank in utilization.keys() & self.mine.keys():
            utilization[rank]["gpu"] = self.mine[rank]
        return {
            "ranks": memory,
            "utilization": utilization,
            "scheduling": self.scheduling.take(self.families),
        }


class SmiListener:
    """nvidia-smi, asked again and again; `lines` are what it has said since."""

    def __init__(self, command):
        self.rest, self.child = b"", None  # type: bytes, subprocess.Popen[bytes] | None
        try:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=processes.die_with_parent,
            )
        except OSError:
            return  # there is none
        assert self.child.stdout is not None
        # a driver that hangs must not stop the other figures
        os.set_blocking(self.child.stdout.fileno(), False)

    def lines(self):
        """Whole lines that have come since; never waits."""
        if self.child is None or self.child.stdout is None:
            return []
        try:
            self.rest += os.read(self.child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []  # nothing new
        # bounded: half a line without an end must not fill our memory
        *whole, self.rest = self.rest[-(1 << 16) :].split(b"\n")
        return whole

    def close(self):
        """End it."""
        if self.child is not None and self.child.stdout is not None:
            end_group(self.child)
            self.child.stdout.close()


class OtherCores:
    """Cores that processes use which are none of ours.

    It is a rate since the last sample.
    """

    def __init__(self):
        self.before = None  # type: tuple[float, float, float] | None

    def take(self, family):
        """How many cores others used since the last time.

        It is None the first time, and where the kernel does not tell.  Interrupts count for nobody:
        those that our own traffic causes are not in our processes' times.
        """
        total = processes.read_text("/proc/stat", 1 << 12).split("\n", 1)[0]
        # user, nice and system: what follows in the line is no process's time
        words = total.split()[1:4]
        if len(words) < 3 or not all(map(is_whole, words)):
            return None
        moment = time.monotonic()
        everybody = sum(map(int, words))
        ours = sum(map(_ticks_of_process, family))
        before = self.before
        now = self.before = moment, everybody, ours
        if before is None or now[0] <= before[0]:
            return None
        seconds = now[0] - before[0]
        # a process that ended takes its time away from the sum
        ours_since = max(0.0, ours - before[2])
        others_since = max(0.0, everybody - before[1] - ours_since)
        return round(others_since / TICKS / seconds, 2)


def _ticks_of_process(pid):
    """CPU time of a process and of its children that have ended, in ticks."""
    words = processes.read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    if len(words) > 15:
        return sum(map(int, words[11:15]))
    return 0


def sample_running_job(path, ranks, until):
    """Sample a job that ncclkit did not start, once a second.

    It goes on until `until` is set or all ranks of the job have ended.
    """
    sampler = Sampler(path, lambda: ranks, gpus_of(ranks))
    try:
        while any(processes.is_alive(pid) for pid in ranks.values()):
            sampler.take()
            if until.wait(LEAST):
                break
        sampler.take()
    finally:
        sampler.close()


def gpus_of(ranks):
    """{rank: GPU on which its process computes}, as nvidia-smi says.

    In a container nvidia-smi may know nothing.
    """
    index = dict(_rows_of_command(BUSES))
    used = {pid: index[bus] for pid, bus in _rows_of_command(APPS) if bus in index}
    found = {rank: whole_number(used.get(str(pid), "")) for rank, pid in ranks.items()}
    return {rank: gpu for rank, gpu in found.items() if gpu is not None}


def _rows_of_command(command):
    """Lines of two cells; none where the command fails, or does not answer."""
    try:
        reply = run_bounded(command, PATIENCE)
    except OSError:
        return []
    if reply.ended:
        return []
    lines = reply.out.decode("utf-8", "replace").splitlines()
    cells = []
    for line in lines:
        cells.append([cell.strip() for cell in line.split(",")])
    return [row for row in cells if len(row) == 2]


def _number_of_cell(cell):
    try:
        number = float(cell)
    except ValueError:
        return None  # [N/A]
    # JSON has no other
    if math.isfinite(number):
        return number
    return None


def _cpu_ticks():
    """(idle, total) in ticks since boot; None where it cannot be read."""
    words = processes.read_text("/proc/stat", 1 << 12).split("\n", 1)[0].split()[1:9]
    ticks = whole_numbers(words)
    if len(ticks) > 4:
        return ticks[3] + ticks[4], sum(ticks)
    return None


def _numbers_of_table(path):
    """``Name:  123 kB`` lines as numbers."""
    rows = (line.split() for line in processes.read_text(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and is_whole(row[1])}


def _pressure_share(name):
    """Percentage of the last 10 s in which some task waited for it.

    It is None where the kernel does not tell.
    """
    text = processes.read_text("/proc/pressure/" + name).partition("avg10=")[2]
    if text:
        return _number_of_cell(text.split(" ", 1)[0])
    return None


def _traffic_counts():
    """{interface: (received, sent)} in bytes since boot."""
    found = {}
    for line in processes.read_text("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) > 8:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found
