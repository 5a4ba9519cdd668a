"""The launcher of host files: a real mpirun over a real ssh, between two namespaces that play hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.live.launch import launchers, mpi
from ncclkit.live.launch.base import Launcher
from ncclkit.live.launch.local import LocalLauncher
from tests.live.test_ssh import SSHD, Machine, keygen, known, nothing_stays
from tests.namespaces import hosts, why_not

ROOT = Path(__file__).parents[2]
RUN = """
import asyncio, json, sys
from pathlib import Path
from ncclkit.core.runs import Plan
from ncclkit.live.launch.launchers import launcher_of_plan
folder, facts = map(Path, sys.argv[1:])
sizes = ("collective", "--backend", "gloo", "--sizes", "8,65536", "--repeats", "3", "--timeout", "60")
plan = Plan("job", sizes, 4, "gloo", sys.executable, 120.0)
launcher = launcher_of_plan(plan)
records = asyncio.run(launcher.run(plan, folder, lambda record: None))
known = asyncio.run(launcher.read_facts(sys.executable, facts, {}))
names = [record["value"] for record in known if record["name"] == "host.name"]
print(json.dumps({"launcher": launcher.name, "records": records, "names": names}))
"""
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Two hosts that may log in at each other; mpirun is started on the first."""
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (apt-get install openmpi-bin)")
    if say := why_not():
        pytest.skip(say)
    if not SSHD or shutil.which("ssh") is None:
        pytest.skip("needs ssh and sshd (apt-get install openssh-client openssh-server)")
    with hosts(2) as made, ExitStack() as stack:
        first, second = every = [Machine(host, tmp_path / host.name) for host in made]
        first.settle("")
        allowed = keygen(first.home / ".ssh/id_ed25519")
        key = second.settle(allowed)
        stack.enter_context(second.serve())
        stack.callback(second.end)
        known(first, {second.name: key})
        yield every


@pytest.mark.serial  # ssh, mpirun, torchrun and four ranks at once: beside other jobs it is late
def test_ranks_run_and_facts_come_from_both_hosts(machines: list[Machine], tmp_path: Path) -> None:
    run, facts = tmp_path / "run", tmp_path / "facts"
    for folder in (run, facts):
        folder.mkdir()
    (run / "plan.json").write_text("{}")
    file = tmp_path / "hosts"
    # PBS writes a line for each core
    file.write_text("".join(f"{machine.name}\n" * 2 for machine in machines))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    env |= ROOT_MAY | {"PBS_NODEFILE": str(file), "PBS_JOBID": "77.server", "PYTHONPATH": str(ROOT)}
    command = [*machines[0].host.prefix, sys.executable, "-c", RUN, str(run), str(facts)]
    with nothing_stays(machines):
        done = subprocess.run(command, env=env, cwd=ROOT, text=True, capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:] + (run / "launcher.log").read_text()[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    measured = [record for record in said["records"] if record["kind"] == "measure"]
    assert [(one["bytes"], one["wrong"], one["ranks"]) for one in measured] == [(8, 0, 4), (65536, 0, 4)]
    assert said["launcher"] == "mpirun" and said["records"][-1]["reason"] == "done"
    assert sorted(said["names"]) == sorted(machine.name for machine in machines)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host file, and something that is called mpirun."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("NCCLKIT_HOSTFILE", str(tmp_path / "hosts"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path / "hosts"


@pytest.mark.parametrize(
    ("text", "count"),
    [("n1\nn1\nn2 slots=8\n# n3\n\n", 2), ("n1 slots=4\n", 1), ("", 0)],
)
def test_a_host_counts_once(program: Path, text: str, count: int) -> None:
    program.write_text(text)
    assert mpi.MpiLauncher().node_count() == count
    is_ours = launchers.launcher_here().name == "mpirun"
    assert is_ours == (count > 0)
    assert (launchers.starting_launcher().name == "mpirun") == (count > 1)


@pytest.mark.parametrize("line", ["--mca", "-x PATH", "n1;reboot", "$(id)", "ä"])
def test_a_word_that_mpirun_would_obey_is_no_host(program: Path, line: str) -> None:
    program.write_text(f"n1\n{line}\n")
    with pytest.raises(NcclkitError, match="Line 2 of .* begins with no host"):
        mpi.hosts_of_file()


def test_a_host_file_that_is_gone_is_one_sentence(program: Path) -> None:
    with pytest.raises(NcclkitError, match="cannot be read: No such file"):
        launchers.launcher_here()


class OtherLauncher(LocalLauncher):
    """As a package of its own would bring it."""

    name = "other"

    def node_count(self) -> int:
        return 3


def test_another_package_announces_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    class Announced:
        def load(self) -> type[Launcher]:
            return OtherLauncher

    monkeypatch.setattr(launchers, "entry_points", lambda group: [Announced()] if group == launchers.GROUP else [])
    launchers.known_launchers.cache_clear()
    try:
        assert (launchers.launcher_here().name, launchers.node_count()) == ("other", 3)
    finally:
        launchers.known_launchers.cache_clear()
