"""Network namespaces that play hosts: each with its own name, eth0 and /etc/hosts, all on one bridge.

Nothing touches the machine's own network: the bridge lies in a namespace too, and all of them go when the block ends.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
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

from ncclkit.live import simulated_topology
from ncclkit.live.launch import simulated
from ncclkit.live.launch.pack import packed

NAMES = Path("/run/ncclkit-uts")
"""Where the host names live: UTS namespaces, bound to files."""
ETC = Path("/etc/netns")
"""Folders whose files `ip netns exec` puts over those of /etc."""
PREFIX = ("nsenter", f"--uts={NAMES}/{{host}}", "ip", "netns", "exec", "{host}")
"""What runs a command on a host, as ``ncclkit connect --remote-command`` takes it."""

_counter = itertools.count(1)


def run(*command: str, check: bool = True) -> str:
    """Standard output of a command."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if check and done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One namespace that plays a host."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """The words before a command that is to run on this host."""
        return [word.format(host=self.name) for word in PREFIX]

    def ip(self, *words: str) -> None:
        """``ip`` inside, e.g. ``host.ip("link", "set", "eth0", "mtu", "1400")``."""
        run("ip", "-n", self.name, *words)

    def names(self, table: dict[str, str]) -> None:
        """Its /etc/hosts: name → address; there is no other resolver."""
        lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **table}.items()]
        (ETC / self.name / "hosts").write_text("".join(lines))

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
        while "LOWER_UP" not in (shown := run("ip", "-n", self.name, "link", "show", name)) or "NO-CARRIER" in shown:
            if time.monotonic() > until:
                raise OSError(f"{name} of {self.name} got no carrier: {shown}")
            time.sleep(0.01)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """`count` hosts 10.77.0.1, .2 … that know each other's names; names unique to this process, always removed."""
    label = f"nk{os.getpid()}-{next(_counter)}"
    switch = f"{label}-sw"
    made = [Host(f"{label}-h{i}", f"10.77.0.{i}") for i in range(1, count + 1)]
    try:
        _switch(switch)
        for number, host in enumerate(made, 1):
            _plug(host, switch, number)
            host.names({other.name: other.address for other in made})
        yield made
    finally:
        for name in (switch, *(host.name for host in made)):
            _remove(name)


def _switch(name: str) -> None:
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
    run("ip", "-n", name, "link", "set", "br0", "mtu", "9000", "up")


def _plug(host: Host, switch: str, number: int) -> None:
    """One host with eth0 on the switch; its index leaves room for interfaces that shall come before it."""
    run("ip", "netns", "add", host.name)
    (ETC / host.name).mkdir(parents=True)
    (ETC / host.name / "nsswitch.conf").write_text("hosts: files\n")
    NAMES.mkdir(exist_ok=True)
    (NAMES / host.name).touch()
    run("unshare", f"--uts={NAMES / host.name}", "hostname", host.name)
    port = f"p{number}"
    veth = ("link", "add", "eth0", "index", "50", "mtu", "9000", "netns", host.name, "type", "veth")
    run("ip", *veth, "peer", "name", port, "mtu", "9000", "netns", switch)
    run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
    host.ip("rule", "add", "pref", "10", "lookup", "local")  # so that `block` can stand before it
    host.ip("rule", "del", "pref", "0")
    host.ip("link", "set", "lo", "up")
    host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
    host.ip("link", "set", "eth0", "mtu", "1500", "addrgenmode", "none", "up")
    host.carries("eth0")


def _remove(name: str) -> None:
    """As far as it was made; what is still running inside keeps no name and no wire."""
    run("ip", "netns", "del", name, check=False)
    run("umount", str(NAMES / name), check=False)
    (NAMES / name).unlink(missing_ok=True)
    shutil.rmtree(ETC / name, ignore_errors=True)


@cache
def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "nsenter", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        with hosts(1) as [host]:
            said = run(*host.prefix, "hostname").strip()
    except OSError as error:
        return f"network namespaces cannot be made: {error}"
    return "" if said == host.name != socket.gethostname() else "host names cannot be given to namespaces"


def cannot_pretend() -> str:
    """Why `ncclkit.live.launch.simulated` cannot pretend hosts here; empty where it can."""
    with packed() as agent:
        command = [*simulated.within(sys.executable, agent, agent.parent, simulated_topology.sound()), "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else ""


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "they work here")


def via(made: Sequence[Host]) -> dict[str, Any]:
    """The options of `ncclkit.live.connect.connectivity` for these hosts."""
    return {"hosts": [host.name for host in made], "remote_command": " ".join(PREFIX)}
