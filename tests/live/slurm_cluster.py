"""A real Slurm on this one machine, for tests: one slurmctld and several slurmd, without systemd or cgroups.

All of its nodes are this host, or each is a simulated one with a name and a network of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.live import slurm_accounts
from tests.namespaces import Host

CONF = """ClusterName=ncclkit
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
{accounting}
JobCompType=jobcomp/none
SelectType=select/cons_tres
SchedulerType=sched/backfill
ReturnToService=2
SlurmctldPort={port}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd.%n.log
SlurmdParameters=config_overrides
SwitchType=switch/none
KillWait=5
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP
PartitionName=short Nodes=ALL MaxTime=1 State=UP
PartitionName=closed Nodes=ALL AllowAccounts=ml State=UP
"""
UNACCOUNTED = """JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectTypeParameters=CR_Core"""
ACCOUNTED = """JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectTypeParameters=CR_Core_Memory"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=2 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000"
)

ALONE = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
"""What a node begins with that has a folder of its own."""
CGROUPS = """umount /sys && mount --rbind /sys/fs/cgroup /mnt && mount -t sysfs none /sys &&
mount --rbind /mnt /sys/fs/cgroup && exec "$@"
"""
"""What a simulated host begins with: this machine's control groups below its own /sys, or slurmd ends."""


def available() -> bool:
    """Whether this machine has Slurm and munge, and we may start them."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("slurmctld", "slurmd", "srun", "munged"))


@contextmanager
def cluster(
    folder: Path,
    nodes: int,
    private: Path | None = None,
    more: str = "",
    made: Sequence[Host] = (),
    kinds: Sequence[str] = (),
    accounts: Sequence[str] = (),
) -> Iterator[dict[str, str]]:
    """Start Slurm with `nodes` nodes; yields the environment that its clients need, and stops it afterwards.

    private: a folder of which each node has its own, empty one of 64 MB, so that nothing in it is shared; more: lines
    of slurm.conf; made: simulated hosts, first the login node, on which the controller and all clients run, then one
    for each node, which has its name; kinds: words for the lines of the first nodes, such as "Gres=gpu:2 Feature=ib";
    accounts: with accounting, in which these lines of sacctmgr stand, such as "add account lab".
    """
    here = socket.gethostname().split(".")[0]
    alone = ["unshare", "-m", "sh", "-c", ALONE, str(private)] if private else []
    places = [(f"n{i}", here, "127.0.0.1", alone) for i in range(1, nodes + 1)]
    own = ["sh", "-c", CGROUPS, "sh"]
    places = [(host.name, host.name, host.address, [*host.prefix, *own]) for host in made[1:]] or places
    login, address, prefix = (made[0].name, made[0].address, made[0].prefix) if made else (here, "127.0.0.1", [])
    first, *others = free_ports(nodes + 1)
    lines = [
        f"{NODE.format(name=name, host=host, address=at, port=port)} {kind}"
        for (name, host, at, _), port, kind in zip(places, others, [*kinds, *[""] * nodes], strict=False)
    ]
    for name in ("state", *(f"spool/{name}" for name, *_ in places)):
        (folder / name).mkdir(parents=True)
    if kinds:  # files stand for the devices of two nodes
        for number in range(2):
            (folder / f"gpu{number}").touch()
        with_gpus = ",".join(name for name, *_ in places[:2])
        (folder / "gres.conf").write_text(f"NodeName={with_gpus} Name=gpu Type=h100 File={folder}/gpu[0-1]\n")
    conf = folder / "slurm.conf"
    env = os.environ | {"SLURM_CONF": str(conf)}
    with ExitStack() as stack:
        stack.callback(lambda: _end([*folder.glob("*.pid")]))
        _munge(folder)
        accounting = UNACCOUNTED
        if accounts:
            kept = stack.enter_context(slurm_accounts.accounting(folder, login, address, prefix, free_ports(2)))
            accounting = f"{ACCOUNTED}\n{kept}"
        told = {"host": login, "address": address, "d": folder, "port": first, "accounting": accounting}
        conf.write_text(CONF.format(**told, nodes="\n".join([more, *lines])))
        slurm_accounts.add(env, prefix, *accounts)
        subprocess.run([*prefix, "slurmctld", "-f", str(conf), "-c"], check=True, env=env, timeout=30)
        for name, _, _, begin in places:
            subprocess.run([*begin, "slurmd", "-f", str(conf), "-N", name], check=True, env=env, timeout=30)
        _wait_idle(env, nodes, prefix)
        yield env


def _end(kept: list[Path]) -> None:
    """Daemons, by the files in which they keep their pids; when this returns their ports are free for the next."""
    ended = []
    for file in kept:
        with suppress(psutil.NoSuchProcess):
            ended.append(psutil.Process(int(file.read_text())))
            ended[-1].terminate()
    for daemon in psutil.wait_procs(ended, timeout=20)[1]:
        daemon.kill()


def _munge(folder: Path) -> None:
    """A munged of this cluster alone; what stands in /etc and /run is not touched."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    kept = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    places = [f"--{option}={folder}/munge.{what}" for option, what in kept.items()]
    # forced, as temporary folders lie below one that anybody may write to
    subprocess.run(["munged", "--force", *places], check=True, timeout=30)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel gives to whoever asks for any."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(12000, 32000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("", port))
            found.add(port)
    return sorted(found)


def _wait_idle(env: dict[str, str], nodes: int, prefix: Sequence[str]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        asked = [*prefix, "sinfo", "-h", "-N", "-p", "debug", "-o", "%T"]
        shown = subprocess.run(asked, capture_output=True, text=True, env=env, timeout=30).stdout
        if shown.split().count("idle") == nodes:
            return
        time.sleep(0.2)
    raise RuntimeError(f"Slurm did not bring {nodes} nodes up: {shown}")
