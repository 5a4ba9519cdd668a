"""The accounting of a test's Slurm: a MariaDB and a slurmdbd of its own, with accounts, users and a QoS."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CONF = """AuthType=auth/munge
AuthInfo=socket={d}/munge.socket
DbdHost={host}
DbdAddr={address}
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=root
StorageLoc=slurm
LogFile={d}/slurmdbd.log
PidFile={d}/slurmdbd.pid
"""
LINES = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePort={port}
AccountingStoragePass={d}/munge.socket
AccountingStorageEnforce=associations,limits,qos"""
"""What slurm.conf says of it."""
CLIENT = """ClusterName=ncclkit
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={d}/munge.socket
NodeName=none
"""
"""What sacctmgr needs as long as there is no cluster."""
DATABASE = ("--no-defaults", "--user=root", "--skip-grant-tables", "--innodb-flush-method=fsync")


def available() -> bool:
    """Whether this machine has what keeps accounts."""
    return all(shutil.which(tool) for tool in ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr"))


@contextmanager
def accounting(
    folder: Path, host: str, address: str, prefix: Sequence[str], ports: Sequence[int]
) -> Iterator[str]:
    """Start the accounting on the controller's host; yields its lines of slurm.conf, and ends it afterwards."""
    port, storage = ports
    data = folder / "mariadb"
    made = subprocess.run(
        ["mariadb-install-db", *DATABASE[:2], f"--datadir={data}", "--auth-root-authentication-method=normal"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if made.returncode:
        raise RuntimeError(f"mariadb-install-db: {made.stderr[-500:]}{made.stdout[-500:]}")
    served = [f"--datadir={data}", f"--socket={data}/socket", f"--pid-file={folder}/mariadbd.own"]
    served += ["--bind-address=127.0.0.1", f"--port={storage}"]
    with open(folder / "mariadbd.log", "wb") as log:
        database = subprocess.Popen([*prefix, "mariadbd", *DATABASE, *served], stdout=log, stderr=log)
    try:
        _wait_for(data / "socket", folder / "mariadbd.log")
        conf = folder / "slurmdbd.conf"
        conf.write_text(CONF.format(d=folder, host=host, address=address, port=port, storage=storage))
        conf.chmod(0o600)
        env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        # it looks for its file beside slurm.conf
        asked = CLIENT.format(d=folder, host=host) + LINES.format(d=folder, address=address, port=port)
        (folder / "slurm.conf").write_text(f"{asked}\n")
        with open(folder / "slurmdbd.out", "wb") as log:
            keeper = subprocess.Popen([*prefix, "slurmdbd", "-D"], env=env, stdout=log, stderr=log)
        try:
            _wait_for(folder / "slurmdbd.pid", folder / "slurmdbd.log")
            _wait_for_answer(env, prefix)
            yield LINES.format(d=folder, address=address, port=port)
        finally:
            _end(keeper)
    finally:
        _end(database)


def _wait_for(file: Path, log: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        if time.monotonic() > until:
            said = log.read_text(errors="replace")[-1000:] if log.exists() else "nothing"
            raise RuntimeError(f"{file.name} did not come: {said}")
        time.sleep(0.1)


def _wait_for_answer(env: Mapping[str, str], prefix: Sequence[str]) -> None:
    until = time.monotonic() + 60
    words = [*prefix, "sacctmgr", "-n", "show", "cluster"]
    while (done := subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)).returncode:
        if time.monotonic() > until:
            raise RuntimeError(f"slurmdbd does not answer: {done.stderr}")
        time.sleep(0.1)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(20)


def add(env: Mapping[str, str], prefix: Sequence[str], *lines: str) -> None:
    """What an administrator types after ``sacctmgr -i``, line by line."""
    for line in lines:
        words = [*prefix, "sacctmgr", "-i", *line.split()]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"sacctmgr {line}: {done.stderr}{done.stdout}")
