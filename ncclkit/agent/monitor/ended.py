"""How ranks ended that are no more, as far as this host still shows it.

It is told by the process that nobody has collected yet, by what the ranks printed to a file that a
living one prints to as well, and by the count of processes that the kernel killed for memory.
"""

import os
import re

from .. import redact
from ..digits import whole_number
from ..run import processes

OWN_ERROR = re.compile(
    r"^\[rank(?P<rank>\d{1,5})\]: ?(?P<error>[A-Za-z_][\w.]{0,99}"
    r"(?:Error|Exception|Interrupt|Exit|Timeout)\b.{0,300})$",
    re.MULTILINE,
)
"""The last line of a traceback, as torch prints it for each rank."""
KILLED = re.compile(r"^oom_kill (\d{1,9})$", re.MULTILINE)
EXIT_CODE = 49
"""Place of the exit code in ``/proc/PID/stat``, behind the name."""
SHOWN = 160


def last_errors(text):
    """{rank: the last exception that it printed} in the end of what ranks print to one file."""
    found = {}
    for match in OWN_ERROR.finditer(text):
        rank = match["rank"]
        error = redact.text(match["error"])
        found[rank] = error[:SHOWN]
    return found


def how_ended(absent, ranks, errors):
    """{rank: {pid, status, signal, error, oom_kills}} of ranks without a process.

    `ranks` is {rank: pid} of those that live, `errors` what was printed, as `last_errors` tells it.
    A key is left out where nothing shows it.
    """
    living = list(filter(processes.is_alive, ranks.values()))
    found = {}
    for rank in absent:
        about = {}  # type: dict[str, object]
        if str(rank) in errors:
            about["error"] = errors[str(rank)]
        if len(absent) == 1:
            about.update(_uncollected(living))
        kills = _kills_for_memory(living)
        if kills:
            about["oom_kills"] = kills
        found[str(rank)] = about
    return found


def _uncollected(living):
    """{pid, status or signal} of the one process beside living ranks that waits to be collected."""
    above = processes.parents()
    parents = set()
    for pid in living:
        parent = above.get(pid, 0)
        parents.add(parent)
    names = set(map(_name, living))
    found = []
    for pid, parent in above.items():
        # who is started by the first process has lost its parent
        if parent <= 1 or parent not in parents:
            continue
        if _name(pid) not in names:
            continue
        if processes.process_state(pid) == "Z":
            found.append(pid)
    # of two nobody knows which one was the rank
    if len(found) != 1:
        return {}
    pid = found[0]
    stat = processes.read_text("/proc/%d/stat" % pid)
    words = stat.rpartition(")")[2].split()
    code = None
    if len(words) > EXIT_CODE:
        code = whole_number(words[EXIT_CODE])
    # who may not know it reads 0
    if not code:
        return {}
    if code & 0x7F:
        return {"pid": pid, "signal": code & 0x7F}
    return {"pid": pid, "status": code >> 8}


def _name(pid):
    return processes.read_text("/proc/%d/comm" % pid).strip()


def _kills_for_memory(living):
    """Processes that the kernel has killed for memory in the control group of these."""
    for pid in living[:1]:
        groups = processes.read_text("/proc/%d/cgroup" % pid)
        for line in groups.splitlines():
            number, names, path = (line.split(":", 2) + ["", ""])[:3]
            if number == "0" and not names:
                return _count_of_kills("/sys/fs/cgroup", path, "memory.events")
            if "memory" in names.split(","):
                return _count_of_kills("/sys/fs/cgroup/memory", path, "memory.oom_control")
    return 0


def _count_of_kills(root, group, name):
    """The count in the group's folder; 0 where that is not seen from here."""
    folder = os.path.normpath(root + group)
    if not folder.startswith(root):
        return 0
    path = os.path.join(folder, name)
    text = processes.read_text(path)
    counted = KILLED.search(text)
    if counted:
        return int(counted[1])
    return 0
