"""`ncclkit connect` through a real ssh: network namespaces play hosts, each with a home, a login shell and an sshd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ncclkit.core.case import Case
from ncclkit.live import connect
from tests.namespaces import Host, hosts, run, why_not

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
CONF = """ListenAddress {address}
HostKey {home}/key
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
PYTHON = "./python"
"""The interpreter on each host: ssh begins in the home of its user."""
OLD = f"""#!/bin/sh
exec {sys.executable} -I -c 'import sys; sys.version_info = (3, 6, 8); exec(sys.argv[1])' "$3"
"""
NOISE = 'echo "Welcome to $HOSTNAME"; module load cuda; printf "\\033]0;title\\007"'
TEST = """import asyncio, sys
from ncclkit.live import connect
from ncclkit.core.case import Case
folder, python, seconds, deadline, *hosts = sys.argv[1:]
choices = {"python": python, "seconds": float(seconds), "deadline": float(deadline)}
asyncio.run(connect.connectivity(Case.open(folder), hosts, **choices))
"""


@dataclass(frozen=True)
class Machine:
    """A host, and the home of root there."""

    host: Host
    home: Path

    @property
    def name(self) -> str:
        """As the other hosts know it."""
        return self.host.name

    def login(self, shell: str = "/bin/bash", rc: str = "") -> None:
        """What runs for root, and what bash reads first."""
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        self.host.etc("passwd", "\n".join([f"root:x:0:0:root:{self.home}:{shell}", *others, ""]))
        (self.home / ".bashrc").write_text(rc)

    def settle(self, allowed: str) -> str:
        """Its home, where a key may log in; returns the key of the host."""
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        (self.home / ".ssh/authorized_keys").write_text(allowed)
        (self.home / PYTHON).symlink_to(sys.executable)
        self.login()
        return keygen(self.home / "key")

    def serve(self) -> subprocess.Popen[str]:
        """An sshd that listens; it has a /run of its own."""
        (self.home / "conf").write_text(CONF.format(address=self.host.address, home=self.home))
        words = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" -D -e -f "$1"'
        argv = [*self.host.prefix, "sh", "-c", words, SSHD, str(self.home / "conf")]
        server = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert server.stderr
        said = server.stderr.readline()
        assert "Server listening" in said, said + server.stderr.read()
        return server

    def pids(self) -> set[int]:
        """What runs there."""
        return self.host.pids()

    def end(self, word: bytes = b"") -> None:
        """Kill what runs there with this word in its command line."""
        for pid in self.pids():
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended with one before it
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def keygen(path: Path) -> str:
    """A new pair of keys; returns the public one."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path))
    return path.with_suffix(".pub").read_text()


def known(user: Machine, keys: dict[str, str]) -> None:
    """These keys of hosts the user has seen, and accepted."""
    (user.home / ".ssh/known_hosts").write_text("".join(f"{name} {key}" for name, key in keys.items()))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    """Where the user sits, then two hosts that answer, then one for each of `BROKEN`."""
    missing = (
        "" if SSHD and shutil.which("ssh") else "needs ssh and sshd (apt-get install openssh-client openssh-server)"
    )
    if say := missing or why_not():
        pytest.fail(say) if os.environ.get("CI") else pytest.skip(say)
    folder = tmp_path_factory.mktemp("homes")
    with hosts(3 + len(BROKEN)) as made, ExitStack() as stack:
        user, *others = every = [Machine(host, folder / host.name) for host in made]
        user.settle("")
        allowed = keygen(user.home / ".ssh/id_ed25519")
        keys = {machine.name: machine.settle(allowed) for machine in others}
        others[0].login(rc=NOISE)
        others[1].login("/bin/dash")
        for machine in others:
            stack.enter_context(machine.serve())
            stack.callback(machine.end)
        for machine, (spoil, _) in zip(others[2:], BROKEN.values(), strict=True):
            spoil(machine, keys)
        known(user, keys)
        yield every


def replace(path: Path, script: str) -> None:
    """A program in the place of another."""
    path.unlink()
    path.write_text(script)
    path.chmod(0o755)


BROKEN: dict[str, tuple[Callable[[Machine, dict[str, str]], object], str]] = {
    "refused": (
        lambda machine, keys: (machine.home / ".ssh/authorized_keys").write_text(""),
        r"it ended: root@HOST: Permission denied \(publickey\); let ssh in without a question, by .*",
    ),
    "a new host": (
        lambda machine, keys: keys.pop(machine.name),
        r"it ended: Host key verification failed; log in there by hand once, .*",
    ),
    "another host of that name": (
        lambda machine, keys: keys.update({machine.name: next(iter(keys.values()))}),
        r"it ended: Host key for HOST has changed .*; ask who runs it why .*",
    ),
    "no Python": (
        lambda machine, keys: (machine.home / PYTHON).unlink(),
        r"it ended: bash: .*\./python: No such file or directory; name a Python 3\.9 or newer .* --train-python",
    ),
    "an old Python": (
        lambda machine, keys: replace(machine.home / PYTHON, OLD),
        r"its Python is 3\.6; name a Python 3\.9 or newer of that host with --train-python",
    ),
    "no shell": (
        lambda machine, keys: machine.login("/usr/sbin/nologin"),
        r"it ended: This account is currently not available; log in there by hand to see more",
    ),
}
"""What is wrong with a host → how it comes to that, given all host keys that the user knows; what is said of it."""


def begin(machines: Sequence[Machine], *argv: str) -> subprocess.Popen[str]:
    """A Python that the user (the first machine) starts."""
    environ = {name: value for name, value in os.environ.items() if name not in connect.HANDED}
    command = [*machines[0].host.prefix, sys.executable, *argv]
    return subprocess.Popen(command, env=environ, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextmanager
def nothing_stays(machines: Sequence[Machine]) -> Iterator[None]:
    """What the block starts on these hosts comes to its end there."""
    before = [machine.pids() for machine in machines]
    yield
    wait(lambda: [machine.pids() for machine in machines] == before)


def wait(done: Callable[[], bool]) -> None:
    """At most half a minute."""
    until = time.monotonic() + 30
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def tested(machines: list[Machine], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, connect.Connectivity]:
    """One test of all hosts, as a user begins it: what it printed, and what it found."""
    case = tmp_path_factory.mktemp("case")
    names = [f"root@{machine.name}" for machine in machines[1:]]
    with nothing_stays(machines):
        words = ["-m", "ncclkit", "connect", *names, "--train-python", PYTHON, "--case", str(case)]
        out, err = (running := begin(machines, *words)).communicate(timeout=120)
    assert running.returncode == 2, err
    return out, connect.results(Case.open(case))


def test_hosts_that_answer_are_measured(machines: list[Machine], tested: tuple[str, connect.Connectivity]) -> None:
    """Whatever a start-up file prints, whatever shell it is, and whoever else does not answer."""
    sound = {machine.name for machine in machines[1:3]}
    paths = [link for link in tested[1].links if {link.src, link.dst} == sound]
    assert [(link.trouble, link.rendezvous, link.nccl) for link in paths] == [("", "open", "open")] * 2
    assert all(link.bandwidth and link.latency for link in paths)


@pytest.mark.parametrize("number, what", list(enumerate(BROKEN, 3)))
def test_a_host_that_cannot_be_asked(
    machines: list[Machine], tested: tuple[str, connect.Connectivity], number: int, what: str
) -> None:
    """One sentence says which host, what is wrong, and what to do; of its paths nothing is claimed."""
    out, found = tested
    name = machines[number].name
    assert re.fullmatch(BROKEN[what][1].replace("HOST", name), found.hosts[name].problem)
    assert f"{name} is unreachable: {found.hosts[name].problem}\n" in out
    paths = [link for link in found.links if {link.src, link.dst} == {name, machines[1].name}]
    assert [link.trouble for link in paths] == [f"{name} unreachable"] * 2


def test_hosts_that_keep_silent(machines: list[Machine], tmp_path: Path) -> None:
    """A firewall, and a shell that waits for an answer: the deadline of the test counts."""
    asking, walled = machines[1:3]
    asking.login(rc="read name")
    walled.host.block(22)
    try:
        with nothing_stays(machines):
            words = ["-c", TEST, str(tmp_path), PYTHON, "0.1", "6", asking.name, walled.name]
            begin(machines, *words).communicate(timeout=60)
    finally:
        asking.login(rc=NOISE)
        walled.host.unblock()
    found = connect.results(Case.open(tmp_path))
    silent = "no answer within 1 s; see by hand what its shell waits for"
    assert [host.problem for host in found.hosts.values()] == [silent] * 2


@pytest.mark.parametrize("what", ["connection", "workbook"])
def test_what_ends_in_the_middle(machines: list[Machine], tmp_path: Path, what: str) -> None:
    """In a stream of ten minutes: what was begun on the hosts ends with its ssh; what was known is kept."""
    first, second = machines[1:3]
    before = received(second)
    with nothing_stays(machines):
        running = begin(machines, "-c", TEST, str(tmp_path), PYTHON, "600", "900", first.name, second.name)
        wait(lambda: received(second) > before + 50e6)
        if what == "connection":
            first.end(b"sshd: root@notty")
        else:
            machines[0].end(TEST.encode())
        running.communicate(timeout=60)
    if what == "connection":
        found = connect.results(Case.open(tmp_path))
        lost = (
            f"it ended: Connection to {first.name} closed by remote host; see whether it is still up, then repeat this"
        )
        assert [host.problem for host in found.hosts.values()] == [lost, ""]
        assert [link.nccl for link in found.links] == ["open", "open"]


def received(machine: Machine) -> int:
    """Bytes that came to it over the network."""
    return int(run(*machine.host.prefix, "cat", "/sys/class/net/eth0/statistics/rx_bytes"))
