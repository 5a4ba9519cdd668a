"""A cluster as users have it: accounts, a mixed partition, two users without rights, nothing exported, local disks.

Its nodes are simulated hosts; each has a /local of its own, and all share the homes.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.slurm_cluster import cluster
from tests.namespaces import Host, hosts
from tests.packaging.project import ROOT

USERS = {"ann": ("nobody", 65534, 65534), "bob": ("games", 5, 60), "root": ("root", 0, 0)}
"""What the users are called here, and who they are on this machine: Slurm needs names that are known."""
RIGHTS = ("--clear-groups", "--inh-caps=-all", "--ambient-caps=-all")
KINDS = ["Gres=gpu:h100:2 Feature=h100,ib"] * 2 + ["Feature=ib"] * 2
ACCOUNTS = (
    "add cluster ncclkit",
    "add account lab",
    "add account ml",
    "add user nobody account=lab",
    "add user games account=ml",
    "modify user games set MaxJobs=1",
)
PATHS = os.pathsep.join([str(ROOT), *site.getsitepackages()])
TOOLS = ("py-spy", "pystack")
"""What comes with ncclkit, beside its command."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, both outputs together, and how it ended."""

    text: str
    status: int
    seconds: float


@dataclass(frozen=True)
class UserCluster:
    """The login node, its four nodes, and who is there."""

    place: Path
    hosts: Sequence[Host]
    env: dict[str, str]
    python: str

    def home(self, user: str) -> Path:
        """The folder of a user, which all nodes see."""
        return self.place / user

    @property
    def local(self) -> Path:
        """A folder of which each host has its own."""
        return self.place / "local"

    def types(self, user: str, line: str, host: int = 0, timeout: float = 200) -> Answer:
        """What a user's line in a shell answers, on the login node or on a node by its number."""
        name, uid, gid = USERS[user]
        become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", *RIGHTS] if uid else []
        env = self.env | {"HOME": str(self.home(user)), "USER": name}
        begun = time.monotonic()
        done = subprocess.run(
            [*self.hosts[host].prefix, *become, "bash", "-c", line],
            cwd=self.home(user),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        return Answer(done.stdout.decode("utf-8", "replace"), done.returncode, time.monotonic() - begun)

    def job(self, user: str, words: str) -> str:
        """The number of a job that sbatch takes."""
        answer = self.types(user, f"sbatch --parsable {words}")
        number = answer.text.strip().rpartition("\n")[2]
        if answer.status or not re.fullmatch(r"\d+", number):
            raise RuntimeError(f"sbatch {words}: {answer.text}")
        return number

    def reaches(self, job: str, state: str, seconds: float = 150) -> None:
        """Wait until Slurm says that of a job."""
        until = time.monotonic() + seconds
        while True:
            shown = self.types("root", f"scontrol -o show job {job}").text
            if re.search(rf"\bJobState=(?:{state})\b", shown):
                return
            if time.monotonic() > until:
                raise RuntimeError(f"job {job} is not {state}: {shown}")
            time.sleep(0.3)

    def prints(self, user: str, file: str, words: str, seconds: float = 100) -> None:
        """Wait until a file of a user holds these words."""
        path = self.home(user) / file
        until = time.monotonic() + seconds
        while not (path.exists() and words in path.read_text(errors="replace")):
            if time.monotonic() > until:
                raise RuntimeError(f"{path} does not say {words!r}")
            time.sleep(0.2)

    def as_told(self, text: str) -> str:
        """A text with the names that a reader expects: of users, hosts and folders."""
        for number, host in enumerate(self.hosts):
            text = text.replace(host.name, f"node{number}" if number else "login")
        # as Slurm writes several of them
        own = re.escape(self.hosts[0].name.rpartition("-h")[0])
        text = re.sub(rf"{own}-h\[([\d,-]+)\]", lambda found: f"node[{_one_less(found[1])}]", text)
        for user, (name, *_) in USERS.items():
            text = re.sub(rf"\b{name}\b", user, text)
        text = text.replace(str(self.local), "/local").replace(str(self.place), "/home")
        return text.replace(str(ROOT), "/opt/ncclkit")


def _one_less(numbers: str) -> str:
    """Numbers of hosts as numbers of nodes, since the first host is the login node."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) - 1), numbers)


@contextmanager
def user_cluster(python: str) -> Iterator[UserCluster]:
    """The cluster, on which users have this interpreter; some 20 s until it is up."""
    # pytest's own folders are root's alone
    place = Path(tempfile.mkdtemp(prefix="nku-"))
    place.chmod(0o755)
    try:
        with hosts(5) as made:
            _own_disks(place, made)
            cpus = ",".join(host.name for host in made[3:])
            more = f"GresTypes=gpu\nPartitionName=cpu Nodes={cpus}"
            with cluster(place / "slurm", 4, made=made, more=more, kinds=KINDS, accounts=ACCOUNTS) as env:
                _open_for_users(place, python)
                known = {"SLURM_CONF": env["SLURM_CONF"], "PYTHONPATH": PATHS}
                path = f"{place}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
                yield UserCluster(place, made, known | {"PATH": path}, python)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _own_disks(place: Path, made: Sequence[Host]) -> None:
    local = place / "local"
    local.mkdir()
    for host in made:
        line = f"mount -t tmpfs -o size=512m none {local} && chmod 1777 {local}"
        subprocess.run([*host.prefix, "sh", "-c", line], check=True, timeout=30)


def _open_for_users(place: Path, python: str) -> None:
    """Homes, the command, and a Slurm that users may ask."""
    for path in (place / "slurm", place / "slurm" / "slurm.conf", place / "slurm" / "gres.conf"):
        path.chmod(0o755)
    (place / "slurm" / "munge.socket").chmod(0o777)
    for user, (_, uid, gid) in USERS.items():
        (place / user).mkdir()
        os.chown(place / user, uid, gid)
    programs = place / "bin"
    programs.mkdir()
    (programs / "ncclkit").write_text(f'#!/bin/sh\nexec {python} -m ncclkit "$@"\n')
    (programs / "ncclkit").chmod(0o755)
    for tool in TOOLS:
        if (ROOT / ".venv" / "bin" / tool).exists():
            (programs / tool).symlink_to(ROOT / ".venv" / "bin" / tool)
