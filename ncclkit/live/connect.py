"""Connectivity between hosts, without a GPU job.

It tests names, ports, packet sizes, bandwidth, latency and clocks, only between hosts that the user
named or that the allocation holds.  A guarded coordinator (``agent.pyz connect``) starts one worker
per host through ssh, srun or any command before it; what they find are events and facts of the
case, which causes judge.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact
from ncclkit.agent.digits import whole_number
from ncclkit.core import connections, text
from ncclkit.core.case import TEST, Case
from ncclkit.core.model import Fact, NcclkitError, from_dict
from ncclkit.core.storage import write
from ncclkit.live import probe
from ncclkit.live.launch import launchers, local, simulated
from ncclkit.live.launch.base import OnRecord, checked_program
from ncclkit.live.launch.pack import packed

HOST = re.compile(r"[A-Za-z0-9_][\w.:@%-]*")
"""What may be a host (or user@host): nothing that ssh or srun would take for an option or a shell
for syntax."""
SSH = (
    *("ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes", "--", "{host}"),
)
"""Options of ssh, whatever the user's configuration says.

It asks no question, keeps no connection, and forwards nothing.
"""
SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--unbuffered", "--nodelist={host}")
# any Python says which one it is (agent.connect.session.GREETING), on a line of its own whatever a
# shell wrote; then the agent comes through standard input, and lies in a file without a name, which
# cannot outlive this process
BOOT = (
    "import sys,tempfile as t;print('');print('ncclkit on %d.%d'%sys.version_info[:2]);"
    "sys.stdout.flush();z=t.TemporaryFile();i=sys.stdin.buffer;"
    "z.write(i.read(int(i.readline())));z.flush();"
    "sys.path.insert(0,'/proc/self/fd/%d'%z.fileno());"
    "from ncclkit.agent.connect.worker import main;sys.exit(main())"
)


def worker_commands(hosts: Sequence[str], via: str, python: str) -> dict[str, list[str]]:
    """Host → the argv that starts the worker there.

    The host is without ``user@``, which is for ssh alone.  `via` is ``ssh``, ``srun``, or the words
    before a command with ``{host}`` in them; `python` is the interpreter on the hosts.  Raises
    NcclkitError for names that are no hosts and prefixes without a place for them.
    """
    words = {"ssh": SSH, "srun": SRUN}.get(via) or _split(via)
    peer = [python, "-I", "-c", BOOT]
    if via == "ssh":  # it joins the words with blanks and hands them to a shell over there
        peer = [shlex.quote(word) for word in peer]
    commands = {}
    for host in hosts:
        checked = checked_host(host)
        prefix = [word.replace("{host}", checked) for word in words]
        commands[checked.rpartition("@")[2]] = prefix + peer
    return commands


def checked_host(host: str) -> str:
    """The host name as given; raises NcclkitError for what cannot be one."""
    if not isinstance(host, str) or not HOST.fullmatch(host):
        raise NcclkitError(
            f"{host!r} is not a host name or an address; write names like node-1 or 10.0.0.1."
        )
    return host


def _split(via: str) -> list[str]:
    words = text.split_words(via, "The prefix")
    if not any("{host}" in word for word in words):
        raise NcclkitError(
            f"{via!r} is neither ssh nor srun nor a prefix with {{host}} in it, as 'kubectl exec"
            " {host} --'."
        )
    return words


MOST = 64
"""Hosts in one test: their pairs are 2,016, their time about two minutes."""
DEADLINE = 240.0
"""Seconds for all of one test."""
PORT = 29500
"""MASTER_PORT where nobody says otherwise."""
HANDED = (
    *(
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_FAMILY",
        "NCCL_COMM_ID",
        "GLOO_SOCKET_IFNAME",
    ),
    "NCCL_OOB_NET_IFNAME",
)
"""Variables that decide which interface is used; ssh would not hand them on."""
SLOWER, LEADS = 2.0, 10.0
"""How many times slower than the median a path is marked, and is what the summary begins with."""


@dataclass(frozen=True, slots=True, repr=False)
class Connectivity:
    """What the last connection test of a case found."""

    hosts: dict[str, connections.HostNetwork] = field(default_factory=dict)
    links: tuple[connections.NetworkPath, ...] = ()

    @property
    def summary(self) -> str:
        """The outcome in one sentence."""
        if not self.hosts:
            return (
                "No connection was tested: name hosts, or start this in an allocation of several"
                " nodes"
            )
        lost = [host for host in self.hosts.values() if host.problem]
        if lost:
            more = ""
            if len(lost) > 1:
                more = f" (and {len(lost) - 1} more)"
            return f"{lost[0].name}{more} {'are' if more else 'is'} unreachable: {lost[0].problem}"
        bad = [link for link in self.links if link.trouble]
        if bad:
            return (
                f"{len(bad)} of {len(self.links)} paths are not sound; {bad[0].src} → {bad[0].dst}:"
                f" {bad[0].trouble}"
            )
        slow = ""
        if self.links:
            slow = self._slowest()
        if len(self.links) == 2:
            which = "both"
        else:
            which = f"all {len(self.links)}"
        if slow:
            return f"{slow}; {which} paths between {len(self.hosts)} hosts are open"
        return f"{text.start(which)} paths between {len(self.hosts)} hosts are open{self._speeds()}"

    @property
    def slowness(self) -> dict[tuple[str, str], float]:
        """Path → how many times slower it is than the median of all.

        It is 1 where nobody measured.
        """
        # the higher one, so that of two paths the slow one is compared with the other
        usual = median_high([link.bandwidth for link in self.links if link.bandwidth] or [0.0])
        return {
            (link.src, link.dst): usual / link.bandwidth if link.bandwidth else 1.0
            for link in self.links
        }

    def _slowest(self) -> str:
        """The slowest path, where it is much slower than most."""
        times, link = max(
            zip(self.slowness.values(), self.links, strict=False), key=lambda row: row[0]
        )
        rate = f"{link.bandwidth:.3g} GB/s a TCP stream, {times:.0f} times less than most"
        if times >= LEADS:
            return f"{link.src} → {link.dst} carries {rate}"
        return ""

    def _speeds(self) -> str:
        speeds = [link.bandwidth for link in self.links if link.bandwidth is not None]
        times = [link.latency for link in self.links if link.latency is not None]
        if not speeds or not times:
            return ""
        return (
            f": at least {min(speeds):.3g} GB/s a TCP stream, at most {max(times):.3g} µs there and"
            " back"
        )

    def text(self) -> str:
        """Every host and every path, a line each."""
        return "\n".join(
            [
                *(host.event.text for host in self.hosts.values()),
                *(link.summary for link in self.links),
            ]
        )

    def __repr__(self) -> str:
        return self.summary


def results(case: Case) -> Connectivity:
    """What the last connection test of `case` found.

    It is empty where there was none.
    """
    events = case.latest().of("connect.")
    return Connectivity(connections.hosts(events), tuple(connections.links(events)))


async def plan_connection_test(
    hosts: Sequence[str] = (),
    *,
    remote_command: str = "",
    port: int | None = None,
    seconds: float = 0.5,
    deadline: float = DEADLINE,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Plan a connection test, which becomes ``plan.json``.

    Without `hosts` it is between the nodes of the Slurm allocation.  `remote_command` is ``ssh``,
    ``srun`` or the words before a command, with ``{host}`` (default: srun in an allocation, else
    ssh); `port` the rendezvous port (default: MASTER_PORT, else 29500); `seconds` those of each
    stream; `deadline` the seconds in all; `python` the interpreter on the hosts, 3.9 or newer
    (default: NCCLKIT_TRAIN_PYTHON, else python3); `env` variables of the job, on top of this
    process's own.  Raises NcclkitError, in one sentence, for what cannot work.
    """
    # a text is a sequence, too, and each letter of it would be a host
    if isinstance(hosts, str):
        raise NcclkitError(
            f"The hosts must be a list of names, but they are the text {hosts!r}; write"
            f" [{hosts!r}, …]."
        )
    allocated = launchers.node_count() > 0
    known = hosts or (await launchers.launcher_here().node_names() if allocated else [])
    python = checked_program(python or os.environ.get(probe.TRAIN_PYTHON) or "python3")
    commands = worker_commands(known, remote_command or ("srun" if allocated else "ssh"), python)
    if not 2 <= len(commands) <= MOST:
        raise NcclkitError(
            f"A connection test takes 2 to {MOST} hosts, but {len(commands)} are given; name them,"
            " or start this in a Slurm allocation of several nodes."
        )
    given = os.environ | dict(env or {})
    handed = {name: given[name] for name in HANDED if name in given}
    return {
        "hosts": list(commands),
        "commands": commands,
        "port": _port(port),
        "seconds": _seconds(seconds),
        "deadline": _seconds(deadline),
        "env": handed,
    }


def _port(port: int | None) -> int:
    text = str(os.environ.get("MASTER_PORT", PORT) if port is None else port)
    number = whole_number(text)
    if number is None or not 0 < number < 65536:
        raise NcclkitError(
            f"The rendezvous port must be a number from 1 to 65535, but it is {text!r}."
        )
    return number


def _seconds(value: float) -> float:
    if not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise NcclkitError(f"A time must be a number of seconds above 0, but it is {value!r}.")
    return float(value)


async def connectivity(
    case: Case,
    hosts: Sequence[str] = (),
    on_record: OnRecord = lambda record: None,
    *,
    within: Sequence[str] = (),
    **choices: Any,
) -> Connectivity:
    """Test the connections between hosts, and keep in the case what is found.

    See `plan_connection_test` for the choices.  `within` are the words before the test's own
    command, where something has to be made around it.  Everything it started is dead when it
    returns, is cancelled or raises; what was found until then is kept.
    """
    chosen = await plan_connection_test(hosts, **choices)
    folder = case.new_run(TEST)
    with probe.writing(folder):
        write(folder / "plan.json", json.dumps(redact.clean(chosen), indent=1))
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        on_record(record)

    try:
        with packed() as agent:
            # once more, as it is: its commands are executed, and others may write the case folder
            with probe.writing(agent.parent):
                write(agent.parent / "plan.json", json.dumps(chosen))
            command = [
                *within,
                sys.executable,
                str(agent),
                "connect",
                str(agent.parent / "plan.json"),
            ]
            # at its deadline the coordinator ends by itself; the guard is for one that hangs
            await local.run_under_guard(
                agent, command, {}, chosen["deadline"] + 60, folder, sys.executable, keep
            )
    finally:
        _take(case, folder, records)
    found = results(case)
    simulated.raise_if_impossible(records, folder)
    if not found.hosts:
        raise NcclkitError(
            f"The connection test ended without a message; see {folder}/launcher.log."
        )
    return found


def _take(case: Case, folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """The facts, and the events of the kinds ``connect.``.

    How this run ended is no sign of a job.
    """
    wire = folder / "wire.jsonl"
    events = []
    if wire.exists() and wire.stat().st_size:
        events = evidence.read([wire]).events
    case.add(event for event in events if event.kind.startswith("connect."))
    case.replace_facts(from_dict(Fact, record) for record in records if record["kind"] == "fact")
    case.save()
