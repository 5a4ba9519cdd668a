"""Ranks on the nodes of a host file: mpirun starts one torchrun per node.

OpenPBS and LSF leave such a file where a job runs, and ``NCCLKIT_HOSTFILE`` names one by hand: a
host a line, which may stand several times or with ``slots=8``.  mpirun hands no input to all nodes,
so the agent lies in the case folder, which every node must see.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.core.text import split_words
from ncclkit.live.launch import pack
from ncclkit.live.launch.base import Launcher, OnRecord, Record, checked_program
from ncclkit.live.launch.local import FACTS, TAG, run_under_guard
from ncclkit.live.launch.pack import packed
from ncclkit.live.launch.slurm import collected

HOST_FILES = ("NCCLKIT_HOSTFILE", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
"""Variables that name a file of hosts, the first that is set counting."""
OPTIONS = "NCCLKIT_MPIRUN_OPTIONS"
"""Variable: more options of mpirun."""
HOST = re.compile(r"[A-Za-z0-9_][\w.-]{0,252}", re.ASCII)
"""A host's name: nothing that mpirun would take for an option."""
PORT = "29511"
"""Where ranks meet on the first host, unless MASTER_PORT says otherwise."""
MOST_HOSTS = 100_000
JOB = "NCCLKIT_JOB"
"""Variable in which the agent on each host reads what the job is called."""
JOBS = (JOB, "PBS_JOBID", "LSB_JOBID")
HEEDED = ("NCCL_", "TORCH_", "GLOO_", "OMP_", "CUDA_", "NCCLKIT_", "PYTHON", "LD_LIBRARY_PATH")
"""How the names of variables begin that ranks heed on every host."""
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
AGENT = "agent.pyz"


class MpiLauncher(Launcher):
    """The nodes of a host file, reached by mpirun."""

    name = "mpirun"

    def node_count(self) -> int:
        """Different hosts of the file; 0 without one, or without mpirun."""
        if shutil.which("mpirun") is None:
            return 0
        return len(hosts_of_file())

    def starts_on_nodes(self) -> bool:
        """Whether there are several: one is reached by torchrun, too."""
        return self.node_count() > 1

    async def node_names(self) -> list[str]:
        """The hosts in the order of the file."""
        return hosts_of_file()

    def on_each_node(self, *options: str) -> list[str]:
        """mpirun with one process a host, whose lines say which one wrote them."""
        return [*_mpirun(), "--tag-output", *options]

    def agent_on_each_node(self, agent: Path, python: str, folder: Path) -> list[str]:
        """The agent from the run folder, as mpirun sends no file."""
        return _placed_agent(agent, python, folder, None)

    async def run(self, plan: Plan, folder: Path, on_record: OnRecord) -> list[Record]:
        """The ranks of a plan, as many on each host."""
        hosts = hosts_of_file()
        if plan.restarts:
            raise NcclkitError("Under mpirun the live test does not restart a job; use one node.")
        if plan.ranks % len(hosts):
            raise NcclkitError(
                f"{plan.ranks} ranks do not divide over {len(hosts)} hosts; ask for a multiple of"
                f" {len(hosts)}."
            )
        # each node looks at its own ranks before all is ended
        own_deadline = plan.deadline - min(10, plan.deadline / 3)
        port = plan.env.get("MASTER_PORT") or os.environ.get("MASTER_PORT") or PORT
        each = str(plan.ranks // len(hosts))
        sees_all = ""
        place = (str(folder), str(own_deadline), str(len(hosts)), each, hosts[0], port, sees_all)
        with packed(plan.lab) as agent:
            start = _placed_agent(agent, plan.python, folder, plan)
            command = [*start, "node", "ranks", *place, *plan.words(folder)]
            records = await run_under_guard(
                agent, command, plan.env, plan.deadline, folder, plan.python, on_record, plan.unset
            )
        for problem in await asyncio.to_thread(pack.unpack, folder):
            on_record({"kind": "problem", "say": problem})
        return records

    async def read_facts(self, python: str, folder: Path, paths: Mapping[str, str]) -> list[Record]:
        """The facts of each host.

        A host that gave nothing is a fact that could not be read.
        """
        labelled = [f"{label}={path}" for label, path in paths.items()]
        with packed() as agent:
            start = self.agent_on_each_node(agent, python, folder)
            command = [*start, "node", "facts", *labelled]
            await run_under_guard(agent, command, {}, FACTS, folder, python, lambda record: None)
        await asyncio.to_thread(pack.unpack, folder)
        return await asyncio.to_thread(collected, folder, hosts_of_file())


def hosts_of_file() -> list[str]:
    """The different hosts of the file that a variable names, in its order.

    There are none without such a file.
    """
    path = _host_file()
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NcclkitError(f"The host file {path} cannot be read: {error.strerror}.") from error
    hosts: dict[str, None] = {}
    for number, line in enumerate(lines[:MOST_HOSTS], 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not HOST.fullmatch(words[0]):
            raise NcclkitError(f"Line {number} of {path} begins with no host: {words[0][:60]!r}.")
        hosts[words[0]] = None
    return list(hosts)


def _placed_agent(agent: Path, python: str, folder: Path, plan: Plan | None) -> list[str]:
    """The words that start the agent on each host, from a copy in the run folder."""
    placed = folder / AGENT
    if not placed.exists():
        shutil.copyfile(agent, placed)
    return [*_mpirun(plan), checked_program(python), "-I", str(placed)]


def _host_file() -> Path | None:
    for name in HOST_FILES:
        if os.environ.get(name):
            return Path(os.environ[name])
    return None


def _mpirun(plan: Plan | None = None) -> list[str]:
    """mpirun with one process on each host, free to use all of its cores.

    The hosts get the variables of the `plan`, besides those of ours that ranks heed.
    """
    hosts = hosts_of_file()
    more = split_words(os.environ.get(OPTIONS, ""), OPTIONS)
    # a host counts once: the file has a line for each core, where PBS writes it
    named = ",".join(f"{host}:1" for host in hosts)
    count = ["--host", named, "--np", str(len(hosts)), "--map-by", "ppr:1:node"]
    passed = ["-x", f"{JOB}={_job_name()}"]
    for name in _passed_variables(plan):
        passed += ["-x", name]
    # mpirun would bind its one process of a host, and with it all ranks, to one core
    return ["mpirun", *count, "--bind-to", "none", *passed, *more]


def _passed_variables(plan: Plan | None) -> list[str]:
    """Names of the variables that go to every host.

    mpirun passes none of ours by itself.
    """
    names = {name for name in os.environ if name.startswith(HEEDED)}
    if plan is not None:
        names |= plan.env.keys() | {TAG}
        names -= set(plan.unset)
    return sorted(name for name in names if VARIABLE.fullmatch(name))


def _job_name() -> str:
    """What the scheduler calls this job, alike on all hosts; "0" without one."""
    for name in JOBS:
        said = os.environ.get(name, "")
        # it becomes an argument of mpirun
        if HOST.fullmatch(said):
            return said
    return "0"
