"""A launcher that waits before any rank has begun, and what it waits for.

Only launchers of this user on this host are looked at, by ``/proc`` and, where it is there, py-spy.
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ncclkit.agent import redact
from ncclkit.agent.digits import whole_number
from ncclkit.agent.monitor.family import main_frames
from ncclkit.agent.monitor.snapshots import LAUNCHER, python_stack
from ncclkit.agent.monitor.sockets import (
    ESTABLISHED,
    LISTENS,
    SYN_SENT,
    host_of,
    own_tcp_sockets,
    port_of,
    tcp_sockets,
)
from ncclkit.agent.monitor.waits_on import Waits, command_shown
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
    found = []
    for pid in pids or _own_processes(table):
        if pid == os.getpid() or not _is_launcher(pid):
            continue
        # what a launcher started is told with it
        if not pids and _is_launcher(table.get(pid, 0)):
            continue
        say = _sentence_on(pid, table)
        if say:
            found.append(WaitingLauncher(pid, command_shown(pid), say))
    return found[:MOST]


def _own_processes(table: Iterable[int]) -> list[int]:
    return [pid for pid in table if processes.owner(pid) == os.geteuid()]


def _words_of(pid: int) -> list[str]:
    text: str = processes.read_text(f"/proc/{pid}/cmdline")
    return text.rstrip("\0").split("\0")


def _is_launcher(pid: int) -> bool:
    return bool(_launcher_name(pid))


def _launcher_name(pid: int) -> str:
    """``torchrun``: the launcher that a process is; "" for another program."""
    # a script that only names a launcher in its arguments is none
    for word in _words_of(pid)[:3]:
        match = LAUNCHER.fullmatch(PurePosixPath(word).name)
        if match:
            return match[0]
    return ""


def _sentence_on(pid: int, table: Mapping[int, int]) -> str:
    """What a launcher waits for; "" where nothing shows that it waits."""
    name = _launcher_name(pid)
    who = f"{name} (process {pid})"
    children = _all_below(pid, table)
    shells = [child for child in children if _program_of(child) in REMOTE_SHELLS]
    if shells:
        return f"{who} waits for {_shells_words_of(shells)}; no rank has begun here."
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


def _all_below(pid: int, table: Mapping[int, int]) -> list[int]:
    found = [pid]
    for one in found:
        found += [child for child, parent in table.items() if parent == one]
    return found[1:]


def _program_of(pid: int) -> str:
    return PurePosixPath(_words_of(pid)[0]).name


# ---------------------------------------------------------------- torchrun, accelerate


def _at_rendezvous(pid: int, who: str) -> str:
    """``waits for 1 more of 2 nodes at HOST:PORT; no rank has begun``."""
    nodes = _nodes_wanted(pid)
    endpoint = _endpoint_of(pid)
    where = ""
    if endpoint:
        where = f" at {endpoint}"
    of = " nodes"
    if nodes:
        of = f" of {nodes} nodes"
    unreached = _why_unreached(pid, endpoint)
    if unreached:
        return f"{who} waits at its rendezvous{where}: {unreached}; no rank has begun."
    come = _nodes_that_came(pid, endpoint)
    if nodes and come and 0 < nodes - come:
        missing = f"{nodes - come} more{of}"
    else:
        missing = f"the others{of}"
    return f"{who} waits for {missing}{where}; no rank has begun."


def _options_of(pid: int) -> dict[str, str]:
    """The options of a launcher by name, also those that stand in its environment."""
    found = {}
    for name, value in processes.environ(pid).items():
        if name.startswith("PET_"):
            found[name[4:].lower()] = value
    words = _words_of(pid)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, equal, value = word[2:].partition("=")
            if not equal:
                value = after
            found.setdefault(name.replace("-", "_"), value)
    return found


def _nodes_wanted(pid: int) -> int | None:
    """The least number of nodes with which a launcher begins."""
    options = _options_of(pid)
    for name in NODES:
        least = whole_number(options.get(name, "").partition(":")[0])
        if least is not None:
            return least
    return None


def _endpoint_of(pid: int) -> str:
    """``node-1:29500``, where the nodes meet; "" where no option says it."""
    options = _options_of(pid)
    host = _first_of(options, ENDPOINTS)
    port = _first_of(options, PORTS) or DEFAULT_PORT
    if not host:
        return ""
    if not re.search(r":\d+$", host):
        host = f"{host}:{port}"
    return redact.text(host)[:120]


def _first_of(options: Mapping[str, str], names: Iterable[str]) -> str:
    """The first of these options that is given."""
    for name in names:
        if options.get(name):
            return options[name]
    return ""


def _states_of(pid: int, port: str = "") -> dict[str, str]:
    """State → the remote address of a TCP socket of one process, or only to this port."""
    found = {}
    for one in own_tcp_sockets(pid):
        if one.remote and (not port or port_of(one.remote) == port):
            found[one.state] = one.remote
    return found


def _why_unreached(pid: int, endpoint: str) -> str:
    """Why a launcher has no connection to where the nodes meet; "" where it has one."""
    states = _states_of(pid, port_of(endpoint))
    if ESTABLISHED in states or SYN_SENT not in states:
        return ""
    return f"{states[SYN_SENT]} does not answer"


def _nodes_that_came(pid: int, endpoint: str) -> int:
    """The nodes that are connected to the rendezvous, where its server is on this host; else 0."""
    port = port_of(endpoint)
    hosts = set()
    here = set()
    is_server = False
    for one in tcp_sockets(pid):
        here.add(host_of(one.local))
        if port and port_of(one.local) == port:
            is_server = is_server or one.state == LISTENS
            if one.state == ESTABLISHED:
                hosts.add(host_of(one.remote))
    if not is_server:
        return 0
    # a launcher on this host stands for a node, too
    others = [host for host in hosts if not _is_own(host, here)]
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
            if _endpoint_of(pid) == endpoint:
                found.append(pid)
    return found


# ---------------------------------------------------------------- remote shells, Slurm


def _shells_words_of(shells: Sequence[int]) -> str:
    words = list(_each_shell(shells[:MOST]))
    return "; ".join(words[:4])


def _each_shell(shells: Sequence[int]) -> Iterator[str]:
    """``ssh to node-2 (process 4711), which gets no answer from 10.0.0.2:22``."""
    waits = Waits(shells)
    for pid in shells:
        who = f"{_program_of(pid)}{_host_of_shell(pid)} (process {pid})"
        states = _states_of(pid)
        kinds = {end["kind"] for end in waits.wait_of(pid).get("ends", [])}
        if SYN_SENT in states:
            yield f"{who}, which gets no answer from {states[SYN_SENT]}"
        elif "terminal" in kinds:
            yield f"{who}, which asks at its terminal, as for a password"
        elif ESTABLISHED in states:
            yield f"{who}, which is connected"
        else:
            yield f"{who}, which has no connection"


TAKES_VALUE = re.compile(r"-[BbcDEeFIiJLlmOopQRSWw]")
"""Options of ssh whose value is the next word."""


def _host_of_shell(pid: int) -> str:
    words = iter(_words_of(pid)[1:])
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
