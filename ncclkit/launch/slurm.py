"""Ranks on the nodes of a Slurm allocation: srun starts one torchrun per node.

Every node has a guard of its own, which collects the evidence of its ranks and
ends them; the guard on the launching node watches srun.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclkit.agent import wire
from ncclkit.launch.local import OnRecord, Record, guarded
from ncclkit.launch.pack import pack
from ncclkit.model import NcclkitError


def nodes() -> int:
    """Nodes of the allocation that this process runs in; 0 outside of one."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "0")) if os.environ.get("SLURM_JOB_ID") else 0


def each() -> list[str]:
    """The words before a command that every node of the allocation runs once."""
    count = ["--nodes", str(nodes()), "--ntasks-per-node", "1"]
    return ["srun", "--overlap", *count, "--wait=0", "--cpu-bind=none"]


async def run(
    argv: Sequence[str],
    ranks: int,
    env: Mapping[str, str],
    deadline: float,
    folder: Path,
    python: str,
    on_record: OnRecord = lambda record: None,
    unset: Sequence[str] = (),
    restarts: int = 0,
) -> list[Record]:
    """As `local.run`, on every node of the allocation; `folder` must lie on storage that all nodes share.

    ranks: over all nodes, a multiple of the number of nodes.
    """
    count = nodes()
    if restarts:
        raise NcclkitError("Under Slurm the live test does not restart a job; use one node, or sbatch --requeue.")
    if count == 0 or shutil.which("srun") is None:
        raise NcclkitError("There is no Slurm allocation here; get one with salloc, or start this inside sbatch.")
    if ranks % count:
        raise NcclkitError(f"{ranks} ranks do not divide over {count} nodes; ask for a multiple of {count}.")
    agent = await asyncio.to_thread(pack, folder)
    head, port = await _head(), 20000 + int(os.environ["SLURM_JOB_ID"]) % 20000
    # beside the step that a notebook may run in, and on all of a node's cores
    srun = f"srun --overlap --cpu-bind=none --nodes {count} --ntasks-per-node 1 --wait=15 --unbuffered".split()
    own = (
        deadline - 10 if deadline > 30 else deadline / 2
    )  # each node looks at its own ranks before the whole run is ended
    node = [python, str(agent), "node", str(folder), str(own), str(count), str(ranks // count), head, str(port)]
    return await guarded([*srun, *node, *argv], env, deadline, folder, python, on_record, unset)


async def facts(
    python: str, folder: Path, paths: Mapping[str, str] | None = None, deadline: float = 120.0
) -> list[Record]:
    """As `local.facts`, on every node of the allocation: each record says its ``host``.

    A node that gave nothing is one fact, ``facts.host``, that could not be read.  `folder` must lie on storage that all
    nodes share; deadline: above the agent's own, which says what hung.
    """
    agent = await asyncio.to_thread(pack, folder)
    labelled = [f"{label}={path}" for label, path in (paths or {}).items()]
    # a file a node, as on one pipe long records of many nodes would tear; without CPU binding, else it were a fact
    output = f"--output={str(folder).replace('%', '%%')}/facts-node%n.jsonl"
    await guarded(
        [*each(), output, python, str(agent), "facts", *labelled], {}, deadline, folder, python, lambda record: None
    )
    return await asyncio.to_thread(collected, folder, await names())


def collected(folder: Path, nodes: Sequence[str]) -> list[Record]:
    """The facts that each node, the first one being 0, has left in ``facts-node<number>.jsonl``.

    A host has the name that it has itself, as logs do; nodes that share one (several on one machine) have Slurm's.
    """
    said = {node: _lines(folder / f"facts-node{number}.jsonl") for number, node in enumerate(nodes)}
    found = {node: [record for line in lines if (record := _fact(line))] for node, lines in said.items()}
    own = {
        node: next((r["value"] for r in records if r["name"] == "host.name"), None) for node, records in found.items()
    }
    alone = {name for name, many in Counter(own.values()).items() if name and many == 1}
    return [
        record | {"host": own[node] if own[node] in alone else node}
        for node in nodes
        for record in found[node] or [_mute(said[node])]
    ]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _fact(line: bytes) -> Record | None:
    record = wire.parse(line)
    return record if record and record.get("kind") == "fact" and "name" in record else None


def _mute(lines: Sequence[bytes]) -> Record:
    last = lines[-1].decode("utf-8", "replace")[:200] if lines else "no output; launcher.log says why"
    return {
        "kind": "fact",
        "name": "facts.host",
        "value": None,
        "source": "srun",
        "why": f"the node gave no facts: {last}",
    }


async def names() -> list[str]:
    """The nodes of the allocation by name."""
    hosts = os.environ.get("SLURM_JOB_NODELIST", "")
    known = (await _scontrol("show", "hostnames", hosts)).split()
    if not known:
        raise NcclkitError(f"scontrol does not know the nodes {hosts!r} of this allocation.")
    return known


async def _head() -> str:
    """Address of the allocation's first node, as Slurm itself reaches it (node names need not resolve)."""
    first = (await names())[0]
    address = re.search(r"\bNodeAddr=(\S+)", await _scontrol("show", "node", first))
    return address.group(1) if address else first


async def _scontrol(*words: str) -> str:
    process = await asyncio.create_subprocess_exec("scontrol", *words, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    return out.decode("utf-8", "replace")
