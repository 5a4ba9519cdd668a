"""A real Slurm on this one machine, for tests: one slurmctld and several slurmd, without systemd or cgroups."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CONF = """ClusterName=ncclkit
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
SlurmctldPort=16817
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd.%n.log
SlurmdParameters=config_overrides
SwitchType=switch/none
KillWait=5
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000"
)


def available() -> bool:
    """Whether this machine has Slurm and munge, and we may start them."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("slurmctld", "slurmd", "srun", "munged"))


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Start Slurm with `nodes` nodes; yields the environment that its clients need, and stops it afterwards."""
    munge = _munge()
    host = socket.gethostname().split(".")[0]
    lines = [NODE.format(i=i, host=host, port=17000 + i) for i in range(1, nodes + 1)]
    for name in ("state", *(f"spool/n{i}" for i in range(1, nodes + 1))):
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, d=folder, nodes="\n".join(lines)))
    env = os.environ | {"SLURM_CONF": str(conf)}
    try:
        subprocess.run(["slurmctld", "-f", str(conf), "-c"], check=True, env=env, timeout=30)
        for i in range(1, nodes + 1):
            subprocess.run(["slurmd", "-f", str(conf), "-N", f"n{i}"], check=True, env=env, timeout=30)
        _wait_idle(env, nodes)
        yield env
    finally:
        _end([*folder.glob("*.pid"), *munge])


def _end(kept: list[Path]) -> None:
    """Daemons, by the files in which they keep their pids; when this returns their ports are free for the next."""
    ended = []
    for file in kept:
        with suppress(psutil.NoSuchProcess):
            ended.append(psutil.Process(int(file.read_text())))
            ended[-1].terminate()
    for daemon in psutil.wait_procs(ended, timeout=20)[1]:
        daemon.kill()


def _munge() -> list[Path]:
    """See to it that munged runs, with the rights it insists on; returns where it keeps its pid if it was started."""
    key = Path("/etc/munge/munge.key")
    if not key.exists():
        key.write_bytes(os.urandom(1024))
    for path in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        Path(path).mkdir(exist_ok=True)
        shutil.chown(path, "munge", "munge")
    shutil.chown(key, "munge", "munge")
    key.chmod(0o400)
    Path("/run/munge").chmod(0o755)
    if subprocess.run(["pgrep", "-x", "munged"], capture_output=True).returncode == 0:
        return []
    subprocess.run(["runuser", "-u", "munge", "--", shutil.which("munged") or "munged"], check=True, timeout=30)
    return [Path("/run/munge/munged.pid")]


def _wait_idle(env: dict[str, str], nodes: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        shown = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, env=env, timeout=30
        ).stdout
        if shown.split().count("idle") == nodes:
            return
        time.sleep(0.2)
    raise RuntimeError(f"Slurm did not bring {nodes} nodes up: {shown}")
