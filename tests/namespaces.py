"""Simulated hosts of the product (`ncclkit.agent.run.simulated_hosts`) that a test may enter, and break.

Each has its own name, eth0, mounts and /etc/hosts; all lie on one bridge, and end with the block that made them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ncclkit.live.launch import simulated
from ncclkit.live.launch.pack import packed

HOLD = "import os, sys; print('pids', os.environ['NCCLKIT_HOSTS'], flush=True); sys.stdin.read()"
"""Runs beside the hosts: says the pid of each, then waits until this process closes the line, or ends."""
KINDS = {"net": "net", "uts": "uts", "mount": "mnt"}
"""Option of nsenter → name of the namespace in /proc."""

_counter = itertools.count(1)


def run(*command: str) -> str:
    """Standard output of a command."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One simulated host."""

    name: str
    address: str
    room: Path
    """Folder of all hosts: a link of each host's name to its namespaces, and what lies over files of its /etc."""

    @property
    def prefix(self) -> list[str]:
        """The words before a command that is to run on this host."""
        return remote_command(self.room).format(host=self.name).split()

    @property
    def holder(self) -> int:
        """The process that keeps its namespaces."""
        return int((self.room / self.name).readlink().parts[2])

    def pids(self) -> set[int]:
        """What runs there, but for its holder."""
        own, found = os.stat(f"/proc/{self.holder}/ns/net").st_ino, set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                found |= {int(folder.name)} if (folder / "ns/net").stat().st_ino == own else set()
            except OSError:
                continue  # ended meanwhile
        return found - {self.holder}

    def ip(self, *words: str) -> None:
        """``ip`` inside, e.g. ``host.ip("link", "set", "eth0", "mtu", "1400")``."""
        run(*self.prefix, "ip", *words)

    def etc(self, name: str, text: str) -> None:
        """A file of its /etc, in the place of this machine's."""
        file = self.room / f"{self.name}.{name}"
        known = file.exists()
        file.write_text(text)
        if not known:
            run(*self.prefix, "mount", "--bind", str(file), f"/etc/{name}")

    def names(self, table: dict[str, str]) -> None:
        """Its /etc/hosts: name → address; there is no other resolver."""
        lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **table}.items()]
        self.etc("hosts", "".join(lines))

    def block(self, port: int) -> None:
        """A firewall that swallows whatever arrives at this TCP port."""
        self.ip("rule", "add", "pref", "1", "iif", "eth0", "ipproto", "tcp", "dport", str(port), "blackhole")

    def unblock(self) -> None:
        """The firewall is gone."""
        self.ip("rule", "del", "pref", "1")

    def shadow(self, name: str, address: str) -> None:
        """A running bridge that the kernel lists before eth0, as those of containers and virtual machines are."""
        self.ip("link", "add", "name", name, "index", "3", "type", "bridge")
        self.ip("link", "add", "vm0", "index", "91", "type", "veth", "peer", "name", "vm1")
        for link in ("vm0", "vm1", name):
            self.ip("link", "set", link, "addrgenmode", "none", *(("master", name) if link == "vm0" else ()), "up")
        self.ip("addr", "add", address, "dev", name)
        self.carries(name)

    def carries(self, name: str) -> None:
        """Wait for an interface to run, which the kernel notices later: until then NCCL passes over it."""
        until = time.monotonic() + 10
        while "LOWER_UP" not in (shown := run(*self.prefix, "ip", "link", "show", name)) or "NO-CARRIER" in shown:
            if time.monotonic() > until:
                raise OSError(f"{name} of {self.name} got no carrier: {shown}")
            time.sleep(0.01)


def remote_command(room: Path) -> str:
    """What runs a command on a host, as ``ncclkit connect --remote-command`` takes it."""
    return " ".join(["nsenter", "--wd=.", *(f"--{word}={room}/{{host}}/{kind}" for word, kind in KINDS.items())])


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """`count` hosts 10.77.0.1, .2 … that know each other's names, which are unique to this process."""
    label = f"nk{os.getpid()}-{next(_counter)}"
    names = {f"{label}-h{i}": f"10.77.0.{i}" for i in range(1, count + 1)}
    # so that `Host.block` can stand before the rule for addresses of its own
    setup = [["ip", "rule", "add", "pref", "10", "lookup", "local"], ["ip", "rule", "del", "pref", "0"]]
    plan = {
        name: {"address": f"{address}/24", "interface": "eth0", "names": names, "setup": setup}
        for name, address in names.items()
    }
    with packed() as agent:
        command = [*simulated.hosts_command(sys.executable, agent, agent.parent, plan), sys.executable, "-c", HOLD]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as holder:
            assert holder.stdin and holder.stdout and holder.stderr
            said = next((line for line in holder.stdout if line.startswith("pids ")), "")
            if not said:
                raise OSError(holder.stderr.read().strip())
            for name, pid in json.loads(said.partition(" ")[2]).items():
                (agent.parent / name).symlink_to(f"/proc/{pid}/ns")
            try:
                yield [Host(name, address, agent.parent) for name, address in names.items()]
            finally:
                holder.stdin.close()


@cache
def why_not() -> str:
    """Why hosts cannot be simulated and entered here; empty where they can."""
    if os.geteuid() != 0:
        return "only root may enter network namespaces"
    missing = [tool for tool in ("ip", "nsenter", "mount") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else cannot_simulate()


@cache
def cannot_simulate() -> str:
    """Why `ncclkit.live.launch.simulated` cannot simulate hosts here; empty where it can."""
    with packed() as agent:
        command = [*simulated.hosts_command(sys.executable, agent, agent.parent, simulated.healthy_hosts()), "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else ""


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "they work here")


def via(made: Sequence[Host]) -> dict[str, Any]:
    """The options of `ncclkit.live.connect.connectivity` for these hosts."""
    return {"hosts": [host.name for host in made], "remote_command": remote_command(made[0].room)}
