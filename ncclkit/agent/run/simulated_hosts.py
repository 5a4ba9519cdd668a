"""Simulated hosts: namespaces of this machine on one bridge.

Each has its own name, network, /etc/hosts and /sys.  Nothing touches the machine's own network, and
nothing has to be removed: the namespaces have no names, so the kernel takes them away with their
last process, whatever ended it.  Root is not needed where the kernel lets a user have namespaces of
his own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

from .. import wire
from ..connect import worker
from ..facts import network
from . import processes

NEWNS, NEWUTS, NEWUSER, NEWNET = 0x20000, 0x4000000, 0x10000000, processes.CLONE_NEWNET
PRIVATE, BIND = 0x44000, 0x1000
"""Of mount(2): MS_REC | MS_PRIVATE, and MS_BIND."""
PIDS = "NCCLKIT_HOSTS"
"""Variable of the command beside the hosts: JSON, host → pid of a process there."""
NAME = "NCCLKIT_HOST"
"""Variable of what runs on a host: its name.  All hosts have the machine's GPUs, as no namespace
parts those."""
KINDS = ("mnt", "net", "uts")
LOG = "launcher-%s.log"
CARRIER = 20.0
"""Seconds that the links of a host may take until they carry."""


def main(argv):
    """``hosts PLAN [COMMAND…]`` simulates hosts.

    ``hosts --enter HOST COMMAND…`` runs a command on one of them.

    The file holds ``folder`` (of logs), ``private`` (of what only we may write), ``wait`` and
    ``hosts``: name → ``address`` (with prefix length), ``interface``, ``names`` (its /etc/hosts),
    ``port`` (words of ``ip link set`` for its end at the switch), ``setup`` (commands),
    ``packages`` (path → text, Python packages that only it has), ``env`` and ``command``.  Without
    a COMMAND every host runs its own; where one fails, the others get ``wait`` seconds more.
    """
    if argv[0] == "--enter":
        return _enter_host(argv[1], argv[2:])
    with open(argv[0], encoding="utf-8") as file:
        plan = json.load(file)
    try:
        if argv[1:]:
            return _run_and_kill(_make_hosts(plan, hold=True), argv[1:])
        return _wait_for_all(_make_hosts(plan), plan["wait"])
    except OSError as error:
        sys.stderr.write("ncclkit: hosts cannot be simulated here: %s\n" % error)
        return 2


def _make_hosts(plan, hold=False):
    """Make the switch and all hosts; returns {name: pid}.

    With `hold` the hosts wait, otherwise they run their commands.
    """
    _own_namespaces()
    _run_ip("link", "set", "lo", "up")
    _run_ip("link", "add", "br0", "type", "bridge")
    _run_ip("link", "set", "br0", "mtu", "9000", "addrgenmode", "none", "up")
    made = {name: _fork_host(plan, name, hold) for name in plan["hosts"]}
    for number, (name, (pid, line)) in enumerate(made.items(), 1):
        _await_ready(line, name)
        own = plan["hosts"][name]
        port = "p%d" % number
        # its index leaves room for interfaces that shall come before it
        words = (
            "index",
            "50",
            "mtu",
            "9000",
            "netns",
            str(pid),
            "type",
            "veth",
            "peer",
            "name",
            port,
            "mtu",
            "9000",
        )
        _run_ip("link", "add", own["interface"], *words)
        _run_ip(
            "link", "set", port, "master", "br0", "addrgenmode", "none", *own.get("port", ()), "up"
        )
        line.send(b"!")
    for name, (_, line) in made.items():
        _await_ready(line, name)
    for _, line in made.values():
        line.send(b"!")
    return {name: pid for name, (pid, _) in made.items()}


def _own_namespaces():
    """Network and mounts of our own; where we are not root, as a user's own root."""
    user = os.geteuid()
    group = os.getegid()
    if user:
        processes.call("unshare", NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", "0 %d 1" % user),
            ("gid_map", "0 %d 1" % group),
        ):
            with open("/proc/self/" + name, "w") as out:
                out.write(text)
    processes.call("unshare", NEWNET | NEWNS)
    processes.call("mount", b"none", b"/", None, PRIVATE, None)
    processes.die_with_parent()  # the kernel forgets it with the change of rights


def _fork_host(plan, name, hold):
    """(pid, our end of the line) of a process that becomes the host."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    try:
        _become_host(plan, name, theirs)
        if hold:
            signal.pause()
        host = plan["hosts"][name]
        log = os.open(
            os.path.join(plan["folder"], LOG % name), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        # each host's launcher has its own log; the ranks' records keep the common output
        os.dup2(log, 2)
        os.execvpe(host["command"][0], host["command"], os.environ)
    except Exception as error:
        # whatever it is, this process must never go on as the one that it was forked from
        theirs.send(str(error).encode())
    os._exit(2)


def _become_host(plan, name, line):
    """Everything that makes this process a host, in step with the one that holds the switch."""
    host = plan["hosts"][name]
    processes.die_with_parent()
    processes.call("unshare", NEWNET | NEWUTS | NEWNS)
    socket.sethostname(name)
    line.send(b"!")
    _await_ready(line, "the switch")
    _run_ip("link", "set", "lo", "up")
    _run_ip("addr", "add", host["address"], "dev", host["interface"])
    _run_ip("link", "set", host["interface"], "mtu", "1500", "addrgenmode", "none", "up")
    processes.call("mount", b"none", b"/sys", b"sysfs", 0, None)  # that of the new network
    names = "".join("%s %s\n" % (address, other) for other, address in host["names"].items())
    for place, text in (
        ("hosts", "127.0.0.1 localhost\n" + names),
        ("nsswitch.conf", "hosts: files\n"),
    ):
        _lay_file(os.path.join(plan["private"], "%s.%s" % (name, place)), "/etc/" + place, text)
    for command in host.get("setup", ()):
        _run_command(command)
    _wait_for_links(time.monotonic() + CARRIER)
    os.environ.update({NAME: name, **host.get("env", {})})
    _install_packages(os.path.join(plan["private"], "packages-%s" % name), host.get("packages", {}))
    wire.send("launch", host=name, log=LOG % name)
    for fact in worker.facts_for_connection():
        wire.send("fact", host=name, **fact)
    line.send(b"!")
    _await_ready(line, "the switch")


def _wait_for_links(until):
    """Wait until every link of this host is running.

    The kernel notices that late, and NCCL passes over a link until then.
    """
    both = network.UP | network.RUNNING
    while idle := {
        link["name"] for link in network.entries() if link["flags"] & both == network.UP
    }:
        if time.monotonic() > until:
            raise OSError("%s got no carrier within %g s" % (", ".join(sorted(idle)), CARRIER))
        time.sleep(0.01)


def _lay_file(file, over, text):
    """A file of this host in the place of the machine's, where it has one."""
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    if os.path.exists(over):
        processes.call("mount", os.fsencode(file), over.encode(), None, BIND, None)


def _install_packages(folder, packages):
    """Packages of this host alone, in a folder that its Python looks into first."""
    for path, text in packages.items():
        file = os.path.join(folder, path)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
    if packages:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (folder, os.environ.get("PYTHONPATH")))
        )


def _await_ready(line, who):
    said = line.recv(4096)
    if said != b"!":
        raise OSError("%s: %s" % (who, said.decode("utf-8", "replace") or "it ended"))


def _wait_for_all(pids, wait):
    """The first exit status that is not 0, after all have ended.

    Once one has failed, the others get `wait` seconds.
    """
    # blocked, so that the wait below takes each: one that came between waitpid and the wait would
    # be lost otherwise
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    left = set(pids.values())
    status = 0
    until = float("inf")
    while left:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)
        elif pid in left:
            left.discard(pid)
            status = status or abs(os.waitstatus_to_exitcode(code))
            if status:
                until = min(until, time.monotonic() + wait)
        if time.monotonic() > until:
            status = status or 1
            until = time.monotonic() + 5
            for other in left:
                processes.signal_one(other, signal.SIGTERM)
    return status


def _run_and_kill(pids, command):
    """Run a command that may enter the hosts; they end with it."""
    done = subprocess.run(command, env=dict(os.environ, **{PIDS: json.dumps(pids)}))
    for pid in pids.values():
        processes.signal_one(pid, signal.SIGKILL)
    return done.returncode


def _enter_host(name, command):
    """Become a command on a host."""
    pid = json.loads(os.environ[PIDS])[name]
    # all are opened first, as behind the next mount namespace the paths lead elsewhere
    for file in [os.open("/proc/%d/ns/%s" % (pid, kind), os.O_RDONLY) for kind in KINDS]:
        processes.call("setns", file, 0)
    os.execvp(command[0], command)


def _run_ip(*words):
    _run_command(["ip", *words])


def _run_command(command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30)
    if done.returncode:
        raise OSError(
            "%s: %s" % (" ".join(command), done.stderr.decode("utf-8", "replace").strip())
        )
