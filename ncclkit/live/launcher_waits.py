"""A launcher that waits before any rank has begun, and what it waits for.

Only launchers of this user on this host are looked at, by ``/proc`` and, where it is there, py-spy.
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ncclkit.agent import redact
from ncclkit.agent.digits import whole_number
from ncclkit.agent.monitor.family import main_frames
from ncclkit.agent.monitor.snapshots import LAUNCHER, python_stack
from ncclkit.agent.monitor.waits_on import ESTABLISHED, SYN_SENT, Waits, command
from ncclkit.agent.run import processes

STACK_SECONDS = 5.0
"""Seconds that the stack of one launcher may take."""
MOST = 16
"""Launchers, and children of each, that are looked at."""
RENDEZVOUS = re.compile(r"torch/distributed/(?:elastic/rendezvous|rendezvous\.py)")
"""Files of torch in whose functions a launcher waits for the other nodes."""
ENDPOINTS = ("rdzv_endpoint", "main_process_ip", "master_addr")
PORTS = ("main_process_port", "master_port")
NODES = ("nnodes", "num_machines")
DEFAULT_PORT = "29500"
REMOTE_SHELLS = ("ssh", "pdsh", "rsh")


@dataclass(frozen=True, slots=True)
class WaitingLauncher:
    """A launcher of which no rank has begun."""

    pid: int
    command: str
    say: str
    """One sentence: what it waits for."""


def waiting_launchers(pids: Sequence[int] = ()) -> list[WaitingLauncher]:
    """The launchers among these processes, or of this user here, that have begun no rank."""
    table = processes.parents()
    own = [pid for pid in pids or table if processes.owner(pid) == os.geteuid()]
    found = []
    for pid in own:
        if pid == os.getpid() or not _is_launcher(pid):
            continue
        # what a launcher started is told with it
        if table.get(pid) in own and _is_launcher(table[pid]):
            continue
        say = _sentence(pid, table)
        if say:
            found.append(WaitingLauncher(pid, command(pid), say))
    return found[:MOST]


def _words(pid: int) -> list[str]:
    text: str = processes.read_text(f"/proc/{pid}/cmdline")
    return text.rstrip("\0").split("\0")


def _is_launcher(pid: int) -> bool:
    return bool(_launcher_name(pid))


def _launcher_name(pid: int) -> str:
    """``torchrun``: the launcher that a process is; "" for another program."""
    # a script that only names a launcher in its arguments is none
    for word in _words(pid)[:3]:
        match = LAUNCHER.fullmatch(PurePosixPath(word).name)
        if match:
            return match[0]
    return ""


def _sentence(pid: int, table: Mapping[int, int]) -> str:
    """What a launcher waits for; "" where nothing shows that it waits."""
    name = _launcher_name(pid)
    who = f"{name} (process {pid})"
    children = _descendants(pid, table)
    shells = [child for child in children if _program(child) in REMOTE_SHELLS]
    if shells:
        return f"{who} waits for {_shells_words(shells)}; no rank has begun here."
    if name == "srun":
        return _of_srun(pid, who)
    if name in ("mpirun", "mpiexec", "horovodrun"):
        if children:
            return ""
        return f"{who} has started none of its daemons yet; no rank has begun."
    frames = main_frames(python_stack(0, pid, time.monotonic() + STACK_SECONDS)[0])
    if any(RENDEZVOUS.search(str(frame.get("file"))) for frame in frames):
        return _at_rendezvous(pid, who)
    return ""


def _descendants(pid: int, table: Mapping[int, int]) -> list[int]:
    found = [pid]
    for one in found:
        found += [child for child, parent in table.items() if parent == one]
    return found[1:]


def _program(pid: int) -> str:
    return PurePosixPath(_words(pid)[0]).name


# ---------------------------------------------------------------- torchrun, accelerate


def _at_rendezvous(pid: int, who: str) -> str:
    """``waits for 1 more of 2 nodes at HOST:PORT; no rank has begun``."""
    nodes = _nodes(pid)
    endpoint = _endpoint(pid)
    where = f" at {endpoint}" if endpoint else ""
    of = f" of {nodes} nodes" if nodes else " nodes"
    unreached = _unreached(pid, endpoint)
    if unreached:
        return f"{who} waits at its rendezvous{where}: {unreached}; no rank has begun."
    come = _nodes_that_came(pid, endpoint)
    if nodes and come and 0 < nodes - come:
        missing = f"{nodes - come} more{of}"
    else:
        missing = f"the others{of}"
    return f"{who} waits for {missing}{where}; no rank has begun."


def _options(pid: int) -> dict[str, str]:
    """The options of a launcher by name, also those that stand in its environment."""
    found = {}
    for name, value in processes.environ(pid).items():
        if name.startswith("PET_"):
            found[name[4:].lower()] = value
    words = _words(pid)
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("--"):
            name, equal, value = word[2:].partition("=")
            found.setdefault(name.replace("-", "_"), value if equal else after)
    return found


def _nodes(pid: int) -> int | None:
    """The least number of nodes with which a launcher begins."""
    options = _options(pid)
    for name in NODES:
        least = whole_number(options.get(name, "").partition(":")[0])
        if least is not None:
            return least
    return None


def _endpoint(pid: int) -> str:
    """``node-1:29500``, where the nodes meet; "" where no option says it."""
    options = _options(pid)
    host = next((options[name] for name in ENDPOINTS if options.get(name)), "")
    port = next((options[name] for name in PORTS if options.get(name)), DEFAULT_PORT)
    if not host:
        return ""
    if not re.search(r":\d+$", host):
        host = f"{host}:{port}"
    return redact.text(host)[:120]


def _connections(pid: int) -> list[tuple[str, str, str]]:
    """(local, remote, state) of the TCP sockets of one process."""
    targets = set(processes.targets_of_descriptors(pid))
    rows = Waits([pid]).tcp_sockets(pid)
    return [row[:3] for row in rows if f"socket:[{row[3]}]" in targets]


def _unreached(pid: int, endpoint: str) -> str:
    """Why a launcher has no connection to where the nodes meet; "" where it has one."""
    port = endpoint.rpartition(":")[2]
    held = [row for row in _connections(pid) if row[1].rpartition(":")[2] == port]
    if any(state == ESTABLISHED for _, _, state in held):
        return ""
    waiting = [remote for _, remote, state in held if state == SYN_SENT]
    return f"{waiting[0]} does not answer" if waiting else ""


def _nodes_that_came(pid: int, endpoint: str) -> int:
    """The nodes that are connected to the rendezvous, where its server is on this host; else 0."""
    port = endpoint.rpartition(":")[2]
    rows = Waits([pid]).tcp_sockets(pid)
    serves = any(row[2] == "0A" and row[0].rpartition(":")[2] == port for row in rows)
    if not port or not serves:
        return 0
    here = {row[0].rpartition(":")[0] for row in rows}
    others = set()
    for local, remote, state, _ in rows:
        address = remote.rpartition(":")[0]
        if state == ESTABLISHED and local.rpartition(":")[2] == port and not _is_own(address, here):
            others.add(address)
    return len(others) + len(_launchers_at(endpoint))


def _is_own(address: str, here: Collection[str]) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback or address in here
    except ValueError:
        return False


def _launchers_at(endpoint: str) -> list[int]:
    """The launchers on this host that meet at an endpoint; each stands for a node."""
    found = []
    for pid in processes.parents():
        if processes.owner(pid) == os.geteuid() and _is_launcher(pid):
            if _endpoint(pid) == endpoint:
                found.append(pid)
    return found


# ---------------------------------------------------------------- remote shells, Slurm


def _shells_words(shells: Sequence[int]) -> str:
    words = list(_each_shell(shells[:MOST]))
    return "; ".join(words[:4])


def _each_shell(shells: Sequence[int]) -> Iterator[str]:
    """``ssh to node-2 (process 4711), which gets no answer from 10.0.0.2:22``."""
    waits = Waits(shells)
    for pid in shells:
        who = f"{_program(pid)}{_host_of_shell(pid)} (process {pid})"
        rows = _connections(pid)
        asked = [remote for _, remote, state in rows if state == SYN_SENT]
        ends = waits.of(pid).get("ends") or []
        if asked:
            yield f"{who}, which gets no answer from {asked[0]}"
        elif any(end.get("kind") == "terminal" for end in ends):
            yield f"{who}, which asks at its terminal, as for a password"
        elif any(state == ESTABLISHED for _, _, state in rows):
            yield f"{who}, which is connected"
        else:
            yield f"{who}, which has no connection"


TAKES_VALUE = re.compile(r"-[BbcDEeFIiJLlmOopQRSWw]")
"""Options of ssh whose value is the next word."""


def _host_of_shell(pid: int) -> str:
    words = iter(_words(pid)[1:])
    for word in words:
        if TAKES_VALUE.fullmatch(word):
            next(words, "")
        elif not word.startswith("-"):
            return f" to {redact.text(word.rpartition('@')[2])[:80]}"
    return ""


def _of_srun(pid: int, who: str) -> str:
    job = processes.environ(pid).get("SLURM_JOB_ID", "")
    ask = "`squeue --me --steps` says whether its step has begun"
    if re.fullmatch(r"\d{1,12}", job):
        ask = f"`squeue --job {job} --steps` says whether its step has begun"
    return (
        f"{who} has begun no rank on this host: {ask}, and `squeue --me -O JobID,Reason` why not."
    )
