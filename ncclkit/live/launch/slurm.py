"""Ranks on the nodes of a Slurm allocation: srun starts one torchrun per node.

Every node has a guard of its own, which collects the evidence of its ranks and ends them; the guard
on the launching node watches srun.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclkit.agent import wire
from ncclkit.agent.facts.machine import Machine, Unread
from ncclkit.core import storage
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.core.text import host_list, split_words
from ncclkit.evidence.sources import slurm_end
from ncclkit.live import scheduler
from ncclkit.live.launch import pack, slurm_beside
from ncclkit.live.launch.base import Launcher, OnRecord, Record, checked_program
from ncclkit.live.launch.local import FACTS, missing_facts, run_under_guard
from ncclkit.live.launch.pack import PIPED, packed


def nodes() -> int:
    """Nodes of the allocation that this process runs in; 0 outside of one."""
    if not os.environ.get("SLURM_JOB_ID"):
        return 0
    return scheduler.number_in(os.environ.get("SLURM_JOB_NUM_NODES", ""))


CONTAINER, SRUN_OPTIONS = "NCCLKIT_CONTAINER", "NCCLKIT_SRUN_OPTIONS"
"""Variables: the words before the training interpreter on each node, and more options of srun."""


def starts_by_srun() -> bool:
    """Whether ranks start through srun.

    They do on several nodes, in a container, or from a shell on no node of its job.
    """
    asked = os.environ.get(CONTAINER, "").strip() or os.environ.get(SRUN_OPTIONS, "").strip()
    return nodes() > 1 or (nodes() == 1 and bool(asked or "SLURMD_NODENAME" not in os.environ))


def _split(name: str) -> list[str]:
    return split_words(os.environ.get(name, ""), name)


SHARES = "GPUS_PER_TASK TRES_PER_TASK NTASKS_PER_GPU GPU_BIND CPUS_PER_TASK".split()
"""Variables of a job with a task for each rank.

By them srun would give our one task of a node a share of it.
"""


def srun_once_per_node(*options: str, wait: int = 0) -> list[str]:
    """The srun words before a command that every node runs once.

    It runs with all resources of the job, beside the step that a notebook may run in.  `wait` is
    the seconds after the end of the first task until srun ends the others (0: never).
    """
    clean = []
    for name in SHARES:
        for start in "SLURM_", "SRUN_":
            for word in "-u", start + name:
                clean.append(word)
    count = str(nodes())  # of the tasks, too: a job may have more than one on each node
    words = [
        "srun",
        "--overlap",
        "--cpu-bind=none",
        "--nodes",
        count,
        "--ntasks",
        count,
        "--ntasks-per-node",
        "1",
    ]
    return ["env", *clean, *words, f"--wait={wait}", *_gpus(), *options, *_split(SRUN_OPTIONS)]


def _gpus() -> list[str]:
    """What gives a step all GPUs of its nodes.

    It is needed where the job asked for them by the task.
    """
    env = os.environ
    _, _, share = env.get("SLURM_GPUS_PER_TASK", "").rpartition(":")  # of a kind: h100:1
    here = env.get("SLURM_JOB_GPUS", "")
    each = scheduler.number_in(share, -1)
    if each < 0:
        return []
    tasks = scheduler.number_in(env.get("SLURM_NTASKS", ""), nodes()) // nodes()
    return [f"--gpus-per-node={len(here.split(',')) if here else each * tasks}"]


def agent_on_every_node(agent: Path, python: str, wait: int = 0) -> list[str]:
    """The words that start the agent once on every node.

    The words of the agent stand behind them; it comes over srun's input.
    """
    given = f"--input={scheduler.file_pattern(agent)}"
    srun = srun_once_per_node(given, wait=wait)
    return [*srun, *_split(CONTAINER), checked_program(python), *PIPED]


def environ_without_slurm() -> dict[str, str]:
    """Our environment without what an allocation that we are in says of itself."""
    own = ("SLURM_", "SRUN_", "SBATCH_")
    # SLURM_CONF says where Slurm itself is
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(own) or name == "SLURM_CONF"
    }


async def run_on_nodes(
    plan: Plan, folder: Path, on_record: OnRecord = lambda record: None
) -> list[Record]:
    """As `local.run_locally`, on every node of the allocation.

    Nodes need not see `folder`.  Its ranks are those of all nodes, a multiple of their number.
    """
    count = nodes()
    if plan.restarts:
        raise NcclkitError(
            "Under Slurm the live test does not restart a job; use one node, or sbatch --requeue."
        )
    if count == 0 or shutil.which("srun") is None:
        raise NcclkitError(
            "There is no Slurm allocation here; get one with salloc, or start this inside sbatch."
        )
    if plan.ranks % count:
        raise NcclkitError(
            f"{plan.ranks} ranks do not divide over {count} nodes; ask for a multiple of {count}."
        )
    # each node looks at its own ranks before all is ended
    own = plan.deadline - min(10, plan.deadline / 3)
    with packed(plan.lab) as agent:
        hosts, head = await asyncio.gather(node_names(), _head())
        seen = await _ask_nodes(folder, agent, plan.python, hosts, on_record)
        where = (
            str(folder),
            str(own),
            str(count),
            str(plan.ranks // count),
            head,
            seen.port(),
            seen.blind,
        )
        # once one node has ended, the others have some seconds for their own evidence
        srun = [
            *agent_on_every_node(agent, plan.python, wait=15),
            "node",
            "ranks",
            *where,
            *plan.words(folder),
        ]
        records = await run_under_guard(
            agent, srun, plan.env, plan.deadline, folder, plan.python, on_record, plan.unset
        )
    for problem in await asyncio.to_thread(pack.unpack, folder):
        on_record({"kind": "problem", "say": problem})
    await asyncio.to_thread(_absent, folder, records, hosts)
    if not any(record["kind"] == "end" and record["reason"] == "done" for record in records):
        number = os.environ.get("SLURM_JOB_ID", "")
        await asyncio.to_thread(keep_end, folder, number, on_record, True)
    return records


def keep_end(
    folder: Path, number: str, on_record: OnRecord = lambda record: None, run_failed: bool = False
) -> None:
    """Ask Slurm how a job ended, and keep the answer beside a run's logs.

    The answer also tells nodes that were lost while the job went on.
    """
    if not scheduler.JOB_ID.fullmatch(number):
        return
    end = slurm_end.end_of_job(number, scheduler.ask_slurm, run_failed)
    if end.problem:
        on_record({"kind": "problem", "say": end.problem})
    if end.lines:
        storage.write(folder / slurm_end.FILE, "\n".join([*end.lines, ""]))


@dataclass
class _NodeAnswers:
    """What the nodes of the allocation answered before the first run."""

    blind: str
    """Numbers of the nodes that do not see the case folder, joined by commas."""
    ports: list[int]

    def port(self) -> str:
        """The next free port of the first node.

        Where none is known, it is one that follows from the job's number.
        """
        if self.ports:
            # in turn, as connections of the last run may still hold its port
            port = self.ports.pop(0)
            self.ports.append(port)
            return str(port)
        number = scheduler.number_in(os.environ.get("SLURM_JOB_ID", ""))
        # different for jobs that share a node
        return str(20000 + number % 20000)


_answers: dict[tuple[str, ...], _NodeAnswers] = {}
"""Answers by job, interpreter and the folder of the run folders.

srun is asked once.
"""
SEEN = 10.0
"""Seconds in which a node must see a file that was just written.

Caches of network file systems take some.
"""


async def _ask_nodes(
    folder: Path, agent: Path, python: str, hosts: Sequence[str], on_record: OnRecord
) -> _NodeAnswers:
    """Whether every node sees the case folder, and which ports are free.

    The ports are those of the first node; it is said where it matters.
    """
    key = (os.environ["SLURM_JOB_ID"], python, str(folder.parent))
    if key not in _answers:
        marker = folder / ".seen"
        marker.touch()
        words = [*agent_on_every_node(agent, python), "node", "see", str(marker), str(SEEN)]
        try:
            answer = await asyncio.to_thread(Machine().run, words, SEEN + 60)
        except Unread as why:
            raise NcclkitError(
                f"srun starts nothing on the nodes of this allocation: {why}."
            ) from why
        finally:
            marker.unlink(missing_ok=True)
        records = [
            record
            for record in map(wire.parse_record, answer.out.encode().splitlines())
            if record is not None
        ]
        if not records:
            last = scheduler.last_words(answer.err or answer.out)
            raise NcclkitError(f"srun started {python} on no node of this allocation: {last}.")
        blind = sorted(
            int(r["number"]) for r in records if r["kind"] == "seen" and r["seconds"] is None
        )
        ports = next((list(r["ports"]) for r in records if r.get("ports")), [])
        _answers[key] = _NodeAnswers(",".join(map(str, blind)), ports)
        if blind:
            names = host_list(hosts[number] for number in blind if number < len(hosts))
            on_record(
                {
                    "kind": "problem",
                    "say": f"{names} cannot see {folder.parent}; its files come over srun.",
                }
            )
        elif (slowest := max(float(r["seconds"]) for r in records)) > 1:
            on_record(
                {
                    "kind": "problem",
                    "say": f"Nodes see a new file of {folder.parent} after {slowest:.0f} s.",
                }
            )
    return _answers[key]


def _absent(folder: Path, records: Sequence[Record], nodes: Sequence[str]) -> None:
    """Keep by name which nodes never began, where others did.

    From them nobody will hear anything.
    """
    begun = {record.get("number") for record in records if record.get("phase") == "node"}
    lost = []
    if begun:
        lost = [name for number, name in enumerate(nodes) if number not in begun]
    fields = {"ncclkit": wire.VERSION, "kind": "phase", "t": time.time(), "phase": "absent"}
    with open(folder / "wire.jsonl", "a", encoding="utf-8") as kept:
        kept.writelines(json.dumps(fields | {"name": name}) + "\n" for name in lost)


async def read_facts_of_nodes(
    python: str, folder: Path, paths: Mapping[str, str] | None = None, deadline: float = FACTS
) -> list[Record]:
    """As `local.read_facts_here`, on every node of the allocation.

    Each record says its ``host``.  A node that gave nothing is one fact, ``facts.host``, that could
    not be read.  `deadline` is above the agent's own, which says what hung.
    """
    labelled = [f"{label}={path}" for label, path in (paths or {}).items()]
    with packed() as agent:
        srun = [*agent_on_every_node(agent, python), "node", "facts", *labelled]
        await run_under_guard(agent, srun, {}, deadline, folder, python, lambda record: None)
    await asyncio.to_thread(pack.unpack, folder)
    return await asyncio.to_thread(collected, folder, await node_names())


def collected(folder: Path, nodes: Sequence[str]) -> list[Record]:
    """The facts that each node has left in ``facts-node<number>.jsonl``.

    The first node is 0.  A host has the name that it has itself, as logs do; nodes that share one
    (several on one machine) have Slurm's.
    """
    found: dict[str, list[Record]] = {}
    own: dict[str, Any] = {}
    for number, node in enumerate(nodes):
        lines = _lines(folder / f"facts-node{number}.jsonl")
        facts = _facts_in(lines)
        names = [fact["value"] for fact in facts if fact["name"] == "host.name"]
        own[node] = names[0] if names else None
        found[node] = facts or [_mute(lines)]
    times = Counter(own.values())
    records = []
    for node, facts in found.items():
        host = node
        if own[node] and times[own[node]] == 1:
            host = own[node]
        for fact in facts:
            records.append(fact | {"host": host})
    return records


def _facts_in(lines: Iterable[bytes]) -> list[Record]:
    """The facts of one node, and one for those that its agent did not come to."""
    records = [record for record in map(wire.parse_record, lines) if record]
    facts = []
    for record in records:
        if record.get("kind") == "fact" and "name" in record:
            facts.append(record)
    return facts + missing_facts(records, "with its node or step")


def _lines(path: Path) -> list[bytes]:
    if path.exists():
        return path.read_bytes().splitlines()
    return []


def _mute(lines: Sequence[bytes]) -> Record:
    last = "no output; launcher.log says why"
    if lines:
        last = lines[-1].decode("utf-8", "replace")[:200]
    return {
        "kind": "fact",
        "name": "facts.host",
        "value": None,
        "source": "srun",
        "why": f"the node gave no facts: {last}",
    }


async def node_names() -> list[str]:
    """The names of the allocation's nodes."""
    hosts = os.environ.get("SLURM_JOB_NODELIST", "")
    ask = ("scontrol", "--", "show", "hostnames", hosts)
    known = (await asyncio.to_thread(scheduler.ask_slurm, *ask, deadline=20)).split()
    strange = [name for name in known if not scheduler.ADDRESS.fullmatch(name)]
    if not known or strange:
        raise NcclkitError(f"scontrol does not know the nodes {hosts[:200]!r} of this allocation.")
    return known


async def _head() -> str:
    """Address of the allocation's first node, as Slurm itself reaches it.

    Node names need not resolve.
    """
    first = (await node_names())[0]
    ask = ("scontrol", "-o", "--", "show", "node", first)
    said = await asyncio.to_thread(scheduler.ask_slurm, *ask, deadline=20)
    address = scheduler.fields(said.partition("\n")[0]).get("NodeAddr", "")
    if scheduler.ADDRESS.fullmatch(address):
        return address
    return first


class SlurmLauncher(Launcher):
    """The nodes of an allocation of Slurm, reached by srun."""

    name = "Slurm"

    def __init__(self) -> None:
        self._parts: dict[str, slurm_beside.RunningParts] = {}
        """What Slurm answered about jobs that run."""

    def node_count(self) -> int:
        """As `nodes`."""
        return nodes()

    def starts_on_nodes(self) -> bool:
        """As `starts_by_srun`."""
        return starts_by_srun()

    async def node_names(self) -> list[str]:
        """As `node_names`."""
        return await node_names()

    def on_each_node(self, *options: str) -> list[str]:
        """As `srun_once_per_node`."""
        return srun_once_per_node("--label", *options)

    def agent_on_each_node(self, agent: Path, python: str, folder: Path) -> list[str]:
        """As `agent_on_every_node`: srun sends the agent over its input."""
        return agent_on_every_node(agent, python)

    async def run(self, plan: Plan, folder: Path, on_record: OnRecord) -> list[Record]:
        """As `run_on_nodes`."""
        return await run_on_nodes(plan, folder, on_record)

    async def read_facts(self, python: str, folder: Path, paths: Mapping[str, str]) -> list[Record]:
        """As `read_facts_of_nodes`."""
        return await read_facts_of_nodes(python, folder, paths)

    async def nodes_of_job(self, job: str) -> int:
        """The nodes of all parts of a job, by `slurm_beside.running_parts`."""
        parts = await slurm_beside.running_parts(job)
        if parts is None:
            return 0
        self._parts[job] = parts
        return sum(parts.nodes)

    def beside_job(self, job: str, agent: Path, folder: Path, *words: str) -> list[str]:
        """As `slurm_beside.command_beside`."""
        return slurm_beside.command_beside(self._parts[job], agent, folder, *words)

    def own_environ(self) -> dict[str, str] | None:
        """The environment without what an allocation that we are in says of itself."""
        return environ_without_slurm()
