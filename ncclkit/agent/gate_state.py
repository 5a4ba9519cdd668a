"""What happened on a node since the last check: errors of GPUs and links, and its failures.

A small file of each node keeps the counters of the last check, in a folder that an administrator
names.  A counter that did not grow since then accuses nobody.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import stat
import time
from typing import Any

from .gate_checks import Problem, Rows, problem_row
from .run import processes

NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,250}[A-Za-z0-9])?")
"""A node's name, which becomes a file name and a word of a command."""
LARGEST = 1 << 20
"""Bytes of a state file."""
KEPT = 50
"""Failures of a node that are kept."""
WEEK = 7 * 86400.0
BOOT = "/proc/sys/kernel/random/boot_id"
KMSG = "/dev/kmsg"
MESSAGES = 1 << 18
"""Records of the kernel's log that are read at most."""
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]{1,40})\): (\d{1,4})\b")
OF_HARDWARE = frozenset((48, 62, 64, 74, 79, 94, 95, 119, 120, 140))
"""Xids of a GPU or its link; 13, 31, 43 and 45 are the program's."""
LOG_UNREAD = (
    "the kernel's log could not be read (as a rule root may), so whether the driver logged Xids is"
    " unknown"
)
ORDINALS = {
    2: "second",
    3: "third",
    4: "fourth",
    5: "fifth",
}


def own_node_name() -> str:
    """The name of this node, as Slurm knows it where it says so."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    return checked_node_name(name)


def checked_node_name(name: str) -> str:
    """A node's name; raises ValueError for what is no name."""
    if not NODE_NAME.fullmatch(name):
        raise ValueError("%r is not the name of a node" % name[:60])
    return name


class NodeState:
    """The state file of one node."""

    def __init__(self, folder: str, node: str) -> None:
        """Read what the last check left; raises ValueError for a folder that others can write."""
        about = os.stat(folder)
        if not stat.S_ISDIR(about.st_mode):
            raise ValueError("%s is not a folder" % folder)
        if about.st_mode & stat.S_IWOTH:
            raise ValueError("everybody can write %s, so its state cannot be trusted" % folder)
        self.path = os.path.join(folder, checked_node_name(node) + ".json")
        self.before = self._read()
        self.now: dict[str, Any] = {"time": time.time(), "boot": _boot()}
        self.notes: list[str] = []
        """What this check could not look at, though that makes the node no worse."""

    def _read(self) -> dict[str, Any]:
        """The last check; empty where there was none, or its file is damaged."""
        try:
            number = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        with os.fdopen(number, "rb") as file:
            try:
                known = json.loads(file.read(LARGEST))
            except ValueError:
                return {}
        if isinstance(known, dict) and isinstance(known.get("time"), (int, float)):
            return known
        return {}

    @property
    def is_first(self) -> bool:
        """Whether nobody knows what was before."""
        return not self.before

    def since(self) -> str:
        """When the last check was, in words."""
        minutes = max(0.0, self.now["time"] - self.before.get("time", self.now["time"])) / 60
        if minutes < 120:
            return "since the last check %d min ago" % round(minutes)
        return "since the last check %d h ago" % round(minutes / 60)

    def grown(self, kind: str, counters: dict[str, int]) -> dict[str, int]:
        """By how much each counter grew since the last check; they are kept for the next one."""
        self.now[kind] = counters
        before = self.before.get(kind)
        if not isinstance(before, dict):
            return {}
        same_boot = self.before.get("boot") == self.now["boot"]
        found = {}
        for name, value in counters.items():
            known = before.get(name)
            if not isinstance(known, int):
                continue
            # counters begin anew with the host, and with a driver that is loaded anew
            if not same_boot or value < known:
                known = 0
            if value > known:
                found[name] = value - known
        return found

    def write(self, is_ready: bool | None) -> str:
        """Keep this check for the next one; returns why that failed, or "".

        A failure counts when the node was not known to be bad before.
        """
        failures = []
        known = self.before.get("failures")
        if isinstance(known, list):
            failures = [one for one in known if isinstance(one, (int, float))]
        if is_ready is False and self.before.get("ready") is not False:
            failures.append(self.now["time"])
        self.now["failures"] = failures[-KEPT:]
        # what could not be told does not end a failure
        self.now["ready"] = self.before.get("ready") if is_ready is None else is_ready
        try:
            processes.write_whole(self.path, json.dumps(self.now))
        except OSError as error:
            return "%s could not be written (%s)" % (self.path, error.strerror or error)
        return ""

    def history(self) -> str:
        """How often the node failed within a week, where this is not the first time."""
        recent = [one for one in self.now.get("failures", []) if self.now["time"] - one < WEEK]
        if len(recent) < 2:
            return ""
        return "its %s failure this week" % ORDINALS.get(len(recent), "%dth" % len(recent))


def _boot() -> str:
    return str(processes.read_text(BOOT)).strip()


def judge_since(state: NodeState, found: Rows, problems: list[Problem]) -> list[Problem]:
    """What is wrong by what grew since the last check.

    Memory errors that were there at the last check, and were told then, are left out.
    """
    kept = list(problems)
    ecc = {}
    for name, row in found.items():
        if re.fullmatch(r"gpu\.\d+\.ecc\.uncorrected", name) and isinstance(row["value"], int):
            ecc[name] = row["value"]
    new_errors = state.grown("ecc", ecc)
    if not state.is_first:
        kept = [one for one in kept if one["fact"] not in ecc]
        for name, count in new_errors.items():
            say = "GPU %s had %d new uncorrectable memory errors %s" % (
                *(name.split(".")[1], count, state.since()),
            )
            kept.append(
                problem_row(
                    name,
                    ecc[name],
                    say,
                )
            )
    for name, count in state.grown("links", link_counters()).items():
        say = "%s went down %d times %s" % (name, count, state.since())
        kept.append(
            problem_row(
                "net.links",
                count,
                say,
                0,
            )
        )
    has_gpus = bool(found.get("gpu.count", {}).get("value"))
    return kept + _new_xids(state, has_gpus)


def link_counters(root: str = "/sys/class") -> dict[str, int]:
    """How often each RDMA port and each physical interface lost its link since the host booted."""
    found: dict[str, int] = {}
    ports = "%s/infiniband/*/ports/*/counters/link_downed" % root
    for path in glob.glob(ports):
        words = path.split("/")
        _add_counter(
            found,
            "port %s:%s" % (words[-5], words[-3]),
            path,
        )
    for path in glob.glob("%s/net/*/carrier_down_count" % root):
        folder = os.path.dirname(path)
        # veth and bridges of containers come and go
        if os.path.exists(os.path.join(folder, "device")):
            _add_counter(
                found,
                "network interface %s" % os.path.basename(folder),
                path,
            )
    return found


def _add_counter(found: dict[str, int], name: str, path: str) -> None:
    text = processes.read_text(path, 64).strip()
    if re.fullmatch(r"\d{1,18}", text):
        found[name] = int(text)


def _new_xids(state: NodeState, has_gpus: bool) -> list[Problem]:
    """Xids of hardware that the kernel logged since the last check."""
    messages = kernel_messages()
    before = state.before.get("kmsg")
    same_boot = state.before.get("boot") == state.now["boot"]
    if messages is None:
        if has_gpus:
            state.notes.append(LOG_UNREAD)
        # the next check that may read it goes on from the last one that did
        if same_boot and isinstance(before, int):
            state.now["kmsg"] = before
        return []
    last = max((number for number, _ in messages), default=-1)
    state.now["kmsg"] = last
    if state.is_first:
        return []
    if not same_boot:
        before = -1
    # nobody has read the log of this boot before, so what it holds may be old
    if not isinstance(before, int):
        return []
    found = []
    for number, text in messages:
        match = XID.search(text)
        if match is None or number <= before or int(match[2]) not in OF_HARDWARE:
            continue
        say = "the driver logged Xid %s of GPU %s %s" % (match[2], match[1], state.since())
        found.append(
            problem_row(
                "gpu.xid",
                int(match[2]),
                say,
            )
        )
    return found


def kernel_messages(path: str = KMSG) -> list[tuple[int, str]] | None:
    """(number, text) of each record of the kernel's log; None where it may not be read."""
    found = []
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        for _ in range(MESSAGES):
            try:
                record = os.read(number, 1 << 14)
            except BlockingIOError:
                break
            except OSError as error:
                # this record was overwritten while we read
                if error.errno == errno.EPIPE:
                    continue
                break
            if not record:
                break
            found += _parse_records(record)
    finally:
        os.close(number)
    return found


def _parse_records(data: bytes) -> list[tuple[int, str]]:
    """The records in ``priority,number,microseconds,…;text`` lines; indented lines go with one."""
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        match = re.match(r"\d{1,4},(\d{1,18}),\d{1,20},[^;]{0,40};(.*)", line)
        if match:
            found.append((int(match[1]), match[2]))
    return found
